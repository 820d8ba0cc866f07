//! One attention over several GPUs.
//!
//! [`schedule`] is a pure function: from a description and a [`Sharding`] it gives what every rank does, as data. Ranks
//! compare the digests of their schedules ([`agree`]) and then run them over a [`Communicator`].
#![deny(unsafe_op_in_unsafe_fn)]

mod bands;
mod choose;
pub mod codes;
mod combine;
mod comm;
mod decode;
mod explain;
mod gather;
mod gather_keys;
#[cfg(feature = "exec")]
mod gpu;
mod heads;
mod inspect;
mod limits;
mod machine;
mod maker;
mod merges;
mod nccl;
mod pairs;
mod part;
mod parts;
mod predict;
mod ring;
mod rows;
mod schedule;
mod sequences;
mod sharding;
mod share;
#[cfg(feature = "oracle")]
mod simulate;
mod slice;
mod step;
mod store;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod tile;
mod work;

pub use choose::{ShardingChoice, choose, choose_among};
pub use combine::Combined;
pub use comm::{CommError, Communicator, Hello, PeerCopies, RankFault, RankMessage, Threads, agree, wait};
pub use explain::Costs;
#[cfg(feature = "exec")]
pub use gpu::{GpuRank, InProcess, OperandBuffer, PlanFailure, Plans, RunError, SessionPlans};
pub use machine::GpuCluster;
pub use nccl::{Nccl, NcclId, NcclLibrary};
pub use predict::{Bottleneck, Estimate};
pub use schedule::{Digest, Schedule, schedule};
pub use sequences::Counted;
pub use sharding::{Scheme, Sharding, TokenOrder, dealt};
#[cfg(feature = "oracle")]
pub use simulate::{Gathered, HostRank, SimulateError, difference, simulate, simulate_rank};
pub use slice::{PartLengths, Slice};
pub use step::{
    Bind, BufferBox, HeldPart, PerSequence, PlanLaunch, RankBuffer, RankSchedule, RankStep, Stream, Transfer,
};
pub use store::{Secret, Store, World};
