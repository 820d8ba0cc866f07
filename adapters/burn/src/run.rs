//! A call, and its computation in both directions over any backend that computes.

use std::sync::Arc;

use burn_backend::TensorMetadata as _;
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_tensor::backend::Backend;
use qkvault::exec::Number;
use qkvault::graph::{DType, Role, Valid};

use crate::backend::Compute;
use crate::known::{Entry, Key, Scalar, Sizes, entry};
use crate::options::Plain;
use crate::tensor::{Lie, Order, dtype, long};
use crate::{Error, Sequences};

/// Places of a call's float tensors, those that may get a gradient.
pub(crate) const Q: usize = 0;
pub(crate) const K: usize = 1;
pub(crate) const V: usize = 2;
pub(crate) const BIAS: usize = 3;
pub(crate) const SLOPES: usize = 4;
pub(crate) const SINK: usize = 5;
pub(crate) const PLACES: usize = 6;

const NAMES: [&str; PLACES] = ["q", "k", "v", "bias", "alibi_slopes", "sink"];

/// The tensors of a call by their place, as burn's backend has them.
pub(crate) type Floats<B> = [Option<FloatTensor<B>>; PLACES];

/// One attention over tensors of a backend.
pub struct Call<B: Backend> {
    pub(crate) plain: Plain,
    pub(crate) floats: Floats<B>,
    pub(crate) mask: Option<IntTensor<B>>,
    pub(crate) sequences: Option<Arc<Sequences>>,
}

/// An output of a computation.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) role: Role,
    pub(crate) dims: Vec<usize>,
    /// How it lies, where a backend has strides.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "tensors on CPUs have no gaps"))]
    pub(crate) lie: Lie,
    pub(crate) dtype: DType,
}

/// A computation: a description, tensors by role, numbers.
pub(crate) struct Run<'a, B: Backend> {
    pub(crate) entry: &'a Entry,
    pub(crate) plain: &'a Plain,
    pub(crate) inputs: Vec<(Role, FloatTensor<B>)>,
    pub(crate) mask: Option<(Role, IntTensor<B>)>,
    pub(crate) sequences: Option<&'a Sequences>,
    pub(crate) outputs: Vec<Out>,
}

impl<B: Backend> Run<'_, B> {
    /// The value of a scalar.
    pub(crate) fn number(&self, scalar: Scalar) -> Number {
        Number::F32(match scalar {
            Scalar::Scale => self.plain.scale.unwrap_or_else(|| self.entry.valid.default_scale()),
            Scalar::Softcap => self.plain.softcap.unwrap_or(f32::NAN),
        })
    }
}

/// A forward that was computed, with what its backward reads.
pub(crate) struct Forward<B: Backend> {
    call: Call<B>,
    key: Key,
    pub(crate) o: FloatTensor<B>,
    stats: Option<FloatTensor<B>>,
}

impl<B: Backend> std::fmt::Debug for Forward<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forward").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<B: Compute> Forward<B> {
    /// The computation of the backward.
    fn back<'a>(&'a self, entry: &'a Entry, d_o: FloatTensor<B>) -> Result<Run<'a, B>, Error> {
        let stats = self.stats.clone().ok_or_else(|| Error::Device("the forward kept no statistics".to_owned()))?;
        let d_o = B::ordered(d_o, self.key.q.order());
        let mut outputs = Vec::new();
        for &(role, place, dtype) in &entry.gradients {
            let like = float(&self.call, place)?;
            let dims = like.shape().to_vec();
            let order = if place <= V { B::lie(like).order() } else { Order::HeadsOutside };
            outputs.push(Out { role, lie: Lie::made(&dims, order), dims, dtype });
        }
        let more = vec![(Role::O, self.o.clone()), (Role::Stats, stats), (Role::DO, d_o)];
        run(&self.call, entry, more, outputs)
    }

    /// What a function makes of the computations of the forward and of the backward.
    #[cfg(feature = "cpu")]
    pub(crate) fn each_run<T>(
        &self,
        tracked: [bool; PLACES],
        d_o: FloatTensor<B>,
        make: impl Fn(&Run<'_, B>) -> Result<T, Error>,
    ) -> Result<[T; 2], Error> {
        let (front, back) = (entry(&self.key)?, entry(&Key { backward: Some(tracked), ..self.key })?);
        let first = make(&run(&self.call, &front, Vec::new(), Vec::new())?)?;
        Ok([first, make(&self.back(&back, d_o)?)?])
    }
}

