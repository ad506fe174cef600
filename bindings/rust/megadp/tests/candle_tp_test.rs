// SPDX-License-Identifier: Apache-2.0
//! Layers of candle models that are cut over ranks, against the unsplit ones, with candle's own gradients. Numbers are small multiples of 1/4,
//! so that products and sums are exact however they are cut.
mod ranks;

use candle_core::{DType, Device, Result, Tensor, Var};
use megadp::candle::tp::{CrossEntropy, Embedding, Linear, Region};
use megadp::candle::{DataParallel, Error};
use megadp::tp::{self, Grad};
use megadp::{Axes, Buffer, Code, Comm, Grid, Optimizer, Param, Placed, Rule, StepOptions};
use ranks::{alone, threads};

const SIZES: [usize; 3] = [5, 8, 4];

fn small(rows: usize, columns: usize, salt: usize) -> Tensor {
    let data: Vec<f32> = (0..rows * columns).map(|i| ((i * 7 + salt * 5) % 9) as f32 / 4.0 - 1.0).collect();
    Tensor::from_vec(data, (rows, columns), &Device::Cpu).unwrap()
}

fn rows(tensor: &Tensor) -> Vec<Vec<f32>> {
    tensor.to_dtype(DType::F32).unwrap().to_vec2().unwrap()
}

struct Model {
    w1: Var,
    b1: Var,
    w2: Var,
    b2: Var,
}

impl Model {
    /// The whole one, or this rank's part.
    fn new(part: Option<(usize, usize)>) -> Result<Self> {
        let [inputs, hidden, outputs] = SIZES;
        let (rank, ranks) = part.unwrap_or((0, 1));
        let (first, size) = (rank * hidden / ranks, hidden / ranks);
        Ok(Model {
            w1: Var::from_tensor(&small(hidden, inputs, 1).narrow(0, first, size)?)?,
            b1: Var::from_tensor(&small(1, hidden, 2).narrow(1, first, size)?.squeeze(0)?)?,
            w2: Var::from_tensor(&small(outputs, hidden, 3).narrow(1, first, size)?.contiguous()?)?,
            b2: Var::from_tensor(&small(1, outputs, 4).squeeze(0)?)?,
        })
    }

    fn all(&self) -> [&Var; 4] {
        [&self.w1, &self.b1, &self.w2, &self.b2]
    }

    fn whole(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = x.matmul(&self.w1.t()?)?.broadcast_add(&self.b1)?.relu()?;
        hidden.matmul(&self.w2.t()?)?.broadcast_add(&self.b2)
    }
}

/// Of all ranks together, along a dimension.
fn together(parts: &[Tensor], dim: usize) -> Vec<Vec<f32>> {
    rows(&Tensor::cat(parts, dim).unwrap())
}

fn cut(comm: &Comm, sequence: bool) -> Result<Vec<Tensor>> {
    let part = (comm.rank().unwrap(), comm.size().unwrap());
    let [inputs, hidden, outputs] = SIZES;
    let (up, down) = (tp::Linear::column(inputs, hidden).bias(), tp::Linear::row(hidden, outputs).bias());
    let (up, down) = if sequence { (up.sequence(), down.sequence()) } else { (up, down.grad(Grad::Replicated)) };
    let (up, down) = (Linear::new(up.create(comm).unwrap()), Linear::new(down.create(comm).unwrap()));
    let model = Model::new(Some(part))?;
    let x = if sequence { small(6, inputs, 5).narrow(0, part.0 * 6 / part.1, 6 / part.1)? } else { small(6, inputs, 5) };
    let x = Var::from_tensor(&x.t()?.contiguous()?)?; // whose other half is strides
    let y = down.forward(&up.forward(&x.t()?, &model.w1, Some(&model.b1))?.relu()?, &model.w2, Some(&model.b2))?;
    let grads = y.sqr()?.sum_all()?.backward()?;
    let of = |var: &Var| grads.get(var).unwrap().clone();
    let list = |var: &Var| of(var).unsqueeze(0);
    Ok(vec![y.detach(), of(&model.w1), list(&model.b1)?, of(&model.w2), list(&model.b2)?, of(&x).t()?.contiguous()?])
}

