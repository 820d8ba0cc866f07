//! The memory budget of attentions: the given one, the free memory of a GPU in this machine, or the target's total
//! memory.

use qkvault_cudnn::Target;
use qkvault_exec::{Device, DeviceMemory};
use qkvault_probe::{Budget, on_device};

/// The budget for a target. A process that compiles must not load a driver, so it cannot read the free memory.
pub(super) fn for_target(given: Option<u64>, target: &Target, compiles: bool) -> Budget {
    let free = || if compiles { None } else { free(&target.device.device_name) };
    given.map(Budget::given).or_else(free).unwrap_or_else(|| on_device(target))
}

/// The free memory of the GPU with this name. Among several, the GPU with the most free memory counts.
fn free(name: &str) -> Option<Budget> {
    let here = (0..).map_while(|ordinal| Device::open(ordinal).ok()).filter(|device| device.name() == name);
    let most = here.filter_map(|device| device.memory().ok()).max_by_key(|memory| memory.free)?;
    let DeviceMemory { free, total } = most;
    Some(Budget::free(free, total))
}
