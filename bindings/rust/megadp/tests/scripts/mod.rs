// SPDX-License-Identifier: Apache-2.0
//! What ordinary scripts for candle do: with a variable itself, a `VarMap`, layers of candle_nn; on 2 ranks as in one process.
use super::{register, var};
use crate::ranks::{alone, threads};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, Var};
use candle_nn::{Linear, Module, Optimizer as _, SGD, VarBuilder, VarMap};
use megadp::candle::{DataParallel, Error};
use megadp::{Buffer, Code, Comm, LoadCheckpoint, Optimizer, Param, Rule, SaveCheckpoint, Sharding, StepOptions};
use std::collections::HashMap;

const CPU: Device = Device::Cpu;
const STEPS: usize = 4;
const ROWS: usize = 8;

/// Two layers of candle_nn's.
struct Mlp(Linear, Linear);

impl Mlp {
    fn new(builder: VarBuilder) -> Self {
        let layer = |inputs, outputs, name| candle_nn::linear(inputs, outputs, builder.pp(name)).unwrap();
        Mlp(layer(3, 4, "lower"), layer(4, 2, "upper"))
    }

    fn loss(&self, step: usize, rows: std::ops::Range<usize>) -> Tensor {
        let values = rows.clone().flat_map(|row| (0..3).map(move |i| ((row * 7 + i * 3 + step * 5) as f32).cos())).collect::<Vec<_>>();
        let x = Tensor::from_vec(values, (rows.len(), 3), &CPU).unwrap();
        self.1.forward(&self.0.forward(&x).unwrap().tanh().unwrap()).unwrap().sqr().unwrap().mean_all().unwrap()
    }
}

fn vars(map: &VarMap) -> Vec<(String, Var)> {
    let mut vars = map.data().lock().unwrap().clone().into_iter().collect::<Vec<_>>();
    vars.sort_by(|a, b| a.0.cmp(&b.0));
    vars
}

/// A map with the same values every time, and the model of its variables.
fn map_and_model() -> (VarMap, Mlp) {
    let map = VarMap::new();
    let model = Mlp::new(VarBuilder::from_varmap(&map, DType::F32, &CPU));
    for (number, (_, var)) in vars(&map).iter().enumerate() {
        let values = (0..var.elem_count()).map(|i| ((i * 3 + number) as f32).sin() / 2.0).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &CPU).unwrap()).unwrap();
    }
    (map, model)
}

fn tensors(parallel: &DataParallel, map: &VarMap) -> HashMap<String, Tensor> {
    vars(map).into_iter().map(|(name, _)| (name.clone(), parallel.tensor(&name).unwrap())).collect()
}

/// The model of a registered map's tensors.
fn of_tensors(parallel: &DataParallel, map: &VarMap) -> Mlp {
    Mlp::new(VarBuilder::from_tensors(tensors(parallel, map), DType::F32, &CPU))
}

fn register_map(comm: &Comm, builder: &megadp::BufferBuilder, map: &VarMap) -> DataParallel {
    DataParallel::register(comm, builder, vars(map)).unwrap()
}

fn sgd(parallel: &DataParallel) -> Optimizer {
    Optimizer::builder().rule(Rule::Sgd).lr(0.5).create(parallel.buffer()).unwrap()
}

fn step(parallel: &mut DataParallel, optimizer: &mut Optimizer) {
    parallel.step(optimizer, &StepOptions::default()).unwrap();
}

