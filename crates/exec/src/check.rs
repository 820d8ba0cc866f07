//! The checks of binding: pure functions of a plan's facts, the caller's bindings, and a function that returns the kind
//! of memory at an address.

use qkvault_compile::PlanFacts;
use qkvault_graph::op::{Binding, SCRATCH_ALIGNMENT};
use qkvault_graph::{DType, Role};

use crate::bind_error::{BindError, BindErrors};
use crate::bindings::{Operand, RawBindings};
use crate::driver::MemoryKind;
use crate::origins;

/// Checks bindings against a plan. `memory` returns the kind of memory at an address; `ordinal` is the GPU of the plan.
///
/// # Errors
///
/// [`BindErrors`] with all errors, in the plan's order of roles.
pub(crate) fn check_bindings(
    facts: &PlanFacts,
    bindings: &RawBindings,
    ordinal: i32,
    memory: &dyn Fn(u64) -> MemoryKind,
) -> Result<(), BindErrors> {
    let mut errors = Vec::new();
    let RawBindings { operands, scalars, interleaved } = bindings;
    for binding in facts.bindings.iter().filter(|b| !b.role.is_internal()) {
        let mut given = operands.iter().filter(|o| o.role == binding.role);
        let mut values = scalars.iter().filter(|(role, _)| *role == binding.role);
        let times = given.clone().count() + values.clone().count();
        if times > 1 {
            errors.push(BindError::Duplicate { role: binding.role, times });
            continue;
        }
        match (given.next(), values.next()) {
            (None, None) => errors.push(missing(binding)),
            (Some(_), _) if binding.scalar => {
                errors.push(BindError::NotATensor { role: binding.role, dtype: binding.dtype });
            }
            (_, Some((_, value))) => number(binding, value.dtype(), &mut errors),
            (Some(operand), None) => tensor(binding, operand, ordinal, memory, &mut errors),
        }
    }
    let known = |role: Role| facts.bindings.iter().find(|b| b.role == role);
    let mut extra: Vec<Role> = operands.iter().map(|o| o.role).chain(scalars.iter().map(|(role, _)| *role)).collect();
    extra.sort_unstable();
    extra.dedup();
    for role in extra {
        match known(role) {
            None => {
                let plan_has = facts.bindings.iter().map(|b| b.role).filter(|r| !r.is_internal()).collect();
                errors.push(BindError::Extra { role, plan_has });
            }
            Some(binding) if binding.role.is_internal() => errors.push(BindError::Internal { role }),
            Some(_) => {}
        }
    }
    origins::errors(facts, scalars, &mut errors);
    overlaps(facts, operands, interleaved, &mut errors);
    BindErrors::check(facts, errors)
}

/// Checks the workspace of a launch against its needed size and the bound operands.
///
/// # Errors
///
/// [`BindErrors`] with all errors.
pub(crate) fn check_workspace(
    facts: &PlanFacts,
    bindings: &RawBindings,
    needed: u64,
    address: u64,
    given: u64,
) -> Result<(), BindErrors> {
    let mut errors = Vec::new();
    if needed > 0 {
        if given < needed || address == 0 || !address.is_multiple_of(SCRATCH_ALIGNMENT) {
            errors.push(BindError::Workspace { address, given, needed });
        }
        let workspace = (address, address.saturating_add(needed));
        for operand in &bindings.operands {
            if spans(facts, operand).is_some_and(|span| overlap(span, workspace)) {
                errors.push(BindError::WorkspaceOverlap { role: operand.role });
            }
        }
    }
    BindErrors::check(facts, errors)
}

/// Whether these are more bytes than an operand's block scales have: those of another type or layout. Other buffers may
/// be larger than their operand.
pub(crate) fn is_oversized(binding: &Binding, given: u64) -> bool {
    binding.dtype == DType::E8M0 && given > binding.bytes
}

