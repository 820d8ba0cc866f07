//! The roundings of a backward: of probabilities and of gradients of scores before the last products, of the O that row
//! sums are taken from, and of the log-sum-exp that probabilities are relative to.

use qkvault_graph::{Attention, Gradients, Pass, Role, Scaled};
use rayon::prelude::*;

use super::row::{RoundedRow, magnitudes};
use super::{APPROXIMATE, ErrorPart, FLUSHED, PRODUCT, RoundingError, SINGLE, steps, variance};
use crate::kernel::dot;
use crate::scores::TILE_ROWS;
use crate::setup::{Setup, SetupSource};
use crate::{Inputs, ReferenceError};

/// What all heads read.
struct RoundedShared<'a> {
    setup: &'a Setup<'a>,
    d_o: SetupSource<'a>,
    o: SetupSource<'a>,
}

/// The errors that one query head contributes.
struct RoundedBackwardHead {
    d_q: Vec<RoundingError>,
    d_k: RoundedSums,
    d_v: RoundedSums,
    d_sink: RoundingError,
    /// For each differentiated tensor: elements and their errors.
    tensors: Vec<Vec<(usize, RoundingError)>>,
}

/// Sums over queries with their errors.
struct RoundedSums {
    values: Vec<f64>,
    errors: Vec<RoundingError>,
}

impl RoundedSums {
    fn new(n: usize) -> RoundedSums {
        RoundedSums { values: vec![0.0; n], errors: vec![RoundingError::default(); n] }
    }

    /// Adds a row with a weight, whose variance is known.
    fn add(&mut self, start: usize, row: &[f64], weight: f64, variance: f64) {
        let places = self.values[start..].iter_mut().zip(&mut self.errors[start..]);
        for ((value, error), &x) in places.zip(row) {
            *value += weight * x;
            *error += RoundingError { variance: variance * x * x, common: PRODUCT * (weight * x).abs() };
        }
    }

    /// Kernels round the sum of a head before they add the heads of a group.
    fn rounded(&mut self, step: f64) {
        for (value, error) in self.values.iter().zip(&mut self.errors) {
            error.variance += variance(step * value);
        }
    }
}

pub(super) fn follow(a: &Attention, inputs: &Inputs, setup: &Setup<'_>) -> Result<Vec<ErrorPart>, ReferenceError> {
    let d_sink = matches!(a.pass, Pass::Backward(Gradients { d_sink: true, .. }));
    let part = |role| ErrorPart::new(a, role, inputs, setup);
    let [mut d_q, mut d_k, mut d_v] = [part(Role::DQ)?, part(Role::DK)?, part(Role::DV)?];
    let mut sink = d_sink.then(|| part(Role::DSink)).transpose()?;
    let differentiated = setup.score.iter().flat_map(|score| score.differentiated());
    let mut tensors: Vec<ErrorPart> =
        differentiated.map(|(n, ..)| part(Role::DScoreTensor(n))).collect::<Result<_, ReferenceError>>()?;
    let shared = RoundedShared {
        setup,
        d_o: SetupSource::for_role(a, Role::DO, inputs, &setup.lens)?,
        o: SetupSource::for_role(a, Role::O, inputs, &setup.lens)?,
    };
    let (h_q, h_k, h_v) = a.heads();
    for b in 0..a.batch() as usize {
        let heads: Vec<RoundedBackwardHead> =
            (0..h_q as usize).into_par_iter().map(|h| RoundedBackwardHead::follow(&shared, (b, h))).collect();
        for (h, head) in heads.iter().enumerate() {
            for (s, row) in head.d_q.chunks_exact(setup.q.view.dims[3]).enumerate() {
                d_q.put((b, h, s), row);
            }
            if let Some(sink) = &mut sink {
                sink.add(h, head.d_sink);
            }
            for (part, list) in tensors.iter_mut().zip(&head.tensors) {
                list.iter().for_each(|&(at, error)| part.add(at, error));
            }
        }
        let by_group = |of: i64, part: &mut ErrorPart, sums: fn(&RoundedBackwardHead) -> &RoundedSums, d: usize| {
            for (h, group) in heads.chunks((h_q / of) as usize).enumerate() {
                for s in 0..setup.lens.kv[b] {
                    let mut row = vec![RoundingError::default(); d];
                    for head in group {
                        row.iter_mut().zip(&sums(head).errors[s * d..]).for_each(|(sum, error)| *sum += *error);
                    }
                    part.put((b, h, s), &row);
                }
            }
        };
        by_group(h_k, &mut d_k, |head| &head.d_k, setup.q.view.dims[3]);
        by_group(h_v, &mut d_v, |head| &head.d_v, setup.v.view.dims[3]);
    }
    Ok([d_q, d_k, d_v].into_iter().chain(sink).chain(tensors).collect())
}

/// The rows of one head that are read repeatedly.
struct RoundedOperands {
    keys: Vec<f64>,
    values: Vec<f64>,
    value_sizes: Vec<f64>,
}

