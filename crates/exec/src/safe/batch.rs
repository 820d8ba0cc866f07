//! The metadata of a batch on the device: one block of memory that bound plans and captured graphs share, updated in
//! place.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError};
use qkvault_graph::{Role, Valid, ValidCacheAppend};

use crate::driver::words::of_cudarc;
use crate::safe::args::Args;
use crate::safe::device::Device;
use crate::safe::order::is_captured;
use crate::safe::plan::LoadedPlan;
use crate::safe::staging::SharedStaging;
use crate::safe::tracked::{BatchArgs, StepMemory};
use crate::serving::{BatchInputErrors, Step, StepBuffer, StepLayout};

/// Why the metadata of a batch was not created or updated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The step does not fit the plan.
    #[error(transparent)]
    Step(#[from] BatchInputErrors),
    /// The stream is in another context than the batch.
    #[error(
        "the stream is in a context of GPU {stream}, and the batch in another; use a stream of the plan's \
         Session::device()"
    )]
    OtherContext {
        /// Ordinal of the stream's GPU.
        stream: usize,
    },
    /// The stream is being captured.
    #[error(
        "the stream is being captured, and replays of the graph would copy what later steps wrote to the staging \
         memory; update the batch outside the capture: addresses stay, and replays read the new step"
    )]
    Captured,
    /// The driver refused.
    #[error("the metadata of a batch could not be {step}: {detail}")]
    Driver {
        /// The step that failed.
        step: &'static str,
        /// The error of the driver.
        detail: String,
    },
}

pub(crate) fn driver(step: &'static str) -> impl FnOnce(DriverError) -> BatchError {
    move |error| BatchError::Driver { step, detail: of_cudarc(&error) }
}

/// The metadata of a batch: lengths, offsets and page tables of a plan's steps, on the device and as a copy on the
/// host.
///
/// Give it once ([`Args::batch`](crate::Args::batch)) to all plans that run the same step one after the other, such as
/// the layers of a model, and update it before each step. Its addresses never change, so bound plans and captured
/// graphs stay valid. An update runs after the launches that read the step before, and before the launches that read
/// the new one. Plans of equal shapes can share it.
///
/// An update writes the words that changed and allocates nothing. It copies them from 16 MB of page-locked memory that
/// all batches of a device share, which holds hundreds of usual steps, and waits for the GPU only when that memory is
/// full.
///
/// ```no_run
/// # use qkvault_exec::serving::{Rows, Step};
/// # use qkvault_exec::{Args, BatchMetadata, LoadedPlan, cudarc};
/// # use qkvault_graph::Valid;
/// # fn run(
/// #     plan: &LoadedPlan, attention: &Valid, stream: &std::sync::Arc<cudarc::driver::CudaStream>,
/// #     q: &cudarc::driver::CudaSlice<half::bf16>, k: &cudarc::driver::CudaSlice<half::bf16>,
/// #     v: &cudarc::driver::CudaSlice<half::bf16>, o: &mut cudarc::driver::CudaSlice<half::bf16>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// // `plan` computes `attention`, a decode over paged keys and values.
/// let mut batch = BatchMetadata::new(plan, attention, stream)?;
/// let mut bound = plan.bind(Args::new().q(q).k(k).v(v).o(o).batch(&batch), stream)?;
///
/// // Two sequences with one query each: 100 keys on pages 3 and 7, 17 keys on page 5.
/// let pages = [vec![3, 7], vec![5]];
/// batch.update(&Step::paged(Rows::One(2), Rows::Lengths(&[100, 17]), &pages), stream)?;
/// bound.launch(stream)?;
/// // The next step: another key in each sequence. Nothing is bound again.
/// batch.update(&Step::paged(Rows::One(2), Rows::Lengths(&[101, 18]), &pages), stream)?;
/// bound.launch(stream)?;
/// # Ok(())
/// # }
/// ```
pub struct BatchMetadata {
    buffer: StepBuffer,
    memory: Arc<StepMemory>,
    staging: SharedStaging,
    device: Device,
    /// Whether an update changed words on the host that did not reach the device.
    stale: bool,
}

/// The size of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    /// Bytes of all copies.
    pub bytes: usize,
    /// Number of copies: one for the lengths, one for the offsets, and one for each part of a table with new pages.
    pub copies: usize,
}

impl BatchMetadata {
    /// Allocates the metadata of a plan that computes this attention. Every sequence is idle at first.
    ///
    /// # Errors
    ///
    /// [`BatchError::Step`] if the plan has no lengths; [`BatchError::OtherContext`] if the stream is not of the plan's
    /// GPU; [`BatchError::Driver`] if the driver has no memory.
    pub fn new(plan: &LoadedPlan, attention: &Valid, stream: &Arc<CudaStream>) -> Result<BatchMetadata, BatchError> {
        BatchMetadata::of_layout(StepLayout::for_plan(attention, plan.facts())?, plan, stream)
    }

