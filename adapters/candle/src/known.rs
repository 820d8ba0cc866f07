//! The descriptions that options have met, each made once and found by how its tensors lie.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use candle_core::Tensor;
use qkvault::RawReady;
use qkvault::graph::{DType, Role, Valid};

use crate::tensor::Lie;
use crate::{Error, Options, Sequences, describe};

/// Sequences of a call, as far as a description depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    /// Every sequence is whole.
    Dense,
    /// Sequences one after another: their number, most queries, most keys.
    Varlen { batch: i64, queries: i64, keys: i64 },
    /// Keys in pages: most keys of a sequence.
    Paged { keys: i64 },
    /// Keys in pages, and queries one sequence after another.
    Mixed { batch: i64, queries: i64, keys: i64 },
    /// Buffers with more room than their sequences fill.
    Within,
}

impl Shape {
    pub(crate) const fn is_paged(self) -> bool {
        matches!(self, Shape::Paged { .. } | Shape::Mixed { .. })
    }

    /// Whether queries are (token, head, head dim).
    pub(crate) const fn has_tokens(self) -> bool {
        matches!(self, Shape::Varlen { .. } | Shape::Mixed { .. })
    }
}

/// What a description depends on besides the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) dtype: DType,
    pub(crate) q: Lie,
    pub(crate) k: Lie,
    pub(crate) v: Lie,
    pub(crate) shape: Shape,
    /// Whether the forward puts out the log-sum-exp.
    pub(crate) stats: bool,
    /// Of a backward: how the gradient of the output lies.
    pub(crate) d_o: Option<Lie>,
}

/// The value of a scalar of a launch.
#[derive(Clone, Debug)]
pub(crate) enum Scalar {
    /// The softmax scale.
    Scale,
    /// The position of the first query (0) or the first key (1).
    Origin(usize),
    /// One of the options, by name.
    Named(String),
}

/// A tensor of the options that a description reads.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) role: Role,
    pub(crate) name: String,
    dtype: DType,
    dims: [i64; 4],
}

impl Read {
    /// The tensor, if it is what the description reads. Options may exchange it for another from call to call.
    pub(crate) fn of<'o>(&self, options: &'o Options) -> Result<&'o Tensor, Error> {
        let Read { role: _, name, dtype, dims } = self;
        let given = options.tensors.iter().find(|(own, _)| own == name);
        let (_, tensor) = given.ok_or_else(|| {
            Error::Tensor(format!("the expression reads the tensor {name}; give it with Options::tensor"))
        })?;
        fits(name, tensor, *dtype, *dims)?;
        Ok(tensor)
    }
}

/// A description with what a launch of it needs.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) valid: Valid,
    pub(crate) scalars: Vec<(Role, DType, Scalar)>,
    /// Tensors of the options, by name, with what the description reads of them.
    pub(crate) tensors: Vec<Read>,
    /// The plan on each GPU.
    ready: Mutex<Vec<(i32, RawReady)>>,
}

impl Entry {
    fn new(valid: Valid, options: &Options) -> Result<Entry, Error> {
        let facts = valid.operand_facts();
        let (mut scalars, mut tensors) = (Vec::new(), Vec::new());
        for fact in &facts {
            let Some(name) = fact.name else {
                let scalar = match fact.role {
                    Role::Scale => Scalar::Scale,
                    Role::QueryOrigin => Scalar::Origin(0),
                    Role::KeyOrigin => Scalar::Origin(1),
                    _ => continue,
                };
                scalars.push((fact.role, fact.dtype, scalar));
                continue;
            };
            let constant = || qkvault::exec::raw::constant_values(&valid).iter().any(|(role, _)| *role == fact.role);
            if fact.scalar {
                let given = options.scalars.iter().find(|(own, _)| own == name);
                let (_, value) = given.ok_or_else(|| {
                    Error::Tensor(format!("the expression reads the scalar {name}; give it with Options::scalar"))
                })?;
                if value.dtype() != fact.dtype {
                    let text =
                        format!("the scalar {name} is {}, and the expression reads {}", value.dtype(), fact.dtype);
                    return Err(Error::Tensor(text));
                }
                scalars.push((fact.role, fact.dtype, Scalar::Named(name.to_owned())));
            } else if matches!(fact.role, Role::ScoreTensor(_)) && !constant() {
                let read = Read { role: fact.role, name: name.to_owned(), dtype: fact.dtype, dims: fact.dims };
                read.of(options)?;
                tensors.push(read);
            }
        }
        drop(facts);
        Ok(Entry { valid, scalars, tensors, ready: Mutex::default() })
    }

    /// The plan on a GPU, prepared by `prepare` the first time.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "there is no GPU"))]
    pub(crate) fn ready(&self, gpu: i32, prepare: impl FnOnce() -> Result<RawReady, Error>) -> Result<RawReady, Error> {
        let known = |list: &[(i32, RawReady)]| list.iter().find(|(own, _)| *own == gpu).map(|(_, ready)| ready.clone());
        if let Some(ready) = known(&self.ready.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(ready);
        }
        let ready = prepare()?;
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push((gpu, ready.clone()));
        Ok(ready)
    }
}

/// Fails if a tensor is not what its expression reads.
fn fits(name: &str, tensor: &Tensor, dtype: DType, dims: [i64; 4]) -> Result<(), Error> {
    let elements: i64 = dims.iter().product();
    let whole = tensor.is_contiguous() && crate::tensor::long(tensor.elem_count()) == elements;
    if crate::tensor::dtype(tensor) == Some(dtype) && whole {
        return Ok(());
    }
    Err(Error::Tensor(format!(
        "{name} is {:?} {:?} with strides {:?}; the expression reads {dtype} {dims:?} without gaps: call contiguous()",
        tensor.dtype(),
        tensor.dims(),
        tensor.stride()
    )))
}

/// The descriptions of one value of options.
#[derive(Debug, Default)]
pub(crate) struct Known {
    entries: RwLock<HashMap<Key, Arc<Entry>>>,
    /// The last lengths within buffers with more room, which all layers of a step have in common.
    within: Mutex<Option<(Lengths, Arc<Sequences>)>>,
}

/// Sequences, and queries and keys of each.
type Lengths = (usize, usize, usize);

impl Known {
    /// The description for tensors of one kind.
    pub(crate) fn entry(&self, key: &Key, options: &Options) -> Result<Arc<Entry>, Error> {
        if let Some(entry) = self.entries.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Ok(entry.clone());
        }
        options.check()?;
        let entry = Arc::new(Entry::new(describe::valid(key, options)?, options)?);
        let mut all = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        Ok(all.entry(*key).or_insert(entry).clone())
    }

    /// Sequences of one length each within buffers with more room: those of the last call, if their lengths are.
    pub(crate) fn within(&self, batch: usize, queries: usize, keys: usize) -> Result<Arc<Sequences>, Error> {
        let mut last = self.within.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((lengths, own)) if *lengths == (batch, queries, keys) => Ok(own.clone()),
            _ => {
                let own = Arc::new(Sequences::within(batch, queries, keys)?);
                *last = Some(((batch, queries, keys), own.clone()));
                Ok(own)
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}
