//! Compiling uses all cores. A program of its own, so that nothing else of this package runs beside the measurement.

use std::time::Instant;

use qkvault_graph::{Attention, Band, DType, Target, Valid, validate};
use qkvault_probe::Compiler;
use qkvault_tests::cudnn::{compiler, say, target};
use qkvault_tests::same::compiled;

/// Plans that each thread compiles in a round.
const EACH: usize = 4;

/// Rounds at most: other work on the machine spoils one now and then, a lock inside cuDNN would spoil all.
const ROUNDS: usize = 5;

/// A loose bound for machines that do other things too; on an idle one it is 1.7 to 2.
const LEAST: f64 = 1.5;

#[test]
fn two_threads_compile_faster_than_one() {
    let Some(compiler) = compiler("9.27.0") else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        say("requirement not met: one core; two threads cannot be faster than one");
        return;
    }
    let target = target(&compiler, "h200");
    let attention = Attention::bshd(1, (8, 2), (512, 512), 128, DType::BF16).with_band(Band::CAUSAL);
    let attention = validate(attention).unwrap_or_else(|e| panic!("{e}"));
    // The first plan of a process also loads cuDNN's parts.
    let _ = compiled(&compiler, &attention, &target);
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let [one, two] = [1, 2].map(|threads| rate(&compiler, &attention, &target, threads));
        say(&format!("{one:.2} plans/s with one thread, {two:.2} with two: {:.2} times", two / one));
        ratios.push(two / one);
        if two / one >= LEAST {
            return;
        }
    }
    panic!("two threads compile at most {:.2} times as fast as one", ratios.into_iter().fold(0.0, f64::max));
}

/// Plans per second.
fn rate(compiler: &Compiler, attention: &Valid, target: &Target, threads: usize) -> f64 {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..EACH).for_each(|_| drop(compiled(compiler, attention, target))));
        }
    });
    (threads * EACH) as f64 / started.elapsed().as_secs_f64()
}
