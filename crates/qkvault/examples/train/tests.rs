//! The same training in bf16 and in FP8, with the oracle: both end at the same loss, as far as seeds let losses differ.

use qkvault::graph::Fp8;

use crate::model::{Config, Model};
use crate::{numbers, on_cpu};

/// A model that is small enough for the oracle without optimizations.
fn small(seed: u64, fp8: Option<Fp8>) -> Config {
    Config {
        vocabulary: 8,
        width: 32,
        heads: 1,
        batch: 4,
        seq: 16,
        steps: 100,
        seed,
        rate: 1e-2,
        plain: true,
        fp8,
        ..Config::default()
    }
}

/// The mean loss of the first and of the last ten steps.
fn losses(config: &Config) -> [f64; 2] {
    let mut machine = on_cpu(config).expect("sound");
    let mut model = Model::new(config);
    let data = numbers::batches(config);
    let steps = data.chunks_exact(config.batch * config.seq).enumerate();
    let all: Vec<f64> =
        steps.map(|(step, tokens)| f64::from(model.step(step, tokens, machine.as_mut()).expect("computes"))).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    [mean(&all[..10]), mean(&all[all.len() - 10..])]
}

#[test]
fn training_in_8_bits_ends_within_the_noise_of_bf16() {
    let seeds = [1, 2, 3];
    let sixteen = seeds.map(|seed| losses(&small(seed, None)));
    for [first, last] in sixteen {
        assert!(last < 0.6 * first, "nothing is learned: {first} to {last}");
    }
    let ends = sixteen.map(|[_, last]| last);
    let noise = ends.iter().copied().fold(f64::MIN, f64::max) - ends.iter().copied().fold(f64::MAX, f64::min);
    for scaling in [Fp8::Delayed, Fp8::Current] {
        let off = seeds.iter().zip(ends).map(|(&seed, end)| losses(&small(seed, Some(scaling)))[1] - end);
        let mean = off.sum::<f64>() / seeds.len() as f64;
        assert!(mean.abs() < noise, "{scaling:?}: {mean} off, {noise} between seeds");
    }
}