/// Computes the output, with statistics for a backward of these tensors.
pub(crate) fn forward<B: Compute>(mut call: Call<B>, tracked: Option<[bool; PLACES]>) -> Result<Forward<B>, Error> {
    let key = settle(&mut call, tracked.is_some())?;
    if tracked.is_some() {
        // What refuses a backward is told here: burn's backward returns no errors.
        let backward = entry(&Key { backward: tracked, ..key })?;
        B::prepare(&backward, &call.plain, float(&call, Q)?)?;
    }
    let entry = entry(&key)?;
    let q = float(&call, Q)?.shape().to_vec();
    let mut dims = q.clone();
    if let Some(last) = dims.last_mut() {
        *last = float(&call, V)?.shape().to_vec().last().copied().unwrap_or_default();
    }
    let order = key.q.order();
    let mut outputs = vec![Out { role: Role::O, lie: Lie::made(&dims, order), dims, dtype: key.dtype }];
    if key.stats {
        let dims = q[..q.len() - 1].to_vec();
        outputs.push(Out { role: Role::Stats, lie: Lie::contiguous(&dims), dims, dtype: DType::F32 });
    }
    let mut made = B::compute(run(&call, &entry, Vec::new(), outputs)?)?.into_iter();
    let o = made.next().ok_or_else(|| Error::Device("the computation has no output".to_owned()))?;
    Ok(Forward { stats: made.next(), call, key, o })
}

/// Every gradient of a forward that was computed, in the types and shapes of what they are of.
pub(crate) fn backward<B: Compute>(
    of: &Forward<B>,
    d_o: FloatTensor<B>,
    tracked: [bool; PLACES],
) -> Result<Floats<B>, Error> {
    let entry = entry(&Key { backward: Some(tracked), ..of.key })?;
    let made = B::compute(of.back(&entry, d_o)?)?;
    let mut gradients: Floats<B> = Default::default();
    for (gradient, (_, place, _)) in made.into_iter().zip(&entry.gradients) {
        let like = float(&of.call, *place)?.dtype();
        // Gradients of expressions may be wider than what they are of.
        let same = gradient.dtype() == like;
        gradients[*place] = Some(if same { gradient } else { B::float_cast(gradient, like.into()) });
    }
    Ok(gradients)
}

/// The descriptions of a call, and of a backward of these tensors.
pub(crate) fn describe<B: Compute>(mut call: Call<B>, tracked: Option<[bool; PLACES]>) -> Result<Vec<Valid>, Error> {
    let key = settle(&mut call, tracked.is_some())?;
    let mut all = vec![entry(&key)?.valid.clone()];
    if tracked.is_some() {
        all.push(entry(&Key { backward: tracked, ..key })?.valid.clone());
    }
    Ok(all)
}

fn run<'a, B: Compute>(
    call: &'a Call<B>,
    entry: &'a Entry,
    more: Vec<(Role, FloatTensor<B>)>,
    outputs: Vec<Out>,
) -> Result<Run<'a, B>, Error> {
    let mut inputs = more;
    for (place, role) in [(Q, Role::Q), (K, Role::K), (V, Role::V)] {
        inputs.push((role, float(call, place)?.clone()));
    }
    for &(role, place) in &entry.reads {
        inputs.push((role, float(call, place)?.clone()));
    }
    inputs.extend(call.floats[SINK].clone().map(|sink| (Role::Sink, sink)));
    let mask = entry.mask.zip(call.mask.clone());
    Ok(Run { entry, plain: &call.plain, inputs, mask, sequences: call.sequences.as_deref(), outputs })
}

fn float<B: Backend>(call: &Call<B>, place: usize) -> Result<&FloatTensor<B>, Error> {
    call.floats[place].as_ref().ok_or_else(|| Error::Tensor(format!("{} is missing", NAMES[place])))
}

