//! Which attentions FlashAttention-4's kernels take on Hopper, with a reason for every other one.

use crate::codes;
use qkvault_graph::{Band, Corner, Fp8, Gradients, Pass, Reason, Refusal, Tensor, Valid, row_of_a_constant};

use crate::expression::arguments;
use crate::packed::{self, capacity, counts, is_packed};
use crate::pages;

/// The compute capability that the kernels are compiled for.
pub const SM: u32 = 90;

/// The largest head dim.
pub const HEAD_DIM: i64 = 256;

/// Most elements of a sequence dim: numbers of the kernels have 32 bits, and a tensor has fewer rows.
pub(crate) const ROWS: i64 = 1 << 24;

/// Most numbers that expressions read: scalars, addresses and extents of tensors. Kernels have at most 64 parameters.
const NUMBERS: usize = 16;

/// Whether the kernels take an attention on GPUs of a compute capability (major * 10 + minor).
///
/// # Errors
///
/// Every reason why not.
pub fn takes(attention: &Valid, sm: u32) -> Result<(), Refusal> {
    let a = attention;
    let mut reasons: Vec<Reason> = Vec::new();
    let mut when = |is: bool, reason: &dyn Fn() -> Reason| {
        if is {
            reasons.push(reason());
        }
    };
    when(sm != SM, &|| codes::FA4_GPU.reason(format!("compute capability {}.{}", sm / 10, sm % 10)));
    when(!a.q.dtype.is_half(), &|| codes::FA4_TYPE.reason(a.q.dtype.to_string()));
    let (head_dim, head_dim_v) = a.head_dims();
    for (field, dim) in [("q", head_dim), ("v", head_dim_v)] {
        when(dim % 8 != 0 || dim > HEAD_DIM, &|| codes::FA4_HEAD_DIM.reason(dim.to_string()).at(field));
        // Backwards of head dim 72 gave wrong gradients on an H200, those of 64, 96, 128, 192 and 256 right ones: the
        // main kernel pads to multiples of 16, and the kernels around it to multiples of 32.
        when(a.is_backward() && dim % 32 != 0, &|| {
            codes::FA4_HEAD_DIM.reason(format!("{dim} in a backward")).with_needed("a multiple of 32").at(field)
        });
    }
    // Tiles are chosen by the head dim of queries; that of values may be smaller where that was measured, at 192/128.
    when(head_dim_v > head_dim || (head_dim_v < head_dim && (head_dim, head_dim_v) != (192, 128)), &|| {
        codes::FA4_HEAD_DIM.reason(format!("{head_dim} and {head_dim_v}")).at("v")
    });
    // Sums of dK and dV over query heads lie in tiles of one width.
    when(a.is_backward() && head_dim != head_dim_v && a.q.heads() != a.k.heads(), &|| {
        codes::FA4_HEAD_DIM.reason(format!("{head_dim} and {head_dim_v} in a backward of grouped heads")).at("v")
    });
    when(a.k.heads() != a.v.heads(), &|| {
        codes::FA4_HEADS.reason(format!("{} heads of keys and {} of values", a.k.heads(), a.v.heads()))
    });
    when(a.fp8 == Some(Fp8::Cache), &|| codes::FA4_CACHE.reason(format!("a cache in {}", a.k.dtype)));
    when(a.draft_tree, &|| codes::FA4_DRAFT_TREE.reason("a tree of drafts"));
    when(a.invariant, &|| codes::FA4_INVARIANT.reason("the same bits in any batch"));
    when(a.dropout.is_some(), &|| codes::FA4_DROPOUT.reason("dropout"));
    when(a.origins.is_some(), &|| codes::FA4_BAND.reason("positions that begin at a launch's origins").at("origins"));
    when(a.score_tensors().any(|tensor| tensor.gradient.is_some()), &|| {
        codes::FA4_EXPRESSION.reason("the gradient of a tensor of the score modification").at("score_mod")
    });
    when(arguments(a).len() > NUMBERS, &|| {
        codes::FA4_EXPRESSION.reason(format!("{} numbers of expressions", arguments(a).len())).at("score_mod")
    });
    let predicate = a.mask.mask_mod.is_some() || a.block_mask;
    let deterministic = matches!(&a.pass, Pass::Backward(gradients) if gradients.deterministic);
    when(predicate && deterministic, &|| codes::FA4_EXPRESSION.reason("a predicate, deterministic").at("mask_mod"));
    when(a.outputs.max || a.outputs.sum_exp, &|| codes::FA4_OUTPUTS.reason("Max or Sum_exp"));
    let (s_q, s_kv) = a.seq();
    let packed = is_packed(a);
    when(!packed && !predicate && a.mask.band.is_some_and(|band| window(band, s_q, s_kv).is_none()), &|| {
        codes::FA4_BAND.reason("a top-left band of sequences that are not square").at("mask")
    });
    when(s_q > ROWS || s_kv > ROWS, &|| codes::FA4_SEQUENCE.reason(format!("{s_q} queries, {s_kv} keys")));
    for (field, tensor) in operands(a) {
        when(packed && !tensor.is_paged() && !counts(tensor), &|| {
            codes::FA4_STORAGE.reason(format!("strides {:?} of sequences with lengths", tensor.strides)).at(field)
        });
        when(packed && capacity(tensor) > ROWS, &|| {
            codes::FA4_SEQUENCE.reason(format!("{} rows of all sequences", capacity(tensor))).at(field)
        });
        when(!aligned(tensor), &|| codes::FA4_STRIDES.reason(format!("{:?}", tensor.strides)).at(field));
    }
    if packed {
        reasons.extend(packed::reasons(a));
    }
    reasons.extend(pages::reasons(a));
    reasons.extend(row_of_a_constant(a).map(|row| codes::FA4_LOWEST_ROW.reason(row)));
    match Refusal::from_reasons(reasons) {
        None => Ok(()),
        Some(refusal) => Err(refusal),
    }
}

