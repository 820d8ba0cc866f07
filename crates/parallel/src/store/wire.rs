//! The messages of the store: a length of four bytes, then JSON for the head, and raw bytes of a value behind it.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// The first bytes of a connection: what speaks here, and in which version.
pub(super) const MAGIC: [u8; 8] = *b"qkvpar01";
/// The longest message: a store carries digests, ids and, in tests, small tensors.
const LONGEST: usize = 256 << 20;

/// What a rank asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Ask {
    /// Begins a connection.
    Join { rank: u32, size: u32, version: String },
    /// Stores the bytes behind this message.
    Put { key: String },
    /// Takes the bytes of a key out of the store, when they are there, or after so many milliseconds an error that
    /// names `from`. They come from that rank.
    Take { key: String, from: u32, wait: u64 },
    /// The first fault of any rank, if there is one.
    Check,
    /// Tells a fault to every rank.
    Fault { fault: Fault },
    /// Ends the connection without a fault.
    Leave,
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Answer {
    /// Done.
    Done,
    /// The bytes behind this message.
    Bytes,
    /// It cannot be done any more.
    Fault { fault: Fault },
}

/// Why ranks do not come together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Fault {
    /// A rank has ended.
    Gone { rank: u32, how: String },
    /// A rank has not come within so many milliseconds.
    Late { rank: u32, waited: u64, what: String },
    /// A rank has another number of ranks or another version.
    Differs { rank: u32, what: String, theirs: String, ours: String },
}

/// Writes one message.
pub(super) fn write<T: Serialize>(to: &mut impl Write, head: &T, value: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let mut frame = Vec::with_capacity(8 + head.len() + value.len());
    frame.extend((head.len() as u32).to_le_bytes());
    frame.extend((value.len() as u32).to_le_bytes());
    frame.extend(head);
    frame.extend(value);
    to.write_all(&frame)?;
    to.flush()
}

/// Reads one message.
pub(super) fn read<T: for<'de> Deserialize<'de>>(from: &mut impl Read) -> io::Result<(T, Vec<u8>)> {
    let mut lengths = [0; 8];
    from.read_exact(&mut lengths)?;
    let [a, b, c, d, e, f, g, h] = lengths;
    let (head, value) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
    if head > 1 << 16 || value > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {head} and {value} bytes")));
    }
    let mut bytes = vec![0; head];
    from.read_exact(&mut bytes)?;
    let read = serde_json::from_slice(&bytes)?;
    let mut bytes = vec![0; value];
    from.read_exact(&mut bytes)?;
    Ok((read, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_garbage_is_an_error() {
        let mut bytes = Vec::new();
        let ask = Ask::Take { key: "a".to_owned(), from: 3, wait: 7 };
        write(&mut bytes, &ask, b"value").expect("writes");
        let (read_again, value): (Ask, _) = read(&mut bytes.as_slice()).expect("reads");
        assert_eq!((read_again, value.as_slice()), (ask, b"value".as_slice()));
        for cut in 0..bytes.len() {
            assert!(read::<Ask>(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        assert!(read::<Ask>(&mut [0xff_u8; 64].as_slice()).is_err());
        assert!(read::<Ask>(&mut [b"\x02\0\0\0\0\0\0\0{}".as_slice()].concat().as_slice()).is_err());
    }
}
