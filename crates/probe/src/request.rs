//! The request to the rules and their verdict.

use qkvault_cudnn::registry::{Facts, refused_by_lowering, refused_by_rules};
use qkvault_cudnn::{CompileOptions, OpGraph, QuirkSet, Target, lower};
use qkvault_graph::{Origin, Reason, Refusal, Valid};

/// A request to the rules. [`Request::new`] and the methods make it, so that a new field does not break callers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The description.
    pub attention: &'a Valid,
    /// The GPU and the cuDNN.
    pub target: &'a Target,
    /// The options with which plans are made.
    pub policy: CompileOptions,
    /// Codes of quirks that are accepted although cuDNN computes them wrongly, besides those that the options allow.
    pub allowed: &'a [&'a str],
}

impl<'a> Request<'a> {
    /// A request for a description and a target, with default options and no quirk allowed.
    #[must_use]
    pub fn new(attention: &'a Valid, target: &'a Target) -> Request<'a> {
        Request { attention, target, policy: CompileOptions::default(), allowed: &[] }
    }

    /// Sets other options.
    #[must_use]
    pub const fn with_policy(mut self, options: CompileOptions) -> Request<'a> {
        self.policy = options;
        self
    }

    /// Allows quirks by their codes. Other codes have no effect.
    #[must_use]
    pub const fn allowing(mut self, codes: &'a [&'a str]) -> Request<'a> {
        self.allowed = codes;
        self
    }
}

/// The answer of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    /// Every reason against it; empty if it is supported as far as is known.
    pub reasons: Vec<Reason>,
    /// Quirks that apply and were allowed.
    pub allowed: Vec<Reason>,
}

impl Verdict {
    /// Whether there is no reason against it.
    #[must_use]
    pub const fn supported(&self) -> bool {
        self.reasons.is_empty()
    }

    /// The refusal, if it is one.
    #[must_use]
    pub fn refusal(self) -> Option<Refusal> {
        Refusal::from_reasons(self.reasons)
    }
}

/// The op graph for cuDNN, with the quirks that apply and are allowed.
///
/// # Errors
///
/// The reasons that hold whatever cuDNN answers: those of lowering, quirks that the options do not allow, and features
/// that qkvault cannot express as they are meant. Features that are merely unsupported are left to cuDNN to refuse.
pub fn lowered(attention: &Valid, target: &Target, options: &CompileOptions) -> Result<OpGraph, Refusal> {
    let lowered = lower(attention, target, options);
    let facts = Facts::new(attention, target, options);
    let reasons = refused_by_rules(&facts).filter(|r| r.origin != Origin::Rule);
    let is_allowed = |r: &Reason| options.allowed.contains(&r.code);
    let (allowed, reasons): (Vec<_>, Vec<_>) = reasons.partition(is_allowed);
    let accepted_quirks = QuirkSet::known(allowed.iter().map(|r| &r.code));
    match (lowered, Refusal::from_reasons(reasons)) {
        (Ok(graph), None) => Ok(OpGraph { accepted_quirks: graph.accepted_quirks.with(accepted_quirks), ..graph }),
        (Err(refusal), None) | (Ok(_), Some(refusal)) => Err(refusal),
        (Err(refusal), Some(more)) => Err(refusal.and(more)),
    }
}

/// Answers by rules only, within microseconds, without cuDNN and without a GPU. Nothing is stored.
///
/// The answer has every rule that applies, including those of lowering. A positive answer is what the rules know; the
/// answer of cuDNN itself comes from `qkvault-compile`.
pub fn check(request: &Request<'_>) -> Verdict {
    let Request { attention, target, policy: options, allowed } = request;
    let facts = Facts::new(attention, target, options);
    let lacking = target.device.missing_for(target.cudnn);
    let reasons = refused_by_lowering(&facts).chain(lacking).chain(refused_by_rules(&facts));
    // Allowed quirks are reported too, separately.
    let named = |r: &Reason| allowed.contains(&r.code.as_str()) || options.allowed.contains(&r.code);
    let is_allowed = |r: &Reason| r.origin == Origin::Quirk && named(r);
    let (allowed, reasons) = reasons.partition(is_allowed);
    Verdict { reasons, allowed }
}
