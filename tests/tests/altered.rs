//! Entries of all three engines with every field changed: a check by a rebuild says that each differs, and a look-up
//! serves none that says something else than what follows from what was asked (the audit's third fault).

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::cell::RefCell;

use qkvault_cache::{Entry, Key, Vault, VaultOptions};
use qkvault_compile::{
    CUDNN, Compiler, Engines, FA4, KERNELS, Nvrtc, OnMiss, OwnFacts, PlanFacts, Planner, RebuildCheck, Resolution,
};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_fa4::Installed;
use qkvault_graph::expr::{Expr, ScoreExpr, TensorSpec, library, scalar, score, tensor};
use qkvault_graph::{Attention, Band, DType, EnginePolicy, PlanKey, Tensor, Valid, validate};
use qkvault_skip::{Need, skip};
use qkvault_tests::altered;
use qkvault_tests::cudnn::{compiler, target};

/// One attention for one engine.
struct Asked<'a> {
    attention: &'a Valid,
    target: &'a Target,
    engine: EnginePolicy,
}

impl Asked<'_> {
    fn of(&self, planner: &Planner, on_miss: OnMiss) -> Option<Resolution> {
        let options = CompileOptions { engine: self.engine, ..CompileOptions::default() };
        planner.plan(self.attention, self.target, &options, on_miss).ok()
    }

    fn stored(&self, compiler: &Compiler) -> (PlanKey, Entry) {
        let planner = Planner::new(Vault::in_memory(VaultOptions::new()), Some(compiler.clone()));
        let key = self.of(&planner, OnMiss::Compile).expect("compiles").key.expect("a key");
        (key, Entry::clone(&planner.vault().recall(&Key(*key.bytes())).expect("is kept")))
    }

    /// The facts that a look-up serves of an entry, if it serves it.
    fn served(&self, key: PlanKey, entry: Entry) -> Option<PlanFacts> {
        let vault = Vault::in_memory(VaultOptions::new());
        // A vault in memory keeps it there alone.
        let _ = vault.put(&Key(*key.bytes()), entry);
        let planner = Planner::new(vault, None);
        let found = self.of(&planner, OnMiss::Load)?.outcome.ok().map(|plan| plan.facts.clone());
        if found.is_none() {
            // It does not come again.
            assert!(planner.vault().recall(&Key(*key.bytes())).is_none());
        }
        found
    }
}

/// Facts that follow from nothing that a look-up has: the compiler tells them. A load compares the workspace with
/// cuDNN's own, and the rest is for people.
fn told(facts: &PlanFacts, of: &PlanFacts) -> PlanFacts {
    let PlanFacts { compile_ms, engine, workspace, own, .. } = of.clone();
    let told = PlanFacts { compile_ms, ..facts.clone() };
    match (facts.own.clone(), own) {
        (OwnFacts::Cudnn(mut own), OwnFacts::Cudnn(other)) => {
            own.passed_over = other.passed_over;
            PlanFacts { engine, workspace, own: OwnFacts::Cudnn(own), ..told }
        }
        _ => told,
    }
}

/// Names of the numbers and tensors of an expression, which no key contains: attentions that differ in them have one
/// plan.
const NAMES: [&str; 2] = ["description[0].attention[6][1][0][0]", "description[0].attention[6][2][0][0]"];

/// Tries every change of an entry; how many there were.
fn tried(asked: &Asked<'_>, rebuilder: &Engines, compiler: &Compiler) -> usize {
    let (key, good) = asked.stored(compiler);
    let check = rebuilder.verify(key, &good);
    assert!(matches!(check, RebuildCheck::Same { .. }), "{check:?}");
    let facts = asked.served(key, good.clone()).expect("a good entry is served");
    let blob = usize::try_from(facts.blob_bytes).unwrap();
    let (count, failures) = (RefCell::new(0), RefCell::new(Vec::new()));
    let deep = |place: &str, entry: &Entry| {
        *count.borrow_mut() += 1;
        let check = rebuilder.verify(key, entry);
        if !matches!(check, RebuildCheck::Different(_)) {
            failures.borrow_mut().push(format!("deep {place}: {check:?}"));
        }
    };
    let looked = |place: &str, entry: Entry| {
        if let Some(found) = asked.served(key, entry)
            && found != told(&facts, &found)
        {
            failures.borrow_mut().push(format!("served {place}"));
        }
    };
    let closed = altered::facts(&good, &mut |place, entry| {
        // A measurement, which nothing can check.
        if place != "facts.compile_ms" {
            deep(place, &entry);
        }
        looked(place, entry);
    });
    assert!(closed.is_empty(), "no other value is known for {closed:?}");
    altered::description(&good, blob, &mut |place, entry| {
        if !NAMES.contains(&place) && !same_target(place, asked, key, &good, &entry, blob) {
            deep(place, &entry);
        }
        looked(place, entry);
    });
    altered::rest(&good, blob, &mut |place, entry| {
        deep(place, &entry);
        looked(place, entry);
    });
    let failures = failures.into_inner();
    assert!(
        failures.is_empty(),
        "{} of {}: {:#?}",
        failures.len(),
        count.borrow(),
        &failures[..failures.len().min(12)]
    );
    count.into_inner()
}

