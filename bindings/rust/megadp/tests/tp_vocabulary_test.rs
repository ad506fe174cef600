// SPDX-License-Identifier: Apache-2.0
//! Embeddings and cross-entropy of a vocabulary that is cut over ranks, against the whole; seeds of a grid. Rows of tables are small multiples of
//! 1/4, so that their sums are exact.
mod ranks;

use megadp::tp::{Array, ArrayMut, CrossEntropy, Embedding, Grad};
use megadp::{Code, Comm, Grid, Random};
use ranks::{alone, threads};

fn small(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + salt * 5) % 9) as f32 / 4.0 - 1.0).collect()
}

/// This rank's of equal parts.
fn part<T: Clone>(whole: &[T], comm: &Comm) -> Vec<T> {
    let size = whole.len() / comm.size().unwrap();
    whole.chunks(size).nth(comm.rank().unwrap()).unwrap().to_vec()
}

const ROWS: usize = 6;
const FEATURES: usize = 3;
const IDS: [i64; 4] = [5, 0, 2, 5];

fn embedding(comm: &Comm, sequence: bool, grad: Grad) {
    let (rank, ranks) = (comm.rank().unwrap(), comm.size().unwrap());
    let (table, dy) = (small(ROWS * FEATURES, 1), small(IDS.len() * FEATURES, 2));
    let y: Vec<f32> = IDS.iter().flat_map(|&id| table[id as usize * FEATURES..][..FEATURES].to_vec()).collect();
    let mut sums = vec![0f32; ROWS * FEATURES];
    for (token, &id) in IDS.iter().enumerate() {
        (0..FEATURES).for_each(|k| sums[id as usize * FEATURES + k] += dy[token * FEATURES + k]);
    }
    let own = |whole: &[f32]| if sequence { part(whole, comm) } else { whole.to_vec() };
    let mine_dy: Vec<f32> = match grad {
        Grad::Partial if !sequence && rank == 0 => dy.iter().map(|&value| value - (ranks - 1) as f32).collect(),
        Grad::Partial if !sequence => vec![1.0; dy.len()],
        _ => own(&dy),
    };
    let layer = Embedding::new(ROWS).check_replicated();
    let layer = if sequence { layer.sequence() } else { layer.grad(grad) };
    let shape = layer.output_shape(comm, &[IDS.len()], FEATURES).unwrap();
    let (weight, mut found, mut dw) = (part(&table, comm), vec![9f32; shape.iter().product()], vec![9f32; sums.len() / ranks]);
    let table_shape = [ROWS / ranks, FEATURES];
    let (ids, weight, mine_dy) =
        (Array::new(&IDS, &[4]).unwrap(), Array::new(&weight, &table_shape).unwrap(), Array::new(&mine_dy, &shape).unwrap());
    layer.forward(comm, &ids, &weight, &mut ArrayMut::new(&mut found, &shape).unwrap()).unwrap();
    assert_eq!(found, own(&y));
    layer.backward(comm, &ids, &mine_dy, &mut ArrayMut::new(&mut dw, &table_shape).unwrap()).unwrap();
    assert_eq!(dw, part(&sums, comm));
    layer.backward_add(comm, &ids, &mine_dy, &mut ArrayMut::new(&mut dw, &table_shape).unwrap()).unwrap();
    assert_eq!(dw, part(&sums, comm).iter().map(|sum| 2.0 * sum).collect::<Vec<_>>());
}

#[test]
fn a_cut_table_gives_what_the_whole_one_gives() {
    for size in 1..=2 {
        threads(size, |comm| {
            embedding(&comm, false, Grad::Replicated);
            embedding(&comm, false, Grad::Partial);
            embedding(&comm, true, Grad::Replicated);
        });
    }
}

const CLASSES: usize = 5;
const COLUMNS: usize = 6; // one is padding
const TARGETS: [i64; 4] = [4, 0, -1, 2];

/// Losses and gradients for given ones of 1, 2, .. of all classes.
fn whole(logits: &[f32], smoothing: f64, z: f64) -> (Vec<f64>, Vec<f64>) {
    let (mut losses, mut grads) = (Vec::new(), Vec::new());
    for (token, &target) in TARGETS.iter().enumerate() {
        let row: Vec<f64> = logits[token * COLUMNS..][..CLASSES].iter().map(|&x| f64::from(x)).collect();
        let log_sum = row.iter().map(|x| x.exp()).sum::<f64>().ln();
        let counts = if target < 0 { 0.0 } else { 1.0 };
        let q = |v: usize| if v as i64 == target { 1.0 - smoothing } else { smoothing / (CLASSES - 1) as f64 };
        let entropy: f64 = row.iter().enumerate().map(|(v, x)| q(v) * (log_sum - x)).sum();
        losses.push(counts * (entropy + z * log_sum * log_sum));
        let grad = |v: usize| counts * (token + 1) as f64 * ((row[v] - log_sum).exp() * (1.0 + 2.0 * z * log_sum) - q(v));
        grads.extend((0..COLUMNS).map(|v| if v < CLASSES { grad(v) } else { 0.0 }));
    }
    (losses, grads)
}

fn close(found: &[f32], expected: &[f64]) {
    let far = found.iter().zip(expected).any(|(&a, b)| (f64::from(a) - b).abs() > 1e-5);
    assert!(!far && found.len() == expected.len(), "{found:?} is not {expected:?}");
}

