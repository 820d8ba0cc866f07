//! Compiling in a process of its own, with variables that cuDNN reads: what changes kernels must change keys.

use std::collections::BTreeSet;
use std::process::Command;

use qkvault_compile::Compiler;
use qkvault_graph::{Attention, BackwardOptions, Band, CompileOptions, DType, Valid, lower, plan_key, validate};

use crate::cudnn::{compiler, found, say, target};
use crate::kernel::cubins;

/// GPUs that are compiled for.
const GPUS: [&str; 2] = ["h200", "b200"];

/// Marks a process that compiles, and the lines it tells.
const CHILD: &str = "QKVAULT_TEST_COMPILES";

/// A forward and a backward in whose kernels every variable that changes code shows, for one of the GPUs.
fn attentions() -> [Valid; 2] {
    let forward = Attention::bshd(2, (8, 2), (1024, 1024), 128, DType::BF16).with_band(Band::CAUSAL);
    let backward = forward.clone().with_stats().backward(BackwardOptions::default());
    [forward, backward].map(|a| validate(a).unwrap_or_else(|e| panic!("{e}")))
}

/// One plan: the GPU, which attention, its key, and a hash of its kernels.
type Row = (String, String);

/// What this process compiles, told line by line.
fn tell(compiler: &Compiler) {
    for gpu in GPUS {
        let (target, policy) = (target(compiler, gpu), CompileOptions::default());
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

/// Runs `test` again in a process of its own with these variables, and reads what it compiles.
fn compile_with(test: &str, variables: &[(&str, &str)]) -> Vec<(String, Row)> {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|e| panic!("{e}")));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    command.envs(variables.iter().copied());
    let output = command.output().unwrap_or_else(|e| panic!("{e}"));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{variables:?}: {told}{}", String::from_utf8_lossy(&output.stderr));
    let row = |line: &str| {
        let mut words = line.split_once(CHILD)?.1.split_whitespace().map(str::to_owned);
        Some((words.next()?, (words.next()?, words.next()?)))
    };
    let rows: Vec<_> = told.lines().filter_map(row).collect();
    assert_eq!(rows.len(), GPUS.len() * 2, "{told}");
    rows
}

/// B2: compiles without and with each of these settings. With one that changes code, every key is another, and somewhere a kernel is; with
/// one that does not, keys and kernels are the same.
///
/// # Panics
///
/// When that is not so.
pub fn check(version: &str, test: &str, changing: &[(&str, &str)], harmless: &[(&str, &str)]) {
    if std::env::var_os(CHILD).is_some() {
        return tell(&compiler(version).unwrap_or_else(|| panic!("the parent has found it")));
    }
    // One process has one cuDNN: this one opens none, so that tests of several versions may share it.
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
        assert!(other_kernels > 0, "{variable:?} was seen to change kernels");
    }
}
