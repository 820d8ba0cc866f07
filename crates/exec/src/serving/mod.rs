//! Steps of serving: the metadata that changes between launches of one plan, as numbers in device memory, updated in
//! place.
//!
//! A plan is compiled for a largest batch, query length and KV length, and for paged keys and values for the rows of a
//! page and their order. The lengths of the sequences, the offsets of varlen sequences, and the pages of their keys are
//! data.
//!
//! A [`StepLayout`] is the place of each of these operands in one block of memory. A [`StepBuffer`] is the block on the
//! host; it is filled from a [`Step`] after a check of the step. `BatchMetadata` of the safe layer has a copy on the
//! device, at an address that never changes, so that a captured CUDA graph stays valid and sees each update.
//!
//! A kernel reads whole pages. Rows of a sequence's last page beyond its length must therefore be finite numbers, such
//! as zeros or older keys: NaN there becomes NaN in the output. Unused pages may have any content.

mod buffer;
mod check;
mod error;
mod layout;
mod read;
mod set;
mod step;

pub use buffer::StepBuffer;
pub use error::{BatchInputError, BatchInputErrors};
pub use layout::StepLayout;
pub use set::PlanSet;
pub use step::{Rows, Step};
