//! Launches with arguments: operands and scalars of this call, put into the plan's order and checked in nanoseconds.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, SyncOnDrop};
use qkvault_graph::Role;
use smallvec::SmallVec;

use crate::bind_error::{BindError, BindErrors};
use crate::bindings::RawBindings;
use crate::driver::memory_kind;
use crate::raw::launch_error::LaunchError;
use crate::raw::{DeviceBuffer, RawArgs};
use crate::safe::args::{Args, Given};
use crate::safe::device::ready;
use crate::safe::matching::{OfBatch, Seen, Short, Values, Wanted};
use crate::safe::order::{aside, driver_error, is_captured};
use crate::safe::plan::LoadedPlan;
use crate::safe::tracked::BatchArgs;
use crate::training::Numbers;

/// How a launch is ordered among streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// By the events of cudarc and of this crate.
    Events,
    /// By the caller, in a capture.
    Caller,
}

impl LoadedPlan {
    /// Queues a launch on a stream with the operands and scalars of this call, after the work on them that cudarc knows
    /// of.
    ///
    /// It probes, hashes, allocates and looks up nothing. While cuDNN queues the launch, only threads wait that launch
    /// the same plan, or with the same workspace or batch. The scratch memory is the launch's own: the session keeps a
    /// block for each stream and each thread that launches on it at the same time, as large as the largest plan so far
    /// needed.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Arguments`] with everything that is wrong in the arguments; [`LaunchError::Captured`] while the
    /// stream is captured; [`LaunchError`] if the driver or cuDNN refuses the launch. Nothing was queued then.
    pub fn launch(&self, stream: &Arc<CudaStream>, args: Args<'_>) -> Result<(), LaunchError> {
        ready(self.device(), stream)?;
        if is_captured(stream) {
            return Err(LaunchError::Captured);
        }
        self.launch_ordered(stream, args, Order::Events)
    }

    /// Records a launch into the capture of a stream, or queues one without any order among streams.
    ///
    /// A plan that needs scratch memory needs [`Args::workspace`].
    ///
    /// # Safety
    ///
    /// Until the graph is destroyed and its last replay is finished, operands, workspace, batch and plan must live, and
    /// nothing that conflicts with a replay may use them: no event orders a replay. The graph has the values that
    /// scalars have now.
    ///
    /// # Errors
    ///
    /// [`LaunchError`], as for [`LoadedPlan::launch`]. A refused launch can make the capture invalid.
    pub unsafe fn launch_captured(&self, stream: &Arc<CudaStream>, args: Args<'_>) -> Result<(), LaunchError> {
        ready(self.device(), stream)?;
        if self.workspace() > 0 && args.workspace.is_none() {
            return Err(LaunchError::NoWorkspace { bytes: self.workspace() });
        }
        self.launch_ordered(stream, args, Order::Caller)
    }

    fn launch_ordered(&self, stream: &Arc<CudaStream>, args: Args<'_>, order: Order) -> Result<(), LaunchError> {
        let mut args = args;
        let mut roles: Short<(usize, Role)> = SmallVec::new();
        let Some(scalars) = self.plainly_right(&args, &mut roles) else {
            return Err(LaunchError::Arguments(self.problems(&mut args)));
        };
        // Given back when the launch is queued.
        let leased = match (&args.workspace, self.workspace()) {
            (_, 0) | (Some(_), _) => None,
            (None, bytes) => Some(self.device().scratch().lease(stream, bytes)?),
        };
        let workspace = match &leased {
            Some(leased) => Some(Arc::clone(leased.block())),
            None => args.workspace.clone().filter(|_| self.workspace() > 0),
        };
        let Args { operands, batch, interleaved, .. } = &mut args;
        let other = (order == Order::Caller).then(|| aside(stream));
        let mut guards: Short<SyncOnDrop<'_>> = SmallVec::new();
        let mut given: Short<(Role, DeviceBuffer)> = SmallVec::new();
        for (at, operand) in operands.iter_mut().enumerate() {
            let bytes = operand.held.bytes();
            let (address, guard) = operand.held.acquire(other.as_ref().unwrap_or(stream));
            let roles = roles.iter().filter(|(of, _)| *of == at);
            given.extend(roles.map(|(_, role)| (*role, DeviceBuffer { address, bytes })));
            match order {
                Order::Events => guards.push(guard),
                Order::Caller => std::mem::forget(guard),
            }
        }
        let (wanted, of_batch) = (self.wanted(), of_batch(batch.as_ref()));
        let tensors: Short<DeviceBuffer> =
            wanted.tensors.iter().map(|tensor| wanted.buffer(tensor.role, &given, of_batch)).collect();
        // Locked and ordered over the launch where another one may use it: a leased block cannot be.
        let shared = leased.is_none() && order == Order::Events;
        let mut locked = workspace.as_ref().filter(|_| shared).map(|memory| memory.lock());
        let mut step = batch.as_ref().filter(|_| order == Order::Events).map(|batch| batch.memory.lock());
        let before = |e| driver_error("wait for the streams that used the workspace or the batch before", &e);
        if let Some(memory) = &mut locked {
            memory.uses.write(stream).map_err(before)?;
        }
        if let Some(memory) = &mut step {
            memory.uses.read(stream).map_err(before)?;
        }
        let workspace = workspace.as_ref().map_or_else(DeviceBuffer::default, |memory| memory.buffer());
        let raw = RawArgs { tensors: &tensors, scalars: &scalars, workspace, interleaved };
        // SAFETY: the stream is of this context, which is current. Operands are borrowed until their guards have
        // recorded the launch; later work waits for these events, and so does the release of the memory. Numbers that
        // kernels follow were checked by a batch, or the caller promises that they are right.
        unsafe { self.raw().launch_with(&raw, stream.cu_stream().cast()) }?;
        drop((locked, step, guards));
        if order == Order::Caller {
            return Ok(());
        }
        // cudarc keeps the errors of waits and records for this call.
        self.device().context().check_err().map_err(|e| driver_error("order the launch among streams", &e))
    }

