//! Parses the text form. Every text gives an expression or an error; nesting is limited, so that the stack does not
//! overflow.

use std::collections::HashMap;
use std::str::FromStr;

use super::grammar::{COMPARE, PREFIX, here, infix, is_call, leaf, undefined};
use super::handle::Expr;
use super::lex::{Placed, Token, syntax, tokens};
use super::ops::{Binary, Unary};
use super::parse_error::ParseError;
use super::program::ScoreExpr;

/// Deepest nesting of parentheses, calls and prefixes in a text.
const MAX_NESTING: usize = 128;

impl FromStr for ScoreExpr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse_expr(text)
    }
}

/// Parses the text form that [`ScoreExpr`] prints, or one written by hand:
///
/// ```
/// use qkvault_graph::expr::{parse_expr, score, scalar};
///
/// let read = parse_expr("scalar $cap: float; tanh(score / $cap) * $cap")?;
/// assert_eq!(read, ((score() / scalar("cap")).tanh() * scalar("cap")).build()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Statements end with `;`: `scalar $name: float` (or `int`), `tensor @name: f32[1, 8, 1, 1]`, `let name = expression`.
/// After the dims of a tensor, `grad` requests its gradient, and `alibi 32 from 16 max 8.0` declares slopes of
/// [`AlibiSlopes`](super::AlibiSlopes): of 32 heads, from the 17th on, down to 2^-8; `from` and `max` are optional. The
/// expression itself comes last.
///
/// # Errors
/// The place of a syntax error and what was expected there, or every problem of the expression.
pub fn parse_expr(text: &str) -> Result<ScoreExpr, ParseError> {
    let tokens = tokens(text)?;
    let mut parser = Parser { text, tokens: &tokens, at: 0, nesting: 0, names: HashMap::new() };
    let expr = parser.whole()?;
    Ok(expr.build()?)
}

/// The meaning of a name, and whether it was used.
type Names<'t> = HashMap<(char, &'t str), (Expr, bool)>;

pub(super) struct Parser<'p, 't> {
    text: &'t str,
    tokens: &'p [Placed<'t>],
    pub(super) at: usize,
    nesting: usize,
    /// Scalars under `$`, tensors under `@`, lets under a space.
    pub(super) names: Names<'t>,
}

