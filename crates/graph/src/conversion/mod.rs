//! Conversions of a tensor between 16 or 32 bits and 8 bits with scales, as data: what 8-bit attention reads is made of
//! what a model computes, and back.

mod check;
mod operands;

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::{DType, Fingerprint, GraphKey, Order, Refusal, Storage, Tensor, codec};

pub use check::CONVERSION_DTYPES;

/// The direction in which 32 elements share a scale in the microscaled formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Along {
    /// Along a row: elements of one head dim.
    HeadDim,
    /// Down a column: elements of the sequence, for sums over the sequence.
    Sequence,
}

/// What a conversion does. Products are rounded to f32, and the result once more to the output's type: to the nearest
/// number, ties to even. What is too large for 8 bits becomes the largest finite number, an infinity too; a NaN stays
/// a NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ConversionKind {
    /// To 8 bits with a scale that the caller gives (delayed scaling): `narrow = wide * scale`.
    ///
    /// Writes the largest magnitude of `wide` (NaN if there is a NaN) and `descale = 1 / scale`.
    Delayed,
    /// To 8 bits with a scale made of the largest magnitude (current scaling): `scale = largest / amax`, where
    /// `largest` is the largest finite number of the 8-bit type, at most 2^126, and 1 if the amax is zero, infinite or
    /// NaN.
    ///
    /// Writes the scale, `descale = 1 / scale` and the amax.
    Current {
        /// Whether the scale is the next lower power of two, so that scaling rounds nothing.
        power_of_two: bool,
    },
    /// To 8 bits with a power of two for every 32 elements (MXFP8): the smallest with which none of them exceeds the
    /// largest finite number, at least 2^-127. An infinity counts as 2^128; the power of a block with a NaN is NaN.
    ///
    /// Writes these powers as [`DType::E8M0`], in cuDNN's order `F8_128x4`, padded to whole tiles with the smallest.
    Blocks(Along),
    /// From 8 bits: `wide = narrow * descale`.
    Dequantize,
    /// From 8 bits with a power of two for every 32 elements, as [`ConversionKind::Blocks`] writes them.
    DequantizeBlocks(Along),
}

impl ConversionKind {
    /// All kinds.
    pub const ALL: [ConversionKind; 8] = [
        ConversionKind::Delayed,
        ConversionKind::Current { power_of_two: false },
        ConversionKind::Current { power_of_two: true },
        ConversionKind::Blocks(Along::HeadDim),
        ConversionKind::Blocks(Along::Sequence),
        ConversionKind::Dequantize,
        ConversionKind::DequantizeBlocks(Along::HeadDim),
        ConversionKind::DequantizeBlocks(Along::Sequence),
    ];

    /// Whether it makes 8 bits of more.
    #[must_use]
    pub const fn narrows(self) -> bool {
        matches!(self, ConversionKind::Delayed | ConversionKind::Current { .. } | ConversionKind::Blocks(_))
    }

    /// The direction in which elements share a scale, if not all do.
    #[must_use]
    pub const fn along(self) -> Option<Along> {
        match self {
            ConversionKind::Blocks(along) | ConversionKind::DequantizeBlocks(along) => Some(along),
            ConversionKind::Delayed | ConversionKind::Current { .. } | ConversionKind::Dequantize => None,
        }
    }
}

/// A conversion of one tensor: described as data, [validated](Conversion::validate), identified by a key.
///
/// ```
/// use qkvault_graph::{Along, Conversion, DType, Order, ConversionKind, Tensor};
///
/// // Batch 2, 8 heads, 4096 tokens, head dim 128; the 8-bit tensor is contiguous in the same order.
/// let queries = Tensor::bshd(2, 8, 4096, 128, DType::BF16);
/// let current = Conversion::to(DType::E4M3, queries, ConversionKind::Current { power_of_two: false }).validate()?;
/// assert_eq!(current.narrow.strides, queries.strides);
/// let blocks = Conversion::to(DType::E4M3, queries, ConversionKind::Blocks(Along::HeadDim)).validate()?;
/// assert_eq!(blocks.block_scales().map(|t| t.dims), Some([2, 8, 4096, 4]));
/// assert_ne!(current.key(), blocks.key());
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversion {
    /// The tensor in f16, bf16 or f32: the input to 8 bits, the output from 8 bits.
    pub wide: Tensor,
    /// The tensor in 8 bits (e4m3 or e5m2), of the same dims and dense too; its strides may be others.
    pub narrow: Tensor,
    /// What is done.
    pub kind: ConversionKind,
}

