//! burn's tensors as those of a description: element types, extents, strides.

use burn_backend::DType;
use qkvault::graph;

use crate::Error;

/// Most dims of a tensor here.
pub(crate) const MOST: usize = 4;

/// The order in memory of a tensor whose dims are (batch, head, sequence, head dim), or (token, head, head dim).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// Heads of a row side by side, as after `swap_dims(1, 2)` of a projection's (batch, sequence, head, head dim).
    RowsOutside,
    /// Rows of a head side by side.
    HeadsOutside,
}

/// How a tensor lies in memory, as far as a description depends on it. Dims of lower ranks are followed by ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lie {
    pub(crate) rank: usize,
    pub(crate) dims: [i64; MOST],
    pub(crate) strides: [i64; MOST],
}

impl Lie {
    pub(crate) fn new(dims: &[usize], strides: &[usize]) -> Lie {
        let mut lie = Lie { rank: dims.len().min(MOST), dims: [1; MOST], strides: [1; MOST] };
        for (at, (n, stride)) in dims.iter().zip(strides).enumerate().take(MOST) {
            (lie.dims[at], lie.strides[at]) = (long(*n), long(*stride));
        }
        lie
    }

    /// A tensor of these dims without gaps, the last innermost.
    pub(crate) fn contiguous(dims: &[usize]) -> Lie {
        let mut strides = vec![1; dims.len()];
        for at in (1..dims.len()).rev() {
            strides[at - 1] = strides[at] * dims[at].max(1);
        }
        Lie::new(dims, &strides)
    }

    /// The order in memory. Tensors of three dims have rows outside.
    pub(crate) const fn order(&self) -> Order {
        match self.rank == 4 && self.strides[1] >= self.strides[2] {
            true => Order::HeadsOutside,
            false => Order::RowsOutside,
        }
    }

    /// New memory without gaps for these dims, in an order.
    pub(crate) fn made(dims: &[usize], order: Order) -> Lie {
        match (dims, order) {
            (&[b, h, s, d], Order::RowsOutside) => Lie::new(&[b, h, s, d], &[s * h * d, d, h * d, 1]),
            _ => Lie::contiguous(dims),
        }
    }

    /// (batch, head, sequence, head dim) as a tensor of a description.
    pub(crate) const fn bhsd(&self, dtype: graph::DType) -> graph::Tensor {
        graph::Tensor { dims: self.dims, strides: self.strides, dtype, storage: graph::Storage::Dense }
    }

    /// (token, head, head dim) as sequences of at most `most` rows, one after another.
    pub(crate) const fn varlen(&self, batch: i64, most: i64, dtype: graph::DType) -> graph::Tensor {
        let ([tokens, h, d, _], [st, sh, sd, _]) = (self.dims, self.strides);
        graph::Tensor {
            dims: [batch, h, most, d],
            strides: [st.saturating_mul(most), sh, st, sd],
            dtype,
            storage: graph::Storage::Varlen { tokens },
        }
    }

    /// Whether both name the same memory for every index.
    #[cfg(any(feature = "cuda", feature = "cpu"))]
    pub(crate) fn is_same(&self, other: &Lie) -> bool {
        let mut each = self.dims.iter().zip(self.strides.iter().zip(&other.strides));
        self.dims == other.dims && each.all(|(n, (own, other))| *n == 1 || own == other)
    }

    /// Elements from the first to one past the last.
    #[cfg(feature = "cuda")]
    pub(crate) fn span(&self) -> i64 {
        self.dims.iter().zip(self.strides).map(|(n, stride)| (n - 1) * stride).sum::<i64>() + 1
    }

    /// Whether kernels can read elements of this size where they lie: the last dim innermost, all else at whole 16
    /// bytes and nothing twice.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_readable(&self, size: i64) -> bool {
        let (last, outer) = (self.rank - 1, 0..self.rank - 1);
        let innermost = self.strides[last] == 1 || self.dims[last] == 1;
        let apart = |at: usize| self.dims[at] == 1 || self.strides[at] > 0 && (self.strides[at] * size) % 16 == 0;
        innermost && outer.into_iter().all(apart)
    }
}

pub(crate) fn long(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The element type of a tensor.
pub(crate) const fn dtype(of: DType) -> Option<graph::DType> {
    Some(match of {
        DType::F16 => graph::DType::F16,
        DType::BF16 => graph::DType::BF16,
        DType::F32 => graph::DType::F32,
        DType::I32 => graph::DType::I32,
        _ => return None,
    })
}

/// burn's element type of an output.
pub(crate) fn burn_dtype(of: graph::DType) -> Result<DType, Error> {
    Ok(match of {
        graph::DType::F16 => DType::F16,
        graph::DType::BF16 => DType::BF16,
        graph::DType::F32 => DType::F32,
        other => return Err(Error::Tensor(format!("burn has no tensors of {other} for an output"))),
    })
}
