//! The roundings of a forward: of probabilities before the second product, and of scores.

use qkvault_graph::{Attention, Role, Scaled};
use rayon::prelude::*;

use super::row::Row;
use super::{Error, FLUSHED, PRODUCT, Part, SINGLE, steps, variance};
use crate::setup::Setup;
use crate::{Inputs, ReferenceError};

/// Query rows that are processed together.
const TILE_ROWS: usize = 16;

/// The errors of the rows of one head: of O, and of Stats.
struct Head {
    o: Vec<Error>,
    stats: Vec<Error>,
}

pub(super) fn follow(a: &Attention, inputs: &Inputs, setup: &Setup<'_>) -> Result<Vec<Part>, ReferenceError> {
    let mut o = Part::new(a, Role::O, inputs, setup)?;
    let mut stats = a.outputs.stats.then(|| Part::new(a, Role::Stats, inputs, setup)).transpose()?;
    let d = setup.v.view.dims[3];
    for b in 0..a.batch() as usize {
        let heads: Vec<Head> = (0..a.q.dims[1] as usize).into_par_iter().map(|h| Head::follow(setup, (b, h))).collect();
        for (h, head) in heads.iter().enumerate() {
            for (s, (row, of_stats)) in head.o.chunks_exact(d).zip(&head.stats).enumerate() {
                o.put((b, h, s), row);
                if let Some(stats) = &mut stats {
                    stats.put((b, h, s), &[*of_stats]);
                }
            }
        }
    }
    Ok(std::iter::once(o).chain(stats).collect())
}

impl Head {
    fn follow(setup: &Setup<'_>, (b, h): (usize, usize)) -> Head {
        let (h_k, h_v) = setup.shared_heads(h);
        let kv = 0..setup.lens.kv[b];
        let keys: Vec<f64> = setup.factors.rows(Scaled::K, &setup.k, (b, h_k), kv.clone());
        let values: Vec<f64> = setup.factors.rows(Scaled::V, &setup.v, (b, h_v), kv);
        let queries: Vec<usize> = (0..setup.lens.q[b]).collect();
        let tiles: Vec<Head> = queries
            .par_chunks(TILE_ROWS)
            .map(|tile| {
                let rows = Row::all(setup, (b, h), tile, &keys);
                let stats = rows.iter().map(of_stats).collect();
                Head { o: rows.iter().flat_map(|row| of_o(setup, row, &values)).collect(), stats }
            })
            .collect();
        let mut all = Head { o: Vec::new(), stats: Vec::new() };
        for Head { o, stats } in tiles {
            all.o.extend(o);
            all.stats.extend(stats);
        }
        all
    }
}

/// The errors of a row of O.
fn of_o(setup: &Setup<'_>, row: &Row, values: &[f64]) -> Vec<Error> {
    let d = setup.v.view.dims[3];
    let [step, least] = steps(setup.a.q.dtype);
    // Kernels round exponentials relative to the largest score.
    let least = (least * (row.max - row.stats).exp().min(1.0)).max(FLUSHED);
    let mut out = vec![Error::default(); d];
    let kept = setup.survivors(row.at, row.first..row.first + row.errors.len());
    for (at, (&p, &error)) in row.probabilities.iter().zip(&row.errors).enumerate() {
        let weight = p * kept.as_ref().map_or(1.0, |factors| factors[at]);
        if weight == 0.0 {
            continue;
        }
        let of_weight = variance(step * weight) + (error * weight).powi(2) + variance(least);
        for (out, &v) in out.iter_mut().zip(&values[(row.first + at) * d..][..d]) {
            out.variance += of_weight * v * v;
            out.common += PRODUCT * weight * v.abs();
        }
    }
    out
}

/// The error of a log-sum-exp.
fn of_stats(row: &Row) -> Error {
    let variance = row.probabilities.iter().zip(&row.errors).map(|(p, error)| (p * error).powi(2)).sum();
    let size = if row.stats.is_finite() { row.stats.abs() + row.max.abs().min(1e30) } else { 0.0 };
    Error { variance, common: 1e-4 + 2.0 * SINGLE * size }
}
