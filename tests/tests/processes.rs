//! Processes that share a vault, and processes that exit: with plans in statics, in thread-locals and leaked, during a
//! compile, and from a thread other than the main one. Each cuDNN runs in its own processes, without a GPU.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::cell::RefCell;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use qkvault_cache::{Depth, Vault, VaultOptions};
use qkvault_compile::{OnMiss, Plan, Planner};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{Attention, Band, DType, Valid, validate};
use qkvault_tests::cudnn::{compiler, found, say, target};

/// What a child process is told: its job, its cuDNN and the folder of its vault, a line each.
const TOLD: &str = "QKVAULT_TEST_CHILD";
/// The name of the test that a child process runs.
const CHILD: &str = "a_child_process_does_its_job";

/// The exit code of a child process.
const CODE: i32 = 7;

fn start(job: &str, version: &str, folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([CHILD, "--exact", "--nocapture"]);
    command.env(TOLD, format!("{job}\n{version}\n{}", folder.display()));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The output of a child process. Panics unless the process exited with this code.
#[track_caller]
fn ended(child: Child, job: &str, code: i32) -> String {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(code), "{job} ended with {status}:\n{out}\n{err}");
    out.into_owned()
}

fn asked(seq: i64) -> Valid {
    validate(Attention::bshd(1, (4, 2), (seq, seq), 64, DType::BF16).with_band(Band::CAUSAL)).unwrap()
}

fn open(folder: &Path) -> Vault {
    Vault::open(VaultOptions::in_folder(folder).without_environment()).unwrap()
}

fn plan(planner: &Planner, target: &Target, seq: i64) -> Arc<Plan> {
    let answer = planner.plan(&asked(seq), target, &CompileOptions::cudnn(), OnMiss::Compile).unwrap();
    answer.outcome.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Never dropped: statics live until the process ends.
static KEPT: OnceLock<(Planner, Arc<Plan>)> = OnceLock::new();

thread_local! {
    /// Dropped when its thread ends, possibly while the process exits.
    static MINE: RefCell<Option<(Planner, Arc<Plan>)>> = const { RefCell::new(None) };
}

/// Not a test by itself: the other tests run it in child processes.
#[test]
fn a_child_process_does_its_job() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let [job, version, folder] = told.splitn(3, '\n').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let Some(compiler) = compiler(version) else { return };
    let target = target(&compiler, "h200");
    let planner = Planner::new(open(Path::new(folder)), Some(compiler));
    match job {
        "build" => {
            let plan = plan(&planner, &target, 256);
            let stats = planner.vault().stats();
            say(&format!("\nbuilds {} stores {} rejected {}", stats.builds, stats.stores, stats.rejected()));
            say(&format!("plan {}", plan.blob.len()));
        }
        // The harness exits from the main thread, after this thread has ended and dropped its thread-local.
        "keep" => keep(planner, &target),
        "keep and exit" => {
            keep(planner, &target);
            std::process::exit(CODE);
        }
        // Exits from a thread that never compiled, while a detached thread compiles.
        "exit in the second compile" => {
            let begun = Arc::new(AtomicUsize::new(0));
            let compiles = Arc::clone(&begun);
            std::thread::spawn(move || {
                for seq in (1..).map(|n| n * 64) {
                    compiles.fetch_add(1, Ordering::SeqCst);
                    let answer = planner.plan(&asked(seq), &target, &CompileOptions::cudnn(), OnMiss::Compile);
                    // Planning fails while the process exits.
                    if answer.is_err() {
                        return;
                    }
                }
            });
            while begun.load(Ordering::SeqCst) < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Waits until some point of the compile.
            std::thread::sleep(Duration::from_millis(u64::from(std::process::id() % 10) * 30));
            let other = std::thread::spawn(|| std::process::exit(CODE));
            let _ = other.join();
        }
        other => panic!("no such job: {other}"),
    }
}

/// Keeps a planner, a compiler and a plan in every place that may hold them when a process exits.
fn keep(planner: Planner, target: &Target) {
    let made = plan(&planner, target, 128);
    MINE.with_borrow_mut(|mine| *mine = Some((planner.clone(), Arc::clone(&made))));
    Box::leak(Box::new((planner.clone(), Arc::clone(&made))));
    // This thread ends only with the process.
    let (theirs, there) = (planner.clone(), target.clone());
    std::thread::spawn(move || {
        let made = plan(&theirs, &there, 128);
        MINE.with_borrow_mut(|mine| *mine = Some((theirs, made)));
        loop {
            std::thread::park();
        }
    });
    assert!(KEPT.set((planner, made)).is_ok());
}

#[test]
fn processes_that_need_one_plan_at_once_build_it_once_and_read_it_whole() {
    if found("9.27.0").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..3).map(|_| start("build", "9.27.0", folder.path())).collect();
    let outputs: Vec<String> = children.into_iter().map(|child| ended(child, "build", 0)).collect();
    let number = |text: &str, word: &str| -> u64 {
        let mut words = text.split_whitespace().skip_while(|w| *w != word).skip(1);
        words.next().unwrap_or_else(|| panic!("{word}: {text}")).parse().unwrap()
    };
    let sum = |word: &str| outputs.iter().map(|text| number(text, word)).sum::<u64>();
    assert_eq!((sum("builds"), sum("stores"), sum("rejected")), (1, 1, 0), "{outputs:?}");
    assert!(outputs.iter().all(|text| number(text, "plan") == number(&outputs[0], "plan")), "{outputs:?}");
    let report = open(folder.path()).verify(Depth::Payload);
    assert_eq!((report.good, report.bad.len()), (1, 0), "{report:?}");
}

/// Ends processes of a version in every way, and checks the vault that they leave.
fn end(version: &str) {
    if found(version).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (job, code) in [("keep", 0), ("keep and exit", CODE)] {
        ended(start(job, version, folder.path()), job, code);
    }
    // Exits at several points of a compile. tests/ending.rs covers the first compile of a process.
    for job in ["exit in the second compile"; 3] {
        ended(start(job, version, &folder.path().join(job)), job, CODE);
    }
    let report = open(folder.path()).verify(Depth::Payload);
    assert!(report.good == 1 && report.bad.is_empty(), "{report:?}");
}

#[test]
fn a_process_with_plans_exits_with_its_code_with_9_14() {
    end("9.14.0");
}

#[test]
fn a_process_with_plans_exits_with_its_code_with_9_19() {
    end("9.19.0");
}

#[test]
fn a_process_with_plans_exits_with_its_code_with_9_27() {
    end("9.27.0");
}
