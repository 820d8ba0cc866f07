//! Tensors of an attention: logical dims, strides, element type and storage of rows.

use serde::{Deserialize, Serialize};

use crate::DType;

/// One operand of an attention.
///
/// Dims are always in logical order (batch, head, sequence, head dim), whatever the order in memory. Strides, in
/// elements, describe the order in memory; there is no separate layout field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// (batch, heads, sequence, head dim). For varlen and paged tensors, the sequence entry is the largest length that
    /// a plan accepts.
    pub dims: [i64; 4],
    /// Elements between neighbours along each dim. The meaning of each stride depends on [`Tensor::storage`].
    pub strides: [i64; 4],
    /// Element type.
    pub dtype: DType,
    /// How the rows of the sequence dim are stored.
    pub storage: Storage,
}

/// How the rows of a tensor's sequence dim are stored in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Storage {
    /// Every sequence has `dims[2]` rows, at its batch stride.
    Dense,
    /// Sequences of different lengths lie one after another (THD). A launch gets cumulative lengths that tell where
    /// each begins. The batch stride is not used.
    Varlen {
        /// Number of rows of the buffer, for all sequences together.
        tokens: i64,
    },
    /// Rows lie in pages of a pool, and a launch gets a page table. The batch stride is the distance between pages.
    Paged {
        /// Pages in the pool.
        pages: i64,
        /// Rows in one page.
        page_size: i64,
    },
}

/// Order of the axes in memory, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Batch, sequence, head, head dim.
    Bshd,
    /// Sequence, batch, head, head dim.
    Sbhd,
    /// Batch, head, sequence, head dim.
    Bhsd,
}

impl Order {
    /// Every order.
    pub const ALL: [Order; 3] = [Order::Bshd, Order::Sbhd, Order::Bhsd];

    /// The name used in text forms.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Order::Bshd => "bshd",
            Order::Sbhd => "sbhd",
            Order::Bhsd => "bhsd",
        }
    }

    /// Strides of a contiguous tensor of these logical dims in this memory order.
    #[must_use]
    pub const fn strides(self, [b, h, s, d]: [i64; 4]) -> [i64; 4] {
        match self {
            Order::Bshd => [s * h * d, d, h * d, 1],
            Order::Sbhd => [h * d, d, b * h * d, 1],
            Order::Bhsd => [h * s * d, s * d, d, 1],
        }
    }

    /// Like [`Order::strides`], for unchecked dims; `None` if a stride overflows.
    #[must_use]
    pub fn checked_strides(self, [b, h, s, d]: [i64; 4]) -> Option<[i64; 4]> {
        let row = h.checked_mul(d)?;
        match self {
            Order::Bshd => Some([s.checked_mul(row)?, d, row, 1]),
            Order::Sbhd => Some([row, d, b.checked_mul(row)?, 1]),
            Order::Bhsd => {
                let plane = s.checked_mul(d)?;
                Some([h.checked_mul(plane)?, plane, d, 1])
            }
        }
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How the Q, K and V (or K and V) of one projection are interleaved in a shared buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interleave {
    /// Parts are outside heads: `(.., parts, heads, head dim)`, as in BS3HD.
    Parts,
    /// Parts are inside heads: `(.., heads, parts, head dim)`, as in BSH3D.
    Heads,
}

/// One part of a shared buffer: a tensor, and the offset of its first element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The part as a tensor.
    pub tensor: Tensor,
    /// Elements from the start of the buffer to the part's first element; add it to the pointer that is bound.
    pub offset: i64,
}

impl Tensor {
    /// A contiguous dense tensor of logical dims (batch, heads, sequence, head dim) in a memory order.
    #[must_use]
    pub const fn dense(order: Order, dims: [i64; 4], dtype: DType) -> Tensor {
        Tensor { dims, strides: order.strides(dims), dtype, storage: Storage::Dense }
    }

    /// A contiguous tensor in memory order (batch, sequence, head, head dim). Arguments are in logical order.
    #[must_use]
    pub const fn bshd(b: i64, h: i64, s: i64, d: i64, dtype: DType) -> Tensor {
        Tensor::dense(Order::Bshd, [b, h, s, d], dtype)
    }

    /// A contiguous tensor in memory order (sequence, batch, head, head dim). Arguments are in logical order.
    #[must_use]
    pub const fn sbhd(b: i64, h: i64, s: i64, d: i64, dtype: DType) -> Tensor {
        Tensor::dense(Order::Sbhd, [b, h, s, d], dtype)
    }

    /// A contiguous tensor in memory order (batch, head, sequence, head dim).
    #[must_use]
    pub const fn bhsd(b: i64, h: i64, s: i64, d: i64, dtype: DType) -> Tensor {
        Tensor::dense(Order::Bhsd, [b, h, s, d], dtype)
    }

