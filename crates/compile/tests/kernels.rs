//! Plans of kernels through the vault, with the real NVRTC and without a GPU: one plan for every GPU of an
//! architecture, checked totally when it is read, and compiled again by a deep check.

use std::sync::Arc;

use qkvault_compile::cache::{Entry, Key, Source, Vault, VaultOptions};
use qkvault_compile::graph::{
    Attention, Combination, Conversion, ConversionKind, CudnnVersion, DType, EnginePolicy, LibrarySet, PlanKey, Tensor,
    Valid, codec, text, validate,
};
use qkvault_compile::{
    BadPlan, Because, CUDNN, Difference, FA4, Gpu, KERNELS, KernelCompiler, KernelPlan, NVRTC, Nvrtc, OnMiss, OwnFacts,
    Passed, Plan, PlanError, PlanFacts, Planner, RebuildCheck, Why, codes,
};
use qkvault_cudnn::{CompileOptions, Profile};
use qkvault_graph::{Partial, Role, ScaleUpdate, Scaled, ScaledTensor};
use qkvault_kernels::Generated;
use qkvault_kernels::recipe::{Launch, LaunchRecipe, LaunchValue, Param, Patch, RECIPE_FORMAT, RecipeStep};
use qkvault_skip::{Need, skip};

const SOURCE: &str = "extern \"C\" __global__ void copy(const unsigned short* q, unsigned short* o, float* scratch, float by) {\n\
                      \x20 o[threadIdx.x] = q[threadIdx.x]; scratch[threadIdx.x] = by;\n}\n";

fn attention() -> Valid {
    validate(Attention::bshd(1, (1, 1), (1, 64), 64, DType::BF16)).expect("valid")
}

fn recipe() -> LaunchRecipe {
    let param = |bytes, value| Param { bytes: vec![0; bytes], patches: vec![Patch { at: 0, value }] };
    let launch = Launch {
        module: 0,
        function: "copy".to_owned(),
        grid: [1, 1, 1],
        block: [64, 1, 1],
        shared: 0,
        cluster: None,
        overlap: false,
        params: vec![
            param(8, LaunchValue::Address(Role::Q)),
            param(8, LaunchValue::Address(Role::O)),
            param(8, LaunchValue::Scratch(0)),
            param(4, LaunchValue::Number(Role::Scale)),
        ],
    };
    let steps = vec![RecipeStep::Clear { at: 0, bytes: 256, value: 0 }, RecipeStep::Launch(launch)];
    LaunchRecipe {
        format: RECIPE_FORMAT,
        sm: 90,
        driver: 13_000,
        scratch: 256,
        modules: Vec::new(),
        constants: 0,
        steps,
    }
}

/// Whether NVRTC is there; if not, the test is skipped.
fn nvrtc() -> Option<Nvrtc> {
    Nvrtc::open(None).map_err(|error| skip(Need::Cudnn, &error.to_string())).ok()
}

fn planner(folder: &std::path::Path) -> Planner {
    Planner::new(Vault::open(VaultOptions::new().folder(folder)).expect("opens"), None)
}

fn entry(planner: &Planner, key: PlanKey) -> Arc<Entry> {
    let shown = planner.vault().show(&Key(*key.bytes()));
    Arc::new(shown.into_iter().find_map(|(_, entry)| entry.ok()).expect("it is stored"))
}

fn recipe_of(facts: &mut PlanFacts) -> &mut LaunchRecipe {
    let OwnFacts::Kernels(own) = &mut facts.own else { panic!("of kernels") };
    &mut own.recipe
}

/// A source with its options and the recipe.
fn made(source: &str, options: &[&str]) -> Generated {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    Generated { source: source.to_owned(), options, recipe: recipe() }
}

