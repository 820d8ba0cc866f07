//! A step's numbers on the device: one block of memory that bound plans and captured graphs share, updated in place.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError};
use qkvault_graph::{Role, Valid};

use crate::safe::operands::Bindings;
use crate::safe::session::LoadedPlan;
use crate::safe::staging::Shared;
use crate::safe::tracked::StepMemory;
use crate::serving::{BatchInputErrors, Step, StepBuffer, StepLayout};

/// Why a batch was not made or updated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The step is not one of the plan's.
    #[error(transparent)]
    Step(#[from] BatchInputErrors),
    /// The driver refused.
    #[error("a step's lengths and tables could not be {step}: {detail}")]
    Driver {
        /// What was tried.
        step: &'static str,
        /// What the driver answered.
        detail: String,
    },
}

pub(crate) fn driver(step: &'static str) -> impl FnOnce(DriverError) -> BatchError {
    move |error| BatchError::Driver { step, detail: error.to_string() }
}

/// Lengths, offsets and page tables of a plan's steps, on the device and as a copy on the host.
///
/// Bind it once ([`Bindings::batch`]), to as many plans as run one step after the other (the layers of a model), and update it
/// before each step: addresses stay, so bound plans and captured graphs stay valid. Updates are ordered after the launches that
/// read the step before, and before those that read this one.
///
/// An update writes words that changed, and allocates nothing. It copies them from 16 MB of page-locked memory that the batches of a device
/// share, room for hundreds of usual steps, and waits for the GPU only where that is full. It fills the numbers of a plan with the given batch and lengths;
/// another plan of the same shapes may share it.
pub struct BatchMetadata {
    buffer: StepBuffer,
    memory: Arc<StepMemory>,
    staging: Shared,
    /// Words that were changed on the host by an update that did not reach the device.
    stale: bool,
}

/// What an update copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    /// Bytes, all copies together.
    pub bytes: usize,
    /// Copies: one for lengths and offsets each, and one for each part of a table in which sequences got pages.
    pub copies: usize,
}

impl BatchMetadata {
    /// The batch of a plan that computes this attention; every sequence is idle at first.
    ///
    /// # Errors
    ///
    /// [`BatchError`].
    pub fn new(plan: &LoadedPlan, attention: &Valid, stream: &Arc<CudaStream>) -> Result<BatchMetadata, BatchError> {
        let buffer = StepBuffer::new(StepLayout::of(attention, plan.facts())?);
        let memory = StepMemory::upload(stream, buffer.words()).map_err(driver("put on the GPU"))?;
        let staging = plan.device().staging.clone();
        staging.make_room(stream, buffer.layout().words()).map_err(driver("staged"))?;
        Ok(BatchMetadata { buffer, memory: Arc::new(memory), staging, stale: false })
    }

    /// Whether every entry of the tables is looked at with each update; by default in debug builds only.
    pub fn check_pages(&mut self, always: bool) {
        self.buffer.check_pages(always);
    }

    /// Makes the next launches compute this step.
    ///
    /// # Errors
    ///
    /// [`BatchError::Step`] with everything that is wrong; then the step before stays.
    pub fn update<T: AsRef<[i32]>>(
        &mut self,
        step: &Step<'_, T>,
        stream: &Arc<CudaStream>,
    ) -> Result<Uploaded, BatchError> {
        let all = self.stale.then_some(0..self.buffer.layout().words());
        self.stale = true;
        let changed = match self.buffer.fill(step) {
            Ok(changed) => changed.len(),
            Err(wrong) => {
                // Nothing was changed.
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
        self.staging.copy(pieces, &mut self.memory.lock(), stream).map_err(driver("updated"))?;
        self.stale = false;
        Ok(uploaded)
    }

    /// Copies the block back from the device, compares it with what was put there and checks it as a kernel would read it: page
    /// ids within the pool, offsets that do not fall, lengths within the plan. It waits for the stream: for debugging.
    ///
    /// # Errors
    ///
    /// [`BatchError::Step`] with the operand that is not as it should be.
    pub fn verify(&self, stream: &Arc<CudaStream>) -> Result<(), BatchError> {
        let memory = self.memory.lock();
        let words = stream.clone_dtoh(&*memory).map_err(driver("read back"))?;
        stream.synchronize().map_err(driver("read back"))?;
        Ok(self.buffer.verify(&words)?)
    }

    /// Where an operand lies on the device, for kernels of the caller's own that write page tables or lengths there: they are
    /// ordered by the caller, and [`BatchMetadata::verify`] finds what is wrong with them.
    #[must_use]
    pub fn address(&self, role: Role) -> Option<u64> {
        let of = |(operand, ..): &(Role, usize, usize)| *operand == role;
        self.buffer.layout().operands().find(of).map(|(_, at, _)| self.memory.address() + 4 * at as u64)
    }

    /// The block on the host.
    #[must_use]
    pub fn buffer(&self) -> &StepBuffer {
        &self.buffer
    }
}

impl Bindings<'_> {
    /// Binds the lengths, offsets and page tables of a batch to their roles.
    #[must_use]
    pub fn batch(mut self, batch: &BatchMetadata) -> Self {
        for (role, at, words) in batch.buffer.layout().operands() {
            self.raw = self.raw.tensor(role, batch.memory.address() + 4 * at as u64, 4 * words as u64);
        }
        self.batch = Some(Arc::clone(&batch.memory));
        self
    }
}

impl std::fmt::Debug for BatchMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BatchMetadata({} sequences at {:#x})", self.buffer.layout().batch(), self.memory.address())
    }
}