    /// The `N` parts of one shared projection buffer: 3 for interleaved QKV, 2 for interleaved KV. The parts differ in
    /// offset and strides, and nothing is copied.
    ///
    /// The buffer is contiguous. `order` gives the order of batch and sequence (BSHD or SBHD; for BHSD each part is a
    /// separate plane, `(batch, parts, heads, sequence, head dim)`), and `interleave` the place of the `N` parts.
    #[must_use]
    pub fn parts<const N: usize>(order: Order, interleave: Interleave, dims: [i64; 4], dtype: DType) -> [Part; N] {
        let [b, h, s, d] = dims;
        let n = N as i64;
        let row = n * h * d;
        let (head, step) = match interleave {
            Interleave::Parts => (d, h * d),
            Interleave::Heads => (n * d, d),
        };
        let (strides, step) = match order {
            Order::Bshd => ([s * row, head, row, 1], step),
            Order::Sbhd => ([row, head, b * row, 1], step),
            Order::Bhsd => match interleave {
                Interleave::Parts => ([n * h * s * d, s * d, d, 1], h * s * d),
                Interleave::Heads => ([n * h * s * d, n * s * d, d, 1], s * d),
            },
        };
        std::array::from_fn(|i| Part {
            tensor: Tensor { dims, strides, dtype, storage: Storage::Dense },
            offset: i as i64 * step,
        })
    }

    /// A varlen tensor (tokens, heads, head dim): rows of `b` sequences one after another, each of at most `s_max`.
    #[must_use]
    pub const fn thd(b: i64, h: i64, s_max: i64, d: i64, tokens: i64, dtype: DType) -> Tensor {
        Tensor {
            dims: [b, h, s_max, d],
            strides: [s_max * h * d, d, h * d, 1],
            dtype,
            storage: Storage::Varlen { tokens },
        }
    }

    /// Paged rows with pages laid out as (page, row, head, head dim).
    #[must_use]
    pub const fn paged_nhd(b: i64, h: i64, s_max: i64, d: i64, pages: i64, page_size: i64, dtype: DType) -> Tensor {
        Tensor {
            dims: [b, h, s_max, d],
            strides: [page_size * h * d, d, h * d, 1],
            dtype,
            storage: Storage::Paged { pages, page_size },
        }
    }

    /// Paged rows with pages laid out as (page, head, row, head dim).
    #[must_use]
    pub const fn paged_hnd(b: i64, h: i64, s_max: i64, d: i64, pages: i64, page_size: i64, dtype: DType) -> Tensor {
        Tensor {
            dims: [b, h, s_max, d],
            strides: [h * page_size * d, page_size * d, d, 1],
            dtype,
            storage: Storage::Paged { pages, page_size },
        }
    }

    /// Number of sequences.
    #[must_use]
    pub const fn batch(&self) -> i64 {
        self.dims[0]
    }

    /// Number of heads.
    #[must_use]
    pub const fn heads(&self) -> i64 {
        self.dims[1]
    }

    /// Rows per sequence; the largest number that a varlen or paged sequence may have.
    #[must_use]
    pub const fn seq(&self) -> i64 {
        self.dims[2]
    }

    /// Length of one row of one head.
    #[must_use]
    pub const fn head_dim(&self) -> i64 {
        self.dims[3]
    }

    /// The extents that strides step over in memory: the dims of a dense tensor, the token capacity of a varlen one
    /// (with 1 for the batch), the pages and rows of a pool.
    #[must_use]
    pub const fn extents(&self) -> [i64; 4] {
        match self.storage {
            Storage::Dense => self.dims,
            Storage::Varlen { tokens } => [1, self.dims[1], tokens, self.dims[3]],
            Storage::Paged { pages, page_size } => [pages, self.dims[1], page_size, self.dims[3]],
        }
    }

    /// Elements from the first to one past the last that this tensor can touch; `None` if that overflows.
    ///
    /// A varlen tensor spans its token capacity, a paged one its pool.
    #[must_use]
    pub fn span(&self) -> Option<i64> {
        self.extents()
            .iter()
            .zip(self.strides)
            .try_fold(1_i64, |span, (&n, stride)| n.checked_sub(1)?.checked_mul(stride)?.checked_add(span))
    }

    /// Bytes of [`Tensor::span`]; `None` when that overflows.
    #[must_use]
    pub fn bytes(&self) -> Option<i64> {
        self.span()?.checked_mul(self.dtype.size() as i64)
    }

    /// The memory order in which this tensor is contiguous, if it is dense and contiguous.
    #[must_use]
    pub fn order(&self) -> Option<Order> {
        (self.storage == Storage::Dense)
            .then(|| Order::ALL.into_iter().find(|o| o.checked_strides(self.dims) == Some(self.strides)))
            .flatten()
    }

