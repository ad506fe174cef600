// SPDX-License-Identifier: Apache-2.0
//! Which values may go to other threads, and what keeps threads apart.
mod ranks;

use megadp::{Aborter, Acquired, Axes, Buffer, Code, Comm, Gradients, Grid, Optimizer, Pending, Request, Rule, StepOptions, UniqueId};
use ranks::{alone, register, small, threads};
use std::sync::Barrier;
use std::thread;

#[test]
fn what_the_header_allows_is_what_the_types_say() {
    fn send<T: Send>() {}
    fn both<T: Send + Sync>() {}
    send::<Comm>();
    send::<Grid>();
    send::<Buffer>();
    send::<Optimizer>();
    both::<Gradients>();
    both::<Acquired<f32>>();
    both::<Request>();
    both::<Aborter>();
    both::<Pending<f32>>();
    both::<UniqueId>();
    both::<StepOptions>();
}

#[test]
fn gradients_arrive_from_many_threads() {
    const PARAMS: usize = 16;
    let sums = threads(2, |comm| {
        let params: Vec<_> = (0..PARAMS).map(|index| small(&index.to_string())).collect();
        let mut buffer = register(&comm, &Buffer::builder().bucket_count(4).sharding(megadp::Sharding::Zero0), &params);
        let gradients = buffer.gradients();
        for _ in 0..10 {
            thread::scope(|scope| {
                for param in 0..PARAMS {
                    let gradients = gradients.clone();
                    scope.spawn(move || gradients.put(param, &[param as f32; 4]).unwrap());
                }
            });
            let synced = buffer.sync().unwrap();
            for param in 0..PARAMS {
                assert_eq!(synced.grad::<f32>(param).unwrap(), [param as f32; 4]);
            }
            buffer.begin_microbatch(true).unwrap();
        }
        buffer.stats().unwrap().syncs
    });
    assert_eq!(sums, [10, 10]);
}

/// Values of one communicator on two threads, and one of a part of it: calls take turns, none is refused or lost.
#[test]
fn handles_of_one_tree_on_three_threads_take_turns() {
    let world = alone();
    let grid = Grid::builder().create(&world).unwrap();
    let comms = [world.split(Some(0), 0).unwrap().unwrap(), grid.comm(Axes::DP).unwrap(), grid.comm(Axes::DP).unwrap()];
    let begin = Barrier::new(3);
    thread::scope(|scope| {
        for comm in comms {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                for value in 0..200i64 {
                    let mut data = [value];
                    comm.all_reduce(&mut data, megadp::Op::Sum).unwrap();
                    assert_eq!(data, [value]);
                    comm.barrier().unwrap();
                }
            });
        }
    });
}

/// Steps until both ranks have made `steps`; says what the last parameter is then.
fn step_down(mut buffer: Buffer, mut optimizer: Optimizer, steps: usize) -> f32 {
    for _ in 0..steps {
        buffer.gradients().put(0, &[1f32; 4]).unwrap();
        optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
        optimizer.swap_average(&mut buffer).unwrap();
        optimizer.swap_average(&mut buffer).unwrap();
    }
    buffer.param::<f32>(0).unwrap()[3]
}

/// Two models, each trained by a thread of its own, on one communicator or on parts of it. The ranks come to them in any order: here the
/// threads begin in another order on each. A step that kept the other thread's from beginning would wait for a rank that waits for that.
#[test]
fn buffers_of_one_tree_do_not_wait_for_one_another() {
    const STEPS: usize = 300;
    for splits in [false, true] {
        threads(2, |comm| {
            let models = [0, 1].map(|number| {
                let part = splits.then(|| comm.split(Some(0), 0).unwrap().unwrap());
                let buffer = register(part.as_ref().unwrap_or(&comm), &Buffer::builder(), &[small(&number.to_string())]);
                let builder = Optimizer::builder().rule(Rule::Sgd).lr(1.0 + number as f64).average_decay(0.5);
                let optimizer = builder.create(&buffer).unwrap();
                (number, buffer, optimizer)
            });
            let (rank, begin) = (comm.rank().unwrap(), &Barrier::new(2));
            thread::scope(|scope| {
                for (number, buffer, optimizer) in models {
                    scope.spawn(move || {
                        begin.wait();
                        if number == rank {
                            thread::sleep(std::time::Duration::from_millis(20));
                        }
                        assert_eq!(step_down(buffer, optimizer, STEPS), -((STEPS * (number + 1)) as f32));
                    });
                }
            });
        });
    }
}

#[test]
fn a_lent_gradient_is_nobody_elses() {
    let comm = alone();
    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let gradients = buffer.gradients();
    let mut lent = buffer.grad_mut::<f32>(0).unwrap();
    for refused in [gradients.put(0, &[1f32; 4]), gradients.ready(0), gradients.skip(0)] {
        assert_eq!(refused.unwrap_err().code, Code::State);
    }
    lent.fill(3.0);
    drop(lent); // not ready, and no longer lent
    gradients.put_part(0, &[1f32; 4]).unwrap(); // the step's first replaces
    let mut lent = buffer.grad_mut::<f32>(0).unwrap();
    lent[0] += 5.0;
    lent.ready().unwrap();
    // Its bucket is on its way: no slice of it any more until the next step begins.
    assert_eq!(buffer.grad_mut::<f32>(0).unwrap_err().code, Code::State);
    let synced = buffer.sync().unwrap();
    assert_eq!(synced.grad::<f32>(0).unwrap(), [6.0, 1.0, 1.0, 1.0]);
    drop(synced);
    assert_eq!(buffer.grad_mut::<f32>(0).unwrap_err().code, Code::State);
    let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
    optimizer.step(buffer.sync().unwrap(), &StepOptions::default()).unwrap();
    buffer.grad_mut::<f32>(0).unwrap().ready().unwrap();
    drop(buffer.sync().unwrap());
}

#[test]
fn an_abort_from_another_thread_ends_a_wait() {
    let codes = threads(2, |comm| {
        if comm.rank().unwrap() == 1 {
            // Never comes to the collective that the other one waits in; leaves when that has ended.
            while comm.failure().unwrap().is_none() {
                thread::yield_now();
            }
            return Code::Aborted;
        }
        let pending = comm.start_all_reduce(vec![1f32; 8], megadp::Op::Sum).unwrap();
        let aborter = comm.aborter();
        thread::scope(|scope| {
            scope.spawn(move || aborter.abort().unwrap());
            pending.wait().unwrap_err().code
        })
    });
    assert_eq!(codes, [Code::Aborted, Code::Aborted]);
}
