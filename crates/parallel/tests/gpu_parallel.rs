//! Ranks that are threads on one GPU, each with the plans and buffers of its schedule, beside one attention; and what
//! happens when one of them ends.
//!
//! The tests need a driver, a cuDNN with its compiler, NVRTC, and a vault folder `QKVAULT_TEST_VAULT` (it may be empty;
//! `fill` compiles its plans without a GPU). Without them they are skipped, or fail with `QKVAULT_REQUIRE=gpu`.
#![allow(clippy::print_stderr, reason = "the random run tells what it has tried")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use qkvault_compile::cache::{Vault, VaultOptions};
use qkvault_compile::sys::Search;
use qkvault_compile::{Compiler, OnMiss, Planner};
use qkvault_cudnn::{CompileOptions, Profile};
use qkvault_exec::cudarc::driver::CudaContext;
use qkvault_exec::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use qkvault_exec::{Device, DeviceError, Session};
use qkvault_graph::expr::parse_expr;
use qkvault_graph::{Attention, BackwardOptions, DType, Dropout, DropoutSource, Role, Tensor, Valid};
use qkvault_parallel::testing::{CaseSpace, Member, ShardedCase, case, collected, expected, give, together, wrong};
use qkvault_parallel::{
    Communicator, GpuRank, InProcess, Nccl, RankFault, RunError, Schedule, Scheme, SessionPlans, Sharding, Store,
    World, schedule,
};
use qkvault_reference::{Family, Inputs};
use qkvault_skip::{Need, skip};

const VAULT: &str = "QKVAULT_TEST_VAULT";
const FILL: &str = "QKVAULT_TEST_FILL";
const DEADLINE: Duration = Duration::from_secs(60);

/// A GPU with a planner over the test vault.
struct Gpu {
    session: Session,
    planner: Planner,
    options: CompileOptions,
}

impl Gpu {
    fn open(ordinal: usize, need: Need) -> Option<Gpu> {
        let Some(folder) = std::env::var_os(VAULT) else {
            skip(need, &format!("{VAULT} is not set"));
            return None;
        };
        let device = match Device::open(ordinal) {
            Ok(device) => device,
            Err(error @ (DeviceError::NoDriver(_) | DeviceError::NoGpu { .. } | DeviceError::BadOrdinal { .. })) => {
                skip(need, &error.to_string());
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let vault = Vault::open(VaultOptions::in_folder(folder)).expect("the test vault");
        let session = Session::open(&device, &Search::default()).expect("a session");
        let planner = Planner::opening(vault, Search::default());
        Some(Gpu { session, planner, options: CompileOptions::default() })
    }

    fn plans(&self) -> SessionPlans<'_> {
        let Gpu { session, planner, options } = self;
        SessionPlans { session, planner, options, on_miss: OnMiss::Compile }
    }

    fn context(&self) -> &Arc<CudaContext> {
        self.session.device().context()
    }
}

/// The ranks of a world on one GPU, with a fault on one of them.
fn world<'a>(
    gpu: &Gpu,
    plans: &'a SessionPlans<'a>,
    ranks: u32,
    deadline: Duration,
    fault: Option<(u32, RankFault)>,
) -> Vec<Member<'a>> {
    let contexts = vec![Arc::clone(gpu.context()); ranks as usize];
    let world = InProcess::world(&contexts, deadline).expect("events");
    let member = |rank: InProcess| {
        let rank = match fault {
            Some((of, fault)) if of == rank.rank() => rank.with_fault(fault),
            _ => rank,
        };
        Member { communicator: Box::new(rank), plans, context: Arc::clone(gpu.context()) }
    };
    world.into_iter().map(member).collect()
}

/// Runs a case three times with ranks on one GPU: what is wrong, or why it did not run.
fn run(gpu: &Gpu, made: &Schedule, inputs: &Inputs) -> Result<Vec<String>, RunError> {
    let plans = gpu.plans();
    let mut members = world(gpu, &plans, made.sharding.ranks, DEADLINE, None);
    let mut results = together(made, inputs, &mut members, 3, DEADLINE);
    // The others only say that a rank is gone; that one knows why.
    results.sort_by_key(|result| matches!(result, Err(RunError::Ranks(_))));
    let failed = results.iter().position(Result::is_err);
    if let Some(at) = failed {
        return Err(results.swap_remove(at).expect_err("it failed"));
    }
    let outputs: Vec<BTreeMap<_, _>> = results.into_iter().flatten().collect();
    Ok(differences(made, inputs, &outputs))
}

/// What the outputs of all ranks have wrong.
fn differences(made: &Schedule, inputs: &Inputs, outputs: &[BTreeMap<Role, Vec<u8>>]) -> Vec<String> {
    let exact = expected(made, inputs).expect("the oracle computes it");
    wrong(made, inputs, &exact, &collected(made, outputs))
}

