//! Processes whose main thread exits during their first compile, while cuDNN's compilers start. The program has no test
//! harness, because a harness does not run tests on the main thread. It runs each cuDNN in its own processes, without a
//! GPU.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_graph::{Attention, Band, DType, validate};
use qkvault_tests::cudnn::{compiler, found, say, target};

/// What a child process is told: its cuDNN, and the milliseconds after which it exits.
const CHILD: &str = "QKVAULT_TEST_CHILD";

/// The exit code of a child process.
const CODE: i32 = 7;

const NAME: &str = "a_main_thread_that_exits_during_the_first_compile_waits_for_it";

fn main() {
    if let Ok(told) = std::env::var(CHILD) {
        let (version, after) = told.split_once(' ').unwrap();
        return end_in_the_first_compile(version, after.parse().unwrap());
    }
    // Supports the harness's options: `--list`, and a filter by name.
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|w| w == "--list") {
        return say(&format!("{NAME}: test"));
    }
    if words.iter().any(|w| !w.starts_with('-') && !NAME.contains(w.as_str())) {
        return;
    }
    for version in ["9.14.0", "9.19.0", "9.27.0"] {
        if found(version).is_none() {
            continue;
        }
        for after in [1, 20, 60, 150, 300] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let done = child.env(CHILD, format!("{version} {after}")).output().unwrap();
            let stderr = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.code(), Some(CODE), "{version}, {after} ms in: {}\n{stderr}", done.status);
        }
    }
    say(&format!("test {NAME} ... ok"));
}

fn end_in_the_first_compile(version: &str, after: u64) {
    let Some(compiler) = compiler(version) else { std::process::exit(CODE) };
    let target = target(&compiler, "h200");
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), Some(compiler));
    let begun = Arc::new(AtomicBool::new(false));
    let compiling = Arc::clone(&begun);
    std::thread::spawn(move || {
        for seq in (1..).map(|n| n * 64) {
            let asked = Attention::bshd(1, (4, 2), (seq, seq), 64, DType::BF16).with_band(Band::CAUSAL);
            compiling.store(true, Ordering::SeqCst);
            let answer = planner.plan(&validate(asked).unwrap(), &target, &CompileOptions::cudnn(), OnMiss::Compile);
            // Planning fails while the process exits.
            if answer.is_err() {
                return;
            }
        }
    });
    while !begun.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(after));
    std::process::exit(CODE);
}
