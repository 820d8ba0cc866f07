//! Why an engine configuration that cuDNN listed before a plan's gave no plan.

use qkvault_cudnn::registry::codes;
use qkvault_graph::Reason;
use qkvault_sys::Error;

use crate::cudnn::words;
use crate::facts::PassedOver;

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
