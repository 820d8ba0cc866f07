//! Validation: every problem of a description at once, and a wrapper that only a sound description gets into.
//!
//! What holds for a [`Valid`] attention, checked in this order:
//! * every tensor has positive dims and strides, hidden stride 1, a span that fits 63 bits, and rows that do not overlap
//!   (outputs only); pages and packed buffers are big enough ([`tensors`]);
//! * operands agree in batch, heads, sequence and hidden sizes, and element types go together ([`shapes`]);
//! * masks, score expression, dropout, sinks, FP8 and gradients do not contradict each other ([`features`]);
//! * the mask is in its one canonical encoding.

mod features;
mod shapes;
mod tensors;

use crate::{Attention, Layer, Lengths, Mask, Reason, Refusal};

/// An attention that passed [`validate`], in canonical form.
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

/// Collects problems; each says where, what came, what is needed and how to fix it.
#[derive(Default)]
pub(crate) struct Problems(Vec<Reason>);

impl Problems {
    pub(crate) fn add(
        &mut self,
        code: &'static str,
        field: impl Into<std::borrow::Cow<'static, str>>,
        given: impl Into<String>,
        needed: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.0.push(Reason::new(Layer::Description, code, field, given, needed, fix));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Checks a description and brings it into canonical form.
///
/// # Errors
///
/// Every problem found, each with the place, what was given, what is needed and how to fix it.
pub fn validate(attention: Attention) -> Result<Valid, Refusal> {
    let mut problems = Problems::default();
    tensors::check(&attention, &mut problems);
    if problems.is_empty() {
        shapes::check(&attention, &mut problems);
        features::check(&attention, &mut problems);
    }
    match Refusal::of(problems.0) {
        Some(refusal) => Err(refusal),
        None => Ok(Valid(canonical(attention))),
    }
}

/// The one encoding of the mask: a predicate that is a band becomes the band, bounds that hide nothing are dropped.
fn canonical(mut attention: Attention) -> Attention {
    let Mask { band, lengths, keep } = std::mem::take(&mut attention.mask);
    let (s_q, s_kv) = attention.seq();
    let lengths = match lengths {
        Lengths::Full | Lengths::PerSequence => lengths,
    };
    attention.mask = Mask { band: band.and_then(|b| b.canonical(s_q, s_kv, lengths)), lengths, keep };
    attention
}
