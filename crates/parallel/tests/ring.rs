//! Blocks of pairs of chunks that a ring computes in one launch: how many launches are left, and that the results are
//! those of one attention, forward and backward, on the CPU.

use qkvault_graph::expr::parse_expr;
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, Valid};
use qkvault_parallel::{Schedule, Scheme, Sharding, TokenOrder, difference, schedule};
use qkvault_reference::Inputs;

fn both_passes(forward: Attention) -> [Valid; 2] {
    let forward = forward.with_stats().validate().expect("valid");
    let options = BackwardOptions { d_sink: forward.sink, ..BackwardOptions::default() };
    let backward = forward.backward(options).validate().expect("valid");
    [forward, backward]
}

fn made(attention: &Valid, ranks: u32, order: TokenOrder) -> Schedule {
    let sharding = Sharding::new(ranks, Scheme::Ring).with_order(order);
    let made = schedule(attention, &sharding).unwrap_or_else(|e| panic!("{sharding}, {attention}: {e}"));
    assert_eq!(made.faults(), Vec::<String>::new(), "{sharding}, {attention}");
    made
}

/// The launches of each rank, forward and backward the same, in zig-zag order.
fn launches(forward: Attention, ranks: u32) -> Vec<i64> {
    let [forward, backward] = both_passes(forward)
        .map(|pass| made(&pass, ranks, TokenOrder::ZigZag))
        .map(|made| (0..ranks).map(|rank| made.costs(rank).launches).collect::<Vec<_>>());
    assert_eq!(forward, backward);
    forward
}

fn square(tokens: i64) -> Attention {
    Attention::bshd(2, (4, 2), (tokens, tokens), 8, DType::BF16)
}

#[test]
fn one_launch_takes_what_every_other_rank_shows() {
    for ranks in [2, 4, 8] {
        let rows = |count: i64| vec![count; ranks as usize];
        assert_eq!(launches(square(48 * 16), ranks), rows(ranks.into()), "all keys of a rank in one launch");
        // Two on the diagonal and one between them for the own keys, one for those of each other rank.
        assert_eq!(launches(square(48 * 16).causal(), ranks), rows(i64::from(ranks) + 2));
        // Each pair of a chunk of queries and one of keys that are seen.
        let pairs = rows(2 * i64::from(ranks) + 1);
        let expressions = ["score + 0.1 * float(query - key)", "tensor @bias: f32[1, 4, 1, 1]; score + @bias"];
        for text in expressions {
            let a = square(48 * 16).causal().with_score_mod(parse_expr(text).expect("parses"));
            let forward = a.with_stats().validate().expect("valid");
            let made = made(&forward, ranks, TokenOrder::ZigZag);
            assert_eq!((0..ranks).map(|rank| made.costs(rank).launches).collect::<Vec<_>>(), pairs, "{text}");
        }
        assert_eq!(made_with_lengths(ranks), pairs);
        let capped = parse_expr("20.0 * tanh(score / 20.0)").expect("parses");
        assert_eq!(launches(square(48 * 16).causal().with_score_mod(capped), ranks), rows(i64::from(ranks) + 2));
    }
}

fn made_with_lengths(ranks: u32) -> Vec<i64> {
    let forward = square(48 * 16).causal().with_lengths().with_stats().validate().expect("valid");
    let made = made(&forward, ranks, TokenOrder::ZigZag);
    (0..ranks).map(|rank| made.costs(rank).launches).collect()
}

/// The work of all launches is still that of the pairs.
#[test]
fn launches_compute_nothing_twice() {
    for pass in both_passes(square(512)).into_iter().chain(both_passes(square(512).causal())) {
        for ranks in [2, 4, 8] {
            let made = made(&pass, ranks, TokenOrder::ZigZag);
            let flops: f64 = (0..ranks).map(|rank| made.costs(rank).flops).sum();
            assert!((flops / pass.flops() - 1.0).abs() < 1e-9, "{ranks} ranks, {pass}: {flops:e}");
        }
    }
}

#[test]
fn blocks_of_pairs_together_are_one_attention() {
    let band = |corner, left, right| Band { corner, left, right };
    let bands = [
        None,
        Some(band(Corner::TopLeft, None, Some(0))),
        Some(band(Corner::BottomRight, None, Some(0))),
        // Windows that show some pairs whole, and bounds that reach past the diagonal.
        Some(band(Corner::TopLeft, Some(30), Some(0))),
        Some(band(Corner::BottomRight, Some(41), Some(25))),
        Some(band(Corner::TopLeft, Some(20), None)),
    ];
    for (band, keys) in bands.into_iter().flat_map(|band| [(band, 48), (band, 96)]) {
        for sink in [false, true] {
            let mut a = Attention::bshd(2, (4, 2), (48, keys), 8, DType::BF16);
            a.mask.band = band;
            a.sink = sink;
            let attention = a.with_stats().validate().expect("valid");
            let options = BackwardOptions { d_sink: sink, ..BackwardOptions::default() };
            let backward = attention.backward(options).validate().expect("valid");
            for pass in [attention, backward] {
                let inputs = Inputs::random(&pass, 11).expect("random operands");
                for (ranks, order) in
                    [2, 3, 4, 8].into_iter().flat_map(|n| [(n, TokenOrder::ZigZag), (n, TokenOrder::Contiguous)])
                {
                    let sharding = Sharding::new(ranks, Scheme::Ring).with_order(order);
                    // Rows that see no key, and sinks of queries whose own keys are hidden, are refused with a sink.
                    let Ok(_) = schedule(&pass, &sharding) else {
                        assert!(sink && band.is_some(), "{sharding}, {pass}");
                        continue;
                    };
                    let (worst, place) = difference(&made(&pass, ranks, order), &inputs).expect("runs");
                    assert!(worst < 1e-10, "{sharding}, {pass}: off by {worst:.1e} at {place}");
                }
            }
        }
    }
}

/// Two on the diagonal are one plan; then a chunk with a chunk, both with one, and one with both.
#[test]
fn all_ranks_together_have_few_plans() {
    for ranks in [2, 4, 8] {
        let plans = |a: Attention| both_passes(a).map(|pass| made(&pass, ranks, TokenOrder::ZigZag).plans.len());
        assert_eq!((plans(square(256)), plans(square(256).causal())), ([1, 1], [4, 4]), "{ranks} ranks");
    }
}
