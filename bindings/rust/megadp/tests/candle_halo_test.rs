// SPDX-License-Identifier: Apache-2.0
//! Convolutions of candle's on images that are cut over ranks, against the same of the whole image: outputs and gradients.
mod ranks;

use candle_core::{Device, IndexOp, Result, Tensor, Var};
use megadp::candle::halo::HaloPad;
use megadp::halo::{Edge, Halo};
use megadp::{Comm, DType, Op};
use ranks::{alone, threads};

const IMAGES: (usize, usize, usize, usize) = (2, 3, 8, 12);

fn draw(shape: impl Into<candle_core::Shape>, salt: usize) -> Result<Tensor> {
    let shape = shape.into();
    let data: Vec<f32> = (0..shape.elem_count()).map(|i| ((3 * i + 7 * salt) as f32).sin()).collect();
    Tensor::from_vec(data, shape, &Device::Cpu)
}

fn largest(tensor: &Tensor) -> f32 {
    tensor.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
}

fn check(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let off = largest(&(found - expected).unwrap());
    assert!(off < 1e-5 * (1.0 + largest(expected)), "{what} is off by {off}");
}

fn equal(comm: &Comm, grid: [usize; 2]) -> Result<()> {
    let (images, weight) = (Var::from_tensor(&draw(IMAGES, 1)?)?, Var::from_tensor(&draw((4, 3, 3, 5), 2)?)?);
    let whole = images.pad_with_zeros(2, 1, 1)?.pad_with_zeros(3, 2, 2)?.conv2d(&weight, 0, 1, 1, 1)?;
    let grad = draw(whole.shape(), 3)?;
    let grads = (&whole * &grad)?.sum_all()?.backward()?;

    let rank = comm.rank().unwrap();
    let (rows, columns) = (IMAGES.2 / grid[0], IMAGES.3 / grid[1]);
    let (row, column) = (rank / grid[1] * rows, rank % grid[1] * columns);
    let cut = |tensor: &Tensor| tensor.i((.., .., row..row + rows, column..column + columns));
    let builder = Halo::builder(&[1, 1, grid[0], grid[1]], &[IMAGES.0, IMAGES.1, rows, columns]).low(&[0, 0, 1, 2]).high(&[0, 0, 1, 2]);
    let pad = HaloPad::new(comm, &builder.edges([Edge::Keep, Edge::Keep, Edge::Zero, Edge::Zero])).unwrap();
    // Columns first in memory: strides.
    let part = Var::from_tensor(&cut(&images)?.transpose(2, 3)?.contiguous()?)?;
    let own_weight = Var::from_tensor(&weight)?;
    let out = pad.forward(&part.transpose(2, 3)?)?.conv2d(&own_weight, 0, 1, 1, 1)?;
    let what = format!("{grid:?}");
    check(&out, &cut(&whole)?, &format!("output of {what}"));
    let found = (&out * cut(&grad)?)?.sum_all()?.backward()?;
    check(&found.get(&part).unwrap().transpose(2, 3)?, &cut(grads.get(&images).unwrap())?, &format!("gradient of {what}"));
    let mut of_weight = found.get(&own_weight).unwrap().flatten_all()?.to_vec1::<f32>()?;
    comm.all_reduce(&mut of_weight, Op::Sum).unwrap();
    check(&Tensor::from_vec(of_weight, weight.shape(), &Device::Cpu)?, grads.get(&weight).unwrap(), &format!("the weight's of {what}"));
    Ok(())
}

#[test]
fn convolutions_of_parts_are_those_of_the_image() {
    for grid in [[1, 1], [2, 1], [1, 3], [2, 2], [4, 1]] {
        threads(grid[0] * grid[1], |comm| equal(&comm, grid).unwrap());
    }
}

#[test]
fn around_a_ring_in_bf16() {
    threads(2, |comm| {
        let rank = comm.rank().unwrap() as f32;
        let builder = Halo::builder(&[2], &[2]).width(1).edges([Edge::Periodic]).dtype(DType::Bf16);
        let pad = HaloPad::new(&comm, &builder).unwrap();
        let dtype = candle_core::DType::BF16;
        let part = Tensor::new(&[2.0 * rank, 2.0 * rank + 1.0], &Device::Cpu).and_then(|tensor| tensor.to_dtype(dtype)).unwrap();
        let part = Var::from_tensor(&part).unwrap();
        let padded = pad.forward(&part).unwrap();
        let values = padded.to_dtype(candle_core::DType::F32).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values, if rank == 0.0 { [3.0, 0.0, 1.0, 2.0] } else { [1.0, 2.0, 3.0, 0.0] });
        let grads = padded.sum_all().unwrap().backward().unwrap();
        let grad = grads.get(&part).unwrap().to_dtype(candle_core::DType::F32).unwrap();
        assert_eq!(grad.to_vec1::<f32>().unwrap(), [2.0, 2.0]); // it, and its copy
    });
}

#[test]
fn what_does_not_fit_is_named() {
    let pad = HaloPad::new(&alone(), &Halo::builder(&[1, 1], &[2, 3]).width(1)).unwrap();
    let told = |tensor: Result<Tensor>| pad.forward(&tensor.unwrap()).unwrap_err().to_string();
    let text = told(draw(6, 1));
    assert!(text.contains("the tensor has 1 dimensions, and the halo 2"), "{text}");
    let text = told(draw((3, 3), 1));
    assert!(text.contains("fields[0] has shape [5,5]"), "{text}");
    let text = told(draw((2, 3), 1).and_then(|tensor| tensor.to_dtype(candle_core::DType::BF16)));
    assert!(text.contains("fields[0].dtype is bf16"), "{text}");
}
