// SPDX-License-Identifier: Apache-2.0
//! Update rules against the formulas of src/base/adam.h, sgd.h and lion.h; several optimizers in a step; loss scalers; averages.
mod ranks;

use megadp::{
    Buffer, Code, Comm, DType, Grid, LoadCheckpoint, Optimizer, OptimizerBuilder, Param, ParamGroup, Rule, SaveCheckpoint, Scaler,
    Sharding, StateKind, StepOptions,
};
use ranks::{alone, register, small, threads};
use std::panic::{AssertUnwindSafe, catch_unwind};

const RULES: [Rule; 6] = [Rule::AdamW, Rule::Adam, Rule::Sgd, Rule::SgdMomentum, Rule::SgdNesterov, Rule::Lion];
const STEPS: u64 = 20;
const ELEMENTS: usize = 37; // not the same on both ranks

/// Values of a rule; what a rule has not is not used.
#[derive(Clone, Copy)]
struct Values {
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    decay: f64,
    momentum: f64,
}

const FIRST: Values = Values { lr: 0.03, betas: (0.8, 0.95), eps: 1e-6, decay: 0.1, momentum: 0.7 };
const SECOND: Values = Values { lr: 0.2, betas: (0.5, 0.75), eps: 1e-3, decay: 0.01, momentum: 0.25 };

/// One element, in the library's order of operations: f32 throughout, from constants that were computed in f64.
fn element(rule: Rule, values: &Values, step: i32, g: f32, w: &mut f32, state: &mut [f32; 2]) {
    let (lr, decay, momentum) = (values.lr as f32, values.decay as f32, values.momentum as f32);
    let [beta1, beta2] = [values.betas.0, values.betas.1].map(|beta| (beta as f32, (1.0 - beta) as f32));
    let shrink = (1.0 - values.lr * values.decay) as f32;
    let mut adam = |g: f32| {
        state[0] = beta1.0 * state[0] + beta1.1 * g;
        state[1] = beta2.0 * state[1] + beta2.1 * g * g;
        let size = (values.lr / (1.0 - power(values.betas.0, step))) as f32;
        let root = (1.0 - power(values.betas.1, step)).sqrt() as f32;
        size * state[0] / (state[1].sqrt() / root + values.eps as f32)
    };
    match rule {
        Rule::AdamW => *w = *w * shrink - adam(g),
        Rule::Adam => *w -= adam(g + decay * *w),
        Rule::Sgd => *w -= lr * (g + decay * *w),
        Rule::SgdMomentum => {
            state[0] = momentum * state[0] + (g + decay * *w);
            *w -= lr * state[0];
        }
        Rule::SgdNesterov => {
            let g = g + decay * *w;
            state[0] = momentum * state[0] + g;
            *w -= lr * (g + momentum * state[0]);
        }
        Rule::Lion => {
            let mean = beta1.0 * state[0] + beta1.1 * g;
            *w = *w * shrink - lr * if mean == 0.0 { 0.0 } else { mean.signum() };
            state[0] = beta2.0 * state[0] + beta2.1 * g;
        }
        other => panic!("{other:?}"),
    }
}

/// By squaring, as the library computes it.
fn power(mut base: f64, mut exponent: i32) -> f64 {
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

fn gradient(param: usize, step: u64, i: usize) -> f32 {
    if i == 5 { 0.0 } else { ((i as f64 + 1.0) * 0.7 + step as f64 * 1.3 + param as f64).sin() as f32 }
}

fn weight(i: usize) -> f32 {
    (i as f32 * 0.37).cos()
}

fn said(rule: Rule, values: &Values) -> OptimizerBuilder {
    let builder = Optimizer::builder().rule(rule).lr(values.lr).weight_decay(values.decay);
    match rule {
        Rule::AdamW | Rule::Adam => builder.betas(values.betas.0, values.betas.1).eps(values.eps),
        Rule::SgdMomentum | Rule::SgdNesterov => builder.momentum(values.momentum),
        Rule::Lion => builder.betas(values.betas.0, values.betas.1),
        _ => builder,
    }
}

fn group(rule: Rule, values: &Values) -> ParamGroup {
    let group = ParamGroup::new().lr(values.lr).weight_decay(values.decay);
    match rule {
        Rule::AdamW | Rule::Adam => group.betas(values.betas.0, values.betas.1).eps(values.eps),
        Rule::SgdMomentum | Rule::SgdNesterov => group.momentum(values.momentum),
        Rule::Lion => group.betas(values.betas.0, values.betas.1),
        _ => group,
    }
}

fn kinds(rule: Rule) -> &'static [StateKind] {
    match rule {
        Rule::AdamW | Rule::Adam => &[StateKind::ExpAvg, StateKind::ExpAvgSq],
        Rule::SgdMomentum | Rule::SgdNesterov => &[StateKind::MomentumBuffer],
        Rule::Lion => &[StateKind::ExpAvg],
        _ => &[],
    }
}

