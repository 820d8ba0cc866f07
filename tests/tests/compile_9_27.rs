//! The tests of every version, with cuDNN 9.27 and without a GPU.

qkvault_tests::compile_tests!("9.27.0");
