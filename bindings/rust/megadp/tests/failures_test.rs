// SPDX-License-Identifier: Apache-2.0
//! The four failures that every binding tests: a bad argument, a parameter without a gradient, a killed peer, use after close.
mod ranks;

use megadp::{Buffer, Code, Comm, Grid, Optimizer, Param, Rule, StepOptions, UniqueId};
use ranks::{TIMEOUT, alone, register, small, threads};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_bad_argument_is_named_with_its_value() {
    let comm = alone();
    let error = Grid::builder().tp(3).create(&comm).unwrap_err();
    assert_eq!(error.code, Code::Invalid);
    assert!(error.text.contains('3'), "{error}");

    let twice = [small("twice"), small("twice")];
    let error = Buffer::builder().register(&comm, &twice).unwrap_err();
    assert_eq!((error.code, error.param), (Code::Invalid, Some(1)));
    assert!(error.text.contains("twice"), "{error}");

    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let error = buffer.gradients().put(0, &[1f32; 3]).unwrap_err();
    assert_eq!((error.code, error.param), (Code::Invalid, Some(0)));
    assert!(error.text.contains("3 elements"), "{error}");
    assert_eq!(buffer.gradients().put(7, &[1f32; 4]).unwrap_err().code, Code::Invalid);
    assert_eq!(buffer.param::<f64>(0).unwrap_err().code, Code::Invalid);
    assert_eq!(buffer.write_param(0, &[1i64; 4]).unwrap_err().code, Code::Invalid);
    let big = [Param::new("w", &[1 << 50])]; // which no machine has
    for (builder, told) in [(Buffer::builder(), "MDP_BUFFER_IGNORE_MEMORY"), (Buffer::builder().ignore_memory(), "cannot map")] {
        let error = builder.register(&comm, &big).unwrap_err();
        assert!(error.code == Code::Memory && error.text.contains(told), "{error}");
    }
    for (name, told) in [("v", "'v'"), ("v\0", "NUL")] {
        let error = buffer.find(name).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(told), "{error}");
    }
    for rank in [1, usize::MAX] {
        let error = comm.world_rank(rank).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains("rank"), "{error}");
    }
    assert!(buffer.broadcast(1).unwrap_err().text.contains("root"));
    let error = Optimizer::builder().lr(f64::NAN).create(&buffer).unwrap_err();
    assert_eq!(error.code, Code::Invalid);
    assert!(error.text.to_lowercase().contains("nan"), "{error}");

    let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
    buffer.gradients().put(0, &[1f32; 4]).unwrap();
    // SAFETY: without a device no stream is looked at.
    let elsewhere = unsafe { StepOptions::default().stream(std::ptr::without_provenance_mut(8)) };
    let error = optimizer.step(buffer.sync().unwrap(), &elsewhere).unwrap_err();
    assert!(error.code == Code::Invalid && error.text.contains("stream"), "{error}");
    for (options, told) in [
        (StepOptions::default().loss_scale(0.0), "config.loss_scale is 0"),
        (StepOptions::default().grad_divisor(0.0), "config.grad_divisor is 0"),
        (StepOptions::default().loss_scale(0.0).grad_divisor(1.0), "config.loss_scale is 0"),
    ] {
        let error = optimizer.step(&mut buffer, &options).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(told), "{error}");
    }
    optimizer.step(&mut buffer, &StepOptions::default().grad_divisor(0.0).grad_divisor(2.0)).unwrap();
}

