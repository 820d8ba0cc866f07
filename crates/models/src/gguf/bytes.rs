//! Reads the metadata of a GGUF file. Every length is compared with what is left of the file before anything is made
//! of it, and only the entries that can say something about attention are kept, so that neither a file that lies about
//! its lengths nor one that is full of lists takes more memory than a model's own entries do.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use serde_json::{Value, json};

use qkvault_graph::Refusal;

use super::{MAGIC, fault};

/// Versions that are read.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;
/// More entries than any model has.
const MOST_ENTRIES: u64 = 1 << 16;
/// The longest key that is read, and the longest text that is kept: the format allows keys of as many bytes.
const LONGEST: u64 = 1 << 16;
/// The longest list that is kept: one entry for each layer. Longer ones are vocabularies.
const LONGEST_LIST: u64 = 1 << 12;
/// Most values that are kept, those in lists included. Models with a value for each layer have a thousand.
const MOST_KEPT: u64 = 1 << 18;
/// Most bytes of metadata. Vocabularies have a hundredth of it.
const MOST_BYTES: u64 = 1 << 30;

/// A file, and how much of it is left.
struct Bytes<R> {
    reader: R,
    at: u64,
    size: u64,
    /// The key that is read.
    key: String,
    /// Whether lengths have 4 bytes.
    short: bool,
    /// Values that are kept.
    kept: u64,
}

