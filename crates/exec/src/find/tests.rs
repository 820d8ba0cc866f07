//! The look-up of stored plans: their order, and what happens with each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use qkvault_cache::{Entry, EntryKind, Key, Remote, RemoteError, RemoteOptions, Vault, VaultOptions};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompilerEnv, HostArch, NvrtcVersion, Toolchain, lower, plan_key};
use qkvault_graph::{Attention, CudnnVersion, DType, LibrarySet, PlanKey, codec, validate};

use qkvault_compile::host::{DRIVERS, NVRTCS, candidates};
use qkvault_compile::{CUDNN, FA4, KERNELS, Machine, check_fit};
use qkvault_graph::EnginePolicy;

use super::*;
use crate::common::{forward, h200};

const OLD: CudnnVersion = CudnnVersion::v9(19, 0);
const NEW: CudnnVersion = CudnnVersion::v9(27, 0);

/// A decode that kernels were measured to be faster for.
fn paged_decode() -> Valid {
    let mut a = Attention::bshd(8, (32, 8), (1, 1024), 128, DType::BF16).with_lengths();
    a.k = qkvault_graph::Tensor::paged_nhd(8, 8, 1024, 128, 128, 64, DType::BF16);
    a.v = a.k;
    validate(a).expect("valid")
}

fn attention() -> Valid {
    validate(Attention::bshd(1, (4, 4), (128, 128), 64, DType::BF16)).expect("valid")
}

fn key(target: &Target) -> PlanKey {
    key_of(&attention(), target)
}

fn key_of(attention: &Valid, target: &Target) -> PlanKey {
    let policy = CompileOptions::default();
    plan_key(&lower(attention, target, &policy).expect("lowers"), target, &policy)
}

fn vault() -> Vault {
    Vault::in_memory(VaultOptions::new())
}

/// Stores a plan under the key of a target.
fn store(vault: &Vault, target: &Target) {
    store_as(vault, &attention(), target);
}

fn store_as(vault: &Vault, attention: &Valid, target: &Target) {
    let (key, entry) = Planner::entry_over(attention, target, &[1, 2, 3]).expect("lowers");
    let _ = vault.put(&Key(*key.bytes()), entry);
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
    let each_nvrtc = [[(13_000, true), (13_000, false)]; 6];
    assert_eq!(
        labels(&old),
        each_nvrtc.as_flattened(),
        "the driver of 13.0 loads what every NVRTC of CUDA 13 compiles"
    );
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
            check_fit(&forward(target), &Machine::from_target(&here)).expect("a candidate loads here");
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), targets.len());
    }
}

type PrepareOutcome = Result<Prepared<Target>, PrepareError>;

/// Prepares with the plans of `there` stored, and refuses to load those of `refused`. Also returns the loads it tried.
fn run(here: &Target, there: &[Target], on_miss: OnMiss, refused: &[Target]) -> (PrepareOutcome, Vec<PlanKey>) {
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
    let outcome = prepare(&Planner::new(vault, None), here, &attention(), &CompileOptions::cudnn(), on_miss, load);
    (outcome, tried.into_inner())
}

#[test]
fn the_exact_plan_is_taken_before_others_and_others_before_a_build() {
    let here = with(&h200(NEW), 13_010, LibrarySet::Slim);
    let older = with(&here, 12_080, LibrarySet::Slim);
    let other_set = with(&here, 13_010, LibrarySet::Full);
    for on_miss in [OnMiss::Load, OnMiss::Compile] {
        for (there, wanted) in [
            (vec![older.clone(), other_set.clone(), here.clone()], &here),
            (vec![older.clone(), other_set.clone()], &other_set),
            (vec![older.clone()], &older),
        ] {
            let (outcome, tried) = run(&here, &there, on_miss, &[]);
            assert_eq!(outcome.expect("it is there").target.as_ref(), Some(wanted));
            assert_eq!(tried, [key(wanted)]);
        }
    }
}

#[test]
fn a_plan_of_a_newer_driver_is_not_looked_for() {
    let here = h200(NEW);
    let newer = with(&here, 13_010, LibrarySet::Slim);
    let (outcome, tried) = run(&here, &[newer], OnMiss::Load, &[]);
    assert!(matches!(outcome, Err(PrepareError::Plan(PlanError::Missing { .. }))) && tried.is_empty());
}

