//! Caches of keys and values in 8 bits beside those of 16: decodes and chunks over pages, by own kernels.

use qkvault_compile::{KERNELS, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Device, Session};
use qkvault_graph::{Attention, Band, DType, Fp8, Tensor, validate};
use serde_json::{Value, json};

use super::times;
use crate::bench::summary::FigureSummary;
use crate::bench::timed::file::TimedCase;
use crate::bench::timed::turns::Turns;

/// Queries, sequences, keys, and the head dim: 32 query heads over 8, pages of 64.
const CACHES: [(i64, i64, i64, i64); 16] = [
    (1, 1, 8192, 128),
    (1, 8, 8192, 128),
    (1, 64, 8192, 128),
    (1, 8, 32_768, 128),
    (1, 256, 1024, 128),
    (1, 64, 8192, 64),
    (1, 64, 8192, 256),
    (4, 64, 8192, 128),
    (8, 8, 8192, 128),
    (16, 64, 8192, 128),
    (64, 8, 8192, 128),
    (64, 64, 8192, 128),
    (128, 8, 8192, 128),
    (128, 64, 8192, 128),
    (256, 8, 8192, 128),
    (2048, 1, 8192, 128),
];

/// A row: the attention over a cache in 8 bits, then over one in 16.
pub(super) struct CacheRow {
    name: String,
    cases: [TimedCase; 2],
}

/// The rows whose names have these words.
pub(super) fn rows(only: &str) -> anyhow::Result<Vec<CacheRow>> {
    let mut list = Vec::new();
    for (queries, batch, keys, d) in CACHES {
        let name = format!("cache q{queries} b{batch} s{keys} d{d}");
        if !name.contains(only) {
            continue;
        }
        let mut a = Attention::bshd(batch, (32, 8), (queries, keys), d, DType::BF16).with_lengths();
        a.k = Tensor::paged_nhd(batch, 8, keys, d, batch * keys / 64, 64, DType::BF16);
        a.v = a.k;
        a = a.with_band(Band::CAUSAL_BOTTOM_RIGHT);
        let mut narrow = a.clone();
        (narrow.k.dtype, narrow.v.dtype, narrow.fp8) = (DType::E4M3, DType::E4M3, Some(Fp8::Cache));
        let case = |a: Attention, name: &str| anyhow::Ok(TimedCase::for_attention(name.to_owned(), &validate(a)?, 1)?);
        list.push(CacheRow { name, cases: [case(narrow, "cache")?, case(a, "bf16")?] });
    }
    Ok(list)
}

/// Measures a row: each form in captured graphs that take turns.
pub(super) fn measure(
    row: &CacheRow,
    device: &Device,
    session: &Session,
    planner: &Planner,
    rounds: usize,
) -> anyhow::Result<Value> {
    let mut turns = Turns::new(session, planner, OnMiss::Compile, device.context().new_stream()?);
    let own = CompileOptions { engine: KERNELS.policy(), ..CompileOptions::default() };
    turns.add(&row.cases[0], "kernels", &own, 8);
    turns.add(&row.cases[1], "auto", &CompileOptions::default(), 8);
    turns.add(&row.cases[1], "kernels", &own, 0);
    let [forward, _] = times::measure(&mut turns, rounds)?;
    let median = |at: usize| FigureSummary::from_values(forward[at].in_turns.clone()).map(|of| of.median);
    let (ours, auto, kernels) = (median(0), median(1), median(2));
    let sixteen = match (auto, kernels) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    };
    let entries = turns.entries();
    Ok(json!({
        "cache": row.name, "ms": ours, "bf16_ms": sixteen, "bf16_kernels_ms": kernels, "of_bf16": ours.zip(sixteen).map(|(a, b)| a / b),
        "status": entries[0].status(false), "bf16_status": entries[1].status(false),
        "engine": entries[1].passes[0].facts.as_ref().map(|facts| facts.engine.clone()),
        "why": [entries[0].why(), entries[1].why()],
    }))
}