/// A buffer of two parameters in two groups, with their first weights.
fn two_groups(comm: &Comm) -> Buffer {
    let params = [Param::new("w", &[ELEMENTS]), Param::new("v", &[ELEMENTS]).param_group(1)];
    let mut buffer = register(comm, &Buffer::builder(), &params);
    for param in 0..2 {
        buffer.write_param(param, &(0..ELEMENTS).map(weight).collect::<Vec<f32>>()).unwrap();
    }
    buffer
}

fn put(buffer: &Buffer, step: u64) {
    for param in 0..2 {
        let values: Vec<f32> = (0..ELEMENTS).map(|i| gradient(param, step, i)).collect();
        buffer.gradients().put(param, &values).unwrap();
    }
}

/// What a parameter and its state are after all steps.
fn emulated(rule: Rule, values: &Values, param: usize) -> [Vec<f32>; 3] {
    let mut found = [vec![], vec![], vec![]];
    for i in 0..ELEMENTS {
        let (mut w, mut state) = (weight(i), [0f32; 2]);
        for step in 1..=STEPS {
            element(rule, values, step as i32, gradient(param, step, i), &mut w, &mut state);
        }
        found[0].push(w);
        found[1].push(state[0]);
        found[2].push(state[1]);
    }
    found
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn check(buffer: &Buffer, optimizer: &Optimizer, rule: Rule, values: &Values, param: usize) {
    let expected = emulated(rule, values, param);
    assert_eq!(bits(buffer.param(param).unwrap()), bits(&expected[0]), "{rule:?}, parameter {param}");
    let owned = buffer.owned().unwrap();
    let begin = owned.iter().find(|range| range.param == param).map_or(0, |range| range.param_begin);
    for (kind, expected) in kinds(rule).iter().zip(&expected[1..]) {
        let state = optimizer.state(buffer, param, *kind).unwrap();
        assert_eq!(bits(state), bits(&expected[begin..begin + state.len()]), "{rule:?}, parameter {param}, {kind:?}");
    }
    for kind in [StateKind::ExpAvg, StateKind::ExpAvgSq, StateKind::MomentumBuffer] {
        assert_eq!(optimizer.state(buffer, param, kind).is_ok(), kinds(rule).contains(&kind), "{rule:?} {kind:?}");
    }
}

#[test]
fn every_rule_is_its_formula_bit_by_bit() {
    for ranks in [1, 2] {
        threads(ranks, |comm| {
            for rule in RULES {
                let mut buffer = two_groups(&comm);
                let groups = [ParamGroup::new(), group(rule, &SECOND)];
                let mut optimizer = said(rule, &FIRST).param_groups(groups).create(&buffer).unwrap();
                for step in 1..=STEPS {
                    put(&buffer, step);
                    assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap().step, step);
                }
                check(&buffer, &optimizer, rule, &FIRST, 0);
                check(&buffer, &optimizer, rule, &SECOND, 1);
            }
        });
    }
}

#[test]
fn several_optimizers_take_one_step() {
    for ranks in [1, 2] {
        threads(ranks, |comm| {
            for (one, other) in RULES.into_iter().zip(RULES.into_iter().cycle().skip(2)) {
                let mut buffer = two_groups(&comm);
                let mut first = said(one, &FIRST).first_param_group(0).create(&buffer).unwrap();
                let mut second = said(other, &FIRST).first_param_group(1).create(&buffer).unwrap();
                second.set_param_group(1, group(other, &SECOND)).unwrap();
                for step in 1..=STEPS {
                    put(&buffer, step);
                    let optimizers = [&mut first, &mut second];
                    let report = match step % 2 {
                        0 => Optimizer::step_many(optimizers, buffer.sync().unwrap(), &StepOptions::default()).unwrap(),
                        _ => Optimizer::step_many(optimizers, &mut buffer, &StepOptions::default()).unwrap(),
                    };
                    assert_eq!(report.step, step);
                }
                check(&buffer, &first, one, &FIRST, 0);
                check(&buffer, &second, other, &SECOND, 1);
                assert_eq!((first.steps(0).unwrap(), second.steps(1).unwrap()), (STEPS, STEPS));
                assert_eq!(buffer.stats().unwrap().syncs, STEPS);
            }
        });
    }
}

