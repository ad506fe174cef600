// SPDX-License-Identifier: Apache-2.0
//! Trains a small burn module on scikit-learn's digits, on as many ranks as it is started with:
//!
//!     MEGADP_DIGITS=digits.csv megadp run -n 2 target/debug/burn-digits
//!
//! burn's backward gives all gradients at its end; a visitor hands them over, the last layer's first, and a mapper brings the new values into
//! the module. Rank 0 prints the loss of each step, over the whole batch.
#[path = "../../megadp/examples/digits/mod.rs"]
mod digits;

use burn::backend::{Autodiff, NdArray};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::prelude::Backend;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Int, Tensor, TensorData};
use digits::{CLASSES, Digits, HIDDEN, INPUTS, STEPS, parameters};
use megadp::{Buffer, Comm, Gradients, Op, Optimizer, StepOptions};
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

/// Names and shapes of a module's parameters, in the order in which burn visits them, which is that of the fields.
#[derive(Default)]
struct Describe {
    path: Vec<String>,
    params: Vec<megadp::Param>,
}

impl<B: Backend> ModuleVisitor<B> for Describe {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.params.push(megadp::Param::new(self.path.join("."), &param.shape().dims::<D>()));
    }
}

/// The gradients of a module's parameters, in the same order; none if the loss does not depend on one.
struct Collect<'a, B: AutodiffBackend> {
    gradients: &'a B::Gradients,
    found: Vec<Option<TensorData>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.found.push(param.val().grad(self.gradients).map(|gradient| gradient.into_data()));
    }
}

/// Hands all gradients over, the last layer's first: so buckets fill in the order in which they are launched.
fn put_all<B: AutodiffBackend>(module: &Mlp<B>, gradients: &B::Gradients, to: &Gradients) -> Result<(), Box<dyn Error>> {
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

/// Brings the parameters' values into a module, each as soon as it is whole.
struct Load<'a> {
    buffer: &'a Buffer,
    next: usize,
    failure: Option<megadp::Error>,
}

impl<B: Backend> ModuleMapper<B> for Load<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.next += 1;
        match self.buffer.param::<f32>(self.next - 1) {
            Ok(values) => param.map(|old| {
                let values = TensorData::new(values.to_vec(), old.shape());
                Tensor::from_data(values, &old.device()).set_require_grad(old.is_require_grad())
            }),
            Err(error) => {
                self.failure.get_or_insert(error);
                param
            }
        }
    }
}

fn load<B: Backend>(module: Mlp<B>, buffer: &Buffer) -> megadp::Result<Mlp<B>> {
    let mut load = Load { buffer, next: 0, failure: None };
    let module = module.map(&mut load);
    load.failure.map_or(Ok(module), Err)
}

fn main() -> Result<(), Box<dyn Error>> {
    let data = Digits::read()?;
    let comm = Comm::builder().connect()?;
    let (rank, ranks) = (comm.rank()?, comm.size()?);
    let device = Default::default();
    let module = Mlp::<Trained>::new(&device);
    let mut describe = Describe::default();
    module.visit(&mut describe);
    let mut buffer = Buffer::builder().bucket_elements(256).register(&comm, &describe.params)?;
    for (param, (_, _, values)) in parameters().iter().enumerate() {
        buffer.write_param(param, values)?; // in place of burn's own first weights
    }
    let mut optimizer = Optimizer::builder().lr(1e-2).weight_decay(0.01).create(&buffer)?;
    let gradients = buffer.gradients();
    let mut module = load(module, &buffer)?;
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
    Ok(buffer.verify()?)
}
