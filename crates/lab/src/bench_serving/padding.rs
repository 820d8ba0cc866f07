//! The cost of padding: one step on plans for more sequences, more new tokens and more keys than it has.

use qkvault_exec::serving::{Rows, Step};
use qkvault_serving::{Bucket, StepKind};
use serde_json::json;

use super::Bench;
use super::pool::Pool;

/// A step: new tokens and keys of each sequence.
struct Shape {
    name: &'static str,
    queries: Vec<i32>,
    keys: Vec<i32>,
    /// Plans: (kind, batch, queries, keys), the tightest first.
    plans: Vec<(StepKind, i64, i64, i64)>,
}

fn shapes() -> Vec<Shape> {
    let decode = |name, b: usize, kv: i32, plans: &[(i64, i64)]| Shape {
        name,
        queries: vec![1; b],
        keys: vec![kv; b],
        plans: plans.iter().map(|&(b, kv)| (StepKind::Decode, b, 1, kv)).collect(),
    };
    let mixed = |name, queries: Vec<i32>, keys: Vec<i32>, plans: &[(i64, i64, i64)]| Shape {
        name,
        queries,
        keys,
        plans: plans.iter().map(|&(b, q, kv)| (StepKind::Mixed, b, q, kv)).collect(),
    };
    let mut as_mixed = decode("decode 64 x 4096, as a mixed step too", 64, 4096, &[(64, 4096)]);
    as_mixed.plans.extend([(StepKind::Mixed, 64, 2, 4096), (StepKind::Mixed, 64, 128, 4096)]);
    as_mixed.plans.push((StepKind::Mixed, 64, 2048, 4096));
    let chunk = |first: i32, decodes: usize| [vec![first], vec![1; decodes]].concat();
    vec![
        decode("decode 8 x 1024", 8, 1024, &[(8, 1024), (8, 4096), (8, 32_768), (8, 131_072), (32, 1024), (256, 1024)]),
        decode(
            "decode 8 x 8192",
            8,
            8192,
            &[(8, 8192), (8, 32_768), (8, 131_072), (16, 8192), (32, 32_768), (256, 32_768)],
        ),
        decode("decode 1 x 32768", 1, 32_768, &[(1, 32_768), (2, 32_768), (4, 32_768), (8, 32_768), (32, 32_768)]),
        decode("decode 5 x 8192", 5, 8192, &[(5, 8192), (8, 8192), (8, 32_768), (16, 8192)]),
        decode("decode 9 x 8192", 9, 8192, &[(9, 8192), (16, 8192), (32, 8192)]),
        decode("decode 17 x 8192", 17, 8192, &[(17, 8192), (32, 8192), (256, 8192)]),
        decode("decode 33 x 4096", 33, 4096, &[(33, 4096), (64, 4096), (256, 4096), (256, 32_768)]),
        decode("decode 64 x 4096", 64, 4096, &[(64, 4096), (64, 32_768), (128, 4096), (256, 4096), (256, 32_768)]),
        as_mixed,
        mixed(
            "4 chunks of 512 over 4096",
            vec![512; 4],
            vec![4608; 4],
            &[
                (4, 512, 4608),
                (4, 2048, 4608),
                (4, 8192, 8192),
                (4, 512, 32_768),
                (16, 512, 4608),
                (256, 512, 4608),
                (256, 8192, 32_768),
            ],
        ),
        mixed(
            "a chunk of 512 and 63 decodes over 4096",
            chunk(512, 63),
            [vec![4608], vec![4096; 63]].concat(),
            &[(64, 512, 4608), (64, 2048, 32_768), (256, 512, 4608), (256, 8192, 32_768)],
        ),
    ]
}

/// Plans that this measurement needs.
pub(super) fn buckets() -> Vec<Bucket> {
    shapes().iter().flat_map(|shape| shape.plans.iter().map(|plan| shape.bucket(*plan))).collect()
}

impl Shape {
    fn bucket(&self, (kind, batch, queries, keys): (StepKind, i64, i64, i64)) -> Bucket {
        let tokens = self.queries.iter().map(|&n| i64::from(n)).sum::<i64>().max(batch);
        Bucket { kind, batch, queries, keys, tokens }
    }
}

pub(super) fn run(bench: &mut Bench<'_>, pool: &Pool) -> anyhow::Result<()> {
    for shape in shapes() {
        let Shape { name, queries, keys, plans } = &shape;
        let tables = pool.tables(0, keys);
        let mut exact = None;
        for &sizes in plans {
            if bench.over() {
                bench.row("padding", json!({ "step": name, "left_out": "no time" }));
                break;
            }
            let bucket = shape.bucket(sizes);
            let plan = pool.plan(bench, bucket)?;
            let mut data = plan.batch(&bench.stream)?;
            data.update(&Step::paged(Rows::Lengths(queries), Rows::Lengths(keys), &tables), &bench.stream)?;
            let mut bound = pool.bind(bench, &plan, &data)?;
            let us = bench.time(|| Ok(bound.launch(&bench.stream)?))?;
            let base = *exact.get_or_insert(us);
            let row = json!({
                "step": name, "plan": bucket, "us": us, "times_the_tightest": us / base,
                "engine": plan.plan.facts().engine, "workspace": plan.plan.workspace(),
            });
            bench.row("padding", row);
        }
    }
    Ok(())
}
