// SPDX-License-Identifier: Apache-2.0
//! Ranks, here threads, that meet by a closure which gathers bytes.
use megadp::{Code, Comm, Op};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

type Gather = Box<dyn Fn(&[u8]) -> Option<Vec<Vec<u8>>> + Send + Sync>;

fn board(size: usize) -> Vec<Gather> {
    let parts = Arc::new(Mutex::new(vec![Vec::new(); size]));
    let barrier = Arc::new(Barrier::new(size));
    let gather = |rank: usize| -> Gather {
        let (parts, barrier) = (Arc::clone(&parts), Arc::clone(&barrier));
        Box::new(move |mine| {
            parts.lock().unwrap()[rank] = mine.to_vec();
            barrier.wait();
            let all = parts.lock().unwrap().clone();
            barrier.wait();
            Some(all)
        })
    };
    (0..size).map(gather).collect()
}

fn meet(gathers: Vec<Gather>, timeout: Duration) -> Vec<Result<(usize, f32), Code>> {
    let size = gathers.len();
    let ranks: Vec<_> = gathers
        .into_iter()
        .enumerate()
        .map(|(rank, gather)| {
            std::thread::spawn(move || {
                let comm = Comm::builder().timeout(timeout).bootstrap(rank, size, gather).connect().map_err(|error| error.code)?;
                let mut sum = [rank as f32];
                comm.all_reduce(&mut sum, Op::Sum).map_err(|error| error.code)?;
                Ok((comm.rank().unwrap(), sum[0]))
            })
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn ranks_meet() {
    assert_eq!(meet(board(3), Duration::from_secs(60)), [Ok((0, 3.0)), Ok((1, 3.0)), Ok((2, 3.0))]);
}

#[test]
fn a_failure_is_heard() {
    let mut gathers = board(2);
    let right = gathers.pop().unwrap();
    gathers.push(Box::new(move |mine| right(mine).map(|parts| parts[..1].to_vec())));
    assert_eq!(meet(gathers, Duration::from_secs(60)), [Err(Code::Backend), Err(Code::Backend)]);
}

#[test]
fn the_timeout_holds_while_the_closure_blocks() {
    let sleeper = |_: &[u8]| -> Option<Vec<Vec<u8>>> {
        std::thread::sleep(Duration::from_secs(20));
        None
    };
    assert_eq!(meet(vec![Box::new(sleeper), Box::new(sleeper)], Duration::from_millis(500)), [Err(Code::Timeout), Err(Code::Timeout)]);
}
