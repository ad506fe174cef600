// SPDX-License-Identifier: Apache-2.0
//! Steps, views and collectives, each call at least once.
mod ranks;

use megadp::{
    Axes, BucketState, Buffer, BufferBuilder, Code, Comm, DType, Grid, Missing, Norm, Op, Optimizer, Param, ParamGroup, Scaling, Sharding,
    StateKind, StepOptions, Strided,
};
use ranks::{alone, register, small, threads};

#[test]
fn a_step_without_a_norm_has_the_same_bits() {
    threads(2, |comm| {
        let rank = comm.rank().unwrap();
        let train = |builder: BufferBuilder, options: StepOptions| {
            let mut buffer = builder.register(&comm, &[Param::new("w", &[3]), Param::new("b", &[2])]).unwrap();
            let mut optimizer = Optimizer::builder().lr(0.5).create(&buffer).unwrap();
            for step in 0..3 {
                buffer.gradients().put(1, &[(3 * rank + step) as f32, 1.0]).unwrap();
                buffer.gradients().put(0, &[1.0, 2.0 * rank as f32, -4.0]).unwrap();
                let report = optimizer.step(&mut buffer, &options).unwrap();
                assert_eq!((report.unchecked, report.step), (report.grad_norm.is_nan(), step as u64 + 1));
            }
            buffer.verify().unwrap();
            let refused = optimizer.step(&mut buffer, &options.unchecked().loss_scale(2.0)).unwrap_err();
            assert_eq!(refused.code, Code::Invalid);
            [0, 1].map(|param| buffer.param::<f32>(param).unwrap().iter().map(|value| value.to_bits()).collect::<Vec<_>>())
        };
        let expected = train(Buffer::builder(), StepOptions::default());
        assert_eq!(train(Buffer::builder(), StepOptions::default().unchecked()), expected);
        assert_eq!(train(Buffer::builder().no_overlap(), StepOptions::default().unchecked()), expected);
    });
}

#[test]
fn collectives_give_what_they_say() {
    threads(2, |comm| {
        let rank = comm.rank().unwrap();
        let mine = [rank as f32, 10.0];
        let mut both = [0f32; 4];
        comm.all_gather(&mine, &mut both).unwrap();
        assert_eq!(both, [0.0, 10.0, 1.0, 10.0]);
        let mut piece = [0f32; 2];
        comm.reduce_scatter(&both, &mut piece, Op::Sum).unwrap();
        assert_eq!(piece, [2.0 * rank as f32, 20.0]);
        let mut swapped = [0i64; 2];
        comm.all_to_all(&[10 * rank as i64, 10 * rank as i64 + 1], &mut swapped).unwrap();
        assert_eq!(swapped, [rank as i64, 10 + rank as i64]);
        let mut data = [rank as u8; 3];
        comm.broadcast(&mut data, 1).unwrap();
        assert_eq!(data, [1; 3]);
        let mut largest = [rank as f64];
        comm.all_reduce(&mut largest, Op::Max).unwrap();
        assert_eq!(largest, [1.0]);

        let mut uneven = [0f32; 3];
        comm.all_gather_v(&vec![rank as f32; rank + 1], &mut uneven, &[1, 2]).unwrap();
        assert_eq!(uneven, [0.0, 1.0, 1.0]);
        let mut own = vec![0f32; rank + 1];
        comm.reduce_scatter_v(&uneven, &mut own, &[1, 2], Op::Sum).unwrap();
        assert_eq!(own, vec![2.0 * rank as f32; rank + 1]);
        let mut column = vec![9i64; 2 * (rank + 1)];
        comm.all_to_all_v(&[rank as i64; 3], &[1, 2], &mut column, &[rank as u64 + 1; 2]).unwrap();
        assert_eq!(column[rank..rank + 2], [[0, 1], [0, 1]][rank]);
        let mut other = [0f64];
        comm.send_recv(&[rank as f64], Some(1 - rank), &mut other, Some(1 - rank)).unwrap();
        assert_eq!(other, [1.0 - rank as f64]);
        if rank == 0 {
            comm.send(&[7u8; 3], 1).unwrap();
        } else {
            let mut got = [0u8; 3];
            comm.recv(&mut got, 0).unwrap();
            assert_eq!(got, [7; 3]);
        }
        comm.send_recv(&[1f32], if rank == 0 { Some(1) } else { None }, &mut [0f32], if rank == 1 { Some(0) } else { None }).unwrap();
        assert_eq!(comm.all_gather_v(&[1f32], &mut [0f32], &[1]).unwrap_err().code, Code::Invalid);
        assert_eq!(comm.send(&[1f32], rank).unwrap_err().code, Code::Invalid);

        let pending = [
            comm.start_all_gather(mine.to_vec(), vec![0.0; 4]).unwrap(),
            comm.start_reduce_scatter(both.to_vec(), vec![0.0; 2], Op::Avg).unwrap(),
            comm.start_all_to_all(mine.to_vec(), vec![0.0; 2]).unwrap(),
            comm.start_broadcast(mine.to_vec(), 0).unwrap(),
        ];
        let results = pending.map(|pending| pending.wait().unwrap());
        assert_eq!(results[0], both);
        assert_eq!(results[1], [rank as f32, 10.0]);
        assert_eq!(results[2], [[0.0, 1.0], [10.0, 10.0]][rank]);
        assert_eq!(results[3], [0.0, 10.0]);
        drop(comm.start_all_reduce(vec![1f32; 1000], Op::Sum).unwrap()); // goes on without us
        comm.barrier().unwrap();
    });
}

