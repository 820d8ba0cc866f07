//! The roundings of a forward: of probabilities before the second product, and of scores.

use qkvault_graph::{Attention, Role, Scaled};
use rayon::prelude::*;

use super::row::RoundedRow;
use super::{ErrorPart, FLUSHED, PRODUCT, RoundingError, SINGLE, steps, variance};
use crate::scores::TILE_ROWS;
use crate::setup::Setup;
use crate::{Inputs, ReferenceError};

/// The errors of the rows of one head: of O, and of the numbers of each row.
struct RoundedHead {
    o: Vec<RoundingError>,
    rows: Vec<OfRow>,
}

/// The errors of the numbers that a forward writes for each row.
#[derive(Clone, Copy)]
struct OfRow {
    stats: RoundingError,
    max: RoundingError,
    sum_exp: RoundingError,
}

pub(super) fn follow(a: &Attention, inputs: &Inputs, setup: &Setup<'_>) -> Result<Vec<ErrorPart>, ReferenceError> {
    let mut o = ErrorPart::new(a, Role::O, inputs, setup)?;
    let wanted = [(a.outputs.stats, Role::Stats), (a.outputs.max, Role::Max), (a.outputs.sum_exp, Role::SumExp)];
    let wanted = wanted.into_iter().filter(|(wanted, _)| *wanted);
    let mut by_row: Vec<ErrorPart> =
        wanted.map(|(_, role)| ErrorPart::new(a, role, inputs, setup)).collect::<Result<_, ReferenceError>>()?;
    let d = setup.v.view.dims[3];
    for b in 0..a.batch() as usize {
        let heads: Vec<RoundedHead> =
            (0..a.q.dims[1] as usize).into_par_iter().map(|h| RoundedHead::follow(setup, (b, h))).collect();
        for (h, head) in heads.iter().enumerate() {
            for (s, (row, of_row)) in head.o.chunks_exact(d).zip(&head.rows).enumerate() {
                o.put((b, h, s), row);
                for part in &mut by_row {
                    let error = match part.role {
                        Role::Max => of_row.max,
                        Role::SumExp => of_row.sum_exp,
                        _ => of_row.stats,
                    };
                    part.put((b, h, s), &[error]);
                }
            }
        }
    }
    Ok(std::iter::once(o).chain(by_row).collect())
}

impl RoundedHead {
    fn follow(setup: &Setup<'_>, (b, h): (usize, usize)) -> RoundedHead {
        let (h_k, h_v) = setup.shared_heads(h);
        let kv = 0..setup.lens.kv[b];
        let keys: Vec<f64> = setup.factors.rows(Scaled::K, &setup.k, (b, h_k), kv.clone());
        let values: Vec<f64> = setup.factors.rows(Scaled::V, &setup.v, (b, h_v), kv);
        let queries: Vec<usize> = (0..setup.lens.q[b]).collect();
        let tiles: Vec<RoundedHead> = queries
            .par_chunks(TILE_ROWS)
            .map(|tile| {
                let rows = RoundedRow::all(setup, (b, h), tile, &keys);
                let of_rows = rows.iter().map(of_row).collect();
                RoundedHead { o: rows.iter().flat_map(|row| of_o(setup, row, &values)).collect(), rows: of_rows }
            })
            .collect();
        let mut all = RoundedHead { o: Vec::new(), rows: Vec::new() };
        for RoundedHead { o, rows } in tiles {
            all.o.extend(o);
            all.rows.extend(rows);
        }
        all
    }
}

/// The errors of a row of O.
fn of_o(setup: &Setup<'_>, row: &RoundedRow, values: &[f64]) -> Vec<RoundingError> {
    let d = setup.v.view.dims[3];
    let [step, least] = steps(setup.a.q.dtype);
    // Kernels round exponentials relative to the largest score; a sink may be larger than all of them.
    let relative = if setup.sink::<f64>(row.at.head).is_some() { 1.0 } else { (row.max - row.stats).exp().min(1.0) };
    let least = (least * relative).max(FLUSHED);
    let mut out = vec![RoundingError::default(); d];
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

/// The errors of a log-sum-exp, of the largest score, and of the sum of exponentials relative to it.
fn of_row(row: &RoundedRow) -> OfRow {
    // Products of a constant dim are rounded alike for all keys.
    let variance = row.probabilities.iter().zip(&row.errors).map(|(p, error)| p * error).sum::<f64>().powi(2);
    let size = if row.stats.is_finite() { row.stats.abs() + row.max.abs().min(1e30) } else { 0.0 };
    let most = row.errors.iter().fold(0.0_f64, |most, error| most.max(*error));
    let stats = RoundingError { variance, common: 1e-4 + 2.0 * SINGLE * size };
    let max = RoundingError { variance: most * most, ..stats };
    // The sum is that of the log-sum-exp without the largest score, and as far off relative to itself as both are.
    let sum = if row.max.is_finite() { (row.stats - row.max).exp() } else { 0.0 };
    let sum_exp = RoundingError { variance: sum * sum * (variance + most * most), common: 1e-4 * sum };
    OfRow { stats, max, sum_exp }
}
