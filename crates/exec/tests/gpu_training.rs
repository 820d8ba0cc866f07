//! Pairs of plans on a real GPU, compared with the oracle. `gpu.rs` describes what the tests need.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::collections::BTreeMap;
use std::time::Instant;

use common::say;
use cudarc::driver::CudaSlice;
use half::bf16;
use kit::{Gpu, deterministic, dropout, trainings};
use qkvault_compile::OnMiss;
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{
    Args, BindError, LaunchError, LoadError, PrepareError, SavedForBackward, Session, SessionOptions, TrainStepError,
    Training, TrainingError, TrainingPair, cudarc,
};
use qkvault_graph::{DType, Role};
use qkvault_reference::{Buffer, Inputs, OutputTolerance, backward, buffer_len, compare, operands};

/// One layer: operands on the GPU, and the inputs of the oracle.
struct Layer {
    training: Training,
    inputs: Inputs,
    read: BTreeMap<Role, CudaSlice<u8>>,
    written: BTreeMap<Role, CudaSlice<u8>>,
    o: CudaSlice<u8>,
}

impl Layer {
    fn new(gpu: &Gpu, training: &Training, seed: u64) -> Layer {
        let pass = training.backward();
        let mut inputs = Inputs::random(pass, seed).expect("random operands");
        inputs.add_forward(pass).expect("the oracle can do it");
        let poisoned = |role: Role, dtype: DType| {
            let length = buffer_len(pass, role).expect("every operand has a size");
            gpu.stream.clone_htod(Buffer::poisoned(dtype, length).bytes()).expect("memory")
        };
        let (mut read, mut written) = (BTreeMap::new(), BTreeMap::new());
        for operand in operands(pass).into_iter().filter(|o| !o.role.is_scalar()) {
            let role = operand.role;
            if operand.output {
                written.insert(role, poisoned(role, operand.tensor.dtype));
            } else if ![Role::O, Role::Stats].contains(&role) {
                let buffer = inputs.buffer(role).expect("every input is there");
                read.insert(role, gpu.stream.clone_htod(buffer.bytes()).expect("memory"));
            }
        }
        let o = poisoned(Role::O, pass.o.dtype);
        Layer { training: training.clone(), inputs, read, written, o }
    }

    /// Scalars by value.
    fn scalars<'a>(&self, pair: &TrainingPair) -> Args<'a> {
        let scalars = pair.forward_plan().facts().bindings.iter().filter(|b| b.scalar);
        scalars.fold(Args::new(), |all, b| {
            let buffer = self.inputs.buffer(b.role).expect("every scalar has a value");
            match b.dtype {
                DType::I32 => all.scalar(b.role, buffer.int(0) as i32),
                _ => all.scalar(b.role, buffer.get(0) as f32),
            }
        })
    }

    fn forward(&mut self, gpu: &Gpu, pair: &TrainingPair, saved: &mut SavedForBackward) -> Result<(), TrainStepError> {
        let scalars = self.scalars(pair);
        let bindings = given(scalars, &self.read, pair.forward_plan().constant_bytes() > 0, false);
        pair.forward(saved, bindings.tensor_mut(Role::O, &mut self.o), &gpu.stream)
    }

    fn backward(&mut self, gpu: &Gpu, pair: &TrainingPair, saved: &mut SavedForBackward) -> Result<(), TrainStepError> {
        let bindings = given(Args::new(), &self.read, pair.forward_plan().constant_bytes() > 0, true);
        let bindings = bindings.tensor(Role::O, &self.o);
        let bindings = self.written.iter_mut().fold(bindings, |all, (role, slice)| all.tensor_mut(*role, slice));
        pair.backward(saved, bindings, &gpu.stream)
    }

    fn gradients(&self, gpu: &Gpu) -> BTreeMap<Role, Vec<u8>> {
        self.written.iter().map(|(role, slice)| (*role, gpu.stream.clone_dtoh(slice).expect("read"))).collect()
    }

    /// Compares every gradient with the oracle, which computes the exact forward.
    fn check(&self, gpu: &Gpu) {
        let pass = self.training.backward();
        let expected = backward(pass, &self.inputs).expect("the oracle can do it");
        for (role, bytes) in self.gradients(gpu) {
            let output = expected.get(role).expect("the oracle has every gradient");
            let dtype = output.operand().tensor.dtype;
            let usual = OutputTolerance::for_role(role, dtype);
            // Kernels round probabilities and their gradients to 16 bits before they multiply them.
            let tolerance = OutputTolerance { relative: 4.0 * usual.relative, ..usual };
            let found = compare(output, &Buffer::new(dtype, bytes).expect("whole"), tolerance);
            say(&format!("{pass}: {role}: {found}"));
            assert!(found.good, "{pass}: {role}: {found}");
        }
    }
}

