//! Parse errors: the place, what is there, and what was expected.

/// The error for a text that is not an attention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: found {found}, expected {expected}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// What is there.
    pub found: String,
    /// What was expected there.
    pub expected: String,
}

impl ParseError {
    /// An error at a byte of a text.
    pub(super) fn at(text: &str, byte: usize, found: impl Into<String>, expected: impl Into<String>) -> ParseError {
        let before = &text[..byte];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        ParseError {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            found: found.into(),
            expected: expected.into(),
        }
    }
}