fn cross_entropy(comm: &Comm, smoothing: f64, z: f64) {
    let (rank, ranks) = (comm.rank().unwrap(), comm.size().unwrap());
    let mut logits = small(TARGETS.len() * COLUMNS, 3);
    logits.iter_mut().skip(CLASSES).step_by(COLUMNS).for_each(|padding| *padding = 99.0);
    let (losses, grads) = whole(&logits, smoothing, z);
    let columns = COLUMNS / ranks;
    let cut = |of: &[f32]| -> Vec<f32> { of.chunks(columns).skip(rank).step_by(ranks).flatten().copied().collect() };
    let own_grads: Vec<f64> = grads.chunks(columns).skip(rank).step_by(ranks).flatten().copied().collect();
    let mut mine = cut(&logits);
    let (mut found, mut again, mut saved, mut grad) = ([9f32; 4], [9f32; 4], [9f32; 8], vec![9f32; mine.len()]);
    let loss = CrossEntropy::new().classes(CLASSES).ignore_index(-1).label_smoothing(smoothing).z_loss(z).check_replicated();
    let (targets, given) = (Array::new(&TARGETS, &[4]).unwrap(), Array::new(&[1f32, 2.0, 3.0, 4.0], &[4]).unwrap());
    let shape = [TARGETS.len(), columns];
    {
        let x = Array::new(&mine, &shape).unwrap();
        let mut to_saved = ArrayMut::new(&mut saved, &[4, 2]).unwrap();
        loss.forward_saving(comm, &x, &targets, &mut ArrayMut::new(&mut found, &[4]).unwrap(), &mut to_saved).unwrap();
        loss.forward(comm, &x, &targets, &mut ArrayMut::new(&mut again, &[4]).unwrap()).unwrap();
        let saved = Array::new(&saved, &[4, 2]).unwrap();
        loss.backward(comm, &x, &targets, &saved, &given, &mut ArrayMut::new(&mut grad, &shape).unwrap()).unwrap();
    }
    close(&found, &losses);
    assert_eq!(again, found);
    close(&grad, &own_grads);
    let saved = Array::new(&saved, &[4, 2]).unwrap();
    loss.backward_in_place(comm, &mut ArrayMut::new(&mut mine, &shape).unwrap(), &targets, &saved, &given).unwrap();
    assert_eq!(mine, grad);
}

#[test]
fn losses_of_cut_logits_are_those_of_the_whole() {
    for size in 1..=2 {
        threads(size, |comm| {
            cross_entropy(&comm, 0.0, 0.0);
            cross_entropy(&comm, 0.25, 0.5);
        });
    }
}

#[test]
fn seeds_are_the_grids() {
    threads(2, |comm| {
        let (grid, rank) = (Grid::builder().tp(2).create(&comm).unwrap(), comm.rank().unwrap() as u64);
        assert_eq!(grid.seed(u64::MAX, Random::Replicated).unwrap(), u64::MAX);
        assert_eq!(grid.seed(5, Random::Tensor).unwrap(), 5 + 2718 + rank);
        assert_eq!(grid.seed(5, Random::Expert).unwrap(), 5 + 1024 + rank);
    });
}

#[test]
fn what_is_refused_is_named() {
    let comm = alone();
    let told = |outcome: megadp::Result<()>, words: &str| {
        let error = outcome.unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(words), "{error}");
    };
    let (table, mut y, mut losses) = (small(ROWS * FEATURES, 1), [0f32; 12], [0f32; 4]);
    let (ids, weight) = (Array::new(&IDS, &[4]).unwrap(), Array::new(&table, &[ROWS, FEATURES]).unwrap());
    let mut output = ArrayMut::new(&mut y, &[4, FEATURES]).unwrap();
    told(Embedding::new(ROWS).forward(&comm, &ids, &weight, &mut output), "config.grad");
    let layer = Embedding::new(ROWS).grad(Grad::Replicated);
    told(layer.forward(&comm, &weight, &weight, &mut output), "ids.dtype");
    told(layer.forward(&comm, &Array::new(&[0i64, 6, 0, 0], &[4]).unwrap(), &weight, &mut output), "ids[1] is 6");
    assert!(layer.sequence().output_shape(&comm, &[], FEATURES).is_err());

    let mut to = ArrayMut::new(&mut losses, &[4]).unwrap();
    let logits = Array::new(&table[..12], &[4, 3]).unwrap();
    told(CrossEntropy::new().classes(4).forward(&comm, &logits, &ids, &mut to), "config.classes is 4");
    told(CrossEntropy::new().label_smoothing(1.0).forward(&comm, &logits, &ids, &mut to), "config.label_smoothing is 1");
    told(CrossEntropy::new().z_loss(-1.0).forward(&comm, &logits, &ids, &mut to), "config.z_loss is -1");
    told(CrossEntropy::new().forward(&comm, &logits, &ids, &mut to), "targets[0] is 5");
    // 0 is ignored where it is said.
    let (targets, zero) = (Array::new(&[0i64, 1, 0, 2], &[4]).unwrap(), CrossEntropy::new().ignore_index(0));
    zero.forward(&comm, &logits, &targets, &mut to).unwrap();
    assert!(losses[0] == 0.0 && losses[1] > 0.0);
}
