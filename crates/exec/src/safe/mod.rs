//! The safe layer over cudarc.

pub(crate) mod args;
pub(crate) mod batch;
pub(crate) mod bound;
pub(crate) mod capture;
pub(crate) mod constants;
pub(crate) mod device;
pub(crate) mod graph_update;
pub(crate) mod launch;
pub(crate) mod list;
pub(crate) mod matching;
pub(crate) mod operands;
pub(crate) mod order;
pub(crate) mod plan;
pub(crate) mod saved;
pub(crate) mod scaling;
pub(crate) mod scratch;
pub(crate) mod serving;
pub(crate) mod session;
pub(crate) mod staging;
pub(crate) mod tracked;
pub(crate) mod train_error;
pub(crate) mod training;
pub(crate) mod verify;
pub(crate) mod workspace;
