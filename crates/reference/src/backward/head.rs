//! The gradients that one query head of one sequence contributes to its inputs.

use std::ops::Range;

use qkvault_graph::Scaled;

use super::block::Block;
use super::given::BackwardGiven;
use crate::fp8::Rounded;
use crate::kernel::{add_scaled, dot, softmax};
use crate::score::{LANES, Registers, element};
use crate::scores::{ScoreRow, Scores, TILE_ROWS};
use crate::setup::{Setup, SetupSource};

/// Inputs that all heads share.
pub(super) struct HeadShared<'a> {
    pub(super) setup: Setup<'a>,
    pub(super) d_o: SetupSource<'a>,
    pub(super) d_o_factor: f64,
    /// The additional inputs of a microscaled backward.
    pub(super) block: Option<Block<'a>>,
    /// How the gradients of scores are rounded; `None` if they are not.
    pub(super) d_s: Option<Rounded>,
    /// The O whose products with dO are the row sums; `None` for the exact O.
    pub(super) o: Option<SetupSource<'a>>,
    pub(super) o_factor: f64,
    /// The O and Stats of all keys, if the keys here are only some of them.
    pub(super) given: Option<BackwardGiven<'a>>,
}

impl HeadShared<'_> {
    fn d_o_rows(&self, (b, h): (usize, usize), queries: &[usize]) -> Vec<f64> {
        let mut d_o: Vec<f64> = self.d_o.rows(b, h, queries.iter().copied());
        d_o.iter_mut().for_each(|x| *x *= self.d_o_factor);
        d_o
    }
}

/// The part of a score tensor's gradient from one head: the whole tensor if it broadcasts over heads, else the head's
/// plane.
pub(super) struct TensorPart {
    /// Index of the part's first element in the tensor.
    start: usize,
    values: Vec<f64>,
}

impl TensorPart {
    pub(super) fn iter(&self) -> impl Iterator<Item = &f64> {
        self.values.iter()
    }

    pub(super) fn place(&self, at: usize) -> usize {
        self.start + at
    }
}

/// The gradients from one query head.
pub(super) struct HeadGradients {
    /// One row per query.
    pub(super) d_q: Vec<f64>,
    /// One row per key.
    pub(super) d_k: Vec<f64>,
    /// One row per key.
    pub(super) d_v: Vec<f64>,
    pub(super) d_sink: f64,
    /// One part for each tensor whose gradient is requested.
    pub(super) tensors: Vec<TensorPart>,
    /// Largest magnitude of the gradients of scores, multiplied by the softmax scale.
    pub(super) amax: f64,
}

/// The rows of one head that are read repeatedly.
struct HeadOperands {
    keys: Vec<f64>,
    values: Vec<f64>,
    /// The keys in the form that dQ sums, if it is another form.
    summed_keys: Option<Vec<f64>>,
}

impl HeadGradients {
    pub(super) fn compute(shared: &HeadShared<'_>, b: usize, h: usize) -> HeadGradients {
        let setup = &shared.setup;
        let (h_k, h_v) = setup.shared_heads(h);
        let (d_qk, d_v) = (setup.q.view.dims[3], setup.v.view.dims[3]);
        let (q_len, kv) = (setup.lens.q[b], 0..setup.lens.kv[b]);
        let read = HeadOperands {
            keys: setup.factors.rows(Scaled::K, &setup.k, (b, h_k), kv.clone()),
            values: setup.factors.rows(Scaled::V, &setup.v, (b, h_v), kv.clone()),
            summed_keys: shared.block.as_ref().map(|block| block.k_t((b, h_k), kv.clone())),
        };
        let origin = setup.at(b, h, 0);
        let part =
            |dims: [usize; 4]| TensorPart { start: element(dims, origin, 0), values: vec![0.0; dims[2] * dims[3]] };
        let mut head = HeadGradients {
            d_q: vec![0.0; q_len * d_qk],
            d_k: vec![0.0; kv.len() * d_qk],
            d_v: vec![0.0; kv.len() * d_v],
            d_sink: 0.0,
            tensors: setup.score.iter().flat_map(|score| score.differentiated()).map(|(.., dims)| part(dims)).collect(),
            amax: 0.0,
        };
        let queries: Vec<usize> = (0..q_len).collect();
        for tile in queries.chunks(TILE_ROWS) {
            head.tile(shared, (b, h), tile, &read);
        }
        head
    }

