//! The three loops of attention over plain rows: scores, softmax, weighted sums. Everything else decides what goes into them.

use crate::Real;

/// What a row of scores leaves behind besides probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowStat<T> {
    /// Largest score, the sink among them.
    pub(crate) max: T,
    /// Sum of exponentials relative to it.
    pub(crate) sum: T,
    /// Logarithm of the sum of exponentials.
    pub(crate) stats: T,
}

impl<T: Real> RowStat<T> {
    /// Of a row that sees nothing.
    pub(crate) const EMPTY: RowStat<T> = RowStat { max: T::HIDDEN, sum: T::ZERO, stats: T::HIDDEN };
}

/// Inner product. Eight partial sums let the compiler use vectors: it may not reorder a single one.
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

/// Probabilities of a row of scores, in place. Minus infinity is a key that is not seen; a row of nothing else becomes zeros.
pub(crate) fn softmax<T: Real>(scores: &mut [T], sink: Option<T>) -> RowStat<T> {
    let max = scores.iter().fold(sink.unwrap_or(T::HIDDEN), |max, &s| max.max(s));
    if max == T::HIDDEN {
        scores.fill(T::ZERO);
        return RowStat::EMPTY;
    }
    let mut sum = sink.map_or(T::ZERO, |sink| (sink - max).exp());
    for s in &mut *scores {
        *s = if *s == T::HIDDEN { T::ZERO } else { (*s - max).exp() };
        sum += *s;
    }
    for s in scores {
        *s = *s / sum;
    }
    RowStat { max, sum, stats: max + sum.ln() }
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
        assert_eq!((row[0], stat.sum, stat.max), (0.5, 2.0, 0.0));
        let mut row = [f64::NEG_INFINITY; 3];
        assert_eq!(softmax(&mut row, None), RowStat::EMPTY);
        assert_eq!(row, [0.0; 3]);
        assert_eq!(softmax(&mut row[..0], Some(1.5)), RowStat { max: 1.5, sum: 1.0, stats: 1.5 });
    }

    #[test]
    fn inner_products_of_every_length() {
        for n in 0..40_u32 {
            let a: Vec<f64> = (0..n).map(f64::from).collect();
            assert_eq!(dot(&a, &a), (0..n).map(|i| f64::from(i * i)).sum::<f64>());
        }
    }
}
