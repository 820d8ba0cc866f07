//! Where the ranks of several processes meet: a small store of bytes by key over TCP. Rank 0 listens; every rank keeps
//! one connection open, and one that closes tells all others that its rank has ended.
//!
//! Whoever reaches the port is a stranger until it proves that it has the secret of the job (`secret.rs`, `join.rs`).
//! Strangers take bounded memory, threads and time (`door.rs`), and nothing that they do ends the job.

mod client;
mod door;
mod join;
mod meet;
mod secret;
mod secret_file;
mod server;
#[cfg(test)]
mod tests;
mod wire;
#[cfg(feature = "testing")]
mod wire_testing;
mod world;

pub use client::Store;
pub use secret::Secret;
pub(crate) use server::at_fault;
#[cfg(feature = "testing")]
pub use wire_testing::{store_message, store_messages};
pub use world::World;