/// Fails if tensors of a call cannot be computed with, whatever their attention is.
fn check<B: Compute>(call: &Call<B>) -> Result<(), Error> {
    let (first, device) = (float(call, Q)?.dtype(), B::float_device(float(call, Q)?));
    let floats = NAMES.iter().zip(&call.floats).filter_map(|(name, own)| Some((*name, own.as_ref()?)));
    let floats = floats.map(|(name, own)| (name, B::float_device(own), own.shape().to_vec()));
    let mask = call.mask.iter().map(|own| ("mask", B::int_device(own), own.shape().to_vec()));
    for (name, own, dims) in floats.chain(mask) {
        if own != device {
            let text = format!("{name} is on {own:?} and q on {device:?}; move all tensors to one device (to_device)");
            return Err(Error::Tensor(text));
        }
        if let Some(at) = dims.iter().position(|n| *n == 0) {
            return Err(Error::Tensor(format!("{name} has dims {dims:?}: dim {at} is empty, and none may be")));
        }
    }
    for place in [Q, K, V] {
        let (name, own) = (NAMES[place], float(call, place)?.dtype());
        if !matches!(dtype(own), Some(DType::F16 | DType::BF16)) {
            let text =
                format!("{name} is {own:?}, and kernels compute F16 and BF16: convert it, tensor.cast(DType::BF16)");
            return Err(Error::Tensor(text));
        }
        if own != first {
            return Err(Error::Tensor(format!("{name} is {own:?} and q is {first:?}; give both one type (cast)")));
        }
    }
    if let Some(cap) = call.plain.softcap
        && !(cap > 0.0 && cap.is_finite())
    {
        return Err(Error::Tensor(format!("softcap is {cap}; give a positive number")));
    }
    Ok(())
}

/// Checks a call, and lets its tensors lie as kernels read them.
fn settle<B: Compute>(call: &mut Call<B>, stats: bool) -> Result<Key, Error> {
    check(call)?;
    let first = float(call, Q)?.dtype();
    for place in [Q, K, V] {
        call.floats[place] = call.floats[place].take().map(B::readable);
    }
    for place in [BIAS, SLOPES, SINK] {
        call.floats[place] = call.floats[place].take().map(|own| B::ordered(own, Order::HeadsOutside));
    }
    call.mask = call.mask.take().map(B::whole);
    let lie = |place| float(call, place).map(B::lie);
    let (q, k, v) = (lie(Q)?, lie(K)?, lie(V)?);
    let heads = usize::try_from(q.dims[1]).unwrap_or_default();
    let read = |place: usize| -> Result<Option<(DType, [i64; 4])>, Error> {
        let Some(tensor) = &call.floats[place] else { return Ok(None) };
        let (own, given) = (tensor.dtype(), tensor.shape().to_vec());
        let Some(kind) = dtype(own) else {
            return Err(Error::Tensor(format!("{} is {own:?}; give F32, F16 or BF16 (cast)", NAMES[place])));
        };
        let mut dims = [1; 4];
        match place {
            BIAS => dims.iter_mut().zip(&given).for_each(|(dim, n)| *dim = long(*n)),
            _ if given == [heads] => dims[1] = long(heads),
            _ => return Err(Error::Tensor(format!("{} has dims {given:?}; q has {heads} heads", NAMES[place]))),
        }
        Ok(Some((kind, dims)))
    };
    let (bias, slopes, sink) = (read(BIAS)?, read(SLOPES)?, read(SINK)?);
    if let Some((kind, _)) = sink
        && kind != DType::F32
    {
        return Err(Error::Tensor(format!("sink is {kind}; give F32 (cast)")));
    }
    let mask = call.mask.as_ref().map(|mask| {
        let mut dims = [1; 4];
        dims.iter_mut().zip(mask.shape().to_vec()).for_each(|(dim, n)| *dim = long(n));
        dims
    });
    let sizes = match &call.sequences {
        None => Sizes::Dense,
        Some(sequences) => {
            sequences.check(q.dims[0], k.dims[0])?;
            let (queries, keys) = sequences.most();
            Sizes::Varlen { batch: sequences.batch(), queries, keys }
        }
    };
    let Plain { left, right, softcap, deterministic, .. } = call.plain;
    let dtype = dtype(first).ok_or_else(|| Error::Tensor(format!("{first:?} is not read")))?;
    Ok(Key {
        dtype,
        q,
        k,
        v,
        sizes,
        left,
        right,
        softcap: softcap.is_some(),
        bias,
        slopes,
        mask,
        sink: sink.is_some(),
        deterministic,
        stats,
        backward: None,
    })
}
