//! Computes the attention on several GPUs, or by several ranks on one: every rank is a thread with its part of the
//! sequence.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaStream;
use qkvault::Runtime;
use qkvault::cache::{Vault, VaultOptions};
use qkvault::compile::{Compiler, OnMiss, Planner};
use qkvault::exec::{Device, Number, cudarc};
use qkvault::graph::{DType, Role};
use qkvault::parallel::{
    Communicator, GpuRank, InProcess, Nccl, RunError, Schedule, Scheme, Secret, Sharding, Store, World, schedule,
};
use qkvault::sys::Search;
use qkvault::{CompileOptions, Profile};

use crate::Failure;
use crate::gpu::{narrow, widen};
use crate::model::{Config, Machine};

/// How long a rank waits for another one.
const DEADLINE: Duration = Duration::from_secs(60);

/// A layer of one rank.
struct Layer {
    forward: GpuRank,
    backward: GpuRank,
}

struct Rank {
    communicator: Box<dyn Communicator>,
    layers: Vec<Layer>,
    stream: Arc<CudaStream>,
}

/// The ranks of this process, and what each of them does in each layer.
pub(crate) struct Ranks {
    ranks: Vec<Rank>,
    schedules: Vec<[Schedule; 2]>,
    dtype: DType,
}

/// The schedules of both passes of each layer.
fn schedules(config: &Config, ranks: u32) -> Result<Vec<[Schedule; 2]>, Failure> {
    let sharding = Sharding::new(ranks, Scheme::Gather { groups: 1 });
    let of = |training: &qkvault::exec::Training| {
        Ok([schedule(training.forward(), &sharding)?, schedule(training.backward(), &sharding)?])
    };
    config.attentions()?.iter().map(of).collect()
}

/// Compiles the plans of all ranks. The target GPUs need not be present.
pub(crate) fn plan(config: &Config, vault: VaultOptions, profile: &str, ranks: u32) -> Result<(), Failure> {
    let compiler = Compiler::open(&Search::default())?;
    let target = compiler.target(&Profile::named(profile)?);
    let planner = Planner::new(Vault::open(vault)?, Some(compiler));
    for made in schedules(config, ranks)?.iter().flatten() {
        for of in &made.plans {
            let answer = planner.plan(of, &target, &CompileOptions::default(), OnMiss::Compile)?;
            println!("{of}: {}", answer.outcome.map_err(|refusal| refusal.to_string())?.facts.key);
        }
        for of in made.combinations()? {
            let answer = planner.combination(&of, target.sm(), OnMiss::Compile)?;
            println!("{of}: {}", answer.outcome.map_err(|refusal| refusal.to_string())?.facts.key);
        }
    }
    Ok(())
}

impl Ranks {
    /// Opens the GPUs, and joins their ranks: over NCCL, or with copies if all are on one GPU.
    pub(crate) fn new(
        config: &Config,
        vault: impl Fn() -> VaultOptions,
        build: bool,
        ranks: u32,
        one_gpu: bool,
    ) -> Result<Ranks, Failure> {
        let schedules = schedules(config, ranks)?;
        let device = |rank: u32| Device::open(if one_gpu { 0 } else { rank as usize });
        let runtimes: Vec<Runtime> = (0..ranks)
            .map(|rank| Ok(Runtime::options().on(&device(rank)?).vault(vault()).build_missing(build).open()?))
            .collect::<Result<_, Failure>>()?;
        let contexts = runtimes.iter().map(|runtime| runtime.device().map(|device| Arc::clone(device.context())));
        let contexts: Vec<_> = contexts.collect::<Result<_, _>>()?;
        let world: Vec<Box<dyn Communicator>> = if one_gpu {
            let world = InProcess::world(&contexts, DEADLINE)?;
            world.into_iter().map(|rank| Box::new(rank) as Box<dyn Communicator>).collect()
        } else {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let secret = Secret::random()?;
            at_once(&mut (0..).zip(&contexts).collect::<Vec<_>>(), |(rank, context)| {
                context.bind_to_thread()?;
                let world = World::local(*rank, ranks, port).with_secret(secret.clone());
                let store = Store::meet(&world, DEADLINE)?;
                Ok(Box::new(Nccl::join(store, None)?) as Box<dyn Communicator>)
            })?
        };
        let cap = Number::F32(config.cap);
        let ranks = at_once(&mut world.into_iter().zip(&runtimes).map(Some).collect::<Vec<_>>(), |given| {
            let (mut communicator, runtime) = given.take().ok_or("each rank is made once")?;
            let context = runtime.device()?.context();
            let mut layers = Vec::new();
            for [forward, backward] in &schedules {
                let mut prepare = |made: &Schedule| {
                    let mut rank = GpuRank::prepare(made, &mut *communicator, runtime, context)?;
                    made.attention.scalar_roles("cap").for_each(|role| rank.set_number(role, cap));
                    rank.allocate()?;
                    Ok::<_, RunError>(rank)
                };
                layers.push(Layer { forward: prepare(forward)?, backward: prepare(backward)? });
            }
            Ok(Rank { communicator, layers, stream: context.new_stream()? })
        })?;
        Ok(Ranks { ranks, schedules, dtype: config.dtype })
    }
}

