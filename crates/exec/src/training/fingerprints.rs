//! Fingerprints of operands: the check, off by default, that nothing changed between a forward and its backward.

use qkvault_graph::Role;

/// What some operands held at one time, as hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprints {
    list: Vec<(Role, [u8; 32])>,
}

impl Fingerprints {
    /// Nothing printed yet.
    #[must_use]
    pub(crate) fn new() -> Fingerprints {
        Fingerprints::default()
    }

    /// Adds an operand by its bytes.
    pub(crate) fn add(&mut self, role: Role, bytes: &[u8]) {
        self.list.push((role, *blake3::hash(bytes).as_bytes()));
    }

    /// Operands of both whose bytes differ. What only one of them has was not there to change.
    #[must_use]
    pub(crate) fn changed(&self, now: &Fingerprints) -> Vec<Role> {
        let differs = |(role, hash): &(Role, [u8; 32])| now.list.iter().any(|(r, h)| r == role && h != hash);
        self.list.iter().filter(|fingerprint| differs(fingerprint)).map(|(role, _)| *role).collect()
    }
}
