//! The functions of candle-flash-attn, by their names and arguments.
//!
//! Descriptions and plans are shared by all calls with the same modifications. Plans come from [`set_defaults`].

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{DType, Result, Tensor};

use crate::known::Known;
use crate::{Error, Options, Sequences, attention, attention_paged, attention_varlen};

/// What tells the options of one call from those of another, besides numbers and the memory of tensors.
type Kind = (Option<usize>, Option<usize>, bool, Option<(Vec<usize>, DType, bool)>);

/// The options that every function here begins with, and what their calls have met.
#[derive(Default)]
struct Defaults {
    options: Options,
    known: HashMap<Kind, Arc<Known>>,
}

static DEFAULTS: RwLock<Option<Defaults>> = RwLock::new(None);

/// Sets the options that the functions of candle-flash-attn begin with: where plans come from, or whether the oracle
/// computes on CPUs. Modifications in them apply before those of a call.
pub fn set_defaults(options: Options) {
    *DEFAULTS.write().unwrap_or_else(PoisonError::into_inner) = Some(Defaults { options, known: HashMap::new() });
}

/// The options of a call.
fn options(
    scale: f32,
    left: Option<usize>,
    right: Option<usize>,
    slopes: Option<&Tensor>,
    softcap: Option<f32>,
) -> Options {
    let of = |slopes: &Tensor| (slopes.dims().to_vec(), slopes.dtype(), slopes.track_op());
    let kind: Kind = (left, right, softcap.is_some(), slopes.map(of));
    let (base, known) = {
        let defaults = DEFAULTS.read().unwrap_or_else(PoisonError::into_inner);
        let own = defaults.as_ref();
        (own.map_or_else(Options::new, |own| own.options.clone()), own.and_then(|own| own.known.get(&kind).cloned()))
    };
    let base = if base.shares_plans.is_none() { base.share_plans(true) } else { base };
    let mut options = base.softmax_scale(scale).window_size_left(left).window_size_right(right);
    // candle-flash-attn caps scores first.
    if let Some(cap) = softcap {
        options = options.softcap(cap);
    }
    if let Some(slopes) = slopes {
        options = options.alibi_slopes(slopes);
    }
    match known {
        Some(known) => options.known = known,
        None => {
            let mut defaults = DEFAULTS.write().unwrap_or_else(PoisonError::into_inner);
            let known = &mut defaults.get_or_insert_default().known;
            options.known = known.entry(kind).or_insert_with(|| options.known.clone()).clone();
        }
    }
    options
}

const fn right(causal: bool) -> Option<usize> {
    if causal { Some(0) } else { None }
}

/// Attention over (batch, sequence, head, head dim).
///
/// # Errors
///
/// As [`attention`](crate::attention()).
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    attention(q, k, v, &options(softmax_scale, None, right(causal), None, None))
}

/// [`flash_attn`] with a window.
///
/// # Errors
///
/// As [`attention`](crate::attention()).
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    attention(q, k, v, &options(softmax_scale, window_size_left, window_size_right, None, None))
}

/// [`flash_attn`] with ALiBi.
///
/// # Errors
///
/// As [`attention`](crate::attention()).
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    attention(q, k, v, &options(softmax_scale, None, right(causal), Some(alibi_slopes), None))
}

/// [`flash_attn`] with ALiBi and a window.
///
/// # Errors
///
/// As [`attention`](crate::attention()).
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    attention(q, k, v, &options(softmax_scale, window_size_left, window_size_right, Some(alibi_slopes), None))
}

/// [`flash_attn`] with everything.
///
/// # Errors
///
/// As [`attention`](crate::attention()).
#[allow(clippy::too_many_arguments, reason = "the arguments of candle-flash-attn")]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let options = options(softmax_scale, window_size_left, window_size_right, alibi_slopes, Some(softcap));
    attention(q, k, v, &options)
}

/// Attention over (token, head, head dim) with cumulative lengths of `u32`, which are copied to the host to be checked:
/// [`attention_varlen`] with [`Sequences`] that layers share does that once.
///
/// # Errors
///
/// As [`attention_varlen`].
#[allow(clippy::too_many_arguments, reason = "the arguments of candle-flash-attn")]
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let lengths = (seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    varlen([q, k, v], lengths, &options(softmax_scale, None, right(causal), None, None))
}

/// [`flash_attn_varlen`] with a window.
///
/// # Errors
///
/// As [`attention_varlen`].
#[allow(clippy::too_many_arguments, reason = "the arguments of candle-flash-attn")]
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let lengths = (seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    varlen([q, k, v], lengths, &options(softmax_scale, window_size_left, window_size_right, None, None))
}

/// [`flash_attn_varlen_windowed`] over pages: `k` and `v` are (page, row, head, head dim), and `block_table` has the
/// pages of each sequence, (sequence, page), of `u32` or `i32`. It is copied to the host too; [`attention_paged`] with
/// [`Sequences::mixed`] does that once for all layers.
///
/// # Errors
///
/// As [`attention_paged`]; ranges that bypass the mask (`mm_prefix_ranges`), which are not computed here.
#[allow(clippy::too_many_arguments, reason = "the arguments of candle-flash-attn")]
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    if mm_prefix_ranges.is_some() {
        let text = "mm_prefix_ranges are not computed here: give the keys that a query sees with Options::mask_mod";
        return Err(Error::Tensor(text.to_owned()).into());
    }
    if k.dims().get(1) != Some(&page_block_size) {
        let text = format!("page_block_size is {page_block_size}, and k has dims {:?}", k.dims());
        return Err(Error::Tensor(text).into());
    }
    let sequences = Sequences::of_block_table(seqlens_q, seqlens_k, block_table, page_block_size)?;
    let sequences = Arc::new(sequences.max_seqlens(max_seqlen_q, max_seqlen_k));
    attention_paged(q, k, v, &sequences, &options(softmax_scale, window_size_left, window_size_right, None, softcap))
}

/// [`flash_attn_varlen`] with ALiBi.
///
/// # Errors
///
/// As [`attention_varlen`].
#[allow(clippy::too_many_arguments, reason = "the arguments of candle-flash-attn")]
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let lengths = (seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    varlen([q, k, v], lengths, &options(softmax_scale, None, right(causal), Some(alibi_slopes), None))
}

/// [`flash_attn_varlen`] with ALiBi and a window.
///
/// # Errors
///
/// As [`attention_varlen`].
#[allow(clippy::too_many_arguments, reason = "the arguments of candle-flash-attn")]
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let lengths = (seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    let options = options(softmax_scale, window_size_left, window_size_right, Some(alibi_slopes), None);
    varlen([q, k, v], lengths, &options)
}

/// [`flash_attn_varlen`] with everything.
///
/// # Errors
///
/// As [`attention_varlen`].
#[allow(clippy::too_many_arguments, reason = "the arguments of candle-flash-attn")]
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let lengths = (seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    let options = options(softmax_scale, window_size_left, window_size_right, alibi_slopes, Some(softcap));
    varlen([q, k, v], lengths, &options)
}

fn varlen([q, k, v]: [&Tensor; 3], of: (&Tensor, &Tensor, usize, usize), options: &Options) -> Result<Tensor> {
    let (seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k) = of;
    let sequences = Sequences::of_tensors(seqlens_q, seqlens_k)?.max_seqlens(max_seqlen_q, max_seqlen_k);
    attention_varlen(q, k, v, &Arc::new(sequences), options)
}
