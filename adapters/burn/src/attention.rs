//! The functions of this crate: dense and varlen attention over burn's tensors.

use std::sync::Arc;

use burn_tensor::backend::Backend;
use burn_tensor::{Tensor, TensorPrimitive};
use qkvault::graph::Valid;

use crate::run::Call;
use crate::{AttentionBackend, Error, Options, Sequences};

/// Attention of `q` over `k` and `v`, which may have fewer heads: all are (batch, head, sequence, head dim), as burn's
/// own attention has them, of `f16` or `bf16`. The output has q's dims with v's head dim, and lies in q's order.
///
/// Views are not copied: after `swap_dims(1, 2)` of a projection, heads of a row lie side by side, and so they do in
/// the output. Tensors of `Autodiff` that are tracked get their gradients.
///
/// ```
/// use burn_autodiff::Autodiff;
/// use burn_flex::Flex;
/// use burn_qkvault::{Options, attention};
/// use burn_tensor::{DType, Distribution, Tensor};
///
/// type B = Autodiff<Flex>; // or Autodiff<burn_qkvault::Cuda>
/// let w = Tensor::<B, 4>::random([1, 4, 6, 16], Distribution::Default, &Default::default()).require_grad();
/// let q = w.clone().cast(DType::BF16);
/// let o = attention(q.clone(), q.clone(), q, &Options::new().causal(true).softcap(20.0))?;
/// let gradients = o.cast(DType::F32).powi_scalar(2).sum().backward();
/// assert_eq!(w.grad(&gradients).expect("it is tracked").dims(), [1, 4, 6, 16]);
/// # Ok::<(), burn_qkvault::Error>(())
/// ```
///
/// # Errors
///
/// Tensors that do not fit, an attention that cannot run here, with the reasons, a plan that is missing, a launch that
/// was refused. If a tensor is tracked, the reasons against the backward are told here too.
///
/// # Panics
///
/// burn's backward returns no errors: a launch of the backward that the driver refuses is a panic there.
pub fn attention<B: AttentionBackend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    options: &Options<B>,
) -> Result<Tensor<B, 4>, Error> {
    let call = call([q, k, v], None, options);
    Ok(Tensor::from_primitive(TensorPrimitive::Float(B::attend(call)?)))
}

/// Attention of sequences of different lengths, one after another: `q`, `k`, `v` and the output are (token, head, head
/// dim). Tokens that belong to no sequence are undefined in the output.
///
/// A plan is for one number of sequences and of tokens: pad both to few sizes, and give [`Sequences::room`].
///
/// ```
/// use burn_flex::Flex;
/// use burn_qkvault::{Options, Sequences, attention_varlen};
/// use burn_tensor::{DType, Tensor};
///
/// // Three sequences of 2, 1 and 3 tokens.
/// let q = Tensor::<Flex, 3>::ones([6, 4, 16], &Default::default()).cast(DType::F16);
/// let lengths = Sequences::new(&[2, 1, 3], &[2, 1, 3])?.into();
/// let o = attention_varlen(q.clone(), q.clone(), q, &lengths, &Options::new().causal(true))?;
/// assert_eq!(o.dims(), [6, 4, 16]);
/// # Ok::<(), burn_qkvault::Error>(())
/// ```
///
/// # Errors
///
/// As [`attention`]; sequences that are not those of the tensors.
///
/// # Panics
///
/// As [`attention`].
pub fn attention_varlen<B: AttentionBackend>(
    q: Tensor<B, 3>,
    k: Tensor<B, 3>,
    v: Tensor<B, 3>,
    sequences: &Arc<Sequences>,
    options: &Options<B>,
) -> Result<Tensor<B, 3>, Error> {
    let call = call([q, k, v], Some(sequences), options);
    Ok(Tensor::from_primitive(TensorPrimitive::Float(B::attend(call)?)))
}

/// What a call computes, to be compiled ahead (`RawRuntime::warm`), also where there is no GPU: tensors of Flex do, and
/// only their shapes, types and order in memory matter. Where a tensor of `Autodiff` is tracked, a forward that keeps
/// statistics, and its backward.
///
/// ```no_run
/// use burn_flex::Flex;
/// use burn_qkvault::{Options, descriptions, qkvault::Runtime};
/// use burn_tensor::{DType, Tensor};
///
/// let q = Tensor::<Flex, 4>::zeros([1, 32, 4096, 128], (&Default::default(), DType::BF16));
/// let runtime = Runtime::options().open_raw()?;
/// let target = runtime.compile_target("h200")?;
/// for attention in descriptions([q.clone(), q.clone(), q], None, &Options::new().causal(true))? {
///     runtime.warm(&attention, &target)?;
/// }
/// # Ok::<(), burn_qkvault::Error>(())
/// ```
///
/// # Errors
///
/// As [`attention`], of the description.
pub fn descriptions<B: AttentionBackend, const D: usize>(
    tensors: [Tensor<B, D>; 3],
    sequences: Option<&Arc<Sequences>>,
    options: &Options<B>,
) -> Result<Vec<Valid>, Error> {
    B::describe(call(tensors, sequences, options))
}

pub(crate) fn call<B: Backend, const D: usize>(
    [q, k, v]: [Tensor<B, D>; 3],
    sequences: Option<&Arc<Sequences>>,
    options: &Options<B>,
) -> Call<B> {
    let Options { plain, bias, slopes, sink, mask } = options.clone();
    let float = |own: Tensor<B, D>| Some(own.into_primitive().tensor());
    let one = |own: Option<Tensor<B, 1>>| own.map(|own| own.into_primitive().tensor());
    let bias = bias.map(|own| own.into_primitive().tensor());
    Call {
        plain,
        floats: [float(q), float(k), float(v), bias, one(slopes), one(sink)],
        mask: mask.map(Tensor::into_primitive),
        sequences: sequences.cloned(),
    }
}
