//! Checks operands against each other: batch, heads, sequence, head dims and element types.

use super::Problems;
use super::tensors::countable;
use crate::registry::codes;
use crate::{Attention, Fp8, Gradients, Pass, Storage, Tensor};

const AXES: [&str; 4] = ["batch", "heads", "sequence", "head dim"];

fn same(problems: &mut Problems, axis: usize, (name, t): (&'static str, &Tensor), (other, o): (&str, &Tensor)) {
    if t.dims[axis] != o.dims[axis] && countable(t) && countable(o) {
        problems.add(
            codes::SHAPE_MISMATCH.reason(t.dims[axis].to_string()).at(format!("{name}.dims[{axis}]")).with_needed(
                format!("{name} and {other} must have the same {}: {other} has {}", AXES[axis], o.dims[axis]),
            ),
        );
    }
}

pub(super) fn check(a: &Attention, problems: &mut Problems) {
    let (q, k, v, o) = (&a.q, &a.k, &a.v, &a.o);
    same(problems, 0, ("k", k), ("q", q));
    same(problems, 0, ("v", v), ("q", q));
    same(problems, 0, ("o", o), ("q", q));
    same(problems, 1, ("o", o), ("q", q));
    same(problems, 2, ("v", v), ("k", k));
    same(problems, 2, ("o", o), ("q", q));
    same(problems, 3, ("k", k), ("q", q));
    same(problems, 3, ("o", o), ("v", v));
    for (name, t) in [("k", k), ("v", v)] {
        if countable(q) && countable(t) && q.dims[1] % t.dims[1] != 0 {
            problems.add(
                codes::HEADS_GROUP
                    .reason(format!("{} heads for {} query heads", t.dims[1], q.dims[1]))
                    .at(format!("{name}.dims[1]")),
            );
        }
    }
    scores(a, problems);
    storage(a, problems);
    types(a, problems);
    if let Pass::Backward(g) = &a.pass {
        gradients(a, g, problems);
    }
}

/// Checks the number of scores: they are never in memory, but graphs declare them with strides.
fn scores(a: &Attention, problems: &mut Problems) {
    let dims = [a.q.dims[0], a.q.dims[1], a.q.dims[2], a.k.dims[2]];
    if countable(&a.q) && countable(&a.k) && dims.iter().try_fold(1_i64, |n, &d| n.checked_mul(d)).is_none() {
        problems.add(codes::SHAPE_SCORES.reason(format!("scores of dims {dims:?}")));
    }
}

fn storage(a: &Attention, problems: &mut Problems) {
    for (name, t) in [("q", &a.q), ("o", &a.o)] {
        if t.is_paged() {
            problems.add(codes::STORAGE_PAGED.reason("paged").at(format!("{name}.storage")));
        }
    }
    let varlen = |t: &Tensor| matches!(t.storage, Storage::Varlen { .. });
    if varlen(&a.q) != varlen(&a.o) {
        problems.add(codes::STORAGE_VARLEN.reason(format!("{:?} with Q {:?}", a.o.storage, a.q.storage)));
    }
    let paged = |t: &Tensor| t.is_paged();
    if paged(&a.k) != paged(&a.v) {
        problems.add(codes::STORAGE_PAGED_PAIR.reason(format!("{:?} with K {:?}", a.v.storage, a.k.storage)));
    }
}

fn types(a: &Attention, problems: &mut Problems) {
    let cache = a.fp8 == Some(Fp8::Cache);
    let mut mixed = |name: &str, t: &Tensor, needed: String| {
        problems.add(codes::DTYPE_MIXED.reason(t.dtype.to_string()).at(format!("{name}.dtype")).with_needed(needed));
    };
    if cache && !a.k.dtype.is_fp8() {
        mixed("k", &a.k, "e4m3 or e5m2, because the cache is in 8 bits".into());
    } else if cache && a.v.dtype != a.k.dtype {
        mixed("v", &a.v, format!("the element type of K, which is {}", a.k.dtype));
    }
    for (name, t) in [("k", &a.k), ("v", &a.v)] {
        if !cache && t.dtype != a.q.dtype {
            mixed(name, t, format!("the element type of Q, which is {}", a.q.dtype));
        }
    }
    if cache && a.is_backward() {
        problems.add(codes::BACKWARD_CACHE.reason("a backward of a cache in 8 bits"));
    }
    let inputs = match a.fp8 {
        None | Some(Fp8::Cache) => a.q.dtype.is_half(),
        Some(Fp8::Delayed | Fp8::Current | Fp8::Block) => a.q.dtype.is_fp8(),
    };
    if !inputs {
        let (needed, fix) = match a.fp8 {
            None => ("f16 or bf16", "set `fp8` for 8-bit formats; cuDNN's attention does not support f32"),
            Some(Fp8::Cache) => ("f16 or bf16", "queries of a cache in 8 bits have 16; give them as they are"),
            Some(_) => ("e4m3 or e5m2", "leave `fp8` unset for 16-bit formats"),
        };
        problems.add(codes::DTYPE_INPUT.reason(a.q.dtype.to_string()).with_needed(needed).with_fix(fix));
    }
    let output = match a.fp8 {
        None | Some(Fp8::Cache) => a.o.dtype == a.q.dtype,
        Some(Fp8::Delayed) => a.o.dtype.is_fp8(),
        Some(Fp8::Current | Fp8::Block) => a.o.dtype.is_half(),
    };
    if inputs && !output {
        let needed = match a.fp8 {
            None | Some(Fp8::Cache) => format!("Q's type, {}", a.q.dtype),
            Some(Fp8::Delayed) => "an 8-bit type, because scaling is delayed".into(),
            Some(Fp8::Current | Fp8::Block) => "a 16-bit type, because scales are current".into(),
        };
        problems.add(codes::DTYPE_OUTPUT.reason(a.o.dtype.to_string()).with_needed(needed));
    }
}

fn gradients(a: &Attention, g: &Gradients, problems: &mut Problems) {
    let Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink: _, deterministic: _ } = g;
    let (inputs, outputs) = widths(a.fp8);
    let mut tensors = vec![
        ("d_o", d_o, "o", &a.o, inputs),
        ("d_q", d_q, "q", &a.q, outputs),
        ("d_k", d_k, "k", &a.k, outputs),
        ("d_v", d_v, "v", &a.v, outputs),
    ];
    tensors.extend(d_o_half.iter().map(|t| ("d_o_half", t, "o", &a.o, Width::Sixteen)));
    half(a, d_o_half.as_ref(), problems);
    for (name, t, of, like, width) in tensors {
        for axis in 0..4 {
            same(problems, axis, (name, t), (of, like));
        }
        if std::mem::discriminant(&t.storage) != std::mem::discriminant(&like.storage) {
            problems.add(
                codes::STORAGE_GRADIENT
                    .reason(format!("{:?}", t.storage))
                    .at(format!("{name}.storage"))
                    .with_needed(format!("the storage of its tensor: {:?}", like.storage)),
            );
        }
        if like.is_paged() {
            problems.add(codes::STORAGE_PAGED_BACKWARD.reason("paged").at(format!("{of}.storage")));
        }
        let (fits, needed) = match width {
            Width::OfQ => (t.dtype == a.q.dtype, format!("Q's type, {}", a.q.dtype)),
            Width::Eight => (t.dtype.is_fp8(), "an 8-bit type: 8-bit products need 8-bit operands".into()),
            Width::Sixteen => (t.dtype.is_half(), "a 16-bit type for this kind of scaling".into()),
        };
        if !fits {
            problems
                .add(codes::DTYPE_GRADIENT.reason(t.dtype.to_string()).at(format!("{name}.dtype")).with_needed(needed));
        }
    }
}

/// The width of a gradient's elements.
#[derive(Clone, Copy)]
enum Width {
    OfQ,
    Eight,
    Sixteen,
}

/// The width of dO, which a backward reads, and of dQ, dK and dV, which it writes.
const fn widths(fp8: Option<Fp8>) -> (Width, Width) {
    match fp8 {
        None | Some(Fp8::Cache) => (Width::OfQ, Width::OfQ),
        Some(Fp8::Delayed) => (Width::Eight, Width::Eight),
        Some(Fp8::Current | Fp8::Block) => (Width::Eight, Width::Sixteen),
    }
}

/// Checks the 16-bit dO, which only a microscaled backward reads, besides the 8-bit one.
fn half(a: &Attention, d_o_half: Option<&Tensor>, problems: &mut Problems) {
    let block = a.fp8 == Some(Fp8::Block);
    if block && d_o_half.is_none() {
        problems.add(codes::BACKWARD_HALF_MISSING.reason("none, with block scales"));
    } else if !block && d_o_half.is_some() {
        problems.add(codes::BACKWARD_HALF_EXTRA.reason(format!("a 16-bit dO besides dO, with fp8 {:?}", a.fp8)));
    }
}
