//! Attentions with the features by which an engine is chosen, one by one and together, so that no class of attentions
//! is chosen among engines that nobody compared: expressions, sinks, lengths, windows, documents, one order of sums,
//! 256 queries, latent prompts; steps of serving with them, mixed batches, and pages of other sizes.

use qkvault_graph::expr::{self, TensorSpec, library};
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, ScoreExpr, Tensor};

use super::cases::{LLAMA, latent, paged, paged_by};

/// Sizes of a prompt or a training step: sequences, query heads, heads of keys, tokens, head dim.
const SIZES: [(i64, i64, i64, i64, i64); 4] =
    [(1, 32, 8, 2048, 128), (2, 32, 8, 8192, 128), (8, 16, 16, 1024, 64), (1, 16, 8, 4096, 256)];

/// What is done to a causal prompt.
const PROMPTS: [&str; 10] = [
    "softcap",
    "alibi",
    "sink",
    "lengths",
    "window",
    "window softcap",
    "window sink",
    "documents",
    "documents softcap",
    "deterministic",
];

fn softcap() -> anyhow::Result<ScoreExpr> {
    Ok(library::softcap(expr::score(), expr::scalar("cap")).build_score_mod()?)
}

/// A forward without Stats, as for inference, and its backward.
fn both(forward: Attention, deterministic: bool) -> [Attention; 2] {
    let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
    let backward = forward.clone().with_stats().backward(options);
    [forward, backward]
}

fn prompt(words: &str, (b, h, hk, s, d): (i64, i64, i64, i64, i64)) -> anyhow::Result<[Attention; 2]> {
    let has = |word: &str| words.split(' ').any(|one| one == word);
    let mut a = Attention::bshd(b, (h, hk), (s, s), d, DType::BF16).causal();
    if has("window") {
        a = a.with_band(Band::window(Corner::BottomRight, 512));
    }
    if has("softcap") {
        a = a.with_score_mod(softcap()?);
    }
    if has("alibi") {
        a = a.with_score_mod(library::alibi(expr::score(), h).build_score_mod()?);
    }
    if has("sink") {
        a = a.with_sink();
    }
    if has("lengths") {
        a = a.with_lengths();
    }
    if has("documents") {
        a = a.with_mask_mod(library::document_mask("q_ids", "k_ids", b, s, s).build_mask_mod()?);
    }
    Ok(both(a, has("deterministic")))
}

/// Every case with its name; a name has at most one of each direction.
pub(super) fn list() -> anyhow::Result<Vec<(String, Attention)>> {
    let mut all: Vec<(String, Attention)> = Vec::new();
    for words in PROMPTS {
        for sizes in SIZES {
            let (b, h, hk, s, d) = sizes;
            let name = format!("feature {words} b{b} h{h}/{hk} s{s} d{d}");
            let [forward, backward] = prompt(words, sizes)?;
            // A forward has nothing to sum in an order.
            if words != "deterministic" {
                all.push((name.clone(), forward));
            }
            all.push((name, backward));
        }
    }
    for (b, keys, d) in [(1, 8192, 128), (8, 8192, 128), (8, 2048, 64)] {
        let mut a = Attention::bshd(b, LLAMA, (256, keys), d, DType::BF16).with_band(Band::CAUSAL_BOTTOM_RIGHT);
        all.push((format!("feature chunk q256 b{b} s{keys} d{d}"), a.clone()));
        a = paged(b, LLAMA, 256, keys, d);
        all.push((format!("feature paged q256 b{b} s{keys} d{d}"), a.clone()));
        all.push((format!("feature paged softcap q256 b{b} s{keys} d{d}"), a.with_score_mod(softcap()?)));
    }
    // A prompt of a model with a latent cache, before it is compressed.
    for (b, heads, s) in [(1, 128, 2048), (1, 16, 8192)] {
        let mut a = Attention::bshd(b, (heads, heads), (s, s), 192, DType::BF16).causal();
        a.v = Tensor::bshd(b, heads, s, 128, DType::BF16);
        a.o = a.v;
        all.extend(both(a, false).map(|a| (format!("feature 192/128 b{b} h{heads} s{s}"), a)));
    }
    masks(&mut all)?;
    serving(&mut all)?;
    Ok(all)
}

