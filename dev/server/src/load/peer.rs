//! A peer: a program that serves the same requests with the same model by another library, and scores answers.
//!
//! It gets a file with the sizes, the weights as [`Fill`] makes them, and answers to score, and writes a file with rows
//! like ours, its scores, and some of its own answers.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};

use super::users::{Answered, RequestSizes};
use super::{LoadOptions, check, say};
use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::weights::{Fill, WeightTensor};

/// Seed of the weights of a server.
const WEIGHTS: u32 = 1;

/// What a peer is asked for.
pub(super) struct PeerTask<'a> {
    pub(super) sizes: RequestSizes,
    pub(super) users: &'a [usize],
    pub(super) seconds: f64,
    /// Answers that it scores.
    pub(super) answers: &'a [&'a Answered],
}

/// What a peer wrote.
pub(super) struct PeerSaid {
    pub(super) rows: Vec<Value>,
    pub(super) about: Value,
    pub(super) answers: Vec<Answered>,
    pub(super) problems: Vec<String>,
}

/// The file that a peer writes.
#[derive(Deserialize)]
struct PeerFile {
    rows: Vec<Value>,
    about: Value,
    answers: Vec<(Vec<u32>, Vec<u32>)>,
    /// For each answer that it was given, the gap of each token.
    gaps: Vec<Vec<f64>>,
}

fn fill(tensor: WeightTensor, shape: &ModelShape) -> Value {
    let Fill { count, seed, scale, middle } = tensor.fill(shape, WEIGHTS);
    json!({ "count": count, "seed": seed, "scale": scale, "middle": middle })
}

/// The file that a peer reads.
fn task(common: &LoadOptions, of: &PeerTask<'_>) -> Result<Value, ServerError> {
    let (shape, limits) = (common.shape()?, if common.cpu { ServerLimits::SMALL } else { ServerLimits::LARGE });
    let layers = (0..shape.layers).map(|layer| {
        json!({
            "attention_norm": fill(WeightTensor::AttentionNorm(layer), &shape),
            "qkv": fill(WeightTensor::Qkv(layer), &shape),
            "out": fill(WeightTensor::Out(layer), &shape),
            "feed_norm": fill(WeightTensor::FeedNorm(layer), &shape),
            "gate_up": fill(WeightTensor::GateUp(layer), &shape),
            "down": fill(WeightTensor::Down(layer), &shape),
        })
    });
    Ok(json!({
        "shape": {
            "vocab": shape.vocab, "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim, "inner": shape.inner,
        },
        "limits": { "batch": limits.batch, "tokens": limits.tokens, "chunk": limits.chunk },
        "weights": {
            "embedding": fill(WeightTensor::Embedding, &shape), "head": fill(WeightTensor::Head, &shape),
            "last_norm": fill(WeightTensor::LastNorm, &shape), "layers": layers.collect::<Vec<_>>(),
        },
        "prompt": of.sizes.prompt, "answer": of.sizes.answer, "seed": common.seed, "users": of.users,
        "seconds": of.seconds, "cpu": common.cpu, "score": of.answers,
    }))
}

/// Runs a peer, and reads what it wrote.
pub(super) fn run(common: &LoadOptions, program: &Path, of: &PeerTask<'_>) -> Result<PeerSaid, ServerError> {
    let folder = std::env::temp_dir().join(format!("qkvault-peer-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (asked, written) = (folder.join("task.json"), folder.join("said.json"));
    std::fs::write(&asked, task(common, of)?.to_string())?;
    say(&format!("peer: {}", program.display()));
    let status = Command::new("python3").arg(program).arg(&asked).arg(&written).status()?;
    let text = std::fs::read_to_string(&written);
    std::fs::remove_dir_all(&folder)?;
    if !status.success() {
        return Err(format!("the peer ended with {status}").into());
    }
    let PeerFile { rows, mut about, answers, gaps } = serde_json::from_str(&text?)?;
    let pair = |(prompt, answer)| Answered { prompt, answer, preempted: 0 };
    let lengths = gaps.iter().map(Vec::len).eq(of.answers.iter().map(|answered| answered.answer.len()));
    let all = || gaps.iter().flatten();
    let wrong = gaps.iter().filter(|gaps| gaps.iter().any(|gap| gap.is_nan() || *gap > check::BOUND)).count();
    about["scored_qkvault"] = json!({
        "answers": gaps.len(), "tokens": all().count(), "likeliest": all().filter(|gap| **gap == 0.0).count(),
        "largest_gap": all().copied().fold(0.0, f64::max), "bound": check::BOUND, "wrong": wrong,
    });
    let mut problems = Vec::new();
    if wrong > 0 || !lengths {
        problems.push(format!("the peer finds {wrong} of {} answers of qkvault wrong", gaps.len()));
    }
    Ok(PeerSaid { rows, about, answers: answers.into_iter().map(pair).collect(), problems })
}
