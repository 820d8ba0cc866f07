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
mod shapes;
mod strides;
mod tensors;

use crate::{Attention, Reason, Refusal};

/// An attention that passed [`validate`], in canonical form.
///
/// Two of them are equal when they describe the same computation over the same places in memory, but for what a launch
/// chooses: the names of scalars and tensors never count, and the probability of dropout counts here but not in the key.
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
#[derive(Clone, Debug, PartialEq)]
pub struct Valid(Attention);

impl Valid {
    /// The attention.
    #[must_use]
    pub fn get(&self) -> &Attention {
        &self.0
    }

    /// The attention, to change and validate again.
    #[must_use]
    pub fn into_inner(self) -> Attention {
        self.0
    }
}

impl std::ops::Deref for Valid {
    type Target = Attention;

    fn deref(&self) -> &Attention {
        &self.0
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
        None => Ok(Valid(canonical::form(attention))),
    }
}
