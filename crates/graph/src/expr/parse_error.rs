//! Errors for texts that should be score expressions.

use super::error::ExprErrors;

/// The error for a text that is not a score expression.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseError {
    /// The text does not follow the grammar.
    #[error("line {line}, column {column}: expected {expected}, found {found}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Character in the line, from 1.
        column: usize,
        /// What was expected there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The text is well formed, but the expression is invalid.
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