/// The error for a buffer of so many bytes, if they do not suit the operand.
pub(crate) fn wrong_size(binding: &Binding, given: u64) -> Option<BindError> {
    let Binding { role, bytes: needed, .. } = *binding;
    if given < needed {
        return Some(BindError::TooSmall { role, needed, given });
    }
    is_oversized(binding, given).then_some(BindError::BlockScaleBytes { role, needed, given })
}

fn missing(binding: &Binding) -> BindError {
    let Binding { role, dtype, scalar, output: _, bytes, alignment: _ } = *binding;
    BindError::Missing { role, scalar, dtype, bytes }
}

fn number(binding: &Binding, given: DType, errors: &mut Vec<BindError>) {
    let Binding { role, dtype, scalar, output: _, bytes, alignment: _ } = *binding;
    if !scalar {
        errors.push(BindError::NotANumber { role, dtype, bytes });
    } else if given != dtype {
        errors.push(BindError::WrongDType { role, needed: dtype, given });
    }
}

fn tensor(
    binding: &Binding,
    operand: &Operand,
    ordinal: i32,
    memory: &dyn Fn(u64) -> MemoryKind,
    errors: &mut Vec<BindError>,
) {
    let Binding { role, dtype, scalar: _, output, bytes: _, alignment } = *binding;
    let Operand { role: _, address, bytes: given, dtype: given_dtype, writable } = *operand;
    if output && !writable {
        errors.push(BindError::NotWritable { role });
    }
    if let Some(given) = given_dtype.filter(|given| *given != dtype) {
        errors.push(BindError::WrongDType { role, needed: dtype, given });
    }
    errors.extend(wrong_size(binding, given));
    if address == 0 {
        errors.push(BindError::Null { role });
        return;
    }
    if address.checked_add(given).is_none() {
        errors.push(BindError::OutOfRange { role, address, bytes: given });
        return;
    }
    if !address.is_multiple_of(u64::from(alignment.max(1))) {
        errors.push(BindError::Misaligned { role, address, needed: alignment });
    }
    match memory(address) {
        MemoryKind::Device(found) if found != ordinal => {
            errors.push(BindError::OtherDevice { role, found, needed: ordinal });
        }
        found @ (MemoryKind::PinnedHost | MemoryKind::Unregistered) => {
            errors.push(BindError::NotDevice { role, address, found });
        }
        MemoryKind::Device(_) | MemoryKind::Managed | MemoryKind::Unknown => {}
    }
}

/// The range of addresses that a launch reads or writes: the plan's bytes, because the caller's buffer may be larger.
/// For a buffer that is too small it is the buffer, so that the error is its size and not an overlap with what lies
/// behind it.
fn spans(facts: &PlanFacts, operand: &Operand) -> Option<(u64, u64)> {
    let binding = facts.bindings.iter().find(|b| b.role == operand.role && !b.scalar)?;
    (operand.address != 0).then(|| (operand.address, operand.address.saturating_add(binding.bytes.min(operand.bytes))))
}

/// Whether two ranges of addresses, each up to its end, have one in common.
pub(crate) fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

fn overlaps(facts: &PlanFacts, operands: &[Operand], interleaved: &[(Role, Role)], errors: &mut Vec<BindError>) {
    let output = |role| facts.bindings.iter().any(|b| b.role == role && b.output);
    for (i, a) in operands.iter().enumerate() {
        for b in &operands[i + 1..] {
            // A role that is bound twice has an error of its own.
            let stated = interleaved.iter().any(|pair| *pair == (a.role, b.role) || *pair == (b.role, a.role));
            if a.role == b.role || stated || !(output(a.role) || output(b.role)) {
                continue;
            }
            let (Some(at), Some(other_at)) = (spans(facts, a), spans(facts, b)) else { continue };
            if overlap(at, other_at) {
                errors.push(if output(a.role) {
                    BindError::Overlap { role: a.role, other: b.role, at, other_at }
                } else {
                    BindError::Overlap { role: b.role, other: a.role, at: other_at, other_at: at }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
