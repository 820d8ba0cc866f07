//! Times launches: CUDA events give the device time, a clock gives the host time.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;
use qkvault_exec::{Bound, cudarc};

use crate::memory::{RowFailure, failed};

/// Mean times of one launch in a round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Device time between two events on the stream, in milliseconds.
    pub device_ms: f64,
    /// Host time of the call that queues the launch, in microseconds.
    pub host_us: f64,
}

/// Queues `launches` launches between two events, and waits for the second event.
pub fn round(stream: &Arc<CudaStream>, bound: &mut Bound<'_>, launches: usize) -> Result<Round, RowFailure> {
    round_after(stream, bound, 0, launches)
}

/// Queues `before` untimed launches, then `launches` launches between two events, and waits for the second event.
///
/// Nothing waits between the untimed and the timed launches. The GPU is therefore busy when the first event is
/// recorded, and the host's time for a launch does not count. The benchmarks of PyTorch time in the same way.
pub fn round_after(
    stream: &Arc<CudaStream>,
    bound: &mut Bound<'_>,
    before: usize,
    launches: usize,
) -> Result<Round, RowFailure> {
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

/// The median. Sorts the values.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
