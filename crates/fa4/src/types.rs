//! Types of kernel parameters, as the compiler prints them (LLVM's types in MLIR), and how they lie in memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    /// An address of 8 bytes.
    Pointer,
    /// An integer of so many bytes; booleans have one.
    Integer(u32),
    /// A number in f32.
    Float,
    /// Types one after the other, each aligned.
    Struct(Vec<Type>),
    /// A type so many times.
    Array(u32, Box<Type>),
}

/// A part of a parameter that holds one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Offset of its first byte.
    pub at: u32,
    /// Its bytes.
    pub size: u32,
    /// What it holds.
    pub kind: LeafKind,
}

/// What a part of a parameter holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// An address.
    Pointer,
    /// An integer.
    Integer,
    /// A number in f32.
    Float,
    /// A tensor map.
    Map,
}

/// The text is no type that is known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no type of a kernel parameter that is known")]
pub struct UnknownType {
    /// The text.
    pub text: String,
}

/// Words of a tensor map.
const MAP_WORDS: u32 = 16;

/// Nested types that are read: far more than any has, so that no text exhausts the stack.
const DEPTH: usize = 32;

/// Bytes that a parameter may have: those of all parameters of a kernel (`Limits::PARAMS` of recipes).
const BYTES: u32 = 4096;

impl Type {
    /// Reads a type.
    ///
    /// # Errors
    ///
    /// [`UnknownType`] with the text.
    pub fn read(text: &str) -> Result<Type, UnknownType> {
        let unknown = || UnknownType { text: text.to_owned() };
        let (kind, rest) = part(text, DEPTH).ok_or_else(unknown)?;
        if rest.trim().is_empty() && kind.is_bounded() { Ok(kind) } else { Err(unknown()) }
    }

    /// Whether it is as large and as deep as types of parameters are, so that nothing below overflows or takes more
    /// memory than that.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.weight(DEPTH).is_some_and(|weight| weight <= BYTES)
    }

    /// At least its bytes and the number of its parts; `None` if it is too deep, or overflows.
    fn weight(&self, depth: usize) -> Option<u32> {
        let depth = depth.checked_sub(1)?;
        match self {
            Type::Pointer => Some(8),
            Type::Integer(bytes) => matches!(bytes, 1 | 2 | 4 | 8).then_some(*bytes),
            Type::Float => Some(4),
            Type::Array(count, of) => count.checked_mul(of.weight(depth)?.max(1)),
            // The end of each field is aligned, to 8 bytes at most.
            Type::Struct(fields) => fields.iter().try_fold(0_u32, |sum, field| {
                sum.checked_next_multiple_of(8)?
                    .checked_add(field.weight(depth)?.max(1))
                    .filter(|sum| *sum <= 2 * BYTES)
            }),
        }
    }

    /// Its size and alignment in bytes.
    #[must_use]
    pub fn layout(&self) -> (u32, u32) {
        match self {
            Type::Pointer => (8, 8),
            Type::Integer(bytes) => (*bytes, *bytes),
            Type::Float => (4, 4),
            Type::Array(count, of) => {
                let (size, align) = of.layout();
                (size * count, align)
            }
            Type::Struct(fields) => {
                let (mut end, mut most) = (0_u32, 1);
                for (size, align) in fields.iter().map(Type::layout) {
                    end = end.next_multiple_of(align) + size;
                    most = most.max(align);
                }
                (end.next_multiple_of(most), most)
            }
        }
    }

    /// The parts that hold a value, in order.
    #[must_use]
    pub fn leaves(&self) -> Vec<Leaf> {
        let mut list = Vec::new();
        self.walk(0, &mut list);
        list
    }

    fn walk(&self, at: u32, list: &mut Vec<Leaf>) {
        let (size, _) = self.layout();
        match self {
            Type::Pointer => list.push(Leaf { at, size, kind: LeafKind::Pointer }),
            Type::Integer(_) => list.push(Leaf { at, size, kind: LeafKind::Integer }),
            Type::Float => list.push(Leaf { at, size, kind: LeafKind::Float }),
            Type::Array(MAP_WORDS, of) if **of == Type::Integer(8) => {
                list.push(Leaf { at, size, kind: LeafKind::Map });
            }
            Type::Array(count, of) => {
                let (step, _) = of.layout();
                (0..*count).for_each(|n| of.walk(at + n * step, list));
            }
            Type::Struct(fields) => {
                let mut end = at;
                for field in fields {
                    let (size, align) = field.layout();
                    let begin = end.next_multiple_of(align);
                    field.walk(begin, list);
                    end = begin + size;
                }
            }
        }
    }
}

