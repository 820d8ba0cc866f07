//! What can be wrong with what a caller binds; every error names the role.

use std::fmt;
use std::ops::Deref;

use qkvault_compile::PlanFacts;
use qkvault_graph::op::SCRATCH_ALIGNMENT;
use qkvault_graph::{DType, Role};

use crate::driver::MemoryKind;

/// One thing wrong with what was bound. Every one names the role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Nothing was bound to a role of the plan.
    #[error("{role} is missing: the plan needs {}", needs(*scalar, *dtype, *bytes))]
    Missing {
        /// The role.
        role: Role,
        /// Whether it is a scalar.
        scalar: bool,
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
    #[error("{role} was given as memory, and the plan wants one {dtype} on the host; give it with `scalar`")]
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
    #[error("{role} has {given} bytes, and the plan reaches over {needed}; {}", larger(*role, *needed, *given))]
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
    /// Nothing if there are no errors, else all of them.
    pub(crate) fn check(facts: &PlanFacts, errors: Vec<BindError>) -> Result<(), BindErrors> {
        if errors.is_empty() { Ok(()) } else { Err(BindErrors { what: facts.what.clone(), errors }) }
    }

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

/// How a buffer that is too small becomes large enough.
fn larger(role: Role, needed: u64, given: u64) -> &'static str {
    match role {
        Role::ScoreTensor(_) | Role::DropoutMask if needed.saturating_sub(given) < 4 => {
            "kernels read 16-bit elements of it two at a time: give its buffer an even number of elements"
        }
        _ => "bind the whole tensor",
    }
}

fn needs(scalar: bool, dtype: DType, bytes: u64) -> String {
    if scalar {
        format!("one {dtype} on the host, given with `scalar`")
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