/// The inputs of a pass, without the slopes if the plan has them as constants.
fn given<'a>(start: Args<'a>, read: &'a BTreeMap<Role, CudaSlice<u8>>, resident: bool, backward: bool) -> Args<'a> {
    let wanted = |role: Role| (backward || role != Role::DO) && !(resident && matches!(role, Role::ScoreTensor(_)));
    read.iter().filter(|(role, _)| wanted(**role)).fold(start, |all, (role, slice)| match role.is_followed() {
        // SAFETY: lengths of the oracle's inputs are within the operands.
        true => unsafe { all.indices(*role, slice) },
        false => all.tensor(*role, slice),
    })
}

fn wrong<'a>(gpu: &'a Gpu, pair: &TrainingPair, args: Args<'a>, saved: &'a mut SavedForBackward) -> TrainStepError {
    pair.backward(saved, args, &gpu.stream).expect_err("something is wrong")
}

fn pair(gpu: &Gpu, training: &Training) -> TrainingPair {
    let prepared = gpu.engine.prepare_training(training, &CompileOptions::cudnn(), OnMiss::Load);
    prepared.unwrap_or_else(|error| panic!("{}: {error}", training.forward()))
}

#[test]
fn each_pair_gives_the_gradients_of_the_oracle_over_poison() {
    let Some(gpu) = Gpu::open() else { return };
    for training in trainings() {
        let pair = pair(&gpu, &training);
        let mut layers = [Layer::new(&gpu, &training, 1), Layer::new(&gpu, &training, 2)];
        let mut saved = [pair.saved(&gpu.stream).expect("memory"), pair.saved(&gpu.stream).expect("memory")];
        // As in a model: forward through both layers, backward through both in the other order.
        for (layer, saved) in layers.iter_mut().zip(&mut saved) {
            layer.forward(&gpu, &pair, saved).expect("it is queued");
        }
        for (layer, saved) in layers.iter_mut().zip(&mut saved).rev() {
            layer.backward(&gpu, &pair, saved).expect("it is queued");
        }
        layers.iter().for_each(|layer| layer.check(&gpu));
        say(&format!(
            "workspace {} forward, {} backward",
            pair.forward_plan().workspace(),
            pair.backward_plan().workspace()
        ));
    }
}

#[test]
fn a_backward_can_be_launched_again_and_a_deterministic_one_gives_the_same_bits() {
    let Some(gpu) = Gpu::open() else { return };
    let training = deterministic();
    let pair = pair(&gpu, &training);
    let (mut layer, mut saved) = (Layer::new(&gpu, &training, 3), pair.saved(&gpu.stream).expect("memory"));
    layer.forward(&gpu, &pair, &mut saved).expect("it is queued");
    let mut once = || {
        layer.backward(&gpu, &pair, &mut saved).expect("it is queued");
        layer.gradients(&gpu)
    };
    let first = once();
    (0..4).for_each(|_| assert!(once() == first, "two runs differ"));
    layer.check(&gpu);
}

#[test]
fn what_does_not_go_together_is_refused_before_a_launch() {
    let Some(gpu) = Gpu::open() else { return };
    let all = trainings();
    let (training, other) = (&all[0], &all[1]);
    let (first, second) = (pair(&gpu, training), pair(&gpu, other));
    let (mut layer, mut saved) = (Layer::new(&gpu, training, 4), first.saved(&gpu.stream).expect("memory"));
    let error = layer.backward(&gpu, &first, &mut saved).expect_err("no forward yet");
    assert!(matches!(error, TrainStepError::Training(TrainingError::NoForward)), "{error}");
    let error = layer.forward(&gpu, &second, &mut saved).expect_err("another pair's");
    assert!(matches!(error, TrainStepError::Training(TrainingError::OtherPair { .. })), "{error}");

    layer.forward(&gpu, &first, &mut saved).expect("it is queued");
    let error = wrong(&gpu, &first, Args::new().scalar(Role::Scale, 123.0_f32), &mut saved);
    assert!(matches!(error, TrainStepError::Training(TrainingError::OtherNumber { role: Role::Scale, .. })), "{error}");
    let stats = gpu.stream.alloc_zeros::<f32>(16).expect("memory");
    let error = wrong(&gpu, &first, Args::new().tensor(Role::Stats, &stats), &mut saved);
    assert!(matches!(error, TrainStepError::Training(TrainingError::SavedRole { role: Role::Stats })), "{error}");
    let TrainStepError::Launch(LaunchError::Arguments(errors)) = wrong(&gpu, &first, Args::new(), &mut saved) else {
        panic!("not told")
    };
    assert!(errors.iter().any(|e| matches!(e, BindError::Missing { role: Role::DO, .. })), "{errors}");
    // None of that changed the saved operands.
    layer.backward(&gpu, &first, &mut saved).expect("it is queued");
    layer.check(&gpu);
}

