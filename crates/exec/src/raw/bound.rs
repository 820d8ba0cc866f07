//! A bound plan: checked operands, scalars and workspace that launches reuse, for cuDNN in a variant pack.

use std::ffi::c_void;

use qkvault_graph::Role;
use qkvault_sys::VariantPack;

use crate::bind_error::BindErrors;
use crate::bindings::{Number, RawBindings};
use crate::check::{ByRole, check, faults};
use crate::driver::{MemoryKind, memory_kind};
use crate::origins::is_origin;
use crate::raw::host_scalars::HostScalars;
use crate::raw::launch::{DeviceBuffer, queue_kernels};
use crate::raw::launch_error::{LaunchError, RawBindFailure, ScalarError};
use crate::raw::load::{LoadedCode, RawPlan};
use crate::raw::pool::Lease;

/// A plan with its operands, to be launched any number of times.
///
/// # Threads
///
/// `Send`, not `Sync`: it may move between threads, and one thread at a time launches it.
#[derive(Debug)]
pub struct RawBound {
    held: HeldAddresses,
    numbers: HostScalars,
    plan: RawPlan,
    workspace: DeviceBuffer,
}

/// The addresses of a bound plan, by engine.
#[derive(Debug)]
enum HeldAddresses {
    Cudnn(VariantPack),
    /// The tensors in the order of a launch.
    Kernels(Vec<DeviceBuffer>),
}

impl RawPlan {
    /// Checks operands, scalars and `workspace` (nothing if the plan needs none), and binds them by role.
    ///
    /// # Errors
    ///
    /// [`RawBindFailure::Wrong`] with all errors in the bindings; [`RawBindFailure::Cudnn`] if cuDNN refuses them.
    pub fn bind(&self, bindings: &RawBindings, workspace: DeviceBuffer) -> Result<RawBound, RawBindFailure> {
        self.check(bindings, workspace, memory_kind)?;
        let mut numbers = HostScalars::new(self.table().numbers().collect());
        self.set_scalars(bindings, &mut numbers);
        let held = self.hold(bindings, workspace.address, &numbers)?;
        Ok(RawBound { held, numbers, plan: self.clone(), workspace })
    }

    pub(crate) fn check(
        &self,
        bindings: &RawBindings,
        workspace: DeviceBuffer,
        memory: impl Fn(u64) -> MemoryKind,
    ) -> Result<(), BindErrors> {
        let given = ByRole::new(bindings, self.session().gpu().ordinal, memory);
        BindErrors::check(self.facts(), faults(|all| check(self.needs(), &given, workspace, all)))
    }

    fn set_scalars(&self, bindings: &RawBindings, numbers: &mut HostScalars) {
        // Checked bindings have every scalar.
        let value = |at: usize| bindings.number(self.scalars()[at].role).unwrap_or(Number::I64(0));
        self.table().set_scalars(numbers, value);
    }

    /// Puts checked bindings into the order of a launch, and makes cuDNN's variant pack of them.
    fn hold(
        &self,
        bindings: &RawBindings,
        workspace: u64,
        numbers: &HostScalars,
    ) -> Result<HeldAddresses, RawBindFailure> {
        let tensors: Vec<DeviceBuffer> = self.tensors().iter().map(|tensor| bindings.buffer(tensor.role)).collect();
        if matches!(self.code(), LoadedCode::Kernels(_)) {
            return Ok(HeldAddresses::Kernels(tensors));
        }
        // SAFETY: host addresses are those of numbers that live as long as the pack. The caller promises with each
        // launch, which alone follows the other addresses, that operands and workspace are valid.
        unsafe { self.table().pack(&self.session().cudnn_of_plan().library, numbers, &tensors, workspace) }
            .map(HeldAddresses::Cudnn)
            .map_err(|source| RawBindFailure::Cudnn { what: self.facts().what.clone(), source })
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
        let scalars = self.plan.scalars();
        let Some(at) = scalars.iter().position(|scalar| scalar.role == role) else {
            return Err(ScalarError::NoScalar { role, scalars: scalars.iter().map(|scalar| scalar.role).collect() });
        };
        if scalars[at].dtype != value.dtype() {
            return Err(ScalarError::WrongDType { role, needed: scalars[at].dtype, given: value.dtype() });
        }
        if let Number::I32(value) = value
            && is_origin(role)
        {
            let [query, key] = self.origins().unwrap_or_default();
            return self.set_origins(if role == Role::QueryOrigin { [value, key] } else { [query, value] });
        }
        self.numbers.set(self.plan.table().first_scalar() + at, value.cell());
        Ok(())
    }

