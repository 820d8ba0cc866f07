//! A launch on addresses that change with every call, in the order of a plan's operands.

use std::ffi::c_void;
use std::sync::Arc;

use qkvault_compile::PlanFacts;
use qkvault_cudnn::op::Scratch;
use qkvault_graph::Binding;
use qkvault_graph::Role;
use qkvault_sys::{ExecutionPlan, Library, VariantPack};
use smallvec::SmallVec;

use crate::bind_error::BindErrors;
use crate::bindings::Number;
use crate::check::{ByPlace, Needs, StopAtFirst, check, faults};
use crate::clear::clear;
use crate::origins::{OriginTable, is_origin};
use crate::raw::cubins::Cubins;
use crate::raw::host_scalars::HostScalars;
use crate::raw::launch_error::LaunchError;
use crate::raw::load::{LoadedCode, RawPlan};

/// Addresses of a variant pack that fit the stack; plans with more operands take memory from the heap.
const INLINE: usize = 24;

/// Memory on the GPU: an address, and the bytes from it on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBuffer {
    /// The address.
    pub address: u64,
    /// Bytes from the address on.
    pub bytes: u64,
}

/// What a launch is given, in the plan's order ([`RawPlan::tensors`], [`RawPlan::scalars`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RawArgs<'a> {
    /// A buffer for each of the plan's tensors.
    pub tensors: &'a [DeviceBuffer],
    /// A value for each of the plan's scalars.
    pub scalars: &'a [Number],
    /// Scratch memory of at least [`RawPlan::workspace`] bytes, aligned to
    /// [`SCRATCH_ALIGNMENT`](crate::SCRATCH_ALIGNMENT).
    pub workspace: DeviceBuffer,
    /// Pairs of operands whose ranges overlap and whose elements do not, as the gradients of an interleaved QKV.
    pub interleaved: &'a [(Role, Role)],
}

/// A plan's operands in the order of a launch, and the unique ids of its variant pack.
#[derive(Debug)]
pub(crate) struct LaunchTable {
    tensors: Vec<Binding>,
    scalars: Vec<Binding>,
    /// Ids of the constants, the scalars, the tensors, those declared a second time, and the scratch buffers.
    uids: Vec<i64>,
    /// The constants, each in eight bytes.
    fixed: Vec<u64>,
    /// What follows from the origins of a launch.
    origins: Option<OriginTable>,
    /// For each tensor that is declared a second time, the place of the one whose memory it has.
    again: Vec<usize>,
    /// The offset of each scratch buffer in the workspace.
    buffers: Vec<u64>,
}

impl LaunchTable {
    pub(crate) fn new(facts: &PlanFacts, scratch: &Scratch) -> LaunchTable {
        let (scalars, tensors): (Vec<Binding>, Vec<Binding>) =
            facts.bindings.iter().copied().filter(|b| !b.role.is_internal()).partition(|b| b.scalar);
        let place = |role: &Role| tensors.iter().position(|t| t.role == role.memory());
        // A role that is declared a second time has its first declaration among the tensors.
        let twice: Vec<(i64, usize)> =
            facts.again().iter().filter_map(|role| Some((role.uid(), place(role)?))).collect();
        let fixed = facts.fixed().iter().map(|fixed| fixed.uid);
        let uids = fixed
            .chain(scalars.iter().filter(|b| !is_origin(b.role)).chain(&tensors).map(|b| b.role.uid()))
            .chain(twice.iter().map(|(uid, _)| *uid))
            .chain(scratch.buffers.iter().map(|(role, ..)| role.uid()))
            .collect();
        LaunchTable {
            uids,
            fixed: facts.fixed().iter().map(|fixed| eight(fixed.value.bytes([0; 2]))).collect(),
            again: twice.into_iter().map(|(_, at)| at).collect(),
            buffers: scratch.buffers.iter().map(|(_, offset, _)| *offset).collect(),
            origins: OriginTable::new(facts, &scalars),
            tensors,
            scalars,
        }
    }

    pub(crate) fn tensors(&self) -> &[Binding] {
        &self.tensors
    }

    pub(crate) fn scalars(&self) -> &[Binding] {
        &self.scalars
    }

