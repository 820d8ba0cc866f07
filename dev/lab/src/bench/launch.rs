//! `bench launch`: the host time of every way to launch, in turns: cuDNN's own call in a loop, the raw layer, the safe
//! layer, graph replay, and PyTorch.

use std::time::Instant;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use qkvault_base::random::Rng;
use qkvault_cli::memory::floor::{Raw, replay};
use qkvault_cli::{Globals, out};
use qkvault_exec::{Args, LoadedPlan, Workspace, cudarc};
use qkvault_graph::{Attention, Band, DType, Valid, validate};
use serde_json::{Value, json};
use std::sync::Arc;

use super::ground::GroundOptions;
use super::peer;
use super::summary::FigureSummary;

const BATCH: i64 = 2;
const HEADS: (i64, i64) = (8, 2);
const SEQ: i64 = 256;
const HEAD_DIM: i64 = 64;
/// Launches of a turn.
const LAUNCHES: usize = 50;
/// Sets of outputs that rotate: more than a plan keeps packs for, so that every launch has addresses that it has not.
const NEVER_SEEN: usize = 4 * LAUNCHES;

/// A small prefill, so that the GPU keeps up with the host.
pub(super) fn attention() -> anyhow::Result<Valid> {
    Ok(validate(Attention::bshd(BATCH, HEADS, (SEQ, SEQ), HEAD_DIM, DType::BF16).with_band(Band::CAUSAL))?)
}

fn random(stream: &Arc<CudaStream>, heads: i64, seed: u64) -> anyhow::Result<CudaSlice<bf16>> {
    let mut rng = Rng::new(seed);
    let count = (BATCH * SEQ * heads * HEAD_DIM) as usize;
    let noise: Vec<bf16> = (0..count).map(|_| bf16::from_f64(rng.normals()[0])).collect();
    Ok(stream.clone_htod(&noise)?)
}

/// Q, K and V.
fn operands(stream: &Arc<CudaStream>, seed: u64) -> anyhow::Result<[CudaSlice<bf16>; 3]> {
    Ok([random(stream, HEADS.0, seed)?, random(stream, HEADS.1, seed + 1)?, random(stream, HEADS.1, seed + 2)?])
}

fn output(stream: &Arc<CudaStream>) -> anyhow::Result<CudaSlice<bf16>> {
    let count = (BATCH * SEQ * HEADS.0 * HEAD_DIM) as usize;
    Ok(stream.clone_htod(&vec![bf16::NAN; count])?)
}

/// A way to launch: its name, and what launches a number of times.
type Way<'a> = (&'static str, Box<dyn FnMut(usize) -> anyhow::Result<f64> + 'a>);

/// Microseconds of one of `n` calls.
fn clocked(n: usize, mut call: impl FnMut(usize) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = Instant::now();
    (0..n).try_for_each(&mut call)?;
    Ok(started.elapsed().as_secs_f64() * 1e6 / n as f64)
}

/// Measures.
pub(super) fn run(globals: &Globals, options: &GroundOptions) -> anyhow::Result<Value> {
    let ground = options.open(globals)?;
    let (stream, attention) = (&ground.stream, attention()?);
    let plan = ground.runtime.plan(&attention)?;
    let mut peer = options.peer();
    if let Ok(peer) = &mut peer {
        let of =
            json!({ "do": "small", "b": BATCH, "h": HEADS.0, "hk": HEADS.1, "s": SEQ, "d": HEAD_DIM, "causal": true });
        peer.ask(&of)?;
    }
    let machine = ground.machine()?;
    let times = measure(&plan, stream, peer.as_mut().ok(), 6 * options.rounds)?;
    let asked_again = clocked(1_000_000, |_| ground.runtime.plan(&attention).map(drop).map_err(Into::into))?;
    let ways: serde_json::Map<String, Value> = times
        .into_iter()
        .map(|(name, values)| (name.to_owned(), json!(FigureSummary::from_values(values))))
        .chain([("asked_again_us".to_owned(), json!(asked_again))])
        .collect();
    let (of, why) = peer::record(&peer);
    Ok(json!({
        "machine": machine, "peer": of, "no_peer": why, "attention": attention.to_string(),
        "launches_of_a_turn": LAUNCHES, "turns": 6 * options.rounds, "ways": ways, "builds": ground.builds(),
    }))
}

fn measure(
    plan: &LoadedPlan,
    stream: &Arc<CudaStream>,
    peer: Option<&mut peer::Peer>,
    rounds: usize,
) -> anyhow::Result<Vec<(&'static str, Vec<f64>)>> {
    let workspace = Workspace::allocate(stream, plan.workspace().max(1))?;
    let raw = Raw::new(plan, stream, operands(stream, 1)?, output(stream)?, attention()?.default_scale(), &workspace)?;
    let [q, k, v] = operands(stream, 4)?;
    let mut outputs: Vec<CudaSlice<bf16>> = (0..8).map(|_| output(stream)).collect::<Result<_, _>>()?;
    let mut many: Vec<CudaSlice<bf16>> = (0..NEVER_SEEN).map(|_| output(stream)).collect::<Result<_, _>>()?;
    let [bound_q, bound_k, bound_v] = operands(stream, 7)?;
    let mut bound = plan.bind(Args::new().q(bound_q).k(bound_k).v(bound_v).o(output(stream)?), stream)?;
    let [graph_q, graph_k, graph_v] = operands(stream, 10)?;
    let owned = plan.bind(Args::new().q(graph_q).k(graph_k).v(graph_v).o(output(stream)?), stream)?;
    let captured = std::cell::RefCell::new(owned.capture(stream)?);
    let mut next = 0;
    let mut ways: Vec<Way<'_>> = vec![
        ("floor_us", Box::new(|n| raw.floor(n))),
        ("raw_us", Box::new(|n| clocked(n, |_| raw.launch()))),
        ("args_raw_us", Box::new(|n| clocked(n, |_| raw.launch_with()))),
        ("bound_us", Box::new(|n| clocked(n, |_| Ok(bound.launch(stream)?)))),
        (
            "args_safe_us",
            Box::new(|n| {
                clocked(n, |i| Ok(plan.launch(stream, Args::new().q(&q).k(&k).v(&v).o(&mut outputs[i % 8]))?))
            }),
        ),
        (
            "args_never_seen_us",
            Box::new(|n| {
                clocked(n, |_| {
                    next = (next + 1) % NEVER_SEEN;
                    Ok(plan.launch(stream, Args::new().q(&q).k(&k).v(&v).o(&mut many[next]))?)
                })
            }),
        ),
        ("replay_us", Box::new(|n| clocked(n, |_| Ok(captured.borrow_mut().launch()?)))),
        ("replay_floor_us", Box::new(|n| clocked(n, |_| replay(&captured.borrow_mut())))),
    ];
    if let Some(peer) = peer {
        ways.push(("torch_us", Box::new(move |n| peer.number(&json!({ "do": "host", "launches": n }), "us"))));
    }
    let mut times: Vec<(&'static str, Vec<f64>)> = ways.iter().map(|(name, _)| (*name, Vec::new())).collect();
    let mut order: Vec<usize> = (0..ways.len()).collect();
    for round in 0..=rounds {
        for &i in &order {
            let us = ways[i].1(LAUNCHES)?;
            stream.synchronize()?;
            // The first round warms up.
            if round > 0 {
                times[i].1.push(us);
            }
        }
        order.reverse();
    }
    out::note(&format!("{rounds} turns of {LAUNCHES} launches each"));
    Ok(times)
}
