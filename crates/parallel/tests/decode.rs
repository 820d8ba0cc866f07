//! Decode over dealt keys, beside one attention, on the CPU: whole on every rank, however the merge is shared, and what
//! it moves.

use qkvault_graph::{Attention, DType, Role, Tensor, Valid};
use qkvault_parallel::{GpuCluster, RankStep, Schedule, Scheme, Sharding, difference, schedule};
use qkvault_reference::{Inputs, LengthChoice, RandomChoice};

const RUN: u32 = 4;

/// Queries of some sequences over caches of up to 70 keys, with or without pages.
fn cached(sequences: i64, heads: i64, queries: i64, paged: bool) -> Attention {
    let q = Tensor::bshd(sequences, heads, queries, 8, DType::BF16);
    let kv = match paged {
        true => Tensor::paged_nhd(sequences, 1, 70, 8, sequences * 35, 2, DType::BF16),
        false => Tensor::bhsd(sequences, 1, 70, 8, DType::BF16),
    };
    Attention::forward(q, kv, kv, q).with_lengths()
}

fn made(attention: &Valid, ranks: u32) -> Schedule {
    let sharding = Sharding::new(ranks, Scheme::Decode { run: RUN });
    let made = schedule(attention, &sharding).unwrap_or_else(|e| panic!("{sharding}, {attention}: {e}"));
    assert_eq!(made.faults(), Vec::<String>::new(), "{sharding}, {attention}");
    made
}

/// The schedule with the outputs of one rank alone: what it does not have is missing.
fn seen_on(made: &Schedule, rank: usize) -> Schedule {
    let mut made = made.clone();
    for (_, other) in made.ranks.iter_mut().enumerate().filter(|(number, _)| *number != rank) {
        let of_output = |buffer: u32| matches!(other.buffers[buffer as usize].operand, Some(Role::O | Role::Stats));
        other.held.retain(|held| !of_output(held.piece.buffer));
    }
    made
}

/// Every rank has the whole O, and the Stats that the caller asks for.
fn check(attention: Attention, ranks: u32, keys: &[usize]) {
    let attention = attention.validate().expect("valid");
    let made = made(&attention, ranks);
    let queries = vec![attention.seq().0 as usize; keys.len()];
    let lengths = LengthChoice::Exact { q: queries, kv: keys.to_vec() };
    let inputs = Inputs::random_with(&attention, 5, &RandomChoice { lengths, ..RandomChoice::default() });
    let inputs = inputs.expect("random operands");
    for rank in 0..ranks as usize {
        let (worst, place) = difference(&seen_on(&made, rank), &inputs).expect("runs");
        assert!(worst < 1e-10, "rank {rank} of {ranks}, {attention}: off by {worst:.1e} at {place}");
    }
    // Ranks without keys of a sequence write nothing for it, which merges are told.
    let mut untold = made;
    for step in untold.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
        if let RankStep::Merge { rows, .. } = step {
            rows.clear();
        }
    }
    let (worst, _) = difference(&untold, &inputs).expect("runs");
    assert!(worst.is_infinite(), "{ranks} ranks, {attention}: nothing tells which rows count, and it is right");
}

#[test]
fn every_rank_has_the_whole_result_however_the_merge_is_shared() {
    // By sequences, by heads of one and of several sequences, by fewer heads than ranks, and not at all.
    let shapes = [(8, 2, 1), (5, 4, 2), (1, 8, 1), (1, 6, 3), (2, 8, 2), (1, 2, 1), (1, 1, 2)];
    let lengths = [70, 3, 9, 0, 33, 1, 17, 4];
    for (sequences, heads, queries) in shapes {
        // The only sequence has keys on the first ranks alone.
        let keys = if sequences == 1 { &lengths[1..2] } else { &lengths[..sequences as usize] };
        for (ranks, paged) in [2, 3, 4, 8].into_iter().flat_map(|ranks| [(ranks, false), (ranks, true)]) {
            let a = cached(sequences, heads, queries, paged);
            check(a.clone(), ranks, keys);
            check(a.clone().with_sink(), ranks, keys);
            check(a.causal().with_sink().with_stats(), ranks, keys);
        }
    }
}

#[test]
fn outputs_that_lie_in_other_orders_are_put_together() {
    for (sequences, heads) in [(8, 2), (2, 8)] {
        let mut a = cached(sequences, heads, 2, false).with_stats();
        for o in [Tensor::bhsd(sequences, heads, 2, 8, DType::BF16), Tensor::sbhd(sequences, heads, 2, 8, DType::BF16)]
        {
            a.o = o;
            let keys: Vec<usize> = (0..sequences as usize).map(|n| 9 * n).collect();
            check(a.clone(), 4, &keys);
        }
        // Rows with room behind them.
        a.o.strides = [heads * 64, 16, heads * 16, 1];
        check(a, 3, &vec![5; sequences as usize]);
    }
}

/// The bytes of O and Stats of one rank.
fn partial(a: &Attention) -> i64 {
    let [b, h, s, d] = a.o.dims;
    b * h * s * (2 * d + 4)
}

fn long(sequences: i64, heads: i64) -> Attention {
    let q = Tensor::bshd(sequences, heads, 1, 128, DType::BF16);
    let kv = Tensor::bhsd(sequences, 8, 4096, 128, DType::BF16);
    Attention::forward(q, kv, kv, q).with_lengths()
}

#[test]
fn eight_ranks_move_a_quarter_of_what_they_would_send_to_all() {
    for (sequences, heads) in [(64, 64), (1, 64), (4, 64)] {
        let a = long(sequences, heads).with_stats();
        let whole = partial(&a);
        let attention = a.validate().expect("valid");
        let made = made(&attention, 8);
        for rank in 0..8 {
            let costs = made.costs(rank);
            // A share to each other rank before the merge, and the merged one after it.
            assert_eq!((costs.sent, costs.received), (2 * 7 * whole / 8, 2 * 7 * whole / 8));
            assert_eq!(7 * whole / costs.sent, 4);
        }
        let copies = made.ranks[0].steps.iter().filter(|step| matches!(step, RankStep::Copy { .. })).count();
        assert_eq!(copies, if sequences == 4 { 3 } else { 0 }, "{sequences} sequences");
    }
    let two = long(64, 64).with_stats();
    let whole = partial(&two);
    let made = made(&two.validate().expect("valid"), 2);
    let exchanges = made.ranks[0].steps.iter().filter(|step| matches!(step, RankStep::Exchange { .. })).count();
    assert_eq!((made.costs(0).sent, exchanges), (whole, 1));
}

#[test]
fn an_estimate_has_the_bytes_that_move_and_those_that_merges_read() {
    let machine = GpuCluster::named("h200-nvlink").expect("known");
    let a = long(4096, 64);
    let whole = partial(&a) as f64;
    let estimate = made(&a.validate().expect("valid"), 8).estimate(&machine);
    let moved = |bytes: f64| bytes / machine.link;
    assert!(estimate.exchange > moved(1.7 * whole), "{estimate}");
    assert!(estimate.exchange < moved(7.0 * whole) / 3.0, "{estimate}");
    assert!(estimate.copies < 2.0 * whole / machine.memory, "{estimate}");
}