impl<'t> Parser<'_, 't> {
    fn whole(&mut self) -> Result<Expr, ParseError> {
        loop {
            match self.peek() {
                Token::Word("scalar") => self.scalar()?,
                Token::Word("tensor") => self.tensor()?,
                Token::Word("let") => self.binding()?,
                _ => break,
            }
        }
        let expr = self.expression(0)?;
        self.take_if(";");
        if *self.peek() != Token::End {
            let other = if let Token::Word(word) = *self.peek() { here(word) } else { None };
            return Err(self.expected(other.unwrap_or("an operator or the end")));
        }
        if let Some(((kind, name), _)) = self.names.iter().filter(|(_, (_, used))| !used).min_by_key(|(key, _)| **key) {
            return Err(self.expected(&format!("a use of '{}{name}'", kind.to_string().trim())));
        }
        Ok(expr)
    }

    /// An expression whose operators have at least the precedence `least` (0 for any).
    pub(super) fn expression(&mut self, least: u8) -> Result<Expr, ParseError> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.expected(&format!("at most {MAX_NESTING} levels of nesting (use let)")));
        }
        let mut left = self.prefix()?;
        while let Token::Sign(sign) = *self.peek() {
            let Some((tightness, make)) = infix(sign) else { break };
            if tightness < least {
                break;
            }
            self.at += 1;
            let right = self.expression(tightness + 1)?;
            left = Expr::two(make, left, right);
            // Comparisons do not chain.
            if tightness == COMPARE
                && matches!(*self.peek(), Token::Sign(s) if infix(s).is_some_and(|(t, _)| t == COMPARE))
            {
                return Err(self.expected("parentheses around one of two comparisons"));
            }
        }
        self.nesting -= 1;
        Ok(left)
    }

    fn prefix(&mut self) -> Result<Expr, ParseError> {
        let negative = match *self.peek() {
            Token::Sign("-") => true,
            Token::Sign("!") => false,
            _ => return self.atom(),
        };
        self.at += 1;
        match *self.peek() {
            Token::Int(n) if negative => {
                self.at += 1;
                // The lexer accepts 2^31 because its negative is valid.
                Ok(Expr::from(i32::try_from(-n).map_err(|_| self.expected("an integer of 32 bits"))?))
            }
            Token::Float(x) if negative => {
                self.at += 1;
                Ok(Expr::from(-x))
            }
            _ => {
                let inner = self.expression(PREFIX)?;
                Ok(if negative { -inner } else { !inner })
            }
        }
    }

    fn atom(&mut self) -> Result<Expr, ParseError> {
        let token = self.peek().clone();
        self.at += 1;
        match token {
            Token::Int(n) => i32::try_from(n).map(Expr::from).map_err(|_| self.before("an integer of 32 bits")),
            Token::Float(x) => Ok(Expr::from(x)),
            Token::Scalar(name) => self.named(('$', name)),
            Token::Tensor(name) => {
                let read = self.named(('@', name))?;
                // Brackets behind it, as other languages have them.
                if *self.peek() == Token::Sign("[") {
                    let whole = "no brackets: a tensor is read at the place of the score, and an extent of 1 in its \
                                 declaration holds for a whole axis";
                    return Err(self.expected(whole));
                }
                Ok(read)
            }
            Token::Word(word) => match leaf(word) {
                Some(expr) => Ok(expr),
                None if is_call(word) => self.call(word),
                None => self.named((' ', word)),
            },
            Token::Sign("(") => {
                let inner = self.expression(0)?;
                self.sign(")")?;
                Ok(inner)
            }
            Token::Sign(sign) if self.at > 1 && self.tokens[self.at - 2].token == token => {
                Err(self.before(here(&sign.repeat(2)).unwrap_or("an expression")))
            }
            Token::Sign(_) | Token::End => Err(self.before("an expression")),
        }
    }

    fn named(&mut self, name: (char, &'t str)) -> Result<Expr, ParseError> {
        match self.names.get_mut(&name) {
            Some((expr, used)) => {
                *used = true;
                Ok(expr.clone())
            }
            None => {
                let call = *self.peek() == Token::Sign("(");
                Err(self.before(&undefined(name, call)))
            }
        }
    }

    fn call(&mut self, word: &str) -> Result<Expr, ParseError> {
        self.sign("(")?;
        let first = self.expression(0)?;
        let expr = if word == "float" {
            first.to_float()
        } else if let Some(op) = Unary::from_name(word) {
            first.unary(op)
        } else {
            self.sign(",")?;
            let second = self.expression(0)?;
            match Binary::from_name(word) {
                Some(op) => Expr::binary(op, first, second),
                None => {
                    self.sign(",")?;
                    let third = self.expression(0)?;
                    first.select(second, third)
                }
            }
        };
        self.sign(")")?;
        Ok(expr)
    }

    pub(super) fn peek(&self) -> &Token<'t> {
        &self.tokens[self.at.min(self.tokens.len() - 1)].token
    }

    fn take_if(&mut self, sign: &str) {
        if matches!(*self.peek(), Token::Sign(s) if s == sign) {
            self.at += 1;
        }
    }

    pub(super) fn sign(&mut self, sign: &'static str) -> Result<(), ParseError> {
        if *self.peek() != Token::Sign(sign) {
            return Err(self.expected(&format!("'{sign}'")));
        }
        self.at += 1;
        Ok(())
    }

    fn before(&mut self, what: &str) -> ParseError {
        self.at -= 1;
        self.expected(what)
    }

    pub(super) fn expected(&self, what: &str) -> ParseError {
        let Placed { token, start } = &self.tokens[self.at.min(self.tokens.len() - 1)];
        let found = match token {
            Token::Word(word) => format!("'{word}'"),
            Token::Scalar(name) => format!("'${name}'"),
            Token::Tensor(name) => format!("'@{name}'"),
            Token::Int(n) => n.to_string(),
            Token::Float(x) => x.to_string(),
            Token::Sign(sign) => format!("'{sign}'"),
            Token::End => "the end".to_owned(),
        };
        syntax(self.text, *start, what.to_owned(), found)
    }
}
