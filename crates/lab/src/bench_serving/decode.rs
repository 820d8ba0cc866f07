//! Decodes: the bandwidth of reading keys and values, as a share of the bandwidth of a copy on the same GPU.
//!
//! `us` is the time of a launch within a captured graph. Servers run decodes in this way, and `bench/serving_peer.py`
//! times other libraries in this way. `us_launched` is the time of separate launches; for short decodes the host's time
//! dominates it.

use qkvault_exec::serving::{Rows, Step};
use qkvault_serving::{Bucket, StepKind};
use serde_json::json;

use super::pool::Pool;
use super::{Bench, HEAD_DIM, HEADS, PAGE};

/// Bytes that a measurement covers by using several layers, so that its data does not fit the L2 cache.
const SPREAD: usize = 256 << 20;

const BATCHES: [usize; 4] = [1, 8, 64, 256];
const KEYS: [i64; 3] = [1024, 8192, 32_768];

/// Plans that this measurement needs.
pub(super) fn buckets() -> Vec<Bucket> {
    BATCHES.iter().flat_map(|&batch| KEYS.map(|keys| bucket(batch, keys))).collect()
}

const fn bucket(batch: usize, keys: i64) -> Bucket {
    Bucket { kind: StepKind::Decode, batch: batch as i64, queries: 1, keys, tokens: batch as i64 }
}

pub(super) fn run(bench: &mut Bench<'_>, pool: &Pool) -> anyhow::Result<()> {
    for batch in BATCHES {
        for keys in KEYS {
            let pages = batch * (keys / PAGE) as usize;
            if pages > pool.order.len() || bench.over() {
                bench.row("decode", json!({ "b": batch, "kv": keys, "left_out": "no room, or no time" }));
                continue;
            }
            let bytes = 2 * batch * (keys * HEADS.1 * HEAD_DIM * 2) as usize;
            let layers = SPREAD.div_ceil(bytes).min(pool.order.len() / pages).clamp(1, 48);
            let plan = pool.plan(bench, bucket(batch, keys))?;
            let lengths = vec![keys as i32; batch];
            let mut bound = Vec::new();
            for layer in 0..layers {
                let mut batch_ = plan.batch(&bench.stream)?;
                let tables = pool.tables(layer * pages, &lengths);
                batch_.update(&Step::paged(Rows::One(batch), Rows::Lengths(&lengths), &tables), &bench.stream)?;
                bound.push(pool.bind(bench, &plan, &batch_)?);
            }
            let mut next = 0;
            let launched = bench.time(|| {
                next = (next + 1) % layers;
                Ok(bound[next].launch(&bench.stream)?)
            })?;
            // Enough launches for about two milliseconds, and a multiple of the number of layers.
            let calls = ((2000.0 / launched) as usize).clamp(5, 200).next_multiple_of(layers);
            let us = bench.time_recorded(&mut bound, calls)?;
            let rate = bytes as f64 / (us * 1e-6);
            let row = json!({
                "b": batch, "kv": keys, "us": us, "us_launched": launched, "tb_per_s": rate / 1e12, "share_of_copy": rate / bench.copy,
                "layers": layers, "engine": plan.plan.facts().engine, "workspace": plan.plan.workspace(),
            });
            bench.row("decode", row);
        }
    }
    Ok(())
}
