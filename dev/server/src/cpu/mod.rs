//! The model on the CPU: plain loops, and the oracle for its attention. For tests and for machines without a GPU.
//!
//! Every number of a row follows from that row and its own keys, in one order of additions, so an answer has the same
//! bits in any batch.

mod attention;
mod math;

use crate::Failure;
use crate::config::{Limits, Shape};
use crate::engine::Model;
use crate::metrics::Metrics;
use crate::step::{Picked, Step};
use crate::weights::{Tensor, gumbel};
use attention::{Attention, Pool};
use math::{norm, product, rotate, silu};

/// The weights of a layer.
struct Layer {
    attention_norm: Vec<f32>,
    qkv: Vec<f32>,
    out: Vec<f32>,
    feed_norm: Vec<f32>,
    gate_up: Vec<f32>,
    down: Vec<f32>,
    pool: Pool,
}

/// The model.
pub struct Cpu {
    shape: Shape,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    last_norm: Vec<f32>,
    head: Vec<f32>,
    attention: Attention,
}

impl Cpu {
    /// A model of random weights.
    ///
    /// # Errors
    ///
    /// Sizes that no attention can have.
    pub fn new(shape: Shape, limits: &Limits, seed: u32) -> Result<Cpu, Failure> {
        let numbers = |tensor: Tensor| tensor.fill(&shape, seed).numbers();
        let layers = (0..shape.layers)
            .map(|layer| Layer {
                attention_norm: numbers(Tensor::AttentionNorm(layer)),
                qkv: numbers(Tensor::Qkv(layer)),
                out: numbers(Tensor::Out(layer)),
                feed_norm: numbers(Tensor::FeedNorm(layer)),
                gate_up: numbers(Tensor::GateUp(layer)),
                down: numbers(Tensor::Down(layer)),
                pool: Pool::new(&shape, limits),
            })
            .collect();
        Ok(Cpu {
            shape,
            embedding: numbers(Tensor::Embedding),
            layers,
            last_norm: numbers(Tensor::LastNorm),
            head: numbers(Tensor::Head),
            attention: Attention::new(&shape, limits)?,
        })
    }
}

impl Model for Cpu {
    fn run(&mut self, step: &Step) -> Result<Vec<Picked>, Failure> {
        let Cpu { shape, embedding, layers, last_norm, head, attention } = self;
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
