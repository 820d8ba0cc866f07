//! How fast GPUs compute and how fast they reach each other, as data with its sources.

use serde::{Deserialize, Serialize};

/// GPUs and what connects them. Rates are sustained, not of a data sheet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuCluster {
    /// Its name, such as `h200-nvlink`.
    pub name: String,
    /// What it is.
    pub gpus: String,
    /// Bytes a second that a GPU sends, while it receives as many.
    pub link: f64,
    /// Seconds that an exchange takes besides its bytes.
    pub exchange: f64,
    /// Floating-point operations a second of a forward in 16 bits.
    pub forward: f64,
    /// Those of a backward.
    pub backward: f64,
    /// Bytes a second that copies read and write.
    pub memory: f64,
    /// Seconds that a launch takes besides its work.
    pub launch: f64,
    /// Seconds that a copy, a sum or a merge takes besides its bytes.
    pub copy: f64,
    /// Where the figures are from.
    pub source: String,
}

impl GpuCluster {
    /// The machines that are known. The first one is the usual.
    #[must_use]
    pub fn all() -> Vec<GpuCluster> {
        serde_json::from_str(include_str!("../data/machines.json")).unwrap_or_default()
    }

    /// The machine with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<GpuCluster> {
        GpuCluster::all().into_iter().find(|machine| machine.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_and_have_sources() {
        let all = GpuCluster::all();
        assert!(all.len() >= 3 && all[0].name == "h200-nvlink");
        for machine in &all {
            assert!(!machine.source.is_empty() && machine.link > 1e9 && machine.backward < machine.forward);
            assert_eq!(GpuCluster::named(&machine.name).as_ref(), Some(machine));
        }
        assert_eq!(GpuCluster::named("abacus"), None);
    }
}
