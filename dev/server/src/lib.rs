//! A server for text generation, as an example: continuous batching over pages, a Llama-shaped model of random weights,
//! attention by qkvault, matrix products by cuBLASLt, tokens streamed over HTTP.
//!
//! One thread owns the model and the scheduler ([`engine`]): it takes requests from a channel, plans a step
//! ([`scheduler`]), runs it ([`gpu`] or [`cpu`]) and sends tokens back. [`connections`] bounds what clients hold,
//! [`http`] turns HTTP into requests, and tokens into events. [`load`] is the client that measures it.

#![deny(unsafe_code)]

pub mod config;
pub mod connections;
pub mod cpu;
pub mod engine;
pub mod gpu;
pub mod http;
pub mod load;
pub mod metrics;
pub mod pages;
pub mod request;
pub mod scheduler;
pub mod step;
pub mod weights;

/// An error that ends the program or a request.
pub type ServerError = Box<dyn std::error::Error + Send + Sync>;

/// The commit of this program, if its build says it in `QKVAULT_COMMIT`, as `cargo xtask bundle` does.
pub const COMMIT: &str = match option_env!("QKVAULT_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