    /// What the plan takes.
    pub(crate) fn wanted(&self) -> Wanted<'_> {
        let raw = self.raw();
        let (tensors, scalars) = (raw.tensors(), raw.scalars());
        Wanted { tensors, scalars, attention: self.attention(), constants: self.constants() }
    }

    /// The scalars of arguments, by role.
    pub(crate) fn numbers(&self, args: &Args<'_>) -> Result<Numbers, BindErrors> {
        let mut numbers = Numbers::new();
        for (which, value) in args.scalars.iter() {
            let of = self.wanted().scalars_of(*which);
            if of.is_empty() {
                return Err(BindErrors::new(self.facts(), vec![self.wanted().unknown(*which, false, true)]));
            }
            numbers.extend(of.into_iter().map(|role| (role, *value)));
        }
        Ok(numbers)
    }

    /// The role by which a bound plan gives an operand back.
    pub(crate) fn first_role(&self, given: &Given<'_>) -> Role {
        self.wanted().roles_of(&given.into()).first().copied().unwrap_or(Role::Q)
    }

    /// The roles of all operands and the scalars in the plan's order, if nothing is wrong as far as it can be seen
    /// without addresses.
    fn plainly_right(&self, args: &Args<'_>, roles: &mut Short<(usize, Role)>) -> Option<Values> {
        let here = |context: &Arc<CudaContext>| self.device().has(context);
        let all_here = args.operands.iter().all(|given| given.held.context().is_none_or(here))
            && args.workspace.as_ref().is_none_or(|workspace| here(workspace.context()))
            && args.batch.as_ref().is_none_or(|batch| here(batch.memory.context()));
        let operands = args.operands.iter().map(Seen::from);
        let scalars = args.scalars.iter().copied();
        all_here.then(|| self.wanted().accepts(operands, of_batch(args.batch.as_ref()), scalars, roles)).flatten()
    }

    /// Everything that is wrong in arguments.
    fn problems(&self, args: &mut Args<'_>) -> BindErrors {
        let (bindings, errors) = self.bindings_of(args);
        // The scratch memory of a stream is right; that of the caller is checked.
        let own = DeviceBuffer { address: crate::SCRATCH_ALIGNMENT, bytes: u64::MAX };
        let workspace = args.workspace.as_ref().map_or(own, |memory| memory.buffer());
        self.all_errors(errors, &bindings, workspace)
    }

    /// These errors and those of the bindings.
    pub(crate) fn all_errors(
        &self,
        errors: Vec<BindError>,
        bindings: &RawBindings,
        workspace: DeviceBuffer,
    ) -> BindErrors {
        let found =
            self.raw().check(bindings, workspace, &memory_kind).map_or_else(BindErrors::into_vec, |()| Vec::new());
        // One error for memory of another GPU is enough.
        let told = |error: &BindError| match error {
            BindError::OtherDevice { role, .. } => {
                errors.iter().any(|e| matches!(e, BindError::OtherContext { role: other, .. } if other == role))
            }
            _ => false,
        };
        let found: Vec<BindError> = found.into_iter().filter(|error| !told(error)).collect();
        BindErrors::new(self.facts(), errors.into_iter().chain(found).collect())
    }

    /// Arguments as bindings by role, with what is wrong in names, sources and contexts. Defaults are filled in.
    pub(crate) fn bindings_of(&self, args: &mut Args<'_>) -> (RawBindings, Vec<BindError>) {
        let elsewhere = self.elsewhere(args);
        let batch = of_batch(args.batch.as_ref());
        let operands = args.operands.iter_mut().map(|given| {
            let buffer = DeviceBuffer { address: given.held.address(), bytes: given.held.bytes() };
            (Seen::from(&*given), buffer)
        });
        let (raw, errors) = self.wanted().bindings(operands, batch, args.scalars.iter().copied(), &args.interleaved);
        (raw, elsewhere.into_iter().chain(errors).collect())
    }

    /// Memory of the arguments that is in another context than the plan.
    fn elsewhere(&self, args: &Args<'_>) -> Vec<BindError> {
        let needed = self.device().ordinal();
        let found = |context: &Arc<CudaContext>| (!self.device().has(context)).then(|| context.ordinal());
        let operands = args.operands.iter().flat_map(|given| {
            let found = given.held.context().and_then(found);
            let roles = self.wanted().roles_of(&given.into()).into_iter();
            roles.filter_map(move |role| found.map(|found| BindError::OtherContext { role, found, needed }))
        });
        let workspace = args.workspace.iter().filter_map(|workspace| found(workspace.context()));
        let batch = args.batch.iter().filter_map(|batch| found(batch.memory.context()));
        operands
            .chain(workspace.map(|found| BindError::WorkspaceElsewhere { found, needed }))
            .chain(batch.map(|found| BindError::BatchElsewhere { found, needed }))
            .collect()
    }
}

/// The operands of a batch, if there is one.
fn of_batch(batch: Option<&BatchArgs>) -> OfBatch<'_> {
    batch.map_or(&[], |batch| &batch.operands)
}