/// A type at the beginning of a text, and the rest.
fn part(text: &str, depth: usize) -> Option<(Type, &str)> {
    let text = text.trim_start().trim_start_matches("!llvm.");
    let depth = depth.checked_sub(1)?;
    if let Some(mut rest) = text.strip_prefix("struct<(") {
        let mut fields = Vec::new();
        loop {
            rest = rest.trim_start();
            if let Some(rest) = rest.strip_prefix(")>") {
                return Some((Type::Struct(fields), rest));
            }
            let (field, behind) = part(rest, depth)?;
            fields.push(field);
            rest = behind.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
    }
    if let Some(rest) = text.strip_prefix("array<") {
        let (count, rest) = rest.split_once(" x ")?;
        let (of, rest) = part(rest, depth)?;
        let count = count.parse().ok().filter(|count| (1..=4096).contains(count))?;
        return Some((Type::Array(count, Box::new(of)), rest.strip_prefix('>')?));
    }
    let words = [("ptr<1>", Type::Pointer), ("ptr", Type::Pointer), ("f32", Type::Float)];
    let integers = [("i64", 8), ("i32", 4), ("i16", 2), ("i8", 1), ("i1", 1)];
    let integers = integers.map(|(word, bytes)| (word, Type::Integer(bytes)));
    words.into_iter().chain(integers).find_map(|(word, kind)| Some((kind, text.strip_prefix(word)?)))
}

impl fmt::Display for LeafKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LeafKind::Pointer => "an address",
            LeafKind::Integer => "an integer",
            LeafKind::Float => "a number in f32",
            LeafKind::Map => "a tensor map",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_has_its_address_extents_and_strides_at_c_offsets() {
        let text = "!llvm.struct<(ptr<1>, struct<(struct<(i32, i32, i32)>, struct<(i64, i64)>)>)>";
        let tensor = Type::read(text).expect("known");
        assert_eq!(tensor.layout(), (40, 8));
        let places: Vec<(u32, u32)> = tensor.leaves().iter().map(|leaf| (leaf.at, leaf.size)).collect();
        assert_eq!(places, [(0, 8), (8, 4), (12, 4), (16, 4), (24, 8), (32, 8)]);
        let coordinates = Type::read("!llvm.struct<(struct<()>, struct<(struct<(i32, i32)>, struct<()>)>)>");
        assert_eq!(coordinates.expect("known").layout(), (8, 4));
        let divisor = Type::read("!llvm.struct<(i32, i32, i8, i8)>").expect("known");
        assert_eq!((divisor.layout(), divisor.leaves().len()), ((12, 4), 4));
        let map = Type::read("!llvm.struct<(struct<(array<16 x i64>)>)>").expect("known");
        assert_eq!(map.leaves(), [Leaf { at: 0, size: 128, kind: LeafKind::Map }]);
        assert_eq!(Type::read("!llvm.struct<(i1)>").expect("known").layout(), (1, 1));
    }

    #[test]
    fn other_text_is_refused_and_not_read_for_ever() {
        let deep = "struct<(".repeat(10_000);
        let wide = format!("{}i64{}", "array<4096 x ".repeat(8), ">".repeat(8));
        for text in ["", "i33", "struct<(i32", "array<0 x i8>", "array<4 x >", "i32 i32", "f64", &deep, &wide] {
            assert!(Type::read(text).is_err(), "{text}");
        }
    }
}
