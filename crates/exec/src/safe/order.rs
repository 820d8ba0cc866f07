//! The order of launches among streams, over memory that is this crate's own: a workspace, the metadata of a batch.
//!
//! cudarc orders its slices with an event for each, recorded at every use. Memory that nothing else reaches needs less:
//! the stream that used it last is remembered, and only when another stream comes an event is recorded on the former
//! and waited for. On one stream that costs nothing.

use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result};
use smallvec::SmallVec;

use crate::driver::words::of_cudarc;
use crate::raw::launch_error::LaunchError;

/// Streams that use a piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// The stream of the last write.
    written: Option<Arc<CudaStream>>,
    /// Streams that have read it since, other than that of the write.
    read: SmallVec<[Arc<CudaStream>; 2]>,
    event: Option<CudaEvent>,
}

pub(crate) fn same(a: &CudaStream, b: &CudaStream) -> bool {
    a.cu_stream() == b.cu_stream() && a.context().cu_ctx() == b.context().cu_ctx()
}

/// Whether the stream is being captured. The default stream cannot be; asking it fails while another one is captured.
///
/// The context must be current. cudarc's own function is not called, because it returns errors that it kept before.
pub(crate) fn is_captured(stream: &CudaStream) -> bool {
    // SAFETY: the stream is alive.
    let status = unsafe { result::stream::is_capturing(stream.cu_stream()) };
    status.is_ok_and(|status| status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// The stream on which the address of a slice is asked for while another one is captured: cudarc makes the stream wait
/// for the slice's events, and a capture that waits for work outside it is invalid.
pub(crate) fn aside(stream: &CudaStream) -> Arc<CudaStream> {
    stream.context().default_stream()
}

/// What fails where [`Uses`] cannot order a launch.
pub(crate) const WAIT: &str = "wait for the streams that used the workspace, the batch or the arena before";

pub(crate) fn driver_error(step: &'static str, error: &DriverError) -> LaunchError {
    LaunchError::Driver { step, detail: of_cudarc(error) }
}

impl Uses {
    /// Memory that was last written on this stream, such as memory that was allocated there.
    pub(crate) fn written(stream: &Arc<CudaStream>) -> Uses {
        Uses { written: Some(Arc::clone(stream)), read: SmallVec::new(), event: None }
    }

    /// Makes a stream wait for the last write, before it reads.
    pub(crate) fn read(&mut self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let known = self.written.as_deref().is_some_and(|written| same(written, stream))
            || self.read.iter().any(|read| same(read, stream));
        if known {
            return Ok(());
        }
        let Uses { written, read, event } = self;
        if let Some(written) = written {
            join(event, written, stream)?;
        }
        read.push(Arc::clone(stream));
        Ok(())
    }

    /// Makes a stream wait for every use, before it writes.
    pub(crate) fn write(&mut self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let Uses { written, read, event } = self;
        let alone = read.is_empty() && written.as_deref().is_some_and(|written| same(written, stream));
        if alone {
            return Ok(());
        }
        for other in written.iter().chain(read.iter()).filter(|other| !same(other, stream)) {
            join(event, other, stream)?;
        }
        *written = Some(Arc::clone(stream));
        read.clear();
        Ok(())
    }
}

/// Makes `later` wait for what is queued on `former`.
fn join(event: &mut Option<CudaEvent>, former: &CudaStream, later: &CudaStream) -> Result<(), DriverError> {
    if is_captured(former) {
        // An event recorded now would become a part of that graph.
        return Err(DriverError(cudarc::driver::sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
    }
    let event = match event {
        Some(event) => event,
        None => event.insert(former.context().new_event(None)?),
    };
    event.record(former)?;
    later.wait(event)
}
