//! Compiles in child processes with environment variables that cuDNN reads. A variable that changes kernels must change
//! keys.

use std::collections::BTreeSet;
use std::process::Command;

use qkvault_compile::Compiler;
use qkvault_cudnn::{CompileOptions, lower, plan_key};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, Valid, validate};

use crate::cudnn::{compiler, found, say, target};
use crate::kernel::cubins;

/// Profiles of the target GPUs.
const GPUS: [&str; 2] = ["h200", "b200"];

/// The variable that marks a child process, and the prefix of its output lines.
const CHILD: &str = "QKVAULT_TEST_CHILD";

/// A forward and a backward. Every variable that changes code changes a kernel of one of them, for one of the GPUs.
fn attentions() -> [Valid; 2] {
    let forward = Attention::bshd(2, (8, 2), (1024, 1024), 128, DType::BF16).with_band(Band::CAUSAL);
    let backward = forward.clone().with_stats().backward(BackwardOptions::default());
    [forward, backward].map(|a| validate(a).unwrap_or_else(|e| panic!("{e}")))
}

/// The key of a plan, and a hash of its kernels.
type Row = (String, String);

/// Compiles all attentions for all GPUs, and prints one line for each.
fn compile_all(compiler: &Compiler) {
    for gpu in GPUS {
        let (target, policy) = (target(compiler, gpu), CompileOptions::cudnn());
        for (i, attention) in attentions().iter().enumerate() {
            let graph = lower(attention, &target, &policy).unwrap_or_else(|e| panic!("{e}"));
            let kernels = match compiler.compile(&graph, &target, &policy) {
                Ok(plan) => cubins(&plan.blob).concat(),
                Err(failure) => failure.to_string(),
            };
            let print = kernels.bytes().fold(0_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
            say(&format!("{CHILD} {gpu}/{i} {} {print:016x}", plan_key(&graph, &target, &policy)));
        }
    }
}

/// Runs `test` in a child process with these variables, and reads its rows.
fn compile_with(test: &str, variables: &[(&str, &str)]) -> Vec<(String, Row)> {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|e| panic!("{e}")));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    command.envs(variables.iter().copied());
    let output = command.output().unwrap_or_else(|e| panic!("{e}"));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{variables:?}: {lines}{}", String::from_utf8_lossy(&output.stderr));
    let row = |line: &str| {
        let mut words = line.split_once(CHILD)?.1.split_whitespace().map(str::to_owned);
        Some((words.next()?, (words.next()?, words.next()?)))
    };
    let rows: Vec<_> = lines.lines().filter_map(row).collect();
    assert_eq!(rows.len(), GPUS.len() * 2, "{lines}");
    rows
}

/// Compiles without and with each of these settings. A setting that changes code must change every key and at least one
/// kernel; a harmless one must change nothing.
///
/// # Panics
///
/// Panics if one of these does not hold.
pub fn check(version: &str, test: &str, changing: &[(&str, &str)], harmless: &[(&str, &str)]) {
    if std::env::var_os(CHILD).is_some() {
        return compile_all(&compiler(version).unwrap_or_else(|| panic!("the parent found cuDNN {version}")));
    }
    // A process can open one cuDNN only. The parent opens none, so that tests of several versions can share its
    // process.
    let Some(_) = found(version) else { return };
    let plain = compile_with(test, &[]);
    assert_eq!(compile_with(test, harmless), plain, "{harmless:?} change nothing");
    let mut keys: BTreeSet<String> = plain.iter().map(|(_, (key, _))| key.clone()).collect();
    for variable in changing {
        let rows = compile_with(test, &[*variable]);
        let mut other_kernels = 0;
        for ((what, (key, kernels)), (_, (_, plain))) in rows.iter().zip(&plain) {
            assert!(keys.insert(key.clone()), "{variable:?}, {what}: the key of another environment");
            other_kernels += usize::from(kernels != plain);
        }
        assert!(other_kernels > 0, "{variable:?} changes no kernel");
    }
}
