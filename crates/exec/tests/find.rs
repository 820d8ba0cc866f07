//! Which stored plans are looked for on a machine, in which order, and what becomes of what is found.

mod common;

use std::cell::RefCell;

use common::{forward, h200};
use qkvault_cache::{Entry, EntryKind, Key, Vault, VaultOptions};
use qkvault_exec::{DRIVERS, LoadError, Machine, PrepareError, Prepared, candidates, check_fit, prepare};
use qkvault_graph::{
    Attention, CudnnVersion, DType, Layer, LibrarySet, PlanKey, Policy, Reason, Refusal, Target, Valid, codec, lower,
    plan_key, validate,
};
use qkvault_probe::{BuildPolicy, Plan, PlanError, PlanFacts, Planner};

const OLD: CudnnVersion = CudnnVersion::v9(19, 0);
const NEW: CudnnVersion = CudnnVersion::v9(27, 0);

fn attention() -> Valid {
    validate(Attention::bshd(1, (4, 4), (128, 128), 64, DType::BF16)).expect("valid")
}

fn key(target: &Target) -> PlanKey {
    let policy = Policy::default();
    plan_key(&lower(&attention(), target, &policy).expect("lowers"), target, &policy)
}

fn vault() -> Vault {
    Vault::in_memory(VaultOptions::new())
}

/// Puts a plan under a target's key, as compiling for that target would.
fn store(vault: &Vault, target: &Target) {
    let facts = PlanFacts { key: key(target), ..forward(target) };
    let plan = Plan { facts, blob: [1, 2, 3].into() };
    let _ = vault.put(&Key(*key(target).bytes()), plan.to_entry(target));
}

fn with(here: &Target, driver: i64, libraries: LibrarySet) -> Target {
    let mut target = Target { libraries, ..here.clone() };
    target.device.driver_ver = driver;
    target
}

#[test]
fn own_target_first_then_the_other_set_then_older_drivers() {
    let labels = |here: &Target| {
        let all = candidates(here).into_iter();
        all.map(|t| (t.device.driver_ver, t.libraries == here.libraries)).collect::<Vec<_>>()
    };
    let old = with(&h200(OLD), 13_000, LibrarySet::Full);
    assert_eq!(labels(&old), [(13_000, true), (13_000, false)]);
    let new = with(&h200(NEW), 13_010, LibrarySet::Slim);
    let drivers = [13_010, 13_000, 12_090, 12_080];
    assert_eq!(labels(&new), drivers.map(|d| [(d, true), (d, false)]).as_flattened());
    // A driver that is not in the list still finds its own plans and those of older ones.
    let between = with(&h200(NEW), 13_005, LibrarySet::Slim);
    assert_eq!(labels(&between)[..3], [(13_005, true), (13_005, false), (13_000, true)]);
    assert!(DRIVERS.is_sorted_by(|a, b| a > b));
}

#[test]
fn every_candidate_fits_and_has_a_key_of_its_own() {
    for here in [h200(OLD), with(&h200(NEW), 13_040, LibrarySet::Full)] {
        let targets = candidates(&here);
        let mut keys: Vec<PlanKey> = targets.iter().map(key).collect();
        for target in &targets {
            check_fit(&forward(target), &Machine::of(&here)).expect("a candidate loads here");
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), targets.len());
    }
}

type Outcome = Result<Prepared<Target>, PrepareError>;

/// Prepares on a machine with `there` stored, refusing to load what `refused` says; gives what was tried to load, too.
fn run(here: &Target, there: &[Target], build: BuildPolicy, refused: &[Target]) -> (Outcome, Vec<PlanKey>) {
    let vault = vault();
    there.iter().for_each(|target| store(&vault, target));
    let tried = RefCell::new(Vec::new());
    let load = |plan: &Plan| {
        tried.borrow_mut().push(plan.facts.key);
        match refused.iter().find(|t| key(t) == plan.facts.key) {
            Some(_) => Err(LoadError::Length { key: plan.facts.key, what: String::new(), expected: 1, found: 2 }),
            None => Ok(here.clone()),
        }
    };
    let outcome = prepare(&Planner::new(vault, None), here, &attention(), &Policy::default(), build, load);
    (outcome, tried.into_inner())
}

#[test]
fn the_exact_plan_is_taken_before_others_and_others_before_a_build() {
    let here = with(&h200(NEW), 13_010, LibrarySet::Slim);
    let older = with(&here, 12_080, LibrarySet::Slim);
    let other_set = with(&here, 13_010, LibrarySet::Full);
    for build in [BuildPolicy::LoadOnly, BuildPolicy::BuildIfMissing] {
        for (there, wanted) in [
            (vec![older.clone(), other_set.clone(), here.clone()], &here),
            (vec![older.clone(), other_set.clone()], &other_set),
            (vec![older.clone()], &older),
        ] {
            let (outcome, tried) = run(&here, &there, build, &[]);
            assert_eq!(&outcome.expect("it is there").target, wanted);
            assert_eq!(tried, [key(wanted)]);
        }
    }
}

