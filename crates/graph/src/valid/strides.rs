//! Canonical strides: a stride that is never used has no meaning, and must not make two descriptions differ.

use crate::{Storage, Tensor};

/// The canonical strides for a tensor: the same for all strides that place its elements at the same offsets.
///
/// Strides of dims of extent 1, and the batch stride of a varlen tensor, are never used. They become what they would be
/// if these dims were nested as in BSHD around what the other strides span: those of the memory order that the other
/// strides have, if there is one.
pub(crate) fn canonical(t: &Tensor) -> [i64; 4] {
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

    /// The offset of every element of a tensor, without rows beyond a varlen buffer.
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
            // Of the orders with the same used strides, the first: with a dim of one element, BSHD if possible.
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
