// SPDX-License-Identifier: Apache-2.0
//! Updates of the caller's: closures against the library's own AdamW, and what their failures do on all ranks.
mod ranks;

use megadp::{
    Buffer, Code, Comm, DType, LoadCheckpoint, Optimizer, OptimizerBuilder, Param, ParamGroup, Piece, Rule, SaveCheckpoint, Sharding,
    StateKind, StepOptions, Updated,
};
use ranks::{alone, register, small, threads};
use std::panic::{AssertUnwindSafe, catch_unwind};

const STEPS: u64 = 50;
const LENGTHS: [usize; 5] = [37, 470, 901, 5, 350];

/// Every second one is bf16, and every third of the second group.
fn model(comm: &Comm, sharding: Sharding) -> Buffer {
    let dtype = |param: usize| if param % 2 == 1 { DType::Bf16 } else { DType::F32 };
    let named =
        |param: usize| Param::new(format!("p{param}"), &[LENGTHS[param]]).dtype(dtype(param)).param_group(usize::from(param % 3 == 1));
    let params: Vec<Param> = (0..LENGTHS.len()).map(named).collect();
    let mut buffer = register(comm, &Buffer::builder().sharding(sharding).bucket_elements(700), &params);
    for (param, &len) in LENGTHS.iter().enumerate() {
        buffer.write_param(param, &(0..len).map(|i| (i as f32 * 0.37).cos()).collect::<Vec<f32>>()).unwrap();
    }
    buffer
}

fn put(buffer: &Buffer, comm: &Comm, step: u64) {
    let rank = comm.rank().unwrap() as f32;
    for (param, &len) in LENGTHS.iter().enumerate().rev() {
        let grad: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7 + step as f32 * 1.3 + param as f32 + rank).sin()).collect();
        buffer.gradients().put(param, &grad).unwrap();
    }
}

/// By squaring, as the library computes it.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent != 0 {
        if exponent & 1 != 0 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

/// In the library's order of operations.
fn adamw(piece: Piece<'_>) -> Updated {
    let Piece { master, grad, state: [m, v, ..], step, lr, beta1, beta2, eps, weight_decay, .. } = piece;
    let [(beta1, rest1), (beta2, rest2)] = [beta1, beta2].map(|beta| (beta as f32, (1.0 - beta) as f32));
    let (size, root) = ((lr / (1.0 - power(piece.beta1, step))) as f32, (1.0 - power(piece.beta2, step)).sqrt() as f32);
    let shrink = (1.0 - lr * weight_decay) as f32;
    for (i, g) in grad.iter().enumerate() {
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        master[i] = master[i] * shrink - size * m[i] / (v[i].sqrt() / root + eps as f32);
    }
    Ok(())
}

fn values() -> OptimizerBuilder {
    Optimizer::builder().lr(0.01).weight_decay(0.1).max_grad_norm(1.0)
}

fn callers() -> OptimizerBuilder {
    values().rule(Rule::Caller).state(["exp_avg", "second"])
}

