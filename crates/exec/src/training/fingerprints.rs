//! Fingerprints of operands, for the check (off by default) that they do not change between a forward and its backward.

use qkvault_graph::Role;

/// Hashes of operands at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprints {
    list: Vec<(Role, [u8; 32])>,
}

impl Fingerprints {
    /// Fingerprints of no operand.
    #[must_use]
    pub(crate) fn new() -> Fingerprints {
        Fingerprints::default()
    }

    /// Adds an operand with these bytes.
    pub(crate) fn add(&mut self, role: Role, bytes: &[u8]) {
        self.list.push((role, *blake3::hash(bytes).as_bytes()));
    }

    /// The operands of both whose bytes differ. Operands of only one of them are ignored.
    #[must_use]
    pub(crate) fn changed(&self, now: &Fingerprints) -> Vec<Role> {
        let differs = |(role, hash): &(Role, [u8; 32])| now.list.iter().any(|(r, h)| r == role && h != hash);
        self.list.iter().filter(|fingerprint| differs(fingerprint)).map(|(role, _)| *role).collect()
    }
}
