// SPDX-License-Identifier: Apache-2.0
//! Gradients through a pool: the bits of Zero1, memory that is lent, and what is refused.
mod ranks;

use megadp::{Buffer, BufferBuilder, Code, Comm, Grid, Optimizer, Param, Sharding, StepOptions, plan};
use ranks::{alone, register, small, threads};
use std::thread;

const SIZES: [usize; 5] = [130, 64, 300, 1, 77];
const ALL: [Sharding; 3] = [Sharding::Zero0, Sharding::Zero1, Sharding::Zero2];

fn layers() -> Vec<Param> {
    SIZES.iter().enumerate().map(|(number, &size)| Param::new(format!("layer{number}"), &[size])).collect()
}

fn zero2() -> BufferBuilder {
    Buffer::builder().sharding(Sharding::Zero2)
}

/// No sum of these is exact, so that every other order of adding has other bits.
fn gradient(rank: usize, param: usize, step: usize) -> Vec<f32> {
    let mixed = |i: usize| (rank * 2_654_435_761) ^ (i * 40_503 + param * 7_919 + step * 104_729);
    (0..SIZES[param]).map(|i| ((mixed(i) % 20_011) as f32 - 10_005.0) / 3_001.0).collect()
}

/// How gradients are handed over.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Put,
    Acquire,
}

/// The parameters, bit for bit, and the owned pieces of the last step's gradients, after some steps.
fn train(comm: &Comm, builder: &BufferBuilder, by: By) -> Vec<Vec<u32>> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    let rank = comm.rank().unwrap();
    let mut buffer = register(comm, &builder.clone().bucket_elements(1), &layers());
    let mut optimizer = Optimizer::builder().lr(0.0625).max_grad_norm(1.0).create(&buffer).unwrap();
    let mut found = Vec::new();
    for step in 0..6 {
        for at in 0..SIZES.len() {
            let param = if step % 2 == 0 { SIZES.len() - 1 - at } else { (at * 3 + rank) % SIZES.len() };
            let grad = gradient(rank, param, step);
            if by == By::Put {
                buffer.gradients().put(param, &grad).unwrap();
            } else {
                let mut lent = buffer.acquire(param).unwrap();
                assert!(lent.first());
                lent.copy_from_slice(&grad);
                lent.ready().unwrap();
            }
        }
        let synced = buffer.sync().unwrap();
        found = (0..SIZES.len()).map(|param| bits(synced.owned_grad(param).unwrap())).collect();
        let lengths: Vec<usize> = found.iter().map(Vec::len).collect();
        for range in synced.buffer().owned().unwrap() {
            assert_eq!(lengths[range.param], range.elements.len());
        }
        optimizer.step(synced, &StepOptions::default()).unwrap();
    }
    buffer.verify().unwrap();
    found.extend((0..SIZES.len()).map(|param| bits(buffer.param(param).unwrap())));
    found
}

#[test]
fn training_has_the_bits_of_zero1() {
    threads(2, |comm| {
        let expected = train(&comm, &Buffer::builder(), By::Put);
        for builder in [Buffer::builder(), zero2(), zero2().pool_buckets(1), zero2().pool_buckets(3)] {
            for by in [By::Put, By::Acquire] {
                assert_eq!(train(&comm, &builder, by), expected);
            }
        }
    });
}

#[test]
fn two_instances_of_two_have_the_bits_of_one_of_four() {
    let owned = threads(4, |comm| {
        let rank = comm.rank().unwrap();
        let train = |instances, sharding| {
            let grid = Grid::builder().instances(instances).create(&comm).unwrap();
            let mut buffer = Buffer::builder().sharding(sharding).register(&grid, &layers()).unwrap();
            let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
            for step in 0..2 {
                for param in (0..SIZES.len()).rev() {
                    buffer.gradients().put(param, &gradient(rank, param, step)).unwrap();
                }
                optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
            }
            buffer.verify().unwrap();
            let owned: usize = buffer.owned().unwrap().iter().map(|range| range.elements.len()).sum();
            let bits = |param| buffer.param::<f32>(param).unwrap().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            ((0..SIZES.len()).map(bits).collect::<Vec<_>>(), owned)
        };
        [Sharding::Zero1, Sharding::Zero2].map(|sharding| {
            let [one, two] = [1, 2].map(|instances| train(instances, sharding));
            assert_eq!(one.0, two.0);
            [one.1, two.1]
        })
    });
    let all = SIZES.iter().sum::<usize>();
    for sharding in 0..2 {
        assert_eq!([0, 1].map(|cut| owned.iter().map(|rank| rank[sharding][cut]).sum::<usize>()), [all, 2 * all]);
    }
}

