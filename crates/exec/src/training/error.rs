//! Why a step of training did not go on; nothing was launched then.

use qkvault_graph::Role;

#[cfg(any(feature = "cudarc", test))]
use crate::bindings::Number;

/// Why a forward or a backward of a pair was not launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// The backward was asked for before its forward.
    #[error("there is no forward to go back through; call `forward` with this `SavedForBackward` first")]
    NoForward,
    /// What a forward kept is of another pair.
    #[error(
        "what was saved is of a forward of '{saved}', and this is the backward of '{pair}'; use the pair that ran the forward"
    )]
    OtherPair {
        /// What the forward computed.
        saved: String,
        /// The pair's forward.
        pair: String,
    },
    /// The backward was given another number than its forward.
    #[error(
        "{role} is {backward} in the backward and was {forward} in its forward{}; leave it out, it is taken from the forward",
        if matches!(role, Role::DropoutSeed | Role::DropoutOffset) { ", whose dropout mask would be another one" } else { "" }
    )]
    OtherNumber {
        /// The scalar, or dropout's seed or offset.
        role: Role,
        /// What the forward ran with.
        forward: String,
        /// What the backward was given.
        backward: String,
    },
    /// A number that the forward needs is missing.
    #[error("{role} is missing: dropout needs its seed and offset as 64-bit numbers, given with `scalar`")]
    MissingNumber {
        /// Dropout's seed or offset.
        role: Role,
    },
    /// A number of another type.
    #[error("{role} is given as {given}, and it is a 64-bit integer")]
    NotAnInteger {
        /// Dropout's seed or offset.
        role: Role,
        /// What was given.
        given: String,
    },
    /// An operand that the pair keeps was bound.
    #[error("{role} was bound, but it is kept between forward and backward by the pair itself; leave it out")]
    SavedRole {
        /// The operand.
        role: Role,
    },
    /// Operands are not what they were in the forward (found by the check that is off by default).
    #[error(
        "changed since the forward: {}; the backward recomputes the probabilities from them, so its gradients would be wrong",
        .roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Changed {
        /// The operands.
        roles: Vec<Role>,
    },
}

#[cfg(any(feature = "cudarc", test))]
impl TrainingError {
    pub(crate) fn other_number(role: Role, forward: Number, backward: Number) -> TrainingError {
        TrainingError::OtherNumber { role, forward: forward.to_string(), backward: backward.to_string() }
    }
}
