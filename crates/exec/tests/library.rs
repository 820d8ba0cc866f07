//! Loading with the real cuDNN and without a GPU: for each change of the machine, cuDNN loads or refuses a plan as the
//! rules predict.
//!
//! The tests need a fetched slim cuDNN of each version. Without it they are skipped, or fail with
//! `QKVAULT_REQUIRE=cudnn`.

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{changes, of_machine, say, with};
use qkvault_cache::{Entry, Key, Source, Vault, VaultOptions};
use qkvault_compile::{Compiler, Failure, OnMiss, Plan, PlanError, Planner};
use qkvault_cudnn::{CompileOptions, Profile, Target};
use qkvault_exec::testing::{check_fit, would_load};
use qkvault_exec::{LoadError, Machine, Mismatch, PrepareError, prepare};
use qkvault_graph::{Attention, Band, DType, codec, validate};
use qkvault_skip::{Need, skip};
use qkvault_sys::{CudnnVersion, Error, Library, Search, Status};

const ALONE: &str = "QKVAULT_TEST_CHILD";

/// Runs the body of a test in a process of its own, because a process loads one cuDNN.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return body();
    }
    let program = std::env::current_exe().expect("a test has a program");
    let done = Command::new(program).args(["--exact", test, "--nocapture"]).env(ALONE, test).output();
    let done = done.expect("it can be started");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{test}, run alone, ended with {}:\n{said}", done.status);
    assert!(said.contains("1 passed"), "{test} is not the name of a test:\n{said}");
    say(&said);
}

/// A plan for an H200, with the library that compiled it and its target.
fn plan(version: CudnnVersion) -> Option<(Arc<Library>, Target, Arc<Plan>)> {
    let search = Search::default().version(version).set(qkvault_sys::LibrarySet::Slim);
    let compiler = match Compiler::open(&search) {
        Ok(compiler) => compiler,
        Err(Failure::Broken(Error::Load(error))) => {
            skip(Need::Cudnn, &format!("no cuDNN {version} (slim): {error}"));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let library = Arc::clone(compiler.library());
    let target = compiler.target(&Profile::named("h200").expect("built in"));
    let attention = Attention::bshd(1, (8, 2), (512, 512), 64, DType::BF16).with_band(Band::CAUSAL).with_stats();
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), Some(compiler));
    let attention = validate(attention).expect("valid");
    let answer = planner.plan(&attention, &target, &CompileOptions::cudnn(), OnMiss::Compile);
    let plan = answer.expect("it can be compiled").outcome.expect("cuDNN takes it");
    Some((library, target, plan))
}

fn rules_and_library_agree(version: CudnnVersion) {
    let Some((library, target, plan)) = plan(version) else { return };
    for (name, change) in changes() {
        let mut here = target.clone();
        change(&mut here);
        let rules = check_fit(&plan.facts, &Machine::from_target(&here));
        // With the facts of the machine itself the rules pass, so that cuDNN decides.
        let library = would_load(&library, &of_machine(&plan, &here), &here);
        assert_eq!(rules.is_ok(), library.is_ok(), "{version}, {name}: {rules:?} by the rules, {library:?} by cuDNN");
        if let Err(error) = library {
            let text = error.to_string();
            assert!(text.contains("3007") && text.contains("profile capture"), "{name}: {text}");
        }
    }
    refusals_tell_what_to_do(&library, &target, &plan);
    loading_is_fast(&library, &target, &plan);
}

fn refusals_tell_what_to_do(library: &Arc<Library>, target: &Target, plan: &Plan) {
    // Bytes that are not a plan, with matching facts.
    for bytes in [&plan.blob[..plan.blob.len() / 2], b"no plan at all", b"{}", b""] {
        let mut bad = with(plan, |facts| facts.blob_bytes = bytes.len() as u64);
        bad.blob = bytes.into();
        let error = would_load(library, &bad, target).expect_err("no plan");
        let LoadError::Refused { source, .. } = &error else { panic!("{error}") };
        assert!(matches!(&**source, Error::Call(call) if call.status != Status::SUCCESS), "{error}");
        assert!(error.to_string().contains("build it again"), "{error}");
    }
    let cut = Plan { facts: plan.facts.clone(), blob: plan.blob[1..].into() };
    assert!(matches!(would_load(library, &cut, target), Err(LoadError::Length { .. })));
    let greedy = with(plan, |facts| facts.workspace += 1);
    assert!(matches!(would_load(library, &greedy, target), Err(LoadError::Workspace { .. })));
    // A target for a cuDNN that is not the loaded one.
    let other = with(plan, |facts| common::own(facts).cudnn.patch += 1);
    let error = would_load(library, &other, target).expect_err("another version");
    let LoadError::OtherMachine(error) = error else { panic!("{error}") };
    assert!(matches!(error.mismatches[..], [Mismatch::OtherCudnn { .. }]), "{error}");
}

