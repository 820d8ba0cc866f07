//! The checks of binding, as pure functions over a plan's facts, the caller's bindings and a way to ask what memory is at an address.

use std::fmt;
use std::ops::Deref;

use qkvault_graph::{DType, Role};
use qkvault_probe::{Binding, PlanFacts};

use crate::bindings::{Bindings, Operand};
use crate::driver::MemoryKind;
use crate::scratch::SCRATCH_ALIGNMENT;

/// One thing wrong with what was bound. Every one names the role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Nothing was bound to a role of the plan.
    #[error("{role} is missing: the plan needs {}", needs(*slot, *dtype, *bytes))]
    Missing {
        /// The role.
        role: Role,
        /// Whether it is a slot.
        slot: bool,
        /// Its element type.
        dtype: DType,
        /// Its bytes.
        bytes: u64,
    },
    /// The plan has no such role.
    #[error("{role} was bound, and the plan has no such operand; it has {}", list(plan_has))]
    Extra {
        /// The role.
        role: Role,
        /// What the plan has.
        plan_has: Vec<Role>,
    },
    /// A role was bound twice.
    #[error("{role} was bound {times} times; bind it once")]
    Duplicate {
        /// The role.
        role: Role,
        /// How often.
        times: usize,
    },
    /// The role is a buffer that qkvault takes from the workspace.
    #[error("{role} was bound, but it is a buffer that comes out of the workspace; leave it out")]
    Internal {
        /// The role.
        role: Role,
    },
    /// A number was bound where an operand is due.
    #[error(
        "{role} was given as a number, and the plan wants {bytes} bytes of {dtype} on the GPU; bind a slice or an address"
    )]
    NotANumber {
        /// The role.
        role: Role,
        /// Its element type.
        dtype: DType,
        /// Its bytes.
        bytes: u64,
    },
    /// An operand was bound where a number is due.
    #[error("{role} was given as memory, and the plan wants one {dtype} on the host; give it with `slot`")]
    NotATensor {
        /// The role.
        role: Role,
        /// Its element type.
        dtype: DType,
    },
    /// Another element type.
    #[error("{role} is {given}, and the plan wants {needed}")]
    WrongDType {
        /// The role.
        role: Role,
        /// What the plan wants.
        needed: DType,
        /// What was bound.
        given: DType,
    },
    /// The memory is too small.
    #[error("{role} has {given} bytes, and the plan reaches over {needed}; bind the whole tensor")]
    TooSmall {
        /// The role.
        role: Role,
        /// From the first to one past the last element.
        needed: u64,
        /// What was bound.
        given: u64,
    },
    /// An output was bound to memory that may only be read.
    #[error("{role} is written by the launch and was bound to memory that is shared; bind it with `slice_mut`")]
    NotWritable {
        /// The role.
        role: Role,
    },
    /// The address is null.
    #[error("{role} is bound to address 0; was its memory allocated?")]
    Null {
        /// The role.
        role: Role,
    },
    /// The range does not end before the end of the address space.
    #[error("{role} at {address:#x} with {bytes} bytes reaches past the end of all addresses; check the length")]
    OutOfRange {
        /// The role.
        role: Role,
        /// The address.
        address: u64,
        /// The bytes bound.
        bytes: u64,
    },
    /// The address is not aligned as the plan was compiled for.
    #[error(
        "{role} is at {address:#x}, and the plan needs a multiple of {needed} bytes; kernels read it wrongly or fault otherwise"
    )]
    Misaligned {
        /// The role.
        role: Role,
        /// The address.
        address: u64,
        /// The alignment.
        needed: u32,
    },
    /// The memory is not on a GPU.
    #[error("{role} is at {address:#x}, which is {}, and the plan wants it on the GPU; copy it there first", kind(*found))]
    NotDevice {
        /// The role.
        role: Role,
        /// The address.
        address: u64,
        /// What is there.
        found: MemoryKind,
    },
    /// The memory is on another GPU.
    #[error("{role} is on GPU {found}, and the plan is loaded on GPU {needed}; copy it there first")]
    OtherDevice {
        /// The role.
        role: Role,
        /// Where it is.
        found: i32,
        /// Where the plan is.
        needed: i32,
    },
    /// An output overlaps another operand.
    #[error(
        "{role} is written by the launch and overlaps {other} ({role} {}, {other} {}); give it memory of its own, or say `interleaved` if only \
         their ranges overlap and no element does",
        range(*at), range(*other_at)
    )]
    Overlap {
        /// The output.
        role: Role,
        /// The other operand.
        other: Role,
        /// First and one past last address of the output.
        at: (u64, u64),
        /// First and one past last address of the other.
        other_at: (u64, u64),
    },
    /// The workspace is too small, misaligned or null.
    #[error(
        "the workspace at {address:#x} has {given} bytes, and the plan needs {needed}, aligned to {SCRATCH_ALIGNMENT}"
    )]
    Workspace {
        /// Its address.
        address: u64,
        /// Its bytes.
        given: u64,
        /// What the plan needs.
        needed: u64,
    },
    /// The workspace overlaps an operand.
    #[error("the workspace overlaps {role}; give it memory of its own")]
    WorkspaceOverlap {
        /// The operand.
        role: Role,
    },
}

/// Everything wrong with what was bound; at least one error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindErrors {
    what: String,
    errors: Vec<BindError>,
}

