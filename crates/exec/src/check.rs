//! The check of what a launch or a binding is given. There is one walk over a plan's operands, whatever gives them
//! ([`Supplied`]) and whatever becomes of a fault ([`FaultSink`]): so a launch, which only asks whether all is right,
//! refuses exactly what a binding tells.

mod given;

use std::ops::ControlFlow;

use qkvault_graph::Binding;
use qkvault_graph::SCRATCH_ALIGNMENT;
use qkvault_graph::{DType, Role};

use crate::bind_error::BindError;
use crate::bindings::RawOperand;
use crate::driver::MemoryKind;
use crate::origins::OriginTable;
use crate::raw::DeviceBuffer;

pub(crate) use given::{ByPlace, ByRole, Supplied};

/// Where the faults go that a check finds. A check is compiled for each sink, so that a launch makes no fault and asks
/// nothing at run time.
pub(crate) trait FaultSink {
    /// Takes a fault. `Break` ends the check.
    fn fault(&mut self, fault: impl FnOnce() -> BindError) -> ControlFlow<()>;

    /// Whether it keeps faults, so that all of them must be found.
    const TELLS: bool;

    /// Whether there was no fault yet.
    fn is_right(&self) -> bool;
}

/// Stops at the first fault.
pub(crate) struct StopAtFirst;

impl FaultSink for StopAtFirst {
    const TELLS: bool = false;

    #[inline]
    fn fault(&mut self, _: impl FnOnce() -> BindError) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    #[inline]
    fn is_right(&self) -> bool {
        true
    }
}

/// Collects all faults.
impl FaultSink for Vec<BindError> {
    const TELLS: bool = true;

    #[cold]
    fn fault(&mut self, fault: impl FnOnce() -> BindError) -> ControlFlow<()> {
        self.push(fault());
        ControlFlow::Continue(())
    }

    fn is_right(&self) -> bool {
        self.is_empty()
    }
}

/// All faults that a check finds.
pub(crate) fn faults(check: impl FnOnce(&mut Vec<BindError>) -> ControlFlow<()>) -> Vec<BindError> {
    let mut faults = Vec::new();
    // Nothing ends a check that collects.
    let _ = check(&mut faults);
    faults
}

/// What a plan needs.
#[derive(Clone, Copy)]
pub(crate) struct Needs<'p> {
    /// Its operands, in its order.
    pub(crate) bindings: &'p [Binding],
    /// How many of them the caller gives.
    pub(crate) count: usize,
    pub(crate) origins: Option<&'p OriginTable>,
    /// Bytes of scratch memory.
    pub(crate) workspace: u64,
}

/// Checks operands and then, where they are right, the workspace: one that overlaps a wrong operand says little.
#[inline]
pub(crate) fn check(
    needs: Needs<'_>,
    given: &impl Supplied,
    workspace: DeviceBuffer,
    sink: &mut impl FaultSink,
) -> ControlFlow<()> {
    check_operands(needs, given, sink)?;
    if sink.is_right() { check_workspace(needs, given, workspace, sink) } else { ControlFlow::Continue(()) }
}

/// Checks operands and scalars, in the plan's order of roles.
#[inline]
pub(crate) fn check_operands<G: Supplied>(needs: Needs<'_>, given: &G, sink: &mut impl FaultSink) -> ControlFlow<()> {
    given.check_each(needs, sink)?;
    if !G::PLACED {
        return ControlFlow::Continue(());
    }
    if let Some(origins) = needs.origins {
        origins.check(|role, place| given.number(role, place), sink)?;
    }
    check_overlaps(needs, given, sink)
}

fn check_workspace<S: FaultSink>(
    needs: Needs<'_>,
    given: &impl Supplied,
    DeviceBuffer { address, bytes }: DeviceBuffer,
    sink: &mut S,
) -> ControlFlow<()> {
    let needed = needs.workspace;
    if needed == 0 {
        return ControlFlow::Continue(());
    }
    if bytes < needed || address == 0 || !address.is_multiple_of(SCRATCH_ALIGNMENT) {
        sink.fault(|| BindError::Workspace { address, given: bytes, needed })?;
    }
    let workspace = (address, address.saturating_add(needed));
    for (tensor, buffer) in given.tensors(needs.bindings) {
        if overlap(span::<S>(tensor, buffer), workspace) {
            sink.fault(|| BindError::WorkspaceOverlap { role: tensor.role })?;
        }
    }
    ControlFlow::Continue(())
}

/// The fault of an operand that nothing was bound to.
pub(crate) fn missing(binding: &Binding) -> BindError {
    let Binding { role, dtype, scalar, output: _, bytes, alignment: _ } = *binding;
    BindError::Missing { role, scalar, dtype, bytes }
}

