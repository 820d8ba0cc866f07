//! An engine that is named instead of chosen by heuristics, with its knobs: part of an op graph, and of its key where there is one.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::print::kebab;

/// One of cuDNN's engines by its number, with the knobs it is built with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedEngine {
    /// The number that cuDNN knows it by among those for a graph (`CUDNN_ATTR_ENGINE_GLOBAL_INDEX`).
    pub index: i64,
    /// Knobs and their values, each knob once; the others keep what the engine gives them.
    pub knobs: Vec<(Knob, i64)>,
}

/// What can be chosen of an engine, with the numbers of `cudnnBackendKnobType_t` (graph header of cuDNN 9). What values mean is the
/// engine's own, and differs between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
#[allow(missing_docs, reason = "named like cuDNN's knobs")]
pub enum Knob {
    Stages = 14,
    KernelCfg = 24,
    TileCgaM = 27,
    StreamK = 38,
    TileM = 40,
    TileN = 41,
}

impl fmt::Display for NamedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine {}", self.index)?;
        self.knobs.iter().try_for_each(|(knob, value)| write!(f, " {}={value}", kebab(knob)))
    }
}