#[test]
fn optimizers_that_do_not_fit_together_are_refused() {
    threads(2, |comm| {
        let mut buffer = two_groups(&comm);
        let mut first = Optimizer::builder().first_param_group(0).create(&buffer).unwrap();
        let mut second = Optimizer::builder().rule(Rule::Sgd).first_param_group(1).create(&buffer).unwrap();
        let mut both = Optimizer::builder().rule(Rule::Lion).param_groups([ParamGroup::new(); 2]).create(&buffer).unwrap();
        let mut clips = Optimizer::builder().first_param_group(1).max_grad_norm(1.0).create(&buffer).unwrap();
        let other = register(&comm, &Buffer::builder(), &[small("x").param_group(1)]);
        let mut elsewhere = Optimizer::builder().first_param_group(1).create(&other).unwrap();
        put(&buffer, 1);
        let options = StepOptions::default();
        let mut refused = |optimizers: &mut [&mut Optimizer], options: &StepOptions, text: &str| {
            let optimizers = optimizers.iter_mut().map(|optimizer| &mut **optimizer);
            let error = Optimizer::step_many(optimizers, &mut buffer, options).unwrap_err();
            assert!(error.code == Code::Invalid && error.text.contains(text), "{error}");
        };
        refused(&mut [], &options, "give at least one");
        refused(&mut [&mut first, &mut elsewhere], &options, "not the one that this optimizer was created for");
        refused(&mut [&mut first], &options, "'v' is in parameter group 1");
        refused(&mut [&mut first, &mut both], &options, "which both");
        refused(&mut [&mut first, &mut clips], &options, "clips otherwise");
        refused(&mut [&mut first, &mut second], &options.lr(0.5), "config.lr is 0.5");
        second.set_scaler(Some(&Scaler::default())).unwrap();
        refused(&mut [&mut first, &mut second], &options, "has a loss scaler");
        second.set_scaler(None).unwrap();
        let alone = first.step(&mut buffer, &options).unwrap_err();
        assert!(alone.code == Code::Invalid && alone.text.contains("mdp_optimizer_step_many"), "{alone}");
        assert_eq!(Optimizer::step_many([&mut first, &mut second], &mut buffer, &options).unwrap().step, 1);
    });
}

#[test]
fn values_that_a_rule_has_not_and_zeros_are_refused() {
    let comm = alone();
    let buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let refused = |builder: OptimizerBuilder, text: &str| {
        let error = builder.create(&buffer).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(text), "{error}");
    };
    refused(Optimizer::builder().eps(0.0), "config.eps is 0;");
    refused(Optimizer::builder().param_groups([ParamGroup::new().eps(0.0)]), "config.param_groups[0].eps is 0;");
    refused(Optimizer::builder().momentum(0.9), "AdamW has none");
    refused(Optimizer::builder().rule(Rule::Sgd).betas(0.0, 0.0), "SGD has none");
    refused(Optimizer::builder().rule(Rule::Lion).eps(1e-8), "Lion has none");
    refused(Optimizer::builder().rule(Rule::SgdMomentum).momentum(1.0), "config.momentum is 1;");
    refused(
        Optimizer::builder().rule(Rule::Sgd).param_groups([ParamGroup::new().momentum(0.5)]),
        "config.param_groups[0].momentum is 0.5;",
    );
    refused(Optimizer::builder().param_groups([]).first_param_group(u32::MAX), "config.first_param_group is 4294967295;");
    let mut optimizer = Optimizer::builder().rule(Rule::SgdMomentum).create(&buffer).unwrap();
    assert!(optimizer.set_param_group(0, ParamGroup::new().eps(0.0)).unwrap_err().text.contains("value.eps is 0;"));
    for (scaler, text) in [
        (Scaler { scale: 0.0, ..Scaler::default() }, "scaler.scale is 0;"),
        (Scaler { growth_factor: 0.0, ..Scaler::default() }, "scaler.growth_factor is 0;"),
        (Scaler { backoff_factor: 0.0, ..Scaler::default() }, "scaler.backoff_factor is 0;"),
        (Scaler { growth_interval: 0, ..Scaler::default() }, "scaler.growth_interval is 0;"),
        (Scaler { hysteresis: 0, ..Scaler::default() }, "scaler.hysteresis is 0;"),
        (Scaler { min_scale: 0.0, ..Scaler::default() }, "scaler.min_scale is 0;"),
        (Scaler { backoff_factor: 1.0, ..Scaler::default() }, "scaler.backoff_factor is 1;"),
        (Scaler { scale: 0.5, ..Scaler::default() }, "below scaler.min_scale"),
        (Scaler { overflows: 2, ..Scaler::default() }, "scaler.overflows is 2;"),
    ] {
        let error = optimizer.set_scaler(Some(&scaler)).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(text), "{error}");
    }
    assert_eq!(optimizer.scaler().unwrap_err().code, Code::State);
    assert_eq!(optimizer.scale().unwrap_err().code, Code::State);
    optimizer.set_scaler(Some(&Scaler::default())).unwrap();
    assert_eq!(optimizer.scaler().unwrap(), Scaler::default());
}

