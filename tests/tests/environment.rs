//! Environment variables that cuDNN reads while it compiles. Different kernels must have different keys.

use qkvault_tests::environment::check;

const HARMLESS: [(&str, &str); 3] =
    [("CUDNN_LOGLEVEL_DBG", "0"), ("NVRTC_DISABLE_PCH", "1"), ("CUDNN_FRONTEND_LOG_INFO", "1")];

/// Once, these variables changed kernels and not keys with 9.19.
#[test]
fn variables_that_change_kernels_change_keys_with_9_19() {
    let changing =
        [("CUDNN_USE_EX2_EMULATION", "0"), ("CUDNN_RESCALE_THRESHOLD", "0"), ("CUDNN_JIT_FLAGS_DBG", "-lineinfo")];
    check("9.19.0", "variables_that_change_kernels_change_keys_with_9_19", &changing, &HARMLESS);
}

/// Once, the last variable stored a refusal of every deterministic backward under the key without the variable.
#[test]
fn variables_that_change_kernels_change_keys_with_9_27() {
    let changing = [
        ("CUDNN_USE_EX2_EMULATION", "0"),
        ("CUDNN_RESCALE_THRESHOLD", "0"),
        ("CUDNN_UNFUSE_FMA", "1"),
        ("CUDNN_JIT_FLAGS_DBG", "1"),
    ];
    check("9.27.0", "variables_that_change_kernels_change_keys_with_9_27", &changing, &HARMLESS);
}