/// A stored plan that cuDNN refused stayed in the vault for ever: its error said "build it again", and nothing did.
#[test]
fn audit_6_12_a_stored_plan_that_cudnn_refuses_is_built_again_and_replaced() {
    alone("audit_6_12_a_stored_plan_that_cudnn_refuses_is_built_again_and_replaced", || {
        let search = Search::default().version(CudnnVersion::new(9, 27, 0)).set(qkvault_sys::LibrarySet::Slim);
        let compiler = match Compiler::open(&search) {
            Ok(compiler) => compiler,
            Err(Failure::Broken(Error::Load(error))) => return skip(Need::Cudnn, &format!("no cuDNN 9.27: {error}")),
            Err(error) => panic!("{error}"),
        };
        let library = Arc::clone(compiler.library());
        let target = compiler.target(&Profile::named("h200").expect("built in"));
        let attention = validate(Attention::bshd(1, (2, 2), (128, 128), 64, DType::F16)).expect("valid");
        let options = CompileOptions::cudnn();
        let folder = tempfile::tempdir().expect("a folder");
        let open = || {
            let options = VaultOptions::in_folder(folder.path()).without_environment();
            Vault::open(options).expect("a vault")
        };
        let planner = Planner::new(open(), Some(compiler));
        let built = planner.plan(&attention, &target, &options, OnMiss::Compile).expect("it compiles");
        let good = built.outcome.expect("cuDNN takes it");
        let key = Key(*good.facts.key.bytes());
        let half = &good.blob[..good.blob.len() / 2];
        // As the planner stored it, with the description behind the plan's bytes.
        let stored = planner.vault().recall(&key).expect("is kept");
        let entry = |bad: &Plan| {
            let payload = [&bad.blob[..], &stored.payload[good.blob.len()..]].concat();
            Entry { meta: codec::encode(&bad.facts), payload, ..Entry::clone(&stored) }
        };
        let other_version = with(&good, |facts| common::own(facts).cudnn.patch += 1);
        let mut cut = with(&good, |facts| facts.blob_bytes = half.len() as u64);
        cut.blob = half.into();
        let other_build = with(&good, |facts| facts.workspace += 1);
        let load = |plan: &Plan| would_load(&library, plan, &target);
        // Each is stored under the right key with a right checksum.
        for (name, bad) in [("cut", cut), ("of another build", other_build), ("of another version", other_version)] {
            open().put(&key, entry(&bad)).expect("stored");
            planner.vault().put(&key, entry(&bad)).expect("stored in the planner's memory too");
            let loaded = prepare(&planner, &target, &attention, &options, OnMiss::Load, load);
            let error = loaded.expect_err(name);
            if name == "of another version" {
                // A look-up knows better, and serves it no more.
                assert!(matches!(error, PrepareError::Plan(PlanError::Missing { .. })), "{name}: {error:?}");
            } else {
                assert!(matches!(error, PrepareError::Unusable(_)), "{name}: {error:?}");
                assert!(error.to_string().contains("with OnMiss::Compile, prepare builds it again"), "{name}: {error}");
            }

            let prepared = prepare(&planner, &target, &attention, &options, OnMiss::Compile, load).expect(name);
            assert_eq!(prepared.answer.source, Source::Built, "{name}");
            let stored = Planner::new(open(), None);
            let found = prepare(&stored, &target, &attention, &options, OnMiss::Load, load).expect("replaced on disk");
            assert_eq!(found.answer.source, Source::Disk, "{name}");
            assert_eq!(found.answer.outcome.expect("a plan").facts.blob_bytes, good.facts.blob_bytes, "{name}");
            let again = prepare(&planner, &target, &attention, &options, OnMiss::Memory, load).expect("and in memory");
            assert_eq!(again.answer.source, Source::Memory, "{name}");
        }
        // Without a compiler the error is that of the load, and the stored plan stays.
        open().put(&key, entry(&with(&good, |facts| facts.workspace += 1))).expect("stored");
        let stored = Planner::new(open(), None);
        let error = prepare(&stored, &target, &attention, &options, OnMiss::Compile, load).expect_err("no compiler");
        assert!(matches!(error, PrepareError::Load(LoadError::Workspace { .. })), "{error:?}");
    });
}

