// SPDX-License-Identifier: Apache-2.0
//! The attention of a block, as its formulas say it.
use super::{Block, Computed, View, Wanted};
use crate::error::Result;
use std::borrow::Cow;
use std::ops::Range;

/// Batch, position, head.
type Place = (usize, usize, usize);

/// An array of a block in f32, row-major.
struct Rows<'a> {
    data: Cow<'a, [f32]>,
    positions: usize,
    heads: usize,
    size: usize,
}

impl<'a> Rows<'a> {
    fn of(view: &View<'a>) -> Result<Self> {
        Ok(Rows { data: view.floats()?, positions: view.size(1), heads: view.size(2), size: view.size(3) })
    }

    fn range(&self, (batch, position, head): Place) -> Range<usize> {
        let first = ((batch * self.positions + position) * self.heads + head) * self.size;
        first..first + self.size
    }

    fn row(&self, at: Place) -> &[f32] {
        &self.data[self.range(at)]
    }

    /// Zeros of the same shape.
    fn zeros(&self) -> Rows<'static> {
        Rows { data: Cow::Owned(vec![0.0; self.data.len()]), ..*self }
    }

    /// Adds a multiple of `other` to a row.
    fn add(&mut self, at: Place, factor: f32, other: &[f32]) {
        let range = self.range(at);
        for (to, from) in self.data.to_mut()[range].iter_mut().zip(other) {
            *to += factor * from;
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Computes a block, forward or backward, on this thread, in f32, a query at a time; scores are products times `scale`, 1 / sqrt(head_dim) unless said.
/// Memory of the host. Local.
///
/// # Errors
/// UNSUPPORTED (memory of a device; bf16 and f16 without the feature `half`).
pub fn plain_attention(mut block: Block<'_>, scale: Option<f32>) -> Computed {
    let (q, k, v) = (Rows::of(&block.q)?, Rows::of(&block.k)?, Rows::of(&block.v)?);
    let scale = scale.unwrap_or(1.0 / (q.size as f32).sqrt());
    let keys: Vec<_> = (0..q.positions).map(|query| block.keys_of(query)).collect();
    let group = q.heads / k.heads;
    let seen_by = |(b, i, h): Place| keys[i].clone().map(move |j| (b, j, h / group));
    let queries = || {
        let of_batch = |b| (0..q.positions).flat_map(move |i| (0..q.heads).map(move |h| (b, i, h)));
        (0..block.q.size(0)).flat_map(of_batch)
    };
    match &mut block.wanted {
        Wanted::Outputs { out, lse } => {
            let (mut found, mut found_lse) = (q.zeros(), Vec::new());
            for query in queries() {
                let scores: Vec<f32> = seen_by(query).map(|key| scale * dot(q.row(query), k.row(key))).collect();
                let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = scores.iter().map(|score| (score - most).exp()).sum();
                found_lse.push(most + sum.ln()); // minus infinity without a key
                for (key, score) in seen_by(query).zip(&scores) {
                    found.add(query, (score - most).exp() / sum, v.row(key));
                }
            }
            out.write(&found.data)?;
            lse.write(&found_lse)?;
        }
        Wanted::Gradients { out, lse, grad_out, grad_q, grad_k, grad_v } => {
            let (out, grad_out, lse) = (Rows::of(out)?, Rows::of(grad_out)?, lse.floats()?);
            let (mut dq, mut dk, mut dv) = (q.zeros(), k.zeros(), v.zeros());
            for (query, lse) in queries().zip(lse.iter()) {
                let delta = dot(grad_out.row(query), out.row(query));
                for key in seen_by(query) {
                    let weight = (scale * dot(q.row(query), k.row(key)) - lse).exp();
                    let change = scale * weight * (dot(grad_out.row(query), v.row(key)) - delta);
                    dq.add(query, change, k.row(key));
                    dk.add(key, change, q.row(query));
                    dv.add(key, weight, grad_out.row(query));
                }
            }
            grad_q.write(&dq.data)?;
            grad_k.write(&dk.data)?;
            grad_v.write(&dv.data)?;
        }
    }
    Ok(())
}