impl RoundedBackwardHead {
    fn follow(shared: &RoundedShared<'_>, (b, h): (usize, usize)) -> RoundedBackwardHead {
        let setup = shared.setup;
        let (h_k, h_v) = setup.shared_heads(h);
        let (q_len, kv) = (setup.lens.q[b], 0..setup.lens.kv[b]);
        let (d_qk, d_v) = (setup.q.view.dims[3], setup.v.view.dims[3]);
        let values: Vec<f64> = setup.factors.rows(Scaled::V, &setup.v, (b, h_v), kv.clone());
        let read = RoundedOperands {
            keys: setup.factors.rows(Scaled::K, &setup.k, (b, h_k), kv.clone()),
            value_sizes: magnitudes(&values),
            values,
        };
        let tensors = setup.score.iter().flat_map(|score| score.differentiated()).count();
        let mut head = RoundedBackwardHead {
            d_q: Vec::with_capacity(q_len * d_qk),
            d_k: RoundedSums::new(kv.len() * d_qk),
            d_v: RoundedSums::new(kv.len() * d_v),
            d_sink: RoundingError::default(),
            tensors: vec![Vec::new(); tensors],
        };
        let queries: Vec<usize> = (0..q_len).collect();
        for tile in queries.chunks(TILE_ROWS) {
            for row in RoundedRow::all(setup, (b, h), tile, &read.keys) {
                head.row(shared, (b, h), &row, &read);
            }
        }
        let [step, _] = steps(setup.a.q.dtype);
        head.d_k.rounded(step);
        head.d_v.rounded(step);
        head
    }

    fn row(&mut self, shared: &RoundedShared<'_>, (b, h): (usize, usize), row: &RoundedRow, read: &RoundedOperands) {
        let (setup, scale) = (shared.setup, shared.setup.scale);
        let (d_qk, d_v) = (setup.q.view.dims[3], setup.v.view.dims[3]);
        let one = |source: &SetupSource<'_>| source.rows::<f64>(b, h, std::iter::once(row.at.query));
        let (d_o, o, q) = (one(&shared.d_o), one(&shared.o), one(&setup.q));
        let d_o_sizes = magnitudes(&d_o);
        let kept = setup.survivors(row.at, row.first..row.first + row.errors.len());
        let kept = |at: usize| kept.as_ref().map_or(1.0, |factors| factors[at]);
        let [step, least] = steps(setup.a.q.dtype);
        let slope_step = match &setup.score {
            None => 0.0,
            Some(score) if score.approximates() => APPROXIMATE,
            Some(_) => SINGLE,
        };
        // Gradients are rounded after the softmax scale in some kernels.
        let least_gradient = least / scale.abs().clamp(1e-6, 1.0);
        let product =
            |at: usize, of: &[f64], values: &[f64]| kept(at) * dot(of, &values[(row.first + at) * d_v..][..d_v]);
        let d_p: Vec<f64> = (0..row.errors.len()).map(|at| product(at, &d_o, &read.values)).collect();
        let d = dot(&row.probabilities, &d_p);
        // The row sum that a device takes from the rounded O, and the probabilities relative to the rounded Stats.
        let of_sum = (dot(&d_o, &o) - d).abs() + PRODUCT * dot(&d_o_sizes, &magnitudes(&o));
        let of_stats = if row.stats.is_finite() { SINGLE * (1.0 + 2.0 * row.stats.abs()) } else { 0.0 };
        let mut d_q = vec![RoundingError::default(); d_qk];
        let (mut exact, mut of_sums) = (vec![0.0; d_qk], vec![0.0; d_qk]);
        for (at, (&p, &error)) in row.probabilities.iter().zip(&row.errors).enumerate() {
            if p == 0.0 {
                continue;
            }
            let (key, slope, spread) = (row.first + at, row.slopes[at], d_p[at] - d);
            let sizes = PRODUCT * product(at, &d_o_sizes, &read.value_sizes);
            // Some kernels multiply with the probability that they have rounded for dV.
            let of_p = error * error + variance(step);
            let of_masked = p * p * (of_p * spread * spread + sizes * sizes) + (FLUSHED * spread).powi(2);
            let gradient = p * spread * slope;
            // A slope is a difference of numbers, as `1 - tanh²` is.
            let of_slope = slope_step * slope.abs().max(1.0) * p * spread;
            let own = if slope == 0.0 { 0.0 } else { of_masked * slope * slope } + of_slope * of_slope;
            // The gradient that is rounded has the error of the row's sum already, which may be all that it is.
            let own = own + variance(step * (gradient.abs() + of_sum * p * slope.abs())) + variance(least_gradient);
            for (i, &k) in read.keys[key * d_qk..][..d_qk].iter().enumerate() {
                let k = scale * k;
                exact[i] += gradient * k;
                of_sums[i] += of_sum * p * slope * k;
                d_q[i] += RoundingError { variance: own * k * k, common: PRODUCT * (gradient * k).abs() };
            }
            // What a row has in common differs between the rows that a key or a value sums.
            let shared = (of_stats * gradient).powi(2) + (of_sum * p * slope).powi(2);
            self.d_k.add(key * d_qk, &q, gradient * scale, (own + shared) * scale * scale);
            let weight = p * kept(at);
            if weight != 0.0 {
                let of_weight = weight * weight * (error * error + of_stats * of_stats);
                let of_weight = of_weight + variance(step * weight) + variance(least);
                self.d_v.add(key * d_v, &d_o, weight, of_weight);
            }
            for (list, of) in self.tensors.iter_mut().zip(&row.tensors) {
                let (place, by) = of[at];
                let error = of_masked + (of_stats * p * spread).powi(2) + (of_sum * p).powi(2);
                let error = error + variance(step * p * spread) + variance(least_gradient);
                list.push((
                    place,
                    RoundingError { variance: error * by * by, common: SINGLE * (p * spread * by).abs() },
                ));
            }
        }
        for ((error, exact), sums) in d_q.iter_mut().zip(&exact).zip(&of_sums) {
            error.common += of_stats * exact.abs() + sums.abs();
        }
        self.d_q.extend(d_q);
        if let Some(sink) = setup.sink::<f64>(h) {
            let p = (sink - row.stats).exp();
            let variance = (p * of_sum).powi(2) + (p * d * of_stats).powi(2);
            // A probability near the smallest of f32 flushes to zero, in every row alike.
            self.d_sink += RoundingError { variance, common: (SINGLE * p + FLUSHED) * d.abs() };
        }
    }
}
