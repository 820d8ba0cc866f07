//! Random cases of every family of options: outputs and gradients of the oracle through burn's autodiff, beside burn's
//! plain attention in float32.
#![cfg(feature = "cpu")]

use burn_autodiff::Autodiff;
use burn_flex::Flex;
use burn_qkvault::Options;
use burn_qkvault_examples::case::Case;
use burn_tensor::{DType, TensorData};

type B = Autodiff<Flex>;

/// The largest difference over the largest number of the second.
fn apart(a: &TensorData, b: &TensorData) -> f32 {
    assert_eq!(a.shape, b.shape);
    let mut most = (0f32, 1e-3f32);
    for (x, y) in a.iter::<f32>().zip(b.iter::<f32>()) {
        assert!(x.is_finite() && y.is_finite(), "{x} beside {y}");
        most = (most.0.max((x - y).abs()), most.1.max(y.abs()));
    }
    most.0 / most.1
}

#[test]
fn fifty_random_cases_have_the_outputs_and_gradients_of_burns_plain_attention() {
    let device = Default::default();
    for seed in 0..50 {
        let case = Case::new(seed, true);
        println!("seed {seed}: {case:?}");
        let ours = case.leaves::<B>(&device, false).tracked(case.tracked);
        let theirs = case.leaves::<B>(&device, true).tracked(case.tracked);
        let o = case.attend(&ours, Options::new()).expect("the oracle computes it");
        let plain = case.plainly(&theirs);
        let off = apart(&o.to_data(), &plain.to_data());
        assert!(off < 0.02, "seed {seed}: the output is off by {off}");
        let weights = case.weights::<B>(&device, DType::F32);
        let weighed = (o.cast(DType::F32) * weights.clone()).sum().backward();
        let (a, b) = (ours.gradients(&weighed, case.tracked), (plain * weights).sum().backward());
        let b = theirs.gradients(&b, case.tracked);
        for (place, (a, b)) in a.into_iter().zip(b).enumerate() {
            assert_eq!(a.is_some(), case.tracked[place], "seed {seed}: gradient {place}");
            if let (Some(a), Some(b)) = (a, b) {
                let off = apart(&a, &b);
                assert!(off < 0.04, "seed {seed}: gradient {place} is off by {off}");
            }
        }
    }
}
