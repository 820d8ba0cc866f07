//! `invariant`: random compositions of serving steps on a GPU. A query that is in several of them must have the same
//! bits in each: alone or in a crowd, as a decode or in a chunk, over pages of 16 or 64 rows, wherever these lie.

mod compose;
mod cost;
mod pools;

use std::collections::HashMap;
use std::path::PathBuf;

use qkvault_base::random::Rng;
use qkvault_cli::target::LibraryArgs;
use qkvault_cli::{Globals, Outcome, open_vault, out};
use qkvault_compile::{KERNELS, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Device, LoadedPlan, Session};
use qkvault_graph::Valid;
use serde_json::json;

use compose::{Composition, Steps};
use pools::PooledWorld;

/// Options of `invariant`.
#[derive(Debug, clap::Args)]
pub struct InvariantArgs {
    #[command(flatten)]
    library: LibraryArgs,
    /// Compositions
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    compositions: usize,
    /// Seed of sequences and compositions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The record
    #[arg(long, value_name = "FILE", default_value = "invariant.json")]
    out: PathBuf,
    /// Of what invariance costs, only cases whose name has this, such as "q1 b8"; none with "-"
    #[arg(long, value_name = "TEXT", default_value = "")]
    cost: String,
    /// The GPU's number
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// What a run needs of the machine.
struct ComparedGround {
    session: Session,
    planner: Planner,
}

impl ComparedGround {
    /// The plan of own kernels, compiled if the vault lacks it.
    fn plan(&self, attention: &Valid) -> anyhow::Result<LoadedPlan> {
        let options = CompileOptions { engine: KERNELS.policy(), ..CompileOptions::default() };
        Ok(self.session.prepare(&self.planner, attention, &options, OnMiss::Compile)?.plan)
    }
}

/// Runs the command.
pub(super) fn run(globals: &Globals, args: &InvariantArgs) -> anyhow::Result<Outcome> {
    let search = args.library.search()?;
    let device = Device::open(args.device)?;
    let session = Session::open(&device, &search)?;
    let ground = ComparedGround { session, planner: Planner::opening(open_vault(globals)?, search) };
    let stream = device.context().new_stream()?;
    let mut rng = Rng::new(args.seed);
    let world = PooledWorld::new(&mut rng, &stream)?;
    let mut steps = Steps::prepare(&ground, &world, &stream)?;
    // The bits of a query's row, by sequence and position, with the composition that had it first.
    let mut known: HashMap<(usize, i32), (u64, usize)> = HashMap::new();
    let (mut rows, mut compared, mut different) = (0_u64, 0_u64, Vec::new());
    for at in 0..args.compositions {
        let composition = Composition::random(&mut rng, &world);
        for (place, bits) in steps.rows(&composition, &world, &stream)? {
            rows += 1;
            let (before, first) = *known.entry(place).or_insert((bits, at));
            compared += u64::from(first != at);
            if before != bits {
                different
                    .push(format!("sequence {} at {}: composition {first} and {at}, {composition}", place.0, place.1));
            }
        }
        if at % 1000 == 999 {
            out::note(&format!("{} compositions, {compared} rows compared, {} differ", at + 1, different.len()));
        }
    }
    different.iter().take(20).for_each(|what| out::problem(what));
    let cost = cost::rows(&ground, &args.cost, &stream)?;
    let record = json!({
        "gpu": device.name(), "seed": args.seed, "compositions": args.compositions, "rows": rows, "compared": compared,
        "different": different.len(), "cost": cost,
    });
    std::fs::write(&args.out, serde_json::to_string_pretty(&record)? + "\n")?;
    out::line(&format!("{compared} of {rows} rows compared, {} differ", different.len()));
    Ok(if different.is_empty() && compared > 0 { Outcome::Good } else { Outcome::Bad })
}