#[test]
fn operands_that_changed_are_found_when_that_is_asked_for() {
    let Some(gpu) = Gpu::open() else { return };
    let training = &trainings()[0];
    let plain = pair(&gpu, training).checked(false);
    let pair = plain.clone().checked(true);
    let (mut layer, mut saved) = (Layer::new(&gpu, training, 5), pair.saved(&gpu.stream).expect("memory"));
    layer.forward(&gpu, &pair, &mut saved).expect("it is queued");
    layer.backward(&gpu, &pair, &mut saved).expect("nothing changed");
    layer.check(&gpu);

    let flip = |slice: &mut CudaSlice<u8>| {
        let mut bytes = gpu.stream.clone_dtoh(slice).expect("read");
        bytes[6] ^= 1;
        gpu.stream.memcpy_htod(&bytes, slice).expect("written");
    };
    flip(layer.read.get_mut(&Role::K).expect("every attention has keys"));
    flip(&mut layer.o);
    let error = layer.backward(&gpu, &pair, &mut saved).expect_err("two operands changed");
    let TrainStepError::Training(TrainingError::Changed { mut roles }) = error else { panic!("{error}") };
    roles.sort_unstable();
    assert_eq!(roles, [Role::K, Role::O]);
    // Without the check the launch succeeds.
    layer.backward(&gpu, &plain, &mut saved).expect("nobody looks");

    let mut timed = |pair: &TrainingPair| {
        layer.forward(&gpu, pair, &mut saved).expect("it is queued");
        gpu.stream.synchronize().expect("it ends well");
        let started = Instant::now();
        layer.forward(&gpu, pair, &mut saved).expect("it is queued");
        started.elapsed()
    };
    let (off, on) = (timed(&plain), timed(&pair));
    say(&format!("host time of a forward, bound and launched: {off:?}; with the check: {on:?}"));
}

#[test]
fn a_deterministic_backward_over_the_limit_is_refused_with_the_reason() {
    let Some(gpu) = Gpu::open() else { return };
    let training = deterministic();
    let options = SessionOptions { workspace_limit: Some(1 << 16), handles: 1 };
    let session =
        Session::with_options(gpu.engine.session().device(), gpu.engine.session().library().expect("cuDNN"), options);
    let session = session.expect("a session");
    let planner = gpu.engine.planner();
    let error = session.prepare_training(planner, &training, &CompileOptions::cudnn(), OnMiss::Load);
    let error = error.expect_err("64 KiB are too little");
    assert!(
        matches!(error, PrepareError::Load(LoadError::WorkspaceTooLarge { quadratic: true, limit: 65_536, .. })),
        "{error}"
    );
    assert!(error.to_string().contains("deterministic"), "{error}");
    say(&error.to_string());
}

/// O is linear in V, so the sum of O·dO equals that of V·dV if both passes have the same mask. With dO = O, another
/// mask would give a sum that is smaller by a third.
#[test]
fn the_backward_has_the_dropout_mask_of_its_forward() {
    let Some(gpu) = Gpu::open() else { return };
    let pair = pair(&gpu, &dropout());
    let noise = Inputs::random(dropout().forward(), 6).expect("random operands");
    let bytes = |role| noise.buffer(role).expect("every input is there").bytes();
    let [q, k, v] = [Role::Q, Role::K, Role::V].map(|role| gpu.stream.clone_htod(bytes(role)).expect("memory"));
    let zeros = || gpu.stream.alloc_zeros::<u8>(q.len()).expect("memory");
    let [mut o, mut d_q, mut d_k, mut d_v] = [zeros(), zeros(), zeros(), zeros()];
    let read = |slice: &CudaSlice<u8>| -> Vec<f64> {
        let bytes = gpu.stream.clone_dtoh(slice).expect("read");
        bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
    };
    let inputs = || Args::new().tensor(Role::Q, &q).tensor(Role::K, &k).tensor(Role::V, &v);
    let scale = dropout().forward().default_scale();
    let mut outputs = Vec::new();
    for seed in [1_i64, 1, -7_000_000_000] {
        let mut saved = pair.saved(&gpu.stream).expect("memory");
        let numbers =
            inputs().scalar(Role::Scale, scale).scalar(Role::DropoutSeed, seed).scalar(Role::DropoutOffset, 5_i64);
        pair.forward(&mut saved, numbers.tensor_mut(Role::O, &mut o), &gpu.stream).expect("it is queued");
        let error = pair.backward(&mut saved, inputs().scalar(Role::DropoutSeed, seed + 1), &gpu.stream);
        assert!(
            matches!(error, Err(TrainStepError::Training(TrainingError::OtherNumber { role: Role::DropoutSeed, .. }))),
            "{error:?}"
        );
        let gradients = inputs().tensor(Role::O, &o).tensor(Role::DO, &o).tensor_mut(Role::DQ, &mut d_q);
        let gradients = gradients.tensor_mut(Role::DK, &mut d_k).tensor_mut(Role::DV, &mut d_v);
        pair.backward(&mut saved, gradients, &gpu.stream).expect("it is queued");
        let (out, grad, values) = (read(&o), read(&d_v), read(&v));
        let forward: f64 = out.iter().map(|x| x * x).sum();
        let backward: f64 = values.iter().zip(&grad).map(|(x, y)| x * y).sum();
        say(&format!("seed {seed}: O·O {forward:.3}, V·dV {backward:.3}"));
        assert!((forward - backward).abs() < 0.03 * forward, "seed {seed}: {forward} and {backward}");
        outputs.push(out);
    }
    assert!(outputs[0] == outputs[1] && outputs[0] != outputs[2], "the mask does not follow from the seed");
}
