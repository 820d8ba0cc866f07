//! The backends whose tensors have an attention.

use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_tensor::backend::Backend;
use qkvault::graph::Valid;

use crate::Error;
use crate::known::Entry;
use crate::options::Plain;
use crate::run::{Call, Run};
use crate::tensor::{Lie, Order};

/// A backend that has an attention: burn's CUDA backend without fusion (feature `cuda`), Flex (feature `cpu`), and
/// `Autodiff` over either.
pub trait AttentionBackend: Backend {
    /// Computes a call.
    ///
    /// # Errors
    ///
    /// As [`attention`](crate::attention).
    #[doc(hidden)]
    fn attend(call: Call<Self>) -> Result<FloatTensor<Self>, Error>;

    /// The descriptions of a call, and of its backward where a tensor is tracked.
    ///
    /// # Errors
    ///
    /// As [`descriptions`](crate::descriptions).
    #[doc(hidden)]
    fn describe(call: Call<Self>) -> Result<Vec<Valid>, Error>;
}

/// A backend that computes a description over its own tensors.
pub(crate) trait Compute: Backend {
    /// How a tensor lies.
    fn lie(tensor: &FloatTensor<Self>) -> Lie;

    /// A tensor as kernels read it: itself, or a copy without gaps.
    fn readable(tensor: FloatTensor<Self>) -> FloatTensor<Self>;

    /// A tensor without gaps in an order: itself, or a copy.
    fn ordered(tensor: FloatTensor<Self>, order: Order) -> FloatTensor<Self>;

    /// As [`Compute::ordered`], of integers, the last dim innermost.
    fn whole(tensor: IntTensor<Self>) -> IntTensor<Self>;

    /// Fails if a description cannot run beside a tensor, before it is needed.
    fn prepare(entry: &Entry, plain: &Plain, beside: &FloatTensor<Self>) -> Result<(), Error>;

    /// Computes the outputs of a run, in their order.
    fn compute(run: Run<'_, Self>) -> Result<Vec<FloatTensor<Self>>, Error>;
}
