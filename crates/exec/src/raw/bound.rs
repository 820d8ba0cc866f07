//! A bound plan: checked operands, scalars and workspace in a variant pack that launches reuse.

use std::ffi::c_void;

use qkvault_graph::{DType, Role};
use qkvault_sys::{AttributeName as A, Descriptor, Error, Kind};

use crate::bind_error::BindErrors;
use crate::bindings::{Number, RawBindings};
use crate::check::{check_bindings, check_workspace};
use crate::clear::clear;
use crate::driver::memory_kind;
use crate::raw::host_scalars::HostScalars;
use crate::raw::launch_error::{LaunchError, RawBindFailure, ScalarError};
use crate::raw::load::RawPlan;

/// A plan with its operands, to be launched any number of times.
///
/// # Threads
///
/// `Send`, not `Sync`: it may move between threads, and one thread at a time launches it.
#[derive(Debug)]
pub struct RawBound {
    pack: Descriptor,
    cells: HostScalars,
    scalars: Vec<Scalar>,
    plan: RawPlan,
    workspace: (u64, u64),
}

/// A scalar, and the index of its value.
#[derive(Clone, Copy, Debug)]
struct Scalar {
    role: Role,
    dtype: DType,
    cell: usize,
}

impl RawPlan {
    /// Checks operands, scalars and `workspace` (address and bytes; zeros if the plan needs none), and binds them by
    /// role.
    ///
    /// # Errors
    ///
    /// [`RawBindFailure::Wrong`] with all errors in the bindings; [`RawBindFailure::Cudnn`] if cuDNN refuses them.
    pub fn bind(&self, bindings: &RawBindings, workspace: (u64, u64)) -> Result<RawBound, RawBindFailure> {
        self.check(bindings, workspace)?;
        let mut values: Vec<u64> = self.facts().fixed.iter().map(|fixed| cell(fixed.value.bytes())).collect();
        let mut scalars = Vec::new();
        for binding in self.facts().bindings.iter().filter(|b| b.scalar) {
            scalars.push(Scalar { role: binding.role, dtype: binding.dtype, cell: values.len() });
            let given = bindings.scalars.iter().find(|(role, _)| *role == binding.role);
            values.push(given.map_or(0, |(_, value)| value.cell()));
        }
        let cells = HostScalars::new(values);
        let pack = self.pack(bindings, workspace.0, &cells, &scalars)?;
        Ok(RawBound { pack, cells, scalars, plan: self.clone(), workspace })
    }

    fn check(&self, bindings: &RawBindings, workspace: (u64, u64)) -> Result<(), BindErrors> {
        let ordinal = self.session().machine().ordinal;
        check_bindings(self.facts(), bindings, ordinal, &memory_kind)?;
        check_workspace(self.facts(), bindings, self.workspace(), workspace.0, workspace.1)
    }

    /// Makes the variant pack of checked bindings.
    fn pack(
        &self,
        bindings: &RawBindings,
        workspace: u64,
        cells: &HostScalars,
        scalars: &[Scalar],
    ) -> Result<Descriptor, RawBindFailure> {
        let at = |address: u64| address as usize as *mut c_void;
        let fixed = self.facts().fixed.iter().enumerate().map(|(i, fixed)| (fixed.uid, cells.address(i)));
        let scalars = scalars.iter().map(|scalar| (scalar.role.uid(), cells.address(scalar.cell)));
        let operands = bindings.operands.iter().map(|operand| (operand.role.uid(), at(operand.address)));
        let given = |role: Role| bindings.operands.iter().find(|operand| operand.role == role);
        let again = self.facts().again.iter().filter_map(|role| Some((role.uid(), at(given(role.memory())?.address))));
        let buffers = self.scratch().buffers.iter().map(|(role, offset, _)| (role.uid(), at(workspace + offset)));
        let (uids, pointers): (Vec<i64>, Vec<*mut c_void>) =
            fixed.chain(scalars).chain(operands).chain(again).chain(buffers).unzip();
        let make = || {
            let mut pack = Descriptor::create(&self.session().inner.library, Kind::VARIANT_PACK)?;
            pack.set(A::VARIANT_PACK_UNIQUE_IDS, &uids)?;
            // SAFETY: host addresses are those of scalars that live as long as the pack. The caller promises with each
            // launch, which alone follows the other addresses, that operands and workspace are valid.
            unsafe {
                pack.set_pointers(A::VARIANT_PACK_DATA_POINTERS, &pointers)?;
                pack.set_pointers(A::VARIANT_PACK_WORKSPACE, &[at(workspace)])?;
            }
            pack.finalized()
        };
        make().map_err(|source| RawBindFailure::Cudnn { what: self.facts().what.clone(), source })
    }
}