#[test]
fn what_is_missing_is_an_error_that_names_the_key_of_this_machine() {
    let here = h200(NEW);
    let (outcome, _) = run(&here, &[], OnMiss::Load, &[]);
    let Err(PrepareError::Plan(PlanError::Missing { key: named, .. })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(named, key(&here));
    // A build is allowed, and there is no compiler.
    let (outcome, _) = run(&here, &[], OnMiss::Compile, &[]);
    let Err(PrepareError::Plan(PlanError::NoCompiler { key: named, .. })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(named, key(&here));
}

#[test]
fn another_targets_plan_that_does_not_load_is_passed_over_and_ones_own_is_an_error() {
    let here = with(&h200(NEW), 13_010, LibrarySet::Slim);
    let other_set = with(&here, 13_010, LibrarySet::Full);
    let older = with(&here, 13_000, LibrarySet::Slim);
    let there = [other_set.clone(), older.clone()];
    let (outcome, tried) = run(&here, &there, OnMiss::Load, std::slice::from_ref(&other_set));
    assert_eq!(outcome.expect("the older driver's loads").target.as_ref(), Some(&older));
    assert_eq!(tried, [key(&other_set), key(&older)]);

    let (outcome, _) = run(&here, std::slice::from_ref(&here), OnMiss::Compile, std::slice::from_ref(&here));
    assert!(matches!(outcome, Err(PrepareError::Load(LoadError::Length { .. }))), "{outcome:?}");
}

#[test]
fn a_plan_over_the_limit_is_not_called_missing_whichever_target_it_is_of() {
    let here = with(&h200(OLD), 13_000, LibrarySet::Full);
    let slim = with(&here, 13_000, LibrarySet::Slim);
    let vault = vault();
    store(&vault, &slim);
    let load = |plan: &Plan| -> Result<(), LoadError> {
        let (key, what) = (plan.facts.key, plan.facts.what.clone());
        Err(LoadError::WorkspaceTooLarge { key, what, need: 1024, limit: 0, quadratic: false })
    };
    for on_miss in [OnMiss::Load, OnMiss::Compile] {
        let planner = Planner::new(vault.clone(), None);
        let outcome = prepare(&planner, &here, &attention(), &CompileOptions::cudnn(), on_miss, load);
        assert!(matches!(outcome, Err(PrepareError::Load(LoadError::WorkspaceTooLarge { .. }))), "{outcome:?}");
    }
}

#[test]
fn a_refusal_of_ones_own_target_is_the_answer_and_anothers_is_not() {
    let here = h200(NEW);
    let other_set = with(&here, 13_000, LibrarySet::Full);
    let refuse = |vault: &Vault, target: &Target| {
        let reason =
            codes::LIBRARY_PLAN.reason("no engine").at("heuristics").with_needed("another graph").with_fix("none");
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
        let outcome = prepare(&planner, &here, &attention(), &CompileOptions::cudnn(), OnMiss::Load, load);
        if refused == &here {
            let Err(PrepareError::Refused(refusal)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(refusal.reasons()[0].code, codes::LIBRARY_PLAN);
        } else {
            assert_eq!(outcome.expect("another plan is there").target.as_ref(), Some(planned));
        }
    }
}

/// The key has the NVRTC, and a machine that only loads may have another one than the machine that compiled.
#[test]
fn plans_of_every_nvrtc_of_the_drivers_cuda_are_looked_for_and_of_nothing_else() {
    let mut here = with(&h200(OLD), 13_020, LibrarySet::Slim);
    here.toolchain.environment = CompilerEnv::from_variables([("CUDNN_USE_EX2_EMULATION".into(), "0".into())]);
    let nvrtc = |target: &Target| target.toolchain.nvrtc.expect("9.19 has its NVRTC outside").to_string();
    let all = candidates(&here);
    let slim: Vec<String> = all.iter().filter(|t| t.libraries == LibrarySet::Slim).map(nvrtc).collect();
    assert_eq!(slim, ["13.0", "13.5", "13.4", "13.3", "13.2", "13.1"], "its own, then the newest of its CUDA");
    for target in &all {
        let Toolchain { cuda, nvrtc: _, host, environment } = &target.toolchain;
        assert_eq!((cuda, host, environment), (&13, &here.toolchain.host, &here.toolchain.environment));
        check_fit(&forward(target), &Machine::from_target(&here)).expect("a candidate loads here");
    }
    // A machine with an NVRTC looks for that first, also if it is too new or not in the list.
    for (own, first) in [((13, 1), ["13.1", "13.0"]), ((13, 9), ["13.9", "13.0"])] {
        here.toolchain.nvrtc = Some(NvrtcVersion::new(own.0, own.1));
        let all = candidates(&here);
        let mut found: Vec<String> = all.iter().map(nvrtc).collect();
        found.dedup();
        assert_eq!(found[..2], first);
        assert_eq!(all[0], here);
    }
    assert!(candidates(&h200(NEW)).iter().all(|t| t.toolchain.nvrtc.is_none()));
    assert!(NVRTCS.contains(&Toolchain::FETCHED_NVRTC));
}

/// The error for a plan of another CUDA build, or of another host, names the difference.
#[test]
fn a_plan_of_another_cuda_build_or_host_is_refused_with_both() {
    let here = h200(NEW);
    let mut there = here.clone();
    there.toolchain.cuda = 12;
    there.toolchain.host = HostArch::Other;
    let error = check_fit(&forward(&there), &Machine::from_target(&here)).expect_err("another build").to_string();
    for words in ["CUDA 12 build", "CUDA 13 is loaded", "other architecture", &here.toolchain.host.to_string()] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

/// A cuDNN that reports one more property of the GPU loads plans that were compiled with it and without it.
#[test]
fn a_property_of_a_newer_cudnn_does_not_stop_a_load_from_a_warm_vault() {
    let newest = CudnnVersion::v9(29, 0);
    let plain = h200(newest);
    let json = plain.device.json_for(newest).expect("complete").replacen('{', r#"{"tensorMemory":262144,"#, 1);
    let here = Target { device: serde_json::from_str(&json).expect("reads"), ..plain.clone() };
    assert_ne!(key(&here), key(&plain), "it may change what is compiled");
    for (there, wanted) in [(vec![here.clone(), plain.clone()], &here), (vec![plain.clone()], &plain)] {
        let (outcome, tried) = run(&here, &there, OnMiss::Load, &[]);
        assert_eq!(outcome.expect("it is in the vault").target.as_ref(), Some(wanted));
        assert_eq!(tried, [key(wanted)]);
    }
    // A version that is known not to report it is not affected.
    let known = Target { cudnn: NEW, ..here };
    assert_eq!(key(&known), key(&h200(NEW)));
}

/// A slow remote store that records the keys of its requests.
#[derive(Clone, Default)]
struct Slow {
    has: BTreeMap<Key, Vec<u8>>,
    asked: Arc<Mutex<Vec<Key>>>,
}

const TAKES: Duration = Duration::from_millis(150);

impl Remote for Slow {
    fn location(&self) -> String {
        "slow".to_owned()
    }

    fn fetch(&self, key: &Key, _: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        self.asked.lock().expect("no panic").push(*key);
        std::thread::sleep(TAKES);
        Ok(self.has.get(key).cloned())
    }

    fn store(&self, _: &Key, _: &[u8], _: Duration) -> Result<(), RemoteError> {
        Ok(())
    }
}

/// The bytes of an entry's file, which a remote has too.
fn file(key: &Key, entry: Entry) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let vault = Vault::open(VaultOptions::in_folder(folder.path()).without_environment()).expect("a vault");
    vault.put(key, entry).expect("a plan");
    std::fs::read(vault.ls().next().expect("it is there").path).expect("it can be read")
}

/// Prepares with a remote that has the plans of `there`. Returns the outcome, the loads that were tried, the number of
/// requests to the remote, and the time.
fn over_remote(here: &Target, there: &[Target], on_miss: OnMiss) -> (PrepareOutcome, Vec<PlanKey>, usize, Duration) {
    let mut slow = Slow::default();
    for target in there {
        let (key, entry) = Planner::entry_over(&attention(), target, &[1, 2, 3]).expect("lowers");
        let name = Key(*key.bytes());
        slow.has.insert(name, file(&name, entry));
    }
    let asked = Arc::clone(&slow.asked);
    let folder = tempfile::tempdir().expect("a folder");
    let remote = RemoteOptions { deadline: 100 * TAKES, ..RemoteOptions::new(slow) };
    let vault = VaultOptions::in_folder(folder.path()).without_environment().remote(remote);
    let planner = Planner::new(Vault::open(vault).expect("a vault"), None);
    let tried = RefCell::new(Vec::new());
    let load = |plan: &Plan| {
        tried.borrow_mut().push(plan.facts.key);
        Ok(here.clone())
    };
    let started = Instant::now();
    let outcome = prepare(&planner, here, &attention(), &CompileOptions::cudnn(), on_miss, load);
    let (took, asked) = (started.elapsed(), asked.lock().expect("no panic").len());
    (outcome, tried.into_inner(), asked, took)
}

/// Sixteen candidates once cost sixteen round trips to a slow remote before "missing", and a build two more.
#[test]
fn a_miss_costs_one_round_trip_to_a_slow_remote_whatever_there_is_to_look_for() {
    let here = with(&h200(NEW), 13_050, LibrarySet::Slim);
    let all = candidates(&here);
    assert!(all.len() >= 16);
    for on_miss in [OnMiss::Load, OnMiss::Compile] {
        let (outcome, _, asked, took) = over_remote(&here, &[], on_miss);
        let missing = |error: &PlanError| matches!(error, PlanError::Missing { .. } | PlanError::NoCompiler { .. });
        assert!(matches!(&outcome, Err(PrepareError::Plan(error)) if missing(error)), "{outcome:?}");
        assert_eq!(asked, all.len(), "each key once: {on_miss:?}");
        assert!(took < 8 * TAKES, "{took:?} for {} keys of {TAKES:?} each", all.len());
    }
    let (_, _, asked, _) = over_remote(&here, &[], OnMiss::Memory);
    assert_eq!(asked, 0, "code that must not wait does not");
}

#[test]
fn what_a_remote_has_is_taken_in_the_order_of_preference() {
    let here = with(&h200(NEW), 13_050, LibrarySet::Slim);
    let (older, full) = (with(&here, 13_000, LibrarySet::Slim), with(&here, 13_050, LibrarySet::Full));
    for (there, wanted) in
        [(vec![older.clone(), full.clone(), here.clone()], &here), (vec![older.clone(), full.clone()], &full)]
    {
        let (outcome, tried, ..) = over_remote(&here, &there, OnMiss::Load);
        assert_eq!(outcome.expect("the remote has it").target.as_ref(), Some(wanted));
        assert_eq!(tried, [key(wanted)]);
    }
}

/// A host without cuDNN had no runtime at all.
#[test]
fn a_host_without_cudnn_loads_plans_of_kernels_and_is_told_when_another_plan_needs_cudnn() {
    use crate::raw::session::SessionError;
    let nowhere = tempfile::tempdir().expect("is made");
    let no_cudnn = || match qkvault_sys::Library::open(&qkvault_sys::Search::at(nowhere.path())) {
        Ok(_) => panic!("an empty folder has no cuDNN"),
        Err(error) => Err(PrepareError::Session(SessionError::NoCudnn(error))),
    };
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
    let ask = |attention: &Valid, engine| {
        let options = CompileOptions { engine, ..CompileOptions::default() };
        let load = |_: &Plan| -> Result<(), LoadError> { panic!("there is none") };
        prepare_on(&planner, 90, no_cudnn, attention, &options, OnMiss::Load, load).map(drop)
    };
    let decode = paged_decode();
    // Its plan is looked for by the architecture alone.
    for engine in [KERNELS.policy(), EnginePolicy::Auto] {
        let error = ask(&decode, engine).expect_err("nothing is stored");
        assert!(
            matches!(&error, PrepareError::Plan(PlanError::Missing { target, .. }) if target == "sm_90a"),
            "{error}"
        );
    }
    // What kernels do not take, or what the caller wants of cuDNN, names cuDNN.
    let mut dropped = Attention::bshd(1, (8, 8), (64, 64), 64, DType::BF16);
    dropped.dropout = Some(qkvault_graph::Dropout::new(qkvault_graph::DropoutSource::Philox, 0.1));
    for (attention, engine) in [(dropped.validate().expect("valid"), EnginePolicy::Auto), (decode, CUDNN.policy())] {
        let error = ask(&attention, engine).expect_err("no cuDNN").to_string();
        assert!(error.contains("a plan of cuDNN is needed") && error.contains("no cuDNN here"), "{error}");
    }
}

/// A vault that was filled before FlashAttention-4 was an engine, and a program that compiles: seconds of compiling are
/// not spent where a stored plan serves.
#[test]
fn a_stored_plan_of_cudnn_is_taken_before_that_of_a_faster_engine_is_compiled() {
    use qkvault_compile::Why;
    let (here, vault) = (h200(OLD), vault());
    let prompt = Attention::bshd(4, (16, 16), (4096, 4096), 128, DType::BF16).causal();
    for attention in [prompt.clone().with_stats().backward(Default::default()), prompt.clone(), prompt.with_stats()] {
        let attention = attention.validate().expect("valid");
        store_as(&vault, &attention, &here);
        let planner = Planner::new(vault.clone(), None);
        let options = CompileOptions::default();
        assert_eq!(planner.candidates(&attention, here.sm(), options.engine).engines[0], FA4);
        for on_miss in [OnMiss::Load, OnMiss::Compile] {
            let load = |plan: &Plan| Ok(plan.facts.key);
            let found = prepare(&planner, &here, &attention, &options, on_miss, load).expect("cuDNN's");
            let choice = found.answer.engine;
            assert_eq!((found.plan, choice.engine), (key_of(&attention, &here), CUDNN));
            assert_eq!((choice.why, choice.passed[0].engine), (Why::OthersHaveNone, FA4));
        }
    }
}

/// PyTorch's door built plans and kept to a stored one of FlashAttention-4 that took 1.2 times as long as cuDNN's: a
/// second of compiling is worth it, and where that does not work the stored one serves.
#[test]
fn a_clearly_faster_plan_that_compiles_in_a_second_is_compiled_beside_a_stored_slower_one() {
    let (here, vault) = (h200(OLD), vault());
    let decode = paged_decode();
    store_as(&vault, &decode, &here);
    let planner = Planner::new(vault, None);
    let candidates = planner.candidates(&decode, here.sm(), EnginePolicy::Auto);
    assert_eq!((candidates.engines[0], candidates.near), (KERNELS, 1));
    let load = |plan: &Plan| Ok(plan.facts.key);
    let found = prepare(&planner, &here, &decode, &CompileOptions::default(), OnMiss::Compile, load).expect("a plan");
    let choice = &found.answer.engine;
    match qkvault_compile::Nvrtc::open(None) {
        Ok(_) => {
            assert_eq!((choice.engine, &found.answer.source), (KERNELS, &qkvault_cache::Source::Built), "{choice}")
        }
        Err(_) => assert_eq!((choice.engine, found.plan), (CUDNN, key_of(&decode, &here)), "{choice}"),
    }
}

/// A vault that was filled before kernels were there, or by a host without NVRTC, serves as before.
#[test]
fn a_stored_plan_of_cudnn_is_taken_where_the_faster_kernels_are_not_stored() {
    use qkvault_compile::Why;
    let (here, vault) = (h200(OLD), vault());
    let decode = paged_decode();
    let chosen = qkvault_compile::Engines::built_in().candidates(&decode, here.sm(), EnginePolicy::Auto);
    assert_eq!((chosen.engines[0], matches!(chosen.why, Why::Measured { .. })), (KERNELS, true));
    store_as(&vault, &decode, &here);
    let planner = Planner::new(vault, None);
    let load = |plan: &Plan| Ok(plan.facts.key);
    let options = CompileOptions::default();
    let found = prepare(&planner, &here, &decode, &options, OnMiss::Load, load).expect("cuDNN's");
    assert_eq!((found.plan, found.target.as_ref()), (key_of(&decode, &here), Some(&here)));
    let choice = found.answer.engine;
    assert_eq!((choice.engine, &choice.why), (CUDNN, &Why::OthersHaveNone));
    assert_eq!(choice.passed[0].engine, KERNELS, "{choice}");
    // One that names kernels gets no other.
    let named = CompileOptions { engine: KERNELS.policy(), ..options };
    let missing = prepare(&planner, &here, &decode, &named, OnMiss::Load, load).expect_err("it is not stored");
    assert!(matches!(missing, PrepareError::Plan(PlanError::Missing { .. })), "{missing}");
}

#[test]
fn a_missing_plan_of_kernels_is_one_plan_whatever_the_gpu_of_the_architecture_and_the_cudnn() {
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
    let attention = Attention::bshd(1, (8, 2), (1, 512), 64, DType::BF16).validate().expect("valid");
    let options = CompileOptions { engine: KERNELS.policy(), ..CompileOptions::default() };
    let missing = |profile: &str, cudnn| {
        let here = qkvault_cudnn::Profile::named(profile).expect("built in").target(cudnn, LibrarySet::Slim);
        let load = |_: &Plan| -> Result<(), LoadError> { panic!("there is none") };
        match prepare(&planner, &here, &attention, &options, OnMiss::Load, load) {
            Err(PrepareError::Plan(PlanError::Missing { key, target, .. })) => (key, target),
            other => panic!("{other:?}"),
        }
    };
    let first = missing("h200", CudnnVersion::v9(19, 0));
    assert_eq!(first.1, "sm_90a");
    assert_eq!(missing("h100-pcie", CudnnVersion::v9(27, 0)), first);
}
