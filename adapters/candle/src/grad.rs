//! The attention as an operation of candle's autograd.
//!
//! An operation of candle has three inputs and one output. What a backward needs besides is kept in the operation:
//! the log-sum-exp, tensors of modifications, lengths. Where more than three tensors get gradients (a bias, slopes, a
//! sink), two inputs are joined in a *link*: a tensor of one element that stands for both. The backward of the
//! attention computes every gradient at once, and leaves those of linked tensors for the link, whose backward candle
//! runs next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Storage, Tensor};
use qkvault::graph::Role;
use smallvec::smallvec;

use crate::known::Key;
use crate::run::{Made, Out, Run};
use crate::tensor::{Lie, dtype, is_readable};
use crate::{Error, Options, Sequences};

/// A gradient that the attention's backward leaves for a link, for each thread that goes back.
type Place = Arc<Mutex<HashMap<ThreadId, Tensor>>>;

/// What a backward needs of its forward.
pub(crate) struct Saved {
    pub(crate) options: Options,
    pub(crate) key: Key,
    /// Q, K and V as the forward read them.
    pub(crate) tensors: [Tensor; 3],
    pub(crate) sequences: Option<Arc<Sequences>>,
    /// The log-sum-exp, or why there is none.
    pub(crate) stats: std::result::Result<Tensor, String>,
}

/// An input of the operation besides Q, K and V that gets a gradient.
struct Extra {
    tensor: Tensor,
    role: Role,
}

/// Makes the output of an attention a tensor with a backward, if an input is tracked.
pub(crate) fn attach((storage, shape): Made, saved: Saved) -> Result<Tensor> {
    let extras = extras(&saved, &shape)?;
    let [q, k, v] = saved.tensors.clone();
    if !(q.track_op() || k.track_op() || v.track_op() || !extras.is_empty()) {
        return Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false));
    }
    let made = Mutex::new(Some(storage));
    if extras.is_empty() {
        let gives = [Gives::One(Role::DQ), Gives::One(Role::DK), Gives::One(Role::DV)];
        return q.apply_op3(&k, &v, Attend { saved, made, shape, gives, left: Vec::new() });
    }
    let mut left = Vec::new();
    let keys = link(&k, Role::DK, &v, Role::DV, &mut left)?;
    let mut rest = extras.into_iter();
    let Some(first) = rest.next() else { return Err(Error::Gradient("there is no extra input".to_owned()).into()) };
    let (mut last, mut gives) = (first.tensor, Gives::One(first.role));
    for extra in rest {
        last = match gives {
            Gives::One(role) => link(&last, role, &extra.tensor, extra.role, &mut left)?,
            Gives::Link => chain(&last, &extra.tensor, extra.role, &mut left)?,
        };
        gives = Gives::Link;
    }
    let gives = [Gives::One(Role::DQ), Gives::Link, gives];
    q.apply_op3(&keys, &last, Attend { saved, made, shape, gives, left })
}

/// The tensors of the options that get gradients, of an output of this shape.
fn extras(saved: &Saved, shape: &Shape) -> std::result::Result<Vec<Extra>, Error> {
    let options = &saved.options;
    let mut extras = Vec::new();
    let sink = options.sink.iter().filter(|sink| sink.track_op());
    extras.extend(sink.map(|sink| Extra { tensor: sink.clone(), role: Role::DSink }));
    if options.tensors.iter().all(|(_, tensor)| !tensor.track_op()) {
        return Ok(extras);
    }
    // Without statistics the backward is an error, whatever it is of.
    let d_o = saved.stats.is_ok().then(|| Lie::contiguous(shape.dims()));
    let entry = options.known.entry(&Key { d_o, ..saved.key }, options)?;
    for read in &entry.tensors {
        let (role, name, tensor) = (read.role, &read.name, read.of(options)?);
        if !tensor.track_op() {
            continue;
        }
        let gradient = entry.valid.score_tensors().find(|own| own.role == role).and_then(|own| own.gradient);
        let lacking = || {
            Error::Gradient(format!(
                "{name} is tracked, and the expression asks for no gradient of it: describe it with spec(), or \
                 detach() it"
            ))
        };
        let role = if d_o.is_some() { gradient.ok_or_else(lacking)? } else { role };
        extras.push(Extra { tensor: tensor.clone(), role });
    }
    Ok(extras)
}

/// What an input's gradient is.
#[derive(Clone, Copy, Debug)]
enum Gives {
    /// That of one tensor.
    One(Role),
    /// Nothing of its own: the input is a link.
    Link,
}

/// The attention, whose output is computed before candle asks for it.
struct Attend {
    saved: Saved,
    made: Mutex<Option<Storage>>,
    shape: Shape,
    gives: [Gives; 3],
    /// The gradients that links wait for.
    left: Vec<(Role, Place)>,
}

