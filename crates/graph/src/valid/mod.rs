//! Validation: every problem of a description at once, and a wrapper that only a sound description gets into.
//!
//! What holds for a [`Valid`] attention, checked in this order:
//! * every tensor has dims from 1 to 2^31 - 1, positive strides, head dim stride 1, a span that fits 63 bits, and rows that do
//!   not overlap (outputs only); pages and varlen buffers are big enough ([`tensors`]);
//! * operands agree in batch, heads, sequence and head dims, the scores can be counted in 63 bits, and element types go
//!   together ([`shapes`]);
//! * masks, score expression, dropout, sinks, FP8 and gradients do not contradict each other ([`features`]);
//! * whatever can be written in several ways is written in one ([`canonical`]).

mod canonical;
mod features;
mod fingerprint;
mod shapes;
mod strides;
mod tensors;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

pub use fingerprint::Fingerprint;

use crate::{Attention, GraphKey, Reason, Refusal};

/// An attention that passed [`validate`], in canonical form.
///
/// A clone is a reference: all clones share one attention. Key and [`Fingerprint`] are computed once, by [`validate`], and two of them
/// are compared and hashed by fingerprint, so a `Valid` is a cheap key of a map.
///
/// Two of them are equal when they describe the same computation over the same places in memory, with operands of the same names. What a
/// launch chooses or binds by counts here and not in the key: the names of scalars and tensors, and the probability of dropout.
///
/// ```
/// use qkvault_graph::expr::library;
/// use qkvault_graph::{Attention, Band, DType, validate};
///
/// // Two ways to write one mask are one description, under one key.
/// let plain = Attention::bshd(1, (8, 8), (512, 512), 64, DType::F16);
/// let band = validate(plain.clone().with_band(Band::CAUSAL))?;
/// let expression = validate(plain.with_mask_mod(library::causal().build_mask_mod().expect("a predicate")))?;
/// assert_eq!(band.key(), expression.key());
/// assert_eq!(expression.mask.band, Some(Band::CAUSAL)); // it reads as the attention that it holds
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone)]
pub struct Valid(Arc<Inner>);

struct Inner {
    attention: Attention,
    key: GraphKey,
    fingerprint: Fingerprint,
}

impl Valid {
    fn new(attention: Attention) -> Valid {
        let key = GraphKey::of(&attention);
        let fingerprint = Fingerprint::of(&key, &attention);
        Valid(Arc::new(Inner { attention, key, fingerprint }))
    }

    /// The attention.
    #[must_use]
    pub fn get(&self) -> &Attention {
        &self.0.attention
    }

    /// The attention, to change and validate again. It is copied where there are other clones.
    #[must_use]
    pub fn into_inner(self) -> Attention {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { attention, key: _, fingerprint: _ }) => attention,
            Err(shared) => shared.attention.clone(),
        }
    }

    /// The key of this attention: what it computes, whatever it runs on.
    #[must_use]
    pub fn key(&self) -> GraphKey {
        self.0.key
    }

    /// What this attention is known by inside this process.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint
    }
}

impl Deref for Valid {
    type Target = Attention;

    fn deref(&self) -> &Attention {
        self.get()
    }
}

impl PartialEq for Valid {
    fn eq(&self, other: &Valid) -> bool {
        self.0.fingerprint == other.0.fingerprint
    }
}

impl Eq for Valid {}

impl Hash for Valid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.fingerprint.hash(state);
    }
}

impl fmt::Debug for Valid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Valid").field(self.get()).finish()
    }
}

/// Collects problems, each a reason.
#[derive(Default)]
pub(crate) struct Problems(Vec<Reason>);

impl Problems {
    pub(crate) fn add(&mut self, reason: Reason) {
        self.0.push(reason);
    }

    pub(crate) fn into_reasons(self) -> Vec<Reason> {
        self.0
    }
}

/// Checks a description and brings it into canonical form.
///
/// # Errors
///
/// Every problem found, each with the place, what was given, what is needed and how to fix it. What follows from a problem
/// already named is left out: a tensor with a dim of 0 is not also said to differ from its neighbours.
///
/// ```
/// use qkvault_graph::registry::codes;
/// use qkvault_graph::{Attention, DType, validate};
///
/// let refusal = validate(Attention::bshd(1, (32, 5), (512, 512), 128, DType::BF16).with_dropout(1.5)).unwrap_err();
/// assert!(refusal.reasons().len() > 1); // every problem, not the first
/// assert!(refusal.has(&codes::HEADS_GROUP));
/// ```
pub fn validate(attention: Attention) -> Result<Valid, Refusal> {
    let mut problems = Problems::default();
    tensors::check(&attention, &mut problems);
    shapes::check(&attention, &mut problems);
    features::check(&attention, &mut problems);
    match Refusal::of(problems.0) {
        Some(refusal) => Err(refusal),
        None => Ok(Valid::new(canonical::form(attention))),
    }
}