#[test]
fn a_barrier_can_be_waited_for_in_slices() {
    threads(2, |comm| {
        if comm.rank().unwrap() == 0 {
            let barrier = comm.start_barrier().unwrap();
            let mut asked = 0;
            assert!(!barrier.wait_while(|| std::mem::replace(&mut asked, 1) == 0).unwrap()); // twice, and the other rank is not there
            comm.split(Some(0), 0).unwrap(); // tells it to come, over the control plane
            barrier.wait().unwrap();
            assert!(barrier.test().unwrap());
        } else {
            comm.split(Some(0), 0).unwrap();
            comm.barrier().unwrap();
        }
    });
}

#[test]
fn parts_know_their_ranks_in_the_world() {
    threads(3, |comm| {
        let rank = comm.rank().unwrap();
        let part = comm.split(Some(u32::from(rank == 1)), -(rank as i32)).unwrap().unwrap();
        let members: Vec<_> = (0..part.size().unwrap()).map(|rank| part.world_rank(rank).unwrap()).collect();
        assert_eq!(members, [vec![2, 0], vec![1]][usize::from(rank == 1)]);
    });
}

#[test]
fn a_request_can_be_waited_for_in_slices() {
    threads(2, |comm| {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
        buffer.gradients().put(0, &[1f32; 4]).unwrap();
        if comm.rank().unwrap() == 0 {
            let syncing = buffer.start_sync().unwrap();
            assert!(!syncing.test().unwrap()); // the other rank waits for our barrier
            assert!(!syncing.wait_timeout(std::time::Duration::from_millis(1)).unwrap());
            drop(syncing); // and asked again, it gives the same outcome
            let part = comm.split(Some(0), 0);
            assert!(part.unwrap().is_some());
        } else {
            // A split goes over the control plane: it tells that rank 0 has seen its request pending.
            comm.split(Some(0), 0).unwrap();
        }
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        let (report, request) = optimizer.start_step(&mut buffer, &StepOptions::default()).unwrap();
        assert_eq!(report.step, 1);
        let mut asked = 0;
        while !request.wait_while(|| std::mem::replace(&mut asked, 1) == 0).unwrap() {}
        assert!(request.test().unwrap());
        buffer.wait_all().unwrap();
    });
}