impl Attend {
    fn take(&self) -> Result<Storage> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        made.ok_or_else(|| Error::Gradient("the output of an attention was asked for twice".to_owned()).into())
    }
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "qkvault-attention"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        match self.take()? {
            Storage::Cpu(storage) => Ok((storage, self.shape.clone())),
            _ => Err(Error::Tensor("the output is not on the CPU".to_owned()).into()),
        }
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        match self.take()? {
            Storage::Cuda(storage) => Ok((storage, self.shape.clone())),
            _ => Err(Error::Tensor("the output is not on the GPU".to_owned()).into()),
        }
    }

    fn bwd(
        &self,
        first: &Tensor,
        second: &Tensor,
        third: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradients = backward(&self.saved, o, d_o)?;
        let find = |role: Role| gradients.iter().find(|(own, _)| *own == role).map(|(_, tensor)| tensor.clone());
        for (role, place) in &self.left {
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            place.extend(find(*role).map(|gradient| (thread::current().id(), gradient)));
        }
        let give = |input: &Tensor, gives: Gives| match gives {
            _ if !input.track_op() => Ok(None),
            Gives::One(role) => Ok(find(role)),
            Gives::Link => input.zeros_like().map(Some),
        };
        let [a, b, c] = self.gives;
        Ok((give(first, a)?, give(second, b)?, give(third, c)?))
    }
}

/// Every gradient of a forward that was computed.
fn backward(saved: &Saved, o: &Tensor, d_o: &Tensor) -> Result<Vec<(Role, Tensor)>> {
    let Saved { options, key, tensors: [q, k, v], sequences, stats } = saved;
    let stats = stats.as_ref().map_err(|why| Error::Gradient(why.clone()))?;
    let contiguous;
    let d_o = if is_readable(d_o) {
        d_o
    } else {
        contiguous = d_o.contiguous()?;
        &contiguous
    };
    let lie = Lie::of("the gradient of the output", d_o, d_o.rank(), "the output's dims")?;
    let entry = options.known.entry(&Key { d_o: Some(lie), ..*key }, options)?;
    let facts = entry.valid.operand_facts();
    let mut outputs = Vec::new();
    for fact in facts.iter().filter(|fact| fact.output) {
        let named = || options.tensors.iter().find(|(own, _)| Some(&**own) == fact.name).map(|(_, tensor)| tensor);
        let of = match fact.role {
            Role::DQ => Some(q),
            Role::DK => Some(k),
            Role::DV => Some(v),
            Role::DSink => options.sink.as_ref(),
            Role::DScoreTensor(_) => named(),
            _ => None,
        };
        let of = of.ok_or_else(|| Error::Gradient(format!("the gradient {} has no place in a call", fact.role)))?;
        outputs.push((of, Out { role: fact.role, shape: of.shape().clone(), dtype: fact.dtype }));
    }
    let (of, outputs): (Vec<&Tensor>, Vec<Out>) = outputs.into_iter().unzip();
    let inputs =
        smallvec![(Role::Q, q), (Role::K, k), (Role::V, v), (Role::O, o), (Role::Stats, stats), (Role::DO, d_o)];
    let run = Run::new(&entry, options, inputs, sequences.as_deref(), outputs)?;
    let made = run.compute(q.device())?;
    let finish = |((storage, shape), (out, of)): (Made, (&Out, &&Tensor))| {
        let gradient = Tensor::from_storage(storage, shape, BackpropOp::none(), false);
        // Gradients of expressions may be wider than what they are of.
        let same = dtype(of) == Some(out.dtype);
        Ok((out.role, if same { gradient } else { gradient.to_dtype(of.dtype())? }))
    };
    made.into_iter().zip(run.outputs.iter().zip(&of)).map(finish).collect()
}

/// One element that stands for two tensors.
struct Link {
    left: Gives,
    places: [Place; 2],
}

/// Links two tensors, whose gradients the attention computes.
fn link(a: &Tensor, of_a: Role, b: &Tensor, of_b: Role, left: &mut Vec<(Role, Place)>) -> Result<Tensor> {
    let places = [Place::default(), Place::default()];
    left.push((of_a, places[0].clone()));
    left.push((of_b, places[1].clone()));
    a.apply_op2(b, Link { left: Gives::One(of_a), places })
}

/// Links a link with one more tensor.
fn chain(a: &Tensor, b: &Tensor, of_b: Role, left: &mut Vec<(Role, Place)>) -> Result<Tensor> {
    let places = [Place::default(), Place::default()];
    left.push((of_b, places[1].clone()));
    a.apply_op2(b, Link { left: Gives::Link, places })
}

impl CustomOp2 for Link {
    fn name(&self) -> &'static str {
        "qkvault-link"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(1)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, _: &Layout, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let device = a.device.clone();
        let zero = device.alloc_zeros::<f32>(1)?;
        Ok((CudaStorage::wrap_cuda_slice(zero, device), Shape::from(1)))
    }

    fn bwd(&self, a: &Tensor, b: &Tensor, _: &Tensor, _: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let take = |place: &Place| place.lock().unwrap_or_else(PoisonError::into_inner).remove(&thread::current().id());
        let first = match self.left {
            Gives::One(_) => take(&self.places[0]).filter(|_| a.track_op()),
            Gives::Link if a.track_op() => Some(a.zeros_like()?),
            Gives::Link => None,
        };
        Ok((first, take(&self.places[1]).filter(|_| b.track_op())))
    }
}
