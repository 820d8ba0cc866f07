//! A map for the passes over expressions: deriving one hashes every node several times, and the standard hasher, which withstands keys
//! that someone chose to collide, took a third of that time. Expressions are bounded, so the worst that chosen keys cost is small.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by a quick hash. Its order is nobody's: passes look up in it and never go through it.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;

/// Multiplies in one word at a time; the bits that the map looks at are well mixed at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quick(u64);

/// An odd number with no pattern in its bits: 2^64 divided by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Quick {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(ODD);
    }
}

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.word(n as u64);
    }

    fn finish(&self) -> u64 {
        // The map takes its place from the low bits and its tag from the high ones; multiplying fills the high ones alone.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::{Node, NodeId};
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    fn of(key: impl Hash) -> u64 {
        BuildHasherDefault::<Quick>::default().hash_one(key)
    }

    /// A map is a list where keys collide: nodes that differ in one operand must differ in the bits that a small map looks at.
    #[test]
    fn nodes_that_differ_little_are_spread_over_a_small_map() {
        let nodes = (0..256).map(|n| Node::Not(NodeId(n))).chain((0..256).map(|n| Node::ToFloat(NodeId(n))));
        let places: HashSet<u64> = nodes.map(|node| of(node) % 1024).collect();
        assert!(places.len() > 300, "512 nodes in {} of 1024 places", places.len());
        assert_ne!(of((1_u32, 2_u32)), of((2_u32, 1_u32)));
        assert_ne!(of([1_u8; 3]), of([1_u8; 4]));
    }
}
