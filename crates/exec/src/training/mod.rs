//! A step of training: a forward that keeps what its backward needs, and that backward, from one description.
//!
//! What here needs no GPU is plain data and functions over it: [`Training`] describes the two, [`ForwardRun`] is what a forward ran with,
//! and says what its backward may be given. The safe layer's [`TrainingPair`](crate::TrainingPair) puts them around two loaded plans;
//! callers of the raw layer use them around theirs.

mod describe;
mod error;
#[cfg(any(feature = "cudarc", test))]
mod fingerprints;
#[cfg(any(feature = "cudarc", test))]
mod run;

pub use describe::Training;
pub use error::TrainingError;
#[cfg(any(feature = "cudarc", test))]
pub(crate) use fingerprints::Fingerprints;
#[cfg(feature = "cudarc")]
pub(crate) use run::ForwardRun;
#[cfg(any(feature = "cudarc", test))]
pub(crate) use run::forward_run;

#[cfg(test)]
mod tests;