/// This rank's part of the batch.
fn share(comm: &Comm) -> std::ops::Range<usize> {
    let (rank, size) = (comm.rank().unwrap(), comm.size().unwrap());
    ROWS * rank / size..ROWS * (rank + 1) / size
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// The greatest difference between a map's variables and values of the same names.
fn apart(map: &VarMap, values: &HashMap<String, Tensor>) -> f32 {
    let difference = |(name, var): &(String, Var)| (var.as_tensor() - &values[name]).unwrap().abs().unwrap().max_all().unwrap();
    vars(map).iter().map(|one| difference(one).to_scalar::<f32>().unwrap()).fold(0.0, f32::max)
}

/// candle's own training in one process, on the whole batch.
fn train_alone(loss: impl Fn(&Mlp, &VarMap, usize) -> Tensor, after: impl Fn(&VarMap)) -> VarMap {
    let (map, model) = map_and_model();
    let mut optimizer = SGD::new(map.all_vars(), 0.5).unwrap();
    for step in 0..STEPS {
        optimizer.backward_step(&loss(&model, &map, step)).unwrap();
        after(&map);
    }
    map
}

fn penalty(map: &VarMap) -> Tensor {
    let squares = vars(map).iter().map(|(_, var)| var.sqr().unwrap().sum_all().unwrap()).collect::<Vec<_>>();
    (Tensor::stack(&squares, 0).unwrap().sum_all().unwrap() * 0.1).unwrap()
}

fn state(error: Error, words: &[&str]) {
    let Error::Megadp(error) = error else { panic!("{error}") };
    assert_eq!(error.code, Code::State, "{error}");
    words.iter().for_each(|word| assert!(error.text.contains(word), "{word}: {error}"));
}

/// Of a loss that uses a variable through its tensor, itself, and both, each gradient is that of the variable alone. Buckets are small: what
/// came through the tensor must wait.
#[test]
fn a_variable_that_the_loss_uses_itself_counts() {
    threads(2, |comm| {
        let values = var(&[1.0, 2.0, 3.0, 4.0], (2, 2));
        let other = var(&[0.5, -1.0, 2.0, 1.5], (2, 2));
        let builder = Buffer::builder().bucket_elements(1).sharding(Sharding::Zero0);
        let mut parallel = register(&comm, &builder, &[("w", &values), ("other", &other)]);
        let (tensor, through) = (parallel.tensor("w").unwrap(), parallel.tensor("other").unwrap());
        let x = Tensor::new(&[[1f32, comm.rank().unwrap() as f32]], &CPU).unwrap();
        let loss = |a: &Tensor, b: &Tensor, c: &Tensor| x.matmul(a).unwrap().matmul(c).unwrap().matmul(b).unwrap().sum_all().unwrap();
        let both = Tensor::new(&[[1f32, 0.5]], &CPU).unwrap(); // what the ranks' gradients come to: they are linear in x
        let whole = both.matmul(&values).unwrap().matmul(&other).unwrap().matmul(&values).unwrap().sum_all().unwrap().backward().unwrap();
        let expected = whole.get(&values).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (a, b) in
            [(&tensor, &tensor), (values.as_tensor(), values.as_tensor()), (&tensor, values.as_tensor()), (values.as_tensor(), &tensor)]
        {
            let kept = parallel.backward(&loss(a, b, &through)).unwrap();
            assert!(kept.get(&values).is_none() && parallel.without_gradient().is_empty());
            assert_eq!(parallel.buffer_mut().sync().unwrap().grad::<f32>(0).unwrap(), expected);
            parallel.buffer_mut().begin_microbatch(true).unwrap();
        }
    });
}

#[test]
fn a_penalty_over_the_variables_of_a_map_trains_as_in_one_process() {
    let expected = train_alone(|model, map, step| (model.loss(step, 0..ROWS) + penalty(map)).unwrap(), |_| ());
    threads(2, |comm| {
        let (map, _) = map_and_model();
        let mut parallel = register_map(&comm, &Buffer::builder().bucket_elements(1), &map);
        let (model, mut optimizer) = (of_tensors(&parallel, &map), sgd(&parallel));
        for number in 0..STEPS {
            parallel.backward(&(model.loss(number, share(&comm)) + penalty(&map)).unwrap()).unwrap();
            step(&mut parallel, &mut optimizer);
        }
        assert!(apart(&expected, &tensors(&parallel, &map)) < 1e-6);
    });
}

/// Also where some microbatches, or one rank, go the one way and some the other.
#[test]
fn a_model_of_the_variables_themselves_trains_as_in_one_process() {
    let expected = train_alone(|model, _, step| model.loss(step, 0..ROWS), |_| ());
    for sharding in [Sharding::Zero0, Sharding::Zero1, Sharding::Zero2] {
        threads(2, |comm| {
            let (map, own) = map_and_model();
            let mut parallel = register_map(&comm, &Buffer::builder().bucket_elements(1).sharding(sharding), &map);
            let (model, mut optimizer) = (of_tensors(&parallel, &map), sgd(&parallel));
            for number in 0..STEPS {
                let rows = share(&comm);
                for (micro, begin) in [rows.start, rows.start + rows.len() / 2].into_iter().enumerate() {
                    parallel.buffer_mut().begin_microbatch(micro == 1).unwrap();
                    let model = if (number + micro + comm.rank().unwrap()) % 2 == 0 { &model } else { &own };
                    parallel.backward(&(model.loss(number, begin..begin + rows.len() / 2) / 2.0).unwrap()).unwrap();
                }
                step(&mut parallel, &mut optimizer);
            }
            parallel.buffer().verify().unwrap();
            assert!(apart(&expected, &tensors(&parallel, &map)) < 1e-6);
        });
    }
}

/// Fails in its backward.
struct Broken;

impl CustomOp1 for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }
}