#[test]
fn microbatches_and_uses_are_summed() {
    let comm = alone();
    let mut buffer = register(&comm, &Buffer::builder(), &[small("once"), small("tied").uses_per_step(2), small("never")]);
    let gradients = buffer.gradients();
    for last in [false, true] {
        buffer.begin_microbatch(last).unwrap();
        gradients.put(0, &[1f32; 4]).unwrap();
        gradients.put(1, &[1f64; 4]).unwrap();
        gradients.put(1, Strided::new(&[1f32, 2.0, 3.0, 4.0], 3, &[-1])).unwrap();
        gradients.skip(2).unwrap();
        assert_eq!(gradients.put(1, &[1f32; 4]).unwrap_err().code, Code::State);
    }
    let synced = buffer.sync().unwrap();
    assert_eq!(synced.grad::<f32>(0).unwrap(), [2.0; 4]);
    assert_eq!(synced.grad::<f32>(1).unwrap(), [10.0, 8.0, 6.0, 4.0]);
    assert_eq!(synced.buffer().stats().unwrap().syncs, 1);
    let mut optimizer = Optimizer::builder().lr(0.5).create(&buffer).unwrap();
    // A token of another buffer is refused, and costs the step nothing.
    let mut other = register(&comm, &Buffer::builder().missing(Missing::Zero), &[small("x")]);
    assert_eq!(optimizer.step(other.sync().unwrap(), &StepOptions::default()).unwrap_err().code, Code::Invalid);
    let report = optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
    assert!(report.step == 1 && !report.skipped && !report.clipped && report.clip_factor == 1.0);
    assert_eq!(buffer.param::<f32>(2).unwrap(), [0.0; 4]);
    assert!(buffer.param::<f32>(1).unwrap().iter().all(|value| (value + 0.5).abs() < 1e-6));
    let bucket = buffer.bucket(0).unwrap();
    assert_eq!(bucket.state, BucketState::Whole);
    assert!(bucket.reduce_begin_ns <= bucket.reduce_end_ns && bucket.gather_begin_ns <= bucket.gather_end_ns);
    assert!(buffer.bucket(99).is_err());
}

#[test]
fn a_buffer_is_on_a_communicator_or_a_grid_and_knows_its_names() {
    threads(2, |comm| {
        let grid = Grid::data_parallel(&comm).unwrap();
        let params = [small("first"), small("frozen").frozen(), small("last")];
        let builder = Buffer::builder().bucket_elements(1);
        for mut buffer in [builder.register(&comm, &params).unwrap(), builder.register(&grid, &params).unwrap()] {
            assert_eq!((buffer.len(), buffer.buckets().unwrap()), (3, 2));
            assert_eq!(["last", "frozen", "first"].map(|name| buffer.find(name).unwrap()), [2, 1, 0]);
            for param in ["last", "first"].map(|name| buffer.find(name).unwrap()) {
                buffer.gradients().put(param, &[comm.rank().unwrap() as f32; 4]).unwrap();
            }
            // The mean of 0 and 1 in 8 elements: the ranks are data parallel.
            assert_eq!(buffer.sync().unwrap().grad_norm(None).unwrap(), 2f64.sqrt());
        }
    });
}

#[test]
fn a_step_syncs_where_nobody_has() {
    threads(2, |comm| {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
        let mut other = register(&comm, &Buffer::builder(), &[small("w")]);
        let mut optimizer = Optimizer::builder().lr(0.5).create(&buffer).unwrap();
        // A buffer of another optimizer is not synced either.
        assert_eq!(optimizer.step(&mut other, &StepOptions::default()).unwrap_err().code, Code::Invalid);
        other.gradients().put(0, &[1f32; 4]).unwrap();
        for step in 1..=2 {
            buffer.gradients().put(0, &[comm.rank().unwrap() as f32; 4]).unwrap();
            let report = optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
            assert_eq!((report.step, report.grad_norm), (step, 1.0));
        }
        assert_eq!(buffer.stats().unwrap().syncs, 2);
        buffer.gradients().put(0, &[f32::INFINITY; 4]).unwrap();
        assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap_err().code, Code::Numeric);
        assert_eq!(buffer.grad_mut::<f32>(0).unwrap()[3], f32::INFINITY); // the next step has begun
        buffer.zero_grad().unwrap();
        buffer.grad_mut::<f32>(0).unwrap().ready().unwrap();
        let (report, request) = optimizer.start_step(&mut buffer, &StepOptions::default()).unwrap();
        assert_eq!(report.step, 3);
        request.wait().unwrap();
    });
}

