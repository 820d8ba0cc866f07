//! A change to the code, and the list of changes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A change to the code.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mutant {
    /// The number that turns it on in this build.
    #[serde(skip)]
    pub(super) id: u32,
    /// The stable key, which does not depend on the line.
    pub(super) key: String,
    /// The hash of the surrounding item. A verdict is valid while it stays the same.
    pub(super) item: String,
    /// Path from the workspace's root.
    pub(super) file: String,
    pub(super) line: usize,
    /// The items around it, such as `Builder::operand`.
    pub(super) within: String,
    /// The original code.
    pub(super) from: String,
    /// The changed code.
    pub(super) to: String,
}

/// A change before it has a number.
pub(super) struct MutantPlace<'a> {
    pub(super) file: &'a str,
    pub(super) line: usize,
    pub(super) within: &'a str,
    pub(super) item: &'a str,
    pub(super) from: &'a str,
    pub(super) to: &'a str,
}

/// All changes of one build.
#[derive(Default)]
pub(super) struct Mutants {
    pub(super) list: Vec<Mutant>,
    /// Keys of mutants that do not compile.
    left_out: BTreeSet<String>,
    seen: BTreeMap<String, u32>,
}

impl Mutants {
    /// An empty list that rejects these keys.
    pub(super) fn without(left_out: BTreeSet<String>) -> Mutants {
        Mutants { left_out, ..Mutants::default() }
    }

    /// Adds a change, and returns the expression that is true if it is on. `None` for a change that does not compile.
    pub(super) fn add(&mut self, place: &MutantPlace<'_>) -> Option<String> {
        let MutantPlace { file, line, within, item, from, to } = *place;
        let (from, to) = (one_line(from), one_line(to));
        let name = format!("{file}\n{within}\n{from}\n{to}");
        let time = self.seen.entry(name.clone()).or_default();
        *time += 1;
        let key = hash(&format!("{name}\n{time}"));
        if self.left_out.contains(&key) {
            return None;
        }
        let id = self.list.len() as u32 + 1;
        let (file, within) = (file.to_owned(), within.to_owned());
        self.list.push(Mutant { id, key, item: hash(item), file, line, within, from, to });
        Some(format!("crate::mutant_switch::on({id})"))
    }
}

/// The first digits of a text's SHA-256.
fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}

/// A text with every run of white space as one space, truncated.
fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(90) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
