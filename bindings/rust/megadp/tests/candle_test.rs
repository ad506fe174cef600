// SPDX-License-Identifier: Apache-2.0
//! The adapter for candle: when gradients leave, and what they are.
mod ranks;
mod scripts;

use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, Var};
use megadp::candle::{DataParallel, Error};
use megadp::{Buffer, BufferBuilder, Code, Comm, Missing, Optimizer, Piece, Rule, Sharding, StepOptions, log, sys};
use ranks::{TIMEOUT, alone, check_losses, threads};
use std::sync::Mutex;
use std::time::Instant;

fn register(comm: &Comm, builder: &BufferBuilder, vars: &[(&str, &Var)]) -> DataParallel {
    let vars = vars.iter().map(|(name, var)| (*name, (*var).clone()));
    DataParallel::register(comm, builder, vars).unwrap()
}

fn var(values: &[f32], shape: (usize, usize)) -> Var {
    Var::from_slice(values, shape, &Device::Cpu).unwrap()
}

#[test]
fn candle_trains_as_the_reference() {
    let [_, two] = check_losses("candle_digits");
    println!("{}", two.lines().filter(|line| line.contains("bucket")).collect::<Vec<_>>().join("\n"));
    let last = two.lines().last().unwrap();
    let numbers: Vec<u64> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[0] >= 200 && numbers[0] == numbers[1], "{last}");
}

/// Changes nothing; its backward runs `wait`.
struct Halt<F>(F);

impl<F: Fn()> CustomOp1 for Halt<F> {
    fn name(&self) -> &'static str {
        "halt"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        self.0();
        Ok(Some(grad.clone()))
    }
}

/// Backward is held between two layers until the upper one's bucket is being reduced: it would never end if gradients left at its end.
#[test]
fn reductions_begin_before_backward_ends() {
    threads(2, |comm| {
        let (lower, upper) = (var(&[0.5; 4], (2, 2)), var(&[0.25; 4], (2, 2)));
        let mut parallel = register(&comm, &Buffer::builder().bucket_elements(1), &[("lower", &lower), ("upper", &upper)]);
        let buffer = parallel.buffer().as_raw() as usize;
        let halt = Halt(move || {
            let (begun, mut report) = (Instant::now(), sys::mdp_bucket_report::new());
            while report.reduce_begin_ns == 0 && begun.elapsed() < TIMEOUT {
                // SAFETY: backward runs on the thread that has the buffer, which outlives it.
                assert_eq!(unsafe { sys::mdp_buffer_bucket(buffer as *mut _, 0, &mut report) }, sys::MDP_OK);
                std::thread::yield_now();
            }
        });
        let x = Tensor::ones((2, 2), DType::F32, &Device::Cpu).unwrap();
        let hidden = x.matmul(&parallel.tensor("lower").unwrap()).unwrap().apply_op1(halt).unwrap();
        let loss = hidden.matmul(&parallel.tensor("upper").unwrap()).unwrap().sum_all().unwrap();
        let kept = parallel.backward(&loss).unwrap();
        assert!(kept.get(&lower).is_none() && kept.get(&upper).is_none());
        assert_eq!(parallel.buffer().stats().unwrap().buckets, 2);
        let synced = parallel.buffer_mut().sync().unwrap();
        let [first, second] = [0, 1].map(|bucket| synced.buffer().bucket(bucket).unwrap());
        assert!(first.reduce_begin_ns.unwrap() < first.sync_ns.unwrap());
        assert!(first.ready_ns.unwrap() < second.ready_ns.unwrap() && second.ready_ns.unwrap() < second.sync_ns.unwrap());
        assert_eq!(synced.buffer().stats().unwrap().launched_in_backward, 2);
    });
}