/// Whether a change of a description is one of the GPU's properties that no key contains (names, clocks, sizes of
/// memory: `device.rs` of `qkvault-graph` lists them), which boards with the same plans differ in.
fn same_target(place: &str, asked: &Asked<'_>, key: PlanKey, good: &Entry, changed: &Entry, blob: usize) -> bool {
    let target = |entry: &Entry| {
        let value: serde_json::Value = rmp_serde::from_slice(&entry.payload[blob..]).ok()?;
        let target = value.get(1)?.get("cudnn")?.get(0)?;
        rmp_serde::from_slice::<Target>(&rmp_serde::to_vec(target).ok()?).ok()
    };
    let (Some(before), Some(after)) = (target(good), target(changed)) else { return false };
    let options = CompileOptions { engine: asked.engine, ..CompileOptions::default() };
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
    place.starts_with("description[1].cudnn[0][3]")
        && before != after
        && planner.key(asked.attention, &after, &options).is_ok_and(|found| found == key)
}

fn modified(e: Expr) -> ScoreExpr {
    e.build_score_mod().unwrap()
}

#[test]
fn audit_3_every_changed_field_of_an_entry_is_seen_by_a_deep_check_and_served_by_no_look_up() {
    let Some(compiler) = compiler("9.27.0") else { return };
    if Nvrtc::open(None).is_err() {
        return skip(Need::Cudnn, "no NVRTC is fetched");
    }
    let h200 = target(&compiler, "h200");
    let rebuilder = Planner::new(Vault::in_memory(VaultOptions::new()), Some(compiler.clone())).engines().clone();
    let softcap =
        library::softcap(score(), scalar("cap")) + tensor("bias", TensorSpec::new(DType::F32, [1, 2, 1, 128]));
    let softcap =
        Attention::bshd(1, (2, 2), (128, 128), 64, DType::BF16).causal().with_stats().with_score_mod(modified(softcap));
    let softcap = validate(softcap).unwrap();
    let mut paged = Attention::bshd(2, (8, 2), (1, 512), 64, DType::BF16).with_lengths();
    paged.k = Tensor::paged_nhd(2, 2, 512, 64, 16, 64, DType::BF16);
    paged.v = paged.k;
    let paged = validate(paged).unwrap();
    let mut all = 0;
    for (attention, engine) in [(&softcap, CUDNN.policy()), (&paged, CUDNN.policy()), (&paged, KERNELS.policy())] {
        let asked = Asked { attention, target: &h200, engine };
        all += tried(&asked, &rebuilder, &compiler);
    }
    assert!(all > 500, "{all} changes");
}

#[test]
fn audit_3_every_changed_field_of_a_flashattention_4_entry_is_seen() {
    let Some(compiler) = compiler("9.27.0") else { return };
    if let Err(error) = Installed::find() {
        return skip(Need::Fa4, &error.to_string());
    }
    let h200 = target(&compiler, "h200");
    let rebuilder = Engines::built_in();
    let softcap = modified(library::softcap(score(), scalar("cap")));
    let attention = Attention::bshd(2, (8, 2), (300, 500), 128, DType::BF16).with_band(Band::CAUSAL_BOTTOM_RIGHT);
    let attention = validate(attention.with_stats().with_score_mod(softcap)).unwrap();
    let asked = Asked { attention: &attention, target: &h200, engine: FA4.policy() };
    let all = tried(&asked, &rebuilder, &compiler);
    assert!(all > 300, "{all} changes");
}
