//! Whether a plan fits a machine, before cuDNN loads it: the properties that each cuDNN version compares, as data.

use qkvault_base::Shown;
use qkvault_cudnn::{HostArch, Toolchain};
use qkvault_graph::{CudnnVersion, PlanKey};

use crate::facts::PlanFacts;
use crate::machine::Machine;

/// The drivers on which a plan loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverRule {
    /// The driver version that it was compiled for.
    Same,
    /// The driver version that it was compiled for, and newer ones.
    SameOrNewer,
}

/// The properties that a range of cuDNN versions compares when it loads a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadRules {
    /// The first version of the range.
    pub(crate) since: CudnnVersion,
    /// The rule on the driver.
    pub(crate) driver: DriverRule,
    /// Whether the width of the memory bus must be equal.
    pub(crate) memory_bus: bool,
    /// How this was found.
    pub(crate) source: &'static str,
}

/// The rules of all versions, oldest first. Every version compares its own number, the compute capability, the SM
/// count, and limits that follow from the architecture (threads, registers, shared memory).
///
/// They were found by changing one property at a time, on an H200 (9.14.0, 9.19.0, 9.27.0) and with device properties
/// in the place of a GPU (these versions, 9.16.0, 9.20.0, 9.21.1, 9.22.0, 9.23.0, 9.23.2, 9.24.1, 9.25.1, 9.26.0,
/// 9.26.1 and 9.28.0); both agree. These properties do not matter: name, PCI id, ordinal, clocks, L2 size, memory size,
/// cooperative launch, blocks per SM.
///
/// To reproduce for fetched versions: `QKVAULT_LOAD_VERSIONS=9.20.0,9.26.0 cargo test -p qkvault-exec --test library
/// named`; on a GPU: the test `gpu_load`.
pub(crate) const LOAD_RULES: [LoadRules; 3] = [
    LoadRules {
        since: CudnnVersion::v9(0, 0),
        driver: DriverRule::Same,
        memory_bus: false,
        source: "seen from 9.14.0 to 9.22.0; before 9.14 assumed",
    },
    LoadRules {
        since: CudnnVersion::v9(23, 0),
        driver: DriverRule::SameOrNewer,
        memory_bus: false,
        source: "seen from 9.23.0 to 9.26.1",
    },
    LoadRules {
        since: CudnnVersion::v9(27, 0),
        driver: DriverRule::SameOrNewer,
        memory_bus: true,
        source: "seen with 9.27.0 and 9.28.0; newer ones assumed",
    },
];

impl LoadRules {
    /// The rules of a version.
    #[must_use]
    pub(crate) fn for_version(cudnn: CudnnVersion) -> &'static LoadRules {
        LOAD_RULES.iter().rev().find(|rules| rules.since <= cudnn).unwrap_or(&LOAD_RULES[0])
    }
}

/// One difference between the machine of a plan and this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// The plan is for another cuDNN version.
    #[error("it is for cuDNN {plan}, and {here} is loaded (a plan loads only under its exact version)")]
    OtherCudnn {
        /// The value of the plan.
        plan: CudnnVersion,
        /// The value of this machine.
        here: CudnnVersion,
    },
    /// The plan is for a cuDNN of the same version that is built with another CUDA.
    #[error("it is for the CUDA {plan} build of cuDNN, and that of CUDA {here} is loaded")]
    OtherCuda {
        /// The value of the plan.
        plan: u16,
        /// The value of this machine.
        here: u16,
    },
    /// The plan was compiled on another host architecture.
    #[error("it was compiled on {plan}, and this is {here}")]
    OtherHost {
        /// The host that compiled it.
        plan: HostArch,
        /// The value of this machine.
        here: HostArch,
    },
    /// The plan is for another compute capability.
    #[error("it is for sm_{plan}, and this GPU is sm_{here}")]
    OtherSm {
        /// The value of the plan.
        plan: u32,
        /// The value of this machine.
        here: u32,
    },
    /// The plan is for a GPU with another number of multiprocessors.
    #[error("it is for a GPU of {plan} SMs, and this one has {here}")]
    OtherSmCount {
        /// The value of the plan.
        plan: i64,
        /// The value of this machine.
        here: i64,
    },
    /// The plan is for another driver version, and its cuDNN loads it only with an equal one.
    #[error(
        "it is for the driver of CUDA {}, and this is that of CUDA {} (cuDNN before 9.23 requires an equal one)",
        cuda(*plan), cuda(*here)
    )]
    OtherDriver {
        /// The CUDA version of the plan's driver, major * 1000 + minor * 10.
        plan: i64,
        /// The value of this machine.
        here: i64,
    },
    /// The plan is for a newer driver than this one.
    #[error("it is for the driver of CUDA {} or newer, and this is that of CUDA {}", cuda(*plan), cuda(*here))]
    OlderDriver {
        /// The CUDA version of the plan's driver, major * 1000 + minor * 10.
        plan: i64,
        /// The value of this machine.
        here: i64,
    },
    /// The driver is older than the compiler of the plan's kernels.
    #[error(
        "this driver is too old for the cubin: it is that of CUDA {}, and the cubin needs that of CUDA {} or newer",
        cuda(*here), cuda(*cubin)
    )]
    DriverTooOld {
        /// The CUDA version of the oldest driver that loads it, major * 1000 + minor * 10.
        cubin: i64,
        /// The value of this machine.
        here: i64,
    },
    /// The plan is for a GPU with another memory bus.
    #[error("it is for a memory bus of {} bits, and this GPU has {}", bits(*plan), bits(*here))]
    OtherMemoryBus {
        /// The value of the plan.
        plan: Option<i64>,
        /// The value of this machine.
        here: Option<i64>,
    },
}

