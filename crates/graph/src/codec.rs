//! Converts values to MessagePack and back, in one place, so that the library for it can be replaced.
//!
//! Reading is strict: bytes after the value are an error, because the library would ignore them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

/// MessagePack of a value, with structs as arrays.
///
/// # Panics
///
/// Never for the types of this workspace: writing to memory fails only for values that refuse to serialise.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec(value).expect("plain data always serialises")
}

/// The error for bytes that are not MessagePack of the expected value.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not the expected value.
    #[error("these {len} bytes are not the value expected: {source}")]
    Value {
        /// Number of bytes.
        len: usize,
        /// The decoder's error.
        source: rmp_serde::decode::Error,
    },
    /// More bytes follow the value.
    #[error("{extra} bytes follow the value, which ends at byte {end}")]
    Trailing {
        /// Offset of the end of the value.
        end: usize,
        /// Number of bytes after it.
        extra: usize,
    },
}

/// Reads MessagePack of a value.
///
/// # Errors
///
/// Anything else, including bytes after the value. Never panics.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut rest = bytes;
    let value = T::deserialize(&mut rmp_serde::Deserializer::new(&mut rest))
        .map_err(|source| DecodeError::Value { len: bytes.len(), source })?;
    let extra = rest.len();
    if extra > 0 {
        return Err(DecodeError::Trailing { end: bytes.len() - extra, extra });
    }
    Ok(value)
}

/// Reads an optional field that must be present, as null or as a value; serde by default accepts a missing one as null.
///
/// # Errors
///
/// The field is missing or does not read.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_bytes_are_an_error() {
        let mut bytes = encode(&(1_u8, "two"));
        assert_eq!(decode::<(u8, String)>(&bytes).expect("reads"), (1, "two".into()));
        bytes.push(0);
        assert!(matches!(decode::<(u8, String)>(&bytes), Err(DecodeError::Trailing { extra: 1, .. })));
        assert!(matches!(decode::<(u8, String)>(&bytes[..2]), Err(DecodeError::Value { .. })));
    }
}
