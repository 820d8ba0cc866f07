//! Shared by the tests of this package: facts of plans that were never compiled, and changes of machines.

#![allow(dead_code, reason = "each test file uses a part of it")]

use qkvault_compile::{CUDNN, CudnnFacts, OwnFacts, Plan, PlanFacts};
use qkvault_cudnn::op::Fixed;
use qkvault_cudnn::op::{Constant, OpTensor, TensorKind};
use qkvault_cudnn::{OpGraph, Profile, Target};
use qkvault_graph::Binding;
use qkvault_graph::{CudnnVersion, DType, GraphKey, LibrarySet, PlanKey, Role};

/// Prints a measurement.
#[allow(clippy::print_stdout, reason = "a test that cannot run, or measures, says so")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// The H200 of the built-in profile under a cuDNN.
pub(crate) fn h200(cudnn: CudnnVersion) -> Target {
    Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim)
}

pub(crate) fn operand(role: Role, dtype: DType, output: bool, bytes: u64) -> Binding {
    Binding { role, dtype, scalar: false, output, bytes, alignment: 16 }
}

pub(crate) fn scalar(role: Role, dtype: DType) -> Binding {
    Binding { role, dtype, scalar: true, output: false, bytes: dtype.size() as u64, alignment: dtype.size() as u32 }
}

/// A made-up forward: four bf16 operands of 4 KiB, statistics, two scalars and a constant.
pub(crate) fn forward(target: &Target) -> PlanFacts {
    PlanFacts {
        key: PlanKey::from_bytes([7; 32]),
        graph_key: GraphKey::from_bytes([8; 32]),
        what: "fwd bf16 b1 h4 q16 kv16 d32".into(),
        by: CUDNN.name(),
        sm: target.sm(),
        driver: target.device.driver_ver,
        engine: String::new(),
        workspace: 1024,
        compile_ms: 1,
        blob_bytes: 3,
        bindings: vec![
            operand(Role::Q, DType::BF16, false, 4096),
            operand(Role::K, DType::BF16, false, 4096),
            operand(Role::V, DType::BF16, false, 4096),
            operand(Role::O, DType::BF16, true, 4096),
            operand(Role::Stats, DType::F32, true, 256),
            scalar(Role::Scale, DType::F32),
            scalar(Role::Scalar(0), DType::I32),
        ],
        own: OwnFacts::Cudnn(Box::new(CudnnFacts {
            cudnn: target.cudnn,
            libraries: target.libraries,
            toolchain: target.toolchain.clone(),
            multi_processors: target.device.multi_processor_count,
            memory_bus: target.device.memory_bus_width,
            passed_over: Vec::new(),
            again: Vec::new(),
            fixed: vec![Fixed { uid: 10_003, value: Constant::f32(-1.0) }],
        })),
    }
}

/// The facts that cuDNN's plans have alone.
pub(crate) fn own(facts: &mut PlanFacts) -> &mut CudnnFacts {
    match &mut facts.own {
        OwnFacts::Cudnn(own) => own,
        other => panic!("not of cuDNN: {other:?}"),
    }
}

/// The same facts with other constants.
pub(crate) fn fixed(mut facts: PlanFacts, constants: Vec<Fixed>) -> PlanFacts {
    own(&mut facts).fixed = constants;
    facts
}

/// Facts of a plan of this op graph that was never compiled: its operands in order of unique id, each of 4 KiB.
pub(crate) fn facts_of(graph: &OpGraph, target: &Target) -> PlanFacts {
    let dtype = |role| {
        let is = |t: &&OpTensor| matches!(t.kind, TensorKind::Operand(r) | TensorKind::Scalar(r) if r == role);
        graph.tensors.iter().find(is).expect("a role of this graph").dtype
    };
    let binding = |role: Role| match role.is_scalar() {
        true => scalar(role, dtype(role)),
        false => operand(role, dtype(role), role.is_output(false), 4096),
    };
    PlanFacts { bindings: graph.roles().into_iter().map(binding).collect(), ..forward(target) }
}

/// The plan with changed facts.
pub(crate) fn with(plan: &Plan, change: impl FnOnce(&mut PlanFacts)) -> Plan {
    let mut plan = plan.clone();
    change(&mut plan.facts);
    plan
}

pub(crate) type Change = (&'static str, fn(&mut Target));

/// Changes of an H200, by name.
pub(crate) fn changes() -> Vec<Change> {
    vec![
        ("nothing", |_| ()),
        ("library set", |t| t.libraries = LibrarySet::Full),
        ("fewer SMs", |t| t.device.multi_processor_count = 114),
        ("more SMs", |t| t.device.multi_processor_count = 144),
        ("sm_89", |t| t.device.device_ver = 890),
        ("sm_100", |t| t.device.device_ver = 1000),
        ("driver 12.8", |t| t.device.driver_ver = 12_080),
        ("driver 12.9", |t| t.device.driver_ver = 12_090),
        ("driver 13.1", |t| t.device.driver_ver = 13_010),
        ("narrower bus", |t| t.device.memory_bus_width = Some(5120)),
        ("wider bus", |t| t.device.memory_bus_width = Some(8192)),
        ("name", |t| t.device.device_name = "another".into()),
        ("PCI id", |t| t.device.pci_device_id = 99),
        ("ordinal", |t| t.device.cuda_device_id = 1),
        ("SM clock", |t| t.device.sm_clock_rate_khz = 1_000_000),
        ("memory clock", |t| t.device.mem_clock_rate_khz = 1_000_000),
        ("L2", |t| t.device.l2_cache_size = 50 << 20),
        ("memory", |t| t.device.total_global_mem = 80 << 30),
    ]
}

/// The plan with the facts of another machine, so that the rules pass and cuDNN decides.
pub(crate) fn of_machine(plan: &Plan, machine: &Target) -> Plan {
    with(plan, |facts| {
        facts.sm = machine.sm();
        own(facts).multi_processors = machine.device.multi_processor_count;
        facts.driver = machine.device.driver_ver;
        own(facts).memory_bus = machine.device.memory_bus_width;
    })
}
