//! Several tensors of the same dims as rows of neighbouring elements, with the dims around them.

use qkvault_graph::Tensor;

/// The dims around a row, outermost first, and the elements of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axes {
    /// Extents; dims of one element fill the list.
    pub(super) outer: [i64; 3],
    /// Elements of a row.
    pub(super) row: i64,
    /// For each tensor, elements between neighbours along the dims around a row.
    pub(super) strides: Vec<[i64; 3]>,
}

impl Axes {
    /// The rows of tensors with these extents and strides, in the memory order of the first. Dims whose elements lie
    /// one after the other in all tensors are one dim if `join`; else a row is the head dim. A stride of the head dim
    /// is 1.
    pub(super) fn in_memory_order(dims: [i64; 4], tensors: &[[i64; 3]], join: bool) -> Axes {
        let mut around: Vec<usize> = (0..3).filter(|&i| dims[i] > 1).collect();
        around.sort_by_key(|&i| tensors.first().map_or(0, |t| t[i]));
        // Innermost first: extents, and the stride in each tensor.
        let mut joined: Vec<(i64, Vec<i64>)> = vec![(dims[3], vec![1; tensors.len()])];
        for i in around {
            let strides: Vec<i64> = tensors.iter().map(|t| t[i]).collect();
            match joined.last_mut() {
                Some((n, last)) if join && strides.iter().zip(&*last).all(|(s, inner)| *s == inner * *n) => {
                    *n *= dims[i]
                }
                _ => joined.push((dims[i], strides)),
            }
        }
        let mut axes = Axes { outer: [1; 3], row: joined[0].0, strides: vec![[0; 3]; tensors.len()] };
        for (place, (n, strides)) in (0..3).rev().zip(&joined[1..]) {
            axes.outer[place] = *n;
            axes.strides.iter_mut().zip(strides).for_each(|(to, stride)| to[place] = *stride);
        }
        axes
    }

    /// Chunks of up to so many elements of a row, in all rows.
    pub(super) fn chunks(&self, of: i64) -> u64 {
        let rows: i64 = self.outer.iter().product();
        rows.unsigned_abs() * self.row.unsigned_abs().div_ceil(of.unsigned_abs())
    }
}

/// The strides of the dims around the head dim.
pub(super) fn strides(t: &Tensor) -> [i64; 3] {
    [t.strides[0], t.strides[1], t.strides[2]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::{DType, Order};

    #[test]
    fn dims_that_follow_each_other_in_all_tensors_are_one() {
        let of = |order| strides(&Tensor::dense(order, [2, 3, 5, 24], DType::BF16));
        let (bshd, bhsd) = (of(Order::Bshd), of(Order::Bhsd));
        let dims = [2, 3, 5, 24];
        let whole = Axes::in_memory_order(dims, &[bshd, bshd], true);
        assert_eq!((whole.outer, whole.row, whole.chunks(8)), ([1; 3], 720, 90));
        let mixed = Axes::in_memory_order(dims, &[bshd, bhsd], true);
        assert_eq!((mixed.outer, mixed.row), ([2, 5, 3], 24));
        assert_eq!(mixed.strides, [[360, 72, 24], [360, 24, 120]]);
        // A tensor that has more rows behind each one is joined as far as all others are.
        let gap = Axes::in_memory_order(dims, &[bshd, [720, 24, 72]], true);
        assert_eq!((gap.outer, gap.row, gap.strides[1]), ([1, 1, 2], 360, [0, 0, 720]));
        let apart = Axes::in_memory_order(dims, &[bshd, bshd], false);
        assert_eq!((apart.outer, apart.row), ([2, 5, 3], 24));
    }
}
