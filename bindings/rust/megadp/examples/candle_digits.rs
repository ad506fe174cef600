// SPDX-License-Identifier: Apache-2.0
//! Trains a small candle network on scikit-learn's digits, on as many ranks as it is started with:
//!
//!     MEGADP_DIGITS=digits.csv megadp run -n 2 target/debug/examples/candle_digits
//!
//! Rank 0 prints the loss of each step, over the whole batch, and, of the last step, when each bucket's reduction began, counted from the
//! end of backward.
mod digits;

use candle_core::{Device, Tensor, Var};
use digits::{Digits, INPUTS, STEPS, parameters};
use megadp::candle::DataParallel;
use megadp::{Buffer, Comm, Op, Optimizer, StepOptions};
use std::error::Error;

struct Mlp {
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
}

impl Mlp {
    /// Built once: a step changes the values of these tensors in place.
    fn new(parallel: &DataParallel) -> megadp::candle::Result<Self> {
        let tensor = |name| parallel.tensor(name);
        Ok(Mlp { w1: tensor("w1")?, b1: tensor("b1")?, w2: tensor("w2")?, b2: tensor("b2")? })
    }

    /// Mean cross-entropy.
    fn loss(&self, x: &Tensor, labels: &Tensor) -> candle_core::Result<Tensor> {
        let hidden = x.matmul(&self.w1)?.broadcast_add(&self.b1)?.relu()?;
        let logits = hidden.matmul(&self.w2)?.broadcast_add(&self.b2)?;
        let logits = logits.broadcast_sub(&logits.max_keepdim(1)?.detach())?;
        let log_sums = logits.exp()?.sum_keepdim(1)?.log()?;
        log_sums.sub(&logits.gather(&labels.unsqueeze(1)?, 1)?)?.mean_all()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let data = Digits::read()?;
    let comm = Comm::builder().connect()?;
    let (rank, ranks) = (comm.rank()?, comm.size()?);
    let var = |(name, shape, values): (_, Vec<usize>, Vec<f32>)| Ok((name, Var::from_vec(values, shape, &Device::Cpu)?));
    let vars = parameters().into_iter().map(var).collect::<candle_core::Result<Vec<_>>>()?;
    let buckets = Buffer::builder().bucket_elements(256);
    let mut parallel = DataParallel::register(&comm, &buckets, vars)?;
    let mut optimizer = Optimizer::builder().lr(1e-2).weight_decay(0.01).create(parallel.buffer())?;
    let model = Mlp::new(&parallel)?;
    for step in 0..STEPS {
        let (x, labels) = data.batch(step, rank, ranks);
        let rows = labels.len();
        let (x, labels) = (Tensor::from_vec(x, (rows, INPUTS), &Device::Cpu)?, Tensor::from_vec(labels, rows, &Device::Cpu)?);
        let loss = model.loss(&x, &labels)?;
        parallel.backward(&loss)?;
        parallel.step(&mut optimizer, &StepOptions::default())?;
        let mut loss = [f64::from(loss.to_scalar::<f32>()?)];
        comm.all_reduce(&mut loss, Op::Avg)?;
        if rank == 0 {
            println!("loss {step} {:.9}", loss[0]);
        }
    }
    let stats = parallel.buffer().stats()?;
    for bucket in 0..parallel.buffer().buckets()? {
        let bucket = parallel.buffer().bucket(bucket)?;
        if let (0, Some(begun), Some(synced)) = (rank, bucket.reduce_begin_ns, bucket.sync_ns) {
            println!("a bucket's reduction began {:.3} ms after the end of backward", (begun as f64 - synced as f64) / 1e6);
        }
    }
    if rank == 0 {
        println!("buckets {} launched in backward {}", stats.buckets, stats.launched_in_backward);
    }
    Ok(parallel.buffer().verify()?)
}