    /// The constants and room for the scalars: the numbers that a variant pack points to, of eight bytes each.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.fixed.iter().copied().chain(self.scalars.iter().map(|_| 0))
    }

    /// The place of the first scalar among the numbers.
    pub(crate) fn first_scalar(&self) -> usize {
        self.fixed.len()
    }

    /// The variant pack of these addresses. It points to `numbers`, the constants and scalars.
    ///
    /// # Safety
    ///
    /// `numbers` must live as long as the pack, and the other addresses must be valid when a launch follows them.
    pub(crate) unsafe fn pack(
        &self,
        library: &Arc<Library>,
        numbers: &HostScalars,
        tensors: &[DeviceBuffer],
        workspace: u64,
    ) -> Result<VariantPack, qkvault_sys::Error> {
        let at = |address: u64| address as usize as *mut c_void;
        let told = (self.first_scalar()..).zip(&self.scalars).filter(|(_, s)| !is_origin(s.role)).map(|(at, _)| at);
        let addresses: SmallVec<[*mut c_void; INLINE]> = (0..self.first_scalar())
            .chain(told)
            .map(|place| numbers.address(place))
            .chain(tensors.iter().map(|buffer| at(buffer.address)))
            .chain(self.again.iter().map(|place| at(tensors[*place].address)))
            .chain(self.buffers.iter().map(|offset| at(workspace + offset)))
            .collect();
        // SAFETY: the caller's promise.
        unsafe { VariantPack::new(library, &self.uids, &addresses, at(workspace)) }
    }

    /// Writes scalars in the plan's order, and the numbers that follow from the origins among them.
    pub(crate) fn set_scalars(&self, numbers: &mut HostScalars, scalar: impl Fn(usize) -> Number) {
        for at in 0..self.scalars.len() {
            numbers.set(self.first_scalar() + at, scalar(at).cell());
        }
        if let Some(table) = &self.origins {
            self.move_to(numbers, table.among(scalar));
        }
    }

    /// Writes the numbers that follow from these origins.
    pub(crate) fn move_to(&self, numbers: &mut HostScalars, origins: [i32; 2]) {
        for (at, bytes) in self.origins.iter().flat_map(|table| table.numbers(origins)) {
            numbers.set(at, eight(bytes));
        }
    }

    /// What the check of operands needs to know, with the bindings of the plan's facts.
    #[inline]
    pub(crate) fn needs<'p>(&'p self, bindings: &'p [Binding], workspace: u64) -> Needs<'p> {
        Needs { bindings, count: self.tensors.len() + self.scalars.len(), origins: self.origins.as_ref(), workspace }
    }

    /// What follows from the origins of a launch, if the plan has origins.
    pub(crate) fn origins(&self) -> Option<&OriginTable> {
        self.origins.as_ref()
    }
}

impl RawPlan {
    /// The plan's tensors in the order of [`RawArgs::tensors`], with bytes and alignment. Buffers that a launch
    /// provides itself are left out.
    #[must_use]
    pub fn tensors(&self) -> &[Binding] {
        self.table().tensors()
    }

    /// The plan's scalars in the order of [`RawArgs::scalars`].
    #[must_use]
    pub fn scalars(&self) -> &[Binding] {
        self.table().scalars()
    }

    /// Queues a launch on a stream (a `cudaStream_t` or `CUstream`; null is the default stream), with the addresses and
    /// numbers of this call.
    ///
    /// It checks counts, types, sizes, alignment and overlap, and does not ask the driver what lies at an address. It
    /// prefers a handle that is already on this stream, and a variant pack of an earlier launch on the same addresses,
    /// of which a plan keeps 64. Without one it makes one, which takes a microsecond more.
    ///
    /// # Safety
    ///
    /// The stream must be of the session's GPU. Until the launch is finished on the stream, every address must be valid
    /// memory of that GPU for what the plan does with the operand, and no other launch may use the workspace. A launch
    /// is several operations, so threads that launch with one workspace on one stream must take turns too. Lengths,
    /// offsets and page tables must lead nowhere outside the operands. The session's context must be current on this
    /// thread, unless the session enters it itself ([`RawSession::on_primary`](crate::raw::RawSession::on_primary)).
    ///
    /// # Errors
    ///
    /// [`LaunchError::Arguments`] with everything that is wrong in the arguments; [`LaunchError`] if the driver or
    /// cuDNN refuses the launch. Nothing was queued then.
    pub unsafe fn launch_with(&self, args: &RawArgs<'_>, stream: *mut c_void) -> Result<(), LaunchError> {
        let (table, needs) = (self.table(), self.needs());
        let given = self.by_place(args)?;
        if check(needs, &given, args.workspace, &mut StopAtFirst).is_break() {
            let errors = faults(|all| check(needs, &given, args.workspace, all));
            return Err(LaunchError::Arguments(BindErrors::new(self.facts(), errors)));
        }
        let _entered = self.session().enter_to_launch()?;
        let (plan, packs) = match self.code() {
            LoadedCode::Cudnn(plan, packs) => (plan, packs),
            LoadedCode::Kernels(cubins) => {
                let (number, scratch) = (|at: usize| args.scalars[at].cell(), args.workspace.address);
                // SAFETY: the caller's promise.
                return unsafe { queue_kernels(cubins, args.tensors, number, scratch, stream) };
            }
        };
        let pack =
            packs.take(&self.session().cudnn_of_plan().library, table, args).map_err(|source| self.refused(source))?;
        // SAFETY: the caller's promise.
        let queued = unsafe {
            self.clear_sums(args.workspace.address, stream)?;
            self.queue(plan, &pack.pack, stream)
        };
        packs.give_back(pack);
        queued.map_err(|source| self.refused(source))
    }

