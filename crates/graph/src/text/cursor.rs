//! A position in a text, and readers for the parts of values: words, numbers, signs, lists of numbers.

use super::ParseError;

/// Longest piece of the text that an error quotes.
const SHOWN: usize = 32;

#[derive(Clone)]
pub(super) struct Cursor<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Cursor<'t> {
        Cursor { text, at: 0 }
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip(&mut self, count: impl Fn(&str) -> usize) {
        self.at += count(self.rest());
    }

    /// Skips blanks and a comment, but not the end of the line.
    pub(super) fn blanks(&mut self) {
        self.skip(|rest| rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len());
        if self.rest().starts_with('#') {
            self.skip(|rest| rest.find('\n').unwrap_or(rest.len()));
        }
    }

    /// Skips blank lines and comments.
    pub(super) fn lines(&mut self) {
        loop {
            self.blanks();
            match self.rest().chars().next() {
                Some(c) if c.is_whitespace() => self.at += c.len_utf8(),
                _ => return,
            }
        }
    }

    pub(super) fn at_end_of_line(&mut self) -> bool {
        self.blanks();
        self.rest().is_empty() || self.rest().starts_with('\n')
    }

    /// The error that something else was expected here.
    pub(super) fn expected(&self, expected: impl Into<String>) -> ParseError {
        ParseError::at(self.text, self.at, self.found(), expected)
    }

    /// The word, number or sign here, as an error quotes it.
    fn found(&self) -> String {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return "the end of the text".into() };
        if first == '\n' {
            return "the end of the line".into();
        }
        let piece: String = rest.chars().take_while(|&c| is_inner(c)).take(SHOWN).collect();
        if piece.is_empty() { format!("{first:?}") } else { format!("`{piece}`") }
    }

    /// The word here; empty if there is none.
    pub(super) fn peek_word(&mut self) -> &'t str {
        self.blanks();
        let rest = self.rest();
        let starts = rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let end = if starts { rest.find(|c| !is_inner(c)).unwrap_or(rest.len()) } else { 0 };
        &rest[..end]
    }

    /// Reads this word, if it is here.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let here = self.peek_word() == word;
        if here {
            self.at += word.len();
        }
        here
    }

    /// Reads one of these words and returns its value.
    pub(super) fn choice<T: Copy>(&mut self, choices: &[(&str, T)]) -> Result<T, ParseError> {
        match self.option(choices) {
            Some(value) => Ok(value),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                Err(self.expected(one_of(&words)))
            }
        }
    }

    /// Like [`Cursor::choice`], but none of the words has to be here.
    pub(super) fn option<T: Copy>(&mut self, choices: &[(&str, T)]) -> Option<T> {
        let word = self.peek_word();
        let &(_, value) = choices.iter().find(|(choice, _)| *choice == word)?;
        self.at += word.len();
        Some(value)
    }

    /// Reads a sign.
    pub(super) fn sign(&mut self, sign: char) -> Result<(), ParseError> {
        self.blanks();
        if !self.rest().starts_with(sign) {
            return Err(self.expected(format!("`{sign}`")));
        }
        self.at += sign.len_utf8();
        Ok(())
    }

    /// Reads a number in Rust's notation, with `FromStr`.
    pub(super) fn number<T: std::str::FromStr>(&mut self, expected: &str) -> Result<T, ParseError> {
        self.blanks();
        let rest = self.rest();
        let piece = rest.find(|c| !is_inner(c) && c != '+').map_or(rest, |end| &rest[..end]);
        let value = piece.parse().map_err(|_| self.expected(expected))?;
        self.at += piece.len();
        Ok(value)
    }

    /// Reads a 64-bit integer.
    pub(super) fn integer(&mut self) -> Result<i64, ParseError> {
        self.number("an integer of 64 bits")
    }

    /// Reads four integers in brackets.
    pub(super) fn four(&mut self) -> Result<[i64; 4], ParseError> {
        let mut list = [0; 4];
        for (i, entry) in list.iter_mut().enumerate() {
            self.sign(if i == 0 { '[' } else { ',' })?;
            *entry = self.integer()?;
        }
        self.sign(']')?;
        Ok(list)
    }
}

/// Whether this character can continue a word or number.
fn is_inner(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Joins words as `a, b or c`.
pub(super) fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).into(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
