//! Launches by many threads on one stream of a real GPU, each with scratch memory of its own.
//!
//! A launch is several operations: a counter of tiles or the sums of a gradient are cleared in the scratch memory, and
//! then read by kernels. Between those of one thread no other thread's may come.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::sync::{Arc, Barrier, Mutex};

use common::say;
use cudarc::driver::CudaStream;
use kit::{Case, Gpu, deterministic, prefill};
use qkvault_exec::{LoadedPlan, cudarc};

const THREADS: usize = 8;
const ROUNDS: usize = 200;

/// Launches when all other threads do, and counts the rounds whose outputs are not those of a launch alone.
fn differ(stream: &Arc<CudaStream>, plan: &LoadedPlan, mut case: Case, gate: &Barrier, alone: &Mutex<()>) -> usize {
    let alone = {
        let _alone = alone.lock().expect("no panic");
        plan.launch(stream, case.bindings(plan)).expect("it is queued");
        case.download(stream)
    };
    gate.wait();
    let round = |_| {
        case.poison_on(stream);
        gate.wait();
        let launched = plan.launch(stream, case.bindings(plan));
        let found = case.download(stream);
        launched.is_err() || found != alone
    };
    (0..ROUNDS).map(round).filter(|differs| *differs).count()
}

#[test]
fn threads_that_launch_on_one_stream_do_not_mix_the_parts_of_their_launches() {
    let Some(gpu) = Gpu::open() else { return };
    let attentions = [prefill(), deterministic().backward().clone()];
    let plans = attentions.each_ref().map(|attention| gpu.load(attention));
    assert!(plans.iter().all(|plan| plan.workspace() > 0), "these plans have scratch memory");
    let one = gpu.stream.context().new_stream().expect("a stream");
    for kinds in [[0, 0], [1, 1], [0, 1]] {
        let (gate, turn) = (Barrier::new(THREADS), Mutex::new(()));
        let all: Vec<Case> = (0..THREADS).map(|at| Case::on(&one, &attentions[kinds[at % 2]], at as u64)).collect();
        one.synchronize().expect("all operands are there");
        let found: Vec<usize> = std::thread::scope(|scope| {
            let threads = all.into_iter().enumerate().map(|(at, case)| {
                let (one, plan, gate, turn) = (&one, &plans[kinds[at % 2]], &gate, &turn);
                scope.spawn(move || differ(one, plan, case, gate, turn))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        say(&format!("{kinds:?}: of {ROUNDS} launches of each thread differ {found:?}"));
        assert_eq!(found, [0; THREADS], "{kinds:?}");
    }
}
