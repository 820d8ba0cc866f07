//! The descriptions that this process has met, each made once and found by what it depends on.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use qkvault::exec::raw::constant_values;
use qkvault::graph::{DType, Role, Valid};

use crate::run::{BIAS, K, PLACES, Q, SINK, SLOPES, V};
use crate::tensor::Lie;
use crate::{Error, describe};

/// Most descriptions that are kept; past this all are forgotten, and made again in some 0.1 ms each.
const MOST: usize = 4096;

/// Sequences of a call, as far as a description depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sizes {
    /// Every sequence is whole.
    Dense,
    /// Sequences one after another: their number, most queries, most keys.
    Varlen { batch: i64, queries: i64, keys: i64 },
}

/// Everything that a description depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) dtype: DType,
    pub(crate) q: Lie,
    pub(crate) k: Lie,
    pub(crate) v: Lie,
    pub(crate) sizes: Sizes,
    pub(crate) left: Option<usize>,
    pub(crate) right: Option<usize>,
    pub(crate) softcap: bool,
    /// Element type and dims of tensors that the scores read.
    pub(crate) bias: Option<(DType, [i64; 4])>,
    pub(crate) slopes: Option<(DType, [i64; 4])>,
    pub(crate) mask: Option<[i64; 4]>,
    pub(crate) sink: bool,
    pub(crate) deterministic: bool,
    /// Whether the forward puts out the log-sum-exp.
    pub(crate) stats: bool,
    /// Of a backward: which tensors get gradients besides Q, K and V, which always do.
    pub(crate) backward: Option<[bool; PLACES]>,
}

/// The value of a scalar of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scalar {
    /// The softmax scale.
    Scale,
    /// The bound of scores.
    Softcap,
}

/// A description with what a launch of it needs.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) valid: Valid,
    pub(crate) scalars: Vec<(Role, DType, Scalar)>,
    /// Tensors that the scores read, by their place in a call.
    pub(crate) reads: Vec<(Role, usize)>,
    /// The mask, if there is one.
    pub(crate) mask: Option<Role>,
    /// Gradients that a launch puts out, with the place of what they are of.
    pub(crate) gradients: Vec<(Role, usize, DType)>,
}

impl Entry {
    fn new(valid: Valid) -> Result<Entry, Error> {
        let constants = constant_values(&valid);
        let (mut scalars, mut reads, mut mask, mut gradients) = (Vec::new(), Vec::new(), None, Vec::new());
        for fact in valid.operand_facts() {
            let named = match fact.name {
                Some(describe::BIAS) => Some(BIAS),
                Some(describe::SLOPES) => Some(SLOPES),
                _ => None,
            };
            match (fact.role, named) {
                (Role::Scale, _) => scalars.push((fact.role, fact.dtype, Scalar::Scale)),
                _ if fact.scalar && fact.name == Some(describe::SOFTCAP) => {
                    scalars.push((fact.role, fact.dtype, Scalar::Softcap));
                }
                (Role::DQ, _) => gradients.push((fact.role, Q, fact.dtype)),
                (Role::DK, _) => gradients.push((fact.role, K, fact.dtype)),
                (Role::DV, _) => gradients.push((fact.role, V, fact.dtype)),
                (Role::DSink, _) => gradients.push((fact.role, SINK, fact.dtype)),
                (_, Some(place)) if fact.output => gradients.push((fact.role, place, fact.dtype)),
                (_, Some(place)) => reads.push((fact.role, place)),
                _ if fact.name == Some(describe::MASK) => mask = Some(fact.role),
                // What the plan has itself, and what a call has by its role.
                _ => debug_assert!(fact.name.is_none() || constants.iter().any(|(role, _)| *role == fact.role)),
            }
        }
        Ok(Entry { valid, scalars, reads, mask, gradients })
    }
}

/// The description for calls of one kind.
pub(crate) fn entry(key: &Key) -> Result<Arc<Entry>, Error> {
    static ALL: RwLock<Option<HashMap<Key, Arc<Entry>>>> = RwLock::new(None);
    let known = ALL.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = known.as_ref().and_then(|all| all.get(key)) {
        return Ok(entry.clone());
    }
    drop(known);
    let entry = Arc::new(Entry::new(describe::valid(key)?)?);
    let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    if all.len() >= MOST {
        all.clear();
    }
    Ok(all.entry(*key).or_insert(entry).clone())
}
