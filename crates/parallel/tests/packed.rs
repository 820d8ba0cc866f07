//! Packed documents that a ring cuts anywhere, beside one attention, on the CPU: lengths by hand, so that documents end
//! inside chunks, at their ends and behind several of them.

use qkvault_graph::expr::parse_expr;
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, PaddedRows, Tensor, Valid};
use qkvault_parallel::codes;
use qkvault_parallel::{Bind, PerSequence, RankStep, Schedule, Scheme, Sharding, TokenOrder, difference, schedule};
use qkvault_reference::{Inputs, LengthChoice, RandomChoice};

const TOKENS: i64 = 48;

/// Four documents of up to 30 tokens in buffers of 48 queries and of some keys.
fn packed(keys: i64) -> Attention {
    let of = |heads, d, tokens| Tensor::thd(4, heads, 30, d, tokens, DType::BF16);
    Attention::forward(of(4, 8, TOKENS), of(2, 8, keys), of(2, 16, keys), of(4, 16, TOKENS)).with_lengths().with_stats()
}

fn band(left: Option<i64>, right: Option<i64>) -> Attention {
    let mut a = packed(TOKENS);
    a.mask.band = Some(Band { corner: Corner::BottomRight, left, right });
    a
}

fn inputs(attention: &Valid, q: &[usize], kv: &[usize]) -> Inputs {
    let lengths = LengthChoice::Exact { q: q.to_vec(), kv: kv.to_vec() };
    Inputs::random_with(attention, 7, &RandomChoice { lengths, ..RandomChoice::default() }).expect("random operands")
}

fn both_passes(forward: &Attention) -> [Valid; 2] {
    let forward = forward.clone().validate().expect("valid");
    let options = BackwardOptions { d_sink: forward.sink, ..BackwardOptions::default() };
    let backward = forward.backward(options).validate().expect("valid");
    [forward, backward]
}

/// The largest difference from one attention, for 1 to 4 ranks in both orders.
fn check(forward: &Attention, q: &[usize], kv: &[usize]) {
    for attention in both_passes(forward) {
        let operands = inputs(&attention, q, kv);
        for (ranks, order) in (1..=4).flat_map(|n| [TokenOrder::ZigZag, TokenOrder::Contiguous].map(|order| (n, order)))
        {
            let sharding = Sharding::new(ranks, Scheme::Ring).with_order(order);
            let made = schedule(&attention, &sharding).unwrap_or_else(|e| panic!("{sharding}, {attention}: {e}"));
            assert_eq!(made.faults(), Vec::<String>::new(), "{sharding}, {attention}");
            let (worst, place) = difference(&made, &operands).unwrap_or_else(|e| panic!("{sharding}: {e}"));
            assert!(worst < 1e-10, "{sharding}, {attention}, {q:?}: off by {worst:.1e} at {place}");
        }
    }
}

/// Documents that cross several chunks, end with them, have one token or none.
const LENGTHS: [[usize; 4]; 5] = [[30, 5, 0, 13], [6, 6, 30, 6], [1, 29, 1, 12], [12, 12, 12, 12], [0, 30, 0, 3]];

#[test]
fn documents_that_cross_chunks_are_those_of_one_attention_under_every_band() {
    for (left, right) in [(None, Some(0)), (Some(4), Some(0)), (Some(20), Some(0)), (Some(9), Some(3)), (None, Some(7))]
    {
        for lengths in LENGTHS {
            check(&band(left, right), &lengths, &lengths);
        }
    }
}

#[test]
fn expressions_and_predicates_see_positions_in_their_document() {
    let expressions = [
        "score + 0.1 * float(query) - 0.05 * float(key)",
        "tensor @slopes: f32[1, 4, 1, 1] alibi 4; score + @slopes * float(key - query)",
    ];
    for text in expressions {
        let mut a = band(Some(11), Some(0)).with_score_mod(parse_expr(text).expect("parses"));
        a.mask.mask_mod = Some(parse_expr("key % 3 != 1 | key == query").expect("parses"));
        a.sink = true;
        check(&a, &LENGTHS[0], &LENGTHS[0]);
        check(&a, &LENGTHS[2], &LENGTHS[2]);
    }
}