    /// The same for a step that appends its keys and values to the attention's caches first: both launches take the
    /// batch.
    ///
    /// # Errors
    ///
    /// As [`BatchMetadata::new`].
    pub fn with_append(
        plan: &LoadedPlan,
        attention: &Valid,
        append: &ValidCacheAppend,
        stream: &Arc<CudaStream>,
    ) -> Result<BatchMetadata, BatchError> {
        BatchMetadata::of_layout(StepLayout::with_append(attention, plan.facts(), append)?, plan, stream)
    }

    fn of_layout(layout: StepLayout, plan: &LoadedPlan, stream: &Arc<CudaStream>) -> Result<BatchMetadata, BatchError> {
        if !plan.device().has(stream.context()) {
            return Err(BatchError::OtherContext { stream: stream.context().ordinal() });
        }
        let buffer = StepBuffer::new(layout);
        let memory = StepMemory::upload(stream, buffer.words()).map_err(driver("put on the GPU"))?;
        let staging = plan.device().staging.clone();
        staging.make_room(stream, buffer.layout().words()).map_err(driver("staged"))?;
        let device = plan.device().clone();
        Ok(BatchMetadata { buffer, memory: Arc::new(memory), staging, device, stale: false })
    }

    /// Checks a step and copies it to the device, for the launches that follow on this stream.
    ///
    /// # Errors
    ///
    /// [`BatchError::Step`] with all errors in the step; the step before stays on the device then.
    /// [`BatchError::Driver`] if the driver refuses a copy; the next update then copies the whole block.
    pub fn update<T: AsRef<[i32]>>(
        &mut self,
        step: &Step<'_, T>,
        stream: &Arc<CudaStream>,
    ) -> Result<Uploaded, BatchError> {
        if !self.device.has(stream.context()) {
            return Err(BatchError::OtherContext { stream: stream.context().ordinal() });
        }
        if is_captured(stream) {
            return Err(BatchError::Captured);
        }
        let all = self.stale.then_some(0..self.buffer.layout().words());
        self.stale = true;
        let changed = match self.buffer.fill(step) {
            Ok(changed) => changed.len(),
            Err(wrong) => {
                // `fill` changed nothing.
                self.stale = all.is_some();
                return Err(wrong.into());
            }
        };
        let changes = if all.is_some() { 0 } else { changed };
        let changes = all.into_iter().chain(self.buffer.changed()[..changes].iter().cloned());
        let pieces = changes.map(|range| (range.start, &self.buffer.words()[range]));
        let mut uploaded = Uploaded::default();
        for (_, piece) in pieces.clone() {
            uploaded.bytes += size_of_val(piece);
            uploaded.copies += 1;
        }
        let mut memory = self.memory.lock();
        memory.uses.write(stream).map_err(driver("ordered after the launches that read it"))?;
        self.staging.copy(pieces, &mut memory.words, stream).map_err(driver("updated"))?;
        self.stale = false;
        Ok(uploaded)
    }

    /// Copies the block back from the device, compares it with the host copy, and checks it as a kernel reads it: page
    /// ids within the pool, offsets that do not decrease, lengths within the plan. It waits for the stream, so use it
    /// for debugging.
    ///
    /// # Errors
    ///
    /// [`BatchError::Step`] with the operand that is wrong.
    pub fn verify(&self, stream: &Arc<CudaStream>) -> Result<(), BatchError> {
        let memory = self.memory.lock();
        let words = stream.clone_dtoh(&memory.words).map_err(driver("read back"))?;
        stream.synchronize().map_err(driver("read back"))?;
        Ok(self.buffer.verify(&words)?)
    }

    /// The address of an operand on the device, for kernels of the caller that write page tables or lengths there. The
    /// caller orders these kernels; [`BatchMetadata::verify`] checks what they wrote.
    #[must_use]
    pub fn address(&self, role: Role) -> Option<u64> {
        let of = |(operand, ..): &(Role, usize, usize)| *operand == role;
        self.buffer.layout().operands().find(of).map(|(_, at, _)| self.memory.address() + 4 * at as u64)
    }

    /// The operands of the batch as arguments of a launch.
    pub(crate) fn args(&self) -> BatchArgs {
        let at = |at: usize| self.memory.address() + 4 * at as u64;
        let operands = self.buffer.layout().operands().map(|(role, from, words)| (role, at(from), 4 * words as u64));
        BatchArgs { memory: Arc::clone(&self.memory), operands: operands.collect() }
    }

    /// The copy on the host.
    #[must_use]
    pub fn buffer(&self) -> &StepBuffer {
        &self.buffer
    }
}

impl Args<'_> {
    /// The lengths, offsets and page tables of a batch, which were checked when they were written.
    #[inline]
    #[must_use]
    pub fn batch(mut self, batch: &BatchMetadata) -> Self {
        self.batch = Some(batch.args());
        self
    }
}

impl std::fmt::Debug for BatchMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BatchMetadata({} sequences at {:#x})", self.buffer.layout().batch(), self.memory.address())
    }
}
