// SPDX-License-Identifier: Apache-2.0
//! The data and the first weights of the model that every binding trains; tests/bindings/README.md of the repository describes both.
#![allow(dead_code)] // each example uses a part

use std::error::Error;
use std::ops::Range;
use std::{env, fs};

pub const INPUTS: usize = 64;
pub const HIDDEN: usize = 32;
pub const CLASSES: usize = 10;
pub const BATCH: usize = 64;
pub const STEPS: usize = 100;

/// scikit-learn's digits: 64 pixels from 0 to 1 a row, and what they show.
pub struct Digits {
    pub pixels: Vec<f32>,
    pub labels: Vec<u32>,
}

impl Digits {
    /// Reads the CSV file that the environment variable MEGADP_DIGITS names.
    pub fn read() -> Result<Self, Box<dyn Error>> {
        let path = env::var("MEGADP_DIGITS").map_err(|_| "MEGADP_DIGITS must name the file that tests/bindings/digits.py writes")?;
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for line in fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?.lines() {
            let row = line.split(',').map(|number| number.trim().parse()).collect::<Result<Vec<f32>, _>>()?;
            let (label, row) = row.split_last().filter(|(_, row)| row.len() == INPUTS).ok_or("a row has 64 pixels and a digit")?;
            pixels.extend(row.iter().map(|pixel| pixel / 16.0));
            labels.push(*label as u32);
        }
        Ok(Digits { pixels, labels })
    }

    /// What one rank sees of the batch of a step: pixels row by row, and labels.
    pub fn batch(&self, step: usize, rank: usize, ranks: usize) -> (Vec<f32>, Vec<u32>) {
        let mine: Range<usize> = BATCH * rank / ranks..BATCH * (rank + 1) / ranks;
        let rows = mine.map(|k| (BATCH * step + k) % self.labels.len());
        rows.map(|row| (&self.pixels[row * INPUTS..][..INPUTS], self.labels[row])).fold(Default::default(), |mut batch, (pixels, label)| {
            batch.0.extend_from_slice(pixels);
            batch.1.push(label);
            batch
        })
    }
}

/// Name, shape and first values of w1, b1, w2 and b2.
pub fn parameters() -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
    let mut state = 1u32;
    let mut weights = |rows: usize, columns: usize| -> Vec<f32> {
        let draw = |_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            ((f64::from(state) / 4294967296.0 - 0.5) * 2.0 / (rows as f64).sqrt()) as f32
        };
        (0..rows * columns).map(draw).collect()
    };
    let (w1, w2) = (weights(INPUTS, HIDDEN), weights(HIDDEN, CLASSES));
    vec![
        ("w1", vec![INPUTS, HIDDEN], w1),
        ("b1", vec![HIDDEN], vec![0.0; HIDDEN]),
        ("w2", vec![HIDDEN, CLASSES], w2),
        ("b2", vec![CLASSES], vec![0.0; CLASSES]),
    ]
}