#[test]
fn a_pair_of_cut_layers_has_the_unsplit_ones_gradients() {
    let (model, x) = (Model::new(None).unwrap(), Var::from_tensor(&small(6, SIZES[0], 5)).unwrap());
    let y = model.whole(&x).unwrap();
    let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let [w1, b1, w2, b2] = model.all().map(|var| {
        let grad = grads.get(var).unwrap().clone();
        rows(&if grad.rank() == 1 { grad.unsqueeze(0).unwrap() } else { grad })
    });
    let dx = rows(grads.get(&x).unwrap());
    for (size, sequence) in [(1, false), (2, false), (2, true), (1, true)] {
        let found = threads(size, |comm| cut(&comm, sequence).unwrap());
        let of = |i: usize| found.iter().map(|tensors| tensors[i].clone()).collect::<Vec<_>>();
        assert_eq!((together(&of(1), 0), together(&of(2), 1), together(&of(3), 1)), (w1.clone(), b1.clone(), w2.clone()));
        if sequence {
            let sum = of(4).into_iter().reduce(|a, b| a.add(&b).unwrap()).unwrap();
            assert_eq!((together(&of(0), 0), rows(&sum), together(&of(5), 0)), (rows(&y), b2.clone(), dx.clone()));
        } else {
            for rank in &found {
                assert_eq!((rows(&rank[0]), rows(&rank[4]), rows(&rank[5])), (rows(&y), b2.clone(), dx.clone()));
            }
        }
    }
}

#[test]
fn operators_have_their_gradients() {
    threads(2, |comm| {
        let (rank, whole) = (comm.rank().unwrap(), small(4, 3, 1));
        let mine = Var::from_tensor(&whole.narrow(0, 2 * rank, 2).unwrap()).unwrap();
        let gather = Region::new(&comm, tp::Region::gather(0, Grad::Partial));
        let found = gather.forward(&mine).unwrap();
        assert_eq!(rows(&found), rows(&whole));
        // Each rank's part of the loss is a part of what comes back: they are summed.
        let loss = found.affine((rank + 1) as f64, 0.0).unwrap().sum_all().unwrap();
        assert_eq!(rows(loss.backward().unwrap().get(&mine).unwrap()), [[3.0; 3]; 2]);
        let scattered = Region::new(&comm, tp::Region::scatter(0)).forward(&found.detach()).unwrap();
        assert_eq!(rows(&scattered), rows(&mine));
        let refused = Region::new(&comm, tp::Region::scatter(1)).forward(&found.detach()).unwrap_err();
        assert!(refused.to_string().contains("2 ranks cannot share evenly"), "{refused}");
    });
}

#[test]
fn weights_of_a_data_parallel_hand_their_gradients_over() {
    let comm = alone();
    let weight = Var::from_tensor(&small(4, 5, 1)).unwrap();
    let mut parallel = DataParallel::register(&comm, &Buffer::builder(), [("w", weight.clone())]).unwrap();
    let layer = Linear::new(tp::Linear::column(5, 4).create(&comm).unwrap());
    let x = small(3, 5, 2);
    let loss = layer.forward(&x, &parallel.tensor("w").unwrap(), None).unwrap().sqr().unwrap().sum_all().unwrap();
    parallel.backward(&loss).unwrap();
    let expected = x.matmul(&weight.t().unwrap()).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let expected = expected.get(&weight).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(parallel.buffer_mut().sync().unwrap().grad::<f32>(0).unwrap(), expected);
}

#[test]
fn bf16_layers_and_what_is_refused() {
    let comm = alone();
    let layer = Linear::new(tp::Linear::column(5, 4).dtype(megadp::DType::Bf16).create(&comm).unwrap());
    let (x, w) = (small(3, 5, 1), small(4, 5, 2));
    let weight = Var::from_tensor(&w.to_dtype(DType::BF16).unwrap()).unwrap();
    let y = layer.forward(&x.to_dtype(DType::BF16).unwrap(), &weight, None).unwrap();
    assert_eq!(rows(&y), rows(&x.matmul(&w.t().unwrap()).unwrap()));
    let grad = y.sum_all().unwrap().backward().unwrap().get(&weight).unwrap().clone();
    assert_eq!(grad.dtype(), DType::BF16);
    assert_eq!(rows(&grad), rows(&Tensor::ones((4, 3), DType::F32, &Device::Cpu).unwrap().matmul(&x).unwrap()));
    let mixed = layer.forward(&x, &weight, None).unwrap_err();
    assert!(mixed.to_string().contains("dtype"), "{mixed}");
    let doubles = layer.forward(&x.to_dtype(DType::F64).unwrap(), &weight, None).unwrap_err();
    assert!(doubles.to_string().contains("F64"), "{doubles}");
}

const ROWS: usize = 6;
const FEATURES: usize = 3;

