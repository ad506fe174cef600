// SPDX-License-Identifier: Apache-2.0
//! Trains a small network on scikit-learn's digits, in plain Rust, on as many ranks as it is started with:
//!
//!     MEGADP_DIGITS=digits.csv megadp run -n 2 target/debug/examples/digits_mlp
//!
//! Rank 0 prints the loss of each step, over the whole batch. Gradients are handed over as soon as backward has them, the last layer's first.
mod digits;

use digits::{CLASSES, Digits, HIDDEN, INPUTS, STEPS, parameters};
use megadp::{Buffer, Comm, Gradients, Op, Optimizer, Param, StepOptions};
use std::error::Error;

/// c[i, j] += sum over k of a(i, k) b(k, j), for matrices given by functions of their indices.
fn add_product(c: &mut [f32], columns: usize, depth: usize, a: impl Fn(usize, usize) -> f32, b: impl Fn(usize, usize) -> f32) {
    for (i, row) in c.chunks_mut(columns).enumerate() {
        for (j, value) in row.iter_mut().enumerate() {
            *value += (0..depth).map(|k| a(i, k) * b(k, j)).sum::<f32>();
        }
    }
}

fn sum_rows(rows: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0; columns];
    for row in rows.chunks(columns) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    sums
}

/// Turns logits into the gradient of their mean cross-entropy, which it returns.
fn cross_entropy(logits: &mut [f32], labels: &[u32]) -> f64 {
    let count = labels.len() as f32;
    let mut loss = 0.0;
    for (row, &label) in logits.chunks_mut(CLASSES).zip(labels) {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = row.iter().map(|logit| (logit - largest).exp()).sum();
        loss += f64::from(sum.ln() - (row[label as usize] - largest));
        for (class, logit) in row.iter_mut().enumerate() {
            let probability = (*logit - largest).exp() / sum;
            *logit = (probability - f32::from(class == label as usize)) / count;
        }
    }
    loss / f64::from(count)
}

fn forward_backward(buffer: &Buffer, gradients: &Gradients, x: &[f32], labels: &[u32]) -> megadp::Result<f64> {
    let rows = labels.len();
    let (w1, b1): (&[f32], &[f32]) = (buffer.param(0)?, buffer.param(1)?); // each waits until it is whole
    let mut hidden = b1.repeat(rows);
    add_product(&mut hidden, HIDDEN, INPUTS, |i, k| x[i * INPUTS + k], |k, j| w1[k * HIDDEN + j]);
    hidden.iter_mut().for_each(|value| *value = value.max(0.0));
    let (w2, b2): (&[f32], &[f32]) = (buffer.param(2)?, buffer.param(3)?);
    let mut logits = b2.repeat(rows);
    add_product(&mut logits, CLASSES, HIDDEN, |i, k| hidden[i * HIDDEN + k], |k, j| w2[k * CLASSES + j]);

    let loss = cross_entropy(&mut logits, labels);
    let d_logits = logits;
    gradients.put(3, &sum_rows(&d_logits, CLASSES))?;
    let mut d_w2 = vec![0.0; HIDDEN * CLASSES];
    add_product(&mut d_w2, CLASSES, rows, |i, k| hidden[k * HIDDEN + i], |k, j| d_logits[k * CLASSES + j]);
    gradients.put(2, &d_w2)?;
    let mut d_hidden = vec![0.0; rows * HIDDEN];
    add_product(&mut d_hidden, HIDDEN, CLASSES, |i, k| d_logits[i * CLASSES + k], |k, j| w2[j * CLASSES + k]);
    d_hidden.iter_mut().zip(&hidden).filter(|(_, hidden)| **hidden <= 0.0).for_each(|(d, _)| *d = 0.0);
    gradients.put(1, &sum_rows(&d_hidden, HIDDEN))?;
    let mut d_w1 = vec![0.0; INPUTS * HIDDEN];
    add_product(&mut d_w1, HIDDEN, rows, |i, k| x[k * INPUTS + i], |k, j| d_hidden[k * HIDDEN + j]);
    gradients.put(0, &d_w1)?;
    Ok(loss)
}

fn main() -> Result<(), Box<dyn Error>> {
    let data = Digits::read()?;
    let comm = Comm::builder().connect()?;
    let (rank, ranks) = (comm.rank()?, comm.size()?);
    let parameters = parameters();
    let params: Vec<Param> = parameters.iter().map(|(name, shape, _)| Param::new(*name, shape)).collect();
    let mut buffer = Buffer::builder().bucket_elements(256).register(&comm, &params)?;
    for (index, (_, _, values)) in parameters.iter().enumerate() {
        buffer.write_param(index, values)?;
    }
    let mut optimizer = Optimizer::builder().lr(1e-2).weight_decay(0.01).create(&buffer)?;
    let gradients = buffer.gradients();
    for step in 0..STEPS {
        let (x, labels) = data.batch(step, rank, ranks);
        let mut loss = [forward_backward(&buffer, &gradients, &x, &labels)?];
        // Ends backward, and returns while parameters are still gathered; forward waits for those that it needs.
        let (_report, _gathering) = optimizer.start_step(&mut buffer, &StepOptions::default())?;
        comm.all_reduce(&mut loss, Op::Avg)?;
        if rank == 0 {
            println!("loss {step} {:.9}", loss[0]);
        }
    }
    let stats = buffer.stats()?;
    if rank == 0 {
        println!("buckets {} launched in backward {}", stats.buckets, stats.launched_in_backward);
    }
    Ok(buffer.verify()?)
}
