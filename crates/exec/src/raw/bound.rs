//! A bound plan: operands, slots and workspace in a variant pack that launches reuse.

use std::ffi::c_void;

use qkvault_graph::{DType, PlanKey, Role};
use qkvault_sys::{AttributeName as A, Descriptor, Error, Kind};

use crate::bindings::{Bindings, Number};
use crate::check::{BindErrors, check_bindings, check_workspace};
use crate::driver::memory_kind;
use crate::raw::cells::Cells;
use crate::raw::load::LoadedPlan;

/// Why a plan was not bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindFailure {
    /// What was bound is wrong.
    #[error(transparent)]
    Wrong(#[from] BindErrors),
    /// cuDNN does not take the variant pack.
    #[error(
        "cuDNN does not take what was bound to the plan of '{what}': {source}; report this with what `qkvault doctor` prints"
    )]
    Cudnn {
        /// What the plan computes.
        what: String,
        /// What cuDNN answered.
        source: Error,
    },
}

/// Why a slot kept its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The plan has no such slot.
    #[error("{role} is no slot of the plan; it has {}", if slots.is_empty() { "none".to_owned() } else { join(slots) })]
    NoSlot {
        /// The role.
        role: Role,
        /// The slots there are.
        slots: Vec<Role>,
    },
    /// The slot holds another type.
    #[error("slot {role} is {needed}, and {given} was given")]
    WrongDType {
        /// The role.
        role: Role,
        /// What the plan wants.
        needed: DType,
        /// What was given.
        given: DType,
    },
}

fn join(roles: &[Role]) -> String {
    roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a launch was not queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// cuDNN refused it.
    #[error(
        "plan {key} ({what}) was not launched: {source}; an error of an earlier kernel on this GPU can show here too"
    )]
    Refused {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What cuDNN answered.
        source: Error,
    },
    /// The driver refused a step before or after it.
    #[error(
        "the launch could not {step}: {detail}; if it is an error of an earlier kernel or of something dropped before, it is reported here          because CUDA tells it late"
    )]
    Driver {
        /// What was tried.
        step: &'static str,
        /// What the driver answered.
        detail: String,
    },
    /// The stream is of another context than the plan.
    #[error(
        "the stream is of GPU {stream}'s context and the plan is loaded in one of GPU {plan}; use a stream of Session::device()"
    )]
    OtherContext {
        /// Ordinal of the stream's GPU.
        stream: usize,
        /// Ordinal of the plan's GPU.
        plan: usize,
    },
    /// The stream is being captured while cudarc tracks events, whose waits a capture does not allow.
    #[error(
        "the stream is being captured, and cudarc's event tracking is on, which would break the capture; use Bound::capture, or turn it off          before the operands are allocated (CudaContext::disable_event_tracking) and order the streams yourself"
    )]
    TrackedCapture,
}

/// A plan with its operands, ready to be launched any number of times.
///
/// # Threads
///
/// `Send`, not `Sync`: it may move between threads; one at a time launches it.
#[derive(Debug)]
pub struct Bound {
    pack: Descriptor,
    cells: Cells,
    slots: Vec<Slot>,
    plan: LoadedPlan,
    workspace: (u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    role: Role,
    dtype: DType,
    cell: usize,
}

impl LoadedPlan {
    /// Binds operands, slots and `workspace` (address and bytes; zeros if the plan needs none) by role, after checking them all.
    ///
    /// # Errors
    ///
    /// [`BindFailure::Wrong`] with everything that is wrong.
    pub fn bind(&self, bindings: &Bindings, workspace: (u64, u64)) -> Result<Bound, BindFailure> {
        self.check(bindings, workspace)?;
        let mut values: Vec<u64> = self.facts().fixed.iter().map(|fixed| cell(fixed.value.bytes())).collect();
        let mut slots = Vec::new();
        for binding in self.facts().bindings.iter().filter(|b| b.slot) {
            slots.push(Slot { role: binding.role, dtype: binding.dtype, cell: values.len() });
            let given = bindings.slots.iter().find(|(role, _)| *role == binding.role);
            values.push(given.map_or(0, |(_, value)| value.cell()));
        }
        let cells = Cells::new(values);
        let pack = self.pack(bindings, workspace.0, &cells, &slots)?;
        Ok(Bound { pack, cells, slots, plan: self.clone(), workspace })
    }

    fn check(&self, bindings: &Bindings, workspace: (u64, u64)) -> Result<(), BindErrors> {
        let ordinal = self.session().machine().ordinal;
        check_bindings(self.facts(), bindings, ordinal, &memory_kind)?;
        check_workspace(self.facts(), bindings, self.workspace(), workspace.0, workspace.1)
    }

