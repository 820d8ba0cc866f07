//! Compiling uses all cores. This is a separate test program, so that no other test of this package runs at the same
//! time.

use std::time::Instant;

use qkvault_graph::{Attention, Band, DType, validate};
use qkvault_skip::{Need, skip};
use qkvault_tests::cudnn::{compiler, say, target};
use qkvault_tests::same::compiled;

/// Plans that each thread compiles in a round.
const EACH: usize = 3;

/// The largest number of rounds. A round counts only if a plain loop also gains from a second thread: on a busy machine
/// nothing gains.
const ROUNDS: usize = 4;

/// The speed-up of a plain loop with two threads from which a round counts. Idle cores give 2.
const IDLE: f64 = 1.8;

/// The required speed-up of compiling. An idle machine has 1.7 to 2.
const LEAST: f64 = 1.5;

#[test]
fn two_threads_compile_faster_than_one() {
    let Some(compiler) = compiler("9.27.0") else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return skip(Need::Cores, "one core; two threads cannot be faster than one");
    }
    let target = target(&compiler, "h200");
    let attention = Attention::bshd(1, (8, 2), (512, 512), 128, DType::BF16).with_band(Band::CAUSAL);
    let attention = validate(attention).unwrap_or_else(|e| panic!("{e}"));
    // The first plan of a process also loads cuDNN's parts.
    let _ = compiled(&compiler, &attention, &target);
    let mut best: Option<f64> = None;
    for _ in 0..ROUNDS {
        let before = spin_ratio();
        let [one, two] = [1, 2].map(|threads| {
            rate(threads, EACH, || {
                let _ = compiled(&compiler, &attention, &target);
            })
        });
        let ratio = two / one;
        let idle = before.min(spin_ratio());
        say(&format!(
            "{one:.2} plans/s with one thread, {two:.2} with two: {ratio:.2} times (a plain loop: {idle:.2} times)"
        ));
        if ratio >= LEAST {
            return;
        }
        if idle >= IDLE {
            best = Some(best.map_or(ratio, |b| b.max(ratio)));
        }
    }
    match best {
        Some(best) => panic!("two threads compile at most {best:.2} times as fast as one, on idle cores"),
        None => skip(Need::Cores, "two idle cores; the machine was busy during all rounds"),
    }
}

/// The speed-up of a plain loop with two threads.
fn spin_ratio() -> f64 {
    let spin = || {
        let mut x = 1_u64;
        for _ in 0..10_000_000 {
            x = std::hint::black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
        }
    };
    let [one, two] = [1, 2].map(|threads| rate(threads, EACH, spin));
    two / one
}

/// Runs of `work` per second, `each` of them on each thread.
fn rate(threads: usize, each: usize, work: impl Fn() + Sync) -> f64 {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..each).for_each(|_| work()));
        }
    });
    (threads * each) as f64 / started.elapsed().as_secs_f64()
}
