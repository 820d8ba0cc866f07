//! Two GPUs in one process with one vault: threads on both at the same time, each result right, and memory of the wrong
//! GPU refused by name.
//!
//! What the tests need, and how the plans are made, is in `gpu.rs`; beside that, a second GPU of the same kind.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::ffi::c_void;

use common::say;
use cudarc::driver::result;
use kit::{Case, Gpu, attentions, decode, prefill, repeats_bits, trainings};
use qkvault_compile::{OnMiss, Plan};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::raw::{DeviceBuffer, PlanId, PlanTable, RawArgs, RawBindFailure};
use qkvault_exec::{
    BindError, LaunchError, Number, PrepareError, SessionOptions, TrainStepError, Workspace, cudarc, prepare,
};
use qkvault_graph::{Role, Valid};

/// Threads for each GPU.
const THREADS: usize = 4;

#[test]
fn threads_on_two_gpus_load_from_one_vault_and_each_result_is_right() {
    let Some(gpus) = Gpu::open_two() else { return };
    std::thread::scope(|scope| {
        for gpu in &gpus {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let stream = gpu.stream.context().new_stream().expect("a stream");
                    for (at, attention) in attentions().iter().enumerate() {
                        let (plan, seed) = (gpu.load(attention), (10 * thread + at) as u64);
                        let mut case = Case::on(&stream, attention, seed);
                        plan.launch(&stream, case.bindings(&plan)).expect("it is queued");
                        case.check_on(&stream);
                        let first = case.download(&stream);
                        for round in 0..20 {
                            case.poison_on(&stream);
                            plan.launch(&stream, case.bindings(&plan)).expect("it is queued");
                            if repeats_bits(attention) {
                                assert!(case.download(&stream) == first, "{attention}: round {round} differs");
                            } else if round % 5 == 0 {
                                case.check_on(&stream);
                            }
                        }
                    }
                });
            }
        }
    });
    let stats = gpus[0].engine.planner().vault().stats();
    assert_eq!((stats.builds, stats.rejected()), (0, 0), "{stats:?}");
    for gpu in &gpus {
        let (device, stats) = (gpu.engine.session().device(), gpu.engine.session().stats());
        say(&format!("{device:?}: {stats:?}"));
        assert_eq!(stats.loads, (THREADS * attentions().len()) as u64);
    }
}

#[test]
fn one_thread_takes_turns_between_two_gpus() {
    let Some(gpus) = Gpu::open_two() else { return };
    let attention = prefill();
    let mut all: Vec<_> = gpus.iter().map(|gpu| (gpu, gpu.load(&attention), Case::new(gpu, &attention, 5))).collect();
    for _ in 0..20 {
        for (gpu, plan, case) in &mut all {
            case.poison(gpu);
            plan.launch(&gpu.stream, case.bindings(plan)).expect("it is queued");
        }
    }
    let outputs: Vec<_> = all.iter().map(|(gpu, _, case)| case.download(&gpu.stream)).collect();
    assert!(outputs[0] == outputs[1], "the two GPUs compute different bits");
    all.iter_mut().for_each(|(gpu, _, case)| case.check(gpu));
}

#[test]
fn streams_and_memory_of_the_other_gpu_are_refused_by_name() {
    let Some([here, there]) = Gpu::open_two() else { return };
    let attention = decode();
    let plan = here.load(&attention);
    let (mut near, mut far) = (Case::new(&here, &attention, 1), Case::new(&there, &attention, 1));
    let refused = plan.launch(&there.stream, near.bindings(&plan));
    assert!(matches!(refused, Err(LaunchError::OtherContext { stream: 1, plan: 0 })), "{refused:?}");

    let refused = plan.launch(&here.stream, near.but(&plan, Role::K).tensor(Role::K, far.slice(Role::K)));
    let Err(LaunchError::Arguments(errors)) = refused else { panic!("{refused:?}") };
    let told = |errors: &[BindError]| errors.iter().any(|error| error.to_string().contains("GPU 1"));
    assert!(told(&errors), "{errors}");
    say(&errors.to_string());
    let workspace = Workspace::allocate(&there.stream, plan.workspace().max(1 << 20)).expect("memory");
    let refused = plan.launch(&here.stream, near.bindings(&plan).workspace(&workspace));
    let Err(LaunchError::Arguments(errors)) = refused else { panic!("{refused:?}") };
    assert!(told(&errors), "{errors}");
    say(&errors.to_string());

    // The raw layer asks the driver whose memory an address is.
    let bindings = far.raw_bindings(&there.stream, plan.facts());
    let scratch = Workspace::allocate(&here.stream, plan.workspace().max(1)).expect("memory");
    let memory = DeviceBuffer { address: scratch.address(), bytes: scratch.bytes() };
    let Err(RawBindFailure::Wrong(errors)) = plan.raw().bind(&bindings, memory) else { panic!("not refused") };
    let other = |e: &BindError| matches!(e, BindError::OtherDevice { found: 1, needed: 0, .. });
    assert!(errors.iter().filter(|error| other(error)).count() >= 4, "{errors}");

    // Nothing of that harmed either GPU.
    plan.launch(&here.stream, near.bindings(&plan)).expect("it is queued");
    near.check(&here);
    let plan = there.load(&attention);
    plan.launch(&there.stream, far.bindings(&plan)).expect("it is queued");
    far.check(&there);
}

