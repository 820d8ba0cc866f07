//! The door to JAX: handlers of XLA's typed FFI. `qkvault.jax` registers them; programs in C do not call them.
//!
//! * `abi`: XLA's structs. `frame`: what a call has. `handler`: what is around every handler.
//! * `call`: the description of a call and its operands. `plans`: what it has loaded, by GPU.
//! * `cuda`: the handlers for GPUs. `reference`: the one for CPUs. `ranks`: the one for an attention that the devices
//!   of a mesh axis share.
//!
//! A call carries its whole description, so that a serialised program runs wherever a plan of it is, and no state of
//! XLA's is used, whose layout changed between versions.

mod abi;
mod call;
pub mod cuda;
mod frame;
mod handler;
mod plans;
pub mod ranks;
pub mod reference;
#[cfg(test)]
mod tests;
