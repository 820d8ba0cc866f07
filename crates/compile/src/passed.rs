//! Engine configurations that a plan was not made of, although cuDNN named them first: part of a plan's facts.

use qkvault_graph::Reason;
use qkvault_graph::registry::{Code, codes};
use qkvault_sys::Error;
use serde::{Deserialize, Serialize};

use crate::words;

/// A configuration that was passed over for the one that the plan is of.
///
/// Only what speaks of the request passes one over: the library refuses it, or a rule does. What fails for want of memory and the like
/// is an error, and no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Engine and knobs, as in [`PlanFacts::engine`](crate::PlanFacts::engine).
    pub engine: String,
    /// Why, as a stable code: a rule's own (`docs/reasons.md`), or cuDNN's status in the form `library.not-supported`.
    pub code: Code,
    /// Why, in words.
    pub words: String,
}

impl PassedOver {
    /// One that the library refuses.
    pub(crate) fn refused(engine: String, error: &Error) -> PassedOver {
        let (code, words) = match error {
            Error::Call(call) => {
                let name = call.status.c_name().map_or_else(|| call.status.to_string(), str::to_owned);
                (words::code(&name), if call.detail.is_empty() { call.to_string() } else { call.detail.clone() })
            }
            other => (codes::LIBRARY_PLAN.clone(), other.to_string()),
        };
        PassedOver { engine, code, words }
    }

    /// One that a rule of ours speaks against.
    pub(crate) fn unfit(engine: String, reason: &Reason) -> PassedOver {
        PassedOver { engine, code: reason.code.clone(), words: reason.needed.clone() }
    }
}