#[test]
fn groups_of_variables_have_optimizers_of_their_own() {
    let comm = alone();
    let vars = ["w", "table"].map(|name| (name, var(&[1.0; 4], (2, 2))));
    let group = |name: &str| usize::from(name == "table");
    let mut parallel = DataParallel::register_groups(&comm, &Buffer::builder(), vars, group).unwrap();
    let mut lion = Optimizer::builder().rule(Rule::Lion).lr(0.25).first_param_group(0).create(parallel.buffer()).unwrap();
    let mut sgd = Optimizer::builder().rule(Rule::Sgd).lr(0.125).first_param_group(1).create(parallel.buffer()).unwrap();
    let [w, table] = ["w", "table"].map(|name| parallel.tensor(name).unwrap());
    parallel.backward(&((&w + &table).unwrap() * 3.0).unwrap().sum_all().unwrap()).unwrap();
    let report = parallel.step_many([&mut lion, &mut sgd], &StepOptions::default()).unwrap();
    assert_eq!((report.step, report.grad_norm), (1, 72f64.sqrt()));
    assert_eq!([&w, &table].map(|tensor| tensor.to_vec2::<f32>().unwrap()), [vec![vec![0.75; 2]; 2], vec![vec![0.625; 2]; 2]]);
    drop(sgd);
    let mut own = Optimizer::builder().rule(Rule::Caller).lr(0.125).first_param_group(1).create(parallel.buffer()).unwrap();
    parallel.backward(&((&w + &table).unwrap() * 3.0).unwrap().sum_all().unwrap()).unwrap();
    let descend = |piece: Piece<'_>| {
        piece.master.iter_mut().zip(piece.grad).for_each(|(w, g)| *w -= piece.lr as f32 * g);
        Ok(())
    };
    parallel.step_many_with([&mut lion, &mut own], &StepOptions::default(), descend).unwrap();
    assert_eq!([&w, &table].map(|tensor| tensor.to_vec2::<f32>().unwrap()), [vec![vec![0.5; 2]; 2], vec![vec![0.25; 2]; 2]]);
}

#[test]
fn tied_weights_come_once_with_the_sum_of_their_uses() {
    let comm = alone();
    let weight = var(&[1.0, 2.0, 3.0, 4.0], (2, 2));
    let mut parallel = register(&comm, &Buffer::builder(), &[("embedding", &weight), ("head", &weight)]);
    assert_eq!(parallel.buffer().len(), 1);
    let x = Tensor::new(&[[1f32, 10.0]], &Device::Cpu).unwrap();
    let (embedding, head) = (parallel.tensor("embedding").unwrap(), parallel.tensor("head").unwrap());
    let loss = |a: &Tensor, b: &Tensor| x.matmul(a).unwrap().matmul(b).unwrap().sum_all().unwrap();
    let expected = loss(&weight, &weight).backward().unwrap();
    let expected = expected.get(&weight).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    parallel.backward(&loss(&embedding, &head)).unwrap();
    assert_eq!(parallel.buffer_mut().sync().unwrap().grad::<f32>(0).unwrap(), expected);
}

#[test]
fn values_of_rank_0_are_everyones_and_a_step_shows_in_the_same_tensors() {
    let values = threads(2, |comm| {
        let var = var(&[comm.rank().unwrap() as f32 + 5.0; 4], (2, 2));
        let mut parallel = register(&comm, &Buffer::builder(), &[("w", &var)]);
        let tensor = parallel.tensor("w").unwrap();
        assert_eq!(tensor.to_vec2::<f32>().unwrap(), [[5.0; 2]; 2]);
        let mut optimizer = Optimizer::builder().lr(0.5).create(parallel.buffer()).unwrap();
        parallel.backward(&tensor.sum_all().unwrap()).unwrap();
        assert_eq!(parallel.step(&mut optimizer, &StepOptions::default()).unwrap().step, 1);
        parallel.refresh().unwrap();
        assert_eq!(var.to_vec2::<f32>().unwrap(), tensor.to_vec2::<f32>().unwrap());
        tensor.to_vec2::<f32>().unwrap()[1][1]
    });
    assert!((values[0] - 4.5).abs() < 1e-6 && values[0] == values[1], "{values:?}");
}