/// Checks that a number is bound to a scalar of its type.
#[inline]
pub(crate) fn check_number(binding: &Binding, given: DType, sink: &mut impl FaultSink) -> ControlFlow<()> {
    let Binding { role, dtype, scalar, output: _, bytes, alignment: _ } = *binding;
    if !scalar {
        sink.fault(|| BindError::NotANumber { role, dtype, bytes })
    } else if given != dtype {
        sink.fault(|| BindError::WrongDType { role, needed: dtype, given })
    } else {
        ControlFlow::Continue(())
    }
}

/// Checks the bytes of an operand's buffer, which may be larger. Only block scales have exactly theirs: more bytes are
/// those of another type or layout.
#[inline]
pub(crate) fn check_size(binding: &Binding, given: u64, sink: &mut impl FaultSink) -> ControlFlow<()> {
    let Binding { role, dtype, bytes: needed, .. } = *binding;
    if given < needed {
        sink.fault(|| BindError::TooSmall { role, needed, given })
    } else if dtype == DType::E8M0 && given > needed {
        sink.fault(|| BindError::BlockScaleBytes { role, needed, given })
    } else {
        ControlFlow::Continue(())
    }
}

#[inline]
fn check_tensor<G: Supplied>(
    binding: &Binding,
    operand: &RawOperand,
    given: &G,
    sink: &mut impl FaultSink,
) -> ControlFlow<()> {
    let Binding { role, dtype, scalar: _, output, bytes: _, alignment } = *binding;
    let RawOperand { role: _, address, bytes, dtype: given_dtype, writable } = *operand;
    if output && !writable {
        sink.fault(|| BindError::NotWritable { role })?;
    }
    if let Some(given) = given_dtype.filter(|given| *given != dtype) {
        sink.fault(|| BindError::WrongDType { role, needed: dtype, given })?;
    }
    if !G::PLACED {
        return ControlFlow::Continue(());
    }
    check_size(binding, bytes, sink)?;
    if address == 0 {
        return sink.fault(|| BindError::Null { role });
    }
    if address.checked_add(bytes).is_none() {
        return sink.fault(|| BindError::OutOfRange { role, address, bytes });
    }
    if !address.is_multiple_of(u64::from(alignment.max(1))) {
        sink.fault(|| BindError::Misaligned { role, address, needed: alignment })?;
    }
    match given.memory(address) {
        (MemoryKind::Device(found), needed) if found != needed => {
            sink.fault(|| BindError::OtherDevice { role, found, needed })
        }
        (found @ (MemoryKind::PinnedHost | MemoryKind::Unregistered), _) => {
            sink.fault(|| BindError::NotDevice { role, address, found })
        }
        (MemoryKind::Device(_) | MemoryKind::Managed | MemoryKind::Unknown, _) => ControlFlow::Continue(()),
    }
}

/// The range of addresses that a launch reads or writes: the plan's bytes, because the caller's buffer may be larger.
/// For a buffer that is too small it is the buffer, so that the fault is its size and not an overlap with what lies
/// behind it; address 0 has a range that overlaps nothing. A check that stops gets here with right operands alone.
#[inline]
fn span<S: FaultSink>(tensor: &Binding, DeviceBuffer { address, bytes }: DeviceBuffer) -> (u64, u64) {
    match (S::TELLS, address) {
        (false, _) => (address, address.wrapping_add(tensor.bytes)),
        (true, 0) => (0, 0),
        (true, _) => (address, address.saturating_add(tensor.bytes.min(bytes))),
    }
}

/// Whether two ranges of addresses, each up to its end, have one in common.
pub(crate) fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

#[inline]
fn check_overlaps<S: FaultSink>(needs: Needs<'_>, given: &impl Supplied, sink: &mut S) -> ControlFlow<()> {
    let stated = |a: Role, b: Role| given.interleaved().iter().any(|pair| *pair == (a, b) || *pair == (b, a));
    for (at, (output, buffer)) in given.tensors(needs.bindings).enumerate().filter(|(_, (tensor, _))| tensor.output) {
        let (role, written) = (output.role, span::<S>(output, buffer));
        for (other_at, (other, buffer)) in given.tensors(needs.bindings).enumerate() {
            let other_span = span::<S>(other, buffer);
            // Two outputs are compared once, and a role that is bound twice has a fault of its own.
            if !overlap(written, other_span) || (other.output && other_at <= at) || other.role == role {
                continue;
            }
            if !stated(role, other.role) {
                let (at, other_at) = (written, other_span);
                sink.fault(|| BindError::Overlap { role, other: other.role, at, other_at })?;
            }
        }
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
pub(crate) mod tests;