impl Conversion {
    /// A conversion of `wide` to an 8-bit type. The 8-bit tensor is contiguous, in the memory order of `wide` if that
    /// is contiguous too, else in the order (batch, head, sequence, head dim).
    #[must_use]
    pub fn to(dtype: DType, wide: Tensor, kind: ConversionKind) -> Conversion {
        let narrow = Tensor { dtype, ..contiguous(wide) };
        Conversion { wide, narrow, kind }
    }

    /// A conversion of an 8-bit tensor to f16, bf16 or f32, contiguous as [`Conversion::to`] says.
    #[must_use]
    pub fn from(narrow: Tensor, dtype: DType, kind: ConversionKind) -> Conversion {
        let wide = Tensor { dtype, ..contiguous(narrow) };
        Conversion { wide, narrow, kind }
    }

    /// Checks the description and brings it into canonical form.
    ///
    /// # Errors
    ///
    /// Every problem, each with its place, what was given, what is needed and the fix.
    pub fn validate(self) -> Result<ValidConversion, Refusal> {
        check::validate(self)
    }
}

fn contiguous(t: Tensor) -> Tensor {
    let order = t.order().unwrap_or(Order::Bhsd);
    let strides = order.checked_strides(t.dims).unwrap_or(t.strides);
    Tensor { strides, storage: Storage::Dense, ..t }
}

/// A conversion without contradictions, in canonical form. Only [`Conversion::validate`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValidConversion(Conversion);

impl Deref for ValidConversion {
    type Target = Conversion;

    fn deref(&self) -> &Conversion {
        &self.0
    }
}

/// The tag that separates the keys of conversions from those of attentions.
const TAG: &str = "qkvault conversion, key format 2";

impl ValidConversion {
    /// The key of this conversion, which identifies its computation independently of the GPU.
    #[must_use]
    pub fn key(&self) -> GraphKey {
        let Conversion { wide, narrow, kind } = self.0;
        let of = |t: Tensor| {
            let Tensor { dims, strides, dtype, storage: _ } = t;
            (dims, strides, dtype.code())
        };
        let along = |along| match along {
            Along::HeadDim => 1_u8,
            Along::Sequence => 2,
        };
        let kind = match kind {
            ConversionKind::Delayed => (1_u8, 0_u8),
            ConversionKind::Current { power_of_two } => (2, power_of_two.into()),
            ConversionKind::Blocks(of) => (3, along(of)),
            ConversionKind::Dequantize => (4, 0),
            ConversionKind::DequantizeBlocks(of) => (5, along(of)),
        };
        let mut hasher = blake3::Hasher::new_derive_key(TAG);
        hasher.update(&codec::encode(&(of(wide), of(narrow), kind)));
        GraphKey::from_bytes(*hasher.finalize().as_bytes())
    }

    /// Identifies this conversion inside this process, among conversions and attentions.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_key(&self.key())
    }
}

impl fmt::Display for ValidConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conversion { wide, narrow, kind } = self.0;
        let (from, to) = if kind.narrows() { (wide, narrow) } else { (narrow, wide) };
        let [b, h, s, d] = wide.dims;
        let order = |t: Tensor| t.order().map_or_else(|| format!(" {:?}", t.strides), |order| format!(" {order}"));
        write!(f, "{}{} to {}{} [{b},{h},{s},{d}], ", from.dtype, order(from), to.dtype, order(to))?;
        f.write_str(match kind {
            ConversionKind::Delayed => "delayed scaling",
            ConversionKind::Current { power_of_two: false } => "current scaling",
            ConversionKind::Current { power_of_two: true } => "current scaling by powers of two",
            ConversionKind::Dequantize => "one scale",
            ConversionKind::Blocks(Along::HeadDim) | ConversionKind::DequantizeBlocks(Along::HeadDim) => {
                "blocks of the head dim"
            }
            ConversionKind::Blocks(Along::Sequence) | ConversionKind::DequantizeBlocks(Along::Sequence) => {
                "blocks of the sequence"
            }
        })
    }
}

#[cfg(test)]
mod tests;