#[test]
fn a_broadcast_goes_on_and_is_waited_for_where_parameters_are_needed() {
    threads(2, |comm| {
        const LONG: usize = 1 << 20;
        let mut buffer = register(&comm, &Buffer::builder(), &[Param::new("w", &[LONG])]);
        buffer.write_param(0, &vec![comm.rank().unwrap() as f32 + 1.0; LONG]).unwrap();
        let broadcast = buffer.start_broadcast(1).unwrap();
        while !broadcast.test().unwrap() && !broadcast.wait_timeout(std::time::Duration::from_millis(1)).unwrap() {}
        broadcast.wait().unwrap();
        assert_eq!(buffer.param::<f32>(0).unwrap()[LONG - 1], 2.0);
        for round in 0..10 {
            buffer.param_mut::<f32>(0).unwrap().fill(comm.rank().unwrap() as f32 + round as f32);
            buffer.start_broadcast(round % 2).unwrap(); // dropped, it goes on without us
            let mut copy = vec![0f32; LONG];
            if round < 5 {
                buffer.read_param(0, &mut copy).unwrap();
            } else {
                copy.copy_from_slice(buffer.param(0).unwrap());
            }
            assert!(copy.iter().all(|&value| value == (round % 2 + round) as f32));
        }
    });
}

