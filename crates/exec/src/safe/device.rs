//! The GPU, opened with cudarc. A missing driver or GPU is an error value.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use qkvault_cudnn::{DeviceProps, Target};
use qkvault_sys::Library;

use crate::driver::words::of_cudarc;
use crate::driver::{NoDriver, driver};
use crate::properties::{PropertiesError, present_target};
use crate::raw::launch_error::LaunchError;
use crate::raw::session::{ContextGuard, Entered};
use crate::safe::order::driver_error;
use crate::safe::scratch::ScratchPool;
use crate::safe::staging::SharedStaging;

/// Why a GPU could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no driver.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// The driver finds no GPU that this process may use.
    #[error("the NVIDIA driver finds no GPU: {detail} (CUDA_VISIBLE_DEVICES now: {visible})")]
    NoGpu {
        /// The error of the driver.
        detail: String,
        /// The value of `CUDA_VISIBLE_DEVICES`, or that it is not set.
        visible: String,
    },
    /// There are fewer GPUs than the ordinal needs.
    #[error("GPU {given} was asked for, and this process sees {count}, numbered from 0")]
    BadOrdinal {
        /// The ordinal.
        given: usize,
        /// The number of GPUs.
        count: i32,
    },
    /// The context is not the primary one of its GPU, in which cuDNN works.
    #[error(
        "the CUDA context is not the primary one of GPU {ordinal}, in which cuDNN works; make it with CudaContext::new"
    )]
    NotPrimary {
        /// The GPU.
        ordinal: usize,
    },
    /// The driver returned an error.
    #[error("the NVIDIA driver could not {step}: {detail}")]
    Driver {
        /// The step that failed.
        step: &'static str,
        /// The error of the driver.
        detail: String,
    },
}

impl DeviceError {
    fn driver(step: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
        move |error| DeviceError::Driver { step, detail: of_cudarc(&error) }
    }
}

/// Memory of a GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that no process uses.
    pub free: u64,
    /// Bytes of the GPU.
    pub total: u64,
}

/// A GPU with its primary context. Cheap to clone; clones share one context.
#[derive(Clone)]
pub struct Device {
    context: Arc<CudaContext>,
    name: Arc<str>,
    uuid: [u8; 16],
    /// The page-locked memory from which batches copy their steps.
    pub(crate) staging: SharedStaging,
    scratch: Arc<ScratchPool>,
}

impl Device {
    /// Opens a GPU by CUDA's ordinal.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDriver`] without a driver or with the stand-in, where cudarc would panic; [`DeviceError`]
    /// without the GPU.
    pub fn open(ordinal: usize) -> Result<Device, DeviceError> {
        driver()?;
        let count = count()?;
        if !c_int::try_from(ordinal).is_ok_and(|ordinal| ordinal < count) {
            return Err(DeviceError::BadOrdinal { given: ordinal, count });
        }
        Device::on(CudaContext::new(ordinal).map_err(DeviceError::driver("open a context on the GPU"))?)
    }

    /// Uses the GPU of an open context.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotPrimary`] for another context of the GPU; [`DeviceError::Driver`] if the driver fails.
    pub fn on(context: Arc<CudaContext>) -> Result<Device, DeviceError> {
        if !context.is_primary() {
            return Err(DeviceError::NotPrimary { ordinal: context.ordinal() });
        }
        let name = context.name().map_err(DeviceError::driver("tell the GPU's name"))?.into();
        let uuid = context.uuid().map_err(DeviceError::driver("tell the GPU's UUID"))?;
        // `c_char` is signed on some platforms; the bytes are what counts.
        #[allow(clippy::unnecessary_cast, reason = "c_char is i8 on x86-64 and u8 on AArch64")]
        let uuid = uuid.bytes.map(|byte| byte as u8);
        Ok(Device { context, name, uuid, staging: SharedStaging::default(), scratch: Arc::default() })
    }

    /// cudarc's context, for streams and memory.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes the context current on this thread. Unlike cudarc's function it does not return errors that cudarc kept
    /// before.
    pub(crate) fn make_current(&self) -> Result<(), DriverError> {
        if result::ctx::get_current()? != Some(self.context.cu_ctx()) {
            // SAFETY: this value keeps the context alive.
            unsafe { result::ctx::set_current(self.context.cu_ctx()) }?;
        }
        Ok(())
    }

    /// Whether a context is that of this GPU.
    pub(crate) fn has(&self, context: &Arc<CudaContext>) -> bool {
        Arc::ptr_eq(&self.context, context) || self.context.cu_ctx() == context.cu_ctx()
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

    /// The scratch memory of launches with arguments.
    pub(crate) fn scratch(&self) -> &ScratchPool {
        &self.scratch
    }

    /// The free and total memory of the GPU now, as the driver reports it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] if the driver does not report it.
    pub fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        let (free, total) = self.context.mem_get_info().map_err(DeviceError::driver("tell how much memory is free"))?;
        Ok(DeviceMemory { free: free as u64, total: total as u64 })
    }

    /// The properties of the GPU for which cuDNN compiles, as a profile holds them.
    ///
    /// # Errors
    ///
    /// [`PropertiesError`] if cuDNN does not return properties that can be read.
    pub fn properties(&self, library: &Arc<Library>) -> Result<DeviceProps, PropertiesError> {
        Ok(self.target(library)?.device)
    }

    /// The target of plans for this GPU under this cuDNN.
    ///
    /// # Errors
    ///
    /// [`PropertiesError`] if cuDNN does not return properties that can be read.
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

/// Makes the context current, as cudarc does, for good. Errors that cudarc keeps stay for the call that asks for them.
impl ContextGuard for Device {
    fn enter(&self) -> Result<Entered, String> {
        self.make_current().map_err(|error| of_cudarc(&error))?;
        Ok(Entered::stays())
    }
}

/// The per-thread default stream, a constant of CUDA. It is another stream in each thread, so nothing can remember it.
const PER_THREAD: usize = 2;

/// Checks that the stream is of the plan's context, and makes the context current.
pub(crate) fn ready(device: &Device, stream: &CudaStream) -> Result<(), LaunchError> {
    let (ours, theirs) = (device.context(), stream.context());
    if !Arc::ptr_eq(ours, theirs) && ours.cu_ctx() != theirs.cu_ctx() {
        return Err(LaunchError::OtherContext { stream: theirs.ordinal(), plan: ours.ordinal() });
    }
    if stream.cu_stream() as usize == PER_THREAD {
        return Err(LaunchError::PerThreadStream);
    }
    device.make_current().map_err(|e| driver_error("make the context current", &e))
}

/// The number of GPUs. There must be a driver.
fn count() -> Result<i32, DeviceError> {
    let no_gpu = |error: &DriverError| DeviceError::NoGpu {
        detail: of_cudarc(error),
        visible: std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "not set".to_owned()),
    };
    match CudaContext::device_count() {
        Ok(0) => Err(no_gpu(&DriverError(CUresult::CUDA_ERROR_NO_DEVICE))),
        Ok(count) => Ok(count),
        Err(error) if error.0 == CUresult::CUDA_ERROR_NO_DEVICE => Err(no_gpu(&error)),
        Err(error) => Err(DeviceError::driver("initialise")(error)),
    }
}
