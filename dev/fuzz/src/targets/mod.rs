//! The targets: what is true for any bytes that something reads.

mod calls;
mod models;
mod store;
mod trials;
mod vault;

/// One thing that reads data from outside.
#[derive(Debug)]
pub struct FuzzTarget {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// What it reads.
    pub about: &'static str,
    /// Inputs to begin with, beside those that are kept.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the format.
    pub words: &'static [&'static str],
    /// Puts an input to it.
    ///
    /// # Panics
    ///
    /// If it does what it must never do.
    pub check: fn(&[u8]) -> FuzzOutcome,
}

/// What was said to an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuzzOutcome {
    /// Whether it was taken.
    pub accepted: bool,
    /// A number for what was said: inputs with a new one are worth to be changed further.
    pub kind: u64,
}

impl FuzzOutcome {
    /// The input was taken, and is of a kind that a text names.
    #[must_use]
    pub fn taken(what: &str) -> FuzzOutcome {
        FuzzOutcome { accepted: true, kind: kind(what) ^ 1 << 63 }
    }

    /// The input was refused with an error.
    ///
    /// # Panics
    ///
    /// If the error says nothing.
    #[must_use]
    pub fn refused(error: &str) -> FuzzOutcome {
        assert!(!error.trim().is_empty(), "an error that says nothing");
        FuzzOutcome { accepted: false, kind: kind(error) & !(1 << 63) }
    }
}

/// A number for the words of a text: its numbers, and what it quotes, differ from input to input.
fn kind(text: &str) -> u64 {
    let unquoted = text.split(['\'', '"', '`']).step_by(2);
    let words = unquoted.flat_map(|part| part.split(|letter: char| !letter.is_ascii_lowercase()));
    let letters = words.filter(|word| word.len() > 3).take(24).flat_map(str::bytes);
    letters.fold(0xcbf2_9ce4_8422_2325, |sum, letter| (sum ^ u64::from(letter)).wrapping_mul(0x100_0000_01b3))
}

/// Every target.
pub const ALL: &[FuzzTarget] = &[
    vault::ENTRY,
    vault::ENTRY_SIGNED,
    vault::PACK,
    vault::PACK_SIGNED,
    vault::PACK_SEALED,
    models::RECIPE,
    models::BYTES,
    models::TEXT,
    models::MANIFEST,
    models::CONFIG,
    models::GGUF,
    store::FRAME,
    calls::CALLS,
];

/// The target of a name. Beside [`ALL`] there are some that fail on purpose, for tests of this program.
#[must_use]
pub fn named(name: &str) -> Option<&'static FuzzTarget> {
    ALL.iter().chain(trials::ALL).find(|target| target.name == name)
}

/// No inputs but those that are kept.
fn none() -> Vec<Vec<u8>> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_differ_by_their_words_and_not_by_numbers_and_quotes() {
        assert_eq!(FuzzOutcome::refused("12 bytes at 'a'"), FuzzOutcome::refused("7 bytes at 'b'"));
        assert_ne!(FuzzOutcome::refused("bytes"), FuzzOutcome::refused("entries"));
        assert_ne!(FuzzOutcome::refused("bytes").kind, FuzzOutcome::taken("bytes").kind);
        assert!(std::panic::catch_unwind(|| FuzzOutcome::refused(" ")).is_err());
    }
}