/// The bits of all parameters of a model of two layers after a few steps.
fn trained(comm: &Comm, sharding: Sharding) -> Vec<u32> {
    let values = |count: usize| (0..count).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
    let (lower, upper) = (var(&values(40 * 30), (40, 30)), var(&values(30 * 20), (30, 20)));
    let builder = Buffer::builder().sharding(sharding).bucket_elements(1);
    let mut parallel = register(comm, &builder, &[("lower", &lower), ("upper", &upper)]);
    let mut optimizer = Optimizer::builder().lr(0.01).max_grad_norm(1.0).create(parallel.buffer()).unwrap();
    let [lower, upper] = ["lower", "upper"].map(|name| parallel.tensor(name).unwrap());
    for step in 0..5 {
        let rank = comm.rank().unwrap();
        let x: Vec<f32> = (0..8 * 40).map(|i| ((i * 7 + step * 13 + rank * 31) as f32).cos()).collect();
        let x = Tensor::from_vec(x, (8, 40), &Device::Cpu).unwrap();
        let loss = x.matmul(&lower).unwrap().relu().unwrap().matmul(&upper).unwrap().sqr().unwrap().mean_all().unwrap();
        parallel.backward(&loss).unwrap();
        parallel.step(&mut optimizer, &StepOptions::default()).unwrap();
    }
    parallel.buffer().verify().unwrap();
    [lower, upper].iter().flat_map(|tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()).map(f32::to_bits).collect()
}

#[test]
fn zero2_has_the_bits_of_zero1() {
    threads(2, |comm| assert_eq!(trained(&comm, Sharding::Zero2), trained(&comm, Sharding::Zero1)));
}

#[test]
fn sixteen_bits_train_too() {
    let comm = alone();
    for dtype in [DType::BF16, DType::F16] {
        let var = Var::ones((2, 2), dtype, &Device::Cpu).unwrap();
        let mut parallel = register(&comm, &Buffer::builder(), &[("w", &var)]);
        let mut optimizer = Optimizer::builder().lr(0.5).create(parallel.buffer()).unwrap();
        let tensor = parallel.tensor("w").unwrap();
        parallel.backward(&tensor.sum_all().unwrap()).unwrap();
        parallel.step(&mut optimizer, &StepOptions::default()).unwrap();
        assert_eq!(tensor.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap(), [[0.5; 2]; 2]);
    }
}

#[test]
fn failures_keep_their_code_and_name() {
    let comm = alone();
    let (used, unused) = (var(&[1.0; 4], (2, 2)), var(&[1.0; 4], (2, 2)));
    let mut parallel = register(&comm, &Buffer::builder(), &[("used", &used), ("unused", &unused)]);
    let loss = parallel.tensor("used").unwrap().sum_all().unwrap();
    parallel.backward(&loss).unwrap();
    let again = parallel.backward(&loss).unwrap_err();
    assert!(matches!(again, Error::Megadp(ref error) if error.code == Code::State && error.param == Some(0)), "{again}");
    let mut optimizer = Optimizer::builder().create(parallel.buffer()).unwrap();
    let missing = parallel.step(&mut optimizer, &StepOptions::default()).unwrap_err();
    assert!(missing.to_string().contains("unused"), "{missing}");
    assert!(parallel.tensor("unknown").is_err());

    let double = Var::ones(2, DType::F64, &Device::Cpu).unwrap();
    let error = DataParallel::register(&comm, &Buffer::builder(), [("double", double)]).err().unwrap();
    assert!(error.to_string().contains("double"), "{error}");

    let mut forgiving = register(&comm, &Buffer::builder().missing(Missing::Skip), &[("used", &used), ("unused", &unused)]);
    let mut optimizer = Optimizer::builder().create(forgiving.buffer()).unwrap();
    forgiving.backward(&forgiving.tensor("used").unwrap().sum_all().unwrap()).unwrap();
    forgiving.step(&mut optimizer, &StepOptions::default()).unwrap();
    assert_eq!(forgiving.tensor("unused").unwrap().to_vec2::<f32>().unwrap(), [[1.0; 2]; 2]);
}