#[test]
fn what_is_lent_is_a_gradient_of_every_sharding() {
    let comm = alone();
    for sharding in ALL {
        let params = [small("tied").uses_per_step(2), small("other"), small("frozen").frozen()];
        let mut buffer = register(&comm, &Buffer::builder().sharding(sharding), &params);
        let gradients = buffer.gradients();
        buffer.acquire::<f32>(1).unwrap().fill(99.0); // given back: it never was
        gradients.put(1, &[5f32; 4]).unwrap();
        for first in [true, false] {
            let mut lent = buffer.acquire::<f32>(0).unwrap();
            assert_eq!((lent.first(), lent.len()), (first, 4));
            for refused in [gradients.put(0, &[1f32; 4]), gradients.ready(0), gradients.skip(0), buffer.acquire::<f32>(0).map(drop)] {
                assert_eq!(refused.unwrap_err().code, Code::State);
            }
            thread::scope(|scope| {
                scope.spawn(|| {
                    for (at, element) in lent.iter_mut().enumerate() {
                        *element = if first { at as f32 } else { *element + 10.0 };
                    }
                });
            });
            lent.ready().unwrap();
        }
        for (param, code) in [(0, Code::State), (2, Code::State), (3, Code::Invalid)] {
            assert_eq!(buffer.acquire::<f32>(param).unwrap_err().code, code);
        }
        let mut synced = buffer.sync().unwrap();
        assert_eq!(synced.owned_grad::<f32>(0).unwrap(), [10.0, 11.0, 12.0, 13.0]);
        synced.owned_grad_mut::<f32>(1).unwrap().copy_from_slice(&[3.0, 0.0, 0.0, 4.0]);
        synced.grads_changed().unwrap();
        assert_eq!(synced.grad_norm(Some(&[1])).unwrap(), 5.0);
        synced.scale_grads(2.0, None).unwrap();
        assert_eq!(synced.owned_grad::<f32>(1).unwrap(), [6.0, 0.0, 0.0, 8.0]);
        assert_eq!(synced.owned_grad::<f64>(1).unwrap_err().code, Code::Invalid);
        assert_eq!(synced.owned_grad::<f32>(2).unwrap_err().code, Code::State);
        assert_eq!(synced.grad::<f32>(0).map_err(|error| error.code).is_err(), sharding == Sharding::Zero2);
        drop(synced);
        assert_eq!(buffer.acquire::<f32>(0).unwrap_err().code, Code::State); // it is reduced
    }
}

/// A slice whose guard is forgotten: all ranks are told at the end of the step, and the next beginning takes it back.
#[test]
fn what_is_never_given_back_is_named() {
    threads(2, |comm| {
        let mut buffer = register(&comm, &zero2(), &[small("kept"), small("other")]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        let first = comm.rank().unwrap() == 0;
        let one = [1f32; 4];
        type Beginning = fn(&mut Buffer) -> megadp::Result<()>;
        let beginnings: [Beginning; 2] = [Buffer::zero_grad, |buffer| buffer.begin_microbatch(true)];
        for begin in beginnings {
            buffer.gradients().put(1, &one).unwrap();
            if first {
                std::mem::forget(buffer.acquire::<f32>(0).unwrap());
                assert!(buffer.gradients().ready(0).unwrap_err().text.contains("acquire"));
            } else {
                buffer.gradients().put(0, &one).unwrap();
            }
            let error = buffer.sync().unwrap_err();
            assert!(error.code == Code::State && error.param == Some(0) && error.rank == Some(0), "{error}");
            assert!(error.text.contains("'kept' is lent"), "{error}");
            assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap_err().code, Code::State);
            begin(&mut buffer).unwrap();
            // Nothing of what was forgotten is left.
            for param in 0..2 {
                buffer.gradients().put(param, &one).unwrap();
            }
            optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
        }
        assert_eq!(optimizer.steps(0).unwrap(), 2);
    });
}

