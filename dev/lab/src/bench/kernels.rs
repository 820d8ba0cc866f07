//! `bench kernels`: every bf16 row of the table that NVIDIA publishes for an H200, forward and backward, beside
//! PyTorch's cuDNN backend.

use qkvault_base::random::Rng;
use qkvault_cli::{Globals, out};
use qkvault_compile::OnMiss;
use qkvault_cudnn::CompileOptions;
use qkvault_graph::Valid;
use serde_json::{Value, json};

use super::ground::{GroundOptions, clocks};
use super::peer;
use super::summary::FigureSummary;
use super::timed::file::{self, TimedCase};
use super::timed::turns::Turns;

/// A row: sequence length, and NVIDIA's TFLOP/s forward and backward. Source: the page of benchmarks in the repository
/// of cudnn-frontend 1.19 (cuDNN 9.19.1, H200); causal counts as half, a window as the pairs that it keeps.
struct PublishedRow {
    mask: &'static str,
    batch: i64,
    head_dim: i64,
    rows: [(i64, f64, f64); 5],
}

/// 64 query heads over 8 KV heads in all rows.
const TABLE: [PublishedRow; 3] = [
    PublishedRow {
        mask: "causal",
        batch: 1,
        head_dim: 128,
        rows: [
            (2048, 484.0, 370.0),
            (4096, 591.0, 474.0),
            (8192, 644.0, 541.0),
            (16384, 673.0, 579.0),
            (32768, 688.0, 581.0),
        ],
    },
    PublishedRow {
        mask: "full",
        batch: 1,
        head_dim: 128,
        rows: [
            (2048, 633.0, 504.0),
            (4096, 671.0, 560.0),
            (8192, 691.0, 594.0),
            (16384, 702.0, 612.0),
            (32768, 693.0, 572.0),
        ],
    },
    PublishedRow {
        mask: "causal window 1024",
        batch: 2,
        head_dim: 64,
        rows: [
            (2048, 310.0, 264.0),
            (4096, 336.0, 289.0),
            (8192, 349.0, 300.0),
            (16384, 355.0, 303.0),
            (32768, 358.0, 299.0),
        ],
    },
];

/// A row with its case.
struct CaseRow {
    case: TimedCase,
    mask: &'static str,
    batch: i64,
    seq: i64,
    head_dim: i64,
    published: [f64; 2],
}

fn rows() -> anyhow::Result<Vec<CaseRow>> {
    let mut list = Vec::new();
    for PublishedRow { mask, batch, head_dim, rows } in &TABLE {
        for &(seq, forward, backward) in rows {
            let masked = if *mask == "full" { String::new() } else { format!("mask: {mask}\n") };
            let text = format!(
                "case: {mask} s{seq}\nq: bf16 [{batch},64,{seq},{head_dim}]\nk: bf16 [{batch},8,{seq},{head_dim}]\n{masked}"
            );
            let case = file::read(&text, 1)?.remove(0);
            list.push(CaseRow { case, mask, batch: *batch, seq, head_dim: *head_dim, published: [forward, backward] });
        }
    }
    Ok(list)
}

/// The attentions of all rows.
pub(super) fn attentions() -> anyhow::Result<Vec<Valid>> {
    let passes = |row: &CaseRow| [Some(row.case.forward().clone()), row.case.backward().cloned()];
    Ok(rows()?.iter().flat_map(passes).flatten().collect())
}

/// Measures.
pub(super) fn run(globals: &Globals, options: &GroundOptions) -> anyhow::Result<Value> {
    let ground = options.open(globals)?;
    let (machine, runtime) = (ground.machine()?, &ground.runtime);
    let mut peer = options.peer();
    let mut done = Vec::new();
    let mut rng = Rng::new(1);
    for row in rows()? {
        let on_miss = if options.build { OnMiss::Compile } else { OnMiss::Load };
        let mut turns = Turns::new(runtime.session()?, runtime.planner(), on_miss, ground.stream.clone());
        turns.add(&row.case, "auto", &CompileOptions::cudnn(), 8);
        let theirs = peer.as_mut().ok().filter(|_| !row.mask.contains("window")).map(|peer| {
            let shape = json!({
                "do": "kernel", "b": row.batch, "h": 64, "hk": 8, "s": row.seq, "d": row.head_dim,
                "causal": row.mask == "causal",
            });
            peer.ask(&shape).map(|_| peer)
        });
        let mut theirs = theirs.transpose()?;
        let before = clocks();
        for (i, direction) in ["forward", "backward"].into_iter().enumerate() {
            let flops = row.case.flops(i == 1);
            let launches = ((0.02 / (flops / 5e14)) as usize).clamp(3, 100);
            let (mut ours, mut other) = (Vec::new(), Vec::new());
            for _ in 0..options.rounds {
                // At the power limit a turn depends on the one before it: who begins a round is drawn.
                let first = rng.unit() < 0.5;
                for turn in [first, !first] {
                    if turn {
                        let timed = turns.time(&row.case.name, i == 1, launches, 1);
                        ours.push(timed.map_err(|(status, why)| anyhow::anyhow!("{status}: {why}"))?);
                    } else if let Some(peer) = &mut theirs {
                        let ask = json!({ "do": "time", "direction": direction, "launches": launches, "before": 1 });
                        other.push(peer.number(&ask, "ms")?);
                    }
                }
            }
            let (ours, other) = (FigureSummary::from_values(ours), FigureSummary::from_values(other));
            let rate = |of: Option<FigureSummary>| of.map(|of| flops / of.median / 1e9);
            let ratio = other.zip(ours).map(|(other, ours)| other.median / ours.median);
            let text = ratio.map_or_else(String::new, |r| format!(", {r:.3} times PyTorch's speed"));
            out::note(&format!("{} {direction}: {:.0} TFLOP/s{text}", row.case.name, rate(ours).unwrap_or(0.0)));
            done.push(json!({
                "mask": row.mask, "batch": row.batch, "seq": row.seq, "head_dim": row.head_dim,
                "direction": direction, "ms": ours, "tflops": rate(ours), "torch_ms": other,
                "torch_tflops": rate(other), "times_as_fast": ratio, "published_tflops": row.published[i],
                "status": turns.entries()[0].status(i == 1),
            }));
        }
        done.push(json!({ "mask": row.mask, "seq": row.seq, "clocks_before_and_after": [before, clocks()] }));
        if let Some(peer) = theirs {
            peer.free();
        }
    }
    let (of, why) = peer::record(&peer);
    Ok(json!({ "machine": machine, "peer": of, "no_peer": why, "rounds": options.rounds, "rows": done }))
}
