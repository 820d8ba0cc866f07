//! Prompt chunks over 32,768 keys that are already in the cache.

use qkvault_exec::serving::{Rows, Step};
use qkvault_serving::{Bucket, StepKind};
use serde_json::json;

use super::pool::Pool;
use super::{Bench, HEAD_DIM, HEADS};

const CONTEXT: i64 = 32_768;

const NEW: [i64; 5] = [512, 1024, 2048, 4096, 8192];

/// Plans that this measurement needs.
pub(super) fn buckets() -> Vec<Bucket> {
    NEW.map(bucket).into()
}

const fn bucket(new: i64) -> Bucket {
    Bucket { kind: StepKind::Mixed, batch: 1, queries: new, keys: CONTEXT + new, tokens: new }
}

pub(super) fn run(bench: &mut Bench<'_>, pool: &Pool) -> anyhow::Result<()> {
    for new in NEW {
        if bench.over() {
            bench.row("prefill", json!({ "new": new, "left_out": "no time" }));
            continue;
        }
        let keys = [(CONTEXT + new) as i32];
        let plan = pool.plan(bench, bucket(new))?;
        let mut data = plan.batch(&bench.stream)?;
        let tables = pool.tables(0, &keys);
        data.update(&Step::paged(Rows::Lengths(&[new as i32]), Rows::Lengths(&keys), &tables), &bench.stream)?;
        let mut bound = pool.bind(bench, &plan, &data)?;
        let us = bench.time(|| Ok(bound.launch(&bench.stream)?))?;
        // Each query attends to the context and to the new tokens up to its own.
        let pairs = new as f64 * (CONTEXT as f64 + (new as f64 + 1.0) / 2.0);
        let flops = 4.0 * HEADS.0 as f64 * HEAD_DIM as f64 * pairs;
        let row = json!({
            "new": new, "context": CONTEXT, "us": us, "tflops": flops / us / 1e6, "tokens_per_s": new as f64 / us * 1e6,
            "engine": plan.plan.facts().engine, "workspace": plan.plan.workspace(),
        });
        bench.row("prefill", row);
    }
    Ok(())
}
