//! Which attentions the kernels take, with a reason for every other one.

use crate::tiling::MULTIPROCESSORS;
use crate::{codes, spans};
use qkvault_graph::{Fp8, PaddedRows, Reason, Refusal, Storage, Tensor, Valid};

/// The largest head dim of queries and keys: that of a latent cache.
pub const HEAD_DIM: i64 = 576;

/// The largest head dim of values.
pub const VALUE_DIM: i64 = 512;

/// The same of an invariant attention, whose sums of spans lie in shared memory beside its tiles.
pub(crate) const INVARIANT_DIM: i64 = 256;

/// The largest head dim of a cache in 8 bits.
const CACHE_DIM: i64 = 256;

/// The most scratch memory of one: every block has room for the sums of all spans of the longest sequence.
const INVARIANT_SCRATCH: i64 = 1 << 32;

/// The compute capability that the kernels are written for.
pub const SM: u32 = 90;

/// Rows of the largest tile.
const MOST_ROWS: i64 = 128;

/// Most sequences, heads, rows of a head of keys, and keys: sums of two such numbers and of a tile have 31 bits.
const COUNT: i64 = 1 << 30;

/// Rows and keys of the smallest tile of scores, and fewer tiles than this: the share of one of 132 blocks has 31 bits.
const TILE: (i64, i64) = (16, 32);
const TILES: i64 = 1 << 38;

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
    when(sm != SM, &|| codes::KERNELS_GPU.reason(format!("compute capability {}.{}", sm / 10, sm % 10)));
    when(a.is_backward(), &|| codes::KERNELS_BACKWARD.reason("a backward"));
    when(!a.q.dtype.is_half(), &|| codes::KERNELS_TYPE.reason(a.q.dtype.to_string()));
    for (field, dim, most) in [("q", a.q.head_dim(), HEAD_DIM), ("v", a.v.head_dim(), VALUE_DIM)] {
        when(dim % 16 != 0 || dim > most, &|| codes::KERNELS_HEAD_DIM.reason(dim.to_string()).at(field));
    }
    for (field, dim) in [("q", a.q.head_dim()), ("v", a.v.head_dim())] {
        when(a.invariant && dim > INVARIANT_DIM, &|| {
            codes::KERNELS_INVARIANT.reason(format!("head dim {dim}")).at(field)
        });
    }
    let widest = a.q.head_dim().max(a.v.head_dim());
    when(is_narrow(a) && widest > CACHE_DIM, &|| {
        codes::KERNELS_CACHE.reason(format!("{} of head dim {widest}", a.k.dtype))
    });
    when(is_narrow(a) && a.invariant && widest > 128, &|| {
        codes::KERNELS_CACHE.reason(format!("{} of head dim {widest}, invariant", a.k.dtype))
    });
    when(a.invariant && a.origins.is_some(), &|| codes::KERNELS_INVARIANT.reason("origins").at("origins"));
    when(a.invariant && a.draft_tree, &|| codes::KERNELS_INVARIANT.reason("a tree of drafts").at("draft_tree"));
    let scratch = if a.invariant { span_bytes(a) } else { 0 };
    when(scratch > INVARIANT_SCRATCH, &|| {
        codes::KERNELS_INVARIANT.reason(format!("{scratch} bytes of scratch memory")).at("k.dims[2]")
    });
    when(a.k.heads() != a.v.heads(), &|| {
        codes::KERNELS_HEADS.reason(format!("{} heads of keys and {} of values", a.k.heads(), a.v.heads()))
    });
    when(a.dropout.is_some(), &|| codes::KERNELS_DROPOUT.reason("dropout"));
    when(a.block_mask, &|| codes::KERNELS_BLOCK_MASK.reason("a block mask"));
    when(a.outputs.max || a.outputs.sum_exp, &|| codes::KERNELS_OUTPUTS.reason("Max or Sum_exp"));
    when(is_varlen(&a.k) != is_varlen(&a.v), &|| codes::KERNELS_STORAGE.reason("one of K and V varlen").at("v"));
    when(page_size(&a.k) != page_size(&a.v), &|| codes::KERNELS_STORAGE.reason("pages of other sizes").at("v"));
    // Rows behind a varlen sequence belong to the next one.
    when((is_varlen(&a.q) || is_varlen(&a.o)) && a.padded_rows == PaddedRows::Zero, &|| {
        codes::KERNELS_STORAGE.reason("padded rows of varlen queries as zeros").at("padded_rows")
    });
    let (rows, keys) = (a.q.seq().saturating_mul(a.q.heads() / a.k.heads()), a.k.seq());
    let counts = [("q.dims[0]", a.batch()), ("q.dims[1]", a.q.heads()), ("q.dims[2]", rows), ("k.dims[2]", keys)];
    let tokens = [("k.dims[2]", &a.k), ("v.dims[2]", &a.v)].map(|(field, tensor)| (field, tensor.extents()[2]));
    for (field, count) in counts.into_iter().chain(tokens) {
        when(count > COUNT, &|| codes::KERNELS_SIZE.reason(count.to_string()).at(field));
    }
    let up = |n: i64, of: i64| (n - 1) / of + 1;
    let factors = [a.batch(), a.k.heads(), up(rows, TILE.0), up(keys, TILE.1)];
    let tiles = factors.into_iter().fold(1, i64::saturating_mul);
    when(tiles >= TILES, &|| codes::KERNELS_SIZE.reason(format!("{tiles} tiles")));
    for (field, tensor) in [("q", &a.q), ("k", &a.k), ("v", &a.v), ("o", &a.o)] {
        when(!aligned(tensor), &|| codes::KERNELS_STRIDES.reason(format!("{:?}", tensor.strides)).at(field));
    }
    match Refusal::from_reasons(reasons) {
        None => Ok(()),
        Some(refusal) => Err(refusal),
    }
}

/// Bytes of the sums of an invariant attention's spans.
fn span_bytes(a: &Valid) -> i64 {
    let rows = a.q.seq().saturating_mul(a.q.heads() / a.k.heads()).min(MOST_ROWS);
    let pieces = i64::from(MULTIPROCESSORS).saturating_mul(1 + spans::count(a.k.seq()));
    pieces.saturating_mul(rows * a.v.head_dim() * 4)
}

pub(crate) const fn is_varlen(tensor: &Tensor) -> bool {
    matches!(tensor.storage, Storage::Varlen { .. })
}

/// Rows of a page of keys or values, if they are in pages.
pub(crate) fn page_size(tensor: &Tensor) -> Option<i64> {
    match tensor.storage {
        Storage::Paged { page_size, .. } => Some(page_size),
        Storage::Dense | Storage::Varlen { .. } => None,
    }
}

/// Whether keys and values are in 8 bits, and queries in 16.
pub(crate) fn is_narrow(a: &Valid) -> bool {
    a.fp8 == Some(Fp8::Cache)
}

/// Rows begin at multiples of 16 bytes, and copies reach them.
fn aligned(tensor: &Tensor) -> bool {
    let [outer, heads, rows, _] = tensor.extents();
    // How many pages a pool has decides nothing.
    let extents = [if tensor.is_paged() { i64::MAX } else { outer }, heads, rows];
    let far = |stride: i64| stride >= 1 << 39;
    let least = 16 / tensor.dtype.size().clamp(1, 2) as i64;
    tensor.strides[..3].iter().zip(extents).all(|(&step, n)| n == 1 || (step % least == 0 && !far(step)))
}
