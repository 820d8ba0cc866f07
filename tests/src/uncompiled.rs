//! Attentions whose cuDNN source NVIDIA's compiler rejects (status 4001). Only rules tell them from temporary failures.

use qkvault_graph::{Origin, Target, Valid};
use qkvault_probe::{Request, check};

/// The table's text for such an attention, with the codes of its rules.
///
/// # Panics
///
/// Panics if it has no rule: then the planner would always report a temporary failure.
#[must_use]
pub fn known(attention: &Valid, target: &Target) -> String {
    let reasons = check(&Request::new(attention, target)).reasons;
    let codes: Vec<&str> = reasons.iter().filter(|r| r.origin == Origin::Rule).map(|r| r.code.as_str()).collect();
    assert!(!codes.is_empty(), "{attention} for {target} does not compile, and has no rule");
    format!("not compiled (4001), as by {}", codes.join(", "))
}
