//! The table of forwards under cuDNN 9.27 without a GPU, and what must not change a kernel.

use qkvault_tests::serving_case::Extent;
use qkvault_tests::{compile, dynamic, generated, same};

const VERSION: &str = "9.27.0";

#[test]
fn forwards_are_compiled_or_refused_as_written_down() {
    compile::check(VERSION);
}

#[test]
fn a_plan_compiled_twice_has_the_same_kernel_and_facts() {
    same::check_twice(VERSION);
}

#[test]
fn p28_what_is_left_out_of_keys_changes_neither_engine_nor_kernel() {
    same::check_board(VERSION);
}

#[test]
fn dynamic_shapes_give_what_the_table_says() {
    dynamic::check(VERSION);
}

#[test]
fn packed_and_paged_attentions_are_compiled_or_refused_as_written_down() {
    compile::check_serving(VERSION, Extent::Usual);
}

#[test]
#[ignore = "minutes: every row for every GPU; run with --ignored"]
fn serving_in_full_is_compiled_or_refused_as_written_down() {
    compile::check_serving(VERSION, Extent::Full);
}

#[test]
fn generated_attentions_are_compiled_or_refused_as_written_down() {
    generated::check(generated::TRAINING, VERSION, "generated_attentions_are_compiled_or_refused_as_written_down");
}

#[test]
fn generated_attentions_of_serving_are_compiled_or_refused_as_written_down() {
    let test = "generated_attentions_of_serving_are_compiled_or_refused_as_written_down";
    generated::check(generated::SERVING, VERSION, test);
}

#[test]
fn how_many_pages_a_pool_has_changes_neither_engine_nor_kernel() {
    same::check_pools(VERSION);
}

#[test]
fn packed_documents_are_compiled_in_both_directions() {
    qkvault_tests::documents::check(VERSION);
}

#[test]
fn forwards_as_one_operation_are_compiled_or_refused_as_written_down() {
    compile::check_unified(VERSION);
}

#[test]
fn deterministic_backwards_for_a_b200_are_compiled_by_the_engine_that_is_named() {
    qkvault_tests::deterministic::check(VERSION);
}

#[test]
fn an_engine_that_is_named_is_the_one_that_compiles_or_the_library_says_why() {
    qkvault_tests::deterministic::check_named(VERSION);
}