    /// The variant pack of checked bindings.
    fn pack(
        &self,
        bindings: &Bindings,
        workspace: u64,
        cells: &Cells,
        slots: &[Slot],
    ) -> Result<Descriptor, BindFailure> {
        let at = |address: u64| address as usize as *mut c_void;
        let fixed = self.facts().fixed.iter().enumerate().map(|(i, fixed)| (fixed.uid, cells.address(i)));
        let slots = slots.iter().map(|slot| (slot.role.uid(), cells.address(slot.cell)));
        let operands = bindings.operands.iter().map(|operand| (operand.role.uid(), at(operand.address)));
        let buffers = self.scratch().buffers.iter().map(|(role, offset)| (role.uid(), at(workspace + offset)));
        let (uids, pointers): (Vec<i64>, Vec<*mut c_void>) = fixed.chain(slots).chain(operands).chain(buffers).unzip();
        let make = || {
            let mut pack = Descriptor::create(&self.session().inner.library, Kind::VARIANT_PACK)?;
            pack.set(A::VARIANT_PACK_UNIQUE_IDS, &uids)?;
            // SAFETY: host addresses are those of cells that live as long as the pack; that operands and workspace stay valid is what the
            // caller promises with each launch, the only thing that follows them.
            unsafe {
                pack.set_pointers(A::VARIANT_PACK_DATA_POINTERS, &pointers)?;
                pack.set_pointers(A::VARIANT_PACK_WORKSPACE, &[at(workspace)])?;
            }
            pack.finalized()
        };
        make().map_err(|source| BindFailure::Cudnn { what: self.facts().what.clone(), source })
    }
}

fn cell(bytes: [u8; 4]) -> u64 {
    let mut cell = [0; 8];
    cell[..4].copy_from_slice(&bytes);
    u64::from_ne_bytes(cell)
}

impl Bound {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &LoadedPlan {
        &self.plan
    }

    /// Gives a slot another value, from the next launch on. Nothing is built or bound anew.
    ///
    /// A captured launch has read its slots when it was captured: replays keep the values of then.
    ///
    /// # Errors
    ///
    /// [`SlotError`]; then the slot keeps its value.
    pub fn set_slot(&mut self, role: Role, value: impl Into<Number>) -> Result<(), SlotError> {
        let value = value.into();
        let Some(slot) = self.slots.iter().find(|slot| slot.role == role) else {
            return Err(SlotError::NoSlot { role, slots: self.slots.iter().map(|slot| slot.role).collect() });
        };
        if slot.dtype != value.dtype() {
            return Err(SlotError::WrongDType { role, needed: slot.dtype, given: value.dtype() });
        }
        self.cells.set(slot.cell, value.cell());
        Ok(())
    }

    /// Binds other operands and slots in place of all that were bound; the workspace stays.
    ///
    /// # Errors
    ///
    /// As [`LoadedPlan::bind`]; then everything stays as it was.
    pub fn rebind(&mut self, bindings: &Bindings) -> Result<(), BindFailure> {
        self.plan.check(bindings, self.workspace)?;
        self.pack = self.plan.pack(bindings, self.workspace.0, &self.cells, &self.slots)?;
        for slot in &self.slots {
            if let Some((_, value)) = bindings.slots.iter().find(|(role, _)| *role == slot.role) {
                self.cells.set(slot.cell, value.cell());
            }
        }
        Ok(())
    }

    /// Queues a launch on a stream (a `cudaStream_t` or `CUstream`; null is the default stream).
    ///
    /// Nothing is probed, hashed, allocated or looked up; a handle that is already on this stream is used as it is.
    ///
    /// # Safety
    ///
    /// The stream must be of the session's GPU. Every address that was bound must be valid for what the plan does with that operand, and the
    /// workspace serve no other launch, until this one is finished on the stream. The session's context must be current on this thread.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]; nothing was queued then.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream) }.map_err(|source| {
            let facts = self.plan.facts();
            LaunchError::Refused { key: facts.key, what: facts.what.clone(), source }
        })
    }

    /// # Safety
    ///
    /// As [`Bound::launch`].
    unsafe fn queue(&self, stream: *mut c_void) -> Result<(), Error> {
        let mut lease = self.plan.session().inner.pool.lease(stream)?;
        // SAFETY: the stream is of this GPU, and alive until the launch is queued.
        unsafe { lease.set_stream(stream) }?;
        let plan = self.plan.descriptor();
        // SAFETY: the addresses are the caller's promise; host numbers lie in cells of ours; plan and handle are of one session.
        unsafe { lease.handle().execute(&plan, &self.pack) }
    }
}
