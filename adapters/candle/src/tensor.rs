//! candle's tensors as those of a description: element types, extents, strides.

use candle_core::{DType, Tensor};
use qkvault::graph;

use crate::Error;

/// Most dims of a tensor here.
pub(crate) const MOST: usize = 4;

/// How a tensor lies in memory, as far as a description depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lie {
    pub(crate) rank: usize,
    pub(crate) dims: [i64; MOST],
    pub(crate) strides: [i64; MOST],
}

impl Lie {
    /// How a tensor of this rank lies. `name` and `axes` are for the error.
    pub(crate) fn of(name: &str, tensor: &Tensor, rank: usize, axes: &str) -> Result<Lie, Error> {
        let (dims, strides) = (tensor.dims(), tensor.stride());
        if dims.len() != rank {
            return Err(Error::Tensor(format!("{name} has dims {dims:?}; give a tensor of {axes}")));
        }
        if let Some(at) = dims.iter().position(|n| *n == 0) {
            return Err(Error::Tensor(format!("{name} has dims {dims:?}: dim {at} is empty, and none may be")));
        }
        let mut lie = Lie { rank, dims: [1; MOST], strides: [1; MOST] };
        for at in 0..rank {
            (lie.dims[at], lie.strides[at]) = (long(dims[at]), long(strides[at]));
        }
        Ok(lie)
    }

    /// A tensor of these dims without gaps.
    pub(crate) fn contiguous(dims: &[usize]) -> Lie {
        let mut lie = Lie { rank: dims.len().min(MOST), dims: [1; MOST], strides: [1; MOST] };
        let mut step = 1;
        for (at, n) in dims.iter().enumerate().take(MOST).rev() {
            (lie.dims[at], lie.strides[at]) = (long(*n), step);
            step = step.saturating_mul(long(*n));
        }
        lie
    }

    /// (batch, sequence, head, head dim) as a tensor of a description.
    pub(crate) const fn bshd(&self, dtype: graph::DType) -> graph::Tensor {
        let ([b, s, h, d], [sb, ss, sh, sd]) = (self.dims, self.strides);
        graph::Tensor { dims: [b, h, s, d], strides: [sb, sh, ss, sd], dtype, storage: graph::Storage::Dense }
    }

    /// (batch, 1, head, head dim) as (token, head, head dim).
    pub(crate) const fn without_rows(&self) -> Lie {
        let ([b, _, h, d], [sb, _, sh, sd]) = (self.dims, self.strides);
        Lie { rank: 3, dims: [b, h, d, 1], strides: [sb, sh, sd, 1] }
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

    /// (page, row, head, head dim) as a pool of pages for sequences of at most `most` keys.
    pub(crate) const fn paged(&self, batch: i64, most: i64, dtype: graph::DType) -> graph::Tensor {
        let ([pages, page_size, h, d], [sp, sr, sh, sd]) = (self.dims, self.strides);
        graph::Tensor {
            dims: [batch, h, most, d],
            strides: [sp, sh, sr, sd],
            dtype,
            storage: graph::Storage::Paged { pages, page_size },
        }
    }
}

pub(crate) fn long(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The element type of a tensor. candle's `u32` is read as `i32`, which has the same bits where ids are small.
pub(crate) fn dtype(tensor: &Tensor) -> Option<graph::DType> {
    Some(match tensor.dtype() {
        DType::F16 => graph::DType::F16,
        DType::BF16 => graph::DType::BF16,
        DType::F32 => graph::DType::F32,
        DType::I32 | DType::U32 => graph::DType::I32,
        DType::I64 => graph::DType::I64,
        DType::U8 => graph::DType::U8,
        _ => return None,
    })
}

/// candle's element type of an output.
#[cfg(feature = "cuda")]
pub(crate) fn candle_dtype(dtype: graph::DType) -> Result<DType, Error> {
    Ok(match dtype {
        graph::DType::F16 => DType::F16,
        graph::DType::BF16 => DType::BF16,
        graph::DType::F32 => DType::F32,
        other => return Err(Error::Tensor(format!("candle has no tensors of {other} for an output"))),
    })
}

/// The element type that Q, K and V have in common.
pub(crate) fn half(tensors: [(&str, &Tensor); 3]) -> Result<graph::DType, Error> {
    let [(_, q), ..] = tensors;
    for (name, tensor) in tensors {
        if !matches!(tensor.dtype(), DType::F16 | DType::BF16) {
            let text =
                format!("{name} is {:?}, and cuDNN computes f16 and bf16: convert it with to_dtype", tensor.dtype());
            return Err(Error::Tensor(text));
        }
        if tensor.dtype() != q.dtype() {
            let text = format!("{name} is {:?} and q is {:?}; give both one type", tensor.dtype(), q.dtype());
            return Err(Error::Tensor(text));
        }
        same_device(name, tensor, q)?;
    }
    Ok(if q.dtype() == DType::F16 { graph::DType::F16 } else { graph::DType::BF16 })
}

/// Fails if a tensor is on another device than Q.
pub(crate) fn same_device(name: &str, tensor: &Tensor, q: &Tensor) -> Result<(), Error> {
    if tensor.device().same_device(q.device()) {
        return Ok(());
    }
    let (here, there) = (tensor.device().location(), q.device().location());
    Err(Error::Tensor(format!("{name} is on {here:?} and q on {there:?}; move all tensors to one device")))
}

/// Elements from the first to one past the last.
pub(crate) fn span(tensor: &Tensor) -> usize {
    if tensor.elem_count() == 0 {
        return 0;
    }
    let last: usize = tensor.dims().iter().zip(tensor.stride()).map(|(n, stride)| (n - 1) * stride).sum();
    last + 1
}

/// Whether kernels can read a tensor where it lies: the last dim innermost, everything else at whole 16 bytes.
pub(crate) fn is_readable(tensor: &Tensor) -> bool {
    let size = tensor.dtype().size_in_bytes();
    let mut dims = tensor.dims().iter().zip(tensor.stride()).rev();
    let innermost = dims.next().is_some_and(|(n, stride)| *stride == 1 || *n == 1);
    let apart = dims.all(|(n, stride)| *n == 1 || (*stride > 0 && (stride * size).is_multiple_of(16)));
    innermost && apart && (tensor.layout().start_offset() * size).is_multiple_of(16)
}
