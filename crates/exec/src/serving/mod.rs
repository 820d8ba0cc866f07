//! Steps of serving: what changes from launch to launch of one plan, as numbers in device memory that are updated in place.
//!
//! Baked into a plan are its greatest batch, query and KV lengths, and for paged keys and values the rows of a page and their order.
//! Data are the lengths of each sequence, where varlen ones begin, and in which pages their keys lie. A [`StepLayout`] says where
//! those numbers lie in one block of memory, a [`StepBuffer`] is that block on the host, filled from a [`Step`] after everything
//! in it was checked; `BatchMetadata`, of the safe layer, keeps a copy on the device.
//!
//! Of pages, a kernel reads those that hold keys of the sequence, whole: rows of the last one beyond the length must be finite
//! numbers, as what was there before is and zeros are; NaN there would become NaN in the output. Pages that no sequence uses may
//! hold anything.
//!
//! The block's address never changes: a captured CUDA graph stays valid, and sees each update.

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