#[test]
fn microbatches_are_summed_in_the_shard() {
    threads(2, |comm| {
        let mut buffer = register(&comm, &zero2().bucket_elements(1), &[small("a"), small("b")]);
        let rank = comm.rank().unwrap() as f32;
        for microbatch in 0..3 {
            buffer.begin_microbatch(microbatch == 2).unwrap();
            for param in 0..2 {
                buffer.gradients().put(param, &[rank + microbatch as f32; 4]).unwrap();
            }
        }
        let synced = buffer.sync().unwrap();
        for param in 0..2 {
            assert!(synced.owned_grad::<f32>(param).unwrap().iter().all(|&sum| sum == 0.5 + 1.5 + 2.5));
        }
        assert_eq!(synced.buffer().stats().unwrap().buckets, 6);
    });
}

/// In the order of forward all but one bucket's gradients come too early.
#[test]
fn what_lies_outside_the_pool_is_counted_and_limited() {
    let comm = alone();
    let mut buffer = register(&comm, &zero2().bucket_elements(1).pool_buckets(1).spill_limit(600), &layers());
    buffer.gradients().put(0, &gradient(0, 0, 0)).unwrap(); // 520 bytes
    for refused in [buffer.gradients().put(1, &gradient(0, 1, 0)).unwrap_err(), buffer.acquire::<f32>(1).unwrap_err()] {
        assert!(refused.code == Code::Memory && refused.text.contains("spill_limit is 600"), "{refused}");
    }
    for param in (1..SIZES.len()).rev() {
        // Until the bucket before has been reduced.
        while buffer.gradients().put(param, &gradient(0, param, 0)).is_err_and(|error| error.code == Code::Memory) {}
    }
    drop(buffer.sync().unwrap());
    let peak = buffer.stats().unwrap().spill_peak_bytes;
    assert!((520..=600).contains(&peak), "{peak}");
    assert_eq!(buffer.grad_mut::<f32>(0).unwrap_err().code, Code::State); // after a sync
    buffer.begin_microbatch(true).unwrap();
    let error = buffer.grad_mut::<f32>(0).unwrap_err();
    assert!(error.code == Code::Unsupported && error.text.contains("mdp_grad_acquire"), "{error}");
    let error = Buffer::builder().pool_buckets(2).register(&comm, &layers()).unwrap_err();
    assert!(error.code == Code::Invalid && error.text.contains("pool_buckets is 2"), "{error}");
}

#[test]
fn the_plan_tells_the_pool_the_sums_and_what_may_lie_outside() {
    let params = [1280; 4].iter().enumerate().map(|(number, &size)| Param::new(format!("p{number}"), &[size])).collect::<Vec<_>>();
    let plan = |builder: BufferBuilder| plan(&Grid::builder(), 4, 0, &builder.bucket_elements(1), None, &params).unwrap();
    let bytes = 4 * 1280 * 4;
    let report = plan(zero2().pool_buckets(1));
    assert_eq!((report.grad_bytes, report.grad_shard_bytes, report.spill_bytes), (bytes / 4, bytes / 4, bytes));
    assert_eq!(plan(zero2().spill_limit(100)).spill_bytes, 100);
    let report = plan(Buffer::builder());
    assert_eq!((report.grad_bytes, report.grad_shard_bytes, report.spill_bytes), (bytes, 0, 0));
}

#[cfg(feature = "half")]
#[test]
fn half_width_gradients_of_several_uses_are_lent_in_f32() {
    use half::bf16;
    let comm = alone();
    let params = ["once", "tied"].map(|name| small(name).dtype(megadp::DType::Bf16));
    let params = [params[0].clone(), params[1].clone().uses_per_step(2)];
    let mut buffer = register(&comm, &zero2().same_grad_dtype(), &params);
    let error = buffer.acquire::<bf16>(1).unwrap_err();
    assert_eq!((error.code, error.param), (Code::Invalid, Some(1)));
    for _ in 0..2 {
        let mut lent = buffer.acquire::<f32>(1).unwrap(); // what was refused is not lent
        if lent.first() {
            lent.fill(0.0);
        }
        lent[0] += 1.0;
        lent.ready().unwrap();
    }
    let mut lent = buffer.acquire::<bf16>(0).unwrap();
    lent.fill(bf16::from_f32(0.5));
    lent.ready().unwrap();
    let synced = buffer.sync().unwrap();
    assert_eq!(synced.owned_grad::<f32>(0).unwrap(), [0.5; 4]);
    assert_eq!(synced.owned_grad::<f32>(1).unwrap(), [2.0, 0.0, 0.0, 0.0]);
}
