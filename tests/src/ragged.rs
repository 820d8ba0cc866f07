//! Compiles varlen operands with wrong offsets. The refusal must have cuDNN's message, not only a status.
//!
//! cuDNN reports the message with the error and in its log when it finalizes the op graph, before it selects engines.
//! The status alone is "bad param".

use qkvault_compile::Failure;
use qkvault_cudnn::op::{OpGraph, OpTensor, TensorKind};
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::{Attention, DType, Origin, Role, Tensor, validate};

use crate::cudnn::{compiler, target};

/// Number of sequences. There is one more offset than sequences.
const BATCH: i64 = 4;

/// The name of a fault, the change that causes it, and parts of cuDNN's message.
type Wrong = (&'static str, fn(&mut OpTensor), &'static [&'static str]);

const DIM: &[&str] =
    &["CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC", "ragged dim should match dim value + 1 of original tensor"];
const TYPE: &[&str] = &["CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC", "should have CUDNN_DATA_INT32 or CUDNN_DATA_INT64"];

const WRONG: [Wrong; 4] = [
    ("as many as sequences", |t| t.dims[0] = BATCH, DIM),
    ("one too many", |t| t.dims[0] = BATCH + 2, DIM),
    ("along the heads", |t| t.dims.swap(0, 1), DIM),
    ("numbers with a point", |t| t.dtype = DType::F32, TYPE),
];

/// Compiles each fault with a version, and looks for cuDNN's message in the refusal.
///
/// # Panics
///
/// Panics if a fault is not refused, or if the refusal lacks cuDNN's message.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let (target, policy) = (target(&compiler, "h200"), CompileOptions::cudnn());
    let rows = Tensor::thd(BATCH, 2, 128, 64, 300, DType::BF16);
    let attention = validate(Attention::forward(rows, rows, rows, rows).with_lengths()).unwrap();
    let valid = lower(&attention, &target, &policy).unwrap();
    compiler
        .compile(&valid, &target, &policy)
        .unwrap_or_else(|e| panic!("{version}: the unchanged graph must compile: {e}"));
    for (name, change, words) in WRONG {
        let mut graph: OpGraph = valid.clone();
        let offsets = |t: &&mut OpTensor| matches!(t.kind, TensorKind::Operand(Role::Offsets(_)));
        graph.tensors.iter_mut().filter(offsets).for_each(change);
        let refusal = match compiler.compile(&graph, &target, &policy) {
            Err(Failure::Refused(refusal)) => refusal,
            Err(other) => panic!("{version}, {name}: not a refusal: {other}"),
            Ok(plan) => panic!("{version}, {name}: compiled by {}", plan.engine),
        };
        let reason = refusal.reasons().iter().find(|r| words.iter().all(|word| r.given.contains(word)));
        let reason =
            reason.unwrap_or_else(|| panic!("{version}, {name}: the refusal lacks cuDNN's message: {refusal}"));
        assert_eq!((reason.origin, reason.code.as_str()), (Origin::Library, "library.bad-param"), "{version}, {name}");
        assert!(refusal.to_string().contains(words[1]), "the text lacks cuDNN's message: {refusal}");
    }
}
