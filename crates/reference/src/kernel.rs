//! The three loops of attention over plain rows: scores, softmax, weighted sums. Other modules prepare their inputs.

use crate::Real;

/// The statistics of a row of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowStat<T> {
    /// Largest score.
    pub(crate) max: T,
    /// Sum of the scores' exponentials relative to it.
    pub(crate) sum: T,
    /// Logarithm of the sum of exponentials, including the sink's. Probabilities are relative to it.
    pub(crate) stats: T,
}

impl<T: Real> RowStat<T> {
    /// The statistics of a row that sees no key.
    pub(crate) const EMPTY: RowStat<T> = RowStat { max: T::MASKED, sum: T::ZERO, stats: T::MASKED };
}

/// Inner product. Eight partial sums let the compiler vectorise; it may not reorder a single sum.
#[inline]
pub(crate) fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut sums = [T::ZERO; 8];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let mut sum = T::ZERO;
    for s in sums {
        sum += s;
    }
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        sum += a * b;
    }
    sum
}

/// `sum += factor * row`.
#[inline]
pub(crate) fn add_scaled<T: Real>(sum: &mut [T], factor: T, row: &[T]) {
    for (s, &x) in sum.iter_mut().zip(row) {
        *s += factor * x;
    }
}

/// Replaces a row of scores by its probabilities. Minus infinity is a masked key; a fully masked row becomes zeros.
pub(crate) fn softmax<T: Real>(scores: &mut [T], sink: Option<T>) -> RowStat<T> {
    // A score of NaN makes the whole row NaN; it must not be treated like a masked key.
    let larger = |max: T, s: T| if s > max || s.is_nan() { s } else { max };
    let max = scores.iter().fold(T::MASKED, |max, &s| larger(max, s));
    let exp = |s: T, top: T| if s == T::MASKED { T::ZERO } else { (s - top).exp() };
    let top = sink.map_or(max, |sink| larger(max, sink));
    if top == T::MASKED {
        scores.fill(T::ZERO);
        return RowStat::EMPTY;
    }
    let sum_from = |top: T| {
        let mut sum = T::ZERO;
        scores.iter().for_each(|&s| sum += exp(s, top));
        sum
    };
    let (sum, total) = match sink {
        None => (sum_from(top), sum_from(top)),
        Some(sink) => (if max == T::MASKED { T::ZERO } else { sum_from(max) }, sum_from(top) + exp(sink, top)),
    };
    for s in scores {
        *s = exp(*s, top) / total;
    }
    RowStat { max, sum, stats: top + total.ln() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_of_known_rows() {
        let mut row = [0.0, 2f64.ln(), f64::NEG_INFINITY];
        let stat = softmax(&mut row, None);
        assert!((row[0] - 1.0 / 3.0).abs() < 1e-15 && (row[1] - 2.0 / 3.0).abs() < 1e-15);
        assert_eq!(row[2], 0.0);
        assert!((stat.stats - 3f64.ln()).abs() < 1e-15 && (stat.sum - 1.5).abs() < 1e-15);
        let mut row = [0.0_f64];
        let stat = softmax(&mut row, Some(0.0));
        assert_eq!((row[0], stat.sum, stat.max, stat.stats), (0.5, 1.0, 0.0, 2f64.ln()));
        let mut row = [f64::NAN, f64::NEG_INFINITY];
        assert!(softmax(&mut row, None).stats.is_nan() && row[0].is_nan());
        let mut row = [f64::NEG_INFINITY; 3];
        assert_eq!(softmax(&mut row, None), RowStat::EMPTY);
        assert_eq!(row, [0.0; 3]);
        assert_eq!(softmax(&mut row[..0], Some(1.5)), RowStat { stats: 1.5, ..RowStat::EMPTY });
    }

    #[test]
    fn inner_products_of_every_length() {
        for n in 0..40_u32 {
            let a: Vec<f64> = (0..n).map(f64::from).collect();
            assert_eq!(dot(&a, &a), (0..n).map(|i| f64::from(i * i)).sum::<f64>());
        }
    }
}
