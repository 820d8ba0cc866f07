//! The fingerprint of a valid attention, which distinguishes attentions inside a process. It is computed once for all
//! clones.
//!
//! A key identifies a computation; a fingerprint also covers the names that a launch binds by. It is in no file:
//! entries are stored under keys.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::{Attention, Dropout, GraphKey, ScoreModBprop, codec};

/// The tag that separates these hashes from all others.
const TAG: &str = "qkvault fingerprint of an attention in memory";

/// Identifies a valid attention inside a process: equal exactly if the two attentions are equal.
///
/// It covers everything in the [`GraphKey`] (including values in the description, such as ALiBi slopes), and what a key
/// leaves out but a program can observe: the names of scalars and tensors, the dropout probability, and whether an own
/// backward of the score modification is trusted. It has 32 bytes, of which 8 are its hash, and is neither printed nor
/// stored: a later version may compute another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of an attention in canonical form, with its key.
    pub(super) fn new(key: &GraphKey, attention: &Attention) -> Fingerprint {
        let Attention {
            q: _,
            k: _,
            v: _,
            o: _,
            mask,
            score_mod,
            score_mod_bprop,
            origins: _,
            sink: _,
            dropout,
            block_mask: _,
            outputs: _,
            padded_rows: _,
            invariant: _,
            draft_tree: _,
            fp8: _,
            pass: _,
        } = attention;
        let names = |expression: Option<&crate::ScoreExpr>| {
            expression.map(|e| (e.scalar_names().to_vec(), e.tensor_names().to_vec()))
        };
        // Both zeros are equal.
        let probability = dropout.map(|Dropout { source: _, probability }| (probability + 0.0).to_bits());
        // The key covers which operands the derivative reads.
        let trusted = score_mod_bprop.as_ref().map(|ScoreModBprop { derivative: _, trusted }| *trusted);
        let beside = (names(score_mod.as_ref()), names(mask.mask_mod.as_ref()), probability, trusted);
        if beside == (None, None, None, None) {
            // The key says all, and no hash of the other kind equals it.
            return Fingerprint(*key.bytes());
        }
        let mut hasher = blake3::Hasher::new_derive_key(TAG);
        hasher.update(key.bytes());
        hasher.update(&codec::encode(&beside));
        Fingerprint(*hasher.finalize().as_bytes())
    }

    /// The fingerprint of what its key says all of.
    pub(crate) const fn of_key(key: &GraphKey) -> Fingerprint {
        Fingerprint(*key.bytes())
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