fn groups() -> [ParamGroup; 2] {
    [ParamGroup::new(), ParamGroup::new().lr(0.02).betas(0.8, 0.95).eps(1e-6).weight_decay(0.0)]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn values_of(buffer: &Buffer) -> Vec<Vec<u32>> {
    let read = |(param, &len): (usize, &usize)| {
        let mut values = vec![0f32; len];
        buffer.read_param(param, &mut values).unwrap();
        bits(&values)
    };
    LENGTHS.iter().enumerate().map(read).collect()
}

#[test]
fn adamw_in_a_closure_has_the_librarys_bits() {
    for (ranks, sharding) in [(1, Sharding::Zero1), (2, Sharding::Zero1), (2, Sharding::Zero2), (3, Sharding::Zero0), (3, Sharding::Zero1)]
    {
        threads(ranks, |comm| {
            let (mut own, mut buffer) = (model(&comm, sharding), model(&comm, sharding));
            let mut adam = values().param_groups(groups()).create(&own).unwrap();
            let mut optimizer = callers().param_groups(groups()).create(&buffer).unwrap();
            let mut clipped = 0;
            for step in 1..=STEPS {
                put(&own, &comm, step);
                put(&buffer, &comm, step);
                let expected = adam.step(&mut own, &StepOptions::default().loss_scale(2.0)).unwrap();
                let mut elements = 0;
                let update = |piece: Piece<'_>| {
                    assert_eq!((piece.optimizer, piece.step), (0, step));
                    assert!(piece.param_begin + piece.grad.len() <= LENGTHS[piece.param] && !piece.grad.is_empty());
                    assert!(piece.state[2].is_empty() && piece.state[1].len() == piece.grad.len());
                    elements += piece.grad.len();
                    adamw(piece)
                };
                let options = StepOptions::default().loss_scale(2.0);
                let report = match step % 2 {
                    0 => optimizer.step_with(buffer.sync().unwrap(), &options, update).unwrap(),
                    _ => optimizer.step_with(&mut buffer, &options, update).unwrap(),
                };
                assert_eq!(report, expected);
                clipped += u32::from(report.clipped);
                assert_eq!(elements, buffer.owned().unwrap().iter().map(|range| range.elements.len()).sum::<usize>());
                assert_eq!(values_of(&buffer), values_of(&own), "step {step}");
            }
            assert!(clipped > 10, "{clipped} steps were clipped");
            for param in 0..LENGTHS.len() {
                let kinds = [(StateKind::ExpAvg, StateKind::Caller(0)), (StateKind::ExpAvgSq, StateKind::Caller(1))];
                for (expected, kind) in kinds.into_iter().chain([(StateKind::Master, StateKind::Master)]) {
                    let expected = adam.state(&own, param, expected).unwrap();
                    assert_eq!(bits(optimizer.state(&buffer, param, kind).unwrap()), bits(expected));
                }
            }
        });
    }
}

#[test]
fn a_skipped_step_has_no_pieces() {
    let comm = alone();
    let mut buffer = register(&comm, &Buffer::builder(), &[small("w"), small("left alone")]);
    let mut optimizer = callers().create(&buffer).unwrap();
    buffer.gradients().put(0, &[f32::NAN; 4]).unwrap();
    buffer.gradients().skip(1).unwrap();
    let update = |_: Piece<'_>| panic!("called");
    assert!(optimizer.step_with(&mut buffer, &StepOptions::default().loss_scale(2.0), update).unwrap().skipped);
    buffer.gradients().put(0, &[1f32; 4]).unwrap();
    buffer.gradients().skip(1).unwrap();
    let mut seen = vec![];
    let update = |piece: Piece<'_>| {
        seen.push((piece.param, piece.step));
        Ok(())
    };
    optimizer.step_with(&mut buffer, &StepOptions::default(), update).unwrap();
    assert_eq!(seen, [(0, 1)]);
}

#[test]
fn one_step_with_the_librarys_adamw() {
    for ranks in [1, 2, 3] {
        threads(ranks, |comm| {
            for callers_are in 0..2 {
                let (mut own, mut buffer) = (model(&comm, Sharding::Zero1), model(&comm, Sharding::Zero1));
                let mut adam = values().param_groups([ParamGroup::new(); 2]).create(&own).unwrap();
                let builder = |number| if number == callers_are { callers() } else { values() };
                let mut both = [0, 1].map(|number| builder(number).first_param_group(number).create(&buffer).unwrap());
                for step in 1..=STEPS {
                    put(&own, &comm, step);
                    put(&buffer, &comm, step);
                    adam.step(&mut own, &StepOptions::default()).unwrap();
                    let update = |piece: Piece<'_>| {
                        assert_eq!((piece.optimizer as u32, u32::from(piece.param % 3 == 1)), (callers_are, callers_are));
                        adamw(piece)
                    };
                    let (report, request) =
                        Optimizer::start_step_many_with(&mut both, &mut buffer, &StepOptions::default(), update).unwrap();
                    request.wait().unwrap();
                    assert_eq!(report.step, step);
                }
                assert_eq!(values_of(&buffer), values_of(&own));
            }
        });
    }
}

/// How a rank's update fails.
#[derive(Clone, Copy, Debug)]
enum Way {
    Error,
    Panic,
}

