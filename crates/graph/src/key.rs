//! Keys that identify descriptions and plans.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Attention, canon};

/// Version of everything that is hashed: canonical bytes, the op graph's encoding, and the record of a stored plan.
///
/// Raise it when the meaning of any of these changes; golden vectors in the tests then fail. Raise the vault's
/// `STORE_FORMAT` with it, so that a folder holds keys of one format.
///
/// 1: until 2026-11-22. 2: a plan's key contains the toolchain, and both kinds of keys contain their format.
pub const KEY_FORMAT: u32 = 2;

/// Tags that separate the hashes of each kind and format from all others.
const ATTENTION_TAG: &str = "qkvault attention, key format 2";
const PLAN_TAG: &str = "qkvault plan, key format 2";

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The 32 bytes.
            #[must_use]
            pub const fn bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// The key with these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                $name(bytes)
            }

            /// The first 12 hexadecimal digits, for tables.
            #[must_use]
            pub fn short(&self) -> String {
                self.to_string()[..12].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(blake3::Hash::from_bytes(self.0).to_hex().as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = BadKey;

            fn from_str(s: &str) -> Result<Self, BadKey> {
                blake3::Hash::from_hex(s).map(|h| $name(*h.as_bytes())).map_err(|_| BadKey { given: s.into() })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

keys! {
    /// Identifies a valid attention, independently of the target: `blake3(tag with format ‖ canonical bytes)`.
    GraphKey;
    /// Identifies a compiled plan: `blake3(tag ‖ everything that it is compiled from)`.
    PlanKey;
}

/// The error for a text that is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a key; a key is 64 hexadecimal digits")]
pub struct BadKey {
    /// The text.
    pub given: String,
}

fn hash(tag: &str, bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(tag);
    hasher.update(bytes);
    *hasher.finalize().as_bytes()
}

impl PlanKey {
    /// The key of a plan that is compiled from everything that these bytes contain.
    #[must_use]
    pub fn hashed(bytes: &[u8]) -> PlanKey {
        PlanKey(hash(PLAN_TAG, bytes))
    }
}

impl GraphKey {
    /// The key of an attention in canonical form.
    pub(crate) fn from_canonical(canonical: &Attention) -> GraphKey {
        GraphKey(hash(ATTENTION_TAG, &canon::attention(canonical)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b7_both_kinds_of_keys_contain_their_format() {
        for tag in [ATTENTION_TAG, PLAN_TAG] {
            assert!(tag.ends_with(&format!(" {KEY_FORMAT}")), "{tag}");
        }
    }

    #[test]
    fn keys_read_and_print() {
        let key = GraphKey::from_bytes([0xab; 32]);
        assert_eq!(key.to_string().parse::<GraphKey>(), Ok(key));
        assert_eq!(key.short(), "abababababab");
        assert!("ab".parse::<GraphKey>().is_err());
        let json = serde_json::to_string(&key).expect("serialises");
        assert_eq!(serde_json::from_str::<GraphKey>(&json).expect("parses"), key);
    }
}
