//! The model on the CPU: plain loops, and the oracle for its attention. For tests and for machines without a GPU.
//!
//! Every number of a row follows from that row and its own keys, in one order of additions, so an answer has the same
//! bits in any batch.

mod attention;
mod math;

use crate::ServerError;
use crate::config::{ModelShape, ServerLimits};
use crate::engine::ServedModel;
use crate::metrics::Metrics;
use crate::step::{ModelStep, Picked};
use crate::weights::{WeightTensor, gumbel};
use attention::{CpuAttention, LayerPages};
use math::{norm, product, rotate, silu};

/// The weights of a layer.
struct CpuLayer {
    attention_norm: Vec<f32>,
    qkv: Vec<f32>,
    out: Vec<f32>,
    feed_norm: Vec<f32>,
    gate_up: Vec<f32>,
    down: Vec<f32>,
    pool: LayerPages,
}

/// The model.
pub struct CpuModel {
    shape: ModelShape,
    embedding: Vec<f32>,
    layers: Vec<CpuLayer>,
    last_norm: Vec<f32>,
    head: Vec<f32>,
    attention: CpuAttention,
}

impl CpuModel {
    /// A model of random weights.
    ///
    /// # Errors
    ///
    /// Sizes that no attention can have.
    pub fn new(shape: ModelShape, limits: &ServerLimits, seed: u32) -> Result<CpuModel, ServerError> {
        let numbers = |tensor: WeightTensor| tensor.fill(&shape, seed).numbers();
        let layers = (0..shape.layers)
            .map(|layer| CpuLayer {
                attention_norm: numbers(WeightTensor::AttentionNorm(layer)),
                qkv: numbers(WeightTensor::Qkv(layer)),
                out: numbers(WeightTensor::Out(layer)),
                feed_norm: numbers(WeightTensor::FeedNorm(layer)),
                gate_up: numbers(WeightTensor::GateUp(layer)),
                down: numbers(WeightTensor::Down(layer)),
                pool: LayerPages::new(&shape, limits),
            })
            .collect();
        Ok(CpuModel {
            shape,
            embedding: numbers(WeightTensor::Embedding),
            layers,
            last_norm: numbers(WeightTensor::LastNorm),
            head: numbers(WeightTensor::Head),
            attention: CpuAttention::new(&shape, limits)?,
        })
    }
}

impl ServedModel for CpuModel {
    fn run(&mut self, step: &ModelStep) -> Result<Vec<Picked>, ServerError> {
        let CpuModel { shape, embedding, layers, last_norm, head, attention } = self;
        let (hidden, heads) = (shape.hidden, shape.heads * shape.head_dim);
        let kv = shape.kv_heads * shape.head_dim;
        let row = |token: i32| &embedding[token as usize * hidden..][..hidden];
        let mut x: Vec<f32> = step.tokens.iter().flat_map(|&token| row(token).iter().copied()).collect();
        for layer in layers {
            let mut qkv = product(&norm(&x, &layer.attention_norm), &layer.qkv, hidden);
            let mut queries = Vec::with_capacity(step.rows() * heads);
            for (at, row) in qkv.chunks_exact_mut(shape.qkv()).enumerate() {
                let (rotated, values) = row.split_at_mut(heads + kv);
                rotate(rotated, step.positions[at], shape.head_dim);
                queries.extend_from_slice(&rotated[..heads]);
                layer.pool.write(step.slots[at], &rotated[heads..], values);
            }
            let o = attention.run(step, &queries, &layer.pool)?;
            add(&mut x, &product(&o, &layer.out, heads));
            let gate_up = product(&norm(&x, &layer.feed_norm), &layer.gate_up, hidden);
            add(&mut x, &product(&silu(&gate_up, shape.inner), &layer.down, shape.inner));
        }
        let picked = step.picks.iter().flat_map(|pick| x[pick.row as usize * hidden..][..hidden].iter().copied());
        let logits = product(&norm(&picked.collect::<Vec<_>>(), last_norm), head, hidden);
        let rows = logits.chunks_exact(shape.vocab).zip(&step.picks);
        Ok(rows
            .map(|(logits, pick)| {
                let noise = |token: usize| match pick.temperature {
                    0.0 => 0.0,
                    t => t * gumbel(pick.seed, step.positions[pick.row as usize] as u32, token as u32),
                };
                let best = (0..logits.len()).max_by(|&a, &b| {
                    // Of equal tokens the first.
                    (logits[a] + noise(a)).total_cmp(&(logits[b] + noise(b))).then(b.cmp(&a))
                });
                let largest = logits.iter().copied().fold(f32::MIN, f32::max);
                let target = usize::try_from(pick.target).ok().and_then(|target| logits.get(target));
                Picked { token: best.unwrap_or(0) as u32, gap: target.map_or(0.0, |logit| largest - logit) }
            })
            .collect())
    }

    fn report(&mut self, metrics: &Metrics) {
        Metrics::set(&metrics.plans, self.attention.plans() as u64);
    }
}

fn add(x: &mut [f32], more: &[f32]) {
    x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
}
