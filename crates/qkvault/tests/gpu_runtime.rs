//! The runtime on a real GPU: plans are loaded once, given again in nanoseconds, bounded, and preloaded.
//!
//! The tests need what those of `qkvault-exec` need: a driver, a cuDNN, and plans for the GPU in `QKVAULT_TEST_VAULT`.
#![cfg(feature = "launch")]

use std::sync::Arc;
use std::time::Instant;

use qkvault::ErrorKind;
use qkvault::cache::{Mode, VaultOptions};
use qkvault::exec::cudarc::driver::CudaStream;
use qkvault::exec::{Device, DeviceError};
use qkvault::models::Manifest;
use qkvault::prelude::*;
use qkvault_reference::{Buffer, Inputs, OutputTolerance, compare, forward};
use qkvault_skip::{Need, skip};

fn options() -> Option<RuntimeOptions> {
    options_of(0, Need::Gpu)
}

fn options_of(gpu: usize, need: Need) -> Option<RuntimeOptions> {
    match Device::open(gpu) {
        Ok(_) => {}
        Err(
            error @ (DeviceError::NoDriver(_)
            | DeviceError::NoGpu { .. }
            | DeviceError::BadOrdinal { given: 1, count: 1 }),
        ) => {
            skip(need, &error.to_string());
            return None;
        }
        Err(error) => panic!("{error}"),
    }
    let Some(folder) = std::env::var_os("QKVAULT_TEST_VAULT") else {
        skip(need, "QKVAULT_TEST_VAULT is not set");
        return None;
    };
    Some(Runtime::options().gpu(gpu).vault(VaultOptions::in_folder(folder).mode(Mode::ReadOnly)))
}

/// The prefill and the decode of the test vault.
fn attentions() -> [Valid; 2] {
    let prefill = Attention::bshd(2, (8, 2), (256, 256), 64, DType::BF16).with_band(Band::CAUSAL).with_stats();
    [prefill, Attention::bshd(4, (8, 2), (1, 512), 128, DType::BF16)].map(|a| validate(a).expect("valid"))
}

#[test]
fn a_plan_is_loaded_once_and_given_again_in_nanoseconds() {
    let Some(options) = options() else { return };
    let runtime = options.open().expect("a GPU and a vault");
    let [prefill, decode] = attentions();
    let plans: Vec<Arc<LoadedPlan>> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            (0..8).map(|_| scope.spawn(|| runtime.plan(&prefill).expect("it is in the vault"))).collect();
        asked.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(plans.iter().all(|plan| Arc::ptr_eq(plan, &plans[0])));
    assert_eq!((runtime.session().expect("a GPU").stats().loads, runtime.loaded_plans()), (1, 1));
    let started = Instant::now();
    (0..10_000).for_each(|_| drop(runtime.plan(&prefill)));
    let again = started.elapsed() / 10_000;
    println!("asked again: {again:?}");
    assert!(again.as_nanos() < 5_000, "{again:?}");

    assert!(runtime.preload([decode.clone(), prefill.clone()]).wait().is_empty());
    assert_eq!(runtime.session().expect("a GPU").stats().loads, 2);
    let never = validate(Attention::bshd(3, (6, 3), (129, 130), 64, DType::BF16)).expect("valid");
    let error = runtime.plan(&never).expect_err("it is not in the vault");
    assert!(error.is_missing(), "{error}");
    let failed = runtime.preload([never.clone(), decode]).wait();
    assert!(matches!(&failed[..], [(attention, error)] if *attention == never && error.is_missing()), "{failed:?}");
    runtime.unload_unused();
    assert_eq!(runtime.loaded_plans(), 0);
}

/// A plan that is missing is what the next deploy must compile.
#[test]
fn a_run_records_what_it_asked_for_and_what_it_missed() {
    let Some(options) = options() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("asked.toml");
    let runtime = options.record(&file).open().expect("a GPU and a vault");
    let [prefill, decode] = attentions();
    let never = validate(Attention::bshd(3, (6, 3), (129, 130), 64, DType::BF16)).expect("valid");
    assert!(runtime.plan(&prefill).is_ok() && runtime.plan(&prefill).is_ok());
    assert!(runtime.plan(&never).is_err_and(|error| error.is_missing()));
    assert!(runtime.preload([decode.clone()]).wait().is_empty());
    runtime.recorder().expect("it records").flush();
    let manifest = Manifest::parse(&std::fs::read_to_string(&file).expect("a file")).expect("a manifest");
    let listed = manifest.attentions().expect("attentions").into_iter();
    assert_eq!(listed.map(|one| validate(one.attention).expect("valid")).collect::<Vec<_>>(), [prefill, never, decode]);
}

#[test]
fn fewer_plans_stay_loaded_than_were_asked_for_and_each_is_right() {
    let Some(options) = options() else { return };
    let runtime = options.keep(1, 1 << 30).open().expect("a GPU and a vault");
    let stream = runtime.device().expect("a GPU").context().new_stream().expect("a stream");
    for (round, attention) in attentions().iter().cycle().take(6).enumerate() {
        launch_and_check(&runtime, &stream, attention, round as u64);
        assert!(runtime.loaded_plans() <= 1, "{runtime:?}");
    }
}

