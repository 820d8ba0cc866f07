//! Plans of FlashAttention-4's kernels in a vault: compiled once, found afterwards, compiled again for a comparison.
//! This needs the fetched toolchain (`cargo xtask fetch --engine fa4`), no GPU and no cuDNN.

use std::sync::Arc;

use qkvault_cache::{Entry, Key, Source, Vault, VaultOptions};
use qkvault_compile::{
    Engines, FA4, Fa4Plan, Gpu, KernelCompiler, Nvrtc, OnMiss, Plan, PlanError, Planner, RebuildCheck,
};
use qkvault_cudnn::CompileOptions;
use qkvault_fa4::{DRIVER, Installed, SM};
use qkvault_graph::expr::{ScoreExpr, library};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, Valid, validate};
use qkvault_kernels::recipe::{LaunchValue, RecipeStep};
use qkvault_skip::{Need, skip};

const HOPPER: Gpu<'_> = Gpu { sm: SM, target: None };

fn toolchain() -> Option<Installed> {
    Installed::find().map_err(|error| skip(Need::Fa4, &error.to_string())).ok()
}

fn forward() -> Attention {
    Attention::bshd(2, (8, 2), (300, 500), 128, DType::BF16).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats()
}

fn valid(attention: Attention) -> Valid {
    validate(attention).expect("is valid")
}

#[test]
fn a_plan_is_compiled_once_found_afterwards_and_the_same_when_compiled_again() {
    let Some(_) = toolchain() else { return };
    let attention = valid(forward());
    let folder = tempfile::tempdir().expect("is made");
    let open = || Planner::new(Vault::open(VaultOptions::in_folder(folder.path())).expect("a vault"), None);
    let missing =
        open().plan_by(FA4, &attention, HOPPER, &CompileOptions::default(), OnMiss::Load).expect_err("it is not there");
    assert!(matches!(missing, PlanError::Missing { .. }), "{missing}");
    let built =
        open().plan_by(FA4, &attention, HOPPER, &CompileOptions::default(), OnMiss::Compile).expect("an answer");
    assert_eq!(built.source, Source::Built);
    let found = open().plan_by(FA4, &attention, HOPPER, &CompileOptions::default(), OnMiss::Load).expect("an answer");
    assert_eq!((found.source, found.key), (Source::Disk, built.key));
    let (built, found) = (built.outcome.expect("a plan"), found.outcome.expect("a plan"));
    assert_eq!(*built, *found);

    let facts = &found.facts;
    let kernels = facts.kernels().expect("a plan of kernels");
    assert!(matches!(&kernels.by, KernelCompiler::Fa4 { flash_attn, .. } if flash_attn == "4.0.0b36"), "{kernels:?}");
    assert_eq!((facts.driver, facts.sm, kernels.recipe.steps.len()), (i64::from(DRIVER), SM, 1));
    assert!(facts.engine.contains("FlashAttention-4"), "{}", facts.engine);
    let RecipeStep::Launch(launch) = &kernels.recipe.steps[0] else { panic!("a launch") };
    let maps = launch.params.iter().flat_map(|param| &param.patches);
    assert_eq!(maps.filter(|patch| matches!(patch.value, LaunchValue::Map(_))).count(), 4);

    let key = found.facts.key;
    let vault = Vault::open(VaultOptions::in_folder(folder.path())).expect("a vault");
    let (_, entry) = vault.show(&Key(*key.bytes())).into_iter().next().expect("it is stored");
    let entry = entry.expect("it is whole");
    let rebuilder = Engines::built_in();
    let check = rebuilder.verify(key, &entry);
    assert!(matches!(check, RebuildCheck::Same { kernels: 1, .. }), "{check:?}");
    let mut other = Entry::clone(&entry);
    let place = found.blob.len() / 2;
    other.payload[place] ^= 1;
    let check = rebuilder.verify(key, &other);
    assert!(matches!(check, RebuildCheck::Different(_)), "{check:?}");
    assert!(Plan::from_entry(key, &Arc::new(other)).is_ok(), "the vault's hash finds this, not the recipe");
}

#[test]
fn a_plan_with_a_predicate_has_a_kernel_of_our_own_that_lists_tiles_first() {
    let Some(_) = toolchain() else { return };
    if Nvrtc::open(None).is_err() {
        return skip(Need::Cudnn, "no NVRTC is fetched");
    }
    let documents = library::document_mask("of_query", "of_key", 2, 300, 500).build_mask_mod().expect("a predicate");
    let attention = valid(Attention::bshd(2, (8, 2), (300, 500), 128, DType::BF16).with_mask_mod(documents));
    let folder = tempfile::tempdir().expect("is made");
    let vault = || Vault::open(VaultOptions::in_folder(folder.path())).expect("a vault");
    let planner = Planner::new(vault(), None);
    let plan = planner
        .plan_by(FA4, &attention, HOPPER, &CompileOptions::default(), OnMiss::Compile)
        .expect("an answer")
        .outcome
        .expect("a plan");
    let recipe = &plan.facts.kernels().expect("a plan of kernels").recipe;
    let launches = recipe.steps.iter().filter_map(|step| match step {
        RecipeStep::Launch(launch) => Some((launch.module, launch.function.as_str() == "blocks", launch.grid)),
        RecipeStep::Clear { .. } => None,
    });
    // Three tiles of queries and two sequences, whose heads have the same lists.
    assert_eq!(launches.collect::<Vec<_>>()[0], (1, true, [3, 1, 2]));
    assert_eq!((recipe.steps.len(), recipe.modules.len()), (2, 2));
    let (_, entry) = vault().show(&Key(*plan.facts.key.bytes())).into_iter().next().expect("it is stored");
    let check = Engines::built_in().verify(plan.facts.key, &entry.expect("it is whole"));
    assert!(matches!(check, RebuildCheck::Same { kernels: 2, .. }), "{check:?}");
}

