//! Schedules on GPUs: a rank's plans, buffers and events are prepared once; a run only queues.
//!
//! A [`GpuRank`] launches attention on the caller's stream and exchanges on a stream of its own, ordered by events
//! alone. It needs a communicator of GPUs: [`Nccl`](crate::Nccl), or [`InProcess`] for ranks that are threads.

mod arrivals;
mod block;
mod bound;
mod error;
mod in_process;
mod layout;
mod memory;
mod peers;
mod plans;
mod prepare;
mod queue;
mod rank;
mod replay;

pub use error::RunError;
pub use in_process::InProcess;
pub use memory::OperandBuffer;
pub use plans::{PlanFailure, Plans, SessionPlans};
pub use rank::GpuRank;
