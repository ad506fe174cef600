// SPDX-License-Identifier: Apache-2.0
//! The log callback, in processes of its own: there is one for a process, and what makes the library say something is its environment.
mod ranks;

use megadp::log::{self, Level};
use megadp::{Buffer, Code, Comm, Gradients, Optimizer, StepOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;

/// In a SLURM job, but outside of a step of it, the library tells that it starts a single rank.
fn rank(test: &str) -> String {
    let (ended_well, said) = ranks::ranks(1, test, &[("SLURM_JOB_ID", "1")]);
    assert!(ended_well, "{said}");
    said
}

fn make_it_speak() {
    // `megadp run` says who we are, so its variables must go for SLURM's to count.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MEGADP_")) {
        // SAFETY: the test program runs this test alone, and no other thread reads the environment.
        unsafe { std::env::remove_var(name) };
    }
    Comm::builder().connect().unwrap().barrier().unwrap();
}

#[test]
fn messages_come_and_a_panic_in_the_callback_ends_there() {
    let said = rank("rank_with_a_panicking_callback");
    assert!(said.contains("the callback panics") && said.contains("went on"), "{said}");
}

#[test]
#[ignore = "a rank"]
fn rank_with_a_panicking_callback() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    log::set(|level, text| {
        CALLS.fetch_add(1, Ordering::SeqCst);
        assert!(level != Level::Info || !text.contains("SLURM"), "the callback panics");
    })
    .unwrap();
    make_it_speak();
    assert!(CALLS.load(Ordering::SeqCst) > 0);
    println!("went on");
}

#[test]
fn a_callback_may_replace_itself_and_call_the_library() {
    rank("rank_with_a_callback_that_replaces_itself");
}

#[test]
#[ignore = "a rank"]
fn rank_with_a_callback_that_replaces_itself() {
    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    struct Dropped;
    impl Drop for Dropped {
        fn drop(&mut self) {
            HEARD.lock().unwrap().push("dropped".into());
        }
    }
    let dropped = Dropped;
    log::set(move |_, text| {
        let _ = &dropped;
        HEARD.lock().unwrap().push(text.into());
        log::set(|_, text| HEARD.lock().unwrap().push(format!("second: {text}"))).unwrap();
        assert_eq!(HEARD.lock().unwrap().len(), 1); // not dropped while it runs
        Comm::builder().id(&megadp::UniqueId::create().unwrap(), 0, 1).connect().unwrap().barrier().unwrap();
    })
    .unwrap();
    make_it_speak();
    make_it_speak();
    log::reset().unwrap();
    let heard = HEARD.lock().unwrap();
    assert!(heard[0].contains("SLURM") && heard[1] == "dropped", "{heard:?}");
    assert!(heard[2].starts_with("second: ") && heard[2].contains("SLURM"), "{heard:?}");
}

#[test]
fn a_gradient_that_a_callback_hands_over_inside_of_a_step_is_refused() {
    let (ended_well, said) = ranks::ranks(1, "rank_with_a_callback_that_hands_a_gradient_over", &[]);
    assert!(ended_well, "{said}");
}

/// A step that is skipped tells so at the end of the call.
#[test]
#[ignore = "a rank"]
fn rank_with_a_callback_that_hands_a_gradient_over() {
    static GRADIENTS: OnceLock<Gradients> = OnceLock::new();
    static REFUSED: Mutex<Vec<Option<Code>>> = Mutex::new(Vec::new());
    log::set(|_, _| {
        if let Some(gradients) = GRADIENTS.get() {
            REFUSED.lock().unwrap().push(gradients.put(0, &[1f32; 4]).err().map(|error| error.code));
        }
    })
    .unwrap();
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let comm = Comm::builder().connect().unwrap();
        let mut buffer = ranks::register(&comm, &Buffer::builder().check_finite(), &[ranks::small("w")]);
        let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
        let gradients = GRADIENTS.get_or_init(|| buffer.gradients());
        gradients.put(0, &[f32::NAN; 4]).unwrap();
        let report = optimizer.step(&mut buffer, &StepOptions::default().loss_scale(2.0)).unwrap();
        assert!(report.skipped && *REFUSED.lock().unwrap() == [Some(Code::State)], "{report:?} {REFUSED:?}");
        gradients.put(0, &[1f32; 4]).unwrap(); // after the call it comes as any other
        done.send(optimizer.step(&mut buffer, &StepOptions::default()).unwrap().skipped).unwrap();
    });
    assert_eq!(ended.recv_timeout(ranks::TIMEOUT), Ok(false));
}