/// The plan of a mask in a vault, the functions that it launches, and its entry.
fn masked(mask: &str) -> (Arc<Plan>, Vec<String>, Entry) {
    let mask: ScoreExpr = mask.parse().unwrap_or_else(|error| panic!("{mask}: {error}"));
    let attention = valid(Attention::bshd(2, (8, 2), (300, 500), 128, DType::BF16).with_mask_mod(mask));
    let folder = tempfile::tempdir().expect("is made");
    let vault = || Vault::open(VaultOptions::in_folder(folder.path())).expect("a vault");
    let plan = |on_miss| {
        let answer = Planner::new(vault(), None).plan_by(FA4, &attention, HOPPER, &CompileOptions::default(), on_miss);
        answer.expect("an answer").outcome.expect("a plan")
    };
    let built = plan(OnMiss::Compile);
    assert_eq!(*built, *plan(OnMiss::Load), "as it is stored");
    let recipe = &built.facts.kernels().expect("a plan of kernels").recipe;
    let functions = recipe.steps.iter().filter_map(|step| match step {
        RecipeStep::Launch(launch) => Some(launch.function.clone()),
        RecipeStep::Clear { .. } => None,
    });
    let functions = functions.collect();
    let (_, entry) = vault().show(&Key(*built.facts.key.bytes())).into_iter().next().expect("it is stored");
    let entry = Entry::clone(&entry.expect("it is whole"));
    let check = Engines::built_in().verify(built.facts.key, &entry);
    assert!(matches!(check, RebuildCheck::Same { .. }), "{check:?}");
    (built, functions, entry)
}

#[test]
fn a_predicate_of_places_has_its_lists_in_the_plan_and_launches_one_kernel() {
    let Some(_) = toolchain() else { return };
    let (plan, functions, entry) = masked("query - key < 200 & query >= key | key < 4");
    let recipe = &plan.facts.kernels().expect("a plan of kernels").recipe;
    assert_eq!((functions.len(), recipe.modules.len(), recipe.scratch), (1, 1, 0));
    assert!(recipe.constants > 0 && plan.facts.blob_bytes == recipe.modules[0] + recipe.constants, "{recipe}");
    let RecipeStep::Launch(launch) = &recipe.steps[0] else { panic!("a launch") };
    let patches = launch.params.iter().flat_map(|param| &param.patches);
    let lists: Vec<u64> =
        patches.filter_map(|patch| if let LaunchValue::Constant(at) = patch.value { Some(at) } else { None }).collect();
    assert_eq!(lists, [0, 256, 512, 768], "counts and tiles, cut and whole");
    // The first tile of queries sees the first 128 keys in part, and no others.
    let data = &plan.blob[recipe.modules[0] as usize..];
    assert_eq!((data[0], data[256], data[512]), (1, 0, 0));
    // A list that leaves its memory is no list.
    let mut other = entry;
    other.payload[recipe.modules[0] as usize] = 77;
    let folder = tempfile::tempdir().expect("is made");
    let vault = Vault::open(VaultOptions::in_folder(folder.path())).expect("a vault");
    vault.put(&Key(*plan.facts.key.bytes()), other).expect("is stored");
    let attention = valid(
        Attention::bshd(2, (8, 2), (300, 500), 128, DType::BF16)
            .with_mask_mod("query - key < 200 & query >= key | key < 4".parse().expect("reads")),
    );
    let answer = Planner::new(vault, None).plan_by(FA4, &attention, HOPPER, &CompileOptions::default(), OnMiss::Load);
    assert!(matches!(answer, Err(PlanError::Missing { .. })), "{answer:?}");
}

#[test]
fn a_mask_of_an_element_for_each_score_is_looked_at_first() {
    let Some(_) = toolchain() else { return };
    if Nvrtc::open(None).is_err() {
        return skip(Need::Cudnn, "no NVRTC is fetched");
    }
    for mask in ["tensor @m: i32[2, 1, 300, 500]; @m != 0", "tensor @m: bf16[1, 1, 300, 500]; @m > 0.5"] {
        let (_, functions, _) = masked(mask);
        assert_eq!((functions.len(), &functions[0][..], &functions[1][..]), (3, "look", "blocks"), "{mask}");
    }
}

#[test]
fn what_the_kernels_do_not_take_is_an_answer_without_a_toolchain() {
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
    let dropout = valid(forward().with_dropout(0.5));
    let answer =
        planner.plan_by(FA4, &dropout, HOPPER, &CompileOptions::default(), OnMiss::Compile).expect("an answer");
    let refusal = answer.outcome.expect_err("refused");
    assert!(refusal.to_string().contains("fa4.dropout"), "{refusal}");
    assert!(Fa4Plan::for_attention(&valid(forward()), 100).is_err(), "another GPU");
    let backward = valid(forward().backward(BackwardOptions::default()));
    let (one, other) = (valid(forward()), &backward);
    let key = |attention| Fa4Plan::for_attention(attention, SM).expect("taken").key();
    assert_ne!(key(&one), key(other));
}