/// With room for one plan, threads that take turns between two have it loaded and unloaded all the time.
#[test]
fn plans_are_loaded_and_evicted_beside_launches_and_each_result_is_right() {
    let Some(options) = options() else { return };
    let runtime = options.keep(1, 1 << 30).handles(6).open().expect("a GPU and a vault");
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let runtime = &runtime;
            scope.spawn(move || {
                let stream = runtime.device().expect("a GPU").context().new_stream().expect("a stream");
                for (round, attention) in attentions().iter().cycle().skip(thread).take(20).enumerate() {
                    launch_and_check(runtime, &stream, attention, (100 * thread + round) as u64);
                }
            });
        }
    });
    let loads = runtime.session().expect("a GPU").stats().loads;
    assert!(loads > 20 && runtime.loaded_plans() <= 1, "{loads} loads, {runtime:?}");
}

/// One vault in the process, a runtime for each of two GPUs, and threads on both.
#[test]
fn two_runtimes_on_two_gpus_share_a_vault() {
    let (Some(first), Some(second)) = (options_of(0, Need::TwoGpus), options_of(1, Need::TwoGpus)) else { return };
    let runtimes = [first, second].map(|options| options.handles(4).open().expect("a GPU and a vault"));
    std::thread::scope(|scope| {
        for (at, runtime) in runtimes.iter().enumerate() {
            for thread in 0..4 {
                scope.spawn(move || {
                    let stream = runtime.device().expect("a GPU").context().new_stream().expect("a stream");
                    for (round, attention) in attentions().iter().cycle().take(10).enumerate() {
                        launch_and_check(runtime, &stream, attention, (100 * at + 10 * thread + round) as u64);
                    }
                });
            }
        }
    });
    for (at, runtime) in runtimes.iter().enumerate() {
        assert_eq!(
            (runtime.device().expect("a GPU").ordinal(), runtime.session().expect("a GPU").stats().loads),
            (at, 2),
            "{runtime:?}"
        );
    }
    // A plan of one GPU does not run on a stream of the other.
    let [plan, _] = attentions().map(|attention| runtimes[0].plan(&attention).expect("it is loaded"));
    let stream = runtimes[1].device().expect("a GPU").context().new_stream().expect("a stream");
    let refused = plan.launch(&stream, Args::new()).expect_err("another GPU's stream");
    assert_eq!(Error::from(refused).kind(), ErrorKind::Arguments);
}

fn launch_and_check(runtime: &Runtime, stream: &Arc<CudaStream>, attention: &Valid, seed: u64) {
    let plan = runtime.plan(attention).expect("it is in the vault");
    let mut inputs = Inputs::random(attention, seed).expect("random operands");
    inputs.set_f32(Role::Scale, attention.default_scale());
    let bytes = |role| stream.clone_htod(inputs.buffer(role).expect("there").bytes()).expect("memory");
    let [q, k, v] = [Role::Q, Role::K, Role::V].map(bytes);
    let mut o = stream.clone_htod(&vec![0xff_u8; q.len()]).expect("memory");
    let mut lse = stream.alloc_zeros::<f32>(2 * 8 * 256).expect("memory");
    let args = Args::new().q(&q).k(&k).v(&v).o(&mut o);
    plan.launch(stream, if attention.outputs.stats { args.lse(&mut lse) } else { args }).expect("it is queued");
    let found = Buffer::new(DType::BF16, stream.clone_dtoh(&o).expect("read")).expect("whole");
    let expected = forward(attention, &inputs).expect("the oracle can do it");
    let output = expected.get(Role::O).expect("it has O");
    let found = compare(output, &found, OutputTolerance::for_role(Role::O, DType::BF16));
    assert!(found.good, "{attention}: {found}");
}

/// Times a first launch, to its end, in microseconds.
fn first_launch(runtime: &Runtime, attention: &Valid) -> u128 {
    let plan = runtime.plan(attention).expect("it is in the vault");
    let stream = runtime.device().expect("a GPU").context().new_stream().expect("a stream");
    let [q, k, v] = [(2 * 8 * 256 * 64), (2 * 2 * 256 * 64), (2 * 2 * 256 * 64)]
        .map(|count| stream.clone_htod(&vec![half::bf16::from_f32(0.5); count]).expect("uploaded"));
    let mut o = stream.clone_htod(&vec![half::bf16::NAN; 2 * 8 * 256 * 64]).expect("uploaded");
    let mut lse = stream.clone_htod(&vec![f32::NAN; 2 * 8 * 256]).expect("uploaded");
    stream.synchronize().expect("idle");
    let started = Instant::now();
    plan.launch(&stream, Args::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut lse)).expect("launched");
    stream.synchronize().expect("finished");
    let took = started.elapsed().as_micros();
    let found = stream.clone_dtoh(&o).expect("read");
    assert!(found.iter().all(|x| (x.to_f32() - 0.5).abs() < 1e-2), "the mean of equal values is that value");
    took
}

/// The driver loads kernels when they are first needed. A preloaded plan has them already.
#[test]
fn the_first_launch_of_a_preloaded_plan_does_not_wait_for_its_kernels() {
    let Some(options) = options() else { return };
    let prefill = attentions()[0].clone();
    let cold = first_launch(&options.clone().open().expect("a runtime"), &prefill);
    let runtime = options.open().expect("a runtime");
    let plan = runtime.plan(&prefill).expect("it is in the vault");
    plan.load_kernels().expect("the driver and cuDNN can");
    drop(plan);
    assert!(runtime.preload([prefill.clone()]).wait().is_empty());
    let warm = first_launch(&runtime, &prefill);
    println!("first launch: {cold} us, of a preloaded plan {warm} us");
    assert!(warm < cold, "a preloaded plan took {warm} us for its first launch, another one {cold} us");
}
