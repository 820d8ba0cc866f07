//! Compiles expressions that read query positions: for one query over a cache, prompt chunks, varlen sequences and
//! backwards.

use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, ScoreExpr, Tensor, validate};
use rayon::prelude::*;

use crate::cudnn::{compiler, target};
use crate::golden::{RECENT, turn};

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
fn functions() -> Vec<Added> {
    fn score_of(e: &qkvault_graph::expr::Expr) -> ScoreExpr {
        e.build_score_mod().unwrap()
    }
    vec![
        ("soft_window", |a| a.with_score_mod(score_of(&library::soft_window(score(), 100, scalar("slope"))))),
        ("alibi", |a| {
            let heads = a.q.heads();
            a.with_score_mod(score_of(&library::alibi(score(), heads)))
        }),
        ("softcap of alibi", |a| {
            let heads = a.q.heads();
            a.with_score_mod(score_of(&library::softcap(library::alibi(score(), heads), scalar("cap"))))
        }),
        ("dilated_window", |a| a.with_mask_mod(library::dilated_window(64, 4).build_mask_mod().unwrap())),
        ("prefix_lm", |a| {
            let batch = a.batch();
            a.with_mask_mod(library::prefix_lm("prefix", batch).build_mask_mod().unwrap())
        }),
    ]
}

/// What a refusal of a combination says, where it is refused. The engine for one query indexes keys wrongly; only ALiBi
/// over dense keys has another engine. The backward of varlen prefixes reads three numbers per sequence, which is one
/// more than it can (the rule `backward.query-tensors`).
fn refused(shape: &str, function: &str) -> Option<&'static str> {
    let wrong = shape == "one query over pages" || (shape.starts_with("one query") && !function.contains("alibi"));
    let too_many = shape == "varlen, backward" && function == "prefix_lm";
    wrong.then_some("engine.wrong").or(too_many.then_some("Only 4 sq broadcasted vectors are supported"))
}

/// Compiles functions for shapes, those of its turn, with the fetched slim cuDNN of this version, for an H200.
///
/// # Panics
///
/// Panics if a result differs from what `refused` says.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let rows: Vec<_> = shapes()
        .into_iter()
        .flat_map(|shape| functions().into_iter().map(move |function| (shape.clone(), function)))
        .collect();
    let faults: Vec<String> = turn(rows, version, RECENT)
        .par_iter()
        .filter_map(|((shape, a), (name, make))| {
            let (target, policy) = (target(&compiler, "h200"), CompileOptions::cudnn());
            let a = validate(make(a.clone())).unwrap_or_else(|e| panic!("{shape}, {name}: {e}"));
            let graph = lower(&a, &target, &policy).unwrap_or_else(|e| panic!("{shape}, {name}: {e}"));
            let verdict = compiler.compile(&graph, &target, &policy).map(|plan| plan.engine).map_err(|e| e.to_string());
            let expected = match (&verdict, refused(shape, name)) {
                (Ok(_), None) => true,
                (Err(why), Some(says)) => why.contains(says),
                _ => false,
            };
            (!expected).then(|| format!("{shape}, {name}: {verdict:?}"))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of the library that need not be compiled here, with the reason.
    const OTHERWISE: [(&str, &str); 11] = [
        ("alibi_of", "the op graph of `alibi`"),
        ("alibi_with", "the op graph of `alibi`"),
        ("softcap", "reads no position"),
        ("bias", "reads no position"),
        ("relative_bias", "reads no position"),
        ("document_mask", "reads no position"),
        ("padding", "reads no position"),
        ("causal", "becomes a band"),
        ("sliding_window", "becomes a band"),
        ("top_left_causal", "becomes a band"),
        ("top_left_window", "becomes a band"),
    ];

    #[test]
    fn every_function_that_reads_a_position_is_compiled() {
        let compiled: Vec<&str> = functions().into_iter().map(|(name, _)| name).collect();
        let known = compiled.into_iter().chain(OTHERWISE.map(|(name, _)| name)).collect::<Vec<_>>();
        let all = library::SCORE_MODS.iter().chain(library::MASK_MODS);
        assert_eq!(all.filter(|name| !known.contains(name)).collect::<Vec<_>>(), [&""; 0]);
    }
}
