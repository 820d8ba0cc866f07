//! The tests that run with every fetched version of cuDNN.

/// Defines the tests of a cuDNN version without a GPU: tables of compiled and refused attentions, and checks that
/// kernels do not change.
#[macro_export]
macro_rules! compile_tests {
    ($version:literal) => {
        #[test]
        fn forwards_compile_or_are_refused_as_in_the_golden() {
            $crate::compile::check($version);
        }

        #[test]
        fn a_plan_compiled_twice_has_the_same_kernel_and_facts() {
            $crate::same::check_twice($version);
        }

        #[test]
        fn properties_that_keys_leave_out_change_neither_engine_nor_kernel() {
            $crate::same::check_board($version);
        }

        #[test]
        fn varlen_and_paged_attentions_compile_or_are_refused_as_in_the_golden() {
            $crate::compile::check_serving($version, $crate::serving_case::Extent::Usual);
        }

        #[test]
        #[ignore = "minutes: every row for every GPU; run with --ignored"]
        fn the_full_table_of_serving_compiles_or_is_refused_as_in_the_golden() {
            $crate::compile::check_serving($version, $crate::serving_case::Extent::Full);
        }

        #[test]
        fn generated_attentions_compile_or_are_refused_as_in_the_golden() {
            $crate::generated::check(
                $crate::generated::TRAINING,
                $version,
                "generated_attentions_compile_or_are_refused_as_in_the_golden",
            );
        }

        #[test]
        fn generated_serving_attentions_compile_or_are_refused_as_in_the_golden() {
            let test = "generated_serving_attentions_compile_or_are_refused_as_in_the_golden";
            $crate::generated::check($crate::generated::SERVING, $version, test);
        }

        #[test]
        fn generated_layouts_compile_or_are_refused_as_in_the_golden() {
            let test = "generated_layouts_compile_or_are_refused_as_in_the_golden";
            $crate::generated::check($crate::generated::LAYOUTS, $version, test);
        }

        #[test]
        fn generated_8_bit_attentions_compile_or_are_refused_as_in_the_golden() {
            let test = "generated_8_bit_attentions_compile_or_are_refused_as_in_the_golden";
            $crate::generated::check($crate::generated::EIGHT_BITS, $version, test);
        }

        #[test]
        fn a_plan_requires_the_bytes_of_each_operands_own_layout() {
            $crate::layouts::check($version);
        }

        #[test]
        fn the_size_of_a_page_pool_changes_neither_engine_nor_kernel() {
            $crate::same::check_pools($version);
        }

        #[test]
        fn bands_with_origins_have_the_kernels_of_constant_bands() {
            $crate::origins::check($version);
        }

        #[test]
        fn varlen_documents_compile_in_both_directions() {
            $crate::documents::check($version);
        }

        #[test]
        fn remainders_whose_divisor_may_be_zero_compile_with_a_guard() {
            $crate::divisors::check($version);
        }

        #[test]
        fn expressions_over_positions_compile_for_one_query_chunks_and_varlen_sequences() {
            $crate::positions::check($version);
        }

        #[test]
        fn deterministic_backwards_for_a_b200_compile_with_the_named_engine() {
            $crate::deterministic::check($version);
        }

        #[test]
        fn wrong_offsets_are_refused_with_cudnns_message() {
            $crate::ragged::check($version);
        }

        #[test]
        fn a_named_engine_compiles_or_the_library_refuses_it() {
            $crate::deterministic::check_named($version);
        }
    };
}