#[test]
fn a_plan_is_compiled_once_and_then_found_by_those_who_may_not_compile() {
    if nvrtc().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("is made");
    let attention = attention();
    let of = KernelPlan { of: &attention, made: made(SOURCE, &["--std=c++17"]) };
    let first = planner(folder.path());
    let missing = first.kernels(&of, OnMiss::Load).expect_err("nothing is stored");
    assert!(
        matches!(&missing, PlanError::Missing { key, target, .. } if *key == of.key() && target == "sm_90a"),
        "{missing}"
    );
    let built = first.kernels(&of, OnMiss::Compile).expect("compiles");
    assert_eq!((built.source, built.key), (Source::Built, Some(of.key())));
    // Another process, with no compiler of cuDNN and not allowed to compile.
    let found = planner(folder.path()).kernels(&of, OnMiss::Load).expect("is stored");
    assert_eq!(found.source, Source::Disk);
    let (built, found) = (built.outcome.expect("a plan"), found.outcome.expect("a plan"));
    assert_eq!(built, found);
    let kernels = found.facts.kernels().expect("of kernels");
    assert_eq!(
        (&kernels.by, &kernels.recipe.modules[..]),
        (&KernelCompiler::Nvrtc(NVRTC.0, NVRTC.1), &[found.blob.len() as u64][..])
    );
    assert!(found.blob.starts_with(b"\x7fELF") && found.facts.driver == 13_000 && found.facts.sm == 90);
    assert_eq!(found.facts.scratch().bytes, 256);
    let listed: Vec<_> = first.vault().ls().map(|l| l.header.expect("good")).collect();
    assert_eq!((&listed[0].library[..], &listed[0].target[..]), ("nvrtc 13.0", "sm_90a kernels"));
}

#[test]
fn a_stored_recipe_that_refers_outside_is_no_plan_and_is_compiled_again() {
    if nvrtc().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("is made");
    let attention = attention();
    let of = KernelPlan { of: &attention, made: made(SOURCE, &[]) };
    let key = of.key();
    planner(folder.path()).kernels(&of, OnMiss::Compile).expect("compiles");
    let good = entry(&planner(folder.path()), key);
    let damages: [fn(&mut PlanFacts); 5] = [
        |facts| facts.workspace = 128,
        |facts| facts.sm = 100,
        |facts| recipe_of(facts).steps.clear(),
        |facts| recipe_of(facts).modules[0] += 1,
        |facts| facts.bindings.clear(),
    ];
    for damage in damages {
        let mut facts: PlanFacts = codec::decode(&good.meta).expect("reads");
        damage(&mut facts);
        let bad = Entry { meta: codec::encode(&facts), ..Entry::clone(&good) };
        let error = Plan::from_entry(key, &Arc::new(bad.clone())).expect_err("damaged");
        assert!(matches!(error, BadPlan::Recipe(_)), "{error}");
        let planner = planner(folder.path());
        planner.vault().put(&Key(*key.bytes()), bad).expect("is stored");
        assert!(matches!(planner.kernels(&of, OnMiss::Load), Err(PlanError::Missing { .. })));
        let again = planner.kernels(&of, OnMiss::Compile).expect("compiles").outcome.expect("a plan");
        assert_eq!(again.facts.bindings, qkvault_kernels::recipe::bindings(&attention));
    }
}

/// A pool of another size had another plan.
#[test]
fn a_plan_serves_pools_of_every_size_with_the_bytes_of_the_one_that_asks() {
    if nvrtc().is_none() {
        return;
    }
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
    let plan = |pages, on_miss| {
        let mut a = Attention::bshd(2, (8, 2), (1, 512), 64, DType::BF16).with_lengths();
        a.k = Tensor::paged_nhd(2, 2, 512, 64, pages, 64, DType::BF16);
        a.v = a.k;
        let a = validate(a).expect("valid");
        let made = qkvault_kernels::generate(&a, 90).expect("is taken");
        let of = KernelPlan { of: &a, made };
        let plan = planner.kernels(&of, on_miss).expect("an answer").outcome.expect("a plan");
        let bytes = plan.facts.bindings.iter().find(|b| b.role == Role::K).expect("keys").bytes;
        (plan.facts.key, plan.facts.graph_key == a.key(), bytes)
    };
    let page = 64 * 2 * 64 * 2;
    let first = plan(16, OnMiss::Compile);
    for pages in [1, 16, 4096] {
        assert_eq!(plan(pages, OnMiss::Load), (first.0, true, page * pages.unsigned_abs()));
    }
}

