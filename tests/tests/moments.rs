//! What goes wrong for a moment, or on one machine, leaves nothing behind: processes of their own, short of memory or with a compiler that
//! is given wrong flags, each over a vault of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use qkvault_cache::{EntryKind, Key, Source, Vault, VaultOptions};
use qkvault_compile::{OnMiss, Plan, PlanError, Planner};
use qkvault_graph::{CompileOptions, PlanKey, Valid, text, validate};
use qkvault_tests::cudnn::{compiler, found, say, target};
use qkvault_tests::kernel::cubins;

/// For a process of its own: the cuDNN, and the folder of its vault.
const VERSION: &str = "QKVAULT_MOMENTS_VERSION";
const VAULT: &str = "QKVAULT_MOMENTS_VAULT";
/// The name of the test that such a process runs.
const CHILD: &str = "a_process_of_its_own_plans_three_attentions";

/// What was refused, or got another engine, when memory was short: a deterministic backward, a plain one, and a forward.
const ASKED: [&str; 3] = [
    "pass: backward\nq: bf16 [1,2,256,64]\ndeterministic: yes",
    "pass: backward\nq: bf16 [1,2,256,64]",
    "q: bf16 [1,2,256,64]",
];

fn asked() -> [Valid; 3] {
    ASKED.map(|given| validate(text::parse(given).unwrap()).unwrap())
}

fn vault(folder: &Path) -> Vault {
    Vault::open(VaultOptions::in_folder(folder).without_environment()).unwrap()
}

/// What a process says of each attention that it came to: the engine, or the error. And how it ended.
struct Told {
    lines: BTreeMap<usize, Result<String, String>>,
    ended: bool,
}

/// Runs the child under a limit on address space in kB, if any, and with a variable set, if any.
fn child(version: &str, folder: &Path, limit: Option<u64>, variable: Option<(&str, &str)>) -> Told {
    let limit = limit.map_or_else(String::new, |limit| format!("ulimit -v {limit} && "));
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -c 0 && {limit}exec \"$0\" {CHILD} --exact --nocapture --test-threads=1")])
        .arg(std::env::current_exe().unwrap())
        .env(VERSION, version)
        .env(VAULT, folder)
        .envs(variable);
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let line = |line: &str| {
        let (number, rest) = line.strip_prefix("told ")?.split_once(' ')?;
        let told = match rest.split_once(' ')? {
            ("plan", engine) => Ok(engine.to_owned()),
            (kind, why) => Err(format!("{kind}: {why}")),
        };
        Some((number.parse().ok()?, told))
    };
    Told { lines: text.lines().filter_map(line).collect(), ended: out.status.success() }
}

#[test]
fn a_process_of_its_own_plans_three_attentions() {
    let (Some(version), Some(folder)) = (std::env::var_os(VERSION), std::env::var_os(VAULT)) else { return };
    let Some(compiler) = compiler(version.to_str().unwrap()) else { return };
    let target = target(&compiler, "b200");
    let planner = Planner::new(vault(folder.as_ref()), Some(compiler));
    for (number, attention) in asked().iter().enumerate() {
        let answer = planner.plan(attention, &target, &CompileOptions::default(), OnMiss::Compile);
        let told = match answer {
            Ok(answer) => match answer.outcome {
                Ok(plan) => format!("plan {}", plan.facts.engine),
                Err(refusal) => format!("refused {}", refusal.to_string().replace('\n', " ")),
            },
            Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
        };
        // The test harness begins a line of its own before the first.
        say(&format!("\ntold {number} {told}"));
    }
}

/// Engine and kernels of every plan in a vault by its key; a refusal in it fails the test.
fn kept(folder: &Path, when: &str) -> BTreeMap<Key, (String, Vec<Vec<u8>>)> {
    let vault = vault(folder);
    let mut kept = BTreeMap::new();
    for listed in vault.ls() {
        let (_, entry) = vault.show(&listed.key).into_iter().next().unwrap();
        let entry = entry.unwrap();
        assert_eq!(entry.kind, EntryKind::Plan, "{when}: a refusal of {} was stored", entry.what);
        let plan = Plan::from_entry(PlanKey::from_bytes(listed.key.0), &entry).unwrap();
        let kernels = cubins(&plan.blob).into_iter().map(Into::into).collect();
        kept.insert(listed.key, (plan.facts.engine, kernels));
    }
    kept
}

