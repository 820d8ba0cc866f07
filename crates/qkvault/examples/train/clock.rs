//! The time that a GPU takes for the attention of a step: launches and conversions, without copies from the host.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;
use qkvault::exec::cudarc;

use crate::Failure;

/// The milliseconds of all forwards, and of all backwards, of each step.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    steps: Vec<[f32; 2]>,
}

impl Clock {
    /// Begins a step with the forward of the first layer.
    pub(crate) fn begin(&mut self, layer: usize) {
        if layer == 0 {
            self.steps.push([0.0; 2]);
        }
    }

    /// Adds what `work` queues to the step's forwards or backwards.
    pub(crate) fn time(
        &mut self,
        backward: bool,
        stream: &Arc<CudaStream>,
        work: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let event = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let start = event()?;
        work()?;
        let end = event()?;
        if let Some(step) = self.steps.last_mut() {
            step[usize::from(backward)] += start.elapsed_ms(&end)?;
        }
        Ok(())
    }

    /// The medians over all steps but the first, which loads kernels.
    pub(crate) fn medians(&self) -> serde_json::Value {
        let median = |of: usize| {
            let mut all: Vec<f32> = self.steps.iter().skip(1).map(|step| step[of]).collect();
            all.sort_by(f32::total_cmp);
            all.get(all.len() / 2).copied()
        };
        serde_json::json!({ "forward_ms": median(0), "backward_ms": median(1) })
    }
}
