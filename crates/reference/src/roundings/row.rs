//! The errors of the scores of a few rows, and the probabilities that they belong to.

use qkvault_graph::Scaled;

use super::{APPROXIMATE, EXPONENTIAL, PRODUCT, SINGLE};
use crate::kernel::{dot, softmax};
use crate::score::{LANES, Registers, RowAt, element};
use crate::scores::Scores;
use crate::setup::Setup;

/// Scores below this are biases in whose steps the products vanish: they are equal or far apart.
const LOWEST: f64 = -1e30;

/// One row of scores.
pub(super) struct RoundedRow {
    pub(super) at: RowAt,
    /// The key of the first score.
    pub(super) first: usize,
    pub(super) probabilities: Vec<f64>,
    /// The typical error of each modified score, which is that of its probability relative to it.
    pub(super) errors: Vec<f64>,
    /// The derivative of the modified score by the score.
    pub(super) slopes: Vec<f64>,
    /// For each differentiated tensor: its elements' indices, and the derivatives of the modified score by them.
    pub(super) tensors: Vec<Vec<(usize, f64)>>,
    pub(super) stats: f64,
    pub(super) max: f64,
}

/// The magnitudes of numbers.
pub(super) fn magnitudes(rows: &[f64]) -> Vec<f64> {
    rows.iter().map(|x| x.abs()).collect()
}

impl RoundedRow {
    /// The rows of these queries of one head, over its keys.
    pub(super) fn all(setup: &Setup<'_>, (b, h): (usize, usize), queries: &[usize], keys: &[f64]) -> Vec<RoundedRow> {
        let d = setup.q.view.dims[3];
        let q: Vec<f64> = setup.factors.rows(Scaled::Q, &setup.q, (b, h), queries.iter().copied());
        let (q, sizes) = (magnitudes(&q), magnitudes(keys));
        let plain = Scores::products(setup, (b, h), queries, keys);
        let masked = Scores::compute(setup, (b, h), queries, keys);
        let mut registers = [Registers::default(), Registers::default()];
        let rows = masked.list.into_iter().zip(plain.list).zip(q.chunks_exact(d));
        rows.map(|((masked, plain), q)| {
            let n = masked.scores.len();
            let mut row = RoundedRow {
                at: masked.at,
                first: masked.first,
                probabilities: masked.scores,
                errors: vec![0.0; n],
                slopes: vec![1.0; n],
                tensors: Vec::new(),
                stats: 0.0,
                max: 0.0,
            };
            let product = |key: &[f64]| PRODUCT * setup.scale.abs() * dot(q, key);
            let products: Vec<f64> = sizes[row.first * d..][..n * d].chunks_exact(d).map(product).collect();
            row.follow_expression(setup, &plain.scores, &products, &mut registers);
            for (at, error) in row.errors.iter_mut().enumerate() {
                let score = row.probabilities[at];
                if score == f64::NEG_INFINITY {
                    *error = 0.0;
                    continue;
                }
                if score < LOWEST {
                    *error = EXPONENTIAL;
                    continue;
                }
                let product = products[at] * row.slopes[at];
                let own = SINGLE * score.abs() + EXPONENTIAL;
                *error = (product * product + *error + own * own).sqrt();
            }
            let stat = softmax(&mut row.probabilities, setup.sink(h));
            (row.stats, row.max) = (stat.stats, stat.max);
            row
        })
        .collect()
    }

    /// Takes slopes from the score expression, and into `errors` the variance of its own roundings.
    fn follow_expression(
        &mut self,
        setup: &Setup<'_>,
        plain: &[f64],
        products: &[f64],
        [values, gradients]: &mut [Registers; 2],
    ) {
        let Some(score) = &setup.score else { return };
        let differentiated: Vec<_> = score.differentiated().collect();
        self.tensors = vec![Vec::new(); differentiated.len()];
        for (chunk, plain) in plain.chunks(LANES).enumerate() {
            let (start, n) = (chunk * LANES, plain.len());
            let first = self.first + start;
            score.run(self.at, first, plain, values);
            score.reverse(values, &[1.0; LANES][..n], gradients);
            let (products, errors) = (&products[start..start + n], &mut self.errors[start..start + n]);
            score.variances(values, gradients, [SINGLE, APPROXIMATE], products, errors);
            let slopes = &mut self.slopes[start..start + n];
            match score.score_gradient(gradients, n) {
                Some(gradient) => slopes.copy_from_slice(gradient),
                None => slopes.fill(0.0),
            }
            for ((_, id, dims), list) in differentiated.iter().zip(&mut self.tensors) {
                let by = score.tensor_gradient(*id, gradients, n).into_iter().flatten();
                list.extend((first..).zip(by).map(|(key, &x)| (element(*dims, self.at, key), x)));
            }
            if let Some(own) = &setup.own_derivative {
                slopes.copy_from_slice(own.run(self.at, first, plain, values));
            }
        }
    }
}
