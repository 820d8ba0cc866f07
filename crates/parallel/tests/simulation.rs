//! Schedules on the CPU beside one attention, for random descriptions, shardings and numbers of ranks.
#![allow(clippy::print_stderr, reason = "the long run tells what it has tried")]

use std::collections::BTreeMap;

use qkvault_graph::expr::parse_expr;
use qkvault_graph::{Attention, Band, Corner, DType};
use qkvault_parallel::testing::{Case, Space, case};
use qkvault_parallel::{Order, Scheme, Sharding, difference, schedule};

/// The largest difference of a case; `None` if its sharding is refused, with the codes.
fn run(case: &Case) -> Result<(f64, String), Vec<String>> {
    let Case { attention, sharding, seed } = case;
    let made = schedule(attention, sharding)
        .map_err(|e| e.reasons().iter().map(|r| r.code.as_str().to_owned()).collect::<Vec<_>>())?;
    let faults = made.faults();
    assert!(faults.is_empty(), "seed {seed}, {sharding}: {}: {faults:#?}", attention.get());
    let inputs = case.inputs().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    Ok(difference(&made, &inputs).unwrap_or_else(|e| panic!("seed {seed}, {sharding}: {attention}: {e}")))
}

/// Runs the cases of these seeds; returns how many there were of each outcome.
fn all(seeds: std::ops::Range<u64>) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for seed in seeds {
        let case = case(&Space::ORACLE, seed);
        let scheme = case.sharding.to_string().split(' ').next().unwrap_or_default().to_owned();
        match run(&case) {
            Ok((worst, place)) => {
                if worst.is_nan() || worst >= 1e-10 {
                    let attention = case.attention.get();
                    wrong.push(format!("seed {seed}, {}: {attention}: off by {worst:.1e} at {place}", case.sharding));
                }
                let direction = if case.attention.is_backward() { "backward" } else { "forward" };
                *counts.entry(format!("{scheme} {direction}")).or_default() += 1;
            }
            Err(codes) => *counts.entry(format!("refused {}", codes.join(" "))).or_default() += 1,
        }
    }
    assert!(wrong.is_empty(), "{} wrong of {counts:#?}:\n{}", wrong.len(), wrong.join("\n"));
    counts
}

#[test]
fn ranks_together_compute_one_attention() {
    let counts = all(0..1_200);
    let refused: usize = counts.iter().filter(|(name, _)| name.starts_with("refused")).map(|(_, n)| n).sum();
    assert!(refused * 5 < 1_200, "most cases are no test: {counts:#?}");
    for kind in [
        "gather forward",
        "gather backward",
        "heads forward",
        "heads backward",
        "ring forward",
        "ring backward",
        "decode forward",
    ] {
        assert!(counts.get(kind).is_some_and(|n| *n >= 50), "few cases of {kind}: {counts:#?}");
    }
}

/// One rank whose band hides the first keys: its expression still counts from the first one.
#[test]
fn a_ring_of_one_chunk_counts_keys_from_the_first() {
    let band = Band { corner: Corner::BottomRight, left: Some(3), right: Some(0) };
    let score = parse_expr("score + 0.1 * float(query - key)").expect("parses");
    let attention = Attention::bshd(1, (2, 2), (8, 36), 8, DType::BF16).with_band(band).with_score_mod(score);
    let attention = attention.with_stats().validate().expect("is valid");
    let sharding = Sharding::new(1, Scheme::Ring).with_order(Order::Contiguous);
    let (worst, place) = run(&Case { attention, sharding, seed: 1 }).expect("is taken");
    assert!(worst < 1e-10, "off by {worst:.1e} at {place}");
}

/// Thousands of cases. `cargo test -p qkvault-parallel --features oracle --test simulation -- --ignored`
#[test]
#[ignore = "minutes: thousands of cases"]
fn ranks_together_compute_one_attention_thousands_of_times() {
    let first = std::env::var("QKVAULT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1_000);
    eprintln!("{:#?}", all(first..first + 20_000));
}
