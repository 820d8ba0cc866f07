//! Estimates beside the figures that were derived by hand, and the choice of a scheme.

use qkvault_graph::{Attention, BackwardOptions, DType, Tensor, Valid, validate};
use qkvault_parallel::{Bound, Machine, Scheme, Sharding, choose, schedule};

/// Llama-3 8B's attention over `s` tokens.
fn llama(s: i64) -> Attention {
    Attention::bshd(1, (32, 8), (s, s), 128, DType::BF16).causal().with_stats()
}

fn valid(a: Attention) -> Valid {
    validate(a).expect("valid")
}

#[test]
fn a_gather_over_two_h200_is_near_the_ideal_from_8k_tokens_a_rank() {
    let machine = Machine::named("h200-nvlink").expect("known");
    let efficiency = |s: i64, groups: u32, backward: bool| {
        let a = llama(s);
        let a = if backward { a.backward(BackwardOptions::default()) } else { a };
        let made = schedule(&valid(a), &Sharding::new(2, Scheme::Gather { groups })).expect("taken");
        made.estimate(&machine).efficiency
    };
    // Derived: 96 us of messages beside 1.69 ms of work at 16k tokens.
    assert!((0.90..0.96).contains(&efficiency(16_384, 1, false)), "{}", efficiency(16_384, 1, false));
    // Groups hide most of the messages, and add launches and copies.
    for (tokens, backward, least) in
        [(16_384, false, 0.93), (16_384, true, 0.88), (65_536, false, 0.97), (65_536, true, 0.95)]
    {
        let found = efficiency(tokens, 4, backward);
        assert!(found > least, "{tokens} tokens, backward {backward}: {found}");
    }
    // Below a thousand tokens a rank, messages and launches show.
    assert!(efficiency(1_024, 1, false) < 0.6, "{}", efficiency(1_024, 1, false));
}

#[test]
fn slow_links_bound_a_short_gather_and_not_a_long_one() {
    let nic = Machine::named("h200-nic").expect("known");
    let bound = |s: i64| {
        let made = schedule(&valid(llama(s)), &Sharding::new(2, Scheme::Gather { groups: 1 })).expect("taken");
        made.estimate(&nic).bound
    };
    assert_eq!((bound(8_192), bound(131_072)), (Bound::Links, Bound::Compute));
}

#[test]
fn the_choice_is_explained_and_falls_on_what_is_possible() {
    let machine = &Machine::all()[0];
    let choice = choose(&valid(llama(16_384)), 2, machine).expect("possible");
    assert!(matches!(choice.schedule.sharding.scheme, Scheme::Gather { .. }), "{}", choice.explain());
    assert!(choice.explain().contains("not ring over 2 ranks"), "{}", choice.explain());
    // 2 * 3 parts do not divide the sequence, and 3 ranks not the heads.
    let refused = choose(&valid(llama(16_384)), 3, machine).expect_err("nothing is possible");
    assert!(refused.to_string().contains("a multiple of 6: 16386"), "{refused}");
    let q = Tensor::bshd(64, 32, 1, 128, DType::BF16);
    let cache = Tensor::paged_nhd(64, 8, 8_192, 128, 8_192, 64, DType::BF16);
    let decode = choose(&valid(Attention::forward(q, cache, cache, q).with_lengths()), 2, machine).expect("possible");
    assert_eq!(decode.schedule.sharding.scheme, Scheme::Decode { run: 64 });
}
