//! Where the ranks of several processes meet: a small store of bytes by key over TCP. Rank 0 listens; every rank keeps
//! one connection open, and one that closes tells all others that its rank has ended.

mod client;
mod server;
mod wire;
mod world;

pub use client::Store;
pub(crate) use server::at_fault;
pub use world::World;