#[test]
fn a_backward_that_fails_keeps_nothing_back() {
    let comm = alone();
    let (lower, upper) = (var(&[1.0; 4], (2, 2)), var(&[1.0; 4], (2, 2)));
    let mut parallel = register(&comm, &Buffer::builder(), &[("lower", &lower), ("upper", &upper)]);
    let [lower_tensor, tensor] = ["lower", "upper"].map(|name| parallel.tensor(name).unwrap());
    let loss = |lower: &Tensor| lower.matmul(&tensor).unwrap().add(&upper).unwrap().sum_all().unwrap();
    parallel.backward(&loss(&lower_tensor.apply_op1(Broken).unwrap())).unwrap_err();
    parallel.backward(&loss(&lower_tensor)).unwrap();
    assert_eq!(parallel.buffer_mut().sync().unwrap().grad::<f32>(1).unwrap(), [3.0; 4]); // 2 through the tensor, and 1
}

#[test]
fn saved_variables_are_those_of_the_last_step() {
    threads(2, |comm| {
        let (map, own) = map_and_model();
        if comm.rank().unwrap() == 1 {
            vars(&map).iter().for_each(|(_, var)| var.set(&var.zeros_like().unwrap()).unwrap()); // as a generator of its own would
        }
        let mut parallel = register_map(&comm, &Buffer::builder(), &map);
        assert_eq!(bits(&own.loss(0, 0..ROWS)), bits(&map_and_model().1.loss(0, 0..ROWS))); // rank 0's values
        let (model, mut optimizer) = (of_tensors(&parallel, &map), sgd(&parallel));
        parallel.backward(&model.loss(0, share(&comm))).unwrap();
        step(&mut parallel, &mut optimizer);
        let path = std::env::temp_dir().join(format!("megadp-{}-{}.safetensors", std::process::id(), comm.rank().unwrap()));
        map.save(&path).unwrap();
        let saved = candle_core::safetensors::load(&path, &CPU).unwrap();
        std::fs::remove_file(&path).unwrap();
        tensors(&parallel, &map).iter().for_each(|(name, tensor)| assert_eq!(bits(&saved[name]), bits(tensor)));
        assert_eq!(bits(&own.loss(1, 0..ROWS)), bits(&model.loss(1, 0..ROWS)));
    });
}

fn clamp(map: &VarMap) {
    vars(map).iter().for_each(|(_, var)| var.set(&var.clamp(-0.25, 0.25).unwrap()).unwrap());
}

#[test]
fn variables_that_a_program_writes_are_taken_over() {
    let expected = train_alone(|model, _, step| model.loss(step, 0..ROWS), clamp);
    threads(2, |comm| {
        let (map, _) = map_and_model();
        let mut parallel = register_map(&comm, &Buffer::builder(), &map);
        let (model, mut optimizer) = (of_tensors(&parallel, &map), sgd(&parallel));
        for number in 0..STEPS {
            parallel.backward(&model.loss(number, share(&comm))).unwrap();
            step(&mut parallel, &mut optimizer);
            clamp(&map);
            parallel.load().unwrap();
        }
        assert!(apart(&expected, &tensors(&parallel, &map)) < 1e-6);
    });
}

fn write_element(variable: &Var, row: usize, column: usize) {
    let other = variable.slice_assign(&[row..row + 1, column..column + 1], &Tensor::new(&[[7f32]], &CPU).unwrap());
    variable.set(&other.unwrap()).unwrap();
}

/// As a file that is loaded into a map which has been registered, or running means among the registered.
#[test]
fn variables_that_a_program_writes_behind_the_back_are_found() {
    let comm = alone();
    let (map, _) = map_and_model();
    let mut parallel = register_map(&comm, &Buffer::builder(), &map);
    let (model, mut optimizer) = (of_tensors(&parallel, &map), sgd(&parallel));
    let (name, variable) = vars(&map).swap_remove(1);
    for (row, column) in [(0, 0), (3, 2)] {
        write_element(&variable, row, column);
        parallel.backward(&model.loss(0, 0..ROWS)).unwrap();
        let error = parallel.step(&mut optimizer, &StepOptions::default()).unwrap_err();
        state(error, &["variable \"lower.weight\" was written", "DataParallel::load", "running means"]);
        parallel.load().unwrap();
        step(&mut parallel, &mut optimizer);
        assert_eq!(bits(&variable), bits(&parallel.tensor(&name).unwrap()));
    }
}

