//! Two tensors of the same dims as rows: dims whose elements lie one after the other in both are one dim.

use qkvault_graph::Tensor;

/// A dim: its extent, and elements between neighbours in each tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConvertedAxis {
    pub(super) n: i64,
    pub(super) wide: i64,
    pub(super) narrow: i64,
}

/// Rows of neighbouring elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConvertedRows {
    /// The dims around a row, outermost first; dims of one element fill the list.
    pub(super) outer: [ConvertedAxis; 3],
    /// Elements of a row.
    pub(super) row: i64,
}

impl ConvertedRows {
    /// The rows of two tensors, in the memory order of the second. Both have a head dim of stride 1.
    pub(super) fn between(wide: &Tensor, narrow: &Tensor) -> ConvertedRows {
        let axis = |i: usize| ConvertedAxis { n: wide.dims[i], wide: wide.strides[i], narrow: narrow.strides[i] };
        let mut axes: Vec<ConvertedAxis> = (0..3).map(axis).filter(|axis| axis.n > 1).collect();
        axes.sort_by_key(|axis| axis.narrow);
        let mut joined = vec![ConvertedAxis { n: wide.dims[3], wide: 1, narrow: 1 }];
        for axis in axes {
            match joined.last_mut() {
                Some(last) if [axis.wide, axis.narrow] == [last.wide * last.n, last.narrow * last.n] => {
                    last.n *= axis.n
                }
                _ => joined.push(axis),
            }
        }
        let mut outer = [ConvertedAxis { n: 1, wide: 0, narrow: 0 }; 3];
        outer.iter_mut().rev().zip(&joined[1..]).for_each(|(place, axis)| *place = *axis);
        ConvertedRows { outer, row: joined[0].n }
    }

    /// Whether every row begins at a multiple of so many elements in both tensors.
    pub(super) fn aligned(&self, to: i64) -> bool {
        self.outer.iter().all(|axis| axis.wide % to == 0 && axis.narrow % to == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::{DType, Order};

    #[test]
    fn a_contiguous_tensor_is_one_row_whatever_its_order() {
        for order in Order::ALL {
            let t = Tensor::dense(order, [2, 3, 5, 24], DType::BF16);
            assert_eq!(ConvertedRows::between(&t, &t).row, 2 * 3 * 5 * 24);
        }
    }

    #[test]
    fn a_change_of_order_leaves_rows_of_the_head_dim_and_gaps_leave_what_is_together() {
        let (wide, narrow) = (Tensor::bshd(2, 3, 5, 24, DType::BF16), Tensor::bhsd(2, 3, 5, 24, DType::E4M3));
        let rows = ConvertedRows::between(&wide, &narrow);
        let axis = |n, wide, narrow| ConvertedAxis { n, wide, narrow };
        assert_eq!((rows.outer, rows.row), ([axis(2, 360, 360), axis(3, 24, 120), axis(5, 72, 24)], 24));
        assert!(rows.aligned(8) && !rows.aligned(16));
        // The queries of a projection that has keys and values behind them in each row.
        let part = Tensor { strides: [5 * 216, 24, 216, 1], ..wide };
        let rows = ConvertedRows::between(&part, &wide);
        assert_eq!((rows.outer, rows.row), ([axis(1, 0, 0), axis(1, 0, 0), axis(10, 216, 72)], 72));
        let one = Tensor::bshd(1, 1, 7, 1, DType::F32);
        assert_eq!(ConvertedRows::between(&one, &one).row, 7);
    }
}
