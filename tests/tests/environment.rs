//! Variables that cuDNN reads while it compiles: kernels that differ have keys that differ.

use qkvault_tests::environment::check;

const HARMLESS: [(&str, &str); 3] =
    [("CUDNN_LOGLEVEL_DBG", "0"), ("NVRTC_DISABLE_PCH", "1"), ("CUDNN_FRONTEND_LOG_INFO", "1")];

/// B2: with 9.19 these gave other kernels for one key.
#[test]
fn b2_variables_that_changed_kernels_under_one_key_with_9_19() {
    let changing =
        [("CUDNN_USE_EX2_EMULATION", "0"), ("CUDNN_RESCALE_THRESHOLD", "0"), ("CUDNN_JIT_FLAGS_DBG", "-lineinfo")];
    check("9.19.0", "b2_variables_that_changed_kernels_under_one_key_with_9_19", &changing, &HARMLESS);
}

/// B1 and B2: the last made every deterministic backward a refusal that was kept under the plain key.
#[test]
fn b2_variables_that_changed_kernels_under_one_key_with_9_27() {
    let changing = [
        ("CUDNN_USE_EX2_EMULATION", "0"),
        ("CUDNN_RESCALE_THRESHOLD", "0"),
        ("CUDNN_UNFUSE_FMA", "1"),
        ("CUDNN_JIT_FLAGS_DBG", "1"),
    ];
    check("9.27.0", "b2_variables_that_changed_kernels_under_one_key_with_9_27", &changing, &HARMLESS);
}
