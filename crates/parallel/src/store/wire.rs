//! The messages of ranks that have joined: two lengths of four bytes, JSON for the head, and raw bytes of a value.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde::{Deserialize, Serialize};

/// The longest head: a name and some numbers, or the words of a fault.
pub(super) const MOST_HEAD: usize = 64 << 10;
/// The longest value: a store carries digests, ids and, in tests, small tensors.
pub(super) const MOST_VALUE: usize = 256 << 20;
/// Memory that a length alone takes; more is taken as bytes come.
const FIRST: usize = 64 << 10;
/// Bytes of a text in a fault: longer ones are cut.
const MOST_TEXT: usize = 1000;
/// Bytes of a message's name in an error.
const MOST_NAME: usize = 80;

/// What a rank asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Ask {
    /// Stores the bytes behind this message for a rank, from the one that asks.
    Put { name: String, to: u32 },
    /// Takes the bytes that a rank has stored for the one that asks, when they are there, or after so many milliseconds
    /// an error that names `from`.
    Take { name: String, from: u32, wait: u64 },
    /// The first fault of any rank, if there is one; and that this rank lives, with so many exchanges begun.
    Check { begun: u64 },
    /// Who is the cause of a wait of so many milliseconds for something: a fault that every rank hears.
    Late { what: String, waited: u64, begun: u64 },
    /// Tells a fault to every rank.
    Fault { fault: StoreFault },
    /// Ends the connection without a fault.
    Leave,
}

/// What is asked, in the words of errors.
impl std::fmt::Display for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ask::Put { name, to } => write!(f, "{} for rank {to}", short(name)),
            Ask::Take { name, from, .. } => write!(f, "the name of {} from rank {from}", short(name)),
            Ask::Check { .. } | Ask::Late { .. } | Ask::Leave => f.write_str("a question to the store"),
            Ask::Fault { .. } => f.write_str("the report of a fault"),
        }
    }
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum StoreAnswer {
    /// Done.
    Done,
    /// The bytes behind this message.
    Bytes,
    /// It cannot be done any more.
    Fault { fault: StoreFault },
}

/// Why ranks do not come together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum StoreFault {
    /// A rank has ended.
    Gone { rank: u32, how: String },
    /// Ranks have not come within so many milliseconds: one, or those of which one must be the cause.
    Late { ranks: Vec<u32>, waited: u64, what: String },
    /// A rank has another number of ranks or another version.
    Differs { rank: u32, what: String, theirs: String, ours: String },
}

impl StoreFault {
    /// The ranks of which one is the cause.
    pub(super) fn ranks(&self) -> &[u32] {
        match self {
            StoreFault::Gone { rank, .. } | StoreFault::Differs { rank, .. } => std::slice::from_ref(rank),
            StoreFault::Late { ranks, .. } => ranks,
        }
    }

    /// The fault with texts that are cut and have no control characters: every rank prints them.
    pub(super) fn printable(self) -> StoreFault {
        match self {
            StoreFault::Gone { rank, how } => StoreFault::Gone { rank, how: printable(&how) },
            StoreFault::Late { ranks, waited, what } => StoreFault::Late { ranks, waited, what: printable(&what) },
            StoreFault::Differs { rank, what, theirs, ours } => {
                let [what, theirs, ours] = [what, theirs, ours].map(|text| printable(&text));
                StoreFault::Differs { rank, what, theirs, ours }
            }
        }
    }
}

/// A text of another rank, as it may be printed.
fn printable(text: &str) -> String {
    cut(text, MOST_TEXT)
}

/// The name of a message, as it may be printed.
pub(super) fn short(name: &str) -> String {
    cut(name, MOST_NAME)
}

fn cut(text: &str, most: usize) -> String {
    let kept = text.char_indices().take_while(|(at, c)| at + c.len_utf8() <= most);
    kept.map(|(_, c)| if c.is_control() { ' ' } else { c }).collect()
}

/// A message is longer than a store carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong {
    pub(super) bytes: usize,
    pub(super) most: usize,
}

/// The lengths and the head of a message, whose value is to follow. Lengths are compared with the limits before they
/// are written as 32 bits.
fn begin<T: Serialize>(head: &T, value: usize) -> io::Result<Result<Vec<u8>, TooLong>> {
    let head = serde_json::to_vec(head)?;
    for (bytes, most) in [(head.len(), MOST_HEAD), (value, MOST_VALUE)] {
        if bytes > most {
            return Ok(Err(TooLong { bytes, most }));
        }
    }
    let mut frame = Vec::with_capacity(8 + head.len());
    for length in [head.len(), value] {
        let Ok(length) = u32::try_from(length) else {
            return Ok(Err(TooLong { bytes: length, most: u32::MAX as usize }));
        };
        frame.extend(length.to_le_bytes());
    }
    frame.extend(head);
    Ok(Ok(frame))
}

/// Writes one message, or nothing of one that is too long.
pub(super) fn write<T: Serialize>(to: &mut impl Write, head: &T, value: &[u8]) -> io::Result<Result<(), TooLong>> {
    let mut frame = match begin(head, value.len())? {
        Ok(frame) => frame,
        Err(long) => return Ok(Err(long)),
    };
    // A short value goes in the same packet; a long one is not copied.
    if value.len() <= FIRST {
        frame.extend(value);
        to.write_all(&frame)?;
    } else {
        to.write_all(&frame)?;
        to.write_all(value)?;
    }
    to.flush()?;
    Ok(Ok(()))
}

