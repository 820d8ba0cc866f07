//! Shared by the GPU tests: the attentions, a GPU with an engine over the test vault, and operands on it.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod fa4;
pub(crate) mod kernels;

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use qkvault_cache::{Mode, Vault, VaultOptions};
use qkvault_compile::{Compiler, Nvrtc, OnMiss, PlanFacts, Planner};
use qkvault_cudnn::{CompileOptions, Profile};
use qkvault_exec::testing::present_target;
use qkvault_exec::{
    Args, Device, DeviceError, LoadedPlan, Number, PrepareError, Prepared, Session, Training, TrainingPair, cudarc, raw,
};
use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, Role, Tensor, Valid, validate};
use qkvault_reference::{Buffer, Inputs, OutputTolerance, RandomChoice, backward, compare, forward};
use qkvault_serving::{Bucket, ServeLayer, StepKind};
use qkvault_skip::{Need, skip};
use qkvault_sys::{Library, Search};

use crate::common::say;

const VAULT: &str = "QKVAULT_TEST_VAULT";
const FILL: &str = "QKVAULT_TEST_FILL";

fn valid(attention: Attention) -> Valid {
    validate(attention).expect("the attentions of the tests are valid")
}

/// A causal prefill with statistics: two outputs, a workspace on most GPUs.
pub(crate) fn prefill() -> Valid {
    valid(Attention::bshd(2, (8, 2), (256, 256), 64, DType::BF16).with_band(Band::CAUSAL).with_stats())
}

/// One query per sequence.
pub(crate) fn decode() -> Valid {
    valid(Attention::bshd(4, (8, 2), (1, 512), 128, DType::BF16))
}

/// Whether every launch of the attention gives the same bits. A decode is split over keys, and its parts are summed in
/// any order (`docs/results/sanitize.md`).
pub(crate) fn repeats_bits(attention: &Valid) -> bool {
    *attention != decode()
}

/// All attentions of the tests.
pub(crate) fn attentions() -> Vec<Valid> {
    let f16 = Attention::bshd(1, (4, 4), (384, 384), 128, DType::F16);
    let rectangle = Attention::bshd(1, (4, 2), (128, 640), 128, DType::BF16);
    vec![
        prefill(),
        decode(),
        valid(f16.clone().with_stats()),
        valid(f16.with_band(Band::CAUSAL)),
        valid(rectangle.with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats()),
        valid(Attention::bshd(3, (4, 1), (256, 256), 64, DType::BF16).with_lengths().with_band(Band::CAUSAL)),
    ]
}

/// The attentions of the training tests: plain, grouped heads, a softcap, ALiBi, lengths.
pub(crate) fn trainings() -> Vec<Training> {
    let plain = Attention::bshd(2, (4, 4), (256, 256), 64, DType::BF16).with_band(Band::CAUSAL);
    let grouped = Attention::bshd(1, (8, 2), (256, 256), 128, DType::F16).with_band(Band::CAUSAL);
    let softcap = library::softcap(score(), scalar("cap")).build_score_mod().expect("a score");
    let alibi = library::alibi(score(), 4).build_score_mod().expect("a score");
    let lengths = Attention::bshd(2, (4, 4), (256, 256), 64, DType::BF16).with_lengths();
    let list = [plain.clone(), grouped, plain.clone().with_score_mod(softcap), plain.with_score_mod(alibi), lengths];
    list.iter().map(|a| Training::for_attention(a, BackwardOptions::default()).expect("it can be trained")).collect()
}

/// A pair with a deterministic backward, which needs a large workspace.
pub(crate) fn deterministic() -> Training {
    let options = BackwardOptions { deterministic: true, ..BackwardOptions::default() };
    let attention = Attention::bshd(1, (4, 4), (512, 512), 64, DType::BF16).with_band(Band::CAUSAL);
    Training::for_attention(&attention, options).expect("it can be trained")
}

/// A pair with dropout, whose mask is generated on the GPU.
pub(crate) fn dropout() -> Training {
    let attention = Attention::bshd(1, (4, 4), (256, 256), 64, DType::BF16).with_dropout(0.3);
    Training::for_attention(&attention, BackwardOptions::default()).expect("it can be trained")
}

