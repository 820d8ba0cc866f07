//! Tokens of the text form of score expressions.

use std::iter::Peekable;
use std::str::CharIndices;

use super::grammar::here;
use super::limits::MAX_TOKENS;
use super::parse_error::ParseError;

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'t> {
    /// A word: the name of an operation, a leaf, a `let`, or a keyword.
    Word(&'t str),
    /// `$name`.
    Scalar(&'t str),
    /// `@name`.
    Tensor(&'t str),
    /// A number without a point or exponent, and without a sign.
    Int(i64),
    /// A number with a point or an exponent, and without a sign.
    Float(f32),
    /// An operator or other sign.
    Sign(&'static str),
    /// The end of the text.
    End,
}

/// A token and the byte of the text where it starts.
#[derive(Clone, Debug)]
pub(super) struct Placed<'t> {
    pub(super) token: Token<'t>,
    pub(super) start: usize,
}

/// An error at a byte of the text, with its place as line and character from 1.
pub(super) fn syntax(text: &str, start: usize, expected: String, found: String) -> ParseError {
    let before = &text[..start];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.matches('\n').count() + 1;
    ParseError::Syntax { line, column: before[line_start..].chars().count() + 1, expected, found }
}

/// Longer signs first.
const SIGNS: [&str; 23] = [
    "==", "!=", "<=", ">=", "//", "<", ">", "&", "|", "!", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",", ";", ":",
    "=",
];

pub(super) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, ParseError> {
    let mut lexer = Lexer { text, chars: text.char_indices().peekable() };
    let mut tokens = Vec::new();
    loop {
        let placed = lexer.next()?;
        let end = placed.token == Token::End;
        if tokens.len() == MAX_TOKENS && !end {
            let expected = format!("at most {MAX_TOKENS} words, numbers and signs");
            return Err(syntax(text, placed.start, expected, "more of them".to_owned()));
        }
        tokens.push(placed);
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
}

impl<'t> Lexer<'t> {
    fn next(&mut self) -> Result<Placed<'t>, ParseError> {
        while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let Some(&(start, first)) = self.chars.peek() else {
            return Ok(Placed { token: Token::End, start: self.text.len() });
        };
        let token = match first {
            '$' | '@' => {
                self.chars.next();
                let name = self.word(start + 1);
                if name.is_empty() {
                    return Err(self.error(start, format!("a name after '{first}'"), first.to_string()));
                }
                if first == '$' { Token::Scalar(name) } else { Token::Tensor(name) }
            }
            c if c.is_ascii_alphabetic() || c == '_' => Token::Word(self.word(start)),
            c if c.is_ascii_digit() => self.number(start)?,
            c => match SIGNS.iter().find(|sign| self.text[start..].starts_with(**sign)) {
                Some(sign) => {
                    for _ in 0..sign.len() {
                        self.chars.next();
                    }
                    Token::Sign(sign)
                }
                None => {
                    let expected = here(&c.to_string()).unwrap_or("an expression");
                    return Err(self.error(start, expected.to_owned(), format!("{c:?}")));
                }
            },
        };
        Ok(Placed { token, start })
    }

    /// The letters, digits and underscores from here on.
    fn word(&mut self, start: usize) -> &'t str {
        let mut end = start;
        while let Some((at, c)) = self.chars.next_if(|(_, c)| c.is_ascii_alphanumeric() || *c == '_') {
            end = at + c.len_utf8();
        }
        &self.text[start..end]
    }

    fn number(&mut self, start: usize) -> Result<Token<'t>, ParseError> {
        let mut end = start;
        let mut last = ' ';
        while let Some((at, c)) = self.chars.next_if(|&(_, c)| {
            c.is_ascii_alphanumeric() || c == '.' || (matches!(c, '+' | '-') && matches!(last, 'e' | 'E'))
        }) {
            end = at + 1;
            last = c;
        }
        let digits = &self.text[start..end];
        if digits.bytes().all(|b| b.is_ascii_digit()) {
            let value = digits.parse().ok().filter(|&n: &i64| n <= -i64::from(i32::MIN));
            return value
                .map(Token::Int)
                .ok_or_else(|| self.error(start, "an integer of 32 bits".into(), digits.into()));
        }
        let value = digits.parse().ok().filter(|x: &f32| x.is_finite());
        value.map(Token::Float).ok_or_else(|| self.error(start, "a finite float32 number".into(), digits.into()))
    }

    fn error(&self, at: usize, expected: String, found: String) -> ParseError {
        syntax(self.text, at, expected, found)
    }
}