#[test]
fn a_deep_check_compiles_the_description_again_and_finds_other_code() {
    let Some(_) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("is made");
    let mut a = Attention::bshd(2, (8, 2), (1, 512), 64, DType::BF16).with_lengths();
    a.k = Tensor::paged_nhd(2, 2, 512, 64, 16, 64, DType::BF16);
    a.v = a.k;
    let attention = validate(a).expect("valid");
    let planner = planner(folder.path());
    let rebuilder = planner.engines();
    let plan = planner
        .plan_by(KERNELS, &attention, Gpu { sm: 90, target: None }, &CompileOptions::default(), OnMiss::Compile)
        .expect("compiles")
        .outcome
        .expect("a plan");
    let key = plan.facts.key;
    let good = entry(&planner, key);
    let check = rebuilder.verify(key, &good);
    assert!(matches!(check, RebuildCheck::Same { kernels: 1, kernel_bytes } if kernel_bytes > 1000), "{check:?}");
    let mut other = Entry::clone(&good);
    // Machine code, which only a rebuild knows.
    let middle = plan.blob.len() / 2;
    other.payload[middle] ^= 1;
    let check = rebuilder.verify(key, &other);
    assert!(matches!(check, RebuildCheck::Different(Difference::Cubins { .. })), "{check:?}");
    assert!(Plan::from_entry(key, &Arc::new(other)).is_ok(), "the vault's hash finds this, not the recipe");
    let check = rebuilder.verify(PlanKey::from_bytes([7; 32]), &good);
    assert!(matches!(check, RebuildCheck::Different(Difference::Plan(_))), "{check:?}");
}

/// The audit's second fault: a stored source and stored options were compiled, and `--create-pch=FILE` wrote that file.
#[test]
fn audit_2_a_source_of_somebody_else_is_never_compiled() {
    let Some(_) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("is made");
    let attention = attention();
    let of = KernelPlan { of: &attention, made: made(SOURCE, &["--std=c++17"]) };
    let planner = planner(folder.path());
    planner.kernels(&of, OnMiss::Compile).expect("compiles");
    // The entry is whole and its key is that of its source; yet the source is not in it, and a check generates its own.
    let stored = entry(&planner, of.key());
    let has = |text: &str| stored.payload.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    assert!(!has(SOURCE) && !has("--std"));
    let check = planner.engines().verify(of.key(), &stored);
    assert!(matches!(check, RebuildCheck::Different(Difference::Key { .. } | Difference::Refused(_))), "{check:?}");
}

#[test]
fn a_source_that_does_not_compile_is_an_error_with_the_log_and_nothing_is_stored() {
    if nvrtc().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("is made");
    let attention = attention();
    let of = KernelPlan { of: &attention, made: made("wrong", &[]) };
    let planner = planner(folder.path());
    let text = planner.kernels(&of, OnMiss::Compile).expect_err("does not compile").to_string();
    assert!(text.contains("attention.cu(1)") && text.contains(&of.key().to_string()), "{text}");
    assert_eq!(planner.vault().ls().count(), 0);
}

