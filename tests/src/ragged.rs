//! Varlen operands whose offsets are wrong, put to the library itself: its own words about them are in the refusal, not a status alone.
//!
//! cuDNN says them when the op graph is made, before there are engines: with the error and in its log. Whoever looks at statuses learns
//! "bad param".

use qkvault_compile::Failure;
use qkvault_graph::op::{OpGraph, OpTensor, TensorKind};
use qkvault_graph::{Attention, CompileOptions, DType, Origin, Role, Tensor, lower, validate};

use crate::cudnn::{compiler, target};

/// Sequences; their offsets are one more.
const BATCH: i64 = 4;

/// What is wrong, how it is brought about, and cuDNN's words about it.
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

/// Puts each to a version, and looks for its words in the refusal.
///
/// # Panics
///
/// When it is no refusal, or one without cuDNN's own words.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let (target, policy) = (target(&compiler, "h200"), CompileOptions::default());
    let rows = Tensor::thd(BATCH, 2, 128, 64, 300, DType::BF16);
    let attention = validate(Attention::forward(rows, rows, rows, rows).with_lengths()).unwrap();
    let sound = lower(&attention, &target, &policy).unwrap();
    compiler.compile(&sound, &target, &policy).unwrap_or_else(|e| panic!("{version}: it is sound as lowered: {e}"));
    for (name, change, words) in WRONG {
        let mut graph: OpGraph = sound.clone();
        let offsets = |t: &&mut OpTensor| matches!(t.kind, TensorKind::Operand(Role::Offsets(_)));
        graph.tensors.iter_mut().filter(offsets).for_each(change);
        let refusal = match compiler.compile(&graph, &target, &policy) {
            Err(Failure::Refused(refusal)) => refusal,
            Err(other) => panic!("{version}, {name}: no refusal: {other}"),
            Ok(plan) => panic!("{version}, {name}: compiled by {}", plan.engine),
        };
        let told = refusal.reasons().iter().find(|r| words.iter().all(|word| r.given.contains(word)));
        let told = told.unwrap_or_else(|| panic!("{version}, {name}: cuDNN's words are not told: {refusal}"));
        assert_eq!((told.origin, told.code.as_ref()), (Origin::Library, "library.bad-param"), "{version}, {name}");
        assert!(refusal.to_string().contains(words[1]), "what is shown has them too: {refusal}");
    }
}
