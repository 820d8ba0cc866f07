//! The planner with a vault and the real cuDNN: which requests build, and which results are stored.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};

use qkvault_cache::{DiskLimits, Key, Lookup, Source, Vault, VaultOptions};
use qkvault_compile::{Confirmation, Failure, OnMiss, Plan, PlanError, Planner, Resolution};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, Heuristics, LabOptions, QuirkSet, Target};
use qkvault_graph::{
    Attention, BackwardOptions, Band, CudnnVersion, DType, Refusal, Role, Tensor, Valid, text, validate,
};
use qkvault_probe::{Footprint, Near, Request, nearest};
use qkvault_tests::bench::Bench;
use qkvault_tests::cudnn::target;

/// An attention that cuDNN compiles.
fn sound() -> Valid {
    validate(Attention::bshd(1, (8, 2), (256, 256), 64, DType::BF16).with_band(Band::CAUSAL)).unwrap()
}

/// An attention that cuDNN refuses: its head dim is not a multiple of 8.
fn refused() -> Valid {
    validate(Attention::bshd(1, (4, 4), (128, 128), 100, DType::BF16)).unwrap()
}

fn plan(answer: Resolution) -> Arc<Plan> {
    answer.outcome.unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn refusal(answer: Resolution) -> Refusal {
    answer.outcome.err().unwrap_or_else(|| panic!("it was compiled"))
}

#[test]
fn sixty_four_threads_build_a_plan_once_and_load_it_once() {
    const THREADS: usize = 64;
    let Some(bench) = Bench::new() else { return };
    let attention = sound();
    let together = |planner: &Planner, on_miss: OnMiss| -> Vec<Resolution> {
        let start = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            let ask = || {
                start.wait();
                bench.ask(planner, &attention, on_miss).unwrap()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    };
    let planner = bench.planner();
    let answers = together(&planner, OnMiss::Compile);
    let stats = planner.vault().stats();
    assert_eq!((stats.builds, stats.build_failures, stats.stores), (1, 0, 1), "{stats:?}");
    assert_eq!(stats.hits(), THREADS as u64 - 1, "{stats:?}");
    assert_eq!(answers.iter().filter(|a| a.source == Source::Built).count(), 1);
    let plans: Vec<Arc<Plan>> = answers.into_iter().map(plan).collect();
    assert!(plans.iter().all(|p| **p == *plans[0]), "all get the same plan");

    // A new process reads the file once, for either `OnMiss`.
    for on_miss in [OnMiss::Load, OnMiss::Compile] {
        let later = bench.planner();
        let loaded = together(&later, on_miss);
        let stats = later.vault().stats();
        assert_eq!((stats.hits_disk, stats.hits(), stats.builds), (1, THREADS as u64, 0), "{stats:?}");
        assert!(loaded.into_iter().map(plan).all(|p| *p == *plans[0]), "all get what was built");
    }
}

/// A warm-up and a service on one machine are different processes, and share plans.
#[test]
fn a_plan_that_is_requested_twice_and_loaded_is_built_once() {
    let Some(bench) = Bench::new() else { return };
    let (first, attention) = (bench.planner(), sound());
    let built = bench.ask(&first, &attention, OnMiss::Compile).unwrap();
    let again = bench.ask(&first, &attention, OnMiss::Compile).unwrap();
    let second = bench.planner();
    let loaded = bench.ask(&second, &attention, OnMiss::Load).unwrap();
    assert_eq!([built.source, again.source, loaded.source], [Source::Built, Source::Memory, Source::Disk]);
    assert_eq!(first.vault().stats().builds + second.vault().stats().builds, 1);
    assert!(built.key.is_some() && [again.key, loaded.key] == [built.key, built.key]);
    let plans = [built, again, loaded].map(plan);
    assert!(plans.iter().all(|p| **p == *plans[0]));
    assert_eq!(Some(plans[0].facts.graph_key), Some(attention.key()));
}

/// 65,536 tokens in up to 1024 sequences. It would need 558 GB if every sequence had its greatest length.
#[test]
fn a_varlen_backward_within_the_workspace_limit_is_accepted() {
    let Some(bench) = Bench::new() else { return };
    let rows = Tensor::thd(1024, 32, 32_768, 128, 65_536, DType::BF16);
    let forward = Attention::forward(rows, rows, rows, rows).with_lengths().with_stats();
    let attention = validate(forward.backward(BackwardOptions::default())).unwrap();
    let policy = CompileOptions { workspace_limit: Some(4 << 30), ..CompileOptions::cudnn() };
    let answer = bench.planner().plan(&attention, &bench.target, &policy, OnMiss::Compile).unwrap();
    let facts = plan(answer).facts.clone();
    let expected = Footprint::for_attention(&attention, &bench.target, &policy).unwrap();
    assert_eq!(facts.scratch().bytes - facts.workspace.next_multiple_of(256), expected.scratch, "{facts:?}");
    assert_eq!(expected.scratch, 65_536 * 32 * (128 + 1) * 4);
}

/// Instruments time every configuration that gives a plan. Each has a key of its own, and the one after the last is
/// refused.
#[test]
fn every_configuration_that_gives_a_plan_has_a_key_and_there_is_none_after_the_last() {
    let Some(bench) = Bench::new() else { return };
    let ask = |configuration| {
        let lab = LabOptions { configuration, ..LabOptions::default() };
        let options = CompileOptions { lab, heuristics: Heuristics::A, ..CompileOptions::cudnn() };
        bench.planner().plan(&sound(), &bench.target, &options, OnMiss::Compile).unwrap()
    };
    let answers: Vec<Resolution> = (0..9).map(ask).collect();
    let plans = answers.iter().take_while(|answer| answer.outcome.is_ok()).count();
    assert!((2..9).contains(&plans), "{plans} plans");
    let keys: BTreeSet<_> = answers.iter().map(|answer| answer.key).collect();
    assert_eq!(keys.len(), answers.len());
    for answer in &answers[plans..] {
        let refusal = answer.outcome.as_ref().unwrap_err().to_string();
        assert!(refusal.contains(&format!("where {plans} give a plan")), "{refusal}");
    }
}

/// For a sink with lengths, engine 2 comes first, and its kernel does not compile. The plan of engine 1 records this.
#[test]
fn a_plan_records_which_configurations_were_passed_over_and_why() {
    let Some(bench) = Bench::new() else { return };
    let sink = "q: bf16 [2,4,64,64]\nk: [2,2,192,64]\nlengths: per-sequence\nsink: yes";
    let attention = validate(text::parse(sink).unwrap()).unwrap();
    let built = plan(bench.ask(&bench.planner(), &attention, OnMiss::Compile).unwrap());
    let [passed] = &built.facts.cudnn().expect("of cuDNN").passed_over[..] else { panic!("{:?}", built.facts) };
    assert_eq!((&passed.engine[..], &built.facts.engine[..]), ("engine 2", "engine 1"));
    assert_eq!(passed.code.as_str(), "library.internal-error-compilation-failed");
    assert!(passed.words.contains("NVRTC_SUCCESS"), "{}", passed.words);
    let stored = plan(bench.ask(&bench.planner(), &attention, OnMiss::Load).unwrap());
    assert_eq!(stored.facts, built.facts);
    // The first configuration of engine 1 splits the keys; the one that compiles does not.
    let decode =
        validate(text::parse("q: bf16 [2,4,1,64]\nk: [2,2,4096,64]\nlengths: per-sequence\nsink: yes").unwrap());
    let allowing = bench.planner().allowing(QuirkSet::from_codes(["queries.one-sink"]).unwrap());
    let built = plan(bench.ask(&allowing, &decode.unwrap(), OnMiss::Compile).unwrap());
    let passed: Vec<&str> =
        built.facts.cudnn().expect("of cuDNN").passed_over.iter().map(|passed| &passed.engine[..]).collect();
    assert_eq!((&built.facts.engine[..], &passed[..]), ("engine 1", &["engine 1", "engine 2"][..]));
    let plain = plan(bench.ask(&bench.planner(), &sound(), OnMiss::Compile).unwrap());
    assert!(plain.facts.cudnn().expect("of cuDNN").passed_over.is_empty(), "{:?}", plain.facts);
}

/// No engine's kernel compiles, and a rule covers it. The rule refuses it, and no failure is stored.
#[test]
fn an_attention_that_never_compiles_is_refused_by_its_rule_and_not_stored() {
    let Some(bench) = Bench::new() else { return };
    let target = target(&bench.compiler, "b200");
    let wide = "pass: backward\nq: bf16 [1,2,128,256]";
    let attention = validate(text::parse(wide).unwrap()).unwrap();
    let planner = bench.planner();
    let answer = planner.plan(&attention, &target, &CompileOptions::cudnn(), OnMiss::Compile).unwrap();
    assert!(refusal(answer).has(&codes::HEAD_DIM_BACKWARD));
    assert_eq!((planner.vault().stats().stores, planner.vault().usage().entries), (0, 0));
}

#[test]
fn a_refusal_is_stored_and_served_for_its_own_version_only() {
    let Some(bench) = Bench::new() else { return };
    let (first, attention) = (bench.planner(), refused());
    let fresh = bench.ask(&first, &attention, OnMiss::Compile).unwrap();
    let key = Key(*fresh.key.unwrap().bytes());
    let second = bench.planner();
    let stored = bench.ask(&second, &attention, OnMiss::Compile).unwrap();
    assert_eq!([fresh.source, stored.source], [Source::Built, Source::Disk]);
    assert_eq!(second.vault().stats().builds, 0, "the library was asked again");
    let (fresh, stored) = (refusal(fresh), refusal(stored));
    assert_eq!(fresh, stored);
    assert!(fresh.reasons().iter().any(|r| r.given.contains("100") || r.given.contains("% 8")), "{fresh}");

    let newer = bench.vault().for_library("9.28.0");
    assert!(matches!(newer.get(&key), Lookup::Absent), "a newer library may accept it");
    assert_eq!(newer.stats().refusals_expired, 1);
    assert!(matches!(bench.vault().for_library("9.27.0").get(&key), Lookup::Hit(_)));
}

#[test]
fn a_missing_plan_is_named_by_its_key() {
    let Some(bench) = Bench::new() else { return };
    let (planner, attention) = (bench.planner(), sound());
    for (on_miss, words) in [(OnMiss::Load, "in the vault"), (OnMiss::Memory, "in the memory of this process")] {
        let error = bench.ask(&planner, &attention, on_miss).unwrap_err();
        let PlanError::Missing { key, .. } = &error else { panic!("{error}") };
        let text = error.to_string();
        assert!(text.contains(&key.to_string()) && text.contains("qkvault warm") && text.contains(words), "{text}");
    }
    assert_eq!(planner.vault().stats().builds, 0);
    let built = bench.ask(&planner, &attention, OnMiss::Compile).unwrap();
    let PlanError::Missing { key, .. } = bench.ask(&bench.planner(), &attention, OnMiss::Memory).unwrap_err() else {
        panic!("it is not in the memory of a new process")
    };
    assert_eq!(built.key, Some(key), "the key that was missing is the key that is built");
}

/// Once, `OnMiss::Memory` read the disk, although its callers must not wait for it.
#[test]
fn on_miss_memory_reads_no_disk() {
    let Some(bench) = Bench::new() else { return };
    let attention = sound();
    bench.ask(&bench.planner(), &attention, OnMiss::Compile).unwrap();
    let later = bench.planner();
    assert!(matches!(bench.ask(&later, &attention, OnMiss::Memory), Err(PlanError::Missing { .. })));
    assert_eq!(later.vault().stats().bytes_read, 0);
    bench.ask(&later, &attention, OnMiss::Load).unwrap();
    let answer = bench.ask(&later, &attention, OnMiss::Memory).unwrap();
    assert_eq!(answer.source, Source::Memory);
}

/// A plan that was evicted from memory is a disk hit. One that was evicted from disk is built again.
#[test]
fn an_evicted_plan_is_loaded_or_built_again() {
    let Some(bench) = Bench::new() else { return };
    let options = VaultOptions::in_folder(bench.folder.path()).without_environment().memory(0, 0);
    let planner = Planner::new(Vault::open(options).unwrap(), Some(bench.compiler.clone()));
    let attention = sound();
    let sources = [(); 2].map(|()| bench.ask(&planner, &attention, OnMiss::Compile).unwrap().source);
    assert_eq!(sources, [Source::Built, Source::Disk]);
    let nothing = DiskLimits { max_bytes: Some(0), grace: std::time::Duration::ZERO, ..DiskLimits::default() };
    assert_eq!(planner.vault().gc(&nothing).unwrap().evicted, 1);
    let again = bench.ask(&planner, &attention, OnMiss::Compile).unwrap();
    assert_eq!((again.source, planner.vault().stats().builds), (Source::Built, 2));
}

#[test]
fn a_plan_that_cannot_be_built_here_is_an_error_and_is_not_stored() {
    let Some(bench) = Bench::new() else { return };
    let attention = sound();
    let lookup = Planner::new(bench.vault(), None);
    let error = bench.ask(&lookup, &attention, OnMiss::Compile).unwrap_err();
    assert!(matches!(error, PlanError::NoCompiler { .. }), "{error}");

    let planner = bench.planner();
    let other = Target { cudnn: CudnnVersion::v9(19, 0), ..bench.target.clone() };
    for _ in 0..2 {
        let error = planner.plan(&attention, &other, &CompileOptions::cudnn(), OnMiss::Compile).unwrap_err();
        assert!(matches!(error.failure(), Some(Failure::OtherLibrary { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains("9.19.0") && text.contains("9.27.0") && text.contains("QKVAULT_CUDNN_PATH"), "{text}");
    }
    let stats = planner.vault().stats();
    assert_eq!((stats.builds, stats.build_failures, stats.stores), (2, 2, 0), "a failure is not stored");
}

/// Without an op graph there is no plan key. Once, the result had the attention's key, which no look-up uses.
#[test]
fn an_attention_that_lowering_refuses_has_no_plan_key() {
    let Some(bench) = Bench::new() else { return };
    let mut attention = Attention::bshd(1, (4, 4), (128, 128), 64, DType::BF16);
    attention.block_mask = true;
    let answer = bench.ask(&bench.planner(), &validate(attention).unwrap(), OnMiss::Compile).unwrap();
    assert_eq!(answer.key, None);
    assert!(refusal(answer).has(&codes::NOT_BUILT_BLOCK_MASK));
}

#[test]
fn one_plan_serves_varlen_buffers_of_every_capacity_with_their_own_bytes() {
    let Some(bench) = Bench::new() else { return };
    let planner = bench.planner();
    let varlen = |tokens| {
        let t = Tensor::thd(4, 8, 256, 64, tokens, DType::BF16);
        validate(Attention::forward(t, t, t, t).with_lengths()).unwrap()
    };
    let reach = |answer: &Resolution| {
        let plan = answer.outcome.as_ref().unwrap_or_else(|refusal| panic!("{refusal}"));
        plan.facts.bindings.iter().find(|b| b.role == Role::Q).unwrap().bytes
    };
    let small = bench.ask(&planner, &varlen(100), OnMiss::Compile).unwrap();
    let large = bench.ask(&planner, &varlen(1000), OnMiss::Load).unwrap();
    assert_eq!(small.key, large.key);
    assert_eq!((reach(&small), reach(&large)), (100 * 8 * 64 * 2, 1000 * 8 * 64 * 2));
}

/// A quirk of lowering and one of the rules. Both are refused, and compile under their own keys if allowed.
#[test]
fn an_allowed_quirk_compiles_under_its_own_key() {
    let Some(bench) = Bench::new() else { return };
    for (code, given) in [
        ("backward.sink-philox", "pass: backward\nq: bf16 [1,2,128,64]\nsink: yes\nd_sink: yes\ndropout: philox 0.1"),
        ("band.rows-without-keys", "q: bf16 [1,2,256,64]\nk: [1,2,128,64]\nmask: causal bottom-right"),
    ] {
        let attention = validate(text::parse(given).unwrap()).unwrap();
        let strict = bench.planner();
        let refused = bench.ask(&strict, &attention, OnMiss::Compile).unwrap();
        assert!(refused.key.is_none() && refusal(refused).has(&code.into()));
        let allowing = bench.planner().allowing(QuirkSet::from_codes([code]).unwrap());
        let built = bench.ask(&allowing, &attention, OnMiss::Compile).unwrap();
        let key = built.key;
        assert_eq!(Some(plan(built).facts.key), key);
        // Allowing the quirk in the options finds the same plan.
        let policy = CompileOptions { allowed: QuirkSet::from_codes([code]).unwrap(), ..CompileOptions::cudnn() };
        let named = strict.plan(&attention, &bench.target, &policy, OnMiss::Load).unwrap();
        assert_eq!((named.key, named.outcome.is_ok()), (key, true));
        // Without the option it is still refused, although the plan is stored now.
        assert!(refusal(bench.ask(&bench.planner(), &attention, OnMiss::Load).unwrap()).has(&code.into()));
        let entry = bench.vault().get(&Key(*key.unwrap().bytes()));
        assert!(matches!(entry, Lookup::Hit(_)), "the vault has no entry with the plan's key");
    }
    let plain = bench.planner().allowing(QuirkSet::from_codes(["backward.sink-philox"]).unwrap());
    let (plain, usual) = (
        bench.ask(&plain, &sound(), OnMiss::Compile).unwrap(),
        bench.ask(&bench.planner(), &sound(), OnMiss::Compile).unwrap(),
    );
    assert_eq!((plain.key, usual.source), (usual.key, Source::Disk), "what has no quirk keeps its key");
}

#[test]
fn the_library_confirms_the_nearest_change() {
    let Some(bench) = Bench::new() else { return };
    let (planner, odd) = (bench.planner(), refused());
    let versions = [CudnnVersion::v9(19, 0)];
    let near = nearest(&Request::new(&odd, &bench.target), &versions);
    let confirmed = planner.confirm(&near[0], &CompileOptions::cudnn()).unwrap();
    assert!(matches!(confirmed, Confirmation::Supported(_)), "{}: {confirmed:?}", near[0].change);
    assert_eq!(planner.vault().stats().builds, 1);
    // The library refuses one, and cannot decide about a target of another library.
    let same = |target: Target| Near { change: "nothing".into(), attention: odd.clone(), target };
    let none = planner.confirm(&same(bench.target.clone()), &CompileOptions::cudnn()).unwrap();
    assert!(matches!(none, Confirmation::Refused(_)), "{none:?}");
    let other = Target { cudnn: versions[0], ..bench.target.clone() };
    let other = planner.confirm(&same(other), &CompileOptions::cudnn()).unwrap();
    assert!(matches!(other, Confirmation::OtherLibrary), "{other:?}");
}

#[test]
fn one_plan_serves_page_pools_of_similar_sizes_with_their_own_bytes() {
    let Some(bench) = Bench::new() else { return };
    let planner = bench.planner();
    let paged = |pages| {
        let (q, kv) =
            (Tensor::bshd(4, 8, 1, 64, DType::BF16), Tensor::paged_nhd(4, 2, 256, 64, pages, 64, DType::BF16));
        validate(Attention::forward(q, kv, kv, q).with_lengths()).unwrap()
    };
    let reach = |answer: &Resolution, role| {
        let plan = answer.outcome.as_ref().unwrap_or_else(|refusal| panic!("{refusal}"));
        plan.facts.bindings.iter().find(|b| b.role == role).unwrap().bytes
    };
    let small = bench.ask(&planner, &paged(700), OnMiss::Compile).unwrap();
    let large = bench.ask(&planner, &paged(1000), OnMiss::Load).unwrap();
    assert_eq!(small.key, large.key);
    for role in [Role::K, Role::V] {
        assert_eq!([&small, &large].map(|a| reach(a, role)), [700, 1000].map(|pages| pages * 64 * 2 * 64 * 2));
    }
    let larger = bench.ask(&planner, &paged(1025), OnMiss::Load);
    assert!(larger.is_err(), "a plan for 1024 pages must not serve more");
}

/// A deterministic backward does not change its forward's key, so a step builds its two plans once.
#[test]
fn a_deterministic_step_builds_two_plans_and_the_next_step_none() {
    let Some(bench) = Bench::new() else { return };
    let planner = bench.planner();
    let forward = Attention::bshd(1, (2, 2), (128, 128), 64, DType::BF16).with_band(Band::CAUSAL).with_stats();
    let backward = |deterministic| forward.backward(BackwardOptions { deterministic, ..BackwardOptions::default() });
    let mut keys = Vec::new();
    for _step in 0..2 {
        for a in [forward.clone(), backward(true)] {
            let answer = bench.ask(&planner, &validate(a).unwrap(), OnMiss::Compile).unwrap();
            keys.push(answer.key);
            plan(answer);
        }
        assert_eq!(planner.vault().stats().builds, 2);
    }
    assert!(keys[..2] == keys[2..] && keys[0] != keys[1]);
    // The backward that is not deterministic is another plan.
    bench.ask(&planner, &validate(backward(false)).unwrap(), OnMiss::Compile).unwrap();
    assert_eq!(planner.vault().stats().builds, 3);
}