/// The scale after each step that overflows (x) or does not, and what the scaler counted.
const PATTERN: &str = "x.xx...x";
const SCALES: [f64; 8] = [1024.0, 1024.0, 512.0, 256.0, 256.0, 256.0, 512.0, 512.0];

#[test]
fn a_scaler_follows_overflows() {
    for (ranks, check_finite) in [(1, false), (2, false), (2, true)] {
        threads(ranks, |comm| {
            let builder = if check_finite { Buffer::builder().check_finite() } else { Buffer::builder() };
            let mut buffer = register(&comm, &builder, &[small("w")]);
            let mut optimizer = Optimizer::builder().rule(Rule::Sgd).lr(1.0).create(&buffer).unwrap();
            let scaler = Scaler { scale: 1024.0, growth_interval: 3, hysteresis: 2, ..Scaler::default() };
            optimizer.set_scaler(Some(&scaler)).unwrap();
            let (mut taken, mut used) = (0u64, 1024.0);
            for (kind, expected) in PATTERN.chars().zip(SCALES) {
                let scale = *optimizer.scale().unwrap();
                assert_eq!(f64::from(scale), used);
                let overflows = kind == 'x' && comm.rank().unwrap() == 0;
                buffer.gradients().put(0, &[if overflows { f32::INFINITY } else { 0.25 * scale }; 4]).unwrap();
                let report = optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
                taken += u64::from(kind == '.');
                assert_eq!((report.skipped, report.loss_scale, report.step), (kind == 'x', used, taken));
                assert_eq!(optimizer.scaler().unwrap().scale, expected);
                used = expected;
            }
            assert_eq!(buffer.param::<f32>(0).unwrap(), [-0.25 * taken as f32; 4]);
            let now = optimizer.scaler().unwrap();
            assert_eq!(now, Scaler { scale: 512.0, overflows: 1, ..scaler });
            buffer.gradients().put(0, &[1f32; 4]).unwrap();
            let refused = optimizer.step(&mut buffer, &StepOptions::default().loss_scale(2.0)).unwrap_err();
            assert!(refused.code == Code::Invalid && refused.text.contains("config.loss_scale is 2"), "{refused}");
        });
    }
}

#[test]
fn a_constant_scaler_stays_and_none_makes_overflows_errors() {
    let comm = alone();
    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
    let constant = Scaler { scale: 8.0, constant: true, ..Scaler::default() };
    optimizer.set_scaler(Some(&constant)).unwrap();
    buffer.gradients().put(0, &[f32::NAN; 4]).unwrap();
    assert!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap().skipped);
    assert_eq!(optimizer.scaler().unwrap(), constant);
    optimizer.set_scaler(None).unwrap();
    buffer.gradients().put(0, &[f32::NAN; 4]).unwrap();
    assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap_err().code, Code::Numeric);
}

