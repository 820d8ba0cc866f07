//! Launches with arguments: operands and scalars of this call, put into the plan's order and checked in nanoseconds.

use std::ops::ControlFlow;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, SyncOnDrop};
use qkvault_graph::Role;
use smallvec::SmallVec;

use crate::bind_error::{BindError, BindErrors};
use crate::bindings::{RawBindings, RoleNumbers, Short, Values};
use crate::check::{ByRole, FaultSink, StopAtFirst, check_operands, faults};
use crate::driver::memory_kind;
use crate::raw::launch_error::LaunchError;
use crate::raw::{DeviceBuffer, RawArgs};
use crate::safe::args::{Args, GivenOperand};
use crate::safe::device::ready;
use crate::safe::matching::{Matched, Matcher, OfBatch, SeenOperand};
use crate::safe::order::{WAIT, aside, driver_error, is_captured};
use crate::safe::plan::LoadedPlan;
use crate::safe::tracked::{BatchArgs, Shared};

/// How a launch is ordered among streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderedBy {
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
        self.launch_ordered(stream, args, OrderedBy::Events)
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
        self.launch_ordered(stream, args, OrderedBy::Caller)
    }

    fn launch_ordered(&self, stream: &Arc<CudaStream>, args: Args<'_>, order: OrderedBy) -> Result<(), LaunchError> {
        let (mut args, mut matched) = (args, Matched::default());
        if self.check_without_addresses(&args, &mut matched).is_break() {
            return Err(LaunchError::Arguments(self.problems(&mut args)));
        }
        let Matched { bindings, places } = &mut matched;
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
        let other = (order == OrderedBy::Caller).then(|| aside(stream));
        // Locked and ordered over the launch where another one may use it: a leased block cannot be.
        let mut shared = Shared::default();
        if order == OrderedBy::Events {
            workspace.iter().filter(|_| leased.is_none()).for_each(|one| shared.add_workspace(one));
            batch.iter().for_each(|batch| shared.add_batch(&batch.memory));
            operands.iter().filter_map(|one| one.held.arena()).for_each(|arena| shared.add_arena(arena));
        }
        let mut guards: Short<SyncOnDrop<'_>> = SmallVec::new();
        for (at, operand) in operands.iter_mut().enumerate() {
            let (address, guard) = operand.held.acquire(other.as_ref().unwrap_or(stream));
            let bound = bindings.operands.iter_mut().zip(&*places).filter(|(_, place)| **place == at);
            bound.for_each(|(bound, _)| bound.address = address);
            match order {
                OrderedBy::Events => guards.push(guard),
                OrderedBy::Caller => std::mem::forget(guard),
            }
        }
        let tensors: Short<DeviceBuffer> =
            self.raw().tensors().iter().map(|tensor| bindings.buffer(tensor.role)).collect();
        let scalars: Values = self.raw().scalars().iter().filter_map(|scalar| bindings.number(scalar.role)).collect();
        let locked = shared.lock(stream).map_err(|e| driver_error(WAIT, &e))?;
        let workspace = workspace.as_ref().map_or_else(DeviceBuffer::default, |memory| memory.buffer());
        let raw = RawArgs { tensors: &tensors, scalars: &scalars, workspace, interleaved };
        // SAFETY: the stream is of this context, which is current. Operands are borrowed until their guards have
        // recorded the launch; later work waits for these events, and so does the release of the memory. Numbers that
        // kernels follow were checked by a batch, or the caller promises that they are right.
        unsafe { self.raw().launch_with(&raw, stream.cu_stream().cast()) }?;
        drop(locked);
        drop(guards);
        if order == OrderedBy::Caller {
            return Ok(());
        }
        // cudarc keeps the errors of waits and records for this call.
        self.device().context().check_err().map_err(|e| driver_error("order the launch among streams", &e))
    }

    /// What turns the names of arguments into roles.
    pub(crate) fn matcher(&self) -> Matcher<'_> {
        let (tensors, scalars) = (self.raw().tensors(), self.raw().scalars());
        Matcher { tensors, scalars, attention: self.attention(), constants: self.constants() }
    }

    /// The scalars of arguments, by role.
    pub(crate) fn numbers(&self, args: &Args<'_>) -> Result<RoleNumbers, BindErrors> {
        let mut numbers = RoleNumbers::new();
        for (which, value) in args.scalars.iter() {
            let of = self.matcher().scalars_of(*which);
            if of.is_empty() {
                return Err(BindErrors::new(self.facts(), vec![self.matcher().unknown(*which, false, true)]));
            }
            numbers.extend(of.into_iter().map(|role| (role, *value)));
        }
        Ok(numbers)
    }

    /// The role by which a bound plan gives an operand back.
    pub(crate) fn first_role(&self, given: &GivenOperand<'_>) -> Role {
        self.matcher().roles_of(&given.into()).first().copied().unwrap_or(Role::Q)
    }

    /// Checks arguments as far as it can be done without addresses: to ask for one is to order the launch among
    /// streams. `matched` becomes the arguments by role.
    fn check_without_addresses(&self, args: &Args<'_>, matched: &mut Matched) -> ControlFlow<()> {
        self.check_contexts(args, &mut StopAtFirst)?;
        let operands = args.operands.iter().map(|given| {
            let bytes = given.held.bytes();
            (SeenOperand::from(given), DeviceBuffer { address: 0, bytes })
        });
        let (batch, scalars) = (of_batch(args.batch.as_ref()), args.scalars.iter().copied());
        self.matcher().bind(operands, batch, scalars, matched, &mut StopAtFirst)?;
        check_operands(self.raw().needs(), &ByRole::unplaced(&matched.bindings), &mut StopAtFirst)
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
            self.raw().check(bindings, workspace, memory_kind).map_or_else(BindErrors::into_vec, |()| Vec::new());
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
        let mut matched = Matched::default();
        let errors = faults(|all| {
            self.check_contexts(args, all)?;
            let operands = args.operands.iter_mut().map(|given| {
                let buffer = DeviceBuffer { address: given.held.address(), bytes: given.held.bytes() };
                (SeenOperand::from(&*given), buffer)
            });
            let (batch, scalars) = (of_batch(args.batch.as_ref()), args.scalars.iter().copied());
            self.matcher().bind(operands, batch, scalars, &mut matched, all)
        });
        matched.bindings.interleaved.clone_from(&args.interleaved);
        (matched.bindings, errors)
    }

    /// Checks that the memory of the arguments is in the plan's context.
    fn check_contexts(&self, args: &Args<'_>, sink: &mut impl FaultSink) -> ControlFlow<()> {
        let needed = self.device().ordinal();
        let elsewhere = |context: &Arc<CudaContext>| (!self.device().has(context)).then(|| context.ordinal());
        for given in args.operands.iter() {
            if let Some(found) = given.held.context().and_then(elsewhere) {
                for role in self.matcher().roles_of(&given.into()) {
                    sink.fault(|| BindError::OtherContext { role, found, needed })?;
                }
            }
        }
        if let Some(found) = args.workspace.as_ref().and_then(|workspace| elsewhere(workspace.context())) {
            sink.fault(|| BindError::WorkspaceElsewhere { found, needed })?;
        }
        match args.batch.as_ref().and_then(|batch| elsewhere(batch.memory.context())) {
            Some(found) => sink.fault(|| BindError::BatchElsewhere { found, needed }),
            None => ControlFlow::Continue(()),
        }
    }
}

/// The operands of a batch, if there is one.
fn of_batch(batch: Option<&BatchArgs>) -> OfBatch<'_> {
    batch.map_or(&[], |batch| &batch.operands)
}
