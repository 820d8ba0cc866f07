//! The faults that an inspection finds in schedules that are changed by hand, and what a schedule is as data.

use qkvault_graph::ALIGNMENT;
use qkvault_graph::{
    Attention, BackwardOptions, DType, Dropout, DropoutSource, Origins, Role, Tensor, Valid, validate,
};
use qkvault_parallel::codes;
use qkvault_parallel::{Bind, BufferBox, RankSchedule, RankStep, Schedule, Scheme, Sharding, TokenOrder, schedule};

fn training() -> Valid {
    let a = Attention::bshd(1, (8, 4), (64, 64), 16, DType::BF16).causal().with_stats();
    validate(a.backward(BackwardOptions::default())).expect("valid")
}

fn made(scheme: Scheme) -> Schedule {
    schedule(&training(), &Sharding::new(4, scheme)).expect("taken")
}

#[test]
fn a_step_that_does_not_wait_is_found() {
    for scheme in [Scheme::Gather { groups: 4 }, Scheme::Ring, Scheme::Heads] {
        let whole = made(scheme);
        assert_eq!(whole.faults(), Vec::<String>::new());
        let steps = &whole.ranks[1].steps;
        let waits = (0..steps.len()).filter(|at| matches!(steps[*at], RankStep::Wait { .. }));
        let (mut found, mut all) = (0, 0);
        for at in waits {
            let mut changed = whole.clone();
            changed.ranks[1].steps.remove(at);
            all += 1;
            found += usize::from(changed.faults().iter().any(|fault| fault.contains("in no order")));
        }
        // A wait may be implied by a later one of the same stream, but most are needed.
        assert!(found * 3 >= all * 2 && all >= 2, "{scheme:?}: {found} of {all}");
    }
}

/// Plans want their operands at multiples of 16 bytes; sinks of a group of heads lie at any number, and are copied.
#[test]
fn every_operand_of_a_launch_begins_at_an_aligned_address() {
    let a = || Attention::bshd(1, (12, 4), (48, 96), 16, DType::BF16).with_stats().with_sink();
    let options = BackwardOptions { d_sink: true, ..BackwardOptions::default() };
    let backward = validate(validate(a()).expect("valid").backward(options)).expect("valid");
    let odd = validate(Attention::bshd(1, (6, 6), (48, 48), 8, DType::BF16).causal().with_sink()).expect("valid");
    let mut sinks = 0;
    for attention in [&validate(a()).expect("valid"), &backward, &odd] {
        for scheme in [Scheme::Gather { groups: 2 }, Scheme::Gather { groups: 1 }, Scheme::Heads, Scheme::Ring] {
            let Ok(made) = schedule(attention, &Sharding::new(2, scheme)) else { continue };
            for rank in &made.ranks {
                let launches = rank.steps.iter().filter_map(|step| match step {
                    RankStep::Launch(launch) => Some(launch),
                    _ => None,
                });
                for (role, bind) in launches.flat_map(|launch| &launch.binds) {
                    let Bind::Piece(piece) = bind else { continue };
                    let tensor = rank.buffers[piece.buffer as usize].tensor;
                    let begin = piece.offset(&tensor) * tensor.dtype.size() as i64;
                    assert_eq!(begin % ALIGNMENT as i64, 0, "{role} of {scheme:?}, {attention}");
                    sinks += usize::from(*role == Role::Sink);
                }
            }
        }
    }
    assert!(sinks > 20, "{sinks} sinks are bound");
}

#[test]
fn an_exchange_that_never_ends_and_a_message_of_another_size_are_found() {
    let whole = made(Scheme::Gather { groups: 1 });
    let exchange = |s: &Schedule| s.ranks[2].steps.iter().position(|s| matches!(s, RankStep::Exchange { .. }));
    let at = exchange(&whole).expect("an exchange");
    let mut changed = whole.clone();
    changed.ranks[2].steps.remove(at);
    assert!(changed.faults().iter().any(|fault| fault.contains("never end")), "{:?}", changed.faults());
    let mut changed = whole.clone();
    if let RankStep::Exchange { transfers } = &mut changed.ranks[2].steps[at] {
        transfers[0].piece.dims[2] -= 1;
    }
    assert!(changed.faults().iter().any(|fault| fault.contains("another size")), "{:?}", changed.faults());
    let mut changed = whole;
    if let RankStep::Exchange { transfers } = &mut changed.ranks[2].steps[at] {
        transfers[0].piece.start[2] += 1_000;
    }
    assert!(changed.faults().iter().any(|fault| fault.contains("outside its buffer")));
}

