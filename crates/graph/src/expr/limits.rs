//! Limits on the size of an expression. Real ones have tens of nodes; the limits bound the memory and time of hostile
//! input.

/// Most nodes of a score expression.
pub const MAX_NODES: usize = 4096;
/// Most words, numbers and signs of a score expression in its text form. One of [`MAX_NODES`] nodes has less than half
/// as many.
pub const MAX_TOKENS: usize = 1 << 17;
/// Longest chain of operands from the root of a score expression to a leaf; a chain of `&` or of `|` counts as one.
pub const MAX_DEPTH: usize = 256;
/// Most scalars of a score expression.
pub const MAX_SLOTS: usize = 32;
/// Most tensors of a score expression.
pub const MAX_TENSORS: usize = 32;
/// Most characters of a display name.
pub const MAX_NAME: usize = 64;
/// Most nodes of a derivative.
pub const MAX_DERIVED_NODES: usize = 16 * MAX_NODES;
/// Largest extent of a tensor: coordinates are 32-bit integers.
pub const MAX_EXTENT: i64 = i32::MAX as i64;
/// Most heads of a tensor that holds ALiBi slopes: the library makes them, and a description says how many.
pub const MAX_SLOPES: i64 = 1 << 16;
