//! The serde form of an attention: its format number, then its fields.
//!
//! Every field is written, absent ones as null, and every field must be present when it is read: a missing field does
//! not mean "none". An unknown field is an error. Format 1 stays readable: a field that is added to it later gets a
//! default that means what format 1 meant.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::attention::{Attention, Dropout, Fp8, Outputs, PaddedRows, Pass, ScoreModBprop};
use crate::expr::ScoreExpr;
use crate::{Mask, Origins, Tensor};

/// The format that this version writes: the number under `qkvault` in the JSON of an attention.
pub const ATTENTION_FORMAT: u32 = 1;

/// The format number, which is checked before the fields after it are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format;

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(ATTENTION_FORMAT)
    }
}

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Format, D::Error> {
        match u32::deserialize(from)? {
            ATTENTION_FORMAT => Ok(Format),
            0 => Err(de::Error::custom(format_args!(
                "format 0 of attentions does not exist; this qkvault writes format {ATTENTION_FORMAT}"
            ))),
            newer => Err(de::Error::custom(format_args!(
                "a newer qkvault wrote this attention (format {newer}); this one reads format {ATTENTION_FORMAT}; use the newer one, or the text form"
            ))),
        }
    }
}

/// An attention with its format.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttentionForm {
    #[serde(default)]
    qkvault: Option<Format>,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    mask: Mask,
    #[serde(deserialize_with = "crate::codec::present")]
    score_mod: Option<ScoreExpr>,
    sink: bool,
    #[serde(deserialize_with = "crate::codec::present")]
    dropout: Option<Dropout>,
    block_mask: bool,
    outputs: Outputs,
    padded_rows: PaddedRows,
    #[serde(deserialize_with = "crate::codec::present")]
    fp8: Option<Fp8>,
    pass: Pass,
    // These are last, because a list of fields without them is shorter. Each is written, as null if there is none, if
    // one after it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    score_mod_bprop: Option<Option<ScoreModBprop>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origins: Option<Option<Origins>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    invariant: Option<bool>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    draft_tree: bool,
}

/// The error for an attention without a format number.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the field `qkvault` with the format of the attention is missing; write `\"qkvault\": {ATTENTION_FORMAT}` before `q`"
)]
pub(crate) struct NoFormat;

impl TryFrom<AttentionForm> for Attention {
    type Error = NoFormat;

    fn try_from(form: AttentionForm) -> Result<Attention, NoFormat> {
        let AttentionForm {
            qkvault,
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            origins,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows,
            invariant,
            draft_tree,
            fp8,
            pass,
        } = form;
        let Format = qkvault.ok_or(NoFormat)?;
        let (score_mod_bprop, origins) = (score_mod_bprop.flatten(), origins.flatten());
        let invariant = invariant.unwrap_or(false);
        Ok(Attention {
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            origins,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows,
            invariant,
            draft_tree,
            fp8,
            pass,
        })
    }
}

impl From<Attention> for AttentionForm {
    fn from(attention: Attention) -> AttentionForm {
        let Attention {
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            origins,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows,
            invariant,
            draft_tree,
            fp8,
            pass,
        } = attention;
        let qkvault = Some(Format);
        let invariant = (invariant || draft_tree).then_some(invariant);
        let origins = (origins.is_some() || invariant.is_some()).then_some(origins);
        let score_mod_bprop = (score_mod_bprop.is_some() || origins.is_some()).then_some(score_mod_bprop);
        AttentionForm {
            qkvault,
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            origins,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows,
            invariant,
            draft_tree,
            fp8,
            pass,
        }
    }
}
