//! Mistakes that must not compile, each after the same lines without the mistake. Only `cargo test --doc` reads them.

/// P4, P13: only a validated attention has a key.
///
/// ```
/// use qkvault_graph::*;
/// let _ = validate(Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16)).unwrap().key();
/// ```
///
/// ```compile_fail,E0599
/// use qkvault_graph::*;
/// let _ = Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16).key();
/// ```
///
/// Only validation makes a valid attention, and nothing changes it.
///
/// ```compile_fail,E0423
/// use qkvault_graph::*;
/// let _ = Valid(Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16));
/// ```
///
/// ```compile_fail,E0594
/// use qkvault_graph::*;
/// let mut valid = validate(Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16)).unwrap();
/// valid.sink = true;
/// ```
struct OnlyTheValid;

/// P15: attentions, tensors and formats have no defaults.
///
/// ```
/// use qkvault_graph::*;
/// let _ = (Mask::default(), BackwardOptions::default());
/// ```
///
/// ```compile_fail,E0599
/// use qkvault_graph::*;
/// let _ = Attention::default();
/// ```
///
/// ```compile_fail,E0599
/// use qkvault_graph::*;
/// let _ = Tensor::default();
/// ```
///
/// ```compile_fail,E0599
/// use qkvault_graph::*;
/// let _ = Valid::default();
/// ```
struct NothingUnset;

/// P17: a scalar is one number on the host and a tensor is in device memory; they cannot be confused.
///
/// ```
/// use qkvault_graph::{DType, expr};
/// let _ = (expr::scalar("cap"), expr::tensor("bias", expr::TensorSpec::new(DType::F32, [1, 8, 1, 1])));
/// ```
///
/// ```compile_fail,E0061
/// use qkvault_graph::{DType, expr};
/// let _ = expr::scalar("bias", expr::TensorSpec::new(DType::F32, [1, 8, 1, 1]));
/// ```
struct KindsOfOperands;

/// P22: counts of sequences, rows and pages have different types, and offsets are made only from cumulative lengths.
///
/// ```
/// use qkvault_graph::*;
/// let (batch, room) = (Batch::new(3).unwrap(), Tokens::new(900).unwrap());
/// let q = Tensor::varlen(batch, 8, 512, 64, room, DType::F16);
/// let lengths = CuSeqlens::new(vec![0, 100, 100, 612]).unwrap();
/// let _ = RaggedOffsets::new(&lengths, &q);
/// ```
///
/// ```compile_fail,E0308
/// use qkvault_graph::*;
/// let (batch, room) = (Batch::new(3).unwrap(), Tokens::new(900).unwrap());
/// let q = Tensor::varlen(room, 8, 512, 64, batch, DType::F16);
/// ```
///
/// ```compile_fail,E0308
/// use qkvault_graph::*;
/// let q = Tensor::thd(3, 8, 512, 64, 900, DType::F16);
/// let _ = RaggedOffsets::new(&vec![0, 100, 100, 612], &q);
/// ```
///
/// ```compile_fail,E0308
/// use qkvault_graph::*;
/// let pages: Pages = Batch::new(3).unwrap();
/// ```
///
/// ```compile_fail,E0423
/// use qkvault_graph::*;
/// let _ = CuSeqlens(vec![5, 3]);
/// ```
struct UnitsOfTheirOwn;
