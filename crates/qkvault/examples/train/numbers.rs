//! Initial weights and tokens, drawn in the same way as in `train.py`, and the Adam optimizer.

use qkvault_base::random::Rng;

use crate::model::Config;

/// Uniform numbers between plus and minus `bound`.
pub(crate) fn uniform(rng: &mut Rng, count: usize, bound: f64) -> Vec<f32> {
    (0..count).map(|_| ((rng.unit() * 2.0 - 1.0) * bound) as f32).collect()
}

/// The tokens of all steps.
pub(crate) fn batches(config: &Config) -> Vec<i32> {
    let mut rng = Rng::new(config.seed + 1);
    let count = config.steps * config.batch * config.seq;
    (0..count).map(|_| (rng.unit() * config.vocabulary as f64) as i32).collect()
}

/// A checksum of 32-bit patterns that depends on their order.
pub(crate) fn checksum(bits: impl Iterator<Item = u32>) -> u64 {
    let odd = (0_u64..).map(|i| 2 * i + 1);
    bits.zip(odd).fold(0, |sum, (bits, odd)| sum.wrapping_add(u64::from(bits).wrapping_mul(odd)))
}

/// One matrix of weights with Adam's two moments, in single precision.
pub(crate) struct Weights {
    pub(crate) values: Vec<f32>,
    pub(crate) columns: usize,
    first: Vec<f32>,
    second: Vec<f32>,
}

impl Weights {
    pub(crate) fn draw(rng: &mut Rng, rows: usize, columns: usize, bound: f64) -> Weights {
        let zeros = vec![0.0; rows * columns];
        Weights { values: uniform(rng, rows * columns, bound), columns, first: zeros.clone(), second: zeros }
    }

    /// Adam with moments of 0.9 and 0.99, without decay.
    pub(crate) fn update(&mut self, gradient: &[f32], step: usize, rate: f32) {
        const EPSILON: f32 = 1e-8;
        let t = step as i32 + 1;
        let (first, second) = (1.0 - 0.9_f64.powi(t), 1.0 - 0.99_f64.powi(t));
        let (first, second) = (first as f32, second as f32);
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((w, (m, v)), g) in self.values.iter_mut().zip(moments).zip(gradient) {
            *m = 0.9 * *m + 0.1 * g;
            *v = 0.99 * *v + 0.01 * g * g;
            *w -= rate * (*m / first) / ((*v / second).sqrt() + EPSILON);
        }
    }
}
