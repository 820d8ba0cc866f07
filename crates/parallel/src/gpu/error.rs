//! Why a rank cannot run on its GPU.

use qkvault_exec::LaunchError;
use qkvault_graph::{DType, Refusal, Role};

use super::plans::PlanFailure;
use crate::CommError;

/// Why a schedule cannot be prepared or run on a GPU. After an error of a run its outputs are undefined, and the
/// communicator has ended on all ranks: join and prepare again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Ranks do not come together.
    #[error(transparent)]
    Ranks(#[from] CommError),
    /// A plan is missing, refused or does not load.
    #[error("{what}: {source}")]
    Plan {
        /// What it computes.
        what: String,
        /// Why.
        source: PlanFailure,
    },
    /// The schedule has a merge or sum that no launch computes.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A launch binds something else than its plan needs.
    #[error("the schedule does not fit the plan of {what}: {detail}; make both with the same version of qkvault")]
    Bind {
        /// What the plan computes.
        what: String,
        /// What differs.
        detail: String,
    },
    /// An operand is missing or too small.
    #[error("{role} has {given} bytes on this rank, and needs {needed}; bind memory of all roles of `operands()`")]
    Operand {
        /// The operand.
        role: Role,
        /// Bytes that were bound; 0 for none.
        given: u64,
        /// Bytes that it needs.
        needed: u64,
    },
    /// A number of the caller's is missing or of another type.
    #[error("{role} is not given as {dtype}; give it to `set_number`")]
    Number {
        /// Its role in the whole attention.
        role: Role,
        /// Its type.
        dtype: DType,
    },
    /// Lengths that do not fit the attention.
    #[error("{what}")]
    Lengths {
        /// What is wrong.
        what: String,
    },
    /// The communicator carries messages of the host's memory.
    #[error("the communicator carries memory of the host; give one of GPUs: Nccl, or InProcess for threads")]
    HostCommunicator,
    /// The stream is captured, and the communicator's exchanges cannot be.
    #[error("the stream is captured, and exchanges of this communicator are ordered by the host; use Nccl for graphs")]
    Capture,
    /// The stream is captured, and ranks that are threads have not run before.
    #[error("the stream is captured, and the first run of ranks that are threads waits for the GPU; run once before")]
    FirstRun,
    /// The driver has refused something.
    #[error("the NVIDIA driver could not {step}: {detail}")]
    Driver {
        /// What was asked for.
        step: &'static str,
        /// Its answer.
        detail: String,
    },
    /// A launch has been refused.
    #[error("{what}: {source}")]
    Launch {
        /// What was launched.
        what: String,
        /// Why.
        source: Box<LaunchError>,
    },
}

impl RunError {
    pub(crate) fn driver<E: std::fmt::Display>(step: &'static str) -> impl FnOnce(E) -> RunError {
        move |error| RunError::Driver { step, detail: error.to_string() }
    }
}
