//! What can be wrong with a text that should be a score expression.

use super::error::ExprErrors;

/// A text that is no score expression.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseError {
    /// The text does not follow the grammar.
    #[error("line {line}, column {column}: expected {expected}, found {found}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Character in the line, from 1.
        column: usize,
        /// What could stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// The text is well formed, but what it says is not.
    #[error("{problems}")]
    Meaning {
        /// Every problem.
        problems: ExprErrors,
    },
}

impl From<ExprErrors> for ParseError {
    fn from(problems: ExprErrors) -> Self {
        ParseError::Meaning { problems }
    }
}
