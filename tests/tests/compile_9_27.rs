//! The table of forwards under cuDNN 9.27 without a GPU, and what must not change a kernel.

qkvault_tests::compile_tests!("9.27.0");