fn valid(attention: Attention) -> Valid {
    attention.validate().expect("the attentions of the tests are valid")
}

/// The attentions that each scheme runs: drawn dropout, plain, causal, windows, sinks, positions in scores, lengths.
fn attentions() -> Vec<Valid> {
    let plain = Attention::bshd(1, (8, 2), (512, 512), 64, DType::BF16).with_stats();
    let score = |text: &str| parse_expr(text).expect("parses");
    let alibi = "tensor @slopes: f32[1, 8, 1, 1] alibi 8; score + @slopes * float(key - query)";
    let mut wide = Attention::bshd(2, (4, 4), (256, 512), 128, DType::F16).with_stats();
    wide.sink = true;
    let mut sink = plain.clone().causal();
    sink.sink = true;
    let mut drops = plain.clone().causal();
    drops.dropout = Some(Dropout::new(DropoutSource::Places, 0.2));
    vec![
        valid(drops),
        valid(plain.clone()),
        valid(plain.clone().causal()),
        valid(plain.clone().window(100)),
        valid(sink),
        valid(wide),
        valid(plain.clone().causal().with_score_mod(score(alibi))),
        valid(plain.with_score_mod(score("scalar $cap: float; tanh(score / $cap) * $cap")).causal()),
    ]
}

/// Packed documents, of which some cross the ranks' chunks: causal, a window with positions in scores, and no band.
fn packed() -> Vec<Valid> {
    let of = |heads| Tensor::thd(4, heads, 640, 64, 1024, DType::BF16);
    let plain = Attention::forward(of(8), of(2), of(2), of(8)).with_lengths().with_stats();
    let score = parse_expr("score + 0.01 * float(key - query)").expect("parses");
    vec![valid(plain.clone().causal()), valid(plain.clone().window(100).with_score_mod(score)), valid(plain)]
}

/// A step of decode over dealt keys: dense, and pages.
fn decodes() -> Vec<Valid> {
    let q = Tensor::bshd(4, 8, 1, 128, DType::BF16);
    let dense = Tensor::bhsd(4, 2, 1000, 128, DType::BF16);
    let paged = Tensor::paged_nhd(4, 2, 1000, 128, 4 * 16 + 1, 64, DType::BF16);
    let of = |kv| Attention::forward(q, kv, kv, q).with_lengths().with_stats();
    let mut sink = of(dense);
    sink.sink = true;
    vec![valid(of(dense)), valid(of(paged)), valid(sink)]
}

/// Every case by hand: forwards and backwards of each scheme, and decodes.
fn cases(ranks: u32) -> Vec<ShardedCase> {
    let mut list = Vec::new();
    for (n, forward) in (0_u64..).zip(attentions().into_iter().chain(packed())) {
        let options = BackwardOptions { d_sink: forward.sink, ..BackwardOptions::default() };
        let backward = valid(forward.backward(options));
        for attention in [forward, backward] {
            for scheme in [Scheme::Gather { groups: 2 }, Scheme::Heads, Scheme::Ring] {
                let sharding = Sharding::new(ranks, scheme);
                list.push(ShardedCase { attention: attention.clone(), sharding, seed: n });
            }
        }
    }
    let decode =
        |(n, attention)| ShardedCase { attention, sharding: Sharding::new(ranks, Scheme::Decode { run: 64 }), seed: n };
    list.extend((50..).zip(decodes()).map(decode));
    list
}

/// The schedule and operands of a case; `None` if the sharding is refused.
fn prepared(case: &ShardedCase) -> Option<(Schedule, Inputs)> {
    let made = schedule(&case.attention, &case.sharding).ok()?;
    let mut inputs = case.inputs(Family::ALL[case.seed as usize % Family::ALL.len()]).expect("random operands");
    if case.attention.is_backward() {
        inputs.add_forward(&case.attention).expect("the oracle computes it");
    }
    Some((made, inputs))
}

