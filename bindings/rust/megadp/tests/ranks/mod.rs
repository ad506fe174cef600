// SPDX-License-Identifier: Apache-2.0
//! Ranks for tests: as threads of this process, and as processes under `megadp run` (MEGADP_PROGRAM names it).
#![allow(dead_code)] // each test program uses a part

use megadp::{Buffer, BufferBuilder, Comm, Param, UniqueId};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use std::{env, thread};

/// Generous: what is tested is that things end long before.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Calls `rank` on that many threads, each with a communicator of its own, and gives what they return.
pub fn threads<R: Send>(size: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    let id = UniqueId::create().unwrap();
    thread::scope(|scope| {
        let start = |number| {
            let rank = &rank;
            scope.spawn(move || rank(Comm::builder().id(&id, number, size).timeout(TIMEOUT).connect().unwrap()))
        };
        let running: Vec<_> = (0..size).map(start).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A world of one rank.
pub fn alone() -> Comm {
    threads(1, |comm| comm).pop().unwrap()
}

pub fn register(comm: &Comm, builder: &BufferBuilder, params: &[Param]) -> Buffer {
    builder.register(comm, params).unwrap()
}

pub fn small(name: &str) -> Param {
    Param::new(name, &[4])
}

fn run(size: usize, program: PathBuf, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let megadp = env::var_os("MEGADP_PROGRAM").expect("MEGADP_PROGRAM names the megadp program");
    let mut command = Command::new(megadp);
    command.args(["run", "--no-prefix", "-n", &size.to_string(), "--"]).arg(program).args(arguments);
    command.envs(environment.iter().copied()).output().unwrap()
}

fn text_of(output: Output) -> (bool, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// Runs a function of this test program as the ranks: an ignored test, by its name. Whether all of them ended well, and what they said.
pub fn ranks(size: usize, test: &str, environment: &[(&str, &str)]) -> (bool, String) {
    text_of(run(size, env::current_exe().unwrap(), &["--ignored", "--exact", "--nocapture", test], environment))
}

/// Runs an example as the ranks; its output.
pub fn example(size: usize, name: &str) -> String {
    let here = env::current_exe().unwrap(); // target/debug/deps/this
    let program = here.ancestors().nth(2).unwrap().join("examples").join(name);
    let (ended_well, text) = text_of(run(size, program, &[], &[]));
    assert!(ended_well, "{name} on {size} ranks: {text}");
    text
}

/// The losses that an example printed.
pub fn losses(output: &str) -> Vec<f64> {
    let number = |line: &str| line.strip_prefix("loss ").map(|rest| rest.split(' ').nth(1).unwrap().parse().unwrap());
    output.lines().filter_map(number).collect()
}

/// The largest difference of two trainings' losses.
pub fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!((a.len(), b.len()), (100, 100));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Losses of 1 and 2 ranks, compared with each other and with the reference.
pub fn check_losses(name: &str) -> [String; 2] {
    let outputs = [1, 2].map(|size| example(size, name));
    let [one, two] = [losses(&outputs[0]), losses(&outputs[1])];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/bindings/mlp_losses.json");
    let reference: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let reference: Vec<f64> = reference["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    let (apart, off) = (difference(&one, &two), difference(&one, &reference));
    println!("{name}: first loss {}, last loss {}", one[0], one[99]);
    println!("{name}: 1 and 2 ranks differ by {apart:.1e}, from the reference by {off:.1e}");
    assert!(apart <= 1e-6, "1 and 2 ranks differ by {apart}");
    assert!(off <= 1e-4, "1 rank differs from the reference by {off}");
    outputs
}