fn table() -> Tensor {
    let data: Vec<f32> = (0..ROWS * FEATURES).map(|i| ((i * 7 + 5) % 9) as f32 / 4.0 - 1.0).collect();
    Tensor::from_vec(data, (ROWS, FEATURES), &Device::Cpu).unwrap()
}

fn close(found: &Tensor, expected: &Tensor) {
    let apart = (found - expected).unwrap().abs().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(apart.iter().all(|&apart| apart < 1e-5), "{found} is not {expected}");
}

/// A vocabulary that is cut, with one table for what goes in and what comes out.
fn vocabulary(comm: &Comm) -> Result<()> {
    let (ids, targets) = (Tensor::new(&[5u32, 0, 2, 5], &Device::Cpu)?, Tensor::new(&[0i64, 2, 5, 1], &Device::Cpu)?);
    let whole = Var::from_tensor(&table())?;
    let logits = whole.index_select(&ids, 0)?.matmul(&whole.t()?)?;
    let expected = candle_nn::loss::cross_entropy(&logits, &targets)?;
    let gradient = expected.backward()?.get(&whole).unwrap().clone();

    let (rank, size) = (comm.rank().unwrap(), ROWS / comm.size().unwrap());
    let mine = Var::from_tensor(&table().narrow(0, rank * size, size)?.contiguous()?)?;
    let embedding = Embedding::new(comm, tp::Embedding::new(ROWS).grad(Grad::Replicated));
    let head = Linear::new(tp::Linear::column(FEATURES, ROWS).create(comm).unwrap());
    let hidden = embedding.forward(&ids, &mine)?;
    let losses = CrossEntropy::new(comm, tp::CrossEntropy::new()).forward(&head.forward(&hidden, &mine, None)?, &targets)?;
    let loss = losses.mean_all()?;
    close(&loss, &expected);
    close(loss.backward()?.get(&mine).unwrap(), &gradient.narrow(0, rank * size, size)?);
    Ok(())
}

#[test]
fn a_cut_vocabulary_trains_as_the_whole_one() {
    for size in 1..=2 {
        threads(size, |comm| vocabulary(&comm).unwrap());
    }
}

#[test]
fn bf16_tables_and_what_is_refused() {
    let comm = alone();
    let layer = Embedding::new(&comm, tp::Embedding::new(ROWS).grad(Grad::Replicated));
    let weight = Var::from_tensor(&table().to_dtype(DType::BF16).unwrap()).unwrap();
    let ids = Tensor::new(&[[3u32], [1]], &Device::Cpu).unwrap();
    let y = layer.forward(&ids, &weight).unwrap();
    assert_eq!((y.dims(), y.dtype()), (&[2, 1, FEATURES][..], DType::BF16));
    let grad = y.sum_all().unwrap().backward().unwrap().get(&weight).unwrap().to_dtype(DType::F32).unwrap();
    let counts: Vec<f32> = grad.sum(1).unwrap().to_vec1().unwrap();
    assert_eq!(counts, [0.0, 3.0, 0.0, 3.0, 0.0, 0.0]);
    let error = layer.forward(&ids.to_dtype(DType::F32).unwrap(), &weight).unwrap_err();
    assert!(error.to_string().contains("ids has elements of F32"), "{error}");
    let loss = CrossEntropy::new(&comm, tp::CrossEntropy::new());
    let error = loss.forward(&table(), &ids).unwrap_err();
    assert!(error.to_string().contains("logits has shape"), "{error}");
}

const NAMES: [&str; 6] = ["table", "norm", "up.weight", "up.bias", "down.weight", "down.bias"];
const BATCH: usize = 4;
const HIDDEN: usize = 8;
const RATE: f64 = 0.25;

/// The variables of a whole model.
fn whole_vars() -> [Tensor; 6] {
    let small = |rows, columns, salt| (small(rows, columns, salt) * 0.5).unwrap();
    let list = |size, salt| small(1, size, salt).squeeze(0).unwrap();
    let norm = (list(FEATURES, 2) + 1.0).unwrap();
    let (up, down) = (small(HIDDEN, FEATURES, 3), small(FEATURES, HIDDEN, 5));
    [table(), norm, up, list(HIDDEN, 4), down, list(FEATURES, 6)]
}

