//! Errors of binding; every error names the role.

mod words;

use std::fmt;
use std::ops::Deref;

use qkvault_base::Shown;
use qkvault_compile::PlanFacts;
use qkvault_graph::SCRATCH_ALIGNMENT;
use qkvault_graph::{DType, MAX_ORIGIN, Role};

use self::words::{kind, larger, list, needs, others, range};
use crate::driver::MemoryKind;

/// One error in the bindings of a caller. Every error names the role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// A role of the plan has no binding.
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
    /// The plan does not have this role.
    #[error("{role} was bound, and the plan has no such operand; it has {}", list(plan_has))]
    Extra {
        /// The role.
        role: Role,
        /// The roles that the plan has.
        plan_has: Vec<Role>,
    },
    /// A role was bound twice.
    #[error("{role} was bound {times} times; bind it once")]
    Duplicate {
        /// The role.
        role: Role,
        /// How many times.
        times: usize,
    },
    /// The role is a buffer within the workspace.
    #[error("{role} was bound, but it is a buffer within the workspace; leave it out")]
    Internal {
        /// The role.
        role: Role,
    },
    /// A number was bound to an operand.
    #[error(
        "{role} was given as a number, and the plan needs {bytes} bytes of {dtype} on the GPU; bind a slice or an \
         address"
    )]
    NotANumber {
        /// The role.
        role: Role,
        /// Its element type.
        dtype: DType,
        /// Its bytes.
        bytes: u64,
    },
    /// Memory was bound to a scalar.
    #[error("{role} was given as memory, and the plan needs one {dtype} on the host; give it with `scalar`")]
    NotATensor {
        /// The role.
        role: Role,
        /// Its element type.
        dtype: DType,
    },
    /// The binding has another element type than the plan.
    #[error("{role} is {given}, and the plan needs {needed}")]
    WrongDType {
        /// The role.
        role: Role,
        /// The type that the plan needs.
        needed: DType,
        /// The type of the binding.
        given: DType,
    },
    /// The memory is smaller than the operand.
    #[error("{role} has {given} bytes, and the plan needs {needed}; {}", larger(*role, *needed, *given))]
    TooSmall {
        /// The role.
        role: Role,
        /// Bytes from the first to one past the last element.
        needed: u64,
        /// Bytes of the binding.
        given: u64,
    },
    /// An output was bound to memory that may only be read.
    #[error("the launch writes {role}, which was bound as shared memory; bind it with `slice_mut`")]
    NotWritable {
        /// The role.
        role: Role,
    },
    /// The address is null.
    #[error("{role} is bound to address 0; allocate its memory first")]
    Null {
        /// The role.
        role: Role,
    },
    /// The range exceeds the address space.
    #[error("{role} at {address:#x} with {bytes} bytes reaches past the end of all addresses; check the length")]
    OutOfRange {
        /// The role.
        role: Role,
        /// The address.
        address: u64,
        /// The bytes bound.
        bytes: u64,
    },
    /// The address lacks the alignment that the plan was compiled for.
    #[error(
        "{role} is at {address:#x}, and the plan needs a multiple of {needed} bytes; with another address kernels read \
         wrong elements or fault"
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
    #[error("{role} is at {address:#x}, which is {}; the plan needs it on the GPU: copy it there first", kind(*found))]
    NotDevice {
        /// The role.
        role: Role,
        /// The address.
        address: u64,
        /// The kind of memory at the address.
        found: MemoryKind,
    },
    /// The memory is on another GPU.
    #[error("{role} is on GPU {found}, and the plan is loaded on GPU {needed}; copy it there first")]
    OtherDevice {
        /// The role.
        role: Role,
        /// Ordinal of the GPU that has the memory.
        found: i32,
        /// Ordinal of the GPU that has the plan.
        needed: i32,
    },
    /// The memory is in another CUDA context than the plan.
    #[error(
        "{role} is in a CUDA context of GPU {found}, and the plan in another, of GPU {needed}; copy it to memory of \
         Session::device()"
    )]
    OtherContext {
        /// The role.
        role: Role,
        /// Ordinal of the GPU of the memory's context.
        found: usize,
        /// Ordinal of the plan's GPU.
        needed: usize,
    },
    /// The workspace is in another CUDA context than the plan.
    #[error(
        "the workspace is in a CUDA context of GPU {found}, and the plan in another, of GPU {needed}; allocate it on a \
         stream of Session::device()"
    )]
    WorkspaceElsewhere {
        /// Ordinal of the GPU of the workspace's context.
        found: usize,
        /// Ordinal of the plan's GPU.
        needed: usize,
    },
    /// The metadata of the batch is in another CUDA context than the plan.
    #[error(
        "the metadata of the batch is in a CUDA context of GPU {found}, and the plan in another, of GPU {needed}; make \
         it for this plan with BatchMetadata::new"
    )]
    BatchElsewhere {
        /// Ordinal of the GPU of the batch's context.
        found: usize,
        /// Ordinal of the plan's GPU.
        needed: usize,
    },
    /// An output overlaps another operand.
    #[error(
        "the launch writes {role}, which overlaps {other} ({role} {}, {other} {}); give it memory of its own, or call \
         `interleaved` if only their ranges overlap and no element does",
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
    /// The workspace is too small, misaligned or at address 0.
    #[error(
        "the workspace at {address:#x} has {given} bytes, and the plan needs {needed}, aligned to {SCRATCH_ALIGNMENT}"
    )]
    Workspace {
        /// Its address.
        address: u64,
        /// Its bytes.
        given: u64,
        /// Bytes that the plan needs.
        needed: u64,
    },
    /// The numbers of the operand lead kernels to other memory, and nothing has checked them.
    #[error(
        "kernels follow the numbers of {role}, and nothing has checked them: give them by Args::batch, or by the unsafe \
         Args::indices"
    )]
    Unchecked {
        /// The role.
        role: Role,
    },
    /// A scale of an 8-bit operand is zero, negative, infinite or no number. The check that finds this reads memory of
    /// the GPU and is off by default ([`LoadedPlan::verify_scales`](crate::LoadedPlan::verify_scales)).
    #[error(
        "{role} is {given}, and a scale is a positive finite number; a tensor of zeros has a scale of 1, and one that is \
         not known yet too"
    )]
    Scale {
        /// The role.
        role: Role,
        /// The number.
        given: String,
    },
    /// Block scales of an 8-bit operand hold the code 255, which is no number in e8m0.
    #[error(
        "{wrong} of {of} block scales of {role} are no numbers (code 255 of e8m0); write every scale of the padded \
         tiles, those of the padding too"
    )]
    BlockScales {
        /// The role.
        role: Role,
        /// How many are none.
        wrong: usize,
        /// How many there are.
        of: usize,
    },
    /// The buffer of block scales has more bytes than there are scales, so they have another type or layout.
    #[error(
        "{role} has {given} bytes, and its block scales are {needed}: one e8m0 for 32 elements, in tiles of 128 × 4 \
         (F8_128x4), padded to whole tiles"
    )]
    BlockScaleBytes {
        /// The role.
        role: Role,
        /// Bytes of the scales.
        needed: u64,
        /// Bytes of the binding.
        given: u64,
    },
    /// An origin is negative or too large.
    #[error("{role} is {given}; give 0 to {MAX_ORIGIN}")]
    Origin {
        /// The role.
        role: Role,
        /// The value.
        given: i32,
    },
    /// The attention promises that every query sees a key, and with these origins one does not.
    #[error(
        "with query_origin {query} and key_origin {key} the band hides every key from some query, and the attention \
         promises that it does not; describe it with Origins::Any, or launch with the keys that its queries see"
    )]
    NoKey {
        /// Position of the first query.
        query: i32,
        /// Position of the first key.
        key: i32,
    },
    /// The description has nothing of this name.
    #[error("there is no {what} '{name}'{}", others(*described, nearest.as_deref(), names))]
    NoSuchName {
        /// The name that was given.
        name: String,
        /// What was looked for: a scalar, a tensor, a tensor with a gradient.
        what: &'static str,
        /// The most similar name.
        nearest: Option<String>,
        /// All names.
        names: Vec<String>,
        /// Whether the plan was prepared from a description, which has names.
        described: bool,
    },
    /// The workspace overlaps an operand.
    #[error("the workspace overlaps {role}; give it memory of its own")]
    WorkspaceOverlap {
        /// The operand.
        role: Role,
    },
}

/// All errors in the bindings of a caller; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindErrors {
    what: String,
    errors: Vec<BindError>,
}

impl BindErrors {
    /// Errors of arguments; at least one.
    pub(crate) fn new(facts: &PlanFacts, errors: Vec<BindError>) -> BindErrors {
        BindErrors { what: facts.what.clone(), errors }
    }

    /// `Ok` without errors, else all of them.
    pub(crate) fn check(facts: &PlanFacts, errors: Vec<BindError>) -> Result<(), BindErrors> {
        if errors.is_empty() { Ok(()) } else { Err(BindErrors::new(facts, errors)) }
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
        write!(f, "cannot bind to the plan of '{}': ", Shown(&self.what))?;
        for (i, error) in self.errors.iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
