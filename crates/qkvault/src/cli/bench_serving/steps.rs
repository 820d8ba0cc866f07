//! Thousands of random steps on a small set of plans: nothing is built, and how long the host takes for each.

use std::time::Instant;

use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{Batch, Bound};
use qkvault_graph::serving::{Bucket, Buckets, ServePolicy, StepKind, StepSize};
use qkvault_probe::BuildPolicy;
use serde_json::json;

use super::pool::{Pool, Random};
use super::{Bench, PAGE};

/// Steps after which the host waits for the GPU, outside of what is timed: a full queue would be timed else.
const QUEUE: usize = 64;

/// The policy: every sequence has pages of its own, for as many keys as the pool allows.
fn policy(pages: usize) -> ServePolicy {
    let policy = ServePolicy::default();
    let per_sequence = (pages / policy.batch as usize).min((policy.keys / PAGE) as usize);
    let keys = per_sequence as i64 * PAGE;
    ServePolicy { keys, queries: policy.queries.min(keys), ..policy }
}

/// The plan that is captured.
const CAPTURED: Bucket = Bucket { kind: StepKind::Mixed, batch: 16, queries: 256, keys: 4096, tokens: 512 };

/// Plans that are used.
pub(super) fn buckets(pages: usize) -> anyhow::Result<Vec<Bucket>> {
    Ok(Buckets::new(&policy(pages))?.iter().chain([CAPTURED]).collect())
}

pub(super) fn run(bench: &mut Bench<'_>, pool: &Pool) -> anyhow::Result<()> {
    let policy = policy(pool.order.len());
    let most_keys = policy.keys as usize;
    let buckets = Buckets::new(&policy)?;
    let layer = pool.layer();
    let planner = bench.engine.planner().clone();
    let started = Instant::now();
    let served = bench.engine.prepare_serving(&layer, &buckets, &bench.policy, BuildPolicy::LoadOnly)?;
    let load_seconds = started.elapsed().as_secs_f64();
    let stream = bench.stream.clone();
    let mut set = served.plans.try_map(|_, plan| -> anyhow::Result<(Batch, Bound<'_>)> {
        let batch = plan.batch(&stream)?;
        let bound = pool.bind(bench, &plan, &batch)?;
        Ok((batch, bound))
    })?;
    let tables: Vec<Vec<i32>> = pool.tables(0, &vec![most_keys as i32; policy.batch as usize]);
    let mut random = Random(bench.args.seed);
    let (mut host, mut used, mut copied) = (Vec::new(), std::collections::BTreeMap::new(), 0_usize);
    let before = planner.vault().stats().builds;
    let begun = Instant::now();
    for n in 0..bench.args.steps {
        let sequences = random.spread(1, policy.batch as usize);
        let mut queries = vec![1_i32; sequences];
        let mut keys: Vec<i32> = (0..sequences).map(|_| random.spread(1, most_keys) as i32).collect();
        if random.below(10) < 3 {
            // Up to three chunks of prompts among the decodes, within the tokens of a step.
            let mut room = policy.tokens as usize - sequences;
            for _ in 0..=random.below(3) {
                let at = random.below(sequences);
                let new = random.spread(1, policy.queries as usize).min(room).max(1);
                room = (room + queries[at] as usize).saturating_sub(new);
                queries[at] = new as i32;
                keys[at] = keys[at].max(new as i32);
            }
        }
        let clock = Instant::now();
        let size = StepSize {
            sequences: sequences as i64,
            queries: i64::from(queries.iter().copied().max().unwrap_or(1)),
            keys: i64::from(keys.iter().copied().max().unwrap_or(1)),
        };
        let at = set.pick(size).ok_or_else(|| anyhow::anyhow!("no plan for {size:?}"))?;
        let picked = clock.elapsed();
        let Some((batch, bound)) = set.get_mut(at) else { continue };
        let step = Step::paged(Rows::Lengths(&queries), Rows::Lengths(&keys), &tables[..sequences]);
        let uploaded = batch.update(&step, &stream)?;
        let updated = clock.elapsed();
        bound.launch(&stream)?;
        let launched = clock.elapsed();
        copied += uploaded.bytes;
        *used.entry(at).or_insert(0_usize) += 1;
        // The first steps meet every plan for the first time.
        if n >= bench.args.steps / 10 {
            let us = |d: std::time::Duration| d.as_secs_f64() * 1e6;
            host.push([us(picked), us(updated - picked), us(launched - updated), us(launched)]);
        }
        if n % QUEUE == 0 {
            stream.synchronize()?;
        }
    }
    stream.synchronize()?;
    let seconds = begun.elapsed().as_secs_f64();
    let of = |which: usize, share: f64| {
        let mut list: Vec<f64> = host.iter().map(|times| times[which]).collect();
        list.sort_by(f64::total_cmp);
        list.get(((list.len() as f64 * share) as usize).min(list.len().saturating_sub(1))).copied()
    };
    let both = |which| json!({ "median_us": of(which, 0.5), "p99_us": of(which, 0.99) });
    let row = json!({
        "steps": bench.args.steps, "builds": planner.vault().stats().builds - before, "plans": buckets.len(), "plans_used": used.len(),
        "refused": served.refused.len(), "load_seconds": load_seconds, "seconds": seconds,
        "choose": both(0), "update": both(1), "launch": both(2), "host": both(3),
        "bytes_copied_per_step": copied / bench.args.steps.max(1), "policy": policy,
    });
    bench.row("steps", row);
    captured(bench, pool)
}

/// Whether a captured graph sees updates of its batch: replays against launches, bit for bit.
fn captured(bench: &mut Bench<'_>, pool: &Pool) -> anyhow::Result<()> {
    let stream = bench.stream.clone();
    let plan = pool.plan(bench, CAPTURED)?;
    let mut batch = plan.batch(&stream)?;
    let mut direct = pool.bind(bench, &plan, &batch)?;
    let mut graph = pool.bind(bench, &plan, &batch)?.capture(&stream)?;
    let mut random = Random(9);
    let mut equal = 0;
    const STEPS: usize = 20;
    for step in 0..STEPS {
        let sequences = 1 + random.below(16);
        let queries: Vec<i32> = (0..sequences).map(|_| 1 + random.below(30) as i32).collect();
        let keys: Vec<i32> = queries.iter().map(|&q| q + random.below(4000) as i32).collect();
        let tables = pool.tables(step * 1000, &keys);
        batch.update(&Step::paged(Rows::Lengths(&queries), Rows::Lengths(&keys), &tables), &stream)?;
        batch.verify(&stream)?;
        let rows = queries.iter().sum::<i32>() as usize;
        direct.launch(&stream)?;
        let expected = pool.outputs(bench, rows)?;
        pool.spoil(bench)?;
        graph.launch()?;
        equal += usize::from(pool.outputs(bench, rows)? == expected);
    }
    bench.row("captured", json!({ "steps": STEPS, "bit_equal": equal, "right": equal == STEPS }));
    Ok(())
}