/// What a rank whose update fails, or another's, is told; and that the next steps are refused.
fn fails_at(step: u64, way: Way, optimizer: &mut Optimizer, buffer: &mut Buffer, comm: &Comm) {
    let mine = comm.rank().unwrap() == comm.size().unwrap() - 1;
    let options = StepOptions::default();
    put(buffer, comm, step);
    let update = |piece: Piece<'_>| {
        adamw(piece)?; // masters and state have changed
        match way {
            Way::Error if mine => Err("out of luck".into()),
            Way::Panic if mine => panic!("on purpose"),
            _ => Ok(()),
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| optimizer.step_with(&mut *buffer, &options, update)));
    match (way, outcome) {
        (Way::Panic, Err(panic)) => assert!(mine && *panic.downcast::<&str>().unwrap() == "on purpose"),
        (_, Ok(answer)) => {
            let error = answer.unwrap_err();
            assert_eq!(error.code, Code::Aborted, "{error}");
            assert!(error.text.contains("masters and state may have changed"), "{error}");
            assert_eq!((mine, true), (error.text.contains("out of luck"), error.param.is_some()), "{error}");
        }
        (_, Err(panic)) => std::panic::resume_unwind(panic),
    }
    assert!(comm.failure().unwrap().is_none());
    put(buffer, comm, step);
    let refused = optimizer.step_with(&mut *buffer, &options, adamw).unwrap_err();
    assert!(refused.code == Code::State && refused.text.contains("are not whole"), "{refused}");
    buffer.zero_grad().unwrap();
}

