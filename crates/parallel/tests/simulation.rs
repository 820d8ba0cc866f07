//! Schedules on the CPU beside one attention, for random descriptions, shardings and numbers of ranks.
#![allow(clippy::print_stderr, reason = "the long run tells what it has tried")]

use std::collections::BTreeMap;

use qkvault_graph::expr::parse_expr;
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, Dropout, DropoutSource, Lengths, PaddedRows, Pass, Role,
    ScoreExpr, Storage, Tensor,
};
use qkvault_parallel::testing::{CaseSpace, ShardedCase, case};
use qkvault_parallel::{RankStep, Schedule, Scheme, Sharding, TokenOrder, difference, schedule};
use qkvault_reference::{Buffer, Family, Inputs, LengthChoice, RandomChoice};

/// The largest difference of a case; `None` if its sharding is refused, with the codes.
fn run(case: &ShardedCase) -> Result<(f64, String), Vec<String>> {
    let ShardedCase { attention, sharding, seed } = case;
    let made = schedule(attention, sharding)
        .map_err(|e| e.reasons().iter().map(|r| r.code.as_str().to_owned()).collect::<Vec<_>>())?;
    let faults = made.faults();
    assert!(faults.is_empty(), "seed {seed}, {sharding}: {}: {faults:#?}", attention.get());
    let inputs = case.inputs(Family::Normal).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    Ok(difference(&made, &inputs).unwrap_or_else(|e| panic!("seed {seed}, {sharding}: {attention}: {e}")))
}

/// What a case has, by the words of its features.
fn features(a: &Attention) -> Vec<&'static str> {
    let named = |name: &str| {
        let of = |e: &ScoreExpr| e.scalar_names().iter().chain(e.tensor_names()).any(|n| &**n == name);
        a.score_mod.as_ref().is_some_and(of)
    };
    let band = a.mask.band;
    let varlen = matches!(a.q.storage, Storage::Varlen { .. });
    let deterministic = matches!(a.pass, Pass::Backward(g) if g.deterministic);
    let list = [
        ("causal", band.is_some_and(|b| b.left.is_none() && b.right == Some(0))),
        ("window", band.is_some_and(|b| b.left.is_some())),
        ("bottom right", band.is_some_and(|b| b.corner == Corner::BottomRight)),
        ("softcap", named("cap")),
        ("alibi", named("slopes")),
        ("index", a.score_mod.is_some() && !named("cap") && !named("slopes")),
        ("predicate", a.mask.mask_mod.is_some()),
        ("sink", a.sink),
        ("one key head", a.k.dims[1] == 1 && a.q.dims[1] > 1),
        ("lengths", a.mask.lengths == Lengths::PerSequence && !varlen),
        ("packed", varlen),
        ("paged", a.k.is_paged()),
        ("dropout", a.dropout.is_some()),
        ("drawn dropout", a.dropout.is_some_and(|d| d.source == DropoutSource::Places)),
        ("deterministic", deterministic),
    ];
    list.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// Runs the cases of these seeds; returns how many there were of each outcome.
fn all(seeds: std::ops::Range<u64>) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for seed in seeds {
        let case = case(&CaseSpace::ORACLE, seed);
        let scheme = case.sharding.to_string().split(' ').next().unwrap_or_default().to_owned();
        match run(&case) {
            Ok((worst, place)) => {
                if worst.is_nan() || worst >= 1e-10 {
                    let attention = case.attention.get();
                    wrong.push(format!("seed {seed}, {}: {attention}: off by {worst:.1e} at {place}", case.sharding));
                }
                let direction = if case.attention.is_backward() { "backward" } else { "forward" };
                *counts.entry(format!("{scheme} {direction}")).or_default() += 1;
                for feature in features(&case.attention) {
                    *counts.entry(format!("{scheme} with {feature}")).or_default() += 1;
                }
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
    let common = "causal window bottom_right softcap alibi index predicate sink one_key_head lengths";
    let shared = format!("{common} packed dropout drawn_dropout deterministic");
    for (scheme, list) in
        [("gather", &shared), ("heads", &shared), ("ring", &shared), ("decode", &format!("{common} paged"))]
    {
        for feature in list.split(' ') {
            let kind = format!("{scheme} with {}", feature.replace('_', " "));
            assert!(counts.get(&kind).is_some_and(|n| *n >= 5), "few cases of {kind}: {counts:#?}");
        }
    }
}

/// One rank whose band hides the first keys: its expression still counts from the first one.
#[test]
fn a_ring_of_one_chunk_counts_keys_from_the_first() {
    let band = Band { corner: Corner::BottomRight, left: Some(3), right: Some(0) };
    let score = parse_expr("score + 0.1 * float(query - key)").expect("parses");
    let attention = Attention::bshd(1, (2, 2), (8, 36), 8, DType::BF16).with_band(band).with_score_mod(score);
    let attention = attention.with_stats().validate().expect("is valid");
    let sharding = Sharding::new(1, Scheme::Ring).with_order(TokenOrder::Contiguous);
    let (worst, place) = run(&ShardedCase { attention, sharding, seed: 1 }).expect("is taken");
    assert!(worst < 1e-10, "off by {worst:.1e} at {place}");
}

/// Every sharding of every number of ranks draws the mask of the whole, forward and backward; a part that counted from
/// its own first query, key or head would draw another.
#[test]
fn dropout_by_places_is_the_same_for_every_sharding() {
    let mut forward = Attention::bshd(2, (8, 8), (48, 48), 8, DType::BF16).causal().with_stats();
    forward.dropout = Some(Dropout::new(DropoutSource::Places, 0.4));
    let forward = forward.validate().expect("valid");
    let backward = forward.backward(BackwardOptions::default()).validate().expect("valid");
    let number = |n: i64| Buffer::new(DType::I64, n.to_ne_bytes().to_vec()).expect("one element");
    for (ranks, scheme) in [1, 2, 3, 4, 8]
        .into_iter()
        .flat_map(|ranks| [(ranks, Scheme::Gather { groups: 2 }), (ranks, Scheme::Heads), (ranks, Scheme::Ring)])
    {
        if 8 % ranks != 0 && scheme == Scheme::Heads {
            continue;
        }
        for attention in [&forward, &backward] {
            let sharding = Sharding::new(ranks, scheme);
            let made = schedule(attention, &sharding).expect("taken");
            assert!(made.faults().is_empty(), "{sharding}: {:?}", made.faults());
            let mut inputs = Inputs::random(attention, 3).expect("random operands");
            // A seed of a program has up to 62 bits.
            inputs.insert(Role::DropoutSeed, number(0x2345_6789_abcd_ef01));
            inputs.insert(Role::DropoutOffset, number((3 << 32) + 5));
            let (worst, place) = difference(&made, &inputs).expect("runs");
            assert!(worst < 1e-10, "{sharding}: {attention}: off by {worst:.1e} at {place}");
            let mut moved = made;
            for step in moved.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
                if let RankStep::Keep { first, .. } = step {
                    *first = [0; 3];
                }
            }
            let (worst, _) = difference(&moved, &inputs).expect("runs");
            assert_eq!(worst > 1e-3, ranks > 1 || scheme != Scheme::Heads, "{sharding}: {worst:.1e}");
        }
    }
}

/// The schedule without what its merges and sums are told of rows.
fn untold(mut made: Schedule) -> Schedule {
    for step in made.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
        if let RankStep::Merge { rows, .. } | RankStep::Sum { rows, .. } = step {
            rows.clear();
        }
    }
    made
}