/// The attentions of the serving tests: a decode, a mixed step over the same pool of 60 pages of 16 rows, varlen
/// operands without pages, and a decode of many sequences with long tables.
pub(crate) fn servings() -> [Valid; 4] {
    let mut layer = ServeLayer::new((8, 2), (64, 64), DType::BF16, 60, 16);
    layer.stats = true;
    let of = |kind, queries| Bucket { kind, batch: 5, queries, keys: 256, tokens: 90 };
    let paged =
        [of(StepKind::Decode, 1), of(StepKind::Mixed, 70)].map(|bucket| layer.attention(&bucket).expect("sound"));
    let varlen = |heads| Tensor::thd(5, heads, 200, 64, 500, DType::BF16);
    let all = Attention::forward(varlen(8), varlen(2), varlen(2), varlen(8)).with_lengths();
    let [decode, mixed] = paged;
    let wide = Bucket { kind: StepKind::Decode, batch: 256, queries: 1, keys: 4096, tokens: 256 };
    let wide = layer.attention(&wide).expect("sound");
    [decode, mixed, valid(all.with_band(Band::CAUSAL).with_stats()), wide]
}

/// Compiles the plans of [`attentions`], [`servings`], [`trainings`], [`deterministic`] and [`dropout`] into the test
/// vault, for the profile `QKVAULT_TEST_FILL`. Needs no GPU.
pub(crate) fn fill() {
    let (Ok(folder), Ok(profile)) = (std::env::var(VAULT), std::env::var(FILL)) else {
        return skip(Need::Asked, &format!("{VAULT} and {FILL} are not both set"));
    };
    let compiler = Compiler::open(&Search::default()).expect("a cuDNN to compile with");
    let target = match profile.as_str() {
        "here" => present_target(compiler.library(), 0).expect("a GPU"),
        name => compiler.target(&Profile::named(name).expect("a built-in profile")),
    };
    let planner = Planner::new(Vault::open(VaultOptions::in_folder(&folder)).expect("a vault"), Some(compiler));
    let pairs = trainings().into_iter().chain([deterministic(), dropout()]);
    let passes = pairs.flat_map(|pair| [pair.forward().clone(), pair.backward().clone()]);
    for attention in attentions().into_iter().chain(servings()).chain(passes) {
        let answer = planner.plan(&attention, &target, &CompileOptions::cudnn(), OnMiss::Compile);
        let answer = answer.expect("it can be compiled");
        assert!(answer.unstored.is_none(), "{:?}", answer.unstored);
        let plan = answer.outcome.expect("cuDNN takes it");
        let roles: Vec<String> = plan.facts.bindings.iter().map(|b| b.role.to_string()).collect();
        let (bytes, workspace) = (plan.facts.blob_bytes, plan.facts.scratch().bytes);
        say(&format!("{attention}: {bytes} bytes, workspace {workspace}, binds {}", roles.join(" ")));
    }
}

/// A session and a planner.
pub(crate) struct Engine {
    session: Session,
    planner: Planner,
}

impl Engine {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn planner(&self) -> &Planner {
        &self.planner
    }

    pub(crate) fn prepare(
        &self,
        attention: &Valid,
        options: &CompileOptions,
        on_miss: OnMiss,
    ) -> Result<Prepared<LoadedPlan>, PrepareError> {
        self.session.prepare(&self.planner, attention, options, on_miss)
    }

    pub(crate) fn prepare_training(
        &self,
        training: &Training,
        options: &CompileOptions,
        on_miss: OnMiss,
    ) -> Result<TrainingPair, PrepareError> {
        self.session.prepare_training(&self.planner, training, options, on_miss)
    }
}

/// A GPU with the plans of the test vault.
pub(crate) struct Gpu {
    pub(crate) engine: Engine,
    pub(crate) stream: Arc<CudaStream>,
}

impl Gpu {
    /// `None` if the tests cannot run here; the reason is reported as a skip.
    pub(crate) fn open() -> Option<Gpu> {
        let (device, found) = (device(0, Need::Gpu)?, found(Need::Gpu)?);
        Some(Gpu::with(&device, &found))
    }

    /// The same for tests that compile kernels: NVRTC is there too.
    pub(crate) fn with_nvrtc() -> Option<Gpu> {
        let gpu = Gpu::open()?;
        match Nvrtc::open(None) {
            Ok(_) => Some(gpu),
            Err(error) => {
                skip(Need::Gpu, &error.to_string());
                None
            }
        }
    }