/// Loading takes 0.4 to 0.6 ms with and without a GPU; the bound leaves room for a busy machine.
fn loading_is_fast(library: &Arc<Library>, target: &Target, plan: &Plan) {
    let mut times: Vec<Duration> = (0..21)
        .map(|_| {
            let started = Instant::now();
            would_load(library, plan, target).expect("it is its own machine's");
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    let median = times[10];
    say(&format!("cuDNN {}: a plan of {} bytes loads in {median:?} (median of 21)", target.cudnn, plan.blob.len()));
    assert!(median < Duration::from_millis(10), "{median:?}");
}

#[test]
fn rules_hold_for_9_19() {
    alone("rules_hold_for_9_19", || rules_and_library_agree(CudnnVersion::new(9, 19, 0)));
}

#[test]
fn rules_hold_for_9_27() {
    alone("rules_hold_for_9_27", || rules_and_library_agree(CudnnVersion::new(9, 27, 0)));
}

/// Checks the rows of `LOAD_RULES` for a list of versions: `QKVAULT_LOAD_VERSIONS=9.20.0,9.23.0`. Each version needs a
/// fetched slim set.
#[test]
fn rules_hold_for_the_versions_that_are_named() {
    const NAMED: &str = "QKVAULT_LOAD_VERSIONS";
    const NAME: &str = "rules_hold_for_the_versions_that_are_named";
    let Ok(named) = std::env::var(NAMED) else { return skip(Need::Asked, &format!("{NAMED} is not set")) };
    let version = |text: &str| {
        let parts: Vec<u16> = text.split('.').map(|part| part.parse().expect("a number")).collect();
        let [major, minor, patch] = parts[..] else { panic!("{text} is no version of three numbers") };
        CudnnVersion::new(major, minor, patch)
    };
    if std::env::var_os(ALONE).is_some() {
        return rules_and_library_agree(version(&named));
    }
    let program = std::env::current_exe().expect("a test has a program");
    for one in named.split(',') {
        let mut command = Command::new(&program);
        command.args(["--exact", NAME, "--nocapture"]).env(ALONE, NAME).env(NAMED, one);
        let done = command.output().expect("it can be started");
        let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{one}: {said}");
        say(&said);
    }
}

/// cuDNN itself refuses the plan of another version when the facts are those of its own version.
#[test]
fn a_plan_of_9_19_is_refused_by_9_27() {
    const NAME: &str = "a_plan_of_9_19_is_refused_by_9_27";
    let folder = std::env::temp_dir().join(format!("qkvault-exec-{}", std::process::id()));
    if let Some(blob) = std::env::var_os(ALONE).filter(|told| told != NAME) {
        // This is the inner process, with 9.27: it is told the file of the plan.
        let Some((library, target, own)) = plan(CudnnVersion::new(9, 27, 0)) else { return };
        let blob = std::fs::read(blob).expect("written by the outer process");
        let mut foreign = with(&own, |facts| facts.blob_bytes = blob.len() as u64);
        foreign.blob = blob.into();
        let error = would_load(&library, &foreign, &target).expect_err("another version's plan");
        let text = error.to_string();
        assert!(text.contains("1002") && text.contains("compile it again"), "{text}");
        return;
    }
    alone(NAME, || {
        let Some((_, _, plan)) = plan(CudnnVersion::new(9, 19, 0)) else { return };
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let file = folder.join("plan");
        std::fs::write(&file, &plan.blob).expect("it can be written");
        let program = std::env::current_exe().expect("a test has a program");
        let done = Command::new(program).args(["--exact", NAME, "--nocapture"]).env(ALONE, &file).output();
        let done = done.expect("it can be started");
        let _ = std::fs::remove_dir_all(&folder);
        let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        say(&said);
    });
}