#[test]
fn a_schedule_is_read_again_as_it_was_and_any_change_has_another_digest() {
    let whole = made(Scheme::Gather { groups: 2 });
    let text = serde_json::to_string(&whole).expect("serialises");
    let read: Schedule = serde_json::from_str(&text).expect("parses");
    assert_eq!((read.digest(), &read), (whole.digest(), &whole));
    assert_eq!(made(Scheme::Gather { groups: 2 }).digest(), whole.digest());
    let mut changed = whole.clone();
    changed.ranks[3].steps.swap(0, 1);
    assert_ne!(changed.digest(), whole.digest());
    assert_ne!(made(Scheme::Gather { groups: 4 }).digest(), whole.digest());
    assert!(whole.explain().contains("rank 3: sends"), "{}", whole.explain());
}

/// The figures of the reference: a rank receives `(N - 1) 2 g L d` elements at most, and only what it sees.
#[test]
fn ranks_receive_the_bytes_that_their_queries_see() {
    let long = |band: &str| {
        let a = Attention::bshd(1, (8, 2), (4096, 4096), 64, DType::BF16);
        let a = if band == "window" {
            a.window(100)
        } else if band == "causal" {
            a.causal()
        } else {
            a
        };
        validate(a.with_stats()).expect("valid")
    };
    let received = |a: &Valid, ranks: u32, scheme: Scheme| {
        let made = schedule(a, &Sharding::new(ranks, scheme)).expect("taken");
        (0..ranks).map(|rank| made.costs(rank).received).max().unwrap_or(0)
    };
    let gather = Scheme::Gather { groups: 1 };
    for ranks in [2, 4, 8] {
        let (shards, token) = (i64::from(ranks) - 1, 2 * 2 * 64 * 2);
        assert_eq!(received(&long("full"), ranks, gather), shards * (4096 / i64::from(ranks)) * token);
        assert!(received(&long("causal"), ranks, gather) <= shards * (4096 / i64::from(ranks)) * token);
        // The halo of a window: 99 keys before each of two chunks, whatever the number of ranks. With two ranks, one
        // halo of each rank is its own.
        let halos = if ranks == 2 { 1 } else { 2 };
        assert_eq!(received(&long("window"), ranks, gather), halos * 99 * token, "{ranks} ranks");
    }
}

#[test]
fn every_rank_has_the_same_work_under_a_causal_mask() {
    let a = validate(Attention::bshd(1, (8, 2), (4096, 4096), 64, DType::BF16).causal()).expect("valid");
    for scheme in [Scheme::Gather { groups: 1 }, Scheme::Ring, Scheme::Heads] {
        let ranks = 2;
        let made = schedule(&a, &Sharding::new(ranks, scheme)).expect("taken");
        let work: Vec<f64> = (0..ranks).map(|rank| made.costs(rank).flops).collect();
        assert_eq!(work[0], work[1], "{scheme:?}");
        assert_eq!(work.iter().sum::<f64>(), a.flops(), "{scheme:?}");
    }
    let uneven = Sharding::new(4, Scheme::Gather { groups: 1 }).with_order(TokenOrder::Contiguous);
    let made = schedule(&a, &uneven).expect("taken");
    assert!(made.costs(3).flops > 4.0 * made.costs(0).flops);
}

