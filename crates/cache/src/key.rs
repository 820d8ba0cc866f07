//! The key of an entry: 32 bytes that the caller computes, written as 64 lower-case hex digits.
//!
//! The vault never computes or interprets a key. A caller hashes everything that can change the entry, and nothing
//! else.

use std::fmt;
use std::str::FromStr;

/// A 32-byte key. `Display` writes 64 lower-case hex digits; `FromStr` reads them in either case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 32]);

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseKeyError {
    /// The text does not have 64 characters.
    #[error("a key has 64 hex digits, this text has {found} characters; copy the whole key from `cache ls`")]
    Length {
        /// Characters found.
        found: usize,
    },
    /// A character is not a hex digit.
    #[error("a key has hex digits only, character {at} is {found:?}")]
    Digit {
        /// Position of the character, from 0.
        at: usize,
        /// The character.
        found: char,
    },
}

impl Key {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A table is fast: every look-up on disk writes a file name.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.pad(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let found = text.chars().count();
        if found != 64 {
            return Err(ParseKeyError::Length { found });
        }
        let mut bytes = [0u8; 32];
        for (at, digit) in text.chars().enumerate() {
            let value = digit.to_digit(16).ok_or(ParseKeyError::Digit { at, found: digit })?;
            // `to_digit(16)` is below 16, so the cast keeps everything.
            bytes[at / 2] = (bytes[at / 2] << 4) | value as u8;
        }
        Ok(Key(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_that_is_no_key_says_why() {
        assert_eq!("".parse::<Key>(), Err(ParseKeyError::Length { found: 0 }));
        assert_eq!("ab".parse::<Key>(), Err(ParseKeyError::Length { found: 2 }));
        let text = format!("{}g", "0".repeat(63));
        assert_eq!(text.parse::<Key>(), Err(ParseKeyError::Digit { at: 63, found: 'g' }));
        // 64 bytes of UTF-8 but fewer characters: counted as characters, never split.
        assert!("é".repeat(32).parse::<Key>().is_err());
        assert!("é".repeat(64).parse::<Key>().is_err());
    }

    proptest! {
        #[test]
        fn text_form_comes_back(bytes in any::<[u8; 32]>()) {
            let key = Key(bytes);
            let text = key.to_string();
            prop_assert_eq!(text.len(), 64);
            prop_assert_eq!(text.parse::<Key>(), Ok(key));
            prop_assert_eq!(text.to_uppercase().parse::<Key>(), Ok(key));
        }
    }
}
