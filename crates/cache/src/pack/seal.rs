//! The seal: a keyed hash over a whole pack or one entry, which only holders of a secret can make.

use std::fmt;

/// A secret of 32 bytes, with which seals are made and checked. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey([u8; 32]);

/// The secret is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a seal's secret needs at least 16 bytes, this one has {found}; make one with \
     `(umask 077; head -c 32 /dev/urandom | base64 > FILE)`"
)]
pub struct WeakSecret {
    /// Its bytes.
    pub found: usize,
}

// Separates these keys from other uses of the same secret.
const CONTEXT: &str = "qkvault seal of packs and remote entries, v1";

impl SealKey {
    /// A key from 32 random bytes.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        SealKey(key)
    }

    /// A key derived from a secret of at least 16 bytes. White space at both ends is ignored, so that a file with and
    /// without a final line end gives the same key.
    ///
    /// # Errors
    ///
    /// [`WeakSecret`] for a shorter secret.
    pub fn from_secret(secret: &[u8]) -> Result<Self, WeakSecret> {
        let secret = secret.trim_ascii();
        match secret.len() {
            found @ 0..16 => Err(WeakSecret { found }),
            _ => Ok(SealKey(blake3::derive_key(CONTEXT, secret))),
        }
    }

    pub(crate) fn seal(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.0, bytes)
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_checked_and_never_shown() {
        assert_eq!(SealKey::from_secret(b" short \n"), Err(WeakSecret { found: 5 }));
        let key = SealKey::from_secret(b"correct horse battery\n").unwrap();
        assert_eq!(SealKey::from_secret(b"correct horse battery"), Ok(key.clone()));
        assert_ne!(key.seal(b"a"), key.seal(b"b"));
        assert_ne!(key.seal(b"a"), SealKey::new([0; 32]).seal(b"a"));
        assert!(!format!("{key:?}").contains("correct"));
    }
}
