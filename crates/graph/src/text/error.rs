//! What is wrong with a text: where, what stands there, and what could.

/// A text that is no attention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: found {found}, expected {expected}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// What stands there.
    pub found: String,
    /// What could stand there.
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