/// The next step begins with the next gradient, in whatever way that comes.
#[test]
fn a_step_whose_gradient_is_not_finite_begins_the_next() {
    threads(2, |comm| {
        for caller in [false, true] {
            let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
            let rule = if caller { Rule::Caller } else { Rule::Sgd };
            let mut optimizer = Optimizer::builder().rule(rule).lr(1.0).create(&buffer).unwrap();
            for value in [f32::NAN, 1.0, f32::INFINITY, 2.0] {
                let mut grad = buffer.grad_mut::<f32>(0).unwrap();
                grad.fill(if comm.rank().unwrap() == 1 { value } else { 1.0 });
                grad.ready().unwrap();
                let options = StepOptions::default();
                let stepped = match caller {
                    true => optimizer.step_with(&mut buffer, &options, |_| Ok(())),
                    false => optimizer.step(&mut buffer, &options),
                };
                assert_eq!(stepped.map(|_| ()).map_err(|error| error.code), if value.is_finite() { Ok(()) } else { Err(Code::Numeric) });
            }
            assert_eq!(optimizer.steps(0).unwrap(), 2);
        }
        // What the sync finds ends nothing, as before.
        let mut buffer = register(&comm, &Buffer::builder().check_finite(), &[small("w")]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        for options in [StepOptions::default(), StepOptions::default().unchecked()] {
            buffer.gradients().put(0, &[f32::NAN; 4]).unwrap();
            assert_eq!(optimizer.step(&mut buffer, &options).unwrap_err().code, Code::Numeric);
            assert_eq!(buffer.grad_mut::<f32>(0).unwrap_err().code, Code::State);
            buffer.zero_grad().unwrap();
        }
    });
}

/// Sizes of 0, also behind others: what has no elements is an empty slice everywhere.
#[test]
fn a_parameter_without_elements_is_an_empty_slice() {
    let comm = alone();
    for shape in [&[0][..], &[3, 0], &[0, 3], &[2, 0, 3], &[2, 3, 0]] {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("w"), Param::new("empty", shape)]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        assert_eq!((buffer.param::<f32>(1).unwrap().len(), buffer.param_mut::<f32>(1).unwrap().len()), (0, 0), "{shape:?}");
        assert!(buffer.acquire::<f32>(1).unwrap().is_empty());
        buffer.grad_mut::<f32>(1).unwrap().ready().unwrap();
        buffer.gradients().put(0, &[1f32; 4]).unwrap();
        let synced = buffer.sync().unwrap();
        assert!(synced.grad::<f32>(1).unwrap().is_empty() && synced.owned_grad::<f32>(1).unwrap().is_empty());
        optimizer.step(synced, &StepOptions::default()).unwrap();
        assert!(optimizer.state(&buffer, 1, megadp::StateKind::ExpAvg).unwrap().is_empty());
    }
}

#[test]
fn a_parameter_without_a_gradient_is_named_on_all_ranks() {
    let errors = threads(2, |comm| {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("first"), small("second")]);
        buffer.gradients().put(1, &[1f32; 4]).unwrap();
        if comm.rank().unwrap() == 0 {
            buffer.gradients().put(0, &[1f32; 4]).unwrap();
        }
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        let error = buffer.sync().unwrap_err();
        assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap_err(), error); // which would have synced too
        // Nothing is half done: the same step, begun anew, goes through.
        buffer.zero_grad().unwrap();
        for param in 0..2 {
            buffer.gradients().put(param, &[1f32; 4]).unwrap();
        }
        assert_eq!(optimizer.step(buffer.sync().unwrap(), &StepOptions::default()).unwrap().step, 1);
        error
    });
    for error in errors {
        assert_eq!((error.code, error.param, error.rank), (Code::State, Some(0), Some(1)), "{error}");
        assert!(error.text.contains("first"), "{error}");
    }
}

#[test]
fn a_killed_peer_is_named_long_before_the_timeout() {
    let begun = Instant::now();
    let (_, said) = ranks::ranks(2, "rank_whose_peer_is_killed", &[]);
    assert!(said.contains("noticed: Peer Some(1)"), "{said}");
    assert!(said.contains("kept: Peer Some(1)"), "{said}");
    assert!(begun.elapsed() < TIMEOUT, "{said}");
}

/// A rank of the test above, which kills itself in the middle of a training where it is rank 1.
#[test]
#[ignore = "a rank"]
fn rank_whose_peer_is_killed() {
    let comm = Comm::builder().timeout(TIMEOUT * 10).expect_size(2).connect().unwrap();
    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
    for step in 0.. {
        if step == 5 && comm.rank().unwrap() == 1 {
            Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status().unwrap();
        }
        buffer.gradients().put(0, &[1f32; 4]).unwrap_or_default();
        let stepped = optimizer.step(&mut buffer, &StepOptions::default());
        if let Err(error) = stepped {
            println!("noticed: {:?} {:?}", error.code, error.rank);
            break;
        }
    }
    let kept = comm.failure().unwrap().unwrap();
    println!("kept: {:?} {:?}", kept.code, kept.rank);
    // What is left can be saved, and dropping it all neither waits nor panics.
    assert_eq!(buffer.param::<f32>(0).map_or_else(|error| error.code, |_| Code::Peer), Code::Peer);
    assert_eq!(optimizer.set_param_group(0, megadp::ParamGroup::new()).unwrap_err().code, Code::Peer);
}

