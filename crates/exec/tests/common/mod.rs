//! What the tests of this package share: facts of plans that were never compiled, and stated requirements.

#![allow(dead_code, reason = "each test file uses a part of it")]

use qkvault_graph::op::{Constant, OpTensor, TensorKind};
use qkvault_graph::{CudnnVersion, DType, GraphKey, LibrarySet, OpGraph, PlanKey, Profile, Role, Target};
use qkvault_probe::{Binding, Fixed, PlanFacts};

/// A requirement of a test that this machine does not meet: said, and a failure where the variable promises that it is met.
pub(crate) fn unmet(variable: &str, what: &str) {
    let reason = format!("requirement not met: {what}");
    assert!(std::env::var_os(variable).is_none_or(|value| value != "1"), "{reason}");
    say(&reason);
}

/// Tells something that is no failure.
#[expect(clippy::print_stdout, reason = "a test that cannot run, or measures, says so")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// The H200 of the built-in profile under a cuDNN.
pub(crate) fn h200(cudnn: CudnnVersion) -> Target {
    Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim)
}

pub(crate) fn operand(role: Role, dtype: DType, output: bool, bytes: u64) -> Binding {
    Binding { role, dtype, slot: false, output, bytes, alignment: 16 }
}

pub(crate) fn slot(role: Role, dtype: DType) -> Binding {
    Binding { role, dtype, slot: true, output: false, bytes: dtype.size() as u64, alignment: dtype.size() as u32 }
}

/// A made-up forward: four bf16 operands of 4 KiB, statistics, two slots and a constant.
pub(crate) fn forward(target: &Target) -> PlanFacts {
    PlanFacts {
        key: PlanKey::from_bytes([7; 32]),
        graph_key: GraphKey::from_bytes([8; 32]),
        what: "fwd bf16 b1 h4 q16 kv16 d32".into(),
        cudnn: target.cudnn,
        libraries: target.libraries,
        sm: target.sm(),
        multi_processors: target.device.multi_processor_count,
        driver: target.device.driver_ver,
        memory_bus: target.device.memory_bus_width,
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
            slot(Role::Scale, DType::F32),
            slot(Role::Slot(0), DType::I32),
        ],
        fixed: vec![Fixed { uid: 10_003, value: Constant::f32(-1.0) }],
    }
}

/// Facts of a plan of this op graph that was never compiled: its operands in order of unique id, each of 4 KiB.
pub(crate) fn facts_of(graph: &OpGraph, target: &Target) -> PlanFacts {
    let dtype = |role| {
        let is = |t: &&OpTensor| matches!(t.kind, TensorKind::Operand(r) | TensorKind::Slot(r) if r == role);
        graph.tensors.iter().find(is).expect("a role of this graph").dtype
    };
    let binding = |role: Role| match role.is_slot() {
        true => slot(role, dtype(role)),
        false => operand(role, dtype(role), role.is_output(false), 4096),
    };
    PlanFacts { bindings: graph.roles().into_iter().map(binding).collect(), ..forward(target) }
}
