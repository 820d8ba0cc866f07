//! Why launches were not put together, run or replayed.

use std::error::Error;

use crate::raw::launch_error::{LaunchError, ScalarError};
use crate::safe::arena::ArenaError;
use crate::safe::bound::BindFailure;

/// Why launches were not put together, run or replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchesError {
    /// The arguments of a launch cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindFailure),
    /// A launch, the capture or the replay is refused.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A slot is of another arena than the step's, or has another size.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A scalar cannot be set.
    #[error(transparent)]
    Scalar(#[from] ScalarError),
    /// The step has no such launch.
    #[error("the step has {launches} launches, counted from 0, and launch {launch} was asked for")]
    NoSuchLaunch {
        /// The place that was asked for.
        launch: usize,
        /// Launches of the step.
        launches: usize,
    },
    /// Work of the caller's own failed.
    #[error("work {place} of the step failed: {source}")]
    Own {
        /// Its place among everything in the step, from 0.
        place: usize,
        /// What it said.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}
