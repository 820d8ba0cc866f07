//! Attentions of which cuDNN writes source that NVIDIA's compiler refuses (status 4001): told from a failure of the moment by rules alone.

use qkvault_graph::{Origin, Target, Valid};
use qkvault_probe::{Request, check};

/// What a table says of one: the rules that know it.
///
/// # Panics
///
/// When no rule knows it: the planner would call it an error of the moment for ever.
#[must_use]
pub fn known(attention: &Valid, target: &Target) -> String {
    let reasons = check(&Request::new(attention, target)).reasons;
    let codes: Vec<&str> = reasons.iter().filter(|r| r.origin == Origin::Rule).map(|r| r.code.as_ref()).collect();
    assert!(!codes.is_empty(), "{attention} for {target} does not compile, and no rule says so");
    format!("not compiled (4001), as by {}", codes.join(", "))
}
