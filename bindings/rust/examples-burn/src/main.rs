// SPDX-License-Identifier: Apache-2.0
//! Trains a small burn module on scikit-learn's digits, on as many ranks as it is started with:
//!
//!     MEGADP_DIGITS=digits.csv megadp run -n 2 target/debug/burn-digits [DIRECTORY]
//!
//! burn's backward gives all gradients at its end; a visitor hands them over, the last layer's first, and a mapper brings the new values into
//! the module. What needs no gradient, as the running statistics of a batch norm, stays the module's, and goes into checkpoints as tensors.
//! Rank 0 prints the loss of each step, over the whole batch. With a directory it leaves a checkpoint there, and begins with the newest one.
#[path = "../../megadp/examples/digits/mod.rs"]
mod digits;

use burn::backend::{Autodiff, NdArray};
use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::prelude::Backend;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Int, Tensor, TensorData};
use digits::{CLASSES, Digits, HIDDEN, INPUTS, STEPS, parameters};
use megadp::{Buffer, Comm, Gradients, LoadCheckpoint, Op, Optimizer, SaveCheckpoint, StepOptions};
use std::error::Error;

type Trained = Autodiff<NdArray<f32>>;

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    lower: Linear<B>,
    relu: Relu,
    upper: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    fn new(device: &B::Device) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Mlp { lower: linear(INPUTS, HIDDEN), relu: Relu::new(), upper: linear(HIDDEN, CLASSES) }
    }

    /// Mean cross-entropy.
    fn loss(&self, x: Tensor<B, 2>, labels: Tensor<B, 1, Int>) -> Tensor<B, 1> {
        let device = x.device();
        let logits = self.upper.forward(self.relu.forward(self.lower.forward(x)));
        CrossEntropyLossConfig::new().init(&device).forward(logits, labels)
    }
}

/// What a module has, in the order in which burn visits it, which is that of the fields: names and shapes of what is trained; and with its
/// values what needs no gradient.
#[derive(Default)]
struct Describe {
    path: Vec<String>,
    params: Vec<megadp::Param>,
    kept: Vec<(megadp::Param, Vec<f32>)>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Describe {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let about = megadp::Param::new(self.path.join("."), &param.shape().dims::<D>());
        if param.is_require_grad() {
            self.params.push(about);
        } else {
            self.kept.push((about, param.val().into_data().iter().collect()));
        }
    }
}

fn describe<B: AutodiffBackend>(module: &impl AutodiffModule<B>) -> Describe {
    module.valid(); // what the last forward has added to running statistics is not visited before this
    let mut describe = Describe::default();
    module.visit(&mut describe);
    describe
}

/// The gradients of what is trained, in the same order; none if the loss does not depend on one.
struct Collect<'a, B: AutodiffBackend> {
    gradients: &'a B::Gradients,
    found: Vec<Option<TensorData>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.is_require_grad() {
            self.found.push(param.val().grad(self.gradients).map(|gradient| gradient.into_data()));
        }
    }
}

/// Hands all gradients over, the last layer's first: so buckets fill in the order in which they are launched.
fn put_all<B: AutodiffBackend>(module: &impl Module<B>, gradients: &B::Gradients, to: &Gradients) -> Result<(), Box<dyn Error>> {
    let mut collect = Collect { gradients, found: Vec::new() };
    module.visit(&mut collect);
    for (param, gradient) in collect.found.into_iter().enumerate().rev() {
        match gradient {
            Some(data) => to.put(param, data.as_slice::<f32>().map_err(|error| format!("{error:?}"))?)?,
            None => to.skip(param)?,
        }
    }
    Ok(())
}

fn filled<B: Backend, const D: usize>(old: Tensor<B, D>, values: Vec<f32>) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values, old.shape()), &old.device()).set_require_grad(old.is_require_grad())
}

/// Brings the values of what is trained into a module, each as soon as it is whole.
struct Load<'a> {
    buffer: &'a Buffer,
    next: usize,
    failure: Option<megadp::Error>,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Load<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !param.is_require_grad() {
            return param;
        }
        self.next += 1;
        match self.buffer.param::<f32>(self.next - 1) {
            Ok(values) => param.map(|old| filled(old, values.to_vec())),
            Err(error) => {
                self.failure.get_or_insert(error);
                param
            }
        }
    }
}

fn load<B: AutodiffBackend, M: Module<B>>(module: M, buffer: &Buffer) -> megadp::Result<M> {
    let mut load = Load { buffer, next: 0, failure: None };
    let module = module.map(&mut load);
    load.failure.map_or(Ok(module), Err)
}

/// Brings what needs no gradient into a module.
struct Restore(std::vec::IntoIter<(megadp::Param, Vec<f32>)>);

impl<B: AutodiffBackend> ModuleMapper<B> for Restore {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if param.is_require_grad() {
            return param;
        }
        match self.0.next() {
            Some((_, values)) => param.map(|old| filled(old, values)),
            None => param,
        }
    }
}

/// Running statistics are rank 0's: each rank has counted the batches that it has seen.
fn save<B: AutodiffBackend>(
    directory: &str,
    module: &impl AutodiffModule<B>,
    comm: &Comm,
    buffer: &Buffer,
    optimizer: &Optimizer,
) -> megadp::Result<()> {
    let mut kept = describe(module).kept;
    kept.iter_mut().try_for_each(|(_, values)| comm.broadcast(values, 0))?;
    let checkpoint = SaveCheckpoint::new(directory).part(buffer, optimizer);
    kept.iter().fold(checkpoint, |checkpoint, (about, values)| checkpoint.tensor(about, values)).save()
}

