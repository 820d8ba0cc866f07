//! A training step: a forward that saves what its backward needs, and that backward, from one description.
//!
//! Everything here is data and needs no GPU. [`Training`] describes both passes. `ForwardRun` has the scalars of a
//! forward, and completes or refuses those of its backward. `TrainingPair` of the safe layer applies it to two loaded
//! plans.

mod describe;
mod error;
#[cfg(any(feature = "cudarc", test))]
mod fingerprints;
#[cfg(any(feature = "cudarc", test))]
mod run;
mod scaling;

pub use describe::Training;
pub use error::TrainingError;
#[cfg(any(feature = "cudarc", test))]
pub(crate) use fingerprints::Fingerprints;
#[cfg(any(feature = "cudarc", test))]
pub(crate) use run::{ForwardRun, forward_run};
pub use scaling::{ScaleRecipe, Scales};

#[cfg(test)]
mod tests;