#[test]
fn what_cudnn_refuses_kernels_take_and_both_reasons_are_told_where_neither_does() {
    if nvrtc().is_none() {
        return;
    }
    let target = |profile: &str| {
        let version = CudnnVersion::v9(10, 0);
        Profile::named(profile).expect("built in").target(version, LibrarySet::Slim)
    };
    let folder = tempfile::tempdir().expect("is made");
    let planner = planner(folder.path());
    // NVIDIA withdrew this cuDNN, so nothing is put to it.
    let text = "q: bf16 [1,8,1,64]\nk: [1,2,512,64]\nscore_mod: scalar $slope: float; score + (key - query) * $slope";
    let refused = validate(text::parse(text).expect("reads")).expect("valid");
    let ask = |attention: &Valid, profile: &str, engine, on_miss| {
        let options = CompileOptions { engine, ..CompileOptions::default() };
        planner.plan(attention, &target(profile), &options, on_miss)
    };
    let of_cudnn = ask(&refused, "h200", CUDNN.policy(), OnMiss::Compile).expect("an answer");
    let why = of_cudnn.outcome.expect_err("cuDNN refuses it");
    let answer = ask(&refused, "h200", EnginePolicy::Auto, OnMiss::Compile).expect("an answer");
    assert_eq!(answer.engine.refusal_of(CUDNN), Some(&why));
    assert!(answer.engine.to_string().starts_with("kernels instead\n  not cuDNN, refused: "), "{}", answer.engine);
    let plan = answer.outcome.expect("kernels take it");
    assert!(plan.facts.kernels().is_some());
    // The same plan on every GPU of the architecture, with any cuDNN, by both policies.
    for (profile, engine) in [("h100", EnginePolicy::Auto), ("h100-pcie", KERNELS.policy())] {
        let again = ask(&refused, profile, engine, OnMiss::Load).expect("it is stored");
        assert_eq!((again.key, again.source), (answer.key, Source::Memory));
        let options = CompileOptions { engine, ..CompileOptions::default() };
        assert_eq!(planner.key(&refused, &target(profile), &options).ok(), answer.key);
    }
    // Neither takes it on another GPU.
    let neither = ask(&refused, "b200", EnginePolicy::Auto, OnMiss::Load).expect("an answer");
    let reasons = neither.outcome.expect_err("neither");
    assert!(!reasons.has(&codes::KERNELS_GPU), "cuDNN's reasons say what to change: {reasons}");
    assert_eq!(neither.engine.why, Why::Alone);
    for (engine, code) in [(KERNELS, &codes::KERNELS_GPU), (FA4, &codes::FA4_GPU)] {
        let has = |p: &Passed| p.engine == engine && matches!(&p.because, Because::Refuses(of) if of.has(code));
        assert!(neither.engine.passed.iter().any(has), "{}", neither.engine);
    }
    // A plan of kernels by name, also where cuDNN has one; and cuDNN's without a word stays cuDNN's.
    let plain = attention();
    let kernels = ask(&plain, "h200", KERNELS.policy(), OnMiss::Compile).expect("an answer");
    assert_eq!(kernels.engine.why, Why::Named);
    assert!(kernels.outcome.expect("a plan").facts.kernels().is_some());
    let newer = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    let options = CompileOptions { engine: EnginePolicy::Auto, ..CompileOptions::default() };
    let stored = planner.plan(&plain, &newer, &options, OnMiss::Load).expect("that of kernels is stored");
    assert_eq!((stored.engine.engine, &stored.engine.why), (KERNELS, &Why::OthersHaveNone));
    let missing = |p: &Passed| p.engine == CUDNN && matches!(p.because, Because::Missing(_));
    assert!(stored.engine.passed.iter().any(missing), "{}", stored.engine);
    let of_cudnn = planner.plan(&plain, &newer, &CompileOptions::cudnn(), OnMiss::Load);
    assert!(matches!(of_cudnn, Err(PlanError::Missing { .. })));
    assert_eq!(CompileOptions::default().engine, EnginePolicy::Auto);
}

/// Plans that are stored with their options keep their bytes.
#[test]
fn options_without_another_engine_have_the_bytes_of_before() {
    let options = CompileOptions::default();
    let bytes = codec::encode(&options);
    assert_eq!(bytes[0], 0x94, "an array of four fields");
    assert_eq!(codec::decode::<CompileOptions>(&bytes).expect("reads"), options);
    let other = CompileOptions { engine: CUDNN.policy(), ..options };
    assert_eq!(codec::decode::<CompileOptions>(&codec::encode(&other)).expect("reads"), other);
}

