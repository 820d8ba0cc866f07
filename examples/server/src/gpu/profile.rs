//! The attention's share of the GPU's time, measured in one of some steps: events around each launch of attention, and
//! around the step.
//!
//! A timed step is queued kernel by kernel behind a kernel that spins until the host has queued all of it, so that no
//! time of the host is in the times.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

use crate::Failure;
use crate::metrics::Metrics;

/// Events of a step.
#[derive(Default)]
pub(super) struct Timer {
    step: Vec<CudaEvent>,
    attention: Vec<CudaEvent>,
}

/// Which steps are timed, and what they took.
#[derive(Default)]
pub(super) struct Profile {
    every: u64,
    steps: u64,
    timer: Option<Timer>,
    timed: u64,
    all_us: f64,
    attention_us: f64,
}

fn now(stream: &Arc<CudaStream>) -> Result<CudaEvent, Failure> {
    Ok(stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
}

impl Timer {
    pub(super) fn start(&mut self, stream: &Arc<CudaStream>) -> Result<(), Failure> {
        self.attention.push(now(stream)?);
        Ok(())
    }

    pub(super) fn end(&mut self, stream: &Arc<CudaStream>) -> Result<(), Failure> {
        self.attention.push(now(stream)?);
        Ok(())
    }
}

impl Profile {
    pub(super) fn every(&mut self, every: u64) {
        self.every = every;
    }

    /// Whether the next step is timed.
    pub(super) fn is_due(&mut self) -> bool {
        self.steps += 1;
        self.every > 0 && self.steps.is_multiple_of(self.every)
    }

    /// Queues a step between two events.
    pub(super) fn time(
        &mut self,
        queue: impl FnOnce(&mut Timer) -> Result<(), Failure>,
        stream: &Arc<CudaStream>,
    ) -> Result<(), Failure> {
        let mut timer = Timer::default();
        timer.step.push(now(stream)?);
        queue(&mut timer)?;
        timer.step.push(now(stream)?);
        self.timer = Some(timer);
        Ok(())
    }

    /// Adds what a timed step took, when it is finished.
    pub(super) fn read(&mut self) -> Result<(), Failure> {
        let Some(Timer { step, attention }) = self.timer.take() else { return Ok(()) };
        let us = |events: &[CudaEvent]| -> Result<f64, Failure> {
            let [start, end] = events else { return Ok(0.0) };
            Ok(f64::from(start.elapsed_ms(end)?) * 1e3)
        };
        self.timed += 1;
        self.all_us += us(&step)?;
        for pair in attention.chunks_exact(2) {
            self.attention_us += us(pair)?;
        }
        Ok(())
    }

    pub(super) fn report(&self, metrics: &Metrics) {
        Metrics::set(&metrics.profiled_steps_total, self.timed);
        Metrics::set(&metrics.profiled_us_total, self.all_us as u64);
        Metrics::set(&metrics.profiled_attention_us_total, self.attention_us as u64);
    }
}
