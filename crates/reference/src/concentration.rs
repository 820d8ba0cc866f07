//! How few keys have the weight of a row, on which depends how errors of its scores' gradients add.

use qkvault_graph::{Scaled, Valid};
use rayon::prelude::*;

use crate::kernel::softmax;
use crate::scores::{Scores, TILE_ROWS};
use crate::setup::Setup;
use crate::{Inputs, ReferenceError};

/// Sums of the squares of rows' probabilities: 1 where one key has all of the weight, `1 / n` where `n` share it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Concentration {
    /// The sum over the rows of a sequence, in all heads.
    pub total: f64,
    /// The largest of them.
    pub largest: f64,
}

/// The concentration of each sequence's rows.
///
/// # Errors
///
/// The errors of [`crate::forward`].
pub fn concentrations(attention: &Valid, inputs: &Inputs) -> Result<Vec<Concentration>, ReferenceError> {
    let a = attention.get();
    let setup = Setup::new(a, inputs)?;
    let of = |b: usize| {
        let rows = (0..a.q.heads().unsigned_abs() as usize).into_par_iter().flat_map_iter(|h| squares(&setup, (b, h)));
        let rows: Vec<f64> = rows.collect();
        Concentration { total: rows.iter().sum(), largest: rows.iter().copied().fold(0.0, f64::max) }
    };
    Ok((0..a.batch().unsigned_abs() as usize).map(of).collect())
}

/// The sum of squares of each row of one head.
fn squares(setup: &Setup<'_>, (b, h): (usize, usize)) -> Vec<f64> {
    let (h_k, _) = setup.shared_heads(h);
    let keys: Vec<f64> = setup.factors.rows(Scaled::K, &setup.k, (b, h_k), 0..setup.lens.kv[b]);
    let queries: Vec<usize> = (0..setup.lens.q[b]).collect();
    let tiles = queries.chunks(TILE_ROWS).flat_map(|tile| Scores::compute(setup, (b, h), tile, &keys).list);
    tiles
        .map(|mut row| {
            softmax(&mut row.scores, setup.sink(h));
            row.scores.iter().map(|p| p * p).sum()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, DType, validate};

    use super::*;
    use crate::{Family, RandomChoice};

    #[test]
    fn constant_rows_share_their_weight_and_dominant_keys_have_it() {
        let a = validate(Attention::bshd(2, (4, 2), (30, 50), 64, DType::BF16)).expect("valid");
        let of = |family| {
            let inputs =
                Inputs::random_with(&a, 3, &RandomChoice { family, ..RandomChoice::default() }).expect("random");
            concentrations(&a, &inputs).expect("computes")
        };
        for constant in of(Family::Constant) {
            let mean = constant.total / 120.0;
            assert!((mean - 0.02).abs() < 1e-6 && (constant.largest - 0.02).abs() < 1e-6, "{constant:?}");
        }
        for dominant in of(Family::Dominant) {
            assert!(dominant.largest > 0.9 && dominant.total > 24.0, "{dominant:?}");
        }
        for normal in of(Family::Normal) {
            let mean = normal.total / 120.0;
            assert!(mean > 0.02 && normal.largest < 0.9 && mean < normal.largest, "{normal:?}");
        }
    }
}
