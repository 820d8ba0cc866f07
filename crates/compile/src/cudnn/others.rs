//! The targets whose plans of cuDNN a machine can load, as data, in the order of the look-up.

use qkvault_cudnn::{NvrtcVersion, Target, Toolchain};
use qkvault_graph::LibrarySet;

use crate::fit::{DriverRule, LoadRules};

/// CUDA versions of drivers to look for, newest first, where plans of older drivers load too.
pub const DRIVERS: [i64; 8] = [13_050, 13_040, 13_030, 13_020, 13_010, 13_000, 12_090, 12_080];

/// Versions of NVRTC to look for, where NVRTC is a library of its own: the one that `cargo xtask fetch` gets first,
/// then newest first.
pub const NVRTCS: [NvrtcVersion; 10] = [
    Toolchain::FETCHED_NVRTC,
    NvrtcVersion::new(13, 5),
    NvrtcVersion::new(13, 4),
    NvrtcVersion::new(13, 3),
    NvrtcVersion::new(13, 2),
    NvrtcVersion::new(13, 1),
    NvrtcVersion::new(12, 9),
    NvrtcVersion::new(12, 8),
    NvrtcVersion::new(12, 6),
    NvrtcVersion::new(12, 4),
];

/// The targets whose plans load on a machine, in the order of the look-up: its own target, the target with the other
/// library set, then those with other NVRTC versions, then those with older drivers if the cuDNN loads their plans.
///
/// If cuDNN reports a property of the GPU that this version of qkvault does not know, the same targets without the
/// property follow, because profiles that an older version captured do not have it.
///
/// All of them have the machine's cuDNN version, its major version of CUDA, its host architecture, and its variables
/// that change code. The driver loads the kernels of every NVRTC among them.
#[must_use]
pub fn candidates(here: &Target) -> Vec<Target> {
    let mut all = known(here);
    let mut plain = here.clone();
    plain.device.other.clear();
    if here.device.unknown_to_us(here.cudnn).next().is_some() {
        all.extend(known(&plain));
    }
    all
}

/// The targets with the device properties as they are.
fn known(here: &Target) -> Vec<Target> {
    let own = here.device.driver_ver;
    let older = DRIVERS.into_iter().filter(|driver| *driver < own);
    let drivers: Vec<i64> = match LoadRules::for_version(here.cudnn).driver {
        DriverRule::Same => vec![own],
        DriverRule::SameOrNewer => std::iter::once(own).chain(older).collect(),
    };
    let sets = match here.libraries {
        LibrarySet::Slim => [LibrarySet::Slim, LibrarySet::Full],
        LibrarySet::Full => [LibrarySet::Full, LibrarySet::Slim],
    };
    let nvrtcs = nvrtcs(here);
    let mut all = Vec::new();
    for driver in drivers {
        // A driver loads no kernel of a newer CUDA than its own.
        for nvrtc in nvrtcs.iter().filter(|nvrtc| nvrtc.is_none_or(|nvrtc| nvrtc.loads_under(driver))) {
            for libraries in sets {
                let toolchain = Toolchain { nvrtc: *nvrtc, ..here.toolchain.clone() };
                let mut target = Target { libraries, toolchain, ..here.clone() };
                target.device.driver_ver = driver;
                all.push(target);
            }
        }
    }
    // The machine's own target comes first in any case, so that the error for a missing plan names its key.
    if all.first() != Some(here) {
        all.insert(0, here.clone());
    }
    all
}

/// The NVRTC versions to look for: the machine's own, then the others of its CUDA; `None` where NVRTC is a part of
/// cuDNN.
fn nvrtcs(here: &Target) -> Vec<Option<NvrtcVersion>> {
    let Some(own) = here.toolchain.nvrtc else { return vec![None] };
    let others = NVRTCS.into_iter().filter(|nvrtc| nvrtc.major == own.major && *nvrtc != own);
    std::iter::once(own).chain(others).map(Some).collect()
}