#[test]
fn views_and_copies_show_the_same_memory() {
    threads(2, |comm| {
        let params = [Param::new("matrix", &[2, 3]), Param::new("frozen", &[5]).frozen(), Param::new("empty", &[0, 7])];
        let mut buffer = register(&comm, &Buffer::builder(), &params);
        assert_eq!((buffer.len(), buffer.is_empty()), (3, false));
        let column_major = [1f64, 4.0, 2.0, 5.0, 3.0, 6.0];
        buffer.write_param(0, Strided::new(&column_major, 0, &[1, 2])).unwrap();
        assert_eq!(buffer.param::<f32>(0).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        buffer.param_mut::<f32>(0).unwrap()[0] = comm.rank().unwrap() as f32;
        let error = buffer.verify().unwrap_err();
        assert_eq!((error.code, error.param), (Code::Desync, Some(0)));
        buffer.broadcast(1).unwrap();
        buffer.verify().unwrap();
        let mut copy = [0f64; 6];
        buffer.read_param(0, &mut copy).unwrap();
        assert_eq!(copy, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!(buffer.read_param(0, &mut [0f32; 5]).is_err());
        assert_eq!(buffer.param::<f32>(1).unwrap_err().code, Code::State);
        assert_eq!(buffer.param::<f32>(2).unwrap(), [0f32; 0]);
        let owned = buffer.owned().unwrap();
        let elements: usize = owned.iter().map(|range| range.elements.len()).sum();
        let mut sum = [elements as i64];
        comm.all_reduce(&mut sum, Op::Sum).unwrap();
        assert_eq!(sum, [6]);
    });
}

#[test]
fn reduced_gradients_are_measured_and_scaled() {
    threads(2, |comm| {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("a"), small("b"), small("never")]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        let gradients = buffer.gradients();
        for step in 1..=2 {
            gradients.put(0, &[2f32; 4]).unwrap();
            gradients.put(1, &[0f32, 0.0, 3.0, 0.0]).unwrap();
            gradients.skip(2).unwrap();
            let mut synced = buffer.sync().unwrap();
            assert_eq!((synced.grad_norm(None).unwrap(), synced.grad_norm(Some(&[1])).unwrap()), (5.0, 3.0));
            assert_eq!(synced.grad_norm(Some(&[])).unwrap(), 0.0);
            synced.scale_grads(0.5, Some(&[0])).unwrap();
            synced.grads_changed().unwrap();
            assert_eq!(synced.grad_norm(Some(&[1, 0])).unwrap(), 13f64.sqrt());
            assert!(synced.grad_norm(Some(&[1, 1])).unwrap_err().text.contains("listed already"));
            assert_eq!(synced.scale_grads(f64::NAN, None).unwrap_err().code, Code::Invalid);
            let report = optimizer.step(synced, &StepOptions::default()).unwrap();
            assert_eq!(report.grad_norm, 13f64.sqrt());
            assert_eq!([0, 1, 2].map(|param| optimizer.steps(param).unwrap()), [step, step, 0]);
        }
        assert_eq!(optimizer.steps(3).unwrap_err().code, Code::Invalid);
        optimizer.set_steps(100, None).unwrap();
        assert_eq!([0, 1, 2].map(|param| optimizer.steps(param).unwrap()), [100; 3]);
        optimizer.set_steps(9, Some(&[9, 8, 7])).unwrap();
        assert_eq!([0, 1, 2].map(|param| optimizer.steps(param).unwrap()), [9, 8, 7]);
        assert!(optimizer.set_steps(8, Some(&[9, 8, 7])).unwrap_err().text.contains("at most taken"));
        assert!(optimizer.set_steps(8, Some(&[])).unwrap_err().text.contains("count is 0"));
        assert!(optimizer.info().unwrap().starts_with(r#"{"rule":"AdamW","steps":9,"lr":0.001,"#));
    });
}

#[test]
fn gradients_are_divided_by_tokens() {
    let comm = alone();
    for scaling in [Scaling::Tokens, Scaling::Sum] {
        let mut buffer = register(&comm, &Buffer::builder().scaling(scaling), &[small("w").tie("words")]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        let told = buffer.tokens(4.0);
        assert_eq!(told.is_ok(), scaling == Scaling::Tokens);
        assert_eq!(buffer.tokens(f64::NAN).unwrap_err().code, Code::Invalid);
        buffer.gradients().put(0, &[6f32; 4]).unwrap();
        let report = optimizer.step(&mut buffer, &StepOptions::default().grad_divisor(2.0)).unwrap();
        assert_eq!(report.grad_norm, if scaling == Scaling::Tokens { 1.5 } else { 6.0 });
    }
    let both = [small("a").tie("words"), small("b").tie("words")];
    let refused = Buffer::builder().register(&comm, &both).err().unwrap();
    assert!(refused.code == Code::Invalid && refused.text.contains("same tie as parameter 0 'a'"), "{refused}");
    assert_eq!(Buffer::builder().register(&comm, &[small("w").tie("a\0b")]).err().unwrap().code, Code::Invalid);
}

#[test]
fn gradients_are_sent_as_bf16() {
    threads(2, |comm| {
        let number = comm.rank().unwrap();
        let sum = Buffer::builder().scaling(Scaling::Sum).wire_dtype(DType::Bf16);
        for sharding in [Sharding::Zero0, Sharding::Zero1, Sharding::Zero2] {
            let mut buffer = register(&comm, &sum.clone().sharding(sharding), &[Param::new("w", &[1])]);
            buffer.gradients().put(0, &[[1.001f32, 1.006][number]]).unwrap();
            assert_eq!(buffer.sync().unwrap().grad_norm(None).unwrap(), 2.0078125); // of 1 and 1.0078125, which bf16 has; the sum it has not
        }
        let mut buffer = register(&comm, &sum.clone().error_feedback(), &[Param::new("w", &[1])]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        for expected in [2.0, 2.015625] {
            buffer.gradients().put(0, &[1.003f32]).unwrap();
            assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap().grad_norm, expected);
        }
        let feedback_of =
            |builder: &BufferBuilder| megadp::plan(&Grid::builder(), 2, 0, builder, None, &[small("w")]).unwrap().feedback_bytes;
        assert!(feedback_of(&sum) == 0 && feedback_of(&sum.clone().error_feedback()) > 0);
    });
}

#[test]
fn gradients_are_checked() {
    threads(2, |comm| {
        let number = comm.rank().unwrap();
        let mut buffer = register(&comm, &Buffer::builder().check_finite(), &[small("w"), small("b")]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        let gradients = buffer.gradients();
        let put = |value: f32| {
            gradients.put(1, &[1.0, 1.0, if number == 1 { value } else { 1.0 }, 1.0]).unwrap();
            gradients.put(0, &[1f32; 4]).unwrap();
        };
        put(f32::NAN);
        let error = buffer.sync().map(|_| ()).unwrap_err();
        assert_eq!((error.code, error.param, error.rank), (Code::Numeric, Some(1), Some(1)));
        assert!(error.text.contains("'b'"), "{error}");
        assert!(optimizer.step(&mut buffer, &StepOptions::default().loss_scale(2.0)).unwrap().skipped);
        put(f32::INFINITY);
        assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap_err().param, Some(1));
        buffer.begin_microbatch(true).unwrap();
        put(1.0);
        assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap().step, 1);
    });
    let mut buffer = register(&alone(), &Buffer::builder().check_large(), &[small("w")]);
    let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
    for value in [1f32; 100].into_iter().chain([5.0, 20.0]) {
        buffer.gradients().put(0, &[value; 4]).unwrap();
        optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
    }
    assert_eq!(buffer.stats().unwrap().large_gradients, 1);
}

#[test]
fn buckets_fill_in_the_order_of_use() {
    threads(2, |comm| {
        let mut order = vec![0; 3];
        for attempt in 0..2 {
            let params = [0, 1, 2].map(|param| small(["c", "b", "a"][param]).use_order(order[param]));
            let mut buffer = register(&comm, &Buffer::builder().bucket_elements(1), &params);
            assert_eq!(buffer.use_order().unwrap_err().code, Code::State);
            (0..3).for_each(|param| buffer.gradients().put(param, &[1f32; 4]).unwrap());
            let _ = buffer.sync().unwrap();
            let ready = [0, 1, 2].map(|bucket| buffer.bucket(bucket).unwrap().ready_ns);
            assert_eq!(ready.is_sorted(), attempt == 1, "{ready:?}");
            order = buffer.use_order().unwrap();
            assert_eq!(order, [2, 1, 0]);
        }
    });
}

#[test]
fn norms_and_zeros_of_sets_and_ways_of_clipping() {
    let comm = alone();
    for (norm, clip, value, reported, seen) in [(Norm::Inf, 3.0, 0.0, 12.0, 0.75), (Norm::L2, 0.0, 2.0, 13.0, 2.0)] {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("a"), small("b"), small("c")]);
        let mut optimizer = Optimizer::builder().norm(norm).max_grad_norm(clip).max_grad_value(value).create(&buffer).unwrap();
        for (param, values) in [(2, [0f32; 4]), (1, [12.0, 0.0, 0.0, 0.0]), (0, [3.0, -4.0, 0.0, 0.0])] {
            buffer.gradients().put(param, &values).unwrap();
        }
        let synced = buffer.sync().unwrap();
        let sets = synced.grad_summaries(Some(&[Some(0), Some(1), None]), 2).unwrap();
        assert_eq!((sets[0].norm, sets[0].inf_norm, sets[0].zeros, sets[0].nonfinite), (5.0, 4.0, 2, 0));
        assert_eq!((sets[1].norm, sets[1].inf_norm, sets[1].zeros, sets[1].nonfinite), (12.0, 12.0, 3, 0));
        assert_eq!(synced.grad_summaries(None, 1).unwrap()[0].zeros, 9);
        for wrong in
            [synced.grad_summaries(Some(&[Some(0)]), 1), synced.grad_summaries(Some(&[Some(1); 3]), 1), synced.grad_summaries(None, 0)]
        {
            assert_eq!(wrong.unwrap_err().code, Code::Invalid);
        }
        let report = optimizer.step(synced, &StepOptions::default()).unwrap();
        assert_eq!(report.grad_norm, reported);
        assert!((10.0 * optimizer.state(&buffer, 0, StateKind::ExpAvg).unwrap()[0] - seen).abs() < 1e-5);
    }
}

#[test]
fn state_is_stored_small_and_rounded_by_a_seed() {
    let comm = alone();
    let values = |seed| {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("a")]);
        let mut optimizer = Optimizer::builder().bf16_state().stochastic_state().no_master().seed(seed).create(&buffer).unwrap();
        for _ in 0..20 {
            buffer.gradients().put(0, &[1f32, 0.3, -2.0, 0.7]).unwrap();
            let synced = buffer.sync().unwrap();
            optimizer.step(synced, &StepOptions::default()).unwrap();
        }
        let info = optimizer.info().unwrap();
        assert!(info.contains(&format!("\"no_master\":true,\"seed\":{seed},")), "{info}");
        assert_eq!(optimizer.state(&buffer, 0, StateKind::ExpAvg).unwrap_err().code, Code::Invalid);
        assert_eq!(optimizer.state(&buffer, 0, StateKind::Master).unwrap_err().code, Code::Invalid);
        let mut out = [0f32; 4];
        buffer.read_param(0, &mut out).unwrap();
        out
    };
    assert_eq!(values(u64::MAX), values(u64::MAX));
    let buffer = register(&comm, &Buffer::builder(), &[small("a")]);
    assert_eq!(Optimizer::builder().seed(1).create(&buffer).unwrap_err().code, Code::Invalid);
}