#[test]
fn a_plan_of_a_newer_driver_is_not_looked_for() {
    let here = h200(NEW);
    let newer = with(&here, 13_010, LibrarySet::Slim);
    let (outcome, tried) = run(&here, &[newer], BuildPolicy::LoadOnly, &[]);
    assert!(matches!(outcome, Err(PrepareError::Plan(PlanError::Missing { .. }))) && tried.is_empty());
}

#[test]
fn p13_what_is_missing_is_an_error_that_names_the_key_of_this_machine() {
    let here = h200(NEW);
    let (outcome, _) = run(&here, &[], BuildPolicy::LoadOnly, &[]);
    let Err(PrepareError::Plan(PlanError::Missing { key: named, .. })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(named, key(&here));
    // Building was allowed, and there is nothing to build with.
    let (outcome, _) = run(&here, &[], BuildPolicy::BuildIfMissing, &[]);
    let Err(PrepareError::Plan(PlanError::NoCompiler { key: named })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(named, key(&here));
}

#[test]
fn another_targets_plan_that_does_not_load_is_passed_over_and_ones_own_is_an_error() {
    let here = with(&h200(NEW), 13_010, LibrarySet::Slim);
    let other_set = with(&here, 13_010, LibrarySet::Full);
    let older = with(&here, 13_000, LibrarySet::Slim);
    let there = [other_set.clone(), older.clone()];
    let (outcome, tried) = run(&here, &there, BuildPolicy::LoadOnly, std::slice::from_ref(&other_set));
    assert_eq!(outcome.expect("the older driver's loads").target, older);
    assert_eq!(tried, [key(&other_set), key(&older)]);

    let (outcome, _) =
        run(&here, std::slice::from_ref(&here), BuildPolicy::BuildIfMissing, std::slice::from_ref(&here));
    assert!(matches!(outcome, Err(PrepareError::Load(LoadError::Length { .. }))), "{outcome:?}");
}

#[test]
fn p46_a_plan_over_the_budget_is_not_called_missing_whichever_target_it_is_of() {
    let here = with(&h200(OLD), 13_000, LibrarySet::Full);
    let slim = with(&here, 13_000, LibrarySet::Slim);
    let vault = vault();
    store(&vault, &slim);
    let load = |plan: &Plan| -> Result<(), LoadError> {
        let (key, what) = (plan.facts.key, plan.facts.what.clone());
        Err(LoadError::WorkspaceTooLarge { key, what, need: 1024, budget: 0, quadratic: false })
    };
    for build in [BuildPolicy::LoadOnly, BuildPolicy::BuildIfMissing] {
        let planner = Planner::new(vault.clone(), None);
        let outcome = prepare(&planner, &here, &attention(), &Policy::default(), build, load);
        assert!(matches!(outcome, Err(PrepareError::Load(LoadError::WorkspaceTooLarge { .. }))), "{outcome:?}");
    }
}

#[test]
fn a_refusal_of_ones_own_target_is_the_answer_and_anothers_is_not() {
    let here = h200(NEW);
    let other_set = with(&here, 13_000, LibrarySet::Full);
    let refuse = |vault: &Vault, target: &Target| {
        let reason = Reason::new(Layer::Library, "library.plan", "heuristics", "no engine", "another graph", "none");
        let entry = Entry {
            kind: EntryKind::Refusal,
            target: target.label(),
            what: String::new(),
            library: target.cudnn.to_string(),
            meta: Vec::new(),
            payload: codec::encode(&Refusal::from(reason)),
        };
        let _ = vault.put(&Key(*key(target).bytes()), entry);
    };
    for (refused, planned) in [(&here, &other_set), (&other_set, &with(&here, 12_080, LibrarySet::Slim))] {
        let vault = vault();
        refuse(&vault, refused);
        store(&vault, planned);
        let planner = Planner::new(vault, None);
        let load = |_: &Plan| Ok(());
        let outcome = prepare(&planner, &here, &attention(), &Policy::default(), BuildPolicy::LoadOnly, load);
        if refused == &here {
            let Err(PrepareError::Refused(refusal)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(refusal.reasons()[0].code, "library.plan");
        } else {
            assert_eq!(&outcome.expect("another plan is there").target, planned);
        }
    }
}
