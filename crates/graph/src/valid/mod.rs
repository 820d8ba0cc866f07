//! Validation: it reports every problem of a description, and returns a wrapper that only valid descriptions have.
//!
//! It checks, in this order:
//! * every tensor has dims from 1 to 2^31 - 1, positive strides, head dim stride 1, a span that fits 63 bits, and rows
//!   that do not overlap (outputs only); pages and varlen buffers are large enough ([`tensors`]);
//! * operands agree in batch, heads, sequence and head dims, 63 bits can count the scores, and element types fit
//!   ([`shapes`]);
//! * masks, score expression, dropout, sinks, FP8 and gradients do not contradict each other ([`features`]).
//!
//! Then it brings the description into canonical form ([`canonical`]).

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
pub(crate) use strides::canonical as canonical_strides;
pub(crate) use tensors::one as check_tensor;

use crate::{Attention, GraphKey, Reason, Refusal};

/// An attention that passed [`validate`], in canonical form.
///
/// A clone is a reference: all clones share one attention. [`validate`] computes key and [`Fingerprint`] once, and
/// comparison and hash use the fingerprint, so a `Valid` is a cheap key of a map.
///
/// Two of them are equal if they describe the same computation over the same memory layout, with operands of the same
/// names. Names of scalars and tensors and the dropout probability, which a launch uses, count here but not in the key.
///
/// ```
/// use qkvault_graph::expr::library;
/// use qkvault_graph::{Attention, Band, DType, validate};
///
/// // Two ways to write the same mask have the same key.
/// let plain = Attention::bshd(1, (8, 8), (512, 512), 64, DType::F16);
/// let band = validate(plain.clone().with_band(Band::CAUSAL))?;
/// let expression = validate(plain.with_mask_mod(library::causal().build_mask_mod().expect("a predicate")))?;
/// assert_eq!(band.key(), expression.key());
/// assert_eq!(expression.mask.band, Some(Band::CAUSAL)); // it derefs to the attention
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
        let key = GraphKey::from_canonical(&attention);
        let fingerprint = Fingerprint::new(&key, &attention);
        Valid(Arc::new(Inner { attention, key, fingerprint }))
    }

    /// The attention.
    #[must_use]
    pub fn get(&self) -> &Attention {
        &self.0.attention
    }

    /// The attention, to change and validate again. It is copied if there are other clones.
    #[must_use]
    pub fn into_inner(self) -> Attention {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { attention, key: _, fingerprint: _ }) => attention,
            Err(shared) => shared.attention.clone(),
        }
    }

    /// The key of this attention, which identifies its computation independently of the target.
    #[must_use]
    pub fn key(&self) -> GraphKey {
        self.0.key
    }

    /// Identifies this attention inside this process.
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

/// A list of problems, each as a reason.
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
/// Every problem, each with its place, what was given, what is needed and the fix. Consequences of a reported problem
/// are left out: for a tensor with a dim of 0, no mismatch with other tensors is reported.
///
/// ```
/// use qkvault_graph::registry::codes;
/// use qkvault_graph::{Attention, DType, validate};
///
/// let refusal = validate(Attention::bshd(1, (32, 5), (512, 512), 128, DType::BF16).with_dropout(1.5)).unwrap_err();
/// assert!(refusal.reasons().len() > 1); // every problem, not only the first
/// assert!(refusal.has(&codes::HEADS_GROUP));
/// ```
pub fn validate(attention: Attention) -> Result<Valid, Refusal> {
    let mut problems = Problems::default();
    tensors::check(&attention, &mut problems);
    shapes::check(&attention, &mut problems);
    features::check(&attention, &mut problems);
    match Refusal::from_reasons(problems.0) {
        Some(refusal) => Err(refusal),
        None => Ok(Valid::new(canonical::form(attention))),
    }
}
