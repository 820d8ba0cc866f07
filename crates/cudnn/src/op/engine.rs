//! A named engine with its knobs, in place of the heuristics' choice. It is part of the op graph and of its key.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::print::kebab;

/// One of cuDNN's engines by number, with its knobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedEngine {
    /// Its number among cuDNN's engines for a graph (`CUDNN_ATTR_ENGINE_GLOBAL_INDEX`).
    pub index: i64,
    /// Knobs and their values, each knob once; the others keep the engine's defaults.
    pub knobs: Vec<(Knob, i64)>,
}

/// The knobs of engines, with the numbers of `cudnnBackendKnobType_t` (graph header of cuDNN 9). The meaning of a value
/// depends on the engine and on the version.
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
