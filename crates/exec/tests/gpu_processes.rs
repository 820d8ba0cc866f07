//! Many threads that load one plan at once, and processes that end with sessions and plans alive, on a real GPU.
//! `gpu.rs` describes what they need and how the plans are made.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::cell::RefCell;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;

use kit::{Case, Gpu, decode, prefill};
use qkvault_exec::LoadedPlan;

/// The number of layers of a large model.
const THREADS: usize = 64;

#[test]
fn many_threads_that_load_one_plan_at_once_read_it_once_and_compute_the_same() {
    let Some(gpu) = Gpu::open() else { return };
    let (attention, gate) = (prefill(), Barrier::new(THREADS));
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let load = || {
            gate.wait();
            let plan = gpu.load(&attention);
            let stream = gpu.engine.session().device().context().new_stream().expect("a stream");
            let mut case = Case::on(&stream, &attention, 3);
            let mut bound = plan.bind(case.bindings(&plan), &stream).expect("all roles are bound");
            bound.launch(&stream).expect("it is queued");
            drop(bound);
            case.download(&stream)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it loads and launches")).collect()
    });
    assert!(
        outputs.iter().all(|output| *output == outputs[0]),
        "threads computed different bits from the same operands"
    );
    // The oracle checks one more, which all others equal.
    let plan = gpu.load(&attention);
    let mut case = Case::new(&gpu, &attention, 3);
    let mut bound = plan.bind(case.bindings(&plan), &gpu.stream).expect("all roles are bound");
    bound.launch(&gpu.stream).expect("it is queued");
    drop(bound);
    case.check(&gpu);
    assert!(case.download(&gpu.stream) == outputs[0]);
    let stats = gpu.engine.planner().vault().stats();
    assert_eq!((stats.hits_disk, stats.builds, stats.rejected()), (1, 0, 0), "{stats:?}");
    let session = gpu.engine.session().stats();
    assert!(session.loads <= THREADS as u64 + 1 && session.handles <= THREADS as u64 + 1, "{session:?}");
}

/// The work of a child process before it ends.
const JOB: &str = "QKVAULT_TEST_CHILD";
const CHILD: &str = "a_process_of_its_own_ends_with_a_plan";

/// The exit code of a child process.
const CODE: i32 = 7;

/// Never dropped: statics live until the end of the process, longer than CUDA.
static KEPT: OnceLock<(Gpu, LoadedPlan)> = OnceLock::new();

thread_local! {
    /// Dropped when its thread ends, which may be while the process ends.
    static MINE: RefCell<Option<LoadedPlan>> = const { RefCell::new(None) };
}

/// The body of the child processes of the other test; they end with launches queued. Does nothing by itself.
#[test]
fn a_process_of_its_own_ends_with_a_plan() {
    let Some(gpu) = Gpu::open() else { return };
    let Ok(job) = std::env::var(JOB) else { return };
    let attention = decode();
    let plan = gpu.load(&attention);
    let launch = |gpu: &Gpu, plan: &LoadedPlan, times: usize| {
        let mut case = Case::new(gpu, &attention, 1);
        let mut bound = plan.bind(case.bindings(plan), &gpu.stream).expect("all roles are bound");
        (0..times).for_each(|_| bound.launch(&gpu.stream).expect("it is queued"));
    };
    launch(&gpu, &plan, 10);
    MINE.with_borrow_mut(|mine| *mine = Some(plan.clone()));
    Box::leak(Box::new(gpu.load(&prefill())));
    assert!(KEPT.set((gpu, plan)).is_ok(), "a process has one job");
    match job.as_str() {
        "keep" => {}
        "keep and exit" => std::process::exit(CODE),
        "exit while launching" => {
            let launched = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&launched);
            let other = std::thread::spawn(move || {
                while seen.load(Ordering::SeqCst) < 3 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::process::exit(CODE)
            });
            let (gpu, plan) = KEPT.get().expect("it was set");
            while !other.is_finished() {
                launch(gpu, plan, 100);
                launched.fetch_add(1, Ordering::SeqCst);
            }
        }
        other => panic!("no such job: {other}"),
    }
}

#[test]
fn a_process_with_a_session_and_plans_ends_as_it_asked_to() {
    let Some(_gpu) = Gpu::open() else { return };
    let program = std::env::current_exe().expect("a test has a program");
    for (job, code) in [("keep", 0), ("keep and exit", CODE), ("exit while launching", CODE)] {
        let done = Command::new(&program).args(["--exact", CHILD, "--nocapture"]).env(JOB, job).output();
        let done = done.expect("it can be started");
        let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{job} ended with {}:\n{said}", done.status);
    }
}
