//! Errors of a training step, and the variable that they name.

use crate::bind_error::BindErrors;
use crate::raw::launch_error::LaunchError;
use crate::training::TrainingError;

/// The variable that turns on the check of saved operands.
pub(crate) const CHECK: &str = "QKVAULT_CHECK_SAVED";

/// Why a training step failed. Nothing was launched, except when the launch itself failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainStepError {
    /// Forward and backward do not match.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// The arguments have errors.
    #[error(transparent)]
    Arguments(#[from] BindErrors),
    /// The launch failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The driver refused to write or read a saved operand.
    #[error("{step}: {detail}")]
    Driver {
        /// The step that failed.
        step: &'static str,
        /// The error of the driver.
        detail: String,
    },
    /// A plan is not the update of a training's scales.
    #[error("{given}: no update of this training's scales; take the plan of `Scales::update` with the same recipe")]
    OtherUpdate {
        /// What the plan computes.
        given: String,
    },
    /// The check of saved operands reads them back, which a capture does not allow.
    #[error("saved operands cannot be checked while a stream is captured; unset {CHECK}, or leave `checked` off")]
    CheckedCapture,
}