/// The step that follows would write over it, so it looks at all of a variable, however large that is.
#[test]
fn an_element_that_a_program_writes_behind_the_back_is_found() {
    const ROWS: usize = 4;
    let comm = alone();
    let variable = Var::zeros((ROWS, 16384), DType::F32, &CPU).unwrap();
    let mut parallel = register(&comm, &Buffer::builder(), &[("table", &variable)]);
    let mut optimizer = sgd(&parallel);
    let tensor = parallel.tensor("table").unwrap();
    for row in (0..ROWS).rev() {
        write_element(&variable, row, 5);
        parallel.backward(&tensor.sum_all().unwrap()).unwrap();
        let error = parallel.step(&mut optimizer, &StepOptions::default()).unwrap_err();
        assert!(error.to_string().contains("was written"), "row {row}: {error}");
        parallel.refresh().unwrap();
        step(&mut parallel, &mut optimizer);
    }
}

#[test]
fn parameters_that_a_program_writes_show_after_refresh() {
    let comm = alone();
    let variable = var(&[f32::NAN; 4], (2, 2));
    let mut parallel = register(&comm, &Buffer::builder(), &[("w", &variable)]);
    let mut optimizer = sgd(&parallel);
    let tensor = parallel.tensor("w").unwrap();
    let loss = || tensor.sum_all().unwrap();
    let words = ["parameters were written", "DataParallel::refresh"];
    for way in 0..4 {
        match way {
            0 => parallel.buffer_mut().write_param(0, &[2f32; 4]).unwrap(),
            1 => parallel.buffer_mut().param_mut::<f32>(0).unwrap().fill(3.0),
            2 => parallel.buffer_mut().broadcast(0).unwrap(),
            _ => {
                parallel.backward(&loss()).unwrap();
                optimizer.step(parallel.buffer_mut(), &StepOptions::default()).unwrap();
            }
        }
        state(parallel.backward(&loss()).unwrap_err(), &words);
        state(parallel.step(&mut optimizer, &StepOptions::default()).unwrap_err(), &words);
        parallel.refresh().unwrap();
        let value = [2.0, 3.0, 3.0, 2.5][way];
        assert_eq!(
            [&tensor, variable.as_tensor()].map(|tensor| tensor.to_vec2::<f32>().unwrap()),
            [(); 2].map(|()| vec![vec![value; 2]; 2])
        );
    }
}

