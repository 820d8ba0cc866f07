//! Compiles expressions that read query positions: for one query over a cache, prompt chunks, varlen sequences and
//! backwards.

use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, CompileOptions, DType, ScoreExpr, Tensor, lower, validate};
use rayon::prelude::*;

use crate::cudnn::{compiler, target};

/// Named attentions with different queries, keys and storage. They have more than 256 keys: up to 256, every engine
/// indexes keys correctly.
fn shapes() -> Vec<(&'static str, Attention)> {
    let (b, heads, d, dtype) = (4, (8, 2), 128, DType::BF16);
    let dense = |queries, keys| Attention::bshd(b, heads, (queries, keys), d, dtype);
    let pool = Tensor::paged_hnd(b, heads.1, 4096, d, 1000, 64, dtype);
    let one = Tensor::bshd(b, heads.0, 1, d, dtype);
    let [q, kv] = [heads.0, heads.1].map(|h| Tensor::thd(b, h, 512, d, 2000, dtype));
    let last = Band::CAUSAL_BOTTOM_RIGHT;
    let back = |a: Attention| a.with_stats().backward(BackwardOptions::default());
    vec![
        ("one query", dense(1, 2048)),
        ("one query with lengths", dense(1, 2048).with_lengths()),
        ("one query over pages", Attention::forward(one, pool, pool, one).with_lengths()),
        ("piece", dense(128, 2048).with_band(last)),
        ("piece with lengths", dense(128, 2048).with_lengths().with_band(last)),
        ("varlen pieces over pages", Attention::forward(q, pool, pool, q).with_lengths().with_band(last)),
        ("piece, backward", back(dense(128, 512).with_band(last))),
        ("varlen, backward", back(Attention::forward(q, kv, kv, q).with_lengths().with_band(Band::CAUSAL))),
    ]
}

/// The name of a library function, and a function that adds it to an attention.
type Added = (&'static str, fn(Attention) -> Attention);

/// Score modifications and mask predicates of the library, with names.
fn functions() -> [Added; 4] {
    fn score_of(e: &qkvault_graph::expr::Expr) -> ScoreExpr {
        e.build_score_mod().unwrap()
    }
    [
        ("soft window", |a| a.with_score_mod(score_of(&library::soft_window(score(), 100, scalar("slope"))))),
        ("alibi", |a| {
            let heads = a.q.heads();
            a.with_score_mod(score_of(&library::alibi(score(), heads)))
        }),
        ("alibi inside a softcap", |a| {
            let heads = a.q.heads();
            a.with_score_mod(score_of(&library::softcap(library::alibi(score(), heads), scalar("cap"))))
        }),
        ("dilated window", |a| a.with_mask_mod(library::dilated_window(64, 4).build_mask_mod().unwrap())),
    ]
}

/// Whether a combination is refused with the reason `engine.wrong`. The engine for one query indexes keys wrongly; only
/// ALiBi over dense keys has another engine.
fn is_refused(shape: &str, function: &str) -> bool {
    shape == "one query over pages" || (shape.starts_with("one query") && !function.starts_with("alibi"))
}

/// Compiles every function for every shape with the fetched slim cuDNN of this version, for an H200.
///
/// # Panics
///
/// Panics if a result differs from `is_refused`, or if a refusal has another reason.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let rows: Vec<_> =
        shapes().into_iter().flat_map(|shape| functions().map(|function| (shape.clone(), function))).collect();
    let faults: Vec<String> = rows
        .par_iter()
        .filter_map(|((shape, a), (name, make))| {
            let (target, policy) = (target(&compiler, "h200"), CompileOptions::default());
            let a = validate(make(a.clone())).unwrap_or_else(|e| panic!("{shape}, {name}: {e}"));
            let graph = lower(&a, &target, &policy).unwrap_or_else(|e| panic!("{shape}, {name}: {e}"));
            let verdict = compiler.compile(&graph, &target, &policy).map(|plan| plan.engine).map_err(|e| e.to_string());
            let expected = match &verdict {
                Ok(_) => !is_refused(shape, name),
                Err(why) => is_refused(shape, name) && why.contains("engine.wrong"),
            };
            (!expected).then(|| format!("{shape}, {name}: {verdict:?}"))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