#[test]
fn groups_and_state_are_the_optimizers() {
    let comm = alone();
    let mut buffer = register(&comm, &Buffer::builder(), &[small("still"), small("moves").param_group(1)]);
    let groups = [ParamGroup::new().lr(0.0), ParamGroup::new()];
    let mut optimizer =
        Optimizer::builder().lr(0.1).betas(0.0, 0.5).eps(1e-6).param_groups(groups).max_grad_norm(1.0).create(&buffer).unwrap();
    for step in 1..=2 {
        buffer.gradients().put(0, &[0f32; 4]).unwrap();
        buffer.gradients().put(1, &[2f32; 4]).unwrap();
        let report = optimizer.step(&mut buffer, &StepOptions::default().loss_scale(2.0)).unwrap();
        assert_eq!((report.step, report.loss_scale, report.clipped), (step, 2.0, true));
        assert!((report.grad_norm - 2.0).abs() < 1e-9);
    }
    assert_eq!(buffer.param::<f32>(0).unwrap(), [0.0; 4]);
    assert!(buffer.param::<f32>(1).unwrap()[0] < -0.1);
    let moment = optimizer.state(&buffer, 1, StateKind::ExpAvg).unwrap();
    assert!(moment.len() == 4 && (moment[0] - 0.5).abs() < 1e-5, "{moment:?}");
    assert!((optimizer.state(&buffer, 1, StateKind::ExpAvgSq).unwrap()[0] - 0.1875).abs() < 1e-5);
    optimizer.state_mut(&mut buffer, 1, StateKind::Master).unwrap().fill(7.0);
    optimizer.set_param_group(1, ParamGroup::new().lr(0.0)).unwrap();
    buffer.gradients().put(0, &[0f32; 4]).unwrap();
    buffer.gradients().put(1, &[2f32; 4]).unwrap();
    optimizer.step(&mut buffer, &StepOptions::default().lr(0.0)).unwrap();
    assert_eq!(buffer.param::<f32>(1).unwrap(), [7.0; 4]);
    let other = register(&comm, &Buffer::builder(), &[small("x")]);
    assert_eq!(optimizer.state(&other, 0, StateKind::Master).unwrap_err().code, Code::Invalid);
}