/// Masks that operands tell: blocks of a block mask, a tensor of truth values, documents of uneven lengths.
fn masks(all: &mut Vec<(String, Attention)>) -> anyhow::Result<()> {
    for (h, hk, s) in [(32, 8, 2048), (16, 16, 8192), (16, 16, 32_768)] {
        let a = Attention::bshd(1, (h, hk), (s, s), 128, DType::BF16);
        let mut blocks = a.clone().causal();
        blocks.block_mask = true;
        all.extend(both(blocks, false).map(|a| (format!("feature block mask b1 h{h}/{hk} s{s} d128"), a)));
        if s < 32_768 {
            let seen = expr::tensor("mask", TensorSpec::new(DType::I32, [1, 1, s, s])).ne(0).build_mask_mod()?;
            let name = format!("feature mask tensor b1 h{h}/{hk} s{s} d128");
            all.extend(both(a.with_mask_mod(seen), false).map(|a| (name.clone(), a)));
        }
    }
    for (documents, h, hk, s, d, tokens) in
        [(8, 16, 16, 8192, 128, 16_384), (16, 32, 8, 4096, 128, 8192), (12, 32, 8, 16_384, 64, 32_768)]
    {
        let tensor = |heads| Tensor::thd(documents, heads, s, d, tokens, DType::BF16);
        let (q, k) = (tensor(h), tensor(hk));
        let a = Attention::forward(q, k, k, q).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT);
        let name = format!("feature uneven documents b{documents} h{h}/{hk} s{s} d{d} of {tokens}");
        all.extend(both(a, false).map(|a| (name.clone(), a)));
    }
    Ok(())
}

/// Steps of serving: drafts and chunks with expressions, sinks and windows, mixed batches, pages of other sizes.
fn serving(all: &mut Vec<(String, Attention)>) -> anyhow::Result<()> {
    for queries in [4, 32, 128] {
        for (b, keys) in [(1, 8192), (8, 8192), (64, 2048)] {
            let plain = || paged(b, LLAMA, queries, keys, 128);
            let at = format!("q{queries} b{b} s{keys}");
            all.push((format!("feature draft softcap {at}"), plain().with_score_mod(softcap()?)));
            let window = Band::window(Corner::BottomRight, 1024);
            all.push((format!("feature draft window {at}"), plain().with_band(window)));
            all.push((format!("feature draft sink {at}"), paged(b, (64, 8), queries, keys, 64).with_sink()));
            let mut mixed = plain();
            mixed.q = Tensor::thd(b, LLAMA.0, queries, 128, b * queries, DType::BF16);
            mixed.o = mixed.q;
            all.push((format!("feature mixed {at}"), mixed));
        }
    }
    // A chunk of a prompt beside decodes of a row each, in one plan.
    for (queries, b, keys) in [(256, 9, 8192), (512, 33, 8192), (2048, 65, 4096)] {
        let mut uneven = paged(b, LLAMA, queries, keys, 128);
        uneven.q = Tensor::thd(b, LLAMA.0, queries, 128, queries + b - 1, DType::BF16);
        uneven.o = uneven.q;
        all.push((format!("feature mixed uneven q{queries} b{b} s{keys}"), uneven));
    }
    for (queries, b, keys) in [(4, 8, 8192), (4, 64, 2048)] {
        let alibi = library::alibi(expr::score(), LLAMA.0).build_score_mod()?;
        let a = paged(b, LLAMA, queries, keys, 128).with_score_mod(alibi);
        all.push((format!("feature draft alibi q{queries} b{b} s{keys}"), a));
    }
    for (queries, b, keys) in [(4, 8, 8192), (4, 64, 2048)] {
        all.push((format!("feature latent draft q{queries} b{b} s{keys}"), latent(b, 16, queries, keys)));
    }
    for (b, keys, d) in [(1, 1024, 128), (8, 1024, 128), (64, 1024, 128), (1, 32_768, 128), (8, 4096, 64)] {
        all.push((
            format!("feature dense decode b{b} s{keys} d{d}"),
            Attention::bshd(b, LLAMA, (1, keys), d, DType::BF16),
        ));
    }
    for page in [1, 4, 16, 128] {
        for queries in [1, 16] {
            let a = paged_by(page, 8, LLAMA, queries, 8192, 128);
            all.push((format!("feature pages of {page} q{queries} b8 s8192"), a));
        }
    }
    for (b, keys) in [(64, 32_768), (256, 8192), (256, 32_768)] {
        // Keys of one head pair alone fit beside another plan's.
        all.push((format!("feature long b{b} s{keys}"), paged(b, (8, 2), 1, keys, 128)));
    }
    Ok(())
}
