//! Timing launches: device time by events, host time by the clock.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;
use qkvault_exec::{Bound, cudarc};

use crate::memory::{Failure, failed};

/// What one launch took, on average over those of a round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Between two events on the stream, in milliseconds.
    pub device_ms: f64,
    /// Of the call that queues it, in microseconds.
    pub host_us: f64,
}

/// Launches so many times between two events, and waits.
pub fn round(stream: &Arc<CudaStream>, bound: &mut Bound<'_>, launches: usize) -> Result<Round, Failure> {
    round_after(stream, bound, 0, launches)
}

/// The same after some launches that are not counted. Nothing waits in between, so that the GPU is at work when the first event is
/// recorded and the time that the host takes for a launch is not measured: PyTorch's own turns are timed like this.
pub fn round_after(
    stream: &Arc<CudaStream>,
    bound: &mut Bound<'_>,
    before: usize,
    launches: usize,
) -> Result<Round, Failure> {
    let event = || stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(failed);
    let (start, end) = (event()?, event()?);
    for _ in 0..before {
        bound.launch(stream).map_err(failed)?;
    }
    start.record(stream).map_err(failed)?;
    let clock = Instant::now();
    for _ in 0..launches {
        bound.launch(stream).map_err(failed)?;
    }
    let host_us = clock.elapsed().as_secs_f64() * 1e6 / launches as f64;
    end.record(stream).map_err(failed)?;
    end.synchronize().map_err(failed)?;
    Ok(Round { device_ms: f64::from(start.elapsed_ms(&end).map_err(failed)?) / launches as f64, host_us })
}

/// The middle of some values, which are sorted for it.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
