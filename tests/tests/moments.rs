//! Temporary failures leave nothing in the vault. Child processes, each with its own vault, run short of memory or pass
//! wrong flags to the compiler.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use qkvault_cache::{EntryKind, Key, Source, Vault, VaultOptions};
use qkvault_compile::{Failure, OnMiss, Plan, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_graph::{PlanKey, Valid, text, validate};
use qkvault_tests::cudnn::{compiler, found, say, target};
use qkvault_tests::kernel::cubins;

/// What a child process is told: its cuDNN and the folder of its vault.
const TOLD: &str = "QKVAULT_TEST_CHILD";
/// The name of the test that a child process runs.
const CHILD: &str = "a_child_process_plans_three_attentions";

/// Attentions that were once refused or got another engine when memory was short: a deterministic backward, a plain
/// one, and a forward.
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

fn told(version: &str, folder: &Path) -> String {
    format!("{version} {}", folder.display())
}

/// What this process was told, if it is a child.
fn of_this_process() -> Option<(String, PathBuf)> {
    let told = std::env::var(TOLD).ok()?;
    let (version, folder) = told.split_once(' ').unwrap();
    Some((version.to_owned(), folder.into()))
}

/// The output of a child process: the engine or the error for each attention, and whether it ended with success.
struct Report {
    lines: BTreeMap<usize, Result<String, String>>,
    ended: bool,
}

/// Runs a child process, optionally with a limit on its address space in kB and with an environment variable.
fn child(version: &str, folder: &Path, limit: Option<u64>, variable: Option<(&str, &str)>) -> Report {
    let limit = limit.map_or_else(String::new, |limit| format!("ulimit -v {limit} && "));
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -c 0 && {limit}exec \"$0\" {CHILD} --exact --nocapture --test-threads=1")])
        .arg(std::env::current_exe().unwrap())
        .env(TOLD, told(version, folder))
        .envs(variable);
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let line = |line: &str| {
        let (number, rest) = line.strip_prefix("planned ")?.split_once(' ')?;
        let result = match rest.split_once(' ')? {
            ("plan", engine) => Ok(engine.to_owned()),
            (kind, why) => Err(format!("{kind}: {why}")),
        };
        Some((number.parse().ok()?, result))
    };
    Report { lines: text.lines().filter_map(line).collect(), ended: out.status.success() }
}

#[test]
fn a_child_process_plans_three_attentions() {
    let Some((version, folder)) = of_this_process() else { return };
    let Some(compiler) = compiler(&version) else { return };
    let target = target(&compiler, "b200");
    let planner = Planner::new(vault(folder.as_ref()), Some(compiler));
    for (number, attention) in asked().iter().enumerate() {
        let answer = planner.plan(attention, &target, &CompileOptions::cudnn(), OnMiss::Compile);
        let result = match answer {
            Ok(answer) => match answer.outcome {
                Ok(plan) => format!("plan {}", plan.facts.engine),
                Err(refusal) => format!("refused {}", refusal.to_string().replace('\n', " ")),
            },
            Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
        };
        // Begins with a line break, because the test harness leaves its first line open.
        say(&format!("\nplanned {number} {result}"));
    }
}

/// Engine and kernels of every plan in a vault, by key. Panics if the vault has a refusal.
fn stored(folder: &Path, when: &str) -> BTreeMap<Key, (String, Vec<Vec<u8>>)> {
    let vault = vault(folder);
    let mut kept = BTreeMap::new();
    for listed in vault.ls() {
        let (_, entry) = vault.show(&listed.key).into_iter().next().unwrap();
        let entry = entry.unwrap();
        assert_eq!(entry.kind, EntryKind::Plan, "{when}: a refusal of {} was stored", entry.what);
        let plan = Plan::from_entry(PlanKey::from_bytes(listed.key.0), &Arc::new(entry)).unwrap();
        let kernels = cubins(&plan.blob).into_iter().map(Into::into).collect();
        kept.insert(listed.key, (plan.facts.engine, kernels));
    }
    kept
}

/// Plans under memory limits between too little and enough. Each result must be the plan without a limit, an error, or
/// the end of the process.
fn check_memory_limits(version: &str, limits: &[u64]) {
    if found(version).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(child(version, folder.path(), None, None).ended);
    let whole = stored(folder.path(), "without a limit");
    assert_eq!(whole.len(), ASKED.len());
    let (mut plans, mut errors) = (0, 0);
    for &limit in limits {
        let folder = tempfile::tempdir().unwrap();
        let report = child(version, folder.path(), Some(limit), None);
        let when = format!("{version} within {limit} kB");
        for (number, line) in &report.lines {
            match line {
                Ok(_) => plans += 1,
                Err(why) => {
                    assert!(why.starts_with("error: "), "{when}: {number} {why}");
                    errors += 1;
                }
            }
        }
        for (key, plan) in stored(folder.path(), &when) {
            assert!(whole.get(&key) == Some(&plan), "{when}: {key} has another plan: {}", plan.0);
        }
        // The next process with enough memory builds the plans that failed.
        if report.lines.values().any(Result::is_err) {
            assert!(child(version, folder.path(), None, None).ended);
            assert_eq!(stored(folder.path(), &when), whole, "{when}, and then without");
        }
    }
    assert!(plans > 0 && errors > 0, "{version}: {plans} plans and {errors} errors: the limits must cover both");
}