/// Of a whole variable what one of two tensor-parallel ranks holds.
fn part_of(whole: &Tensor, number: usize, rank: usize) -> Tensor {
    let dim = match number {
        0 | 2 | 3 => 0,
        4 => 1,
        _ => return whole.clone(),
    };
    let size = whole.dim(dim).unwrap() / 2;
    whole.narrow(dim, rank * size, size).unwrap().contiguous().unwrap()
}

/// Ids and targets of one of two data-parallel ranks, or of both.
fn batch(step: usize, share: Option<usize>) -> [Tensor; 2] {
    let rows = share.map_or(0..2 * BATCH, |share| share * BATCH..(share + 1) * BATCH);
    [3, 5].map(|salt| {
        let ids = rows.clone().map(|row| ((row * salt + step * 7 + row * row) % ROWS) as u32).collect::<Vec<_>>();
        Tensor::new(ids, &Device::Cpu).unwrap()
    })
}

/// What candle trains in one process, and the norms of its gradients.
fn trained_whole(steps: usize, most: f64) -> Result<(Vec<Tensor>, Vec<f64>)> {
    let vars = whole_vars().map(|values| Var::from_tensor(&values).unwrap());
    let [table, norm, w1, b1, w2, b2] = &vars;
    let mut norms = Vec::new();
    for step in 0..steps {
        let [ids, targets] = batch(step, None);
        let x = table.index_select(&ids, 0)?.broadcast_mul(norm)?;
        let hidden = x.matmul(&w1.t()?)?.broadcast_add(b1)?.relu()?;
        let y = (&x + hidden.matmul(&w2.t()?)?.broadcast_add(b2)?)?;
        let grads = candle_nn::loss::cross_entropy(&y.matmul(&table.t()?)?, &targets)?.backward()?;
        let squares = |var: &Var| grads.get(var).unwrap().sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        let found = f64::from(vars.iter().map(squares).sum::<f32>()).sqrt();
        let factor = if most > 0.0 { (most / found).min(1.0) } else { 1.0 };
        for var in &vars {
            var.set(&(var.as_tensor() - (grads.get(var).unwrap() * (RATE * factor))?)?)?;
        }
        norms.push(found);
    }
    Ok((vars.map(|var| var.as_tensor().clone()).to_vec(), norms))
}

struct Layers {
    embedding: Embedding,
    up: Linear,
    down: Linear,
    head: Linear,
    loss: CrossEntropy,
}

impl Layers {
    fn new(ranks: &Comm, sequence: bool) -> Self {
        let (up, down) = (tp::Linear::column(FEATURES, HIDDEN).bias(), tp::Linear::row(HIDDEN, FEATURES).bias());
        let (head, embedding) = (tp::Linear::column(FEATURES, ROWS), tp::Embedding::new(ROWS));
        let (up, down, head, embedding) = match sequence {
            true => (up.sequence(), down.sequence(), head.sequence(), embedding.sequence()),
            false => (up, down.grad(Grad::Replicated), head, embedding.grad(Grad::Replicated)),
        };
        let [up, down, head] = [up, down, head].map(|layer| Linear::new(layer.create(ranks).unwrap()));
        Layers { embedding: Embedding::new(ranks, embedding), up, down, head, loss: CrossEntropy::new(ranks, tp::CrossEntropy::new()) }
    }

    fn placed(&self, name: &str, sequence: bool) -> Placed {
        match name {
            "table" => self.embedding.placed(),
            "norm" if sequence => Placed::PartialSum,
            "norm" => Placed::Replicated,
            "up.weight" => self.up.weight_placed().unwrap(),
            "up.bias" => self.up.bias_placed().unwrap(),
            "down.weight" => self.down.weight_placed().unwrap(),
            _ => self.down.bias_placed().unwrap(),
        }
    }

    fn loss(&self, tensors: &[Tensor; 6], [ids, targets]: &[Tensor; 2]) -> Result<Tensor> {
        let [table, norm, w1, b1, w2, b2] = tensors;
        let x = self.embedding.forward(ids, table)?.broadcast_mul(norm)?;
        let hidden = self.up.forward(&x, w1, Some(b1))?.relu()?;
        let y = (&x + self.down.forward(&hidden, w2, Some(b2))?)?;
        self.loss.forward(&self.head.forward(&y, table, None)?, targets)?.mean_all()
    }
}