#[test]
fn optimizers_of_one_buffer_are_saved_and_loaded_together() {
    let directory = std::env::temp_dir().join(format!("megadp-rules-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    threads(2, |comm| {
        let make = || {
            let buffer = two_groups(&comm);
            let first = said(Rule::Adam, &FIRST).first_param_group(0).create(&buffer).unwrap();
            let second = said(Rule::SgdMomentum, &SECOND).first_param_group(1).create(&buffer).unwrap();
            (buffer, first, second)
        };
        let (mut buffer, mut first, mut second) = make();
        for step in 1..=STEPS / 2 {
            put(&buffer, step);
            Optimizer::step_many([&mut first, &mut second], &mut buffer, &StepOptions::default()).unwrap();
        }
        SaveCheckpoint::new(&directory).part_many(&buffer, [&first, &second]).save().unwrap();
        let (mut buffer, mut first, mut second) = make();
        LoadCheckpoint::new(&directory).part_many(&mut buffer, [&mut first, &mut second]).load().unwrap();
        for step in STEPS / 2 + 1..=STEPS {
            put(&buffer, step);
            Optimizer::step_many([&mut first, &mut second], &mut buffer, &StepOptions::default()).unwrap();
        }
        check(&buffer, &first, Rule::Adam, &FIRST, 0);
        check(&buffer, &second, Rule::SgdMomentum, &SECOND, 1);
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn masters_of_bf16_parameters_follow_every_rule() {
    let comm = alone();
    for rule in RULES {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("w").dtype(DType::Bf16)]);
        buffer.write_param(0, &[1f32; 4]).unwrap();
        let mut optimizer = said(rule, &FIRST).create(&buffer).unwrap();
        let (mut w, mut state) = (1f32, [0f32; 2]);
        for step in 1..=STEPS {
            buffer.gradients().put(0, &[0.75f32; 4]).unwrap();
            optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
            element(rule, &FIRST, step as i32, 0.75, &mut w, &mut state);
        }
        assert_eq!(optimizer.state(&buffer, 0, StateKind::Master).unwrap(), [w; 4], "{rule:?}");
    }
}

#[test]
fn averages_take_the_place_of_parameters_and_leave_it() {
    for ranks in 1..=2 {
        threads(ranks, |comm| {
            let mut buffer = register(&comm, &Buffer::builder(), &[small("w").dtype(DType::Bf16)]);
            let mut optimizer = Optimizer::builder().rule(Rule::Sgd).lr(1.0).average_decay(0.75).create(&buffer).unwrap();
            for _ in 0..2 {
                buffer.gradients().put(0, &[-4f32; 4]).unwrap();
                optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
            }
            let read = |buffer: &Buffer| {
                let mut values = [0f32; 4];
                buffer.read_param(0, &mut values).unwrap();
                values
            };
            let averaged = optimizer.averaged(&mut buffer, |buffer| {
                let refused = buffer.gradients().put(0, &[1f32; 4]).unwrap_err();
                assert!(refused.code == Code::State && refused.text.contains("swap them back first"), "{refused}");
                read(buffer)
            });
            assert_eq!((averaged.unwrap(), read(&buffer)), ([2.75; 4], [8.0; 4]));
            assert!(optimizer.state(&buffer, 0, StateKind::Average).unwrap().iter().all(|average| *average == 2.75));
            let caught = catch_unwind(AssertUnwindSafe(|| optimizer.averaged(&mut buffer, |_| panic!("on purpose"))));
            assert_eq!((caught.is_err(), read(&buffer)), (true, [8.0; 4]));
            buffer.gradients().put(0, &[0f32; 4]).unwrap();
            let mut plain = Optimizer::builder().create(&buffer).unwrap();
            assert_eq!(plain.averaged(&mut buffer, |_| ()).unwrap_err().code, Code::State);
        });
    }
}

#[test]
fn plans_count_the_optimizer() {
    let of = |optimizer: Option<&OptimizerBuilder>, params: &[Param]| {
        megadp::plan(&Grid::builder(), 2, 0, &Buffer::builder().sharding(Sharding::Whole), optimizer, params)
    };
    let params = [Param::new("w", &[1024])];
    let state_bytes = |optimizer: OptimizerBuilder| of(Some(&optimizer), &params).unwrap().state_bytes;
    assert_eq!(of(None, &params).unwrap().state_bytes, 8 * 1024);
    assert_eq!(state_bytes(Optimizer::builder()), 8 * 1024);
    assert_eq!(state_bytes(Optimizer::builder().rule(Rule::Lion).bf16_state()), 2 * 1024);
    assert_eq!(state_bytes(Optimizer::builder().rule(Rule::Caller).state(["a", "b", "c"]).param_state("rows", [100])), 12 * 1024 + 128);
    let grouped = [small("w"), small("norm").param_group(1)];
    let two = Optimizer::builder().param_groups([ParamGroup::new(), ParamGroup::new().lr(0.5)]);
    assert!(of(Some(&two), &grouped).is_ok() && of(None, &grouped).is_ok());
    for (optimizer, told) in [
        (Optimizer::builder(), "parameter group 1; the optimizer has 1 group"),
        (two.first_param_group(0), "MDP_OPTIMIZER_SOME_GROUPS"),
        (Optimizer::builder().eps(0.0), "eps is 0"),
        (Optimizer::builder().rule(Rule::Caller).state(["a\nb"]), "config.state has the name"),
        (Optimizer::builder().rule(Rule::Caller).param_state("rows", [1]), "1 numbers of bytes; there are 2 parameters"),
    ] {
        let error = of(Some(&optimizer), &grouped).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(told), "{error}");
        let error = megadp::plan_json(&Grid::builder(), 2, &Buffer::builder(), Some(&optimizer), &grouped).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(told), "{error}");
    }
}