/// The entries whose keys are `wanted`, as far as they can say something about attention: texts, numbers, and short
/// lists of numbers.
pub(super) fn metadata(
    reader: impl BufRead,
    size: u64,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Value>, Refusal> {
    let size = size.min(MOST_BYTES);
    let mut bytes = Bytes { reader, at: 0, size, key: "GGUF".to_owned(), short: false, kept: 0 };
    if bytes.array::<4>()? != MAGIC {
        return Err(fault("GGUF", "another beginning", "a file that begins with GGUF"));
    }
    let version = bytes.u32()?;
    if !VERSIONS.contains(&version) {
        let given = format!("version {version}");
        return Err(fault("GGUF", given, "a version from 1 to 3, of this machine's byte order"));
    }
    bytes.short = version == 1;
    let _tensors = bytes.length()?;
    let entries = bytes.length()?;
    if entries > MOST_ENTRIES {
        return Err(fault("GGUF", format!("{entries} entries of metadata"), "at most 65536"));
    }
    let mut found = BTreeMap::new();
    for _ in 0..entries {
        "the next key".clone_into(&mut bytes.key);
        let key = bytes.text()?;
        if key.is_empty() { "a key without a name" } else { &key }.clone_into(&mut bytes.key);
        let kind = bytes.u32()?;
        if !wanted(&key) {
            bytes.pass(kind, 0)?;
        } else if let Some(value) = bytes.value(kind)? {
            found.insert(key, value);
        }
    }
    Ok(found)
}

impl<R: BufRead> Bytes<R> {
    fn cut(&self, needed: u64) -> Refusal {
        let left = self.size - self.at;
        let given = format!("the file has {left} bytes left at byte {} and needs {needed}", self.at);
        fault(&self.key, given, "a whole file: it is cut short, or a length in it is wrong")
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let mut out = [0; N];
        if self.size - self.at < N as u64 || self.reader.read_exact(&mut out).is_err() {
            return Err(self.cut(N as u64));
        }
        self.at += N as u64;
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_le_bytes)
    }

    fn length(&mut self) -> Result<u64, Refusal> {
        if self.short { self.u32().map(u64::from) } else { self.array().map(u64::from_le_bytes) }
    }

    /// Skips bytes.
    fn skip(&mut self, count: u64) -> Result<(), Refusal> {
        if self.size - self.at < count {
            return Err(self.cut(count));
        }
        let copied = std::io::copy(&mut Read::by_ref(&mut self.reader).take(count), &mut std::io::sink());
        if copied.ok() != Some(count) {
            return Err(self.cut(count));
        }
        self.at += count;
        Ok(())
    }

    /// A text; one that is too long to matter is skipped and empty.
    fn text(&mut self) -> Result<String, Refusal> {
        let length = self.length()?;
        if self.size - self.at < length {
            return Err(self.cut(length));
        }
        if length > LONGEST {
            return self.skip(length).map(|()| String::new());
        }
        let mut out = Vec::new();
        let read = Read::by_ref(&mut self.reader).take(length).read_to_end(&mut out);
        if read.ok().map(|n| n as u64) != Some(length) {
            return Err(self.cut(length));
        }
        self.at += length;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    /// A value of this kind, or `None` if it is too long to matter.
    fn value(&mut self, kind: u32) -> Result<Option<Value>, Refusal> {
        if kind == 9 {
            return self.list();
        }
        self.keep(1)?;
        if kind == 8 { self.text().map(|text| Some(json!(text))) } else { self.number(kind).map(Some) }
    }

    /// A number of this kind, or true or false.
    fn number(&mut self, kind: u32) -> Result<Value, Refusal> {
        Ok(match kind {
            0 => json!(u8::from_le_bytes(self.array()?)),
            1 => json!(i8::from_le_bytes(self.array()?)),
            2 => json!(u16::from_le_bytes(self.array()?)),
            3 => json!(i16::from_le_bytes(self.array()?)),
            4 => json!(self.u32()?),
            5 => json!(i32::from_le_bytes(self.array()?)),
            6 => json!(f32::from_le_bytes(self.array()?)),
            7 => json!(self.array::<1>()? != [0]),
            10 => json!(u64::from_le_bytes(self.array()?)),
            11 => json!(i64::from_le_bytes(self.array()?)),
            12 => json!(f64::from_le_bytes(self.array()?)),
            other => return Err(self.unknown(other)),
        })
    }

    fn unknown(&self, kind: u32) -> Refusal {
        let needed = "a type from 0 to 12, lists within lists once at most";
        fault(&self.key, format!("type {kind}"), needed)
    }

    /// Counts values that are kept.
    fn keep(&mut self, count: u64) -> Result<(), Refusal> {
        self.kept += count;
        if self.kept > MOST_KEPT {
            let needed = format!("at most {MOST_KEPT}");
            return Err(fault(&self.key, format!("{} values about attention", self.kept), &needed));
        }
        Ok(())
    }

    /// The type of a list's elements, and their number.
    fn head(&mut self) -> Result<(u32, u64), Refusal> {
        let (kind, count) = (self.u32()?, self.length()?);
        // Each element has a byte at least.
        if self.size - self.at < count { Err(self.cut(count)) } else { Ok((kind, count)) }
    }

    /// A list of numbers; one of texts or of lists says nothing about attention, and a long one is a vocabulary.
    fn list(&mut self) -> Result<Option<Value>, Refusal> {
        let (kind, count) = self.head()?;
        if width(kind) == 0 || count > LONGEST_LIST {
            return self.pass_all(kind, count, 0).map(|()| None);
        }
        self.keep(count)?;
        let mut list = Vec::with_capacity(count as usize);
        for _ in 0..count {
            list.push(self.number(kind)?);
        }
        Ok(Some(list.into()))
    }

    /// Skips a value of this kind.
    fn pass(&mut self, kind: u32, depth: u32) -> Result<(), Refusal> {
        match kind {
            8 => {
                let length = self.length()?;
                self.skip(length)
            }
            9 if depth < 2 => {
                let (kind, count) = self.head()?;
                self.pass_all(kind, count, depth)
            }
            other if width(other) > 0 => self.skip(width(other)),
            other => Err(self.unknown(other)),
        }
    }

    /// Skips the elements of a list.
    fn pass_all(&mut self, kind: u32, count: u64, depth: u32) -> Result<(), Refusal> {
        if width(kind) > 0 {
            return self.skip(count.saturating_mul(width(kind)));
        }
        (0..count).try_for_each(|_| self.pass(kind, depth + 1))
    }
}

/// Bytes of a number of this kind; 0 for texts, lists and unknown kinds.
const fn width(kind: u32) -> u64 {
    match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => 0,
    }
}
