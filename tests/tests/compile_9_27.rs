//! The tests of every version, with cuDNN 9.27 and without a GPU.

qkvault_tests::compile_tests!("9.27.0");

#[test]
fn bands_with_origins_have_the_kernels_of_constant_bands() {
    qkvault_tests::origins::check("9.27.0");
}
