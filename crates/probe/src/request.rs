//! The request and its verdict: the front of the registry, which can gain fields without breaking who calls it.

use qkvault_graph::registry::{Facts, refused_by_lowering, refused_by_rules};
use qkvault_graph::{CompileOptions, OpGraph, Origin, QuirkSet, Reason, Refusal, Target, Valid, lower};

/// What the rules are asked. Made by [`Request::new`] and its methods alone, so that a new field breaks no caller.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The description.
    pub attention: &'a Valid,
    /// The GPU and the cuDNN.
    pub target: &'a Target,
    /// How plans are made.
    pub policy: CompileOptions,
    /// Codes of quirks that are taken although the library computes them wrongly, beside those that the policy allows.
    pub allowed: &'a [&'a str],
}

impl<'a> Request<'a> {
    /// Asks about a description for a target, with the usual policy and no quirk allowed.
    #[must_use]
    pub fn new(attention: &'a Valid, target: &'a Target) -> Request<'a> {
        Request { attention, target, policy: CompileOptions::default(), allowed: &[] }
    }

    /// Asks for another policy.
    #[must_use]
    pub const fn with_policy(mut self, policy: CompileOptions) -> Request<'a> {
        self.policy = policy;
        self
    }

    /// Allows quirks by their codes. Codes of other kinds cannot be allowed: nothing would come of it.
    #[must_use]
    pub const fn allowing(mut self, codes: &'a [&'a str]) -> Request<'a> {
        self.allowed = codes;
        self
    }
}

/// What the rules say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    /// Everything that speaks against it; nothing where it is supported as far as is known.
    pub reasons: Vec<Reason>,
    /// Quirks that apply and were allowed by name.
    pub allowed: Vec<Reason>,
}

impl Verdict {
    /// Whether nothing speaks against it.
    #[must_use]
    pub const fn supported(&self) -> bool {
        self.reasons.is_empty()
    }

    /// The refusal, if it is one.
    #[must_use]
    pub fn refusal(self) -> Option<Refusal> {
        Refusal::of(self.reasons)
    }
}

/// The op graph that is put to the library, with the quirks in it that apply and are allowed.
///
/// # Errors
///
/// What speaks against a description whatever the library says: what lowering refuses, that the library computes it wrongly,
/// unless the policy allows that by name, and that qkvault cannot ask for it as it is meant. What is merely not supported the
/// library says itself.
pub fn lowered(attention: &Valid, target: &Target, policy: &CompileOptions) -> Result<OpGraph, Refusal> {
    let lowered = lower(attention, target, policy);
    let facts = Facts::of(attention, target, policy);
    let reasons = refused_by_rules(&facts).filter(|r| r.origin != Origin::Rule);
    let is_allowed = |r: &Reason| policy.allowed.contains(&r.code);
    let (allowed, reasons): (Vec<_>, Vec<_>) = reasons.partition(is_allowed);
    let accepted_quirks = QuirkSet::known(allowed.iter().map(|r| &r.code));
    match (lowered, Refusal::of(reasons)) {
        (Ok(graph), None) => Ok(OpGraph { accepted_quirks: graph.accepted_quirks.with(accepted_quirks), ..graph }),
        (Err(refusal), None) | (Ok(_), Some(refusal)) => Err(refusal),
        (Err(refusal), Some(more)) => Err(refusal.and(more)),
    }
}

/// Answers by rules alone: microseconds, no library, no GPU, nothing kept.
///
/// Every rule that applies is in the answer, among them those that lowering has itself. A supported answer is what rules know;
/// the library's own answer is `qkvault-compile`'s.
pub fn check(request: &Request<'_>) -> Verdict {
    let Request { attention, target, policy, allowed } = request;
    let facts = Facts::of(attention, target, policy);
    let lacking = target.device.missing_for(target.cudnn);
    let reasons = refused_by_lowering(&facts).chain(lacking).chain(refused_by_rules(&facts));
    // What is allowed is told too, apart from the rest.
    let named = |r: &Reason| allowed.contains(&r.code.as_str()) || policy.allowed.contains(&r.code);
    let is_allowed = |r: &Reason| r.origin == Origin::Quirk && named(r);
    let (allowed, reasons) = reasons.partition(is_allowed);
    Verdict { reasons, allowed }
}
