//! Thousands of random steps on a small set of plans: counts builds, of which there must be none, and measures the host
//! time of each step.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use qkvault_compile::OnMiss;
use qkvault_exec::serving::{PlanSet, Rows, Step};
use qkvault_exec::{BatchMetadata, Bound, Uploaded, cudarc};
use qkvault_serving::{Bucket, Buckets, ServePolicy, StepKind, StepSize};
use serde_json::{Value, json};

use super::pool::{Outputs as _, Pool, Random};
use super::{Bench, PAGE};

/// Steps after which the host waits for the GPU, outside the timing. Otherwise a full queue would count as host time.
const QUEUE: usize = 64;

/// The policy: every sequence has its own pages, for as many keys as the pool allows.
fn policy(pages: usize) -> ServePolicy {
    let policy = ServePolicy::default();
    let per_sequence = (pages / policy.batch as usize).min((policy.keys / PAGE) as usize);
    let keys = per_sequence as i64 * PAGE;
    ServePolicy { keys, queries: policy.queries.min(keys), ..policy }
}

/// The plan of the capture test.
const CAPTURED: Bucket = Bucket { kind: StepKind::Mixed, batch: 16, queries: 256, keys: 4096, tokens: 512 };

/// Plans that this measurement needs.
pub(super) fn buckets(pages: usize) -> anyhow::Result<Vec<Bucket>> {
    Ok(Buckets::new(&policy(pages))?.iter().chain([CAPTURED]).collect())
}

pub(super) fn run(bench: &mut Bench<'_>, pool: &Pool) -> anyhow::Result<()> {
    let policy = policy(pool.order.len());
    let most_keys = policy.keys as usize;
    let buckets = Buckets::new(&policy)?;
    let layer = pool.layer();
    let planner = bench.planner.clone();
    let started = Instant::now();
    let served = bench.session.prepare_serving(&bench.planner, &layer, &buckets, &bench.options, OnMiss::Load)?;
    let load_seconds = started.elapsed().as_secs_f64();
    let stream = bench.stream.clone();
    let mut set = served.plans.try_map(|_, plan| -> anyhow::Result<(BatchMetadata, Bound<'_>)> {
        let batch = plan.batch(&stream)?;
        let bound = pool.bind(bench, &plan, &batch)?;
        Ok((batch, bound))
    })?;
    let tables: Vec<Vec<i32>> = pool.tables(0, &vec![most_keys as i32; policy.batch as usize]);
    let before = planner.vault().stats().builds;
    let mut random = Random(bench.args.seed);
    let drawn = drive(&mut set, &stream, &tables, bench.args.steps, |queries, keys| {
        draw(&mut random, &policy, queries, keys);
    })?;
    let growing = drive(&mut set, &stream, &tables, bench.args.steps / 10, |queries, keys| {
        grow(&mut random, &policy, queries, keys);
    })?;
    let row = json!({
        "steps": bench.args.steps, "builds": planner.vault().stats().builds - before, "plans": buckets.len(), "refused": served.refused.len(),
        "load_seconds": load_seconds, "policy": policy, "drawn": drawn, "growing": growing,
    });
    bench.row("steps", row);
    captured(bench, pool)
}

/// Draws a step with any number of sequences of any length: decodes, and in three of ten steps up to three prompt
/// chunks.
fn draw(random: &mut Random, policy: &ServePolicy, queries: &mut Vec<i32>, keys: &mut Vec<i32>) {
    let sequences = random.spread(1, policy.batch as usize);
    queries.clear();
    queries.resize(sequences, 1);
    keys.clear();
    keys.extend((0..sequences).map(|_| random.spread(1, policy.keys as usize) as i32));
    if random.below(10) < 3 {
        // The chunks stay within the token limit of a step.
        let mut room = policy.tokens as usize - sequences;
        for _ in 0..=random.below(3) {
            let at = random.below(sequences);
            let new = random.spread(1, policy.queries as usize).min(room).max(1);
            room = (room + queries[at] as usize).saturating_sub(new);
            queries[at] = new as i32;
            keys[at] = keys[at].max(new as i32);
        }
    }
}