/// Use after close does not compile (the documentation of `Comm` shows it). What can be tested is what outlives what.
#[test]
fn parents_may_be_dropped_first() {
    let comm = alone();
    let grid = Grid::data_parallel(&comm).unwrap();
    let mut buffer = Buffer::builder().register(&grid, &[small("w")]).unwrap();
    drop((comm, grid));
    let gradients = buffer.gradients();
    let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
    gradients.put(0, &[1f32; 4]).unwrap();
    assert_eq!(optimizer.step(buffer.sync().unwrap(), &StepOptions::default()).unwrap().step, 1);
    drop(buffer);
    // The memory is kept, the step goes on: a gradient may still come.
    gradients.put(0, &[1f32; 4]).unwrap();
    assert!(gradients.put(0, &[1f32; 4]).is_err());
    drop(optimizer);
    gradients.wait(0).unwrap();
}

#[test]
fn after_an_abort_everything_says_so_and_nothing_hangs() {
    let errors = threads(2, |comm| {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
        if comm.rank().unwrap() == 1 {
            comm.aborter().abort().unwrap();
        }
        let error = comm.barrier().unwrap_err();
        assert!(error.code.is_final());
        assert_eq!(comm.failure().unwrap().unwrap().code, Code::Aborted);
        assert_eq!(buffer.sync().unwrap_err().code, Code::Aborted);
        assert_eq!(comm.start_all_reduce(vec![1f32], megadp::Op::Sum).unwrap_err().code, Code::Aborted);
        error
    });
    assert!(errors.iter().all(|error| error.code == Code::Aborted && error.rank == Some(1)));
}

/// A communicator whose calls end as soon as the flag is up.
fn stoppable(id: &UniqueId, (rank, size): (usize, usize), flag: &Arc<AtomicBool>) -> Comm {
    let flag = flag.clone();
    let asked = move || flag.load(Ordering::SeqCst);
    Comm::builder().id(id, rank, size).timeout(TIMEOUT).interrupted(asked).connect().unwrap()
}

#[test]
fn a_call_is_interrupted() {
    let (id, alone, begun) = (UniqueId::create().unwrap(), UniqueId::create().unwrap(), Instant::now());
    let error = Comm::builder().id(&alone, 0, 2).timeout(TIMEOUT).interrupted(|| true).connect().unwrap_err();
    assert!(error.code == Code::Aborted && error.text.contains("mdp_comm_create was interrupted on rank 0"), "{error}");
    let error = Comm::builder().id(&alone, 0, 2).timeout(TIMEOUT).interrupted(|| panic!("on purpose")).connect().unwrap_err();
    assert_eq!(error.code, Code::Aborted);

    let come = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let flag = Arc::new(AtomicBool::new(true));
            let comm = stoppable(&id, (0, 2), &flag);
            let request = comm.start_barrier().unwrap();
            assert_eq!(request.wait().unwrap_err().code, Code::Aborted);
            assert!(!request.wait_timeout(TIMEOUT).unwrap());
            flag.store(false, Ordering::SeqCst);
            come.wait();
            request.wait().unwrap(); // nothing was lost
            let pending = comm.start_all_reduce(vec![1f32; 4], megadp::Op::Sum).unwrap();
            flag.store(true, Ordering::SeqCst);
            assert_eq!(pending.wait().unwrap_err().code, Code::Aborted);
            assert!(comm.failure().unwrap().is_none());
            assert_eq!(comm.all_reduce(&mut [1f32; 4], megadp::Op::Sum).unwrap_err().code, Code::Aborted);
            let error = comm.split(Some(0), 0).unwrap_err();
            assert_eq!((error.code, error.rank), (Code::Aborted, Some(0)));
        });
        scope.spawn(|| {
            let comm = stoppable(&id, (1, 2), &Arc::default());
            come.wait();
            comm.barrier().unwrap();
            while comm.failure().unwrap().is_none() {
                thread::sleep(Duration::from_millis(1)); // the news comes by itself
            }
            assert_eq!(comm.barrier().unwrap_err().rank, Some(0));
        });
    });
    assert!(begun.elapsed() < TIMEOUT);
}

#[test]
fn gradients_keep_the_closure_that_their_waits_ask() {
    let flag = Arc::new(AtomicBool::default());
    let gradients = {
        let comm = stoppable(&UniqueId::create().unwrap(), (0, 1), &flag);
        register(&comm, &Buffer::builder(), &[small("w")]).gradients()
    };
    assert_eq!(Arc::strong_count(&flag), 2); // the closure has the other one
    gradients.wait(0).unwrap();
    drop(gradients);
    assert_eq!(Arc::strong_count(&flag), 1);
}
