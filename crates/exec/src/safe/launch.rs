//! Launches with arguments: operands and scalars of this call, put into the plan's order and checked in nanoseconds.

use std::sync::Arc;

use cudarc::driver::{CudaStream, SyncOnDrop};
use qkvault_graph::op::Binding;
use qkvault_graph::{Role, nearest_name};
use smallvec::SmallVec;

use crate::bind_error::{BindError, BindErrors};
use crate::bindings::{Number, Operand, RawBindings};
use crate::driver::memory_kind;
use crate::raw::launch_error::{LaunchError, ScalarError};
use crate::raw::{DeviceBuffer, RawArgs};
use crate::safe::args::{Args, Given, Which};
use crate::safe::device::ready;
use crate::safe::order::{driver_error, is_captured};
use crate::safe::plan::LoadedPlan;
use crate::safe::tracked::BatchArgs;
use crate::training::Numbers;

/// Operands of a launch that fit the stack.
const INLINE: usize = 12;

type Short<T> = SmallVec<[T; INLINE]>;

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
    /// It probes, hashes, allocates and looks up nothing, and holds no lock while cuDNN queues the launch, unless the
    /// arguments have a workspace or a batch that other streams use too. The scratch memory is that of the stream: the
    /// session keeps one block for each stream, as large as its largest plan so far needed.
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
            let detail = "a captured launch needs Args::workspace, which the graph keeps using".to_owned();
            return Err(LaunchError::Workspace { bytes: self.workspace(), detail });
        }
        self.launch_ordered(stream, args, Order::Caller)
    }

    fn launch_ordered(&self, stream: &Arc<CudaStream>, args: Args<'_>, order: Order) -> Result<(), LaunchError> {
        let mut args = args;
        let mut roles: Short<(usize, Role)> = SmallVec::new();
        let Some(scalars) = self.plainly_right(&args, &mut roles) else {
            return Err(LaunchError::Arguments(self.problems(&mut args)));
        };
        let workspace = match (&args.workspace, self.workspace()) {
            (_, 0) => None,
            (Some(given), _) => Some(Arc::clone(given)),
            (None, bytes) => Some(self.device().scratch(stream, bytes)?),
        };
        let own = args.workspace.is_none();
        let Args { operands, batch, interleaved, .. } = &mut args;
        let mut guards: Short<SyncOnDrop<'_>> = SmallVec::new();
        let mut given: Short<(Role, DeviceBuffer)> = SmallVec::new();
        for (at, operand) in operands.iter_mut().enumerate() {
            let bytes = operand.held.bytes();
            let (address, guard) = operand.held.acquire(stream);
            let roles = roles.iter().filter(|(of, _)| *of == at);
            given.extend(roles.map(|(_, role)| (*role, DeviceBuffer { address, bytes })));
            match order {
                Order::Events => guards.push(guard),
                Order::Caller => std::mem::forget(guard),
            }
        }
        let tensors: Short<DeviceBuffer> =
            self.raw().tensors().iter().map(|tensor| self.buffer(tensor, &given, batch.as_ref())).collect();
        // Locked and ordered over the launch where another stream may use it: the scratch memory of this stream cannot.
        let mut locked = workspace.as_ref().filter(|_| !own && order == Order::Events).map(|memory| memory.lock());
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

    /// The buffer of a tensor: the caller's, a batch's, or the plan's own.
    fn buffer(&self, tensor: &Binding, given: &[(Role, DeviceBuffer)], batch: Option<&BatchArgs>) -> DeviceBuffer {
        let own = || self.constants().iter().find(|c| c.role == tensor.role).map(|constant| constant.buffer());
        let given = given.iter().find(|(role, _)| *role == tensor.role).map(|(_, buffer)| *buffer);
        given.or_else(|| batch.and_then(|batch| batch.buffer(tensor.role))).or_else(own).unwrap_or_default()
    }

    /// The roles of an operand: one, or two where score modification and mask use the name; none for an unknown name.
    fn roles_of(&self, given: &Given<'_>) -> SmallVec<[Role; 2]> {
        match given.which {
            Which::Role(role) => SmallVec::from_slice(&[role]),
            Which::Named(name) => self.attention().map_or_else(SmallVec::new, |attention| match given.gradient {
                true => attention.gradient_role(name).into_iter().collect(),
                false => attention.tensor_roles(name).collect(),
            }),
        }
    }

    /// The scalars of arguments, by role.
    pub(crate) fn numbers(&self, args: &Args<'_>) -> Result<Numbers, BindErrors> {
        let mut numbers = Numbers::new();
        for (which, value) in args.scalars.iter() {
            let of = self.scalars_of(*which);
            if of.is_empty() {
                return Err(BindErrors::new(self.facts(), vec![self.unknown(*which, false, true)]));
            }
            numbers.extend(of.into_iter().map(|role| (role, *value)));
        }
        Ok(numbers)
    }

    /// The role by which a bound plan gives an operand back.
    pub(crate) fn first_role(&self, given: &Given<'_>) -> Role {
        self.roles_of(given).first().copied().unwrap_or(Role::Q)
    }

    /// The error for a scalar of an unknown name.
    pub(crate) fn no_such_scalar(&self, which: Which<'_>) -> ScalarError {
        ScalarError::NoSuchName(Box::new(self.unknown(which, false, true)))
    }

    pub(crate) fn scalars_of(&self, which: Which<'_>) -> SmallVec<[Role; 2]> {
        match which {
            Which::Role(role) => SmallVec::from_slice(&[role]),
            Which::Named(name) => self.attention().map_or_else(SmallVec::new, |a| a.scalar_roles(name).collect()),
        }
    }

    /// The value of a scalar: the caller's, or the usual softmax scale.
    fn scalar(&self, role: Role, given: &[(Role, Number)]) -> Option<Number> {
        let usual =
            || (role == Role::Scale).then(|| self.attention().map(|a| Number::F32(a.default_scale()))).flatten();
        given.iter().find(|(r, _)| *r == role).map(|(_, value)| *value).or_else(usual)
    }

    /// The roles of all operands and the scalars in the plan's order, if nothing is wrong as far as it can be seen
    /// without addresses.
    fn plainly_right(&self, args: &Args<'_>, roles: &mut Short<(usize, Role)>) -> Option<SmallVec<[Number; 6]>> {
        let raw = self.raw();
        for (at, given) in args.operands.iter().enumerate() {
            let of = self.roles_of(given);
            if of.is_empty() || given.held.context().is_some_and(|context| !self.device().has(context)) {
                return None;
            }
            for role in of {
                let tensor = raw.tensors().iter().find(|tensor| tensor.role == role)?;
                let right = given.held.dtype().is_none_or(|dtype| dtype == tensor.dtype)
                    && (given.held.writable() || !tensor.output)
                    && (given.trusted || !role.is_followed())
                    && roles.iter().all(|(_, other)| *other != role);
                if !right {
                    return None;
                }
                roles.push((at, role));
            }
        }
        let given = |role: Role| roles.iter().any(|(_, other)| *other == role);
        let filled = |tensor: &Binding| {
            given(tensor.role)
                || args.batch.as_ref().is_some_and(|batch| batch.buffer(tensor.role).is_some())
                || self.provides(tensor.role)
        };
        let known = |role: &Role| raw.tensors().iter().any(|tensor| tensor.role == *role);
        let batch = args.batch.iter().flat_map(|batch| batch.operands.iter()).map(|(role, ..)| role);
        if !raw.tensors().iter().all(filled) || !batch.clone().all(known) || batch.clone().any(|role| given(*role)) {
            return None;
        }
        let mut given: SmallVec<[(Role, Number); 6]> = SmallVec::new();
        for (which, value) in args.scalars.iter() {
            let of = self.scalars_of(*which);
            let wanted = |role: &Role| raw.scalars().iter().any(|s| s.role == *role && s.dtype == value.dtype());
            let again = |role: &Role| given.iter().any(|(other, _)| other == role);
            if of.is_empty() || !of.iter().all(wanted) || of.iter().any(again) {
                return None;
            }
            given.extend(of.into_iter().map(|role| (role, *value)));
        }
        raw.scalars().iter().map(|scalar| self.scalar(scalar.role, &given)).collect()
    }

    /// Everything that is wrong in arguments.
    fn problems(&self, args: &mut Args<'_>) -> BindErrors {
        let workspace = DeviceBuffer { address: crate::SCRATCH_ALIGNMENT, bytes: u64::MAX };
        let (bindings, mut errors) = self.bindings_of(args);
        // The scratch memory is this crate's own, or is checked by itself.
        let workspace = args.workspace.as_ref().map_or(workspace, |memory| memory.buffer());
        if let Err(found) = self.raw().check(&bindings, workspace, &memory_kind) {
            errors.extend(found.into_vec());
        }
        BindErrors::new(self.facts(), errors)
    }

    /// Arguments as bindings by role, with what is wrong in names and sources. Defaults are filled in.
    pub(crate) fn bindings_of(&self, args: &mut Args<'_>) -> (RawBindings, Vec<BindError>) {
        let mut errors = Vec::new();
        let mut raw = RawBindings::new();
        for (a, b) in &args.interleaved {
            raw = raw.interleaved(*a, *b);
        }
        let mut roles = Vec::new();
        for given in args.operands.iter_mut() {
            let of = self.roles_of(given);
            if of.is_empty() {
                errors.push(self.unknown(given.which, given.gradient, false));
            }
            let (bytes, dtype, writable) = (given.held.bytes(), given.held.dtype(), given.held.writable());
            let address = given.held.address();
            for role in of {
                if role.is_followed() && !given.trusted {
                    errors.push(BindError::Unchecked { role });
                }
                raw = raw.operand(Operand { role, address, bytes, dtype, writable });
                roles.push(role);
            }
        }
        for (role, address, bytes) in args.batch.iter().flat_map(|batch| batch.operands.iter().copied()) {
            raw = raw.tensor(role, address, bytes);
        }
        for constant in self.constants().iter().filter(|constant| !roles.contains(&constant.role)) {
            let DeviceBuffer { address, bytes } = constant.buffer();
            raw = raw.tensor(constant.role, address, bytes);
        }
        for (which, value) in args.scalars.iter() {
            let of = self.scalars_of(*which);
            if of.is_empty() {
                errors.push(self.unknown(*which, false, true));
            }
            raw = of.into_iter().fold(raw, |raw, role| raw.scalar(role, *value));
        }
        let scale = raw.scalars.iter().any(|(role, _)| *role == Role::Scale);
        if let Some(value) = self.scalar(Role::Scale, &[]).filter(|_| !scale && self.has_scale()) {
            raw = raw.scalar(Role::Scale, value);
        }
        (raw, errors)
    }

    fn has_scale(&self) -> bool {
        self.raw().scalars().iter().any(|scalar| scalar.role == Role::Scale)
    }

    /// The error for a name that the description does not have.
    fn unknown(&self, which: Which<'_>, gradient: bool, scalar: bool) -> BindError {
        let name = match which {
            Which::Named(name) => name.to_owned(),
            Which::Role(role) => role.to_string(),
        };
        let names: Vec<String> = self.attention().map_or_else(Vec::new, |attention| {
            let tensors = attention.score_tensors().filter(|tensor| !gradient || tensor.gradient.is_some());
            let scalars = attention.scalars().map(|scalar| scalar.name.to_owned());
            if scalar { scalars.collect() } else { tensors.map(|tensor| tensor.name.to_owned()).collect() }
        });
        let nearest = nearest_name(&name, names.iter().map(String::as_str)).map(str::to_owned);
        BindError::NoSuchName {
            name,
            what: what(gradient, scalar),
            nearest,
            names,
            described: self.attention().is_some(),
        }
    }
}

const fn what(gradient: bool, scalar: bool) -> &'static str {
    match (gradient, scalar) {
        (true, _) => "tensor with a gradient",
        (_, true) => "scalar",
        _ => "tensor",
    }
}
