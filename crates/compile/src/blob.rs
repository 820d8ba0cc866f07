//! The bytes of a plan: memory of their own, or the front of a vault entry that is in memory already. A copy would cost
//! a load as much as reading the file.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use qkvault_cache::Entry;

/// cuDNN's serialised plan. Cheap to clone; clones share the bytes. It derefs to them.
#[derive(Clone)]
pub struct Blob(Held);

#[derive(Clone)]
enum Held {
    Own(Arc<[u8]>),
    /// The first bytes of the entry's payload.
    Front(Arc<Entry>, usize),
}

impl Blob {
    /// The first bytes of an entry's payload; `None` if it has fewer.
    pub(crate) fn of_entry(entry: &Arc<Entry>, len: usize) -> Option<Blob> {
        (len <= entry.payload.len()).then(|| Blob(Held::Front(Arc::clone(entry), len)))
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Own(bytes) => bytes,
            Held::Front(entry, len) => &entry.payload[..*len],
        }
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Blob {
        Blob(Held::Own(bytes.into()))
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Blob {
        Blob(Held::Own(bytes.into()))
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Blob) -> bool {
        **self == **other
    }
}

impl Eq for Blob {}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_cache::EntryKind;

    #[test]
    fn the_front_of_an_entry_equals_a_copy_of_it_and_longer_ones_do_not_exist() {
        let text = String::new;
        let entry = Entry {
            kind: EntryKind::Plan,
            target: text(),
            what: text(),
            library: text(),
            meta: Vec::new(),
            payload: vec![1, 2, 3, 4],
        };
        let entry = Arc::new(entry);
        assert_eq!(Blob::of_entry(&entry, 3), Some(Blob::from(vec![1, 2, 3])));
        assert_eq!(Blob::of_entry(&entry, 5), None);
    }
}