/// Once, a refusal and a plan of engine 7 instead of engine 5 were stored and served.
#[test]
fn memory_pressure_stores_neither_refusal_nor_another_engine_9_19() {
    check_memory_limits("9.19.0", &[170_000, 185_000, 200_000, 215_000, 235_000, 262_000, 300_000, 360_000]);
}

#[test]
fn memory_pressure_stores_neither_refusal_nor_another_engine_9_27() {
    check_memory_limits("9.27.0", &[200_000, 216_000, 235_000, 250_000, 275_000, 300_000, 330_000, 400_000]);
}

/// NVIDIA's compiler does not know this flag. Once, a run with the variable stored refusals of all three attentions.
#[test]
fn flags_that_do_not_compile_are_an_error_that_names_them_and_store_nothing() {
    if found("9.27.0").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = child("9.27.0", folder.path(), None, Some(("CUDNN_JIT_FLAGS_DBG", "1")));
    assert!(report.ended && report.lines.len() == ASKED.len(), "{:?}", report.lines);
    for why in report.lines.values() {
        let why = why.as_ref().unwrap_err();
        assert!(why.starts_with("error: ") && why.contains("CUDNN_JIT_FLAGS_DBG"), "{why}");
    }
    assert_eq!(vault(folder.path()).ls().count(), 0, "something was stored");
    let report = child("9.27.0", folder.path(), None, None);
    assert!(report.lines.len() == ASKED.len() && report.lines.values().all(Result::is_ok), "{:?}", report.lines);
}

/// Limits this process's address space to `kilobytes`, or removes the limit.
fn limit(kilobytes: Option<u64>) {
    let soft = kilobytes.map_or_else(|| "unlimited".to_owned(), |n| (n * 1024).to_string());
    let done =
        Command::new("prlimit").args([&format!("--pid={}", std::process::id()), &format!("--as={soft}:")]).status();
    assert!(done.unwrap().success(), "prlimit (util-linux) failed");
}

/// The size of this process's address space, in kB.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Runs in a child process: the limit would affect other tests in the same process.
#[test]
fn a_child_process_builds_a_plan_again_after_a_failure() {
    let Some((version, folder)) = of_this_process() else { return };
    let Some(compiler) = compiler(&version) else { return };
    let target = target(&compiler, "b200");
    let planner = Planner::new(vault(folder.as_ref()), Some(compiler));
    let ask = |attention: &Valid| planner.plan(attention, &target, &CompileOptions::cudnn(), OnMiss::Compile);
    planner.compiler().unwrap().library().check_engines().unwrap();
    // The need of a build depends on the allocator. Each attempt allows less memory, with another attention, until a
    // build fails.
    let failed = [40, 32, 24, 18, 12, 8, 4].into_iter().find_map(|megabytes| {
        let given = format!("pass: backward\nq: bf16 [1,2,{},64]\ndeterministic: yes", 128 * megabytes);
        let attention = validate(text::parse(&given).unwrap()).unwrap();
        limit(Some(address_space() + 1000 * megabytes));
        let answer = ask(&attention);
        limit(None);
        Some((attention, answer.err()?))
    });
    let (attention, error) = failed.unwrap();
    let failure: &Failure = error.failure().unwrap_or_else(|| panic!("no build failed: {error}"));
    assert!(failure.is_uncompiled() && failure.to_string().contains("ulimit -v"), "{failure}");
    let before = planner.vault().stats();
    let again = ask(&attention).unwrap();
    assert!(
        again.source == Source::Built
            && again.outcome.is_ok_and(|plan| plan.facts.cudnn().is_some_and(|own| own.passed_over.is_empty()))
    );
    let stats = planner.vault().stats();
    assert_eq!((stats.build_failures, stats.stores), (1, before.stores + 1));
    say("\nbuilt again");
}

/// A temporary failure must not be stored as the answer.
#[test]
fn a_failed_build_is_built_again_on_the_next_request() {
    if found("9.27.0").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let name = "a_child_process_builds_a_plan_again_after_a_failure";
    let out = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(TOLD, told("9.27.0", folder.path()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("built again"), "{text}{}", String::from_utf8_lossy(&out.stderr));
}