    /// Positions of the first query and the first key; `None` for an attention without origins.
    #[must_use]
    pub fn origins(&self) -> Option<[i32; 2]> {
        let table = self.plan.table();
        let number = |at: usize| Number::of_cell(self.numbers.get(table.first_scalar() + at));
        table.origins().map(|origins| origins.among(number))
    }

    /// Sets the positions of the first query and the first key, from the next launch on: both at once, where an
    /// attention promises that every query sees a key.
    ///
    /// # Errors
    ///
    /// [`ScalarError`] if the plan has no origins, or if an origin is out of range or breaks the promise; both keep
    /// their values then.
    pub fn set_origins(&mut self, [query, key]: [i32; 2]) -> Result<(), ScalarError> {
        let table = self.plan.table();
        let Some(origins) = table.origins() else {
            let scalars = self.plan.scalars().iter().map(|scalar| scalar.role).collect();
            return Err(ScalarError::NoScalar { role: Role::QueryOrigin, scalars });
        };
        let given = [(Role::QueryOrigin, Number::I32(query)), (Role::KeyOrigin, Number::I32(key))];
        let value = |role: Role| given.iter().find(|(other, _)| *other == role).map(|(_, value)| *value);
        let errors = faults(|all| origins.check(|role, _| value(role), all));
        if let Some(error) = errors.into_iter().next() {
            return Err(ScalarError::Origins(Box::new(error)));
        }
        for (at, scalar) in (table.first_scalar()..).zip(table.scalars()) {
            if let Some(value) = value(scalar.role) {
                self.numbers.set(at, value.cell());
            }
        }
        table.move_to(&mut self.numbers, [query, key]);
        Ok(())
    }

    /// Replaces all operands and scalars; the workspace stays.
    ///
    /// # Errors
    ///
    /// [`RawBindFailure`], as for [`RawPlan::bind`]; all bindings stay as they were then.
    pub fn rebind(&mut self, bindings: &RawBindings) -> Result<(), RawBindFailure> {
        self.plan.check(bindings, self.workspace, memory_kind)?;
        self.held = self.plan.hold(bindings, self.workspace.address, &self.numbers)?;
        self.plan.set_scalars(bindings, &mut self.numbers);
        Ok(())
    }

    /// Queues a launch on a stream (a `cudaStream_t` or `CUstream`; null is the default stream).
    ///
    /// It probes, hashes, allocates and looks up nothing, and prefers a handle that is already on this stream.
    ///
    /// # Safety
    ///
    /// The stream must be of the session's GPU. Until the launch is finished on the stream, every bound address must be
    /// valid for what the plan does with that operand, and no other launch may use the workspace. Lengths, offsets and
    /// page tables must lead nowhere outside the operands. The session's context must be current on this thread, unless
    /// the session enters it itself ([`RawSession::on_primary`](crate::raw::RawSession::on_primary)).
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if the driver or cuDNN refuses the launch; nothing was queued then.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<(), LaunchError> {
        let _entered = self.plan.session().enter_to_launch()?;
        // SAFETY: the caller's promise.
        unsafe {
            let mut lease = self.lease(stream)?;
            self.launch_on(&mut lease, stream)
        }
    }

