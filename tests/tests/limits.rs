//! Workspace limits: the plan and the key for each limit, and the builds that it needs.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{Compiler, OnMiss, PlanError, Planner, RebuildCheck, Resolution};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{PlanKey, Valid, text, validate};
use qkvault_tests::cudnn::{compiler, target};

/// A planner with a newly opened vault, as in a new process.
fn planner(folder: &tempfile::TempDir, compiler: &Compiler) -> Planner {
    let vault = Vault::open(VaultOptions::in_folder(folder.path()).without_environment()).unwrap();
    Planner::new(vault, Some(compiler.clone()))
}

fn valid(given: &str) -> Valid {
    validate(text::parse(given).unwrap()).unwrap()
}

struct Asked<'a> {
    attention: &'a Valid,
    target: &'a Target,
}

impl Asked<'_> {
    fn of(&self, planner: &Planner, limit: Option<u64>, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        let policy = CompileOptions { workspace_limit: limit, ..CompileOptions::cudnn() };
        planner.plan(self.attention, self.target, &policy, on_miss)
    }
}

/// Limits around the needs of two engines, and limits of typical budgets.
const LIMITS: [Option<u64>; 9] = [
    None,
    Some(0),
    Some(1),
    Some(255),
    Some(256),
    Some(257),
    Some(70_000_000_000),
    Some(70_000_000_001),
    Some(u64::MAX),
];

/// Engine 2 comes first and needs 256 bytes; engine 1 needs none. Once, the limit was part of the key, and each limit
/// cost a build.
#[test]
fn a_warm_vault_serves_every_limit_without_a_build() {
    let Some(compiler) = compiler("9.27.0") else { return };
    let (target, folder) = (target(&compiler, "h200"), tempfile::tempdir().unwrap());
    let attention = valid("q: bf16 [1,8,256,64]\nk: [1,2,256,64]\nmask: causal");
    let asked = Asked { attention: &attention, target: &target };

    let warm = planner(&folder, &compiler);
    let first = asked.of(&warm, None, OnMiss::Compile).unwrap();
    let least = asked.of(&warm, Some(0), OnMiss::Compile).unwrap();
    let facts = |answer: &Resolution| answer.outcome.as_ref().unwrap().facts.clone();
    assert_eq!((facts(&first).scratch().bytes, facts(&least).scratch().bytes), (256, 0));
    assert!(first.key != least.key && warm.vault().stats().builds == 2);

    for build in [OnMiss::Compile, OnMiss::Load] {
        let cold = planner(&folder, &compiler);
        for limit in LIMITS {
            let answer = asked.of(&cold, limit, build).unwrap();
            let expected = if limit.is_some_and(|limit| limit < 256) { &least } else { &first };
            assert_eq!(answer.key, expected.key, "{limit:?}");
            assert_eq!(facts(&answer), facts(expected), "{limit:?}");
            // The plan is in memory now, so `OnMiss::Memory` finds it.
            assert_eq!(asked.of(&cold, limit, OnMiss::Memory).unwrap().key, expected.key);
        }
        assert_eq!(cold.vault().stats().builds, 0);
    }
    assert_eq!(warm.vault().usage().entries, 2);
    // Rebuilding with the stored choice gives the same plan.
    for listed in warm.vault().ls() {
        let (_, entry) = warm.vault().show(&listed.key).into_iter().next().unwrap();
        let deep = warm.engines().verify(PlanKey::from_bytes(listed.key.0), &entry.unwrap());
        assert!(matches!(deep, RebuildCheck::Same { .. }), "{deep:?}");
    }
}

/// A plan's facts decide about a limit. A refusal for one limit is not stored, because another limit has another
/// answer.
#[test]
fn a_refusal_for_a_limit_is_not_stored_and_names_the_smallest_workspace() {
    let Some(compiler) = compiler("9.27.0") else { return };
    let (target, folder) = (target(&compiler, "h200"), tempfile::tempdir().unwrap());
    let attention = valid("pass: backward\nq: bf16 [1,2,1024,64]\ndeterministic: yes");
    let asked = Asked { attention: &attention, target: &target };
    let warm = planner(&folder, &compiler);
    let refusal = asked.of(&warm, Some(1000), OnMiss::Compile).unwrap().outcome.unwrap_err();
    assert!(refusal.has(&codes::WORKSPACE_QUADRATIC), "{refusal}");
    let entries = warm.vault().usage().entries;
    let listed = warm.vault().ls().map(|listed| listed.header.unwrap().kind.to_string());
    assert!(listed.collect::<Vec<_>>().iter().all(|kind| kind == "plan"));

    let cold = planner(&folder, &compiler);
    let words = refusal.reasons()[0].given.clone();
    let needed: u64 = words.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    let fits = asked.of(&cold, Some(needed), OnMiss::Load).unwrap();
    assert_eq!(fits.outcome.unwrap().facts.scratch().bytes, needed);
    let less = asked.of(&cold, Some(needed - 1), OnMiss::Load).unwrap().outcome.unwrap_err();
    assert_eq!(less.reasons()[0].given, words);
    assert_eq!((cold.vault().stats().builds, cold.vault().usage().entries), (0, entries));
}

/// The facts of the first plan decide whether it is within a limit. If it is not, the second plan is needed.
#[test]
fn a_miss_for_a_limit_names_the_key_of_the_missing_plan() {
    let Some(compiler) = compiler("9.27.0") else { return };
    let (target, folder) = (target(&compiler, "h200"), tempfile::tempdir().unwrap());
    let attention = valid("q: bf16 [1,8,256,64]");
    let asked = Asked { attention: &attention, target: &target };
    let planner = planner(&folder, &compiler);
    let missing = |limit, build| match asked.of(&planner, limit, build) {
        Err(PlanError::Missing { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    let first = missing(Some(0), OnMiss::Load);
    assert_eq!(missing(None, OnMiss::Memory), first);
    let built = asked.of(&planner, None, OnMiss::Compile).unwrap();
    assert_eq!(built.key, Some(first));
    let least = missing(Some(0), OnMiss::Load);
    assert_ne!(least, first);
    assert_eq!(asked.of(&planner, Some(0), OnMiss::Compile).unwrap().key, Some(least));
}
