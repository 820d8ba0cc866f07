//! Launches of one plan by many threads at the same moment on a real GPU: each must write its own output.
//!
//! cuDNN's documentation says that threads with a handle each may launch at once, and NVIDIA has said elsewhere that
//! plans have limits; `qkvault_sys::ExecutionPlan` has a lock.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use common::say;
use cudarc::driver::{CudaSlice, CudaStream};
use kit::kernels::poison;
use kit::{Gpu, prefill};
use qkvault_exec::{Args, Bound, LaunchError, LoadedPlan, cudarc};
use qkvault_graph::{Role, Valid};
use qkvault_reference::{Buffer, Inputs, OutputTolerance, POISON, compare, forward};

const THREADS: usize = 8;

/// Launches of each thread in a round, one after the other without a wait.
const LAUNCHES: usize = 8;

/// How a bound plan is launched.
type Queue<'a> = &'a (dyn Fn(&mut Bound<'static>, &Arc<CudaStream>) -> Result<(), LaunchError> + Sync);

/// Outputs that are not what they must be.
#[derive(Debug, Default, PartialEq)]
struct Wrong {
    /// Whole outputs that are still poison.
    never_written: usize,
    /// Others.
    differ: usize,
    /// Those of either kind that are right when the GPU is idle.
    late: usize,
    refused: Vec<String>,
}

/// What one thread launches with: data of its own, and what they must give.
struct Own {
    stream: Arc<CudaStream>,
    inputs: [Arc<CudaSlice<u8>>; 3],
    expected: Vec<u8>,
}

impl Own {
    /// Data of a seed, whose output the oracle has found right when nothing else ran.
    fn new(gpu: &Gpu, plan: &LoadedPlan, attention: &Valid, seed: u64) -> Own {
        let stream = gpu.stream.context().new_stream().expect("a stream");
        let mut inputs = Inputs::random(attention, seed).expect("random operands");
        inputs.set_f32(Role::Scale, attention.default_scale());
        let upload = |role| {
            let bytes = inputs.buffer(role).expect("every input is there").bytes();
            Arc::new(stream.clone_htod(bytes).expect("memory"))
        };
        let uploaded = [Role::Q, Role::K, Role::V].map(upload);
        let mut own = Own { stream, inputs: uploaded, expected: Vec::new() };
        let mut bound = own.bind(plan);
        bound.launch(&own.stream).expect("it is queued");
        own.expected = own.output(&mut bound);
        let found = Buffer::new(attention.o.dtype, own.expected.clone()).expect("whole elements");
        let all = forward(attention, &inputs).expect("the oracle can do it");
        let found =
            compare(all.get(Role::O).expect("it has O"), &found, OutputTolerance::for_role(Role::O, attention.o.dtype));
        assert!(found.good, "alone: {found}");
        own
    }

    /// The plan with this data and an output of its own, which is poison.
    fn bind(&self, plan: &LoadedPlan) -> Bound<'static> {
        let bytes = |role| plan.facts().bindings.iter().find(|b| b.role == role).map_or(0, |b| b.bytes as usize);
        let new = |role| self.stream.alloc_zeros::<u8>(bytes(role)).expect("memory");
        let [q, k, v] = self.inputs.each_ref().map(Arc::clone);
        let args = Args::new().q(q).k(k).v(v).o(new(Role::O)).tensor_mut(Role::Stats, new(Role::Stats));
        let mut bound = plan.bind(args, &self.stream).expect("all roles are bound");
        poison(bound.slice::<u8>(Role::O).expect("it owns O"), &self.stream);
        bound
    }

    fn output(&self, bound: &mut Bound<'static>) -> Vec<u8> {
        self.stream.clone_dtoh(bound.slice::<u8>(Role::O).expect("it owns O")).expect("read")
    }

    /// Launches the plan when all other threads do, and checks every output.
    fn round(&self, plan: &LoadedPlan, gate: &Barrier, queue: Queue<'_>) -> Wrong {
        let mut bounds: Vec<_> = (0..LAUNCHES).map(|_| self.bind(plan)).collect();
        self.stream.synchronize().expect("all outputs are poison");
        gate.wait();
        let queued: Vec<_> = bounds.iter_mut().map(|bound| queue(bound, &self.stream)).collect();
        self.stream.synchronize().expect("all end well");
        let mut wrong = Wrong::default();
        wrong.refused.extend(queued.into_iter().filter_map(Result::err).map(|error| format!("{error:?}")));
        for bound in &mut bounds {
            let found = self.output(bound);
            if found == self.expected {
                continue;
            }
            let never = found.iter().all(|byte| *byte == POISON);
            *(if never { &mut wrong.never_written } else { &mut wrong.differ }) += 1;
            self.stream.context().synchronize().expect("all end well");
            wrong.late += usize::from(self.output(bound) == self.expected);
        }
        wrong
    }
}

/// Threads that meet before each round, in which each launches the plan that `plan` gives for round and thread.
fn meet(gpu: &Gpu, rounds: usize, plan: &(dyn Fn(usize, usize) -> LoadedPlan + Sync), queue: Queue<'_>) -> Wrong {
    let attention = prefill();
    let alone = gpu.load(&attention);
    let all: Vec<Own> = (0..THREADS).map(|thread| Own::new(gpu, &alone, &attention, thread as u64)).collect();
    drop(alone);
    let gate = Barrier::new(THREADS);
    let mut wrong = Wrong::default();
    std::thread::scope(|scope| {
        let threads = all.iter().enumerate().map(|(thread, own)| {
            let gate = &gate;
            scope.spawn(move || {
                (0..rounds).map(|round| own.round(&plan(round, thread), gate, queue)).collect::<Vec<_>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        for found in threads.into_iter().flat_map(|thread| thread.join().expect("no panic")) {
            wrong.never_written += found.never_written;
            wrong.differ += found.differ;
            wrong.late += found.late;
            wrong.refused.extend(found.refused);
        }
    });
    say(&format!("{} launches: {wrong:?}", rounds * THREADS * LAUNCHES));
    wrong
}

#[test]
fn threads_that_launch_one_plan_at_once_write_their_own_outputs() {
    let Some(gpu) = Gpu::open() else { return };
    let plan = gpu.load(&prefill());
    let wrong = meet(&gpu, 100, &|_, _| plan.clone(), &|bound, stream| bound.launch(stream));
    assert_eq!(wrong, Wrong::default());
}

/// A plan that was just loaded, as by threads that asked for it at the same time.
#[test]
fn the_first_launches_of_a_plan_by_threads_at_once_write_their_own_outputs() {
    const ROUNDS: usize = 40;
    let Some(gpu) = Gpu::open() else { return };
    let plans: Vec<LoadedPlan> = (0..ROUNDS).map(|_| gpu.load(&prefill())).collect();
    let wrong = meet(&gpu, ROUNDS, &|round, _| plans[round].clone(), &|bound, stream| bound.launch(stream));
    assert_eq!(wrong, Wrong::default());
}

/// No two threads share a plan, so nothing of this project's waits for another thread; others load and drop the plan.
#[test]
fn threads_with_a_plan_each_launch_at_once_beside_loads_and_write_their_own_outputs() {
    let Some(gpu) = Gpu::open() else { return };
    let plans: Vec<LoadedPlan> = (0..THREADS).map(|_| gpu.load(&prefill())).collect();
    let stop = AtomicBool::new(false);
    let wrong = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in (0..5_000).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    drop(gpu.load(&prefill()));
                }
            });
        }
        let wrong = meet(&gpu, 60, &|_, thread| plans[thread].clone(), &|bound, stream| bound.launch(stream));
        stop.store(true, Ordering::Relaxed);
        wrong
    });
    assert_eq!(wrong, Wrong::default());
}
