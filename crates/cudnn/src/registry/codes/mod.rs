//! The codes of cuDNN's engine, by theme, and those of descriptions. The documentation of each is its cause;
//! [`Code::entry`](super::Code::entry) has the other facts.

pub(super) mod bands;
pub(super) mod deterministic;
pub(super) mod engines;
pub(super) mod forms;
pub(super) mod fp8;
pub(super) mod fp8_limits;
pub(super) mod fp8_one_query;
pub(super) mod fp8_unproven;
pub(super) mod fp8_wrong;
pub(super) mod library;
pub(super) mod memory;
pub(super) mod mxfp8;
pub(super) mod not_built;
pub(super) mod paged;
pub(super) mod passes;
pub(super) mod queries;
pub(super) mod scores;
pub(super) mod sizes;
pub(super) mod strides;
pub(super) mod targets;
pub(super) mod varlen;
pub(super) mod versions;

pub use qkvault_graph::registry::codes::*;

pub use bands::*;
pub use deterministic::*;
pub use engines::*;
pub use forms::*;
pub use fp8::*;
pub use fp8_limits::*;
pub use fp8_one_query::*;
pub use fp8_unproven::*;
pub use fp8_wrong::*;
pub use library::*;
pub use memory::*;
pub use mxfp8::*;
pub use not_built::*;
pub use paged::*;
pub use passes::*;
pub use queries::*;
pub use scores::*;
pub use sizes::*;
pub use strides::*;
pub use targets::*;
pub use varlen::*;
pub use versions::*;

/// Results of a GPU, compared with the oracle.
const GPU: &str = "results of an H200, compared with the float64 oracle (docs/results/selftest.md)";
/// What NVIDIA's front end refuses in a forward.
const FE_FORWARD: &str = "cudnn-frontend 1.23, node/sdpa_support_surface.h";
/// What NVIDIA's front end refuses or does in a backward.
const FE_BACKWARD: &str = "cudnn-frontend 1.23, node/scaled_dot_product_flash_attention.h";
/// What NVIDIA's front end refuses, tests or blocks in 8 bits.
const FE_FP8: &str = "cudnn-frontend 1.23, node/sdpa_support_surface.h and test/python/sdpa";
/// Answers of cuDNN to 8-bit attention.
const FP8_COMPILED: &str = "answers of cuDNN 9.14 to 9.27 for compute capabilities 8.9, 9.0, 10.0, 10.3 and 12.0";
/// Answers of cuDNN to attention with block scales.
const MXFP8_COMPILED: &str = "answers of cuDNN 9.14 to 9.27 for compute capabilities 8.9, 9.0, 10.0, 10.3 and 12.0";
/// What NVIDIA's front end refuses or does in an 8-bit backward.
const FE_FP8_BACKWARD: &str = "cudnn-frontend 1.23, node/sdpa_fp8_bwd.h";
/// What NVIDIA's front end tests.
const FE_TESTS: &str = "cudnn-frontend 1.23, test/python (tests that compare bits leave out the sink's gradient)";
/// What NVIDIA's front end refuses or does for varlen and paged operands.
const FE_STORAGE: &str =
    "cudnn-frontend 1.23 and 1.32, node/sdpa_support_surface.h and node/scaled_dot_product_flash_attention.h";
/// Answers of cuDNN to random descriptions.
const FUZZED: &str = "answers of cuDNN 9.14, 9.19 and 9.27 for compute capabilities 8.0, 8.9, 9.0, 10.0 and 12.0 \
                      (docs/results/probe.md)";
/// Answers of cuDNN for the engine that lowering names.
const NAMED: &str = "answers of cuDNN 9.18 to 9.27 for compute capability 10.0 (docs/results/forms.md)";
/// The first versions for which NVIDIA's front end writes an operation.
const LOWERING: &str = "the versions for which cudnn-frontend 1.23 and 1.32 write these operations";
