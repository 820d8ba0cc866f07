//! The GPU: opened through cudarc, with every absence an error value.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, DriverError};
use qkvault_graph::{DeviceProps, Target};
use qkvault_sys::Library;

use crate::driver::{NoDriver, driver};
use crate::properties::{PropertiesError, present_target};
use crate::raw::session::ContextGuard;
use crate::safe::staging::Shared;

/// Why there is no GPU to use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no driver.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// There is a driver, and no GPU that this process may use.
    #[error(
        "the NVIDIA driver finds no GPU ({detail}): `nvidia-smi` lists what there is; CUDA_VISIBLE_DEVICES hides GPUs from a process (now: \
         {visible}), and a container sees those it was started with"
    )]
    NoGpu {
        /// What the driver answered.
        detail: String,
        /// The value of `CUDA_VISIBLE_DEVICES`.
        visible: String,
    },
    /// There are fewer GPUs.
    #[error("GPU {given} was asked for, and this process sees {count}, numbered from 0")]
    BadOrdinal {
        /// What was asked for.
        given: usize,
        /// How many there are.
        count: i32,
    },
    /// The context is not the GPU's primary one, which cuDNN works in.
    #[error(
        "the CUDA context given is not the primary one of GPU {ordinal}, in which cuDNN works; make it with CudaContext::new"
    )]
    NotPrimary {
        /// The GPU.
        ordinal: usize,
    },
    /// The driver refused.
    #[error("the NVIDIA driver could not {step}: {detail}; `nvidia-smi` shows whether it works")]
    Driver {
        /// What was tried.
        step: &'static str,
        /// What it answered.
        detail: String,
    },
}

impl DeviceError {
    fn driver(step: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
        move |error| DeviceError::Driver { step, detail: error.to_string() }
    }
}

/// Memory of a GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What nobody uses now.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// A GPU with its primary context. Cloning gives another hand on the same one.
#[derive(Clone)]
pub struct Device {
    context: Arc<CudaContext>,
    name: Arc<str>,
    uuid: [u8; 16],
    /// What batches copy their steps from.
    pub(crate) staging: Shared,
}

impl Device {
    /// Opens a GPU by CUDA's ordinal.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]. Without a driver, and with the stand-in for one, the answer is [`DeviceError::NoDriver`]; cudarc, which would panic,
    /// is not asked then.
    pub fn open(ordinal: usize) -> Result<Device, DeviceError> {
        driver()?;
        let count = count()?;
        if !c_int::try_from(ordinal).is_ok_and(|ordinal| ordinal < count) {
            return Err(DeviceError::BadOrdinal { given: ordinal, count });
        }
        Device::on(CudaContext::new(ordinal).map_err(DeviceError::driver("open a context on the GPU"))?)
    }

    /// The GPU of a context that is open already.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotPrimary`], or the driver's.
    pub fn on(context: Arc<CudaContext>) -> Result<Device, DeviceError> {
        if !context.is_primary() {
            return Err(DeviceError::NotPrimary { ordinal: context.ordinal() });
        }
        let name = context.name().map_err(DeviceError::driver("tell the GPU's name"))?.into();
        let uuid = context.uuid().map_err(DeviceError::driver("tell the GPU's UUID"))?;
        // `c_char` is signed on some platforms; the bytes are what counts.
        #[allow(clippy::unnecessary_cast, reason = "c_char is i8 on x86-64 and u8 on AArch64")]
        let uuid = uuid.bytes.map(|byte| byte as u8);
        Ok(Device { context, name, uuid, staging: Shared::default() })
    }

    /// cudarc's context, for streams and memory.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// CUDA's ordinal.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Marketing name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The UUID as `nvidia-smi -L` prints it.
    #[must_use]
    pub fn uuid(&self) -> String {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// The GPU's memory as it is now: what the driver says is free, and all. What this process has allocated is not free.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`].
    pub fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        let (free, total) = self.context.mem_get_info().map_err(DeviceError::driver("tell how much memory is free"))?;
        Ok(DeviceMemory { free: free as u64, total: total as u64 })
    }

    /// The properties that cuDNN compiles for, as a profile keeps them.
    ///
    /// # Errors
    ///
    /// [`PropertiesError`]; fields that this version of qkvault does not know are named.
    pub fn properties(&self, library: &Arc<Library>) -> Result<DeviceProps, PropertiesError> {
        Ok(self.target(library)?.device)
    }

    /// What plans for this GPU under this cuDNN are compiled for.
    ///
    /// # Errors
    ///
    /// As [`Device::properties`].
    pub fn target(&self, library: &Arc<Library>) -> Result<Target, PropertiesError> {
        // Ordinals of an open context are small.
        present_target(library, c_int::try_from(self.ordinal()).unwrap_or(c_int::MAX))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {}, {})", self.ordinal(), self.name, self.uuid())
    }
}

/// The context is entered by cudarc's own means, which also reports errors that could not be returned earlier.
impl ContextGuard for Device {
    fn enter(&self) -> Result<(), String> {
        self.context.bind_to_thread().map_err(|error| error.to_string())
    }
}

/// The number of GPUs, once it is known that there is a driver.
fn count() -> Result<i32, DeviceError> {
    let no_gpu = |error: &DriverError| DeviceError::NoGpu {
        detail: error.to_string(),
        visible: std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "not set".to_owned()),
    };
    match CudaContext::device_count() {
        Ok(0) => Err(no_gpu(&DriverError(CUresult::CUDA_ERROR_NO_DEVICE))),
        Ok(count) => Ok(count),
        Err(error) if error.0 == CUresult::CUDA_ERROR_NO_DEVICE => Err(no_gpu(&error)),
        Err(error) => Err(DeviceError::driver("initialise")(error)),
    }
}