#[test]
fn documents_without_a_band_may_have_other_numbers_of_keys() {
    let a = packed(72).with_score_mod(parse_expr("score + 0.02 * float(key) - 0.1 * float(query)").expect("parses"));
    check(&a, &[10, 30, 0, 6], &[30, 1, 11, 30]);
    check(&a, &[3, 0, 30, 15], &[2, 30, 0, 29]);
}

#[test]
fn documents_that_are_not_square_are_told_by_their_number_under_a_band() {
    let [attention, _] = both_passes(&band(Some(4), Some(0)));
    let made = schedule(&attention, &Sharding::new(2, Scheme::Ring)).expect("taken");
    let error = difference(&made, &inputs(&attention, &[9, 9, 9, 9], &[9, 9, 10, 9])).expect_err("is told");
    assert!(error.to_string().contains("packed sequence 2"), "{error}");
}

/// Documents of at most 30 tokens reach no further than that, so most pairs of a longer buffer are not computed, and
/// chunks are not sent further.
#[test]
fn pairs_that_no_document_reaches_are_left_out() {
    let of = |heads| Tensor::thd(40, heads, 30, 8, 960, DType::BF16);
    let long = Attention::forward(of(4), of(4), of(4), of(4)).with_lengths();
    let made = |a: Attention| schedule(&a.validate().expect("valid"), &Sharding::new(8, Scheme::Ring)).expect("taken");
    let (whole, causal) = (made(long.clone()), made(long.clone().causal()));
    let launches = |s: &Schedule| (0..8).map(|rank| s.costs(rank).launches).sum::<i64>();
    // Each of 16 chunks of 60 tokens with itself and the one before.
    assert_eq!((launches(&whole), launches(&causal)), (256, 31));
    let received = |s: &Schedule| (0..8).map(|rank| s.costs(rank).received).sum::<i64>();
    assert!(received(&causal) < received(&whole), "{} of {}", received(&causal), received(&whole));
    // Work is that of the tokens there are, not that of 40 documents in each launch.
    let flops: f64 = (0..8).map(|rank| causal.costs(rank).flops).sum();
    assert!(flops < 2.0 * long.causal().flops(), "{flops:e}");
}

#[test]
fn a_sink_has_its_gradient_where_documents_are_square_and_is_refused_elsewhere() {
    let mut a = band(Some(6), Some(0));
    a.sink = true;
    a.padded_rows = PaddedRows::Zero;
    check(&a, &LENGTHS[1], &LENGTHS[1]);
    let mut open = packed(TOKENS);
    open.sink = true;
    let [forward, backward] = both_passes(&open);
    let sharding = Sharding::new(2, Scheme::Ring);
    assert!(schedule(&forward, &sharding).is_ok());
    let refused = schedule(&backward, &sharding).expect_err("a row's own keys may lie in another chunk");
    assert!(refused.has(&codes::SHARD_SINK), "{refused}");
    let ids = "tensor @ids: i32[4, 1, 30, 1]; score + float(@ids)";
    let [by_position, _] = both_passes(&packed(TOKENS).with_score_mod(parse_expr(ids).expect("parses")));
    assert!(schedule(&by_position, &sharding).expect_err("refused").has(&codes::SHARD_STORAGE));
}

/// What the launches of a pair are told of documents is needed: each kind of number changed gives other results.
#[test]
fn wrong_numbers_of_a_document_are_noticed() {
    let a = band(Some(5), Some(0)).with_score_mod(parse_expr("score + 0.1 * float(query * 2 - key)").expect("parses"));
    let lengths = LENGTHS[0];
    let [forward, _] = both_passes(&a);
    let operands = inputs(&forward, &lengths, &lengths);
    let made = schedule(&forward, &Sharding::new(2, Scheme::Ring)).expect("taken");
    for (from, to) in [
        (PerSequence::FirstKey, PerSequence::FirstQuery),
        (PerSequence::FirstQuery, PerSequence::FirstKey),
        (PerSequence::Keys, PerSequence::AllKeys),
    ] {
        let mut changed = made.clone();
        let mut count = 0;
        for step in changed.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
            let RankStep::Launch(launch) = step else { continue };
            for (_, bind) in launch.binds.iter_mut().filter(|(_, bind)| *bind == Bind::Sequences(from)) {
                *bind = Bind::Sequences(to);
                count += 1;
            }
        }
        let found = difference(&changed, &operands);
        assert!(count > 0 && found.map_or(true, |(worst, _)| worst > 1e-3), "{from:?} is not needed");
    }
}