    fn tile(&mut self, shared: &HeadShared<'_>, (b, h): (usize, usize), queries: &[usize], read: &HeadOperands) {
        let setup = &shared.setup;
        let (d_qk, d_v) = (setup.q.view.dims[3], setup.v.view.dims[3]);
        let block = shared.block.as_ref();
        let d_o: Vec<f64> = block.map_or_else(|| shared.d_o_rows((b, h), queries), |block| block.d_o((b, h), queries));
        let summed_d_o = block.map(|block| block.d_o_t((b, h), queries));
        let summed_d_o = summed_d_o.as_ref().unwrap_or(&d_o).chunks_exact(d_v);
        let plain = Scores::products(setup, (b, h), queries, &read.keys);
        let mut masked = Scores::compute(setup, (b, h), queries, &read.keys);
        let mut registers = [Registers::default(), Registers::default()];
        let rows_of_d_o = d_o.chunks_exact(d_v).zip(summed_d_o);
        for ((row, plain), (d_o, summed_d_o)) in masked.list.iter_mut().zip(&plain.list).zip(rows_of_d_o) {
            let keys = row.first..row.first + row.scores.len();
            let sink = setup.sink::<f64>(h);
            let of_all = shared.given.as_ref().map(|given| (given.stats((b, h), row.at.query), given));
            let stats = match of_all {
                Some((stats, _)) => probabilities(&mut row.scores, stats),
                None => softmax(&mut row.scores, sink).stats,
            };
            let dropout = setup.survivors(row.at, keys.clone());
            let kept = |at: usize| dropout.as_ref().map_or(1.0, |factors| factors[at]);
            // Masked keys contribute nothing, whatever their values.
            let mut d_p = vec![0.0; row.scores.len()];
            for (at, (&p, value)) in row.scores.iter().zip(rows(&read.values, &keys, d_v)).enumerate() {
                if p != 0.0 && kept(at) != 0.0 {
                    d_p[at] = kept(at) * dot(d_o, value);
                }
            }
            let d = match (of_all, block, &shared.o) {
                (Some((_, given)), ..) => dot(d_o, given.o((b, h), row.at.query)),
                (None, Some(block), _) => block.row_sum((b, h), row.at.query),
                (None, None, Some(o)) => {
                    shared.o_factor * dot(d_o, &o.rows::<f64>(b, h, std::iter::once(row.at.query)))
                }
                (None, None, None) => dot(&row.scores, &d_p),
            };
            if let Some(sink) = sink {
                self.d_sink -= (sink - stats).exp() * d;
            }
            for (at, &p) in row.scores.iter().enumerate() {
                let weight = p * kept(at);
                if weight != 0.0 {
                    let weight = setup.factors.probabilities().map_or(weight, |rounded| rounded.through(weight));
                    add_scaled(&mut self.d_v[(keys.start + at) * d_v..][..d_v], weight, summed_d_o);
                }
            }
            // From here on the row holds gradients: first of the masked score, then of the plain score, then of the
            // product.
            for (p, d_p) in row.scores.iter_mut().zip(d_p) {
                *p *= d_p - d;
            }
            self.through_expression(setup, row, plain, &mut registers);
            for x in &mut row.scores {
                *x *= setup.scale;
                self.amax = self.amax.max(x.abs());
                *x = shared.d_s.map_or(*x, |rounded| rounded.through(*x));
            }
        }
        let first = queries.first().copied().unwrap_or(0);
        masked.weigh(
            read.summed_keys.as_ref().unwrap_or(&read.keys),
            d_qk,
            &mut self.d_q[first * d_qk..][..queries.len() * d_qk],
        );
        let q: Vec<f64> = match block {
            Some(block) => block.q_t((b, h), queries),
            None => setup.factors.rows(Scaled::Q, &setup.q, (b, h), queries.iter().copied()),
        };
        for (row, q) in masked.list.iter().zip(q.chunks_exact(d_qk)) {
            for (at, &x) in row.scores.iter().enumerate().filter(|(_, x)| **x != 0.0) {
                add_scaled(&mut self.d_k[(row.first + at) * d_qk..][..d_qk], x, q);
            }
        }
    }

    /// Converts gradients of the score expression's value to gradients of the plain score, and adds those of its
    /// tensors.
    fn through_expression(
        &mut self,
        setup: &Setup<'_>,
        row: &mut ScoreRow<f64>,
        plain: &ScoreRow<f64>,
        [values, gradients]: &mut [Registers; 2],
    ) {
        let Some(score) = &setup.score else { return };
        let chunks = row.scores.chunks_mut(LANES).zip(plain.scores.chunks(LANES));
        for (first, (upstream, plain)) in (row.first..).step_by(LANES).zip(chunks) {
            score.run(row.at, first, plain, values);
            score.reverse(values, upstream, gradients);
            for ((_, id, dims), part) in score.differentiated().zip(&mut self.tensors) {
                for (key, &x) in
                    (first..).zip(score.tensor_gradient(id, gradients, upstream.len()).into_iter().flatten())
                {
                    part.values[element([1, 1, dims[2], dims[3]], row.at, key)] += x;
                }
            }
            if let Some(own) = &setup.own_derivative {
                let factors = own.run(row.at, first, plain, values);
                for (gradient, &factor) in upstream.iter_mut().zip(factors) {
                    // A gradient of zero stays zero, even where the factor is NaN.
                    *gradient = if *gradient == 0.0 { 0.0 } else { *gradient * factor };
                }
                continue;
            }
            match score.score_gradient(gradients, upstream.len()) {
                Some(gradient) => upstream.copy_from_slice(gradient),
                None => upstream.fill(0.0),
            }
        }
    }
}

/// Replaces a row of scores by the probabilities among all keys, from the log-sum-exp of all keys, which it returns.
fn probabilities(scores: &mut [f64], stats: f64) -> f64 {
    for s in scores {
        *s = if *s == f64::NEG_INFINITY { 0.0 } else { (*s - stats).exp() };
    }
    stats
}

/// The rows of these keys, one after another.
fn rows<'v>(values: &'v [f64], keys: &Range<usize>, d: usize) -> impl Iterator<Item = &'v [f64]> {
    values[keys.start * d..keys.end * d].chunks_exact(d)
}
