//! The rows, by what they are about.

mod deterministic;
mod masks;
mod passes;
mod shapes;
mod strides;
mod versions;

use qkvault_graph::CudnnVersion;

use super::Rule;

/// Every rule, by what they are about. Lowering has rules of its own beside these; [`super::check`] tells both.
pub const RULES: &[&[Rule]] =
    &[versions::RULES, shapes::RULES, strides::RULES, masks::RULES, passes::RULES, deterministic::RULES];

/// Seen on a card.
const CARD: &str = "an H200, compared with the float64 oracle (docs/results/selftest.md)";

/// Seen on a card, by the files of bench/.
const CARD_STRIDES: &str = "an H200 under cuDNN 9.14 and 9.19, compared with the float64 oracle and under compute-sanitizer (docs/results/strides.md); \
                            cudnn-frontend 1.32 refuses them";
/// What NVIDIA's front end refuses in a forward.
const FE_FORWARD: &str = "cudnn-frontend 1.23, node/sdpa_support_surface.h";
/// What NVIDIA's front end refuses, or does, in a backward.
const FE_BACKWARD: &str = "cudnn-frontend 1.23, node/scaled_dot_product_flash_attention.h";
/// What the library answered.
const FUZZED: &str =
    "cuDNN 9.14, 9.19 and 9.27 for compute capabilities 8.0, 8.9, 9.0, 10.0 and 12.0 (docs/results/probe.md)";
/// What NVIDIA's front end tests.
const FE_TESTS: &str = "cudnn-frontend 1.23, test/python (the sink's gradient is left out where bits are compared)";
/// What the library answered for the engine that lowering names.
const NAMED: &str = "cuDNN 9.18 to 9.27 for compute capability 10.0 (docs/results/forms.md)";

const fn v9(minor: u16, patch: u16) -> CudnnVersion {
    CudnnVersion::v9(minor, patch)
}
