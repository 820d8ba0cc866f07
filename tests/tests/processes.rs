//! Processes that share a vault, and processes that end: with plans in statics, in thread-locals and leaked, while a compile runs, and
//! from another thread than the first. Each cuDNN by itself, without a GPU.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

use std::cell::RefCell;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use qkvault_cache::{Depth, Vault, VaultOptions};
use qkvault_compile::{OnMiss, Plan, Planner};
use qkvault_graph::{Attention, Band, CompileOptions, DType, Target, Valid, validate};
use qkvault_tests::cudnn::{compiler, found, say, target};

/// What a process of its own does, with which cuDNN, over the vault in which folder.
const JOB: &str = "QKVAULT_PROCESS_JOB";
const VERSION: &str = "QKVAULT_PROCESS_VERSION";
const VAULT: &str = "QKVAULT_PROCESS_VAULT";
/// The name of the test that such a process runs.
const CHILD: &str = "a_process_of_its_own_does_its_job";

/// The code that a process asks to end with.
const CODE: i32 = 7;

fn start(job: &str, version: &str, folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([CHILD, "--exact", "--nocapture"]);
    command.env(JOB, job).env(VERSION, version).env(VAULT, folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What a process said; it must have ended by itself, with this code.
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
    let answer = planner.plan(&asked(seq), target, &CompileOptions::default(), OnMiss::Compile).unwrap();
    answer.outcome.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Dropped by nobody: statics live until the process is gone.
static KEPT: OnceLock<(Planner, Arc<Plan>)> = OnceLock::new();

thread_local! {
    /// Dropped when its thread ends, which may be while the process does.
    static MINE: RefCell<Option<(Planner, Arc<Plan>)>> = const { RefCell::new(None) };
}

/// Not a test by itself: what the processes of the others do.
#[test]
fn a_process_of_its_own_does_its_job() {
    let [Ok(job), Ok(version), Ok(folder)] = [JOB, VERSION, VAULT].map(std::env::var) else { return };
    let Some(compiler) = compiler(&version) else { return };
    let target = target(&compiler, "h200");
    let planner = Planner::new(open(Path::new(&folder)), Some(compiler));
    match job.as_str() {
        "build" => {
            let plan = plan(&planner, &target, 256);
            let stats = planner.vault().stats();
            say(&format!("\nbuilds {} stores {} rejected {}", stats.builds, stats.stores, stats.rejected()));
            say(&format!("plan {}", plan.blob.len()));
        }
        // The harness ends the process from its first thread, after this one is gone with its thread-local.
        "keep" => keep(planner, &target),
        "keep and exit" => {
            keep(planner, &target);
            std::process::exit(CODE);
        }
        // From a thread that never compiled, while one that is leaked does.
        "exit in the second compile" => {
            let begun = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&begun);
            std::thread::spawn(move || {
                for seq in (1..).map(|n| n * 64) {
                    seen.fetch_add(1, Ordering::SeqCst);
                    let answer = planner.plan(&asked(seq), &target, &CompileOptions::default(), OnMiss::Compile);
                    // The process is ending.
                    if answer.is_err() {
                        return;
                    }
                }
            });
            while begun.load(Ordering::SeqCst) < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Some way into it.
            std::thread::sleep(Duration::from_millis(u64::from(std::process::id() % 10) * 30));
            let other = std::thread::spawn(|| std::process::exit(CODE));
            let _ = other.join();
        }
        other => panic!("no such job: {other}"),
    }
}

/// A planner, a compiler and a plan in every place where one may be when a process ends.
fn keep(planner: Planner, target: &Target) {
    let made = plan(&planner, target, 128);
    MINE.with_borrow_mut(|mine| *mine = Some((planner.clone(), Arc::clone(&made))));
    Box::leak(Box::new((planner.clone(), Arc::clone(&made))));
    // Another thread, which ends only with the process.
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
fn processes_that_want_one_plan_at_once_build_it_once_and_none_sees_half_of_it() {
    if found("9.27.0").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..3).map(|_| start("build", "9.27.0", folder.path())).collect();
    let told: Vec<String> = children.into_iter().map(|child| ended(child, "build", 0)).collect();
    let number = |text: &str, word: &str| -> u64 {
        let mut words = text.split_whitespace().skip_while(|w| *w != word).skip(1);
        words.next().unwrap_or_else(|| panic!("{word}: {text}")).parse().unwrap()
    };
    let sum = |word: &str| told.iter().map(|text| number(text, word)).sum::<u64>();
    assert_eq!((sum("builds"), sum("stores"), sum("rejected")), (1, 1, 0), "{told:?}");
    assert!(told.iter().all(|text| number(text, "plan") == number(&told[0], "plan")), "{told:?}");
    let report = open(folder.path()).verify(Depth::Payload);
    assert_eq!((report.good, report.bad.len()), (1, 0), "{report:?}");
}

/// Ends processes of a version in every way, and looks at what they leave behind.
fn end(version: &str) {
    if found(version).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (job, code) in [("keep", 0), ("keep and exit", CODE)] {
        ended(start(job, version, folder.path()), job, code);
    }
    // At several moments of a compile; tests/ending.rs has the first compile of a process.
    for job in ["exit in the second compile"; 3] {
        ended(start(job, version, &folder.path().join(job)), job, CODE);
    }
    let report = open(folder.path()).verify(Depth::Payload);
    assert!(report.good == 1 && report.bad.is_empty(), "{report:?}");
}

#[test]
fn a_process_with_plans_ends_as_it_asked_to_under_9_14() {
    end("9.14.0");
}

#[test]
fn a_process_with_plans_ends_as_it_asked_to_under_9_19() {
    end("9.19.0");
}

#[test]
fn a_process_with_plans_ends_as_it_asked_to_under_9_27() {
    end("9.27.0");
}
