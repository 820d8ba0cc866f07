//! The runtime without a GPU: errors are values with a kind. What needs a GPU is in `gpu_runtime.rs`.
#![cfg(feature = "launch")]

use qkvault::codes;
use qkvault::exec::{Device, DeviceError};
use qkvault::prelude::*;
use qkvault::sys::Search;

#[test]
fn a_machine_without_a_driver_is_told_so() {
    if Device::open(0).is_ok() {
        return;
    }
    let error = Runtime::open().expect_err("there is no GPU");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("GPU"), "{error}");
    assert!(error.get_ref().is::<DeviceError>());
}

#[test]
fn options_are_shown_without_the_secrets_of_a_vault() {
    let options = Runtime::options().gpu(3).cudnn(Search::default()).build_missing(true).keep(7, 1 << 20).handles(4);
    let shown = format!("{options:?}");
    for part in ["gpu: 3", "plans: 7", "plan_bytes: 1048576", "handles: 4", "Compile"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn an_invalid_description_is_an_error_with_its_reasons() {
    let refused = || -> Result<Valid, Error> { Ok(validate(Attention::bshd(1, (32, 5), (64, 64), 128, DType::BF16))?) };
    let error = refused().expect_err("five heads do not divide 32");
    assert!(error.is_refused() && error.refusal().is_some_and(|refusal| refusal.has(&codes::HEADS_GROUP)), "{error}");
}