impl BindErrors {
    /// The errors, by value.
    #[must_use]
    pub fn into_vec(self) -> Vec<BindError> {
        self.errors
    }
}

impl Deref for BindErrors {
    type Target = [BindError];

    fn deref(&self) -> &[BindError] {
        &self.errors
    }
}

impl std::error::Error for BindErrors {}

impl fmt::Display for BindErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot bind to the plan of '{}': ", self.what)?;
        for (i, error) in self.errors.iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

fn needs(slot: bool, dtype: DType, bytes: u64) -> String {
    if slot {
        format!("one {dtype} on the host, given with `slot`")
    } else {
        format!("{bytes} bytes of {dtype} on the GPU")
    }
}

fn list(roles: &[Role]) -> String {
    roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn kind(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::PinnedHost => "page-locked host memory",
        MemoryKind::Unregistered => "host memory or no memory that CUDA knows",
        MemoryKind::Device(_) => "memory of a GPU",
        MemoryKind::Managed => "managed memory",
        MemoryKind::Unknown => "memory that the driver could not be asked about",
    }
}

fn range((from, to): (u64, u64)) -> String {
    format!("{from:#x}..{to:#x}")
}

/// Checks bindings and workspace against a plan. `memory` tells what is at an address, `ordinal` on which GPU the plan is loaded.
///
/// # Errors
///
/// Everything that is wrong, in the plan's order of roles.
pub fn check_bindings(
    facts: &PlanFacts,
    bindings: &Bindings,
    ordinal: i32,
    memory: &dyn Fn(u64) -> MemoryKind,
) -> Result<(), BindErrors> {
    let mut errors = Vec::new();
    let Bindings { operands, slots, interleaved } = bindings;
    for binding in facts.bindings.iter().filter(|b| !b.role.is_internal()) {
        let mut given = operands.iter().filter(|o| o.role == binding.role);
        let mut values = slots.iter().filter(|(role, _)| *role == binding.role);
        let times = given.clone().count() + values.clone().count();
        if times > 1 {
            errors.push(BindError::Duplicate { role: binding.role, times });
            continue;
        }
        match (given.next(), values.next()) {
            (None, None) => errors.push(missing(binding)),
            (Some(_), _) if binding.slot => {
                errors.push(BindError::NotATensor { role: binding.role, dtype: binding.dtype });
            }
            (_, Some((_, value))) => number(binding, value.dtype(), &mut errors),
            (Some(operand), None) => tensor(binding, operand, ordinal, memory, &mut errors),
        }
    }
    let known = |role: Role| facts.bindings.iter().find(|b| b.role == role);
    let mut extra: Vec<Role> = operands.iter().map(|o| o.role).chain(slots.iter().map(|(role, _)| *role)).collect();
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
    overlaps(facts, operands, interleaved, &mut errors);
    finish(facts, errors)
}

/// Checks the workspace of a launch against what the plan needs and what is bound.
///
/// # Errors
///
/// As [`check_bindings`].
pub fn check_workspace(
    facts: &PlanFacts,
    bindings: &Bindings,
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
    finish(facts, errors)
}

fn finish(facts: &PlanFacts, errors: Vec<BindError>) -> Result<(), BindErrors> {
    if errors.is_empty() { Ok(()) } else { Err(BindErrors { what: facts.what.clone(), errors }) }
}

fn missing(binding: &Binding) -> BindError {
    let Binding { role, dtype, slot, output: _, bytes, alignment: _ } = *binding;
    BindError::Missing { role, slot, dtype, bytes }
}

fn number(binding: &Binding, given: DType, errors: &mut Vec<BindError>) {
    let Binding { role, dtype, slot, output: _, bytes, alignment: _ } = *binding;
    if !slot {
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
    let Binding { role, dtype, slot: _, output, bytes: needed, alignment } = *binding;
    let Operand { role: _, address, bytes: given, dtype: given_dtype, writable } = *operand;
    if output && !writable {
        errors.push(BindError::NotWritable { role });
    }
    if let Some(given) = given_dtype.filter(|given| *given != dtype) {
        errors.push(BindError::WrongDType { role, needed: dtype, given });
    }
    if given < needed {
        errors.push(BindError::TooSmall { role, needed, given });
    }
    if address == 0 {
        errors.push(BindError::Null { role });
        return;
    }
    if address.checked_add(given).is_none() {
        errors.push(BindError::OutOfRange { role, address, bytes: given });
        return;
    }
    if alignment > 0 && !address.is_multiple_of(u64::from(alignment)) {
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

/// The range that a launch reaches over: the plan's bytes, not the caller's, which may be those of a larger buffer.
fn spans(facts: &PlanFacts, operand: &Operand) -> Option<(u64, u64)> {
    let binding = facts.bindings.iter().find(|b| b.role == operand.role && !b.slot)?;
    (operand.address != 0).then(|| (operand.address, operand.address.saturating_add(binding.bytes)))
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

fn overlaps(facts: &PlanFacts, operands: &[Operand], interleaved: &[(Role, Role)], errors: &mut Vec<BindError>) {
    let output = |role| facts.bindings.iter().any(|b| b.role == role && b.output);
    for (i, a) in operands.iter().enumerate() {
        for b in &operands[i + 1..] {
            // A role that is bound twice is reported as that.
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
