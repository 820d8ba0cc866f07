//! The append of new keys and values to caches, as data: what an attention over a cache reads is made of what a step
//! computes.

mod check;
mod operands;

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::{Attention, DType, Fingerprint, GraphKey, Refusal, Storage, Tensor, codec};

/// An append of a step's keys and values to caches: described as data, [validated](CacheAppend::validate), identified
/// by a key.
///
/// Token `i` of sequence `b` goes to position `len_kv[b] - len_q[b] + i` of the caches, where `len_q` are
/// [`Role::SeqLenQ`](crate::Role::SeqLenQ), the new tokens of each sequence, and `len_kv` are
/// [`Role::SeqLenKv`](crate::Role::SeqLenKv), the lengths with them: those of the attention that is launched next. A
/// sequence without new tokens is left alone. What has no place is written nowhere: tokens behind the rows of the new
/// tensors, positions outside of the cache, and pages that the pool has not.
///
/// Caches in 8 bits hold `round(real / descale)` with one [`Role::Descale`](crate::Role::Descale) for K and one for V:
/// the quotient is rounded to f32, and once more to the nearest number in 8 bits, ties to even. What is too large
/// becomes the largest finite number, an infinity too; a NaN stays a NaN. Caches in 16 bits hold copies.
///
/// ```
/// use qkvault_graph::{Attention, CacheAppend, DType, Fp8, Role, Tensor};
///
/// // One new token of each of 8 sequences, over pools of 1,000 pages in e4m3.
/// let mut decode = Attention::bshd(8, (32, 8), (1, 4096), 128, DType::E4M3).with_lengths();
/// (decode.k, decode.fp8) = (Tensor::paged_nhd(8, 8, 4096, 128, 1000, 16, DType::E4M3), Some(Fp8::Current));
/// decode.v = decode.k;
/// let append = CacheAppend::before(&decode, DType::BF16).validate()?;
/// assert_eq!(append.new_k, Tensor::bshd(8, 8, 1, 128, DType::BF16));
/// let written: Vec<Role> = append.bindings().iter().filter(|b| b.output).map(|b| b.role).collect();
/// assert_eq!(written, [Role::K, Role::V]);
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheAppend {
    /// The new keys in f16 or bf16: (batch, heads of K, most new tokens of a sequence, head dim), dense or varlen.
    pub new_k: Tensor,
    /// The new values, of the same type, with as many rows.
    pub new_v: Tensor,
    /// The cache of keys, dense or in pages, in e4m3, e5m2 or the type of the new ones.
    pub k: Tensor,
    /// The cache of values, of the same type, with as many rows.
    pub v: Tensor,
}

impl CacheAppend {
    /// The append of the new tokens of an attention's queries to its keys and values. What is new is contiguous and
    /// lies as the queries do: (batch, tokens, heads, head dim), or for varlen queries (tokens, heads, head dim).
    #[must_use]
    pub fn before(attention: &Attention, dtype: DType) -> CacheAppend {
        let Attention { q, k, v, .. } = attention;
        let new = |cache: &Tensor| {
            let ([b, _, s, _], [_, heads, _, columns]) = (q.dims, cache.dims);
            match q.storage {
                Storage::Varlen { tokens } => Tensor::thd(b, heads, s, columns, tokens, dtype),
                Storage::Dense | Storage::Paged { .. } => Tensor::bshd(b, heads, s, columns, dtype),
            }
        };
        CacheAppend { new_k: new(k), new_v: new(v), k: *k, v: *v }
    }

    /// Checks the description and brings it into canonical form.
    ///
    /// # Errors
    ///
    /// Every problem, each with its place, what was given, what is needed and the fix.
    pub fn validate(self) -> Result<ValidCacheAppend, Refusal> {
        check::validate(self)
    }
}

/// An append without contradictions, in canonical form. Only [`CacheAppend::validate`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValidCacheAppend(CacheAppend);

impl Deref for ValidCacheAppend {
    type Target = CacheAppend;

    fn deref(&self) -> &CacheAppend {
        &self.0
    }
}

/// The tag that separates the keys of appends from those of attentions.
const TAG: &str = "qkvault append to caches, key format 1";

impl ValidCacheAppend {
    /// The key of this append, which identifies its computation independently of the GPU.
    #[must_use]
    pub fn key(&self) -> GraphKey {
        let CacheAppend { new_k, new_v, k, v } = self.0;
        let of = |t: Tensor| {
            let Tensor { dims, strides, dtype, storage } = t;
            let storage = match storage {
                Storage::Dense => (1_u8, 0, 0),
                Storage::Varlen { tokens } => (2, tokens, 0),
                Storage::Paged { pages, page_size } => (3, pages, page_size),
            };
            (dims, strides, dtype.code(), storage)
        };
        let mut hasher = blake3::Hasher::new_derive_key(TAG);
        hasher.update(&codec::encode(&[new_k, new_v, k, v].map(of).to_vec()));
        GraphKey::from_bytes(*hasher.finalize().as_bytes())
    }

    /// Identifies this append inside this process, among other descriptions.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_key(&self.key())
    }

    /// Whether numbers are quantized, and not copied.
    #[must_use]
    pub fn narrows(&self) -> bool {
        self.k.dtype.is_fp8()
    }
}

impl fmt::Display for ValidCacheAppend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheAppend { new_k, new_v: _, k, v } = self.0;
        let [b, h, s, d] = new_k.dims;
        write!(f, "append {} [{b},{h},{s},{d}] to {}", new_k.dtype, k.dtype)?;
        match k.storage {
            Storage::Paged { page_size, .. } => write!(f, " pages of {page_size}")?,
            Storage::Dense | Storage::Varlen { .. } => f.write_str(" caches")?,
        }
        write!(f, " for {} keys", k.dims[2])?;
        if v.dims[3] == d { Ok(()) } else { write!(f, ", values of {}", v.dims[3]) }
    }
}

#[cfg(test)]
mod tests;