/// Whether a message has arrived whole, without waiting and without taking it: what has not is no answer yet. A stream
/// that has ended has whatever a reader finds.
pub(super) fn has_arrived(stream: &TcpStream) -> io::Result<bool> {
    let mut seen = [0; 8];
    stream.set_nonblocking(true)?;
    let looked: io::Result<bool> = (|| {
        let first = stream.peek(&mut seen)?;
        if first < seen.len() {
            return Ok(first == 0);
        }
        let [a, b, c, d, e, f, g, h] = seen;
        let lengths = [[a, b, c, d], [e, f, g, h]].map(|n| u32::from_le_bytes(n) as usize);
        // A long one is read in peace; a reader refuses one that is too long.
        let mut whole = vec![0; (8 + lengths[0].saturating_add(lengths[1])).min(FIRST)];
        Ok(stream.peek(&mut whole)? == whole.len())
    })();
    stream.set_nonblocking(false)?;
    match looked {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        other => other,
    }
}

/// Reads one message.
pub(super) fn read<T: for<'de> Deserialize<'de>>(from: &mut impl Read) -> io::Result<(T, Vec<u8>)> {
    let mut lengths = [0; 8];
    from.read_exact(&mut lengths)?;
    let [a, b, c, d, e, f, g, h] = lengths;
    let (head, value) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
    if head > MOST_HEAD || value > MOST_VALUE {
        let text = format!("a message of {head} and {value} bytes, of at most {MOST_HEAD} and {MOST_VALUE}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let read = serde_json::from_slice(&bytes(from, head)?)?;
    Ok((read, bytes(from, value)?))
}

fn bytes(from: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(count.min(FIRST));
    from.by_ref().take(count as u64).read_to_end(&mut bytes)?;
    if bytes.len() < count {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_garbage_is_an_error() {
        for length in [5, FIRST, FIRST + 1, 1 << 20] {
            let (mut bytes, value) = (Vec::new(), vec![7; length]);
            let ask = Ask::Take { name: "a".to_owned(), from: 3, wait: 7 };
            write(&mut bytes, &ask, &value).expect("writes").expect("is short enough");
            let (read_again, came): (Ask, _) = read(&mut bytes.as_slice()).expect("reads");
            assert!(read_again == ask && came == value);
            for cut in (0..bytes.len()).step_by(1 + length / 64) {
                assert!(read::<Ask>(&mut &bytes[..cut]).is_err(), "{cut}");
            }
        }
        assert!(read::<Ask>(&mut [0xff_u8; 64].as_slice()).is_err());
        assert!(read::<Ask>(&mut [b"\x02\0\0\0\0\0\0\0{}".as_slice()].concat().as_slice()).is_err());
    }

    /// The lengths were cast to 32 bits unchecked: a value of 4 GiB and 5 bytes said that it has 5.
    #[test]
    fn audit_leftover_lengths_are_checked_before_they_are_cast() {
        let put = |name: usize| Ask::Put { name: "n".repeat(name), to: 1 };
        for value in [MOST_VALUE + 1, 1 << 32, (1 << 32) + 5, usize::MAX] {
            let long = begin(&put(1), value).expect("is JSON").expect_err("too long");
            assert_eq!(long, TooLong { bytes: value, most: MOST_VALUE });
        }
        let long = begin(&put(MOST_HEAD), 0).expect("is JSON").expect_err("too long");
        assert!(long.bytes > MOST_HEAD && long.most == MOST_HEAD, "{long:?}");
        assert_eq!(begin(&put(1), MOST_VALUE).expect("is JSON").expect("fits")[4..8], [0, 0, 0, 0x10]);
        let mut none = Vec::new();
        let long = write(&mut none, &put(MOST_HEAD), &[]).expect("no error of the stream");
        assert!(long.is_err() && none.is_empty(), "nothing of it is written");
    }

    /// Gives lengths and then nothing, and counts the largest buffer that is offered for bytes to come.
    struct Liar {
        lengths: Vec<u8>,
        largest: usize,
    }

    impl Read for Liar {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.lengths.is_empty() {
                self.largest = self.largest.max(into.len());
                return Ok(0);
            }
            let count = into.len().min(self.lengths.len());
            into[..count].copy_from_slice(&self.lengths[..count]);
            self.lengths.drain(..count);
            Ok(count)
        }
    }

    #[test]
    fn audit_4_a_length_alone_takes_no_memory() {
        let head = serde_json::to_vec(&Ask::Leave).expect("is JSON");
        let lengths = [&(head.len() as u32).to_le_bytes()[..], &(MOST_VALUE as u32).to_le_bytes()[..], &head].concat();
        let mut liar = Liar { lengths, largest: 0 };
        assert!(read::<Ask>(&mut liar).is_err());
        assert!(liar.largest <= FIRST, "{} bytes for a length alone", liar.largest);
        for (head, value) in [(MOST_HEAD + 1, 0), (0, MOST_VALUE + 1), (u32::MAX as usize, 0), (0, u32::MAX as usize)] {
            let lengths = [(head as u32).to_le_bytes(), (value as u32).to_le_bytes()].concat();
            let error = read::<Ask>(&mut lengths.as_slice()).expect_err("too long").to_string();
            assert!(error.contains(&format!("{head} and {value} bytes")) && error.contains("at most"), "{error}");
        }
    }

    #[test]
    fn audit_4_texts_of_other_ranks_are_cut_and_cannot_steer_a_terminal() {
        let fault = StoreFault::Gone { rank: 1, how: format!("\u{1b}[31mred\nrank 0 is gone{}", "ü".repeat(4_000)) };
        let StoreFault::Gone { how, .. } = fault.printable() else { panic!("the same kind") };
        assert!(how.starts_with(" [31mred rank 0") && how.len() <= MOST_TEXT, "{how}");
    }
}
