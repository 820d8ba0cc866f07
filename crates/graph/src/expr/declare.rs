//! Parses the statements before an expression: scalars, tensors and `let`s.

use super::alibi::AlibiSlopes;
use super::grammar::{is_call, leaf};
use super::handle::{self, Expr, Op};
use super::lex::Token;
use super::operand::{Grad, ScalarTy, TensorSpec};
use super::parse::Parser;
use super::parse_error::ParseError;
use crate::DType;

impl<'t> Parser<'_, 't> {
    pub(super) fn scalar(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        let Token::Scalar(name) = *self.peek() else { return Err(self.expected("$ and a name")) };
        self.at += 1;
        self.sign(":")?;
        let ty = match self.peek() {
            Token::Word("float") => ScalarTy::Float,
            Token::Word("int") => ScalarTy::Int,
            _ => return Err(self.expected("'float' or 'int'")),
        };
        self.at += 1;
        self.define(('$', name), Expr::leaf(Op::Scalar(name.into(), ty)))
    }

    pub(super) fn tensor(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        let Token::Tensor(name) = *self.peek() else { return Err(self.expected("@ and a name")) };
        self.at += 1;
        self.sign(":")?;
        let dtype = match self.peek() {
            Token::Word(word) => word.parse::<DType>().map_err(|_| self.expected("an element type such as f32"))?,
            _ => return Err(self.expected("an element type such as f32")),
        };
        self.at += 1;
        let mut dims = [0; 4];
        for (i, extent) in dims.iter_mut().enumerate() {
            self.sign(if i == 0 { "[" } else { "," })?;
            let Token::Int(n) = *self.peek() else { return Err(self.expected("an extent")) };
            *extent = n;
            self.at += 1;
        }
        self.sign("]")?;
        let grad = if *self.peek() == Token::Word("grad") {
            self.at += 1;
            Grad::Needed
        } else {
            Grad::None
        };
        let alibi = if *self.peek() == Token::Word("alibi") { Some(self.slopes()?) } else { None };
        self.define(('@', name), handle::tensor(name, TensorSpec { dims, dtype, grad, alibi }))
    }

    /// `alibi 32 from 16 max 8.0`: heads of the model, the first head of this attention, the largest exponent.
    fn slopes(&mut self) -> Result<AlibiSlopes, ParseError> {
        self.at += 1;
        let mut slopes = AlibiSlopes::for_heads(self.heads("the number of the model's heads")?);
        if *self.peek() == Token::Word("from") {
            self.at += 1;
            slopes = slopes.from_head(self.heads("the first head")?);
        }
        if *self.peek() == Token::Word("max") {
            self.at += 1;
            let given = match *self.peek() {
                Token::Float(x) => x,
                Token::Int(n) => n as f32,
                _ => return Err(self.expected("the largest exponent")),
            };
            slopes = slopes.with_bias_max(given).map_err(|_| self.expected("a finite number"))?;
            self.at += 1;
        }
        Ok(slopes)
    }

    fn heads(&mut self, what: &str) -> Result<u32, ParseError> {
        let heads = match *self.peek() {
            Token::Int(n) => u32::try_from(n).ok(),
            _ => None,
        };
        let heads = heads.ok_or_else(|| self.expected(what))?;
        self.at += 1;
        Ok(heads)
    }

    pub(super) fn binding(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        let Token::Word(name) = *self.peek() else { return Err(self.expected("a name")) };
        if leaf(name).is_some() || is_call(name) || ["scalar", "tensor", "let"].contains(&name) {
            return Err(self.expected("a new name: this one is in use"));
        }
        self.at += 1;
        self.sign("=")?;
        let expr = self.expression(0)?;
        self.define((' ', name), expr)
    }

    fn define(&mut self, name: (char, &'t str), expr: Expr) -> Result<(), ParseError> {
        self.sign(";")?;
        if self.names.insert(name, (expr, false)).is_some() {
            self.at -= 1;
            return Err(self.expected(&format!("a new name before this: '{}' is defined twice", name.1)));
        }
        Ok(())
    }
}
