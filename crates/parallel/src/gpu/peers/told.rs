//! What ranks tell each other of their memory.

use std::ffi::c_char;

use cudarc::driver::sys::{CUipcMemHandle, CUuuid, cuDeviceGetUuid_v2, cuIpcGetMemHandle};
use cudarc::driver::{CudaContext, DriverError};
use qkvault_exec::cudarc;

use crate::comm::PeerCopies;

/// Where a rank's memory is, and how to open it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerTold {
    /// The start of the host and the processes that it sees: equal for processes that can open each other's memory.
    pub(super) host: String,
    pub(super) process: u32,
    /// The GPU's UUID.
    pub(super) gpu: Vec<u8>,
    pub(super) address: u64,
    /// Bytes from there to the flags.
    pub(super) flags: u64,
    /// The driver's handle for other processes.
    handle: Vec<u8>,
}

impl PeerTold {
    /// What this rank tells of its memory; `None` where others cannot open it.
    pub(super) fn own(context: &CudaContext, address: u64, flags: u64) -> Option<PeerTold> {
        let start = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let sees = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let host = format!("{} {}", start.trim(), sees.display());
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        context.bind_to_thread().ok()?;
        // SAFETY: the address is an allocation of this context, which is current; the handle is written.
        unsafe { cuIpcGetMemHandle(&raw mut handle, address) }.result().ok()?;
        let handle = handle.reserved.map(|byte| byte.cast_unsigned()).to_vec();
        let gpu = uuid(context.cu_device()).ok()?;
        Some(PeerTold { host, process: std::process::id(), gpu, address, flags, handle })
    }

    /// Whether this rank may open the memory of another one.
    pub(super) fn may_open(&self, other: &PeerTold, wanted: PeerCopies) -> bool {
        // Two ranks on one GPU could wait for each other behind one of its queues, and two threads for a lock of the
        // driver's.
        let threads = self.process == other.process;
        self.host == other.host && self.gpu != other.gpu && (!threads || wanted == PeerCopies::Threads)
    }

    pub(super) fn handle(&self) -> Option<CUipcMemHandle> {
        let reserved: [u8; 64] = self.handle.as_slice().try_into().ok()?;
        Some(CUipcMemHandle { reserved: reserved.map(|byte| byte as c_char) })
    }
}

/// The UUID of a GPU.
pub(super) fn uuid(device: cudarc::driver::sys::CUdevice) -> Result<Vec<u8>, DriverError> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the function writes 16 bytes.
    unsafe { cuDeviceGetUuid_v2(&raw mut uuid, device) }.result()?;
    Ok(uuid.bytes.map(|byte| byte.cast_unsigned()).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thread 1 loaded a kernel of cuDNN's with the driver's lock and waited for its GPU, which waited for thread 2,
    /// which waited for the lock to copy.
    #[test]
    fn audit_threads_of_a_process_write_each_others_gpus_only_on_request() {
        let told = |host: &str, process, gpu| PeerTold {
            host: host.to_owned(),
            process,
            gpu: vec![gpu; 16],
            address: 0,
            flags: 0,
            handle: Vec::new(),
        };
        let own = told("a", 1, 1);
        let may =
            |other: PeerTold| [PeerCopies::Processes, PeerCopies::Threads].map(|which| own.may_open(&other, which));
        assert_eq!(may(told("a", 2, 2)), [true, true]);
        assert_eq!(may(told("a", 1, 2)), [false, true]);
        assert_eq!(may(told("a", 2, 1)), [false, false], "one GPU");
        assert_eq!(may(told("b", 2, 2)), [false, false], "another host");
    }
}