fn resume<B: AutodiffBackend, M: AutodiffModule<B>>(
    directory: &str,
    module: M,
    buffer: &mut Buffer,
    optimizer: &mut Optimizer,
) -> megadp::Result<M> {
    let mut kept = describe(&module).kept;
    let checkpoint = LoadCheckpoint::new(directory).part(buffer, optimizer);
    kept.iter_mut().fold(checkpoint, |checkpoint, (about, values)| checkpoint.tensor(about, values)).load()?;
    load(module.map(&mut Restore(kept.into_iter())), buffer)
}

fn main() -> Result<(), Box<dyn Error>> {
    let data = Digits::read()?;
    let comm = Comm::builder().connect()?;
    let (rank, ranks) = (comm.rank()?, comm.size()?);
    let device = Default::default();
    let module = Mlp::<Trained>::new(&device);
    let mut buffer = Buffer::builder().bucket_elements(256).register(&comm, &describe(&module).params)?;
    for (param, (_, _, values)) in parameters().iter().enumerate() {
        buffer.write_param(param, values)?; // in place of burn's own first weights
    }
    let mut optimizer = Optimizer::builder().lr(1e-2).weight_decay(0.01).create(&buffer)?;
    let gradients = buffer.gradients();
    let directory = std::env::args().nth(1);
    let mut module = match &directory {
        Some(directory) if megadp::checkpoint_info(directory).is_ok() => resume(directory, module, &mut buffer, &mut optimizer)?,
        _ => load(module, &buffer)?,
    };
    for step in 0..STEPS {
        let (x, labels) = data.batch(step, rank, ranks);
        let rows = labels.len();
        let labels: Vec<i64> = labels.into_iter().map(i64::from).collect();
        let x = Tensor::from_data(TensorData::new(x, [rows, INPUTS]), &device);
        let loss = module.loss(x, Tensor::from_data(TensorData::new(labels, [rows]), &device));
        put_all(&module, &loss.backward(), &gradients)?;
        let (_report, _gathering) = optimizer.start_step(&mut buffer, &StepOptions::default())?;
        module = load(module, &buffer)?;
        let mut loss = [f64::from(loss.into_scalar())];
        comm.all_reduce(&mut loss, Op::Avg)?;
        if rank == 0 {
            println!("loss {step} {:.9}", loss[0]);
        }
    }
    if let Some(directory) = &directory {
        save(directory, &module, &comm, &buffer, &optimizer)?;
    }
    Ok(buffer.verify()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::{BatchNorm, BatchNormConfig};

    #[derive(Module, Debug)]
    struct Normed<B: Backend> {
        norm: BatchNorm<B>,
        layer: Linear<B>,
    }

    impl<B: Backend> Normed<B> {
        fn new() -> Self {
            let device = Default::default();
            Normed { norm: BatchNormConfig::new(2).init(&device), layer: LinearConfig::new(2, 1).init(&device) }
        }

        fn loss(&self) -> Tensor<B, 1> {
            let x = Tensor::<B, 2>::from_data([[1.0, 2.0], [3.0, 8.0]], &Default::default()); // means 2 and 5, variances 1 and 9
            (self.layer.forward(self.norm.forward(x)) - 1.0).powi_scalar(2).mean()
        }
    }

    fn names<'a>(params: impl IntoIterator<Item = &'a megadp::Param>) -> Vec<&'a str> {
        params.into_iter().map(|param| param.name()).collect()
    }

    #[test]
    fn statistics_of_a_batch_norm_are_kept_and_not_trained() -> Result<(), Box<dyn Error>> {
        let directory = std::env::temp_dir().join(format!("megadp-burn-{}", std::process::id()));
        let directory = directory.to_str().ok_or("no text")?;
        let comm = Comm::builder().connect()?;
        let begun = || -> megadp::Result<_> {
            let module = Normed::<Trained>::new();
            let Describe { params, kept, .. } = describe(&module);
            assert_eq!(names(&params), ["norm.gamma", "norm.beta", "layer.weight", "layer.bias"]);
            assert_eq!(names(kept.iter().map(|(about, _)| about)), ["norm.running_mean", "norm.running_var"]);
            let buffer = Buffer::builder().register(&comm, &params)?;
            let optimizer = Optimizer::builder().lr(0.1).create(&buffer)?;
            Ok((module, buffer, optimizer))
        };
        let (module, mut buffer, mut optimizer) = begun()?;
        for (param, values) in [&[1.0f32, 1.0][..], &[0.0, 0.0], &[0.5, 0.25], &[0.0]].into_iter().enumerate() {
            buffer.write_param(param, values)?;
        }
        let mut module = load(module, &buffer)?;
        for _ in 0..3 {
            put_all(&module, &module.loss().backward(), &buffer.gradients())?;
            optimizer.step(&mut buffer, &StepOptions::default())?;
            module = load(module, &buffer)?;
        }
        let (old, new) = (0.9f32.powi(3), 1.0 - 0.9f32.powi(3));
        for ((_, values), right) in describe(&module).kept.iter().zip([[2.0 * new, 5.0 * new], [old + new, old + 9.0 * new]]) {
            assert!(values.iter().zip(right).all(|(value, right)| (value - right).abs() < 1e-5), "{values:?} {right:?}");
        }
        std::fs::create_dir_all(directory)?;
        save(directory, &module, &comm, &buffer, &optimizer)?;
        let (fresh, mut buffer, mut optimizer) = begun()?;
        let resumed = resume(directory, fresh, &mut buffer, &mut optimizer)?;
        std::fs::remove_dir_all(directory)?;
        assert_eq!(resumed.valid().loss().into_scalar(), module.valid().loss().into_scalar());
        Ok(())
    }
}