#[test]
fn what_a_forward_saved_on_the_other_gpu_is_refused() {
    let Some(gpus) = Gpu::open_two() else { return };
    let training = &trainings()[0];
    let pairs = gpus.each_ref().map(|gpu| {
        let prepared = gpu.engine.prepare_training(training, &CompileOptions::default(), OnMiss::Load);
        prepared.expect("it is in the vault")
    });
    let mut saved = pairs[1].saved(&gpus[1].stream).expect("memory");
    let mut case = Case::new(&gpus[0], training.forward(), 2);
    let args = case.but(pairs[0].forward_plan(), Role::Stats);
    let refused = pairs[0].forward(&mut saved, args, &gpus[0].stream);
    let Err(TrainStepError::Launch(LaunchError::Arguments(errors))) = refused else { panic!("{refused:?}") };
    assert!(errors.iter().any(|error| error.to_string().contains("GPU 1")), "{errors}");
    say(&errors.to_string());
}

/// Sessions on primary contexts enter and leave them, so a thread with any context, or with none, may launch.
#[test]
fn plans_by_number_run_on_both_gpus_from_any_thread() {
    let Some(gpus) = Gpu::open_two() else { return };
    let (attention, table) = (decode(), PlanTable::with_room(8));
    let ids: Vec<PlanId> = (0..2).map(|ordinal| numbered(&gpus, &table, ordinal, &attention)).collect();
    assert_eq!(table.plans(), 2, "a plan for each GPU");
    for current in [None, Some(&gpus[0]), Some(&gpus[1])] {
        for (gpu, id) in gpus.iter().zip(&ids) {
            let mut case = Case::new(gpu, &attention, 7);
            let plan = table.plan(*id).expect("loaded");
            let bindings = case.raw_bindings(&gpu.stream, plan.facts());
            let place = |role| bindings.place(role).expect("bound");
            let buffer = |role| DeviceBuffer { address: place(role).0, bytes: place(role).1 };
            let tensors: Vec<_> = plan.tensors().iter().map(|tensor| buffer(tensor.role)).collect();
            let scalars = [Number::F32(attention.default_scale())];
            let scratch = Workspace::allocate(&gpu.stream, plan.workspace().max(1)).expect("memory");
            let workspace = DeviceBuffer { address: scratch.address(), bytes: scratch.bytes() };
            gpu.stream.synchronize().expect("uploads are done");
            let stream = gpu.stream.cu_stream() as usize;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if let Some(current) = current {
                        current.stream.context().bind_to_thread().expect("made current");
                    }
                    let before = result::ctx::get_current().expect("the driver says");
                    let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace, interleaved: &[] };
                    // SAFETY: all memory outlives the launch, which is waited for below.
                    unsafe { table.launch(*id, &args, stream as *mut c_void) }.expect("it is queued");
                    assert_eq!(result::ctx::get_current().expect("the driver says"), before, "another context stays");
                });
            });
            gpu.stream.synchronize().expect("it ends well");
            case.inputs.set_f32(Role::Scale, attention.default_scale());
            case.check(gpu);
        }
    }
}

fn numbered(gpus: &[Gpu; 2], table: &PlanTable, ordinal: usize, attention: &Valid) -> PlanId {
    let gpu = &gpus[ordinal];
    let number = i32::try_from(ordinal).expect("small");
    table
        .session(number, gpu.engine.session().library().expect("cuDNN"), SessionOptions::default())
        .expect("a session");
    let load = |session: &qkvault_exec::raw::RawSession| -> Result<_, PrepareError> {
        let (planner, load) = (gpu.engine.planner(), |plan: &Plan| session.load(plan));
        let options = CompileOptions::default();
        Ok(prepare(planner, session.target()?, attention, &options, OnMiss::Load, load)?.plan)
    };
    // SAFETY: the stream is alive.
    unsafe { table.load(number, attention.fingerprint().bytes(), gpu.stream.cu_stream().cast(), load) }
        .expect("it is in the vault")
}
