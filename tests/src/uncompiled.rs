//! Attentions whose cuDNN source NVIDIA's compiler rejects (status 4001). Only rules tell them from temporary failures.

use qkvault_cudnn::Target;
use qkvault_graph::{Origin, Valid};
use qkvault_probe::{Request, check};

/// The table's text for such an attention, with the codes of its rules; without any, of its quirks, for which the
/// planner asks nothing either.
///
/// # Panics
///
/// Panics if it has none: then the planner would always report a temporary failure.
#[must_use]
pub fn known(attention: &Valid, target: &Target) -> String {
    let reasons = check(&Request::new(attention, target)).reasons;
    let of = |origin| -> Vec<&str> { reasons.iter().filter(|r| r.origin == origin).map(|r| r.code.as_str()).collect() };
    let codes = Some(of(Origin::Rule)).filter(|codes| !codes.is_empty()).unwrap_or_else(|| of(Origin::Quirk));
    assert!(!codes.is_empty(), "{attention} for {target} does not compile, and has no rule");
    format!("not compiled (4001), as by {}", codes.join(", "))
}