/// Does something with each item in a thread of its own; the first error, or all results.
fn at_once<T: Send, R: Send>(
    list: &mut [T],
    each: impl Fn(&mut T) -> Result<R, Box<dyn std::error::Error + Send + Sync>> + Sync,
) -> Result<Vec<R>, Failure> {
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = list.iter_mut().map(|item| scope.spawn(|| each(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    });
    results.into_iter().map(|result| result.map_err(|error| error as Failure)).collect()
}

/// The outputs of all ranks as one tensor.
fn together(made: &Schedule, role: Role, parts: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = vec![0; parts.iter().map(Vec::len).sum()];
    for (rank, part) in (0..).zip(parts) {
        made.collect(rank, role, part, &mut whole).expect("as long as all parts");
    }
    whole
}

impl Machine for Ranks {
    fn attend(&mut self, layer: usize, qkv: [&[f32]; 3]) -> Result<Vec<f32>, Failure> {
        let Ranks { ranks, schedules, dtype } = self;
        let [made, _] = &schedules[layer];
        let wholes = [Role::Q, Role::K, Role::V].into_iter().zip(qkv.map(|values| narrow(*dtype, values)));
        let wholes: Vec<_> = wholes.collect();
        let outputs = at_once(ranks, |rank| {
            let Layer { forward, backward } = &mut rank.layers[layer];
            for (role, whole) in &wholes {
                let part = made.part(rank.communicator.rank(), *role, whole).ok_or("operands of another size")?;
                forward.write(*role, &part)?;
                backward.write(*role, &part)?;
            }
            forward.run(&mut *rank.communicator, &rank.stream)?;
            forward.wait(&mut *rank.communicator, &rank.stream, DEADLINE)?;
            for role in [Role::O, Role::Stats] {
                backward.write(role, &forward.read(role)?)?;
            }
            Ok(forward.read(Role::O)?)
        })?;
        Ok(widen(*dtype, &together(made, Role::O, &outputs)))
    }

    fn attend_back(&mut self, layer: usize, d_o: &[f32]) -> Result<[Vec<f32>; 3], Failure> {
        let Ranks { ranks, schedules, dtype } = self;
        let [_, made] = &schedules[layer];
        let whole = narrow(*dtype, d_o);
        let gradients = [Role::DQ, Role::DK, Role::DV];
        let outputs = at_once(ranks, |rank| {
            let backward = &mut rank.layers[layer].backward;
            let part = made.part(rank.communicator.rank(), Role::DO, &whole).ok_or("a gradient of another size")?;
            backward.write(Role::DO, &part)?;
            backward.run(&mut *rank.communicator, &rank.stream)?;
            backward.wait(&mut *rank.communicator, &rank.stream, DEADLINE)?;
            let read = |role| backward.read(role);
            Ok([read(gradients[0])?, read(gradients[1])?, read(gradients[2])?])
        })?;
        Ok([0, 1, 2].map(|n| {
            let parts: Vec<Vec<u8>> = outputs.iter().map(|of_rank| of_rank[n].clone()).collect();
            widen(*dtype, &together(made, gradients[n], &parts))
        }))
    }

    fn record(&self) -> serde_json::Value {
        let of = |made: &Schedule| {
            let plans: Vec<String> = made.plans.iter().map(ToString::to_string).collect();
            serde_json::json!({ "sharding": made.sharding.to_string(), "plans": plans })
        };
        self.schedules.iter().flatten().map(of).collect()
    }
}
