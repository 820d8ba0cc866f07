//! The scores of a few rows: products, score expression and masks; and the sums of values weighted by them.

use qkvault_graph::Scaled;

use crate::Real;
use crate::kernel::{add_scaled, dot};
use crate::score::{LANES, Registers, RowAt};
use crate::setup::Setup;

/// Number of query rows that are processed together, so that each key is fetched once for all of them.
pub(crate) const TILE_ROWS: usize = 16;

/// The scores of a few rows, each over its own run of keys.
pub(crate) struct Scores<T> {
    pub(crate) list: Vec<ScoreRow<T>>,
}

pub(crate) struct ScoreRow<T> {
    pub(crate) at: RowAt,
    /// The key of the first score.
    pub(crate) first: usize,
    /// Masked scores; minus infinity for a masked key.
    pub(crate) scores: Vec<T>,
}

impl<T: Real> Scores<T> {
    /// Computes the scores after the score expression and masks.
    pub(crate) fn compute(setup: &Setup<'_>, (b, h): (usize, usize), queries: &[usize], keys: &[T]) -> Scores<T> {
        let mut rows = Scores::products(setup, (b, h), queries, keys);
        let mut registers = Registers::default();
        for row in &mut rows.list {
            row.modify(setup, &mut registers);
            setup.hide(row.at, row.first, &mut row.scores, &mut registers);
        }
        rows
    }

    /// Computes the scaled products of queries and keys, masked only by lengths and band.
    pub(crate) fn products(setup: &Setup<'_>, (b, h): (usize, usize), queries: &[usize], keys: &[T]) -> Scores<T> {
        let d = setup.q.view.dims[3];
        let q: Vec<T> = setup.factors.rows(Scaled::Q, &setup.q, (b, h), queries.iter().copied());
        let scale = T::from_f64(setup.scale);
        let row = |&query: &usize| {
            let at = setup.at(b, h, query);
            let reach = setup.reach(at);
            ScoreRow { at, first: reach.start, scores: vec![T::ZERO; reach.len()] }
        };
        let mut list: Vec<ScoreRow<T>> = queries.iter().map(row).collect();
        for (j, key) in keys.chunks_exact(d).enumerate() {
            for (row, q) in list.iter_mut().zip(q.chunks_exact(d)) {
                if let Some(score) = j.checked_sub(row.first).and_then(|at| row.scores.get_mut(at)) {
                    *score = scale * dot(q, key);
                }
            }
        }
        Scores { list }
    }

    /// Adds to each row of `out` the `values` weighted by its scores; weights of zero are skipped.
    pub(crate) fn weigh(&self, values: &[T], d: usize, out: &mut [T]) {
        for (j, value) in values.chunks_exact(d).enumerate() {
            for (row, out) in self.list.iter().zip(out.chunks_exact_mut(d)) {
                if let Some(&p) = j.checked_sub(row.first).and_then(|at| row.scores.get(at))
                    && p != T::ZERO
                {
                    add_scaled(out, p, value);
                }
            }
        }
    }
}

impl<T: Real> ScoreRow<T> {
    /// Applies the score expression to the scores.
    fn modify(&mut self, setup: &Setup<'_>, registers: &mut Registers) {
        let Some(score) = &setup.score else { return };
        let mut plain = [0.0; LANES];
        for (first, scores) in (self.first..).step_by(LANES).zip(self.scores.chunks_mut(LANES)) {
            let plain = &mut plain[..scores.len()];
            plain.iter_mut().zip(&*scores).for_each(|(x, s)| *x = s.f64());
            let modified = score.run(self.at, first, plain, registers);
            scores.iter_mut().zip(modified).for_each(|(s, &x)| *s = T::from_f64(x));
        }
    }
}
