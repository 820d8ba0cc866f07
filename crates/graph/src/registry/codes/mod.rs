//! The codes of descriptions, by theme. The documentation of each is its cause; [`Code::entry`](super::Code::entry) has
//! the other facts.

pub(super) mod append;
pub(super) mod combination;
pub(super) mod conversion;
pub(super) mod documents;
pub(super) mod features;
pub(super) mod offsets;
pub(super) mod tensors;

pub use append::*;
pub use combination::*;
pub use conversion::*;
pub use documents::*;
pub use features::*;
pub use offsets::*;
pub use tensors::*;
