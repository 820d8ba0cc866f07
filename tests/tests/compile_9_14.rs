//! The table of forwards under cuDNN 9.14 without a GPU, and what must not change a kernel.

use qkvault_tests::{compile, same};

const VERSION: &str = "9.14.0";

#[test]
fn forwards_are_compiled_or_refused_as_written_down() {
    compile::check(VERSION);
}

#[test]
fn a_plan_compiled_twice_has_the_same_kernel_and_facts() {
    same::check_twice(VERSION);
}

#[test]
fn what_is_left_out_of_keys_changes_neither_engine_nor_kernel() {
    same::check_board(VERSION);
}
