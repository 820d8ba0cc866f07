//! One way of writing strides for every way of laying a tensor out: a stride that no step is taken along says nothing, and
//! must not tell two descriptions apart.

use crate::{Storage, Tensor};

/// The strides that stand for all strides with which the tensor's elements lie at the same places.
///
/// A dim of extent 1 takes no step, and neither does the batch dim of a varlen tensor. Their strides become what they would be if such
/// a dim were nested as in BSHD, around what the other strides span: those of the memory order that the others belong to, if there is one.
pub(super) fn canonical(t: &Tensor) -> [i64; 4] {
    let extents = t.extents();
    let [mut batch, mut head, mut row, head_dim] = t.strides;
    let innermost = extents[3];
    if extents[1] == 1 {
        head = innermost;
    }
    let inner = innermost.max(head.saturating_mul(extents[1]));
    if extents[2] == 1 {
        row = inner;
    }
    if matches!(t.storage, Storage::Varlen { .. }) {
        batch = row.saturating_mul(t.dims[2]);
    } else if extents[0] == 1 {
        batch = inner.max(row.saturating_mul(extents[2]));
    }
    [batch, head, row, head_dim]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{DType, Order};

    /// Where every element of a tensor lies, rows beyond a varlen buffer left out.
    fn places(t: &Tensor) -> Vec<i64> {
        let [b, h, s, d] = t.extents();
        let [sb, sh, ss, sd] = t.strides;
        let mut places = Vec::new();
        for i in 0..b {
            for j in 0..h {
                for k in 0..s {
                    places.extend((0..d).map(|l| i * sb + j * sh + k * ss + l * sd));
                }
            }
        }
        places
    }

    fn tensor() -> impl Strategy<Value = Tensor> {
        let storage = prop_oneof![
            Just(Storage::Dense),
            (1..4_i64).prop_map(|tokens| Storage::Varlen { tokens }),
            (1..3_i64, 1..3_i64).prop_map(|(pages, page_size)| Storage::Paged { pages, page_size }),
        ];
        (prop::array::uniform4(1..3_i64), prop::array::uniform3(1..20_i64), storage).prop_map(
            |(dims, [sb, sh, ss], storage)| Tensor { dims, strides: [sb, sh, ss, 1], dtype: DType::F16, storage },
        )
    }

    proptest! {
        #[test]
        fn equal_places_are_equal_strides(a in tensor(), strides in prop::array::uniform3(1..20_i64)) {
            let other = Tensor { strides: [strides[0], strides[1], strides[2], 1], ..a };
            let same = places(&a) == places(&other);
            prop_assert_eq!(same, canonical(&a) == canonical(&other), "{:?} and {:?}", a, other);
            let again = Tensor { strides: canonical(&a), ..a };
            prop_assert_eq!(places(&again), places(&a));
            prop_assert_eq!(canonical(&again), again.strides);
        }

        #[test]
        fn contiguous_tensors_keep_their_strides(dims in prop::array::uniform4(1..4_i64), tokens in 1..4_i64) {
            let [b, h, s, d] = dims;
            let dense = Tensor::bshd(b, h, s, d, DType::F16);
            prop_assert_eq!(canonical(&dense), dense.strides);
            let varlen = Tensor::thd(b, h, s, d, tokens, DType::F16);
            prop_assert_eq!(canonical(&varlen), varlen.strides);
            // Of other orders one that says the same of every step: where a dim has one element, BSHD if it can be.
            for order in Order::ALL {
                let given = order.strides(dims);
                let agrees = |o: &Order| (0..4).all(|axis| dims[axis] == 1 || o.strides(dims)[axis] == given[axis]);
                let first = Order::ALL.iter().find(|o| agrees(o)).expect("the order itself does");
                prop_assert_eq!(canonical(&Tensor::dense(order, dims, DType::F16)), first.strides(dims));
            }
        }
    }

    #[test]
    fn one_sequence_has_one_description_whatever_the_order_of_batch_and_sequence() {
        let (bshd, sbhd) = (Tensor::bshd(1, 8, 64, 32, DType::F16), Tensor::sbhd(1, 8, 64, 32, DType::F16));
        assert_ne!(bshd.strides, sbhd.strides);
        assert_eq!(canonical(&bshd), canonical(&sbhd));
    }
}