/// What the kernels are told about a band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// Bottom-right causal and nothing else.
    pub(crate) causal: bool,
    /// Keys before the diagonal.
    pub(crate) left: Option<i64>,
    /// Keys behind it.
    pub(crate) right: Option<i64>,
}

impl Window {
    /// Whether it is a window, which is another kernel than the causal one.
    pub(crate) fn local(self) -> bool {
        !self.causal && (self.left.is_some() || self.right.is_some())
    }
}

/// A band for the kernels, whose diagonal ends in the bottom right corner; `None` if it cannot be said so.
pub(crate) fn window(band: Band, s_q: i64, s_kv: i64) -> Option<Window> {
    let Band { corner, left, right } = band;
    if corner == Corner::TopLeft && s_q != s_kv {
        return None;
    }
    Some(match (left, right) {
        (None, Some(0)) => Window { causal: true, left: None, right: None },
        // The kernels do not count the key on the diagonal.
        (left, right) => Window { causal: false, left: left.map(|keys| keys - 1), right },
    })
}

/// The operands that kernels read and write by 16 bytes, with the fields that describe them.
fn operands(a: &Valid) -> Vec<(&'static str, &Tensor)> {
    let mut list = vec![("q", &a.q), ("k", &a.k), ("v", &a.v), ("o", &a.o)];
    if let Pass::Backward(Gradients { d_o, d_o_half: _, d_q, d_k, d_v, d_sink: _, deterministic: _ }) = &a.pass {
        list.extend([("d_o", d_o), ("d_q", d_q), ("d_k", d_k), ("d_v", d_v)]);
    }
    list
}

/// Rows begin at multiples of 16 bytes, tensor maps reach them, and a row's elements lie one after the other.
fn aligned(tensor: &Tensor) -> bool {
    let step = |(&step, &n): (&i64, &i64)| n == 1 || (step > 0 && step % 8 == 0 && step < 1 << 38);
    let extents = if tensor.is_paged() { tensor.extents() } else { tensor.dims };
    tensor.strides[3] == 1 && tensor.strides[..3].iter().zip(&extents[..3]).all(step)
}