impl RawBound {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &RawPlan {
        &self.plan
    }

    /// Sets another value of a scalar, from the next launch on. Nothing is built or bound again.
    ///
    /// A capture reads the values of scalars, so replays keep the values that they had then.
    ///
    /// # Errors
    ///
    /// [`ScalarError`] if the plan has no such scalar or the type differs; the scalar keeps its value then.
    pub fn set_scalar(&mut self, role: Role, value: impl Into<Number>) -> Result<(), ScalarError> {
        let value = value.into();
        let Some(scalar) = self.scalars.iter().find(|scalar| scalar.role == role) else {
            return Err(ScalarError::NoScalar {
                role,
                scalars: self.scalars.iter().map(|scalar| scalar.role).collect(),
            });
        };
        if scalar.dtype != value.dtype() {
            return Err(ScalarError::WrongDType { role, needed: scalar.dtype, given: value.dtype() });
        }
        self.cells.set(scalar.cell, value.cell());
        Ok(())
    }

    /// Replaces all operands and scalars; the workspace stays.
    ///
    /// # Errors
    ///
    /// [`RawBindFailure`], as for [`RawPlan::bind`]; all bindings stay as they were then.
    pub fn rebind(&mut self, bindings: &RawBindings) -> Result<(), RawBindFailure> {
        self.plan.check(bindings, self.workspace)?;
        self.pack = self.plan.pack(bindings, self.workspace.0, &self.cells, &self.scalars)?;
        for scalar in &self.scalars {
            if let Some((_, value)) = bindings.scalars.iter().find(|(role, _)| *role == scalar.role) {
                self.cells.set(scalar.cell, value.cell());
            }
        }
        Ok(())
    }

    /// Queues a launch on a stream (a `cudaStream_t` or `CUstream`; null is the default stream).
    ///
    /// It probes, hashes, allocates and looks up nothing, and prefers a handle that is already on this stream.
    ///
    /// # Safety
    ///
    /// The stream must be of the session's GPU. Until the launch is finished on the stream, every bound address must be
    /// valid for what the plan does with that operand, and no other launch may use the workspace. The session's context
    /// must be current on this thread.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if the driver or cuDNN refuses the launch; nothing was queued then.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<(), LaunchError> {
        for &(offset, bytes) in self.plan.clear() {
            // SAFETY: a part of the workspace, which by the caller's promise no other launch uses.
            unsafe { clear(self.workspace.0 + offset, bytes, stream) }
                .map_err(|detail| LaunchError::Driver { step: "clear a buffer that the kernels sum in", detail })?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream) }.map_err(|source| {
            let facts = self.plan.facts();
            LaunchError::Refused { key: facts.key, what: facts.what.clone(), source: Box::new(source) }
        })
    }

    /// # Safety
    ///
    /// As [`RawBound::launch`].
    unsafe fn queue(&self, stream: *mut c_void) -> Result<(), Error> {
        let mut lease = self.plan.session().inner.pool.lease(stream)?;
        // SAFETY: the stream is of this GPU, and alive until the launch is queued.
        unsafe { lease.set_stream(stream) }?;
        let plan = self.plan.descriptor();
        // SAFETY: the caller promises valid addresses; scalars lie in memory of this value; plan and handle are of one
        // session.
        unsafe { lease.handle().execute(&plan, &self.pack) }
    }
}

fn cell(bytes: [u8; 4]) -> u64 {
    let mut cell = [0; 8];
    cell[..4].copy_from_slice(&bytes);
    u64::from_ne_bytes(cell)
}
