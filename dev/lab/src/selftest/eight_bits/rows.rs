//! Norms of rows of operands, from which follows how far sums of products may be off.

use qkvault_graph::{Lengths, Role, Scaled, Valid};
use qkvault_reference::{Concentration, Inputs, ReferenceError, View, concentrations};

/// The part of the largest sum of magnitudes that a tensor core may lose of a sum of 8-bit products: compute capability
/// 9.0 keeps about 14 bits of the largest addend. Source: DeepSeek-V3's report, arXiv:2412.19437, section 3.3.2.
pub(super) const ACCUMULATED: f64 = 1.0 / 4096.0;
/// The part of the largest sum of magnitudes that a score loses if each addend loses up to a bit of it, to either side:
/// twice the deviation. Where one dim is far larger than the others, 2^-9.7 of a log-sum-exp was lost at 128 dims on an
/// H200 (`selftest --fp8 --family dominant`), and this is 2^-9.3.
fn lost(dims: f64) -> f64 {
    // Sums are those of 32 products and the sum so far.
    let addends = dims * 33.0 / 32.0;
    2.0 * (addends / 3.0).sqrt() / f64::from(1 << 13)
}

/// Lengths of every sequence: queries, keys.
pub(super) fn lengths(a: &Valid, inputs: &Inputs) -> Vec<[usize; 2]> {
    let (s_q, s_kv) = a.seq();
    let of = |role, most: i64, b: usize| match a.mask.lengths {
        Lengths::Full => most.unsigned_abs() as usize,
        Lengths::PerSequence => inputs.get(role).map_or(0, |buffer| buffer.int(b).max(0) as usize),
    };
    (0..a.batch().unsigned_abs() as usize).map(|b| [of(Role::SeqLenQ, s_q, b), of(Role::SeqLenKv, s_kv, b)]).collect()
}

/// The largest norm of a row of an operand within the lengths, as real numbers; 0 for an operand without a row.
fn largest_norm(a: &Valid, inputs: &Inputs, role: Role, scaled: Scaled) -> Result<f64, ReferenceError> {
    let buffer = inputs.buffer(role)?;
    let view = View::new(a, role, inputs)?;
    let tensor = qkvault_graph::operand(a, role).ok_or(ReferenceError::Missing { role })?.tensor;
    let side = usize::from(matches!(role, Role::K | Role::V));
    let (heads, width) = (tensor.heads().unsigned_abs() as usize, tensor.head_dim().unsigned_abs() as usize);
    let (mut largest, mut row) = (0.0_f64, vec![0.0_f64; width]);
    for (b, lengths) in lengths(a, inputs).into_iter().enumerate() {
        for (h, s) in (0..heads).flat_map(|h| (0..lengths[side]).map(move |s| (h, s))) {
            buffer.read(view.at(b, h, s, 0), &mut row);
            largest = largest.max(row.iter().map(|x| x * x).sum::<f64>());
        }
    }
    let factor = inputs.get(Role::Descale(scaled)).map_or(1.0, |factor| factor.get(0));
    Ok(largest.sqrt() * factor.abs())
}

/// How far numbers between the products of one case may be off because sums are short.
#[derive(Clone, Debug)]
pub(super) struct Noise {
    /// Of a scaled score, and relative to a probability.
    pub(super) score: f64,
    /// Of a log-sum-exp.
    pub(super) stats: f64,
    /// Of the gradient of a score, where a probability is one.
    pub(super) d_s: f64,
    /// How few keys have the weight of the rows of each sequence, of a backward.
    weights: Vec<Concentration>,
    /// The largest norm of a query and of a key.
    pub(super) rows: [f64; 2],
}

impl Noise {
    pub(super) fn for_attention(a: &Valid, inputs: &Inputs) -> Result<Noise, ReferenceError> {
        let norm = |role, scaled| largest_norm(a, inputs, role, scaled);
        let scale = inputs.buffer(Role::Scale)?.get(0).abs();
        let rows @ [q, k] = [norm(Role::Q, Scaled::Q)?, norm(Role::K, Scaled::K)?];
        let score = ACCUMULATED * scale * q * k;
        let stats = lost(a.head_dims().0 as f64) * scale * q * k;
        let (d_s, weights) = if a.is_backward() {
            let largest = norm(Role::DO, Scaled::DO)? * norm(Role::V, Scaled::V)?;
            (ACCUMULATED * scale * largest, concentrations(a, inputs)?)
        } else {
            (0.0, Vec::new())
        };
        Ok(Noise { score, stats, d_s, weights, rows })
    }

    /// What the noise of gradients of scores adds up to relative to `d_s`, over all of them in one sequence or in all.
    pub(super) fn weight(&self, sequence: Option<usize>) -> f64 {
        let of = sequence.map_or(&self.weights[..], |b| self.weights.get(b..=b).unwrap_or_default());
        of.iter().map(|weight| weight.total).sum::<f64>().sqrt()
    }

    /// The same of the row where it is largest.
    pub(super) fn largest_weight(&self) -> f64 {
        self.weights.iter().map(|weight| weight.largest).fold(0.0, f64::max).sqrt()
    }
}