    /// Whether it is a pool of pages.
    #[must_use]
    pub const fn is_paged(&self) -> bool {
        matches!(self.storage, Storage::Paged { .. })
    }

    /// Entries in a row of the page table: the pages of one sequence of the greatest length. `None` if it is not paged.
    #[must_use]
    pub const fn pages_per_sequence(&self) -> Option<i64> {
        match self.storage {
            Storage::Paged { page_size, .. } if page_size > 0 && self.dims[2] > 0 => {
                Some((self.dims[2] - 1) / page_size + 1)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Offset of element (b, h, s, d) in a buffer with these named axes, outermost first.
    fn offset_of(axes: &[(char, i64)], at: &dyn Fn(char) -> i64) -> i64 {
        axes.iter().fold(0, |acc, &(name, n)| acc * n + at(name))
    }

    proptest! {
        #[test]
        fn s1_9_strides_of_every_order_address_the_element_that_the_axes_name(
            b in 1_i64..4, h in 1_i64..5, s in 1_i64..6, d in 1_i64..7,
        ) {
            for order in Order::ALL {
                let t = Tensor::dense(order, [b, h, s, d], DType::F16);
                let axes: Vec<(char, i64)> = order.name().chars()
                    .map(|c| (c, match c { 'b' => b, 'h' => h, 's' => s, _ => d })).collect();
                let (i, j, k, l) = (b - 1, h / 2, s / 2, d - 1);
                let want = offset_of(&axes, &|c| match c { 'b' => i, 'h' => j, 's' => k, _ => l });
                let [sb, sh, ss, sd] = t.strides;
                prop_assert_eq!(i * sb + j * sh + k * ss + l * sd, want);
                prop_assert_eq!(t.span(), Some(b * h * s * d));
                prop_assert_eq!(t.order().map(|o| o.strides(t.dims)), Some(t.strides));
            }
        }

        #[test]
        fn parts_of_an_interleaved_buffer_address_the_element_that_the_axes_name(
            b in 1_i64..4, h in 1_i64..5, s in 1_i64..6, d in 1_i64..7,
        ) {
            let dims = [b, h, s, d];
            let layouts = [
                (Order::Bshd, Interleave::Parts, "bs3hd"), (Order::Bshd, Interleave::Heads, "bsh3d"),
                (Order::Sbhd, Interleave::Parts, "sb3hd"), (Order::Sbhd, Interleave::Heads, "sbh3d"),
                (Order::Bhsd, Interleave::Parts, "b3hsd"), (Order::Bhsd, Interleave::Heads, "bh3sd"),
            ];
            for (order, interleave, name) in layouts {
                let axes: Vec<(char, i64)> = name.chars()
                    .map(|c| (c, match c { 'b' => b, 'h' => h, 's' => s, '3' => 3, _ => d })).collect();
                let (i, j, k, l) = (b - 1, h - 1, s / 2, d / 2);
                for (p, part) in Tensor::parts::<3>(order, interleave, dims, DType::BF16).iter().enumerate() {
                    let want = offset_of(&axes, &|c| match c { 'b' => i, 'h' => j, 's' => k, '3' => p as i64, _ => l });
                    let [sb, sh, ss, sd] = part.tensor.strides;
                    prop_assert_eq!(part.offset + i * sb + j * sh + k * ss + l * sd, want, "{}", name);
                }
            }
        }
    }

    #[test]
    fn methods_do_not_panic_for_unchecked_dims() {
        for dims in [[i64::MAX; 4], [i64::MIN, 2, -3, i64::MAX], [0; 4]] {
            for storage in
                [Storage::Dense, Storage::Varlen { tokens: i64::MAX }, Storage::Paged { pages: 3, page_size: 2 }]
            {
                let t = Tensor { dims, strides: [i64::MAX; 4], dtype: DType::F32, storage };
                let _ = (t.order(), t.span(), t.bytes(), t.pages_per_sequence());
            }
        }
        assert_eq!(Order::Bhsd.checked_strides([2, 3, 5, 7]), Some(Order::Bhsd.strides([2, 3, 5, 7])));
        assert_eq!(Tensor::paged_hnd(1, 1, i64::MAX, 1, 1, 2, DType::F16).pages_per_sequence(), Some(i64::MAX / 2 + 1));
    }

    #[test]
    fn span_of_an_overflowing_tensor_is_none() {
        let t = Tensor::bshd(2, 1, 3, 1, DType::F16);
        let t = Tensor { dims: [i64::MAX / 2, 1, 3, 1], strides: [i64::MAX / 2, 1, 1, 1], ..t };
        assert_eq!(t.span(), None);
    }
}