#[test]
fn a_master_written_before_the_first_step_counts() {
    let comm = alone();
    for dtype in [DType::F32, DType::Bf16] {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("w").dtype(dtype)]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        optimizer.state_mut(&mut buffer, 0, StateKind::Master).unwrap().fill(7.0);
        buffer.gradients().put(0, &[1f32; 4]).unwrap();
        optimizer.step(&mut buffer, &StepOptions::default().lr(0.0)).unwrap();
        let mut out = [0f32; 4];
        buffer.read_param(0, &mut out).unwrap();
        assert_eq!(out, [7.0; 4]);
    }
}

#[test]
fn what_is_said_is_meant_literally_and_what_is_not_is_the_optimizers() {
    let comm = alone();
    let params = [small("decays"), small("does not").param_group(1), small("decays less").param_group(2)];
    let mut buffer = register(&comm, &Buffer::builder(), &params);
    let groups = [ParamGroup::new(), ParamGroup::new().weight_decay(0.0), ParamGroup::new().weight_decay(0.25)];
    let mut optimizer = Optimizer::builder().lr(0.5).weight_decay(0.5).param_groups(groups).create(&buffer).unwrap();
    for param in 0..3 {
        buffer.write_param(param, &[1f32; 4]).unwrap();
        buffer.gradients().put(param, &[0f32; 4]).unwrap();
    }
    optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
    assert_eq!([0, 1, 2].map(|param| buffer.param::<f32>(param).unwrap()[3]), [0.75, 1.0, 0.875]);

    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let mut optimizer = Optimizer::builder().lr(0.0).betas(0.0, 0.0).create(&buffer).unwrap();
    for gradient in [1f32, 3.0] {
        buffer.gradients().put(0, &[gradient; 4]).unwrap();
        optimizer.step(&mut buffer, &StepOptions::default()).unwrap();
        assert_eq!(optimizer.state(&buffer, 0, StateKind::ExpAvg).unwrap(), [gradient; 4]); // nothing of the one before
    }
    assert_eq!(buffer.param::<f32>(0).unwrap(), [0.0; 4]);
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let comm = alone();
    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
    buffer.gradients().put(0, &[1.0, f32::NAN, 1.0, 1.0]).unwrap();
    let error = optimizer.step(&mut buffer, &StepOptions::default()).unwrap_err();
    assert_eq!(error.code, Code::Numeric);
    buffer.zero_grad().unwrap();
    buffer.gradients().put(0, &[1f32; 4]).unwrap();
    assert_eq!(optimizer.step(&mut buffer, &StepOptions::default()).unwrap().step, 1);
}