    /// Calls `cudnnBackendExecute` alone, on a handle that is on the stream already and without the lock of the plan:
    /// the floor that launches are measured against. Not part of the interface.
    ///
    /// # Safety
    ///
    /// As [`RawBound::launch`]; and no other thread may launch the plan at the same time.
    ///
    /// # Errors
    ///
    /// As [`RawBound::launch`].
    #[doc(hidden)]
    pub unsafe fn floor(&self, stream: *mut c_void, launches: usize) -> Result<(), LaunchError> {
        let (LoadedCode::Cudnn(plan, _), HeldAddresses::Cudnn(pack)) = (self.plan.code(), &self.held) else {
            return Err(of_cudnn_alone());
        };
        // SAFETY: the caller's promise.
        let mut lease =
            unsafe { self.plan.session().cudnn_of_plan().pool.on(stream) }.map_err(|e| self.plan.refused(e))?;
        for _ in 0..launches {
            // SAFETY: the caller's promise.
            unsafe { plan.execute_alone(lease.handle(), pack) }.map_err(|source| self.plan.refused(source))?;
        }
        Ok(())
    }

    /// Writes the launch into a graph by cuDNN's own functions, the first time into an empty one: to compare that with
    /// a capture. Not part of the interface.
    ///
    /// # Safety
    ///
    /// As [`RawBound::launch`], until the last replay is finished; the graph must be alive.
    ///
    /// # Errors
    ///
    /// As [`RawBound::launch`].
    #[doc(hidden)]
    pub unsafe fn native_graph(&self, stream: *mut c_void, graph: *mut c_void, first: bool) -> Result<(), LaunchError> {
        let (LoadedCode::Cudnn(plan, _), HeldAddresses::Cudnn(pack)) = (self.plan.code(), &self.held) else {
            return Err(of_cudnn_alone());
        };
        // SAFETY: the caller's promise.
        let mut lease =
            unsafe { self.plan.session().cudnn_of_plan().pool.on(stream) }.map_err(|e| self.plan.refused(e))?;
        let handle = lease.handle();
        // SAFETY: the caller's promise.
        let written = unsafe {
            if first { plan.populate_graph(handle, pack, graph) } else { plan.update_graph(handle, pack, graph) }
        };
        written.map_err(|source| self.plan.refused(source))
    }

    /// Leases a handle that is on a stream, for [`RawBound::launch_on`]; kernels need none.
    ///
    /// # Safety
    ///
    /// The stream must be of the session's GPU and alive as long as the lease, and its context current.
    pub(crate) unsafe fn lease(&self, stream: *mut c_void) -> Result<Option<Lease<'_>>, LaunchError> {
        if matches!(self.held, HeldAddresses::Kernels(_)) {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe { self.plan.session().cudnn_of_plan().pool.on(stream) }
            .map(Some)
            .map_err(|source| self.plan.refused(source))
    }

    /// Queues a launch on a handle that was leased for the stream.
    ///
    /// # Safety
    ///
    /// As [`RawBound::launch`].
    pub(crate) unsafe fn launch_on(
        &self,
        lease: &mut Option<Lease<'_>>,
        stream: *mut c_void,
    ) -> Result<(), LaunchError> {
        match (self.plan.code(), &self.held, lease) {
            // SAFETY: the caller's promise; numbers lie in memory of this value.
            (LoadedCode::Cudnn(plan, _), HeldAddresses::Cudnn(pack), Some(lease)) => unsafe {
                self.plan.clear_sums(self.workspace.address, stream)?;
                plan.execute(lease.handle(), pack).map_err(|source| self.plan.refused(source))
            },
            (LoadedCode::Kernels(cubins), HeldAddresses::Kernels(tensors), _) => {
                let first = self.plan.table().first_scalar();
                let (number, scratch) = (|at| self.numbers.get(first + at), self.workspace.address);
                // SAFETY: the caller's promise.
                unsafe { queue_kernels(cubins, tensors, number, scratch, stream) }
            }
            _ => Err(of_cudnn_alone()),
        }
    }
}

/// The error of what only plans of cuDNN can do.
fn of_cudnn_alone() -> LaunchError {
    let detail = "only plans of cuDNN do this".to_owned();
    LaunchError::Driver { step: "use cuDNN's own functions", detail }
}