#[test]
fn what_cannot_be_shared_is_refused_with_every_reason() {
    let refused = |a: Attention, sharding: Sharding| {
        let refusal = schedule(&validate(a).expect("valid"), &sharding).expect_err("refused");
        refusal.reasons().iter().map(|r| r.code.as_str().to_owned()).collect::<Vec<_>>()
    };
    let a = || Attention::bshd(1, (8, 2), (30, 30), 64, DType::BF16).causal();
    let gather = |ranks| Sharding::new(ranks, Scheme::Gather { groups: 1 });
    assert_eq!(refused(a(), gather(0)), [codes::SHARD_RANKS.as_str()]);
    assert_eq!(refused(a(), gather(4)), [codes::SHARD_SEQUENCE.as_str(); 2]);
    let refusal = schedule(&validate(a()).expect("valid"), &gather(4)).expect_err("refused");
    assert!(refusal.to_string().contains("a multiple of 8: 32"), "{refusal}");
    assert_eq!(refused(a(), Sharding::new(3, Scheme::Heads)), [codes::SHARD_HEADS.as_str()]);
    // Fewer heads than ranks.
    let few = Attention::bshd(1, (8, 2), (32, 32), 64, DType::BF16).causal();
    assert_eq!(refused(few, Sharding::new(16, Scheme::Heads)), [codes::SHARD_HEADS.as_str()]);
    assert_eq!(refused(a(), Sharding::new(5, Scheme::Gather { groups: 4 })), [codes::SHARD_HEADS.as_str()]);
    assert_eq!(refused(a().with_dropout(0.1), gather(5)), [codes::SHARD_DROPOUT.as_str()]);
    assert_eq!(
        refused(a().with_lengths().window(3).with_sink(), Sharding::new(3, Scheme::Decode { run: 0 })),
        [codes::SHARD_RUN.as_str()]
    );
    let mut blocks = a().with_dropout(0.1);
    blocks.block_mask = true;
    assert_eq!(
        refused(blocks, gather(7)),
        [&codes::SHARD_SEQUENCE, &codes::SHARD_SEQUENCE, &codes::SHARD_DROPOUT, &codes::SHARD_BLOCK_MASK]
            .map(|c| c.as_str().to_owned())
    );
    let tree = Attention::bshd(1, (8, 2), (64, 256), 64, DType::BF16).with_draft_tree();
    assert!(refused(tree, gather(2)).contains(&codes::SHARD_DRAFT_TREE.as_str().to_owned()));
    let places = || Some(Dropout::new(DropoutSource::Places, 0.1));
    let mut cache = a().with_lengths();
    cache.dropout = places();
    assert_eq!(refused(cache, Sharding::new(3, Scheme::Decode { run: 4 })), [codes::SHARD_DROPOUT.as_str()]);
    let of = |heads| Tensor::thd(3, heads, 16, 64, 32, DType::BF16);
    let mut packed = Attention::forward(of(8), of(2), of(2), of(8)).with_lengths();
    packed.dropout = places();
    assert_eq!(refused(packed, gather(2)), [codes::SHARD_STORAGE.as_str()]);
    let chunk = Attention::bshd(1, (8, 2), (32, 32), 64, DType::BF16).causal().with_origins(Origins::Any);
    assert_eq!(refused(chunk, gather(4)), [codes::SHARD_ORIGINS.as_str()]);
    let training = training();
    let decode = schedule(&training, &Sharding::new(2, Scheme::Decode { run: 16 })).expect_err("refused");
    assert!(decode.has(&codes::SHARD_PASS));
}

/// A gather sent both sequences from operands whose bytes lie in another order than the receiver's buffer has them.
#[test]
fn audit_a_message_in_another_order_is_found() {
    let attention = Attention::bshd(2, (8, 4), (64, 64), 16, DType::BF16).causal().with_stats().validate();
    let sharding = Sharding::new(2, Scheme::Gather { groups: 1 }).with_order(TokenOrder::Contiguous);
    let whole = schedule(&attention.expect("valid"), &sharding).expect("taken");
    assert_eq!(whole.faults(), Vec::<String>::new());
    let mut changed = whole.clone();
    let RankSchedule { buffers, steps, .. } = &mut changed.ranks[0];
    let k = buffers.iter().position(|b| b.operand == Some(Role::K)).expect("K") as u32;
    for step in steps {
        let RankStep::Exchange { transfers } = step else { continue };
        transfers
            .iter_mut()
            .filter(|t| t.send)
            .for_each(|t| t.piece = BufferBox { buffer: k, start: [0; 4], ..t.piece });
    }
    let faults = changed.faults();
    assert!(faults.iter().any(|fault| fault.contains("another order")), "{faults:?}");
}
