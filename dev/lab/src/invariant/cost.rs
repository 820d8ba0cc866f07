//! What invariance costs: the same serving steps with and without it, by own kernels, in turns.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_cli::turns::in_turns;
use qkvault_exec::cudarc;
use qkvault_graph::{Attention, Band, DType, Tensor, validate};
use serde_json::{Value, json};

use super::ComparedGround;

/// Sequences, new tokens of one, keys, head dim: decodes, drafts and chunks.
const CASES: [(i64, i64, i64, i64); 14] = [
    (1, 1, 1024, 128),
    (1, 1, 8192, 128),
    (1, 1, 32_768, 128),
    (8, 1, 1024, 128),
    (8, 1, 8192, 128),
    (64, 1, 8192, 128),
    (256, 1, 1024, 128),
    (8, 1, 8192, 64),
    (8, 4, 8192, 128),
    (8, 64, 8192, 128),
    (1, 256, 8192, 128),
    (8, 256, 8192, 128),
    (1, 2048, 8192, 128),
    (4, 512, 2048, 128),
];

/// Rounds of each measurement, of which there are three a plan, in turns; the fastest counts.
const ROUNDS: usize = 7;

fn name((b, new, keys, d): (i64, i64, i64, i64)) -> String {
    format!("q{new} b{b} s{keys} d{d}")
}

pub(super) fn rows(ground: &ComparedGround, only: &str, stream: &Arc<CudaStream>) -> anyhow::Result<Vec<Value>> {
    CASES.iter().filter(|case| name(**case).contains(only)).map(|case| row(ground, *case, stream)).collect()
}

fn row(ground: &ComparedGround, case: (i64, i64, i64, i64), stream: &Arc<CudaStream>) -> anyhow::Result<Value> {
    let (b, new, keys, d) = case;
    let of = |invariant: bool| -> anyhow::Result<_> {
        let mut a = Attention::bshd(b, (32, 8), (new, keys), d, DType::BF16).with_lengths();
        a.k = Tensor::paged_nhd(b, 8, keys, d, b * keys / 64, 64, DType::BF16);
        a.v = a.k;
        if new > 1 {
            a.q = Tensor::thd(b, 32, new, d, b * new, DType::BF16);
            a.o = a.q;
        }
        a.invariant = invariant;
        let attention = validate(a.with_band(Band::CAUSAL_BOTTOM_RIGHT))?;
        let plan = ground.plan(&attention)?;
        Ok((attention, [plan]))
    };
    let both = [of(false)?, of(true)?];
    let mut best = [f64::INFINITY; 2];
    for _ in 0..3 {
        for ((attention, plan), best) in both.iter().zip(&mut best) {
            *best = best.min(in_turns(stream, attention, plan, ROUNDS, |_| Ok(()))?[0]);
        }
    }
    let [usual, invariant] = best;
    let rounded = |us: f64| (us * 100.0).round() / 100.0;
    Ok(json!({
        "case": name(case), "usual_us": rounded(usual), "invariant_us": rounded(invariant),
        "cost": (invariant / usual * 1e3).round() / 1e3,
    }))
}
