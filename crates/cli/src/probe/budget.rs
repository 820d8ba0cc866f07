//! The memory that attentions have to fit in: what is given, what is free on a GPU that is here, or all that the target has.

use qkvault_exec::{Device, DeviceMemory};
use qkvault_graph::Target;
use qkvault_probe::{Budget, on_device};

/// The budget for a target. A process that compiles may load no driver, and so cannot ask what is free.
pub(super) fn of(given: Option<u64>, target: &Target, compiles: bool) -> Budget {
    let free = || if compiles { None } else { free(&target.device.device_name) };
    given.map(Budget::given).or_else(free).unwrap_or_else(|| on_device(target))
}

/// What is free on the GPU of this name; of several, on the one with the most.
fn free(name: &str) -> Option<Budget> {
    let here = (0..).map_while(|ordinal| Device::open(ordinal).ok()).filter(|device| device.name() == name);
    let most = here.filter_map(|device| device.memory().ok()).max_by_key(|memory| memory.free)?;
    let DeviceMemory { free, total } = most;
    Some(Budget::free(free, total))
}
