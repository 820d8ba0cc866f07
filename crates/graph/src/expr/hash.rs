//! A map for the passes over expressions. Deriving an expression hashes every node several times, and the standard
//! hasher, which resists chosen collisions, took a third of that time. Expressions are small, so chosen collisions cost
//! little.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with a fast hash. Its order is undefined: passes look keys up and never iterate over it.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;

/// Multiplies one word at a time; the bits that the map uses are mixed at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quick(u64);

/// An odd number with an irregular bit pattern: 2^64 divided by the golden ratio.
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
        // The map uses the low bits for the place and the high ones for the tag; multiplication fills only the high
        // ones.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::{Node, NodeId};
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    fn hashed(key: impl Hash) -> u64 {
        BuildHasherDefault::<Quick>::default().hash_one(key)
    }

    /// Collisions turn a map into a list: nodes that differ in one operand must differ in the bits that a small map
    /// uses.
    #[test]
    fn similar_nodes_spread_over_a_small_map() {
        let nodes = (0..256).map(|n| Node::Not(NodeId(n))).chain((0..256).map(|n| Node::ToFloat(NodeId(n))));
        let places: HashSet<u64> = nodes.map(|node| hashed(node) % 1024).collect();
        assert!(places.len() > 300, "512 nodes in {} of 1024 places", places.len());
        assert_ne!(hashed((1_u32, 2_u32)), hashed((2_u32, 1_u32)));
        assert_ne!(hashed([1_u8; 3]), hashed([1_u8; 4]));
    }
}
