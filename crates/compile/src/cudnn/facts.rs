//! The facts that plans of cuDNN have alone, and what only compiling tells of them.

use qkvault_cudnn::Toolchain;
use qkvault_cudnn::op::Fixed;
use qkvault_graph::{CudnnVersion, LibrarySet, Role};
use serde::{Deserialize, Serialize};

use crate::cudnn::passed::PassedOver;
use crate::facts::{Altered, PlanFacts, other};

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

/// What only compiling tells of a plan of cuDNN. All other facts follow from what was asked.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) engine: String,
    pub(crate) passed_over: Vec<PassedOver>,
    pub(crate) workspace: u64,
    pub(crate) compile_ms: u32,
    pub(crate) blob_bytes: u64,
}

impl Made {
    /// What a stored plan says of it.
    pub(crate) fn from_facts(facts: &PlanFacts) -> Made {
        let PlanFacts { engine, workspace, compile_ms, blob_bytes, .. } = facts.clone();
        let passed_over = facts.cudnn().map_or_else(Vec::new, |own| own.passed_over.clone());
        Made { engine, passed_over, workspace, compile_ms, blob_bytes }
    }
}