/// Two tensor-parallel times two data-parallel ranks, with a vocabulary that is cut and used twice. Placements say what is summed and what
/// counts in the norm: without them replicas would drift apart, or be clipped by each rank's own norm.
fn train_cut(world: &Comm, sequence: bool, most: f64) {
    const STEPS: usize = 4;
    let grid = Grid::builder().tp(2).create(world).unwrap();
    let ranks = grid.comm(Axes::TP).unwrap();
    let (rank, share) = (ranks.rank().unwrap(), grid.coords(Axes::DP).unwrap().0);
    let layers = Layers::new(&ranks, sequence);
    let mine: Vec<_> = whole_vars().iter().enumerate().map(|(i, whole)| Var::from_tensor(&part_of(whole, i, rank)).unwrap()).collect();
    let vars = || NAMES.into_iter().zip(mine.clone());
    let place = |param: Param| {
        let placed = layers.placed(param.name(), sequence);
        param.placed(placed)
    };
    let mut parallel = DataParallel::register_params(&grid, &Buffer::builder(), vars(), place).unwrap();
    let mut optimizer = Optimizer::builder().rule(Rule::Sgd).lr(RATE).max_grad_norm(most).create(parallel.buffer()).unwrap();
    let tensors = NAMES.map(|name| parallel.tensor(name).unwrap());
    let (expected, norms) = trained_whole(STEPS, most).unwrap();
    for (step, norm) in norms.into_iter().enumerate() {
        parallel.backward(&layers.loss(&tensors, &batch(step, Some(share))).unwrap()).unwrap();
        let report = parallel.step(&mut optimizer, &StepOptions::default()).unwrap();
        assert!((report.grad_norm - norm).abs() < 1e-5 && report.clipped == (most > 0.0), "{report:?}, norm {norm}");
    }
    for (number, (whole, var)) in expected.iter().zip(&mine).enumerate() {
        close(var.as_tensor(), &part_of(whole, number, rank));
    }
    parallel.buffer().verify().unwrap();
}

#[test]
fn a_cut_model_trains_on_a_grid_as_the_whole_one() {
    for (sequence, most) in [(false, 0.0), (false, 0.125), (true, 0.0), (true, 0.125)] {
        threads(4, |world| train_cut(&world, sequence, most));
    }
}

#[test]
fn placements_are_said_and_replicas_begin_alike() {
    threads(2, |world| {
        let grid = Grid::builder().tp(2).create(&world).unwrap();
        let var = |value: usize| Var::from_tensor(&Tensor::new(&[value as f32; 2], &Device::Cpu).unwrap()).unwrap();
        let refused = |outcome: std::result::Result<DataParallel, Error>, code: Code| match outcome.err().unwrap() {
            Error::Megadp(error) => assert!(error.code == code && error.text.contains("w_of_a_rank"), "{error}"),
            other => panic!("{other}"),
        };
        refused(DataParallel::register(&grid, &Buffer::builder(), [("w_of_a_rank", var(1))]), Code::Invalid);
        let vars = [("w_of_a_rank", var(world.rank().unwrap()))];
        refused(DataParallel::register_params(&grid, &Buffer::builder(), vars.clone(), Param::replicated), Code::Desync);
        DataParallel::register_params(&grid, &Buffer::builder(), vars, |param| param.sharded(0, 1)).unwrap();
    });
}

#[test]
fn layers_tell_how_their_parameters_are_placed() {
    threads(2, |comm| {
        let create = |builder: tp::LinearBuilder| Linear::new(builder.create(&comm).unwrap());
        let sharded = |dim, pieces| Placed::Sharded { dim, pieces };
        let column = create(tp::Linear::column(4, 12).bias().blocks([4, 4, 4]));
        assert_eq!((column.weight_placed().unwrap(), column.bias_placed().unwrap()), (sharded(0, 3), sharded(0, 3)));
        assert_eq!(create(tp::Linear::column(4, 8).transposed()).weight_placed().unwrap(), sharded(1, 1));
        let row = create(tp::Linear::row(4, 8).bias().grad(Grad::Replicated));
        assert_eq!((row.weight_placed().unwrap(), row.bias_placed().unwrap()), (sharded(1, 1), Placed::Replicated));
        assert_eq!(create(tp::Linear::row(4, 8).bias().sequence().transposed()).weight_placed().unwrap(), sharded(0, 1));
        assert_eq!(create(tp::Linear::row(4, 8).bias().sequence()).bias_placed().unwrap(), Placed::PartialSum);
        let uneven = create(tp::Linear::column(4, 12).bias().blocks([8, 2, 2]));
        for error in [uneven.weight_placed().unwrap_err(), uneven.bias_placed().unwrap_err()] {
            assert!(error.code == Code::Invalid && error.text.contains("[8, 2, 2]"), "{error}");
        }
    });
}
