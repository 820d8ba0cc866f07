//! Matrix products in single precision, on all cores of the CPU. A real model has them on the GPU; here they need no
//! other library.

use std::borrow::Cow;
use std::num::NonZero;
use std::thread::{available_parallelism, scope};

/// Multiplications for which another thread pays.
const WORTH: usize = 1 << 20;

/// A row-major matrix, possibly transposed.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl<'a> Matrix<'a> {
    pub(crate) fn new(values: &'a [f32], columns: usize) -> Matrix<'a> {
        Matrix { values, rows: values.len() / columns, columns, transposed: false }
    }

    pub(crate) fn t(self) -> Matrix<'a> {
        Matrix { transposed: !self.transposed, ..self }
    }

    /// Rows and columns, after transposing.
    fn shape(self) -> (usize, usize) {
        if self.transposed { (self.columns, self.rows) } else { (self.rows, self.columns) }
    }

    /// The elements, row by row, after transposing.
    fn plain(self) -> Cow<'a, [f32]> {
        if !self.transposed {
            return Cow::Borrowed(self.values);
        }
        (0..self.columns).flat_map(|column| self.values[column..].iter().step_by(self.columns)).copied().collect()
    }
}

/// The product of two matrices. Each element is summed in the same order for any number of threads.
pub(crate) fn product(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    let ((m, k), (_, n)) = (a.shape(), b.shape());
    let (left, right) = (a.plain(), b.plain());
    let threads = available_parallelism().map_or(1, NonZero::get).min(m * k * n / WORTH + 1);
    let rows = m.div_ceil(threads);
    let mut product = vec![0.0; m * n];
    scope(|scope| {
        for (sums, left) in product.chunks_mut(rows * n).zip(left.chunks(rows * k)) {
            let right = &right;
            scope.spawn(move || {
                for (sums, left) in sums.chunks_exact_mut(n).zip(left.chunks_exact(k)) {
                    for (factor, right) in left.iter().zip(right.chunks_exact(n)) {
                        sums.iter_mut().zip(right).for_each(|(sum, element)| *sum += factor * element);
                    }
                }
            });
        }
    });
    product
}
