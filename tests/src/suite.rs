//! The tests that every fetched version of cuDNN is put to, written once.

/// Tests of a version of cuDNN without a GPU: tables of what it compiles and refuses, and what must not change a kernel.
#[macro_export]
macro_rules! compile_tests {
    ($version:literal) => {
        #[test]
        fn forwards_are_compiled_or_refused_as_written_down() {
            $crate::compile::check($version);
        }

        #[test]
        fn a_plan_compiled_twice_has_the_same_kernel_and_facts() {
            $crate::same::check_twice($version);
        }

        #[test]
        fn what_is_left_out_of_keys_changes_neither_engine_nor_kernel() {
            $crate::same::check_board($version);
        }

        #[test]
        fn varlen_and_paged_attentions_are_compiled_or_refused_as_written_down() {
            $crate::compile::check_serving($version, $crate::serving_case::Extent::Usual);
        }

        #[test]
        #[ignore = "minutes: every row for every GPU; run with --ignored"]
        fn serving_in_full_is_compiled_or_refused_as_written_down() {
            $crate::compile::check_serving($version, $crate::serving_case::Extent::Full);
        }

        #[test]
        fn generated_attentions_are_compiled_or_refused_as_written_down() {
            $crate::generated::check(
                $crate::generated::TRAINING,
                $version,
                "generated_attentions_are_compiled_or_refused_as_written_down",
            );
        }

        #[test]
        fn generated_attentions_of_serving_are_compiled_or_refused_as_written_down() {
            let test = "generated_attentions_of_serving_are_compiled_or_refused_as_written_down";
            $crate::generated::check($crate::generated::SERVING, $version, test);
        }

        #[test]
        fn generated_layouts_are_compiled_or_refused_as_written_down() {
            let test = "generated_layouts_are_compiled_or_refused_as_written_down";
            $crate::generated::check($crate::generated::LAYOUTS, $version, test);
        }

        #[test]
        fn b8_a_plan_demands_of_each_operand_the_bytes_of_its_own_layout() {
            $crate::layouts::check($version);
        }

        #[test]
        fn how_many_pages_a_pool_has_changes_neither_engine_nor_kernel() {
            $crate::same::check_pools($version);
        }

        #[test]
        fn varlen_documents_are_compiled_in_both_directions() {
            $crate::documents::check($version);
        }

        #[test]
        fn b11_remainders_by_what_may_be_zero_are_compiled_with_their_guard() {
            $crate::divisors::check($version);
        }

        #[test]
        fn b9_expressions_over_positions_are_compiled_for_one_query_pieces_and_varlen_sequences() {
            $crate::positions::check($version);
        }

        #[test]
        fn forwards_as_one_operation_are_compiled_or_refused_as_written_down() {
            $crate::compile::check_unified($version);
        }

        #[test]
        fn deterministic_backwards_for_a_b200_are_compiled_by_the_engine_that_is_named() {
            $crate::deterministic::check($version);
        }

        #[test]
        fn offsets_that_are_wrong_are_refused_in_the_librarys_own_words() {
            $crate::ragged::check($version);
        }

        #[test]
        fn an_engine_that_is_named_is_the_one_that_compiles_or_the_library_says_why() {
            $crate::deterministic::check_named($version);
        }
    };
}