/// From where the process just starts to where it has enough: the plan that it gives without a limit, an error, or no process.
fn pressed(version: &str, limits: &[u64]) {
    if found(version).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(child(version, folder.path(), None, None).ended);
    let whole = kept(folder.path(), "without a limit");
    assert_eq!(whole.len(), ASKED.len());
    let (mut plans, mut errors) = (0, 0);
    for &limit in limits {
        let folder = tempfile::tempdir().unwrap();
        let told = child(version, folder.path(), Some(limit), None);
        let when = format!("{version} within {limit} kB");
        for (number, line) in &told.lines {
            match line {
                Ok(_) => plans += 1,
                Err(why) => {
                    assert!(why.starts_with("error: "), "{when}: {number} {why}");
                    errors += 1;
                }
            }
        }
        for (key, plan) in kept(folder.path(), &when) {
            assert!(whole.get(&key) == Some(&plan), "{when}: another plan lies under {key}: {}", plan.0);
        }
        // What was an error is built by the next process that has the memory.
        if told.lines.values().any(Result::is_err) {
            assert!(child(version, folder.path(), None, None).ended);
            assert_eq!(kept(folder.path(), &when), whole, "{when}, and then without");
        }
    }
    assert!(plans > 0 && errors > 0, "{version}: {plans} plans and {errors} errors: the limits do not meet the need");
}

/// A refusal and engine 7 instead of engine 5 were stored, and served for ever.
#[test]
fn b1_memory_pressure_stores_neither_refusal_nor_another_engine_9_19() {
    pressed("9.19.0", &[170_000, 185_000, 200_000, 215_000, 235_000, 262_000, 300_000, 360_000]);
}

#[test]
fn b1_memory_pressure_stores_neither_refusal_nor_another_engine_9_27() {
    pressed("9.27.0", &[200_000, 216_000, 235_000, 250_000, 275_000, 300_000, 330_000, 400_000]);
}

/// Set once, the variable made all three refused for good: NVIDIA's compiler does not know the flag.
#[test]
fn b1_flags_that_do_not_compile_are_an_error_that_names_them_and_leave_nothing() {
    if found("9.27.0").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let told = child("9.27.0", folder.path(), None, Some(("CUDNN_JIT_FLAGS_DBG", "1")));
    assert!(told.ended && told.lines.len() == ASKED.len(), "{:?}", told.lines);
    for why in told.lines.values() {
        let why = why.as_ref().unwrap_err();
        assert!(why.starts_with("error: ") && why.contains("CUDNN_JIT_FLAGS_DBG"), "{why}");
    }
    assert_eq!(vault(folder.path()).ls().count(), 0, "something of it was stored");
    let told = child("9.27.0", folder.path(), None, None);
    assert!(told.lines.len() == ASKED.len() && told.lines.values().all(Result::is_ok), "{:?}", told.lines);
}

/// Limits this process's address space to so many kB, or no more.
fn limit(kilobytes: Option<u64>) {
    let soft = kilobytes.map_or_else(|| "unlimited".to_owned(), |n| (n * 1024).to_string());
    let done =
        Command::new("prlimit").args([&format!("--pid={}", std::process::id()), &format!("--as={soft}:")]).status();
    assert!(done.unwrap().success(), "prlimit, of util-linux, is on every Linux");
}

/// Address space that this process has, in kB.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// In a process of its own: its limit is lifted again, but another test beside it would meet it.
#[test]
fn in_a_process_of_its_own_a_build_that_failed_is_built_when_it_is_asked_again() {
    let (Some(version), Some(folder)) = (std::env::var_os(VERSION), std::env::var_os(VAULT)) else { return };
    let Some(compiler) = compiler(version.to_str().unwrap()) else { return };
    let target = target(&compiler, "b200");
    let planner = Planner::new(vault(folder.as_ref()), Some(compiler));
    let ask = |attention: &Valid| planner.plan(attention, &target, &CompileOptions::default(), OnMiss::Compile);
    planner.compiler().unwrap().library().check_engines().unwrap();
    // How much more than now the kernel needs depends on the allocator: less is allowed until it is too little, for another attention each.
    let failed = [40, 32, 24, 18, 12, 8, 4].into_iter().find_map(|megabytes| {
        let given = format!("pass: backward\nq: bf16 [1,2,{},64]\ndeterministic: yes", 128 * megabytes);
        let attention = validate(text::parse(&given).unwrap()).unwrap();
        limit(Some(address_space() + 1000 * megabytes));
        let answer = ask(&attention);
        limit(None);
        Some((attention, answer.err()?))
    });
    let (attention, PlanError::Failure(failure)) = failed.unwrap() else { panic!("it is a failure") };
    assert!(failure.is_uncompiled() && failure.to_string().contains("ulimit -v"), "{failure}");
    let before = planner.vault().stats();
    let again = ask(&attention).unwrap();
    assert!(again.source == Source::Built && again.outcome.is_ok_and(|plan| plan.facts.passed_over.is_empty()));
    let stats = planner.vault().stats();
    assert_eq!((stats.build_failures, stats.stores), (1, before.stores + 1));
    say("\np43 held");
}

/// Kept as an answer, the failure of a moment would be all that a process, or a fleet, ever gets.
#[test]
fn a_build_that_failed_is_built_when_it_is_asked_again() {
    if found("9.27.0").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let name = "in_a_process_of_its_own_a_build_that_failed_is_built_when_it_is_asked_again";
    let out = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(VERSION, "9.27.0")
        .env(VAULT, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("p43 held"), "{text}{}", String::from_utf8_lossy(&out.stderr));
}
