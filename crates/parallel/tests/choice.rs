//! Estimates beside the figures that were derived by hand, and the choice of a scheme.

use qkvault_graph::{Attention, BackwardOptions, DType, Tensor, Valid, validate};
use qkvault_parallel::{Bottleneck, GpuCluster, Scheme, Sharding, choose, schedule};

/// Llama-3 8B's attention over `s` tokens.
fn llama(s: i64) -> Attention {
    Attention::bshd(1, (32, 8), (s, s), 128, DType::BF16).causal().with_stats()
}

fn valid(a: Attention) -> Valid {
    validate(a).expect("valid")
}

#[test]
fn a_gather_over_two_h200_is_near_the_ideal_from_8k_tokens_a_rank() {
    let machine = GpuCluster::named("h200-nvlink").expect("known");
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
    let nic = GpuCluster::named("h200-nic").expect("known");
    let bound = |s: i64| {
        let made = schedule(&valid(llama(s)), &Sharding::new(2, Scheme::Gather { groups: 1 })).expect("taken");
        made.estimate(&nic).bound
    };
    assert_eq!((bound(8_192), bound(131_072)), (Bottleneck::Links, Bottleneck::Compute));
}

#[test]
fn the_choice_is_explained_and_falls_on_what_is_possible() {
    let machine = &GpuCluster::all()[0];
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

/// The page with the estimates, and the lines around its table.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/parallel.md");
const TABLE: [&str; 2] = ["<!-- estimates -->\n", "<!-- end of estimates -->"];

/// Part of the ideal speed of a forward with its backward, and the memory of a rank besides its operands, in GB.
fn on_paper(tokens: i64, ranks: u32, machine: &GpuCluster, schemes: &[Scheme]) -> String {
    let forward = valid(llama(tokens * i64::from(ranks)));
    let backward = valid(forward.backward(BackwardOptions::default()));
    let (mut best, mut memory) = (0.0_f64, 0.0);
    for scheme in schemes {
        let sharding = Sharding::new(ranks, *scheme);
        let made = [&forward, &backward].map(|pass| schedule(pass, &sharding));
        let [Ok(forward), Ok(backward)] = made else { continue };
        let (one, two) = (forward.estimate(machine), backward.estimate(machine));
        let ideal = one.efficiency * one.seconds + two.efficiency * two.seconds;
        if ideal / (one.seconds + two.seconds) > best {
            best = ideal / (one.seconds + two.seconds);
            memory = backward.costs(0).scratch.max(forward.costs(0).scratch) as f64 / 1e9;
        }
    }
    if best == 0.0 { "-".to_owned() } else { format!("{best:.2}, {memory:.1} GB") }
}

/// `UPDATE_GOLDENS=1 cargo test -p qkvault-parallel --test choice` writes the table anew.
#[test]
fn the_page_has_the_estimates_for_8_and_64_gpus() {
    let gathers = [1, 2, 4, 8].map(|groups| Scheme::Gather { groups });
    let mut table = String::new();
    for (ranks, name) in [(8, "h200-nvlink"), (8, "h200-nic"), (64, "h200-nic")] {
        let machine = GpuCluster::named(name).expect("known");
        for tokens in [8_192, 131_072] {
            let of = |schemes: &[Scheme]| on_paper(tokens, ranks, &machine, schemes);
            let (gather, ring, heads) = (of(&gathers), of(&[Scheme::Ring]), of(&[Scheme::Heads]));
            table += &format!("| {ranks} | {name} | {}k | {gather} | {ring} | {heads} |\n", tokens / 1024);
        }
    }
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let (before, rest) = page.split_once(TABLE[0]).expect("the beginning of the table");
    let (found, after) = rest.split_once(TABLE[1]).expect("its end");
    let (heading, rows) = found.split_at(found.find("| 8 |").unwrap_or(found.len()));
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        let text = format!("{before}{}{heading}{table}\n{}{after}", TABLE[0], TABLE[1]);
        return std::fs::write(PAGE, text).expect("is written");
    }
    assert_eq!(rows.trim_end(), table.trim_end());
}