/// Runs a case on two members and compares what they write with one attention.
fn check(case: &ShardedCase, made: &Schedule, inputs: &Inputs, members: &mut [Member<'_>]) {
    let outputs: Result<Vec<_>, _> = together(made, inputs, members, 2, DEADLINE).into_iter().collect();
    let outputs = outputs.unwrap_or_else(|error| panic!("{}: {error}", case.sharding));
    let found = differences(made, inputs, &outputs);
    assert!(found.is_empty(), "{}, {}: {found:?}", case.sharding, case.attention.get());
}

/// Random cases of a test.
const CASES: u64 = 40;

#[test]
fn ranks_on_one_gpu_compute_one_attention() {
    let Some(gpu) = Gpu::open(0, Need::Gpu) else { return };
    let mut failed = Vec::new();
    for case in cases(2).iter().chain(&cases(4)) {
        let Some((made, inputs)) = prepared(case) else { continue };
        let what = format!("{}, {}", case.sharding, case.attention.get());
        match run(&gpu, &made, &inputs) {
            Ok(wrong) if wrong.is_empty() => {}
            Ok(wrong) => failed.push(format!("{what}: {wrong:?}")),
            Err(error) => failed.push(format!("{what}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn random_attentions_are_shared_rightly_in_both_directions() {
    let Some(gpu) = Gpu::open(0, Need::Gpu) else { return };
    let (mut failed, mut counts) = (Vec::new(), BTreeMap::<String, u32>::new());
    for seed in 0..CASES {
        let case = case(&CaseSpace::gpu(2), seed);
        let Some((made, inputs)) = prepared(&case) else {
            *counts.entry("not shared".to_owned()).or_default() += 1;
            continue;
        };
        let what = format!("seed {seed}, {}, {}", case.sharding, case.attention.get());
        let outcome = match run(&gpu, &made, &inputs) {
            Ok(wrong) if wrong.is_empty() => case.sharding.to_string(),
            Ok(wrong) => {
                failed.push(format!("{what}: {wrong:?}"));
                "wrong".to_owned()
            }
            Err(RunError::Plan { .. }) => "no plan".to_owned(),
            Err(error) => {
                failed.push(format!("{what}: {error}"));
                "failed".to_owned()
            }
        };
        *counts.entry(outcome).or_default() += 1;
    }
    eprintln!("{counts:#?}");
    assert!(failed.is_empty(), "{} failed of {counts:#?}:\n{}", failed.len(), failed.join("\n"));
    let ran: u32 = counts.iter().filter(|(name, _)| !name.starts_with("no")).map(|(_, n)| n).sum();
    assert!(u64::from(ran) * 3 >= CASES, "most cases are no test: {counts:#?}");
}

#[test]
fn a_rank_that_ends_is_named_in_time_and_the_others_go_on() {
    let Some(gpu) = Gpu::open(0, Need::Gpu) else { return };
    let attention = valid(Attention::bshd(1, (4, 4), (768, 768), 64, DType::BF16).causal().with_stats());
    let made = schedule(&attention, &Sharding::new(3, Scheme::Ring)).expect("is taken");
    let inputs = Inputs::random(&attention, 1).expect("random operands");
    // Plans are compiled then, and no rank waits for another one's compiler.
    assert_eq!(run(&gpu, &made, &inputs).expect("runs"), Vec::<String>::new());
    let plans = gpu.plans();
    let deadline = Duration::from_secs(2);
    let late = Duration::from_secs(6);
    for fault in
        [RankFault::Dies(0), RankFault::Dies(1), RankFault::Dies(3), RankFault::Late(2, late), RankFault::Partial(1)]
    {
        let begin = Instant::now();
        let results = together(&made, &inputs, &mut world(&gpu, &plans, 3, deadline, Some((1, fault))), 2, deadline);
        assert!(begin.elapsed() < deadline * 2 + late, "{fault:?}: {:?}", begin.elapsed());
        for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
            let Err(RunError::Ranks(error)) = result else { panic!("{fault:?}: rank {rank} hears nothing") };
            assert_eq!(error.rank(), Some(1), "{fault:?}: rank {rank}: {error}");
        }
        // The same ranks with a new communicator.
        assert_eq!(run(&gpu, &made, &inputs).expect("runs"), Vec::<String>::new());
    }
}

#[test]
fn a_captured_run_replays_and_a_communicator_of_threads_is_not_captured() {
    let Some(gpu) = Gpu::open(0, Need::Gpu) else { return };
    let attention = valid(Attention::bshd(1, (4, 2), (512, 512), 64, DType::BF16).causal().with_stats());
    let inputs = Inputs::random(&attention, 1).expect("random operands");
    let plans = gpu.plans();
    for ranks in [1, 2] {
        let made = schedule(&attention, &Sharding::new(ranks, Scheme::Gather { groups: 2 })).expect("is taken");
        let contexts = vec![Arc::clone(gpu.context()); ranks as usize];
        let world = InProcess::world(&contexts, DEADLINE).expect("events");
        std::thread::scope(|scope| {
            for mut rank in world {
                let (made, inputs, plans, gpu) = (&made, &inputs, &plans, &gpu);
                scope.spawn(move || {
                    let mut on_gpu = GpuRank::prepare(made, &mut rank, plans, gpu.context()).expect("prepares");
                    give(&mut on_gpu, rank.rank(), made, inputs).expect("operands");
                    let stream = gpu.context().new_stream().expect("a stream");
                    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                    stream.begin_capture(mode).expect("begins");
                    let captured = on_gpu.run(&mut rank, &stream);
                    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                    let graph = stream.end_capture(flags);
                    if made.sharding.ranks > 1 {
                        assert!(matches!(captured, Err(RunError::Capture)), "{captured:?}");
                        return;
                    }
                    captured.expect("is captured");
                    let graph = graph.expect("ends").expect("a graph");
                    for _ in 0..3 {
                        graph.launch().expect("launches");
                    }
                    on_gpu.wait(&mut rank, &stream, DEADLINE).expect("ends");
                    let outputs = on_gpu.operands().filter(|o| o.output).collect::<Vec<_>>();
                    let outputs = outputs.iter().map(|o| (o.role, on_gpu.read(o.role).expect("reads"))).collect();
                    assert_eq!(differences(made, inputs, &[outputs]), Vec::<String>::new());
                });
            }
        });
    }
}

/// One process and two GPUs, over copies between them.
#[test]
fn two_gpus_of_one_process_compute_one_attention() {
    let Some(gpus) = Gpu::open(0, Need::TwoGpus).zip(Gpu::open(1, Need::TwoGpus)) else { return };
    let (first, second) = (gpus.0.plans(), gpus.1.plans());
    for case in &cases(2) {
        let Some((made, inputs)) = prepared(case) else { continue };
        let contexts = [&gpus.0, &gpus.1].map(|gpu| Arc::clone(gpu.context()));
        let world = InProcess::world(&contexts, DEADLINE).expect("events");
        let members = world.into_iter().zip([&first, &second]).zip(contexts).map(|((rank, plans), context)| Member {
            communicator: Box::new(rank),
            plans,
            context,
        });
        let mut members: Vec<_> = members.collect();
        check(case, &made, &inputs, &mut members);
    }
}

/// Two GPUs of one process over NCCL, each rank a thread.
#[test]
fn nccl_carries_the_messages_of_two_gpus() {
    let Some(gpus) = Gpu::open(0, Need::TwoGpus).zip(Gpu::open(1, Need::TwoGpus)) else { return };
    let (first, second) = (gpus.0.plans(), gpus.1.plans());
    for (case, port) in cases(2).iter().step_by(3).zip(29_600..) {
        let Some((made, inputs)) = prepared(case) else { continue };
        let joined: Vec<Nccl> = std::thread::scope(|scope| {
            let threads: Vec<_> = [&gpus.0, &gpus.1]
                .into_iter()
                .zip(0..)
                .map(|(gpu, rank)| {
                    scope.spawn(move || {
                        gpu.context().bind_to_thread().expect("is current");
                        let world = World::local(rank, 2, port);
                        Nccl::join(Store::meet(&world, DEADLINE).expect("meets"), None).expect("joins")
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("ends")).collect()
        });
        let members = joined.into_iter().zip([(&first, &gpus.0), (&second, &gpus.1)]);
        let members = members.map(|(rank, (plans, gpu))| Member {
            communicator: Box::new(rank),
            plans,
            context: Arc::clone(gpu.context()),
        });
        let mut members: Vec<_> = members.collect();
        check(case, &made, &inputs, &mut members);
    }
}

/// Compiles the plans of every case into the test vault, for the profile `QKVAULT_TEST_FILL`. Needs no GPU.
#[test]
fn fill() {
    let (Ok(folder), Ok(profile)) = (std::env::var(VAULT), std::env::var(FILL)) else {
        return skip(Need::Asked, &format!("{VAULT} and {FILL} are not both set"));
    };
    let compiler = Compiler::open(&Search::default()).expect("a cuDNN to compile with");
    let target = compiler.target(&Profile::named(&profile).expect("a built-in profile"));
    let planner = Planner::new(Vault::open(VaultOptions::in_folder(&folder)).expect("a vault"), Some(compiler));
    let by_hand = cases(2).into_iter().chain(cases(4));
    for case in by_hand.chain((0..CASES).map(|seed| case(&CaseSpace::gpu(2), seed))) {
        let Ok(made) = schedule(&case.attention, &case.sharding) else { continue };
        for plan in &made.plans {
            let answer = planner.plan(plan, &target, &CompileOptions::default(), OnMiss::Compile).expect("an answer");
            if let Err(refusal) = answer.outcome {
                eprintln!("{plan}: {refusal}");
            }
        }
        for of in made.combinations().expect("valid") {
            planner
                .combination(&of, target.sm(), OnMiss::Compile)
                .expect("compiles")
                .outcome
                .expect("is never refused");
        }
    }
}