#[test]
fn a_checkpoint_that_is_loaded_is_in_the_tensors() {
    let directory = std::env::temp_dir().join(format!("megadp-candle-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    threads(2, |comm| {
        let train = |steps: std::ops::Range<usize>, load: bool| {
            let (map, _) = map_and_model();
            let mut parallel = register_map(&comm, &Buffer::builder(), &map);
            let (model, mut optimizer) = (of_tensors(&parallel, &map), sgd(&parallel));
            if load {
                LoadCheckpoint::new(&directory).part(parallel.buffer_mut(), &mut optimizer).load().unwrap();
            }
            for number in steps {
                parallel.backward(&model.loss(number, share(&comm))).unwrap();
                step(&mut parallel, &mut optimizer);
            }
            SaveCheckpoint::new(&directory).part(parallel.buffer(), &optimizer).save().unwrap();
            bits(&model.loss(0, 0..ROWS))
        };
        let once = train(0..STEPS, false);
        train(0..2, false);
        assert_eq!(train(2..STEPS, true), once);
        assert_eq!(train(0..0, true), once); // to evaluate alone
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn averages_are_in_the_tensors_while_they_are_evaluated() {
    let comm = alone();
    let variable = var(&[1.0; 4], (2, 2));
    let mut parallel = register(&comm, &Buffer::builder(), &[("w", &variable)]);
    let tensor = parallel.tensor("w").unwrap();
    let mut optimizer = Optimizer::builder().rule(Rule::Sgd).lr(1.0).average_decay(0.75).create(parallel.buffer()).unwrap();
    parallel.backward(&(&tensor * -4.0).unwrap().sum_all().unwrap()).unwrap();
    step(&mut parallel, &mut optimizer);
    let values = || [&tensor, variable.as_tensor()].map(|tensor| tensor.to_vec2::<f32>().unwrap()[1][1]);
    assert_eq!(optimizer.averaged(parallel.buffer_mut(), |_| values()).unwrap(), [2.0; 2]);
    assert_eq!(values(), [5.0; 2]);
}

/// A VarBuilder of another dtype converts as the model is built, and so the model would never change.
#[test]
fn what_was_computed_from_parameters_before_a_step_is_refused() {
    let comm = alone();
    let (map, _) = map_and_model();
    let mut parallel = register_map(&comm, &Buffer::builder(), &map);
    let (model, mut optimizer) = (of_tensors(&parallel, &map), sgd(&parallel));
    let frozen = Var::ones((2, 2), DType::F32, &CPU).unwrap().affine(2.0, 0.0).unwrap(); // computed once, of what never changes
    let tensor = parallel.tensor("upper.weight").unwrap();
    let (copy, view) = (tensor.t().unwrap().contiguous().unwrap(), tensor.t().unwrap());
    let infinite = (model.loss(0, 0..ROWS) * f64::INFINITY).unwrap();
    for _ in 0..2 {
        parallel.backward(&infinite).unwrap();
        assert!(parallel.step(&mut optimizer, &StepOptions::default().loss_scale(2.0)).unwrap().skipped); // nothing has changed by that
    }
    let loss = |upper: &Tensor| (model.loss(0, 0..ROWS) + upper.matmul(&frozen).unwrap().sum_all().unwrap()).unwrap();
    parallel.backward(&loss(&(&view + &copy).unwrap())).unwrap();
    step(&mut parallel, &mut optimizer);
    let words = ["F32 [4, 2]", "\"upper.weight\" before the last step", "VarBuilder::from_tensors"];
    state(parallel.backward(&loss(&(&view + &copy).unwrap())).unwrap_err(), &words);
    for _ in 0..2 {
        parallel.backward(&loss(&view)).unwrap();
        step(&mut parallel, &mut optimizer);
    }
    // Other losses between do not hide it.
    state(parallel.backward(&loss(&(&view + &copy).unwrap())).unwrap_err(), &words);
    // Nor is it only the first step's: this one, a state that is kept from step to step, say, was computed after that.
    let kept = tensor.t().unwrap().contiguous().unwrap();
    parallel.backward(&loss(&kept)).unwrap();
    step(&mut parallel, &mut optimizer);
    state(parallel.backward(&loss(&kept)).unwrap_err(), &words);
}

#[test]
fn a_second_backward_is_told_what_comes_between() {
    let comm = alone();
    for through_tensors in [true, false] {
        let (map, own) = map_and_model();
        let parallel = register_map(&comm, &Buffer::builder(), &map);
        let model = if through_tensors { of_tensors(&parallel, &map) } else { own };
        parallel.backward(&model.loss(0, 0..ROWS)).unwrap();
        state(parallel.backward(&model.loss(1, 0..ROWS)).unwrap_err(), &["ready already", "DataParallel::step", "begin_microbatch"]);
    }
}

#[test]
fn a_variable_without_elements_is_registered() {
    let comm = alone();
    let vars = [("w", var(&[1.0; 4], (2, 2))), ("empty", Var::zeros((3, 0), DType::F32, &CPU).unwrap())];
    let mut parallel = DataParallel::register(&comm, &Buffer::builder(), vars).unwrap();
    let mut optimizer = sgd(&parallel);
    let [w, empty] = ["w", "empty"].map(|name| parallel.tensor(name).unwrap());
    for _ in 0..2 {
        parallel.backward(&(w.sum_all().unwrap() + empty.sum_all().unwrap()).unwrap()).unwrap();
        step(&mut parallel, &mut optimizer);
    }
    assert_eq!((w.to_vec2::<f32>().unwrap(), empty.dims()), (vec![vec![0.0; 2]; 2], &[3, 0][..]));
}

#[test]
fn say_gives_the_same_parameter_back() {
    let comm = alone();
    let register = |say: fn(Param) -> Param| {
        let vars = [("w", var(&[1.0; 4], (2, 2)))];
        DataParallel::register_params(&comm, &Buffer::builder(), vars, say).map(|parallel| parallel.buffer().len())
    };
    assert_eq!(register(|param| param.replicated().use_order(3).own_bucket()).unwrap(), 1);
    let others: [fn(Param) -> Param; 4] =
        [Param::frozen, |param| param.uses_per_step(2), |_| Param::new("v", &[2, 2]), |_| Param::new("w", &[4])];
    for say in others {
        let error = register(say).unwrap_err();
        assert!(matches!(&error, Error::Megadp(error) if error.code == Code::Invalid && error.text.contains("\"w\"")), "{error}");
    }
}

#[test]
fn a_name_for_two_variables_is_refused() {
    let (a, b) = (var(&[1.0; 4], (2, 2)), var(&[2.0; 4], (2, 2)));
    let error = DataParallel::register(&alone(), &Buffer::builder(), [("a", a.clone()), ("b", b), ("b", a)]).err().unwrap();
    assert!(matches!(&error, Error::Megadp(error) if error.code == Code::Invalid && error.text.contains("\"b\"")), "{error}");
}
