//! Engine configurations that cuDNN listed before a plan's and that gave no plan: part of a plan's facts.

use qkvault_cudnn::registry::codes;
use qkvault_graph::Reason;
use qkvault_graph::registry::Code;
use qkvault_sys::Error;
use serde::{Deserialize, Serialize};

use crate::cudnn::words;

/// A configuration that was passed over.
///
/// Only errors that concern the request pass one over: cuDNN refuses it, or a rule does. A lack of memory and similar
/// failures end the build with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Engine and knobs, as in [`PlanFacts::engine`](crate::PlanFacts::engine).
    pub engine: String,
    /// The reason as a stable code: a rule's (`docs/reasons.md`), or cuDNN's status as `library.not-supported`.
    pub code: Code,
    /// The reason in words.
    pub words: String,
}

impl PassedOver {
    /// A configuration that cuDNN refuses.
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

    /// A configuration that a rule refuses.
    pub(crate) fn unfit(engine: String, reason: &Reason) -> PassedOver {
        PassedOver { engine, code: reason.code.clone(), words: reason.needed.clone() }
    }
}
