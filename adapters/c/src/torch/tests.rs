//! What needs no PyTorch: the functions that are looked for, and the words without one.

use std::ffi::CStr;

use super::*;
use crate::status::{QKV_ERROR_LIBRARY, last_message};

#[test]
fn without_torch_in_the_process_the_error_says_to_import_it() {
    assert_eq!(qkv_torch_register(), QKV_ERROR_LIBRARY);
    // SAFETY: the thread's last error.
    let words = unsafe { CStr::from_ptr(last_message()) }.to_string_lossy();
    assert!(words.contains("import torch first"), "{words}");
}

#[test]
fn the_functions_of_pytorch_are_those_of_its_stable_interface_of_2_10() {
    let names: String = shim::NAMES.iter().map(|name| format!("{name}\n")).collect();
    assert_eq!(names, include_str!("symbols.txt"));
    assert_eq!(BUILT_FOR, 0x020A_0000_0000_0000);
}

#[test]
fn a_bias_with_an_odd_number_of_16_bit_elements_is_bound_in_whole_words() {
    let dims = [3, 1, 333, 333];
    let strides = [333 * 333, 333 * 333, 333, 1];
    let shape = value::TensorShape { rank: 4, dims, strides, dtype: 0, device: (1, 0) };
    assert_eq!(shape.buffer(256, 2).bytes, 665_334);
    assert_eq!(shape.words(256, 2).bytes, 665_336, "what plans ask for");
    assert_eq!(shape.words(256, 4).bytes, 1_330_668);
}