#[test]
fn grids_cut_the_world() {
    threads(2, |comm| {
        let grid = Grid::builder().tp(2).create(&comm).unwrap();
        assert_eq!(grid.coords(Axes::TP).unwrap(), (comm.rank().unwrap(), 2));
        assert_eq!(grid.coords(Axes::DP).unwrap(), (0, 1));
        assert_eq!(grid.coords(Axes::EP).unwrap_err().code, Code::Invalid);
        assert_eq!(grid.comm(Axes::TP | Axes::DP).unwrap().size().unwrap(), 2);
        let sharded = [small("half").sharded(0, 1), small("same").replicated()];
        assert_eq!(Buffer::builder().register(&grid, &sharded).unwrap().len(), 2);
        assert_eq!(Buffer::builder().register(&grid, &[small("unsaid")]).unwrap_err().code, Code::Invalid);
    });
    let json = megadp::plan_json(&Grid::builder(), 2, &Buffer::builder(), None, &[small("w")]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json.is_object(), "{json}");
}

#[test]
fn an_event_loop_sees_requests_finish() {
    let comm = alone();
    let fd = comm.event_fd().unwrap();
    assert!(std::os::fd::AsRawFd::as_raw_fd(&fd) >= 0);
    let pending = comm.start_all_reduce(vec![1f32], Op::Sum).unwrap();
    assert!(pending.wait_timeout(ranks::TIMEOUT).unwrap() && pending.test().unwrap());
}

#[test]
fn ids_travel_as_bytes() {
    let id = megadp::UniqueId::create().unwrap();
    let copy = megadp::UniqueId::from_bytes(id.to_bytes());
    assert_eq!(format!("{copy:?}"), "UniqueId(..)");
    assert_eq!(Comm::builder().id(&copy, 0, 1).connect().unwrap().size().unwrap(), 1);
    assert_eq!(Comm::builder().id(&copy, usize::MAX, 1).connect().unwrap_err().code, Code::Invalid);
}
