//! The facts that plans of cuDNN have alone.

use qkvault_cudnn::Toolchain;
use qkvault_cudnn::op::Fixed;
use qkvault_graph::{Code, CudnnVersion, LibrarySet, Role};
use serde::{Deserialize, Serialize};

use super::{Altered, other};

/// The facts of a plan of cuDNN, beside those that every plan has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudnnFacts {
    /// Version that compiled it, the only one that can load it.
    pub cudnn: CudnnVersion,
    /// Library set that compiled it.
    pub libraries: LibrarySet,
    /// The rest of the toolchain that compiled it: CUDA build, NVRTC, host architecture, environment.
    pub toolchain: Toolchain,
    /// Streaming multiprocessors of the target.
    pub multi_processors: i64,
    /// Width of the target's memory bus in bits, if its cuDNN reports it.
    pub memory_bus: Option<i64>,
    /// Configurations before it in cuDNN's order that gave no plan, each with its reason.
    pub passed_over: Vec<PassedOver>,
    /// Operands that the graph declares a second time: a launch passes the address of [`Role::memory`] for each.
    pub again: Vec<Role>,
    /// Constants of the graph, which cuDNN also needs at every launch.
    pub fixed: Vec<Fixed>,
}

impl CudnnFacts {
    /// The first fact that is not as expected.
    pub(crate) fn altered(&self, expected: &CudnnFacts) -> Option<Altered> {
        let CudnnFacts { cudnn, libraries, toolchain, multi_processors, memory_bus, passed_over, again, fixed } =
            expected;
        None.or_else(|| other("cudnn", &self.cudnn, cudnn))
            .or_else(|| other("libraries", &self.libraries, libraries))
            .or_else(|| other("toolchain", &self.toolchain, toolchain))
            .or_else(|| other("multi_processors", &self.multi_processors, multi_processors))
            .or_else(|| other("memory_bus", &self.memory_bus, memory_bus))
            .or_else(|| other("passed_over", &self.passed_over, passed_over))
            .or_else(|| other("again", &self.again, again))
            .or_else(|| other("fixed", &self.fixed, fixed))
    }
}

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