/// A linear layer, candle's normalisation, fused or not, and another layer.
fn normalised(parallel: &DataParallel, prefix: &str, fused: bool) -> Tensor {
    let [lower, weight, bias, upper] =
        ["lower", "norm.weight", "norm.bias", "upper"].map(|name| parallel.tensor(&format!("{prefix}{name}")).unwrap());
    let x = Tensor::new(&[[1f32, 2.0], [3.0, 5.0]], &Device::Cpu).unwrap().matmul(&lower).unwrap();
    let norm = if fused { candle_nn::ops::layer_norm } else { candle_nn::ops::layer_norm_slow };
    norm(&x, &weight, &bias, 1e-5).unwrap().matmul(&upper).unwrap().sum_all().unwrap()
}

fn register_normalised(comm: &Comm, builder: &BufferBuilder, prefix: &str) -> DataParallel {
    let [weight, bias] = [1.0, 0.0].map(|value| Var::from_slice(&[value as f32; 2], 2, &Device::Cpu).unwrap());
    let (lower, upper) = (var(&[1.0, 2.0, -1.0, 0.5], (2, 2)), var(&[1.0, 2.0], (2, 1)));
    let vars = [("lower", lower), ("norm.weight", weight), ("norm.bias", bias), ("upper", upper)];
    let vars = vars.map(|(name, var)| (format!("{prefix}{name}"), var));
    DataParallel::register(comm, builder, vars).unwrap()
}

/// candle tells nobody that its fused LayerNorm has no backward: gradients of all that is below it are missing.
#[test]
fn parameters_below_an_operation_without_backward_are_named() {
    threads(2, |comm| {
        let mut parallel = register_normalised(&comm, &Buffer::builder(), "");
        let mut optimizer = Optimizer::builder().create(parallel.buffer()).unwrap();
        parallel.backward(&normalised(&parallel, "", true)).unwrap();
        assert_eq!(parallel.without_gradient(), ["lower", "norm.weight", "norm.bias"]);
        let Err(Error::Megadp(error)) = parallel.step(&mut optimizer, &StepOptions::default()) else { panic!("a step without gradients") };
        assert!(error.code == Code::State && error.param.is_some(), "{error}");
        for word in ["never became ready", "\"lower\", \"norm.weight\", \"norm.bias\"", "LayerNorm", "layer_norm_slow"] {
            assert!(error.text.contains(word), "{word}: {error}");
        }
        parallel.buffer_mut().zero_grad().unwrap();
        for _ in 0..2 {
            parallel.backward(&normalised(&parallel, "", false)).unwrap();
            assert!(parallel.without_gradient().is_empty());
            parallel.step(&mut optimizer, &StepOptions::default()).unwrap();
        }
    });
}

/// Where missing gradients are no failure, the first step says which there were; later ones are as the program wants them.
#[test]
fn parameters_that_are_skipped_are_told_once() {
    let said: &Mutex<Vec<String>> = Box::leak(Box::default());
    log::set(|level, text| {
        if level == log::Level::Warning && text.contains("quiet.") {
            said.lock().unwrap().push(text.to_string());
        }
    })
    .unwrap();
    let comm = alone();
    for missing in [Missing::Skip, Missing::Zero] {
        let mut parallel = register_normalised(&comm, &Buffer::builder().missing(missing), "quiet.");
        let mut optimizer = Optimizer::builder().create(parallel.buffer()).unwrap();
        for _ in 0..2 {
            parallel.backward(&normalised(&parallel, "quiet.", true)).unwrap();
            parallel.step(&mut optimizer, &StepOptions::default()).unwrap();
            assert_eq!(parallel.without_gradient().len(), 4); // of the step that begins
        }
        let told = std::mem::take(&mut *said.lock().unwrap());
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("\"quiet.norm.bias\"") && !told[0].contains("upper") && told[0].contains("LayerNorm"), "{told:?}");
    }
    log::reset().unwrap();
}