/// A launch writes nothing for a sequence without keys, which was NaN on an H200.
#[test]
fn a_rank_that_has_no_key_of_a_sequence_adds_nothing_to_it() {
    let q = Tensor::bshd(3, 4, 3, 8, DType::BF16);
    let cache = Tensor::bhsd(3, 2, 202, 8, DType::BF16);
    let decode = Attention::forward(q, cache, cache, q).with_lengths().with_stats();
    let square = Attention::bshd(3, (4, 2), (32, 32), 8, DType::BF16).with_lengths().with_stats();
    let backward = |a: Attention| a.validate().expect("valid").backward(BackwardOptions::default());
    let of = |documents, heads| Tensor::thd(documents, heads, 32, 8, 64, DType::BF16);
    let packed = Attention::forward(of(3, 4), of(3, 2), of(3, 2), of(3, 4)).with_lengths().causal().with_stats();
    let mut sink = decode.clone();
    sink.sink = true;
    let mut zeros = square.clone().causal();
    zeros.padded_rows = PaddedRows::Zero;
    let (ring, gather) = (Scheme::Ring, Scheme::Gather { groups: 2 });
    // Sequences of 21 keys and of none have none on the second rank, or behind the first chunks.
    let (few, short, documents) = ([21, 38, 0], [5, 30, 0], [17, 0, 30]);
    for (attention, scheme, keys) in [
        (decode, Scheme::Decode { run: 32 }, few),
        (sink, Scheme::Decode { run: 32 }, few),
        (square.clone(), ring, short),
        (zeros, ring, short),
        (square.clone().causal(), ring, short),
        (backward(square.clone().causal()), ring, short),
        (backward(square.clone()), ring, short),
        (backward(square.causal()), gather, short),
        (backward(packed), gather, documents),
    ] {
        let attention = attention.validate().expect("valid");
        let made = schedule(&attention, &Sharding::new(2, scheme)).expect("taken");
        // What cuDNN has no plans for.
        assert!(made.plans.iter().all(|plan| plan.padded_rows == PaddedRows::Undefined), "{attention}");
        let queries = keys.map(|n: usize| n.clamp(1, attention.q.dims[2] as usize));
        let queries = if keys == documents { keys } else { queries };
        let lengths = LengthChoice::Exact { q: queries.to_vec(), kv: keys.to_vec() };
        let choice = RandomChoice { lengths, ..RandomChoice::default() };
        let inputs = Inputs::random_with(&attention, 1, &choice).expect("random operands");
        let (worst, place) = difference(&made, &inputs).expect("runs");
        assert!(worst < 1e-10, "{scheme:?}, {attention}: off by {worst:.1e} at {place}");
        let (worst, _) = difference(&untold(made), &inputs).expect("runs");
        assert!(worst.is_infinite(), "{scheme:?}, {attention}: nothing tells which rows count, and it is right");
    }
}

/// Thousands of cases. `cargo test -p qkvault-parallel --features oracle --test simulation -- --ignored`
#[test]
#[ignore = "minutes: thousands of cases"]
fn ranks_together_compute_one_attention_thousands_of_times() {
    eprintln!("{:#?}", all(1_000..21_000));
}