    /// The first two GPUs with one vault. `None` where there are fewer, which is reported as a skip.
    pub(crate) fn open_two() -> Option<[Gpu; 2]> {
        let devices = [device(0, Need::TwoGpus)?, device(1, Need::TwoGpus)?];
        let found = found(Need::TwoGpus)?;
        Some(devices.map(|device| Gpu::with(&device, &found)))
    }

    fn with(device: &Device, (library, planner): &(Arc<Library>, Planner)) -> Gpu {
        let session = Session::open(device, library).expect("a session");
        // With a second stream cudarc tracks events.
        let stream = device.context().new_stream().expect("a stream");
        Gpu { engine: Engine { session, planner: planner.clone() }, stream }
    }

    /// The plan of an attention, which must be in the vault.
    pub(crate) fn load(&self, attention: &Valid) -> LoadedPlan {
        let prepared = self.engine.prepare(attention, &CompileOptions::cudnn(), OnMiss::Load);
        prepared.unwrap_or_else(|error| panic!("{attention}: {error}")).plan
    }
}

fn device(ordinal: usize, need: Need) -> Option<Device> {
    match Device::open(ordinal) {
        Ok(device) => Some(device),
        Err(
            error @ (DeviceError::NoDriver(_)
            | DeviceError::NoGpu { .. }
            | DeviceError::BadOrdinal { given: 1, count: 1 }),
        ) => {
            skip(need, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The cuDNN of this machine and a planner over the test vault.
fn found(need: Need) -> Option<(Arc<Library>, Planner)> {
    let Some(folder) = std::env::var_os(VAULT) else {
        skip(need, &format!("{VAULT} is not set"));
        return None;
    };
    match Library::open(&Search::default()) {
        Ok(library) => {
            let vault = Vault::open(VaultOptions::in_folder(folder).mode(Mode::ReadOnly)).expect("the test vault");
            Some((library, Planner::new(vault, None)))
        }
        Err(error) => {
            skip(need, &error.to_string());
            None
        }
    }
}

/// An attention with random operands on the GPU and poisoned outputs.
pub(crate) struct Case {
    attention: Valid,
    pub(crate) inputs: Inputs,
    read: BTreeMap<Role, CudaSlice<u8>>,
    written: BTreeMap<Role, CudaSlice<u8>>,
    shared: BTreeMap<Role, Role>,
}

impl Case {
    pub(crate) fn new(gpu: &Gpu, attention: &Valid, seed: u64) -> Case {
        Case::on(&gpu.stream, attention, seed)
    }

    pub(crate) fn on(stream: &Arc<CudaStream>, attention: &Valid, seed: u64) -> Case {
        Case::chosen(stream, attention, seed, &RandomChoice::default())
    }

    /// The same with choices of what is random.
    pub(crate) fn chosen(stream: &Arc<CudaStream>, attention: &Valid, seed: u64, choice: &RandomChoice) -> Case {
        Case::with(stream, attention, Inputs::random_with(attention, seed, choice).expect("random operands"))
    }

    /// The same with given inputs, without those that a backward gets from its forward.
    pub(crate) fn with(stream: &Arc<CudaStream>, attention: &Valid, mut inputs: Inputs) -> Case {
        if attention.is_backward() {
            inputs.add_forward(attention).expect("the oracle can do it");
        }
        let (mut read, mut written) = (BTreeMap::new(), BTreeMap::new());
        for operand in qkvault_graph::operands(attention) {
            let role = operand.role;
            if operand.output {
                let len = qkvault_graph::buffer_len(attention, role).expect("every operand has a size");
                let poison = Buffer::poisoned(operand.tensor.dtype, len);
                written.insert(role, stream.clone_htod(poison.bytes()).expect("memory"));
            } else if !role.is_scalar() {
                let buffer = inputs.buffer(role).expect("every input is there");
                read.insert(role, stream.clone_htod(buffer.bytes()).expect("memory"));
            }
        }
        Case { attention: attention.clone(), inputs, read, written, shared: BTreeMap::new() }
    }

    /// Lets an input lie at the beginning of another one.
    pub(crate) fn share(&mut self, role: Role, of: Role) {
        let from = self.inputs.buffer(of).expect("an input").bytes().to_vec();
        let to = self.inputs.get_mut(role).expect("an input").bytes_mut();
        to.copy_from_slice(&from[..to.len()]);
        self.shared.insert(role, of);
    }

    fn scalar(inputs: &Inputs, role: Role, dtype: DType) -> Number {
        let buffer = inputs.buffer(role).expect("every scalar has a value");
        match dtype {
            DType::I32 => Number::I32(buffer.int(0) as i32),
            _ => Number::F32(buffer.get(0) as f32),
        }
    }

    /// An input.
    pub(crate) fn slice(&self, role: Role) -> &CudaSlice<u8> {
        &self.read[&role]
    }

    /// Every tensor of the plan, without scalars.
    pub(crate) fn tensors(&mut self, plan: &LoadedPlan) -> Args<'_> {
        self.args(plan, None, false)
    }

    /// Every operand of the plan but one.
    pub(crate) fn but(&mut self, plan: &LoadedPlan, role: Role) -> Args<'_> {
        self.args(plan, Some(role), true)
    }

    /// Binds every role of the plan to this case's memory.
    pub(crate) fn bindings(&mut self, plan: &LoadedPlan) -> Args<'_> {
        self.args(plan, None, true)
    }

    fn args(&mut self, plan: &LoadedPlan, but: Option<Role>, with_scalars: bool) -> Args<'_> {
        let Case { attention: _, inputs, read, written, shared } = self;
        let of_plan = |role: &Role| Some(*role) != but && plan.facts().bindings.iter().any(|b| b.role == *role);
        let scalars = plan.facts().bindings.iter().filter(|b| b.scalar && with_scalars);
        let mut bindings =
            scalars.fold(Args::new(), |all, b| all.scalar(b.role, Self::scalar(inputs, b.role, b.dtype)));
        for role in read.keys().filter(|role| of_plan(role)) {
            let slice = &read[shared.get(role).unwrap_or(role)];
            bindings = match role.is_followed() {
                // SAFETY: lengths and offsets of the oracle's inputs are within the operands.
                true => unsafe { bindings.indices(*role, slice) },
                false => bindings.tensor(*role, slice),
            };
        }
        for (role, slice) in written.iter_mut().filter(|(role, _)| of_plan(role)) {
            bindings = bindings.tensor_mut(*role, slice);
        }
        bindings
    }

    /// Binds every role of the plan by address.
    pub(crate) fn raw_bindings(&mut self, stream: &CudaStream, facts: &PlanFacts) -> raw::RawBindings {
        facts.bindings.iter().filter(|b| !b.role.is_internal()).fold(raw::RawBindings::new(), |all, b| {
            if b.scalar {
                return all.scalar(b.role, Self::scalar(&self.inputs, b.role, b.dtype));
            }
            let slice = if b.output { &self.written[&b.role] } else { &self.read[&b.role] };
            all.tensor(b.role, slice.device_ptr(stream).0, slice.len() as u64)
        })
    }

    /// Copies the outputs back.
    pub(crate) fn download(&self, stream: &Arc<CudaStream>) -> BTreeMap<Role, Vec<u8>> {
        let bytes = |slice| stream.clone_dtoh(slice).expect("it can be read");
        self.written.iter().map(|(role, slice)| (*role, bytes(slice))).collect()
    }

    pub(crate) fn poison(&mut self, gpu: &Gpu) {
        self.poison_on(&gpu.stream);
    }

    pub(crate) fn poison_on(&mut self, stream: &Arc<CudaStream>) {
        for slice in self.written.values_mut() {
            let poison = vec![qkvault_reference::POISON; slice.len()];
            stream.memcpy_htod(&poison, slice).expect("it can be written");
        }
    }

    pub(crate) fn check(&mut self, gpu: &Gpu) {
        self.check_on(&gpu.stream);
    }

    /// Compares every output with the oracle.
    pub(crate) fn check_on(&mut self, stream: &Arc<CudaStream>) {
        let of = if self.attention.is_backward() { backward } else { forward };
        let expected = of(&self.attention, &self.inputs).expect("the oracle can do it");
        for (role, bytes) in self.download(stream) {
            let output = expected.get(role).expect("the oracle has every output");
            let dtype = output.operand().tensor.dtype;
            let actual = Buffer::new(dtype, bytes).expect("whole elements");
            // The gradient of a sink is a sum over all rows, whose terms cancel.
            let tolerance = match role {
                Role::DSink => OutputTolerance::of_launch(role, dtype),
                _ => OutputTolerance::for_role(role, dtype),
            };
            let found = compare(output, &actual, tolerance);
            say(&format!("{}: {role}: {found}", self.attention));
            assert!(found.good, "{}: {role}: {found}", self.attention);
        }
    }
}
