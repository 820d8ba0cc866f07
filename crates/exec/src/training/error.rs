//! Errors of a training step before a launch.

use qkvault_graph::Role;

#[cfg(any(feature = "cudarc", test))]
use crate::bindings::Number;

/// Why the forward or the backward of a pair was not launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// A plan is of another attention than that of the training.
    #[error("the plan of '{plan}' is not that of '{needed}'; give the two plans of one Training")]
    OtherPlan {
        /// What the plan computes.
        plan: String,
        /// What is needed.
        needed: String,
    },
    /// The backward was called before its forward.
    #[error("there was no forward; call `forward` with this `SavedForBackward` first")]
    NoForward,
    /// The forward of another pair filled the saved operands.
    #[error(
        "a forward of '{saved}' saved the operands, and this is a pair of '{pair}'; use the pair that ran the forward"
    )]
    OtherPair {
        /// The attention of the forward.
        saved: String,
        /// The attention of the pair.
        pair: String,
    },
    /// The backward has another scalar than its forward.
    #[error(
        "{role} is {backward} in the backward and was {forward} in its forward{}; leave it out: the pair uses the \
         forward's",
        if matches!(role, Role::DropoutSeed | Role::DropoutOffset) { ", which had another dropout mask" } else { "" }
    )]
    OtherNumber {
        /// The scalar, or the seed or offset of dropout.
        role: Role,
        /// The value of the forward.
        forward: String,
        /// The value of the backward.
        backward: String,
    },
    /// The seed or offset of dropout is missing.
    #[error("{role} is missing: dropout needs its seed and offset as 64-bit numbers, given with `scalar`")]
    MissingNumber {
        /// The seed or offset of dropout.
        role: Role,
    },
    /// The seed or offset of dropout is not a 64-bit integer.
    #[error("{role} is {given}, and it must be a 64-bit integer; give it as i64")]
    NotAnInteger {
        /// The seed or offset of dropout.
        role: Role,
        /// The given value.
        given: String,
    },
    /// An operand that the pair saves was bound.
    #[error("{role} was bound, but the pair saves it between forward and backward; leave it out")]
    SavedRole {
        /// The operand.
        role: Role,
    },
    /// Operands changed since the forward. The check that finds this is off by default.
    #[error(
        "changed since the forward: {}; the backward recomputes probabilities from these operands, so its gradients \
         would be wrong: do not write to them before the backward",
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
