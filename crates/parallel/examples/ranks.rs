//! Several processes compute one attention together, forward and backward, without a GPU: the schedule, the store in
//! which ranks meet, and the oracle for launches.
//!
//! `cargo run -p qkvault-parallel --all-features --example ranks -- 3` starts three ranks. Under `torchrun`, `srun` or
//! `mpirun` each process is the rank that the launcher says.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use qkvault_graph::expr::{library, score};
use qkvault_graph::{Attention, BackwardOptions, DType, validate};
use qkvault_parallel::{Scheme, Secret, Sharding, Store, World, schedule, simulate_rank};
use qkvault_reference::{Inputs, backward, forward};

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(ranks) => start(ranks.parse()?),
        None => compute(&World::from_env()?),
    }
}

/// Starts so many ranks on this machine, and waits for them.
fn start(ranks: u32) -> Result<(), Box<dyn Error>> {
    // The port is free now; nothing keeps it, so a machine with many such programs gives each its own.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let program = std::env::current_exe()?;
    // Other users of this machine reach the port too, so the ranks prove that they belong together.
    let secret = Secret::random()?;
    let rank = |rank: u32| {
        let mut command = Command::new(&program);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string()).env("LOCAL_RANK", rank.to_string());
        secret.give_to(&mut command);
        command.env("MASTER_ADDR", "127.0.0.1").env("QKVAULT_PORT", port.to_string()).spawn()
    };
    let all: Vec<_> = (0..ranks).map(rank).collect::<Result<_, _>>()?;
    for (rank, mut child) in all.into_iter().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("rank {rank} has ended with {status}").into());
        }
    }
    Ok(())
}

/// One rank: a forward and a backward, each compared with one attention over everything.
fn compute(world: &World) -> Result<(), Box<dyn Error>> {
    let tokens = 24 * i64::from(world.size);
    let alibi = library::alibi(score(), 4).build_score_mod()?;
    let plain = Attention::bshd(1, (4, 2), (tokens, tokens), 16, DType::BF16).causal().with_score_mod(alibi);
    let plain = plain.with_stats();
    let sharding = Sharding::new(world.size, Scheme::Gather { groups: 2 });
    let mut store = Store::meet(world, Duration::from_secs(20))?;
    for attention in [plain.clone(), plain.backward(BackwardOptions::default())] {
        let attention = validate(attention)?;
        let made = schedule(&attention, &sharding)?;
        // Every rank draws the same operands from one seed, and uses its share of them.
        let inputs = Inputs::random(&attention, 7)?;
        let mine = simulate_rank(&made, &mut store, &inputs)?;
        let whole =
            if attention.is_backward() { backward(&attention, &inputs)? } else { forward(&attention, &inputs)? };
        let mut worst = 0.0_f64;
        for held in &made.ranks[world.rank as usize].held {
            let buffer = &made.ranks[world.rank as usize].buffers[held.piece.buffer as usize];
            let Some((role, values)) = buffer.operand.and_then(|role| Some((role, mine.get(&role)?))) else { continue };
            let Some(expected) = whole.get(role) else { continue };
            let [b, h, s, d] = held.piece.dims.map(|n| n as usize);
            for at in (0..b * h * s * d).map(|n| [n / d / s / h, n / d / s % h, n / d % s, n % d]) {
                let local: i64 = (0..4).map(|i| (held.piece.start[i] + at[i] as i64) * buffer.tensor.strides[i]).sum();
                let [b, h, s, d] = std::array::from_fn(|i| held.start[i] as usize + at[i]);
                worst = worst.max((values[local as usize] - expected.at(b, h, s, d)).abs());
            }
        }
        let pass = if attention.is_backward() { "backward" } else { "forward" };
        println!("rank {} of {}: {pass} off by at most {worst:.1e}", world.rank, world.size);
        if worst.is_nan() || worst > 1e-10 {
            return Err(format!("the {pass} of rank {} differs from one attention", world.rank).into());
        }
    }
    store.leave();
    Ok(())
}
