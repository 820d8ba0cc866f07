//! The fingerprint of a valid attention: what tells two of them apart inside a process, computed once for all clones.
//!
//! A key says which computation an attention is; a fingerprint says also what a launch by name depends on. It is no part of any file:
//! what is stored goes under keys.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::{Attention, Dropout, GraphKey, ScoreModBprop, codec};

/// What keeps these hashes apart from all others.
const TAG: &str = "qkvault fingerprint of an attention in memory";

/// What a valid attention is known by inside a process: equal exactly when the two attentions are.
///
/// It has all that the [`GraphKey`] has (so values that a description holds, such as ALiBi slopes), and what a key leaves out but a
/// program can see: the names of scalars and tensors, the probability of dropout, and whether an own backward of the score modification
/// is trusted. It is 32 bytes, hashes as 8 of them, and is neither printed for people nor stored: a later version may compute another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of an attention in canonical form, under its key.
    pub(super) fn of(key: &GraphKey, attention: &Attention) -> Fingerprint {
        let Attention {
            q: _,
            k: _,
            v: _,
            o: _,
            mask,
            score_mod,
            score_mod_bprop,
            sink: _,
            dropout,
            block_mask: _,
            outputs: _,
            padded_rows: _,
            fp8: _,
            pass: _,
        } = attention;
        let names = |expression: Option<&crate::ScoreExpr>| {
            expression.map(|e| (e.scalar_names().to_vec(), e.tensor_names().to_vec()))
        };
        // Two zeros are one number.
        let probability = dropout.map(|Dropout { source: _, probability }| (probability + 0.0).to_bits());
        // Which operands the derivative reads is in the key.
        let trusted = score_mod_bprop.as_ref().map(|ScoreModBprop { derivative: _, trusted }| *trusted);
        let beside = (names(score_mod.as_ref()), names(mask.mask_mod.as_ref()), probability, trusted);
        let mut hasher = blake3::Hasher::new_derive_key(TAG);
        hasher.update(key.bytes());
        hasher.update(&codec::encode(&beside));
        Fingerprint(*hasher.finalize().as_bytes())
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Any 8 bytes of a hash are a hash.
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", &blake3::Hash::from_bytes(self.0).to_hex()[..12])
    }
}
