// SPDX-License-Identifier: Apache-2.0
//! Attention of candle's over a sequence that is cut over ranks, against that of the whole sequence by candle's own operations and gradients.
mod ranks;

use candle_core::{DType, Device, Result, Tensor, Var};
use megadp::Comm;
use megadp::candle::cp::Attention;
use megadp::cp::{self, Form};
use ranks::{alone, threads};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const BATCH: usize = 2;
const SEQUENCE: usize = 12;
const SIZE: usize = 4;

fn draw(heads: usize, salt: usize) -> Tensor {
    let data: Vec<f32> = (0..BATCH * SEQUENCE * heads * SIZE).map(|i| ((3 * i + 7 * salt) as f32).sin()).collect();
    Tensor::from_vec(data, (BATCH, SEQUENCE, heads, SIZE), &Device::Cpu).unwrap()
}

/// The output by candle's own operations, with each head of k and v repeated for the heads of q that use it.
fn whole(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Result<Tensor> {
    let heads = q.dim(2)?;
    let by_head = |tensor: &Tensor| {
        let spread = tensor.unsqueeze(3)?.repeat((1, 1, 1, heads / tensor.dim(2)?, 1))?;
        spread.reshape((BATCH, SEQUENCE, heads, SIZE))?.transpose(1, 2)?.contiguous()
    };
    let (q, k, v) = (by_head(q)?, by_head(k)?, by_head(v)?);
    let scores = (q.matmul(&k.t()?)? / (SIZE as f64).sqrt())?;
    let hidden: Vec<f32> = (0..SEQUENCE * SEQUENCE).map(|i| if causal && i % SEQUENCE > i / SEQUENCE { -1e9 } else { 0.0 }).collect();
    let scores = scores.broadcast_add(&Tensor::from_vec(hidden, (SEQUENCE, SEQUENCE), &Device::Cpu)?)?;
    let weights = scores.exp()?;
    weights.broadcast_div(&weights.sum_keepdim(3)?)?.matmul(&v)?.transpose(1, 2)?.contiguous()
}

fn check(found: &Tensor, expected: &Tensor, what: &str) {
    let off = (found - expected).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
    assert!(off < 1e-5, "{what} is off by {off}");
}

fn equal(comm: &Comm, causal: bool, form: Form, kv_heads: usize) -> Result<()> {
    let all = [6, kv_heads, kv_heads].into_iter().zip(1..).map(|(heads, salt)| Var::from_tensor(&draw(heads, salt)));
    let all = all.collect::<Result<Vec<_>>>()?;
    let (grad_out, expected) = (draw(6, 4), whole(&all[0], &all[1], &all[2], causal)?);
    let grads = (&expected * &grad_out)?.sum_all()?.backward()?;

    let attention = cp::Attention::new().form(form);
    let attention = if causal { attention.causal() } else { attention };
    let part = attention.part(comm.size().unwrap(), comm.rank().unwrap(), SEQUENCE).unwrap();
    let positions: Vec<u32> = part.into_iter().flatten().map(|at| at as u32).collect();
    let positions = Tensor::from_vec(positions.clone(), positions.len(), &Device::Cpu)?;
    let cut = |tensor: &Tensor| tensor.index_select(&positions, 1);
    // Whose heads come first in memory: strides.
    let mine = all.iter().map(|tensor| Var::from_tensor(&cut(tensor)?.transpose(1, 2)?.contiguous()?)).collect::<Result<Vec<_>>>()?;
    let called = Arc::new(AtomicUsize::new(0));
    let counted = called.clone();
    let attention = Attention::new(comm, attention).function(move |block| {
        counted.fetch_add(1, Ordering::Relaxed);
        cp::plain_attention(block, None)
    });
    let out = attention.forward(&mine[0].transpose(1, 2)?, &mine[1].transpose(1, 2)?, &mine[2].transpose(1, 2)?)?;
    let what = format!("{form:?} on {} ranks", comm.size().unwrap());
    check(&out, &cut(&expected)?, &format!("out of {what}"));
    let found = (&out * cut(&grad_out)?)?.sum_all()?.backward()?;
    for ((all, mine), name) in all.iter().zip(&mine).zip(["q", "k", "v"]) {
        check(&found.get(mine).unwrap().transpose(1, 2)?, &cut(grads.get(all).unwrap())?, &format!("{name}'s gradient of {what}"));
    }
    assert!(called.load(Ordering::Relaxed) >= 2);
    Ok(())
}

#[test]
fn cut_attention_has_the_gradients_of_the_whole_sequence() {
    for size in 1..=3 {
        threads(size, |comm| {
            for causal in [false, true] {
                for (form, kv_heads) in [(Form::Ring, 2), (Form::AllToAll, 6), (Form::Auto, 3)] {
                    equal(&comm, causal, form, kv_heads).unwrap();
                }
            }
        });
    }
}

#[test]
fn bf16_attention_and_what_is_refused() {
    let comm = alone();
    let attention = Attention::new(&comm, cp::Attention::new());
    let q = Var::ones((1, 3, 2, SIZE), DType::BF16, &Device::Cpu).unwrap();
    let out = attention.forward(&q, &q, &q).unwrap();
    assert_eq!((out.dtype(), out.dims()), (DType::BF16, q.dims()));
    let grad = out.sum_all().unwrap().backward().unwrap().get(&q).unwrap().clone();
    assert_eq!(grad.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap(), [1.0; 24]);
    let doubles = q.to_dtype(DType::F64).unwrap();
    assert!(attention.forward(&doubles, &doubles, &doubles).unwrap_err().to_string().contains("F64"));
    let flat = q.flatten_all().unwrap();
    assert!(attention.forward(&flat, &flat, &flat).unwrap_err().to_string().contains("q has shape [24]"));
    let failing = attention.function(|_| Err("no kernel".into()));
    let error = failing.forward(&q, &q, &q).unwrap_err().to_string();
    assert!(error.contains(": no kernel (Aborted)"), "{error}");
}