#[test]
fn conversions_and_updates_are_compiled_once_and_a_gpu_without_8_bits_is_a_refusal() {
    if nvrtc().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("is made");
    let wide = Tensor::bshd(1, 8, 512, 128, DType::BF16);
    let kind = ConversionKind::Current { power_of_two: false };
    let conversion = Conversion::to(DType::E4M3, wide, kind).validate().expect("is valid");
    let old = planner(folder.path()).conversion(&conversion, 80, OnMiss::Compile).expect("an answer");
    assert!(old.outcome.expect_err("too old").has(&codes::CONVERSION_GPU));
    let missing = planner(folder.path()).conversion(&conversion, 90, OnMiss::Load).expect_err("nothing is stored");
    assert!(missing.to_string().contains("bf16 bshd to e4m3 bshd [1,8,512,128], current scaling"), "{missing}");
    let built = planner(folder.path()).conversion(&conversion, 90, OnMiss::Compile).expect("compiles");
    let found = planner(folder.path()).conversion(&conversion, 90, OnMiss::Load).expect("is stored");
    assert_eq!((built.source, found.source), (Source::Built, Source::Disk));
    let plan = found.outcome.expect("a plan");
    assert_eq!(plan.facts.bindings, conversion.bindings());
    assert_eq!((plan.facts.graph_key, plan.facts.workspace), (conversion.key(), 256));
    let tensors = vec![ScaledTensor { of: Scaled::Q, dtype: DType::E4M3, history: 16 }];
    let update = ScaleUpdate { tensors, margin: 0 }.validate().expect("is valid");
    let ask = |sm, on_miss| planner(folder.path()).scale_update(&update, sm, on_miss).expect("an answer");
    assert!(ask(80, OnMiss::Compile).outcome.expect_err("too old").has(&codes::CONVERSION_GPU));
    let (built, found) = (ask(90, OnMiss::Compile), ask(90, OnMiss::Load));
    assert_eq!((built.source, found.source), (Source::Built, Source::Disk));
    assert_eq!(found.outcome.expect("a plan").facts.bindings, update.bindings());
}

/// Every kind of combination, for an old and a new GPU.
#[test]
fn combinations_are_compiled_once() {
    if nvrtc().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("is made");
    let o = Tensor::bshd(2, 8, 64, 128, DType::BF16);
    let part = Partial { o, stats: Tensor::bhsd(2, 8, 64, 1, DType::F32) };
    let half = Tensor { dtype: DType::F16, ..o };
    let list = [
        Combination::Merge { parts: vec![part; 3], rows: true, sink: true, o, stats: Some(part.stats) },
        Combination::Sum { parts: vec![o; 4], rows: true, into: Tensor { dtype: DType::F32, ..o } },
        Combination::Sum { parts: vec![half; 2], rows: false, into: half },
        Combination::Copy { from: o, to: Tensor::bhsd(2, 8, 64, 128, DType::BF16) },
        Combination::Fill { to: part.stats, hidden: true },
        Combination::Keep { to: Tensor::bhsd(2, 4, 64, 256, DType::BF16), heads: 8, below: 1 << 29 },
    ];
    for combination in list {
        let of = combination.validate().expect("is valid");
        let missing = planner(folder.path()).combination(&of, 90, OnMiss::Load).expect_err("nothing is stored");
        assert!(missing.to_string().contains(&of.to_string()), "{missing}");
        for sm in [80, 90] {
            let built = planner(folder.path()).combination(&of, sm, OnMiss::Compile).expect("compiles");
            let found = planner(folder.path()).combination(&of, sm, OnMiss::Load).expect("is stored");
            assert_eq!((built.source, found.source), (Source::Built, Source::Disk));
            let plan = found.outcome.expect("a plan");
            assert_eq!((&plan.facts.bindings, plan.facts.graph_key), (&of.bindings(), of.key()));
        }
    }
}