#[test]
fn a_failure_on_one_rank_is_everybodys_and_can_be_made_good() {
    let directory = std::env::temp_dir().join(format!("megadp-pieces-{}", std::process::id()));
    for (way, ranks) in [(Way::Error, 1), (Way::Error, 2), (Way::Error, 3), (Way::Panic, 2), (Way::Panic, 3)] {
        std::fs::create_dir_all(&directory).unwrap();
        threads(ranks, |comm| {
            let (mut own, mut buffer) = (model(&comm, Sharding::Zero1), model(&comm, Sharding::Zero1));
            let mut adam = values().create_for(&own);
            let mut optimizer = callers().create_for(&buffer);
            for step in 1..=STEPS {
                if step == 7 {
                    SaveCheckpoint::new(&directory).part(&buffer, &optimizer).save().unwrap();
                    let before = values_of(&buffer);
                    fails_at(step, way, &mut optimizer, &mut buffer, &comm);
                    for param in [1, 3] {
                        assert_eq!(values_of(&buffer)[param], before[param], "bf16: nothing was rounded into it");
                    }
                    LoadCheckpoint::new(&directory).part(&mut buffer, &mut optimizer).load().unwrap();
                }
                put(&own, &comm, step);
                put(&buffer, &comm, step);
                adam.step(&mut own, &StepOptions::default()).unwrap();
                optimizer.step_with(&mut buffer, &StepOptions::default(), adamw).unwrap();
            }
            assert_eq!(values_of(&buffer), values_of(&own), "{way:?} {ranks}");
            fails_at(STEPS + 1, way, &mut optimizer, &mut buffer, &comm);
            optimizer.set_steps(STEPS, None).unwrap(); // as it is
            put(&buffer, &comm, STEPS + 1);
            assert_eq!(optimizer.step_with(&mut buffer, &StepOptions::default(), adamw).unwrap().step, STEPS + 1);
        });
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

trait CreateFor {
    fn create_for(self, buffer: &Buffer) -> Optimizer;
}

impl CreateFor for OptimizerBuilder {
    fn create_for(self, buffer: &Buffer) -> Optimizer {
        self.param_groups(groups()).create(buffer).unwrap()
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let comm = alone();
    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    for names in
        [vec![""], vec!["a", ""], vec!["a\nb"], vec!["a\0"], vec!["a b"], vec!["master"], vec!["a", "a"], vec!["a", "b", "c", "d", "e"]]
    {
        let error = Optimizer::builder().rule(Rule::Caller).state(names.clone()).create(&buffer).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains("config.state"), "{names:?}: {error}");
    }
    let error = Optimizer::builder().state(["a"]).create(&buffer).unwrap_err();
    assert!(error.text.contains("AdamW has its own"), "{error}");
    let mut optimizer = callers().create(&buffer).unwrap();
    buffer.gradients().put(0, &[1f32; 4]).unwrap();
    let error = optimizer.step(&mut buffer, &StepOptions::default()).unwrap_err();
    assert!(error.code == Code::State && error.text.contains("Optimizer::step_with"), "{error}");
    let none = Optimizer::step_many_with([], &mut buffer, &StepOptions::default(), adamw).unwrap_err();
    assert!(none.code == Code::Invalid && none.text.contains("give at least one"), "{none}");
    assert!(optimizer.state(&buffer, 0, StateKind::Caller(2)).unwrap_err().text.contains("has 2 arrays"));
    assert_eq!(optimizer.step_with(&mut buffer, &StepOptions::default(), adamw).unwrap().step, 1);
    let mut elsewhere = register(&comm, &Buffer::builder(), &[small("w")]);
    assert_eq!(optimizer.step_with(&mut elsewhere, &StepOptions::default(), adamw).unwrap_err().code, Code::Invalid);
}

/// A count and the sum of squares, which only an owner of all of it knows.
#[test]
fn whole_parameters_keep_bytes() {
    let trained = |ranks: usize| {
        threads(ranks, |comm| {
            let whole = |(number, &len): (usize, &usize)| {
                Param::new(format!("p{number}"), &[len]).sharding(Sharding::Whole).cost((number + 1) as f64)
            };
            let params: Vec<Param> = LENGTHS.iter().enumerate().map(whole).collect();
            let mut buffer = register(&comm, &Buffer::builder(), &params);
            let short = Optimizer::builder().rule(Rule::Caller).param_state("seen", [8, 8]).create(&buffer).unwrap_err();
            assert!(short.text.contains("2 numbers of bytes; there are 5 parameters"), "{short}");
            let builder = Optimizer::builder().rule(Rule::Caller).param_state("seen", [8, 8, 8, 8, 0]).lr(0.5);
            let mut optimizer = builder.create(&buffer).unwrap();
            for step in 1..=3u64 {
                for (param, &len) in LENGTHS.iter().enumerate() {
                    buffer.gradients().put(param, &vec![step as f32; len]).unwrap();
                }
                let update = |piece: Piece<'_>| {
                    assert_eq!((piece.param_begin, piece.master.len()), (0, LENGTHS[piece.param]));
                    let [seen, ..] = piece.param_states;
                    assert_eq!(seen.len(), if piece.param == 4 { 0 } else { 8 });
                    if let Ok(bytes) = <&mut [u8; 8]>::try_from(seen) {
                        *bytes = (u64::from_ne_bytes(*bytes) + step).to_ne_bytes();
                        assert_eq!(u64::from_ne_bytes(*bytes), step * (step + 1) / 2);
                    }
                    let length = piece.grad.iter().map(|g| g * g).sum::<f32>().sqrt();
                    piece.master.iter_mut().zip(piece.grad).for_each(|(w, g)| *w -= piece.lr as f32 * g / length);
                    Ok(())
                };
                optimizer.step_with(&mut buffer, &StepOptions::default(), update).unwrap();
            }
            values_of(&buffer)
        })
    };
    let [one, two] = [1, 2].map(trained);
    assert!(two.iter().all(|values| *values == one[0]));
}

#[test]
fn an_update_that_needs_all_of_a_parameter_is_found_out() {
    let comm = alone();
    let mut buffer = register(&comm, &Buffer::builder(), &[Param::new("w", &[8])]);
    let mut optimizer = Optimizer::builder().rule(Rule::Caller).check_update().create(&buffer).unwrap();
    let options = StepOptions::default();
    buffer.gradients().put(0, &[1f32; 8]).unwrap();
    let mut lengths = Vec::new();
    let plain = |piece: Piece<'_>| -> Updated {
        lengths.push(piece.grad.len());
        piece.master.iter_mut().zip(piece.grad).for_each(|(value, grad)| *value -= grad);
        Ok(())
    };
    optimizer.step_with(&mut buffer, &options, plain).unwrap();
    assert_eq!(lengths, [8, 4, 4]);
    buffer.gradients().put(0, &[1f32; 8]).unwrap();
    let by_norm = |piece: Piece<'_>| -> Updated {
        let sum: f32 = piece.grad.iter().sum();
        piece.master.iter_mut().for_each(|value| *value -= sum);
        Ok(())
    };
    let failed = optimizer.step_with(&mut buffer, &options, by_norm).unwrap_err();
    assert!(failed.code == Code::Aborted && failed.to_string().contains("not element-wise"), "{failed}");
}