fn cuda(driver: i64) -> String {
    format!("{}.{}", driver / 1000, driver % 1000 / 10)
}

fn bits(width: Option<i64>) -> String {
    width.map_or_else(|| "unknown width".to_owned(), |width| width.to_string())
}

/// The plan is for another machine, with every difference for which its cuDNN would refuse it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plan {key} ({}) does not load here: {}. {}", Shown(what), join(mismatches), fix(mismatches))]
pub struct OtherMachine {
    /// The plan.
    pub key: PlanKey,
    /// What it computes.
    pub what: String,
    /// The differences; at least one.
    pub mismatches: Vec<Mismatch>,
}

fn join(mismatches: &[Mismatch]) -> String {
    mismatches.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn fix(mismatches: &[Mismatch]) -> &'static str {
    if mismatches.iter().all(|m| matches!(m, Mismatch::DriverTooOld { .. })) {
        "Install a newer driver, or take cuDNN's plans"
    } else if mismatches.iter().all(|m| matches!(m, Mismatch::OtherCudnn { .. } | Mismatch::OtherCuda { .. })) {
        "Load that cuDNN (QKVAULT_CUDNN_PATH names one, `cargo xtask fetch` gets one), or compile it for this one \
         with `qkvault warm`"
    } else {
        "Compile it for this machine: `qkvault profile capture` writes its profile, `qkvault warm --target FILE` \
         compiles for it"
    }
}

/// Checks that a plan fits a machine.
///
/// NVRTC and environment are not compared, because they are in the key and the driver checks the code that they made.
/// The library set is not compared: with cuDNN 9.19, plans of each set load under the other. Plans of another CUDA
/// build or host architecture are refused; whether they would load is untested.
///
/// Plans of kernels need less: `check_fit_of_kernels`.
///
/// # Errors
///
/// [`OtherMachine`] with every difference.
pub fn check_fit(facts: &PlanFacts, here: &Machine) -> Result<(), OtherMachine> {
    let Some(own) = facts.cudnn() else { return check_fit_of_kernels(facts, here.sm, here.driver) };
    let Machine { cudnn, libraries: _, cuda, host, sm, multi_processors, driver, memory_bus, ordinal: _ } = *here;
    let mut mismatches = Vec::new();
    if own.cudnn != cudnn {
        mismatches.push(Mismatch::OtherCudnn { plan: own.cudnn, here: cudnn });
    }
    let Toolchain { cuda: its_cuda, nvrtc: _, host: its_host, environment: _ } = own.toolchain;
    if its_cuda != cuda {
        mismatches.push(Mismatch::OtherCuda { plan: its_cuda, here: cuda });
    }
    if its_host != host {
        mismatches.push(Mismatch::OtherHost { plan: its_host, here: host });
    }
    if facts.sm != sm {
        mismatches.push(Mismatch::OtherSm { plan: facts.sm, here: sm });
    }
    if own.multi_processors != multi_processors {
        mismatches.push(Mismatch::OtherSmCount { plan: own.multi_processors, here: multi_processors });
    }
    // The rules are those of the plan's version, which is the one that would load it.
    let rules = LoadRules::for_version(own.cudnn);
    match rules.driver {
        DriverRule::Same if facts.driver != driver => {
            mismatches.push(Mismatch::OtherDriver { plan: facts.driver, here: driver });
        }
        DriverRule::SameOrNewer if facts.driver > driver => {
            mismatches.push(Mismatch::OlderDriver { plan: facts.driver, here: driver });
        }
        DriverRule::Same | DriverRule::SameOrNewer => {}
    }
    // A loaded cuDNN before 9.27 reports no width; then the version is the mismatch.
    if rules.memory_bus && own.cudnn == cudnn && own.memory_bus != memory_bus {
        mismatches.push(Mismatch::OtherMemoryBus { plan: own.memory_bus, here: memory_bus });
    }
    fits(facts, mismatches)
}

/// Checks that a plan of kernels fits a GPU: it needs its compute capability and a driver that is new enough, no cuDNN
/// and nothing else.
///
/// # Errors
///
/// [`OtherMachine`] with every difference.
pub fn check_fit_of_kernels(facts: &PlanFacts, sm: u32, driver: i64) -> Result<(), OtherMachine> {
    let mut mismatches = Vec::new();
    if facts.sm != sm {
        mismatches.push(Mismatch::OtherSm { plan: facts.sm, here: sm });
    }
    if facts.driver > driver {
        mismatches.push(Mismatch::DriverTooOld { cubin: facts.driver, here: driver });
    }
    fits(facts, mismatches)
}

fn fits(facts: &PlanFacts, mismatches: Vec<Mismatch>) -> Result<(), OtherMachine> {
    if mismatches.is_empty() {
        Ok(())
    } else {
        Err(OtherMachine { key: facts.key, what: facts.what.clone(), mismatches })
    }
}

#[cfg(test)]
mod tests;
