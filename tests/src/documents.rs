//! Compiles varlen documents: every attention with a varlen equivalent compiles for GPUs whose backward supports varlen
//! Stats.

use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::expr::{Expr, key, library, query, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, Documents, Valid, validate};
use rayon::prelude::*;

use crate::cudnn::{compiler, target};
use crate::golden::{RECENT, turn};

/// Forward and backward of the varlen equivalent of two rows of 1024 tokens with a document mask and further features.
fn passes(name: &'static str, band: Option<Band>, modified: Option<Expr>, keep: Option<Expr>) -> [(String, Valid); 2] {
    let mask = library::document_mask("of_query", "of_key", 2, 1024, 1024);
    let mask = keep.map_or(mask.clone(), |keep| mask & keep).build_mask_mod().unwrap();
    let mut a = Attention::bshd(2, (8, 2), (1024, 1024), 128, DType::BF16).with_mask_mod(mask).with_stats();
    a.mask.band = band;
    a.score_mod = modified.map(|e| e.build_score_mod().unwrap());
    let varlen = |a: Attention| {
        let dense = validate(a).unwrap_or_else(|e| panic!("{name}: {e}"));
        dense.varlen_documents(Documents { longest: 700, most: 9 }).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let back = varlen(a.backward(BackwardOptions::default()));
    [(format!("{name}, forward"), varlen(a)), (format!("{name}, backward"), back)]
}

/// Compiles varlen documents, those of its turn, with the fetched slim cuDNN of this version for an H200 and a B200.
///
/// # Panics
///
/// Panics if one does not compile.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let capped = || library::softcap(score(), scalar("cap"));
    let rows: Vec<_> = [
        ("h200", passes("softcap", None, Some(capped()), None)),
        ("h200", passes("alibi, causal", Some(Band::CAUSAL), Some(library::alibi(score(), 8)), None)),
        ("h200", passes("every third distance", None, None, Some(((query() - key()) % 3).eq(0)))),
        ("b200", passes("softcap, window", Some(Band::window(Corner::TopLeft, 100)), Some(capped()), None)),
    ]
    .into_iter()
    .flat_map(|(gpu, rows)| rows.map(|row| (gpu, row)))
    .collect();
    let faults: Vec<String> = turn(rows, version, RECENT)
        .par_iter()
        .filter_map(|(gpu, (name, a))| {
            let (target, policy) = (target(&compiler, gpu), CompileOptions::cudnn());
            let graph = lower(a, &target, &policy).map_err(|refusal| refusal.to_string());
            let plan = graph.and_then(|graph| compiler.compile(&graph, &target, &policy).map_err(|e| e.to_string()));
            plan.err().map(|why| format!("{name} on {gpu}: {why}"))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
