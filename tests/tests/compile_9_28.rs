//! Tables of forwards, of serving, of layouts and in 8 bits with cuDNN 9.28.1 and without a GPU, where it is fetched:
//! its slim set is a part of a package of 517 MB, which runs of all tests do not bring.

use qkvault_skip::{Need, skip};
use qkvault_tests::{compile, cudnn, generated, serving_case};

const VERSION: &str = "9.28.1";

/// Whether the set is there; the test is skipped otherwise.
fn is_fetched() -> bool {
    cudnn::fetched(VERSION).map_err(|reason| skip(Need::FullCudnn, &reason)).is_ok()
}

#[test]
fn forwards_compile_or_are_refused_as_in_the_golden() {
    if is_fetched() {
        compile::check(VERSION);
    }
}

#[test]
fn varlen_and_paged_attentions_compile_or_are_refused_as_in_the_golden() {
    if is_fetched() {
        compile::check_serving(VERSION, serving_case::Extent::Usual);
    }
}

#[test]
fn generated_8_bit_attentions_compile_or_are_refused_as_in_the_golden() {
    let test = "generated_8_bit_attentions_compile_or_are_refused_as_in_the_golden";
    if is_fetched() {
        generated::check(generated::EIGHT_BITS, VERSION, test);
    }
}

#[test]
fn generated_layouts_compile_or_are_refused_as_in_the_golden() {
    let test = "generated_layouts_compile_or_are_refused_as_in_the_golden";
    if is_fetched() {
        generated::check(generated::LAYOUTS, VERSION, test);
    }
}

#[test]
fn generated_serving_attentions_compile_or_are_refused_as_in_the_golden() {
    let test = "generated_serving_attentions_compile_or_are_refused_as_in_the_golden";
    if is_fetched() {
        generated::check(generated::SERVING, VERSION, test);
    }
}
