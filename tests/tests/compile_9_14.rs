//! The tables of forwards and of 8-bit attentions with cuDNN 9.14 without a GPU, and checks that kernels do not change.

use qkvault_tests::{compile, divisors, generated, origins, same};

const VERSION: &str = "9.14.0";

#[test]
fn forwards_compile_or_are_refused_as_in_the_golden() {
    compile::check(VERSION);
}

#[test]
fn a_plan_compiled_twice_has_the_same_kernel_and_facts() {
    same::check_twice(VERSION);
}

#[test]
fn properties_that_keys_leave_out_change_neither_engine_nor_kernel() {
    same::check_board(VERSION);
}

#[test]
fn remainders_whose_divisor_may_be_zero_compile_with_a_guard() {
    divisors::check(VERSION);
}

#[test]
fn generated_8_bit_attentions_compile_or_are_refused_as_in_the_golden() {
    let test = "generated_8_bit_attentions_compile_or_are_refused_as_in_the_golden";
    generated::check(generated::EIGHT_BITS, VERSION, test);
}

#[test]
fn bands_with_origins_have_the_kernels_of_constant_bands() {
    origins::check(VERSION);
}
