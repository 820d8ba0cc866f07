//! Layout words: the order of the axes in memory, outermost first, with a digit for the parts of a shared buffer.

use crate::{DType, Storage, Tensor};

const DENSE: &[&str] = &[
    "bshd", "sbhd", "bhsd", "bs3hd", "bsh3d", "sb3hd", "sbh3d", "b3hsd", "bh3sd", "bs2hd", "bsh2d", "sb2hd", "sbh2d",
    "b2hsd", "bh2sd",
];
const PACKED: &[&str] = &["thd", "t3hd", "th3d", "t2hd", "th2d"];
const PAGED: &[&str] = &["nhd", "hnd"];

/// The layout words of a storage; the first is the default.
pub(super) const fn words(storage: Storage) -> &'static [&'static str] {
    match storage {
        Storage::Dense => DENSE,
        Storage::Varlen { .. } => PACKED,
        Storage::Paged { .. } => PAGED,
    }
}

/// The strides of a layout word; `None` if one overflows.
///
/// The batch stride of varlen rows is not used; it is that of sequences of the greatest length.
pub(super) fn strides(word: &str, dims: [i64; 4], storage: Storage) -> Option<[i64; 4]> {
    let extents = Tensor { dims, strides: [1; 4], dtype: DType::F16, storage }.extents();
    let mut strides = [1; 4];
    let mut step = 1_i64;
    for axis in word.chars().rev() {
        let at = match axis {
            'b' => 0,
            'h' => 1,
            's' | 't' | 'n' => 2,
            'd' => 3,
            parts => {
                step = step.checked_mul(i64::from(parts.to_digit(10)?))?;
                continue;
            }
        };
        strides[at] = step;
        step = step.checked_mul(extents[at])?;
    }
    match storage {
        Storage::Dense => {}
        Storage::Varlen { .. } => strides[0] = strides[2].checked_mul(dims[2])?,
        Storage::Paged { .. } => strides[0] = step,
    }
    Some(strides)
}

/// The layout word of a tensor, if its strides have one.
pub(super) fn word(t: &Tensor) -> Option<&'static str> {
    words(t.storage).iter().copied().find(|word| strides(word, t.dims, t.storage) == Some(t.strides))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interleave, Order};

    #[test]
    fn s1_9_layout_words_are_the_constructors() {
        let [b, h, s, d] = [2, 3, 5, 8];
        let dims = [b, h, s, d];
        let f16 = DType::F16;
        let parts = |order, interleave| Tensor::parts::<3>(order, interleave, dims, f16)[1].tensor;
        let pairs = |order, interleave| Tensor::parts::<2>(order, interleave, dims, f16)[0].tensor;
        for (word, t) in [
            ("bshd", Tensor::bshd(b, h, s, d, f16)),
            ("sbhd", Tensor::sbhd(b, h, s, d, f16)),
            ("bhsd", Tensor::bhsd(b, h, s, d, f16)),
            ("bs3hd", parts(Order::Bshd, Interleave::Parts)),
            ("sbh3d", parts(Order::Sbhd, Interleave::Heads)),
            ("b3hsd", parts(Order::Bhsd, Interleave::Parts)),
            ("bh2sd", pairs(Order::Bhsd, Interleave::Heads)),
            ("thd", Tensor::thd(b, h, s, d, 9, f16)),
            ("nhd", Tensor::paged_nhd(b, h, s, d, 7, 4, f16)),
            ("hnd", Tensor::paged_hnd(b, h, s, d, 7, 4, f16)),
        ] {
            assert_eq!(strides(word, t.dims, t.storage), Some(t.strides), "{word}");
            assert_eq!(super::word(&t), Some(word));
        }
    }

    #[test]
    fn strides_that_overflow_have_no_word() {
        for storage in [Storage::Dense, Storage::Varlen { tokens: i64::MAX }, Storage::Paged { pages: 2, page_size: 9 }]
        {
            for word in words(storage) {
                assert_eq!(strides(word, [i64::MAX; 4], storage), None, "{word}");
            }
        }
    }
}
