//! Which targets' plans a machine may load besides its own, as data, in the order in which they are looked for.

use qkvault_graph::{LibrarySet, NvrtcVersion, Target, Toolchain};

use crate::fit::{DriverRule, LoadRules};

/// CUDA versions of drivers that plans are looked for under, newest first, where an older driver's plans load too.
pub(crate) const DRIVERS: [i64; 8] = [13_050, 13_040, 13_030, 13_020, 13_010, 13_000, 12_090, 12_080];

/// Versions of NVRTC that plans are looked for under, where NVRTC is a library of its own: the one that is fetched first, then newest first.
pub(crate) const NVRTCS: [NvrtcVersion; 10] = [
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

/// Targets whose plans load on a machine, in the order in which they are looked for: its own first, then the other library set's, then
/// those that another NVRTC compiled, then those of older drivers where its cuDNN takes them. Where cuDNN reports a property of the GPU
/// that this version of qkvault does not know, the same without it follow: profiles that were captured before do not have it.
///
/// What must be the same: cuDNN's version, the major version of CUDA that it is built with, the host architecture, and the variables that
/// change code; nothing else was seen to load, or is what was asked for. An NVRTC must be one whose kernels the driver loads.
#[must_use]
pub(crate) fn candidates(here: &Target) -> Vec<Target> {
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
    let drivers: Vec<i64> = match LoadRules::of(here.cudnn).driver {
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
        // What compiles for a driver is of no newer CUDA than it.
        for nvrtc in nvrtcs.iter().filter(|nvrtc| nvrtc.is_none_or(|nvrtc| nvrtc.loads_under(driver))) {
            for libraries in sets {
                let toolchain = Toolchain { nvrtc: *nvrtc, ..here.toolchain.clone() };
                let mut target = Target { libraries, toolchain, ..here.clone() };
                target.device.driver_ver = driver;
                all.push(target);
            }
        }
    }
    // Its own is asked for whatever it is: what does not fit is told by name.
    if all.first() != Some(here) {
        all.insert(0, here.clone());
    }
    all
}

/// The NVRTCs to look under: this machine's own, then the others of its CUDA; none where it is inside cuDNN.
fn nvrtcs(here: &Target) -> Vec<Option<NvrtcVersion>> {
    let Some(own) = here.toolchain.nvrtc else { return vec![None] };
    let others = NVRTCS.into_iter().filter(|nvrtc| nvrtc.major == own.major && *nvrtc != own);
    std::iter::once(own).chain(others).map(Some).collect()
}
