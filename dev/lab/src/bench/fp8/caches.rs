//! Caches of keys and values in 8 bits beside those of 16: decodes and chunks over pages, by own kernels.

use std::sync::Arc;

use qkvault_cli::turns::in_turns;
use qkvault_compile::{KERNELS, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::Session;
use qkvault_exec::cudarc::driver::CudaStream;
use qkvault_graph::{DType, Fp8, Valid, validate};
use serde_json::{Value, json};

use crate::bench::engines::{LLAMA, paged};

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

/// How often both formats have a turn.
const TURNS: usize = 3;

/// A row: the attention over a cache in 8 bits, and over one in 16.
pub(super) struct CacheRow {
    name: String,
    narrow: Valid,
    wide: Valid,
}

/// The rows whose names have these words.
pub(super) fn rows(only: &str) -> anyhow::Result<Vec<CacheRow>> {
    let mut list = Vec::new();
    for (queries, batch, keys, d) in CACHES {
        let name = format!("cache q{queries} b{batch} s{keys} d{d}");
        if !name.contains(only) {
            continue;
        }
        let a = paged(batch, LLAMA, queries, keys, d);
        let mut narrow = a.clone();
        (narrow.k.dtype, narrow.v.dtype, narrow.fp8) = (DType::E4M3, DType::E4M3, Some(Fp8::Cache));
        list.push(CacheRow { name, narrow: validate(narrow)?, wide: validate(a)? });
    }
    Ok(list)
}

/// Measures a row: both formats in captured graphs, in turns. Whether results are right is for `selftest --engine
/// kernels --fp8`.
pub(super) fn measure(
    row: &CacheRow,
    session: &Session,
    planner: &Planner,
    stream: &Arc<CudaStream>,
    rounds: usize,
) -> anyhow::Result<Value> {
    let own = CompileOptions { engine: KERNELS.policy(), ..CompileOptions::default() };
    let prepare = |a: &Valid, options: &CompileOptions| session.prepare(planner, a, options, OnMiss::Compile);
    let narrow = [prepare(&row.narrow, &own)?.plan];
    let usual = prepare(&row.wide, &CompileOptions::default())?.plan;
    let engine = usual.facts().engine.clone();
    let wide = [usual, prepare(&row.wide, &own)?.plan];
    let mut us = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        let times = [
            in_turns(stream, &row.wide, &wide, rounds, |_| Ok(()))?,
            in_turns(stream, &row.narrow, &narrow, rounds, |_| Ok(()))?,
        ];
        us.iter_mut().zip(times.concat()).for_each(|(list, time)| list.push(time));
    }
    let [usual, kernels, narrow] = us.map(|mut list| {
        list.sort_by(f64::total_cmp);
        list[TURNS / 2]
    });
    let least = usual.min(kernels);
    Ok(json!({
        "cache": row.name, "us": narrow, "bf16_us": least, "bf16_kernels_us": kernels, "bf16_engine": engine,
        "of_bf16": narrow / least,
    }))
}