/// Draws the next decode of a full batch. In one of a hundred steps, a sequence ends and another begins.
fn grow(random: &mut Random, policy: &ServePolicy, queries: &mut Vec<i32>, keys: &mut Vec<i32>) {
    let (most, sequences) = (policy.keys as usize, policy.batch as usize);
    if keys.len() != sequences || queries.iter().any(|&n| n != 1) {
        *queries = vec![1; sequences];
        *keys = (0..sequences).map(|_| random.spread(1, most / 2) as i32).collect();
    }
    keys.iter_mut().for_each(|n| *n = if *n as usize >= most { 1 } else { *n + 1 });
    if random.below(100) == 0 {
        keys[random.below(sequences)] = random.spread(1, most / 2) as i32;
    }
}

/// Runs steps and reports the host time of each part.
fn drive(
    set: &mut PlanSet<(BatchMetadata, Bound<'_>)>,
    stream: &Arc<CudaStream>,
    tables: &[Vec<i32>],
    steps: usize,
    mut next: impl FnMut(&mut Vec<i32>, &mut Vec<i32>),
) -> anyhow::Result<Value> {
    let (mut host, mut used, mut copied) = (Vec::new(), BTreeSet::new(), 0_usize);
    let (mut queries, mut keys) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for n in 0..steps {
        next(&mut queries, &mut keys);
        let sequences = queries.len();
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
        let uploaded = batch.update(&step, stream)?;
        let updated = clock.elapsed();
        bound.launch(stream)?;
        let launched = clock.elapsed();
        copied += uploaded.bytes;
        used.insert(at);
        // The first steps launch plans for the first time, so they do not count.
        if n >= steps / 10 {
            let us = |d: Duration| d.as_secs_f64() * 1e6;
            let times = [us(picked), us(updated - picked), us(launched - updated), us(launched)];
            host.push((uploaded, times));
        }
        if n % QUEUE == 0 {
            stream.synchronize()?;
        }
    }
    stream.synchronize()?;
    let seconds = begun.elapsed().as_secs_f64();
    let part = |which: usize| spread_of(host.iter().map(|(_, times)| times[which]).collect());
    // Times by copied bytes show whether an update depends on its copies or waits for the GPU.
    let by_bytes = [0, 1 << 14, 1 << 16, 1 << 18, usize::MAX].windows(2).map(|range| {
        let of = |(uploaded, times): &(Uploaded, [f64; 4])| {
            (uploaded.bytes > range[0] && uploaded.bytes <= range[1]).then_some(times[1])
        };
        json!({ "bytes_over": range[0], "update": spread_of(host.iter().filter_map(of).collect()) })
    });
    Ok(json!({
        "steps": steps, "seconds": seconds, "plans_used": used.len(), "bytes_copied_per_step": copied / steps.max(1),
        "copies": spread_of(host.iter().map(|(uploaded, _)| uploaded.copies as f64).collect()),
        "choose_us": part(0), "update_us": part(1), "launch_us": part(2), "host_us": part(3), "update_us_by_bytes": by_bytes.collect::<Vec<_>>(),
    }))
}

/// Number, median, further percentiles and maximum of a list.
fn spread_of(mut list: Vec<f64>) -> Value {
    list.sort_by(f64::total_cmp);
    let of = |share: f64| list.get(((list.len() as f64 * share) as usize).min(list.len().saturating_sub(1)));
    json!({ "n": list.len(), "median": of(0.5), "p90": of(0.9), "p99": of(0.99), "p999": of(0.999), "most": list.last() })
}

/// Checks that a captured graph uses the updates of its batch: compares replays with launches, bit by bit.
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
        let expected = direct.rows(bench, rows)?;
        graph.overwrite(bench)?;
        graph.launch()?;
        equal += usize::from(graph.rows(bench, rows)? == expected);
    }
    bench.row("captured", json!({ "steps": STEPS, "bit_equal": equal, "right": equal == STEPS }));
    Ok(())
}
