//! Recipes of conversions, and who takes them. What the kernels compute is tried on a CPU in `emulate`.

use qkvault_graph::{Along, Conversion, ConversionKind, DType, Tensor, codec};

use super::*;

/// Every kind, by a number.
fn kinds(seed: u64) -> ConversionKind {
    let along = if seed & 1 == 0 { Along::HeadDim } else { Along::Sequence };
    match seed % 7 {
        0 => ConversionKind::Delayed,
        1 => ConversionKind::Current { power_of_two: false },
        2 => ConversionKind::Current { power_of_two: true },
        3 | 4 => ConversionKind::Blocks(along),
        5 => ConversionKind::Dequantize,
        _ => ConversionKind::DequantizeBlocks(along),
    }
}

#[test]
fn a_recipe_of_a_conversion_refers_to_its_operands_alone() {
    for seed in 0..14 {
        let dense = [Tensor::bshd, Tensor::bhsd][seed as usize / 7];
        let wide = dense(2, 3, 1000, 192, DType::BF16);
        let conversion = Conversion::to(DType::E5M2, wide, kinds(seed)).validate().expect("sound");
        let made = generate_conversion(&conversion, 100).expect("is taken");
        let whole = LaunchRecipe { modules: vec![10], ..made.recipe };
        let bindings = conversion.bindings();
        assert_eq!(codec::decode::<LaunchRecipe>(&codec::encode(&whole)).expect("reads"), whole);
        let checked = whole.check(&bindings, 10).unwrap_or_else(|bad| panic!("{conversion}: {bad}"));
        let params = checked.steps.iter().filter_map(|step| match step {
            RecipeStep::Launch(launch) => Some(&launch.params[0].patches),
            RecipeStep::Clear { .. } => None,
        });
        for binding in &bindings {
            let names = |patches: &Vec<crate::recipe::Patch>| {
                patches.iter().any(|patch| patch.value == LaunchValue::Address(binding.role))
            };
            assert!(params.clone().all(names), "{conversion}: no kernel gets {}", binding.role);
        }
    }
}

#[test]
fn a_gpu_that_cannot_round_to_8_bits_is_refused() {
    let wide = Tensor::bshd(1, 1, 8, 16, DType::F16);
    let conversion = Conversion::to(DType::E4M3, wide, ConversionKind::Delayed).validate().expect("sound");
    let refusal = generate_conversion(&conversion, 86).expect_err("too old");
    assert!(refusal.has(&codes::CONVERSION_GPU), "{refusal}");
    assert!([89, 90, 100, 120].iter().all(|&sm| generate_conversion(&conversion, sm).is_ok()));
}