    /// Clears the parts of the scratch memory that must hold zeros when a launch begins.
    ///
    /// # Safety
    ///
    /// The address must be that of scratch memory of the plan, which no other launch uses.
    pub(crate) unsafe fn clear_sums(&self, workspace: u64, stream: *mut c_void) -> Result<(), LaunchError> {
        for &(offset, bytes) in self.clear() {
            // SAFETY: a part of the scratch memory.
            unsafe { clear(workspace + offset, bytes, stream) }
                .map_err(|detail| LaunchError::Driver { step: "clear a buffer that the kernels sum in", detail })?;
        }
        Ok(())
    }

    /// Executes a plan of cuDNN with a variant pack, on a handle of the session's pool.
    ///
    /// # Safety
    ///
    /// As [`RawPlan::launch_with`], for the addresses of the pack.
    unsafe fn queue(
        &self,
        plan: &ExecutionPlan,
        pack: &VariantPack,
        stream: *mut c_void,
    ) -> Result<(), qkvault_sys::Error> {
        // SAFETY: the stream is of this GPU, whose context is current, and alive until the launch is queued.
        let mut lease = unsafe { self.session().cudnn_of_plan().pool.on(stream) }?;
        // SAFETY: the caller promises valid addresses; plan and handle are of one session.
        unsafe { plan.execute(lease.handle(), pack) }
    }

    pub(crate) fn refused(&self, source: qkvault_sys::Error) -> LaunchError {
        let facts = self.facts();
        LaunchError::Refused { key: facts.key, what: facts.what.clone(), source: Box::new(source) }
    }

    /// What the check of a launch compares with.
    pub(crate) fn needs(&self) -> Needs<'_> {
        self.table().needs(&self.facts().bindings, self.workspace())
    }

    /// The arguments of a launch as its check reads them.
    #[inline]
    fn by_place<'a>(&'a self, args: &RawArgs<'a>) -> Result<ByPlace<'a>, LaunchError> {
        let LaunchTable { tensors, scalars, .. } = self.table();
        let (given, needed) = ((args.tensors.len(), args.scalars.len()), (tensors.len(), scalars.len()));
        if given != needed {
            return Err(LaunchError::Count { what: self.facts().what.clone(), given, needed });
        }
        Ok(ByPlace { tensors, scalars, args: *args })
    }
}

/// Queues a launch of kernels, whose operands are in the order of a launch.
///
/// # Safety
///
/// As [`RawPlan::launch_with`].
pub(crate) unsafe fn queue_kernels(
    cubins: &Cubins,
    tensors: &[DeviceBuffer],
    number: impl Fn(usize) -> u64,
    scratch: u64,
    stream: *mut c_void,
) -> Result<(), LaunchError> {
    // SAFETY: the caller's promise.
    unsafe { cubins.launch(tensors, number, scratch, stream) }
        .map_err(|detail| LaunchError::Driver { step: "queue the kernels of the plan", detail })
}

/// Four bytes at the start of eight, as cuDNN reads a number of the host.
fn eight(bytes: [u8; 4]) -> u64 {
    let mut cell = [0; 8];
    cell[..4].copy_from_slice(&bytes);
    u64::from_ne_bytes(cell)
}
