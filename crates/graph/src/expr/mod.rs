//! Score expressions: modifications of scores and mask predicates of an attention, as data.
//!
//! [`Expr`] handles and ordinary Rust operators form an expression. [`Expr::build`] turns it into a [`ScoreExpr`]: a
//! canonical list of typed nodes without addresses, closures and names, so that equal meaning is equal data. It gives
//! everything else: its value at a point ([`Program::eval`]), its derivative ([`derivative`], [`vjp`]), its text
//! (`Display`, [`parse_expr`]), its serde form, and outside this module its key, its lowering and its interpreter.
//!
//! ```
//! use qkvault_graph::expr::{library, score, scalar, vjp};
//!
//! let softcap = library::softcap(score(), scalar("cap")).build_score_mod()?;
//! assert_eq!(softcap.to_string(), "scalar $cap: float; tanh(score / $cap) * $cap");
//!
//! let backward = vjp(&softcap).expect("softcap is smooth");
//! assert_eq!(backward.d_score.to_string(), "scalar $cap: float; let t0 = tanh(score / $cap); -(t0 * t0) + 1.0");
//! # Ok::<(), qkvault_graph::expr::ExprErrors>(())
//! ```
//!
//! # Inputs of an expression
//!
//! * The scaled score, the four indices, and the actual lengths of the two sequences. [`query`] is the row of the
//!   launch, [`position()`] its position among the keys.
//! * Constants.
//! * *Scalars*: numbers on the host that a launch gets and that are never part of a key.
//! * Device *tensors* that broadcast over (batch, head, query, key). There are no host tensors of several elements. A
//!   tensor may hold ALiBi's slopes ([`AlibiSlopes`]): these are part of the key, and the code that prepares a plan
//!   provides them.
//!
//! # Types
//!
//! Float (float32 on a device), int (32 bits, wrapping) and bool. Integers that meet floats become floats; nothing else
//! is converted. Operators accept any operands, and `build` reports every problem with its place.
//!
//! # Masks
//!
//! A score expression modifies the scores that are kept. The mask of the attention decides which scores are kept; its
//! predicate is an expression of type bool. Infinities cannot be constants, see [`FloatConst`]. A predicate that is a
//! diagonal band is recognised ([`ScoreExpr::as_band`]), so that causal and window masks have one encoding.
//!
//! # Derivatives
//!
//! Derivatives are derived from the expression; [`derivative`] lists the conventions for points without one. A
//! requested gradient of a tensor is computed or refused, never silently zero. An author's own derivative
//! ([`crate::ScoreModBprop`]) is used after [`check_override`], or without it if it is trusted.

mod alibi;
mod applied;
mod arena;
mod band;
mod build;
mod canon;
mod codec;
mod conditions;
mod constant;
mod declare;
mod derive;
mod error;
mod eval;
mod fold;
mod grammar;
mod handle;
mod hash;
mod items;
mod leaf;
mod lex;
pub mod library;
mod limits;
mod lowest;
mod node;
mod operand;
mod operand_check;
mod operators;
mod ops;
mod own_backward;
mod parse;
mod parse_error;
mod place;
mod position;
mod power;
mod print;
mod program;
mod range;
mod rank;
mod rules;
mod scalar;
pub(crate) mod shift;
mod simplify;
mod slopes;
mod substitute;
mod term;
mod typing;
mod vjp;

pub use alibi::AlibiSlopes;
pub use derive::{DeriveError, Wrt, derivative, simplified};
pub use error::{ExprError, ExprErrors, OperandKind};
pub use eval::{EvalError, PointContext, Value};
pub use handle::{
    Expr, batch, constant, head, int_scalar, key, key_len, query, query_len, scalar, score, select, tensor,
};
pub use limits::{
    MAX_DEPTH, MAX_DERIVED_NODES, MAX_EXTENT, MAX_NAME, MAX_NODES, MAX_SLOPES, MAX_SLOTS, MAX_TENSORS, MAX_TOKENS,
};
pub use lowest::Lowest;
pub use node::{Axis, FloatConst, Node, NodeId, NotFinite, ScalarId, Side, TensorId, Ty};
pub use operand::{Grad, ScalarSpec, ScalarTy, TensorSpec};
pub use ops::{Binary, Compare, Logic, Unary};
pub(crate) use own_backward::over_operands_of;
pub use own_backward::{OverrideError, Tolerance, check_override};
pub use parse::parse_expr;
pub use parse_error::ParseError;
pub use position::position;
pub use power::{Power, product};
pub use program::{Derived, Program, ScoreExpr};
pub use range::{Extents, floor_div_reach};
pub use substitute::Place;
pub(crate) use vjp::vjp_with;
pub use vjp::{TensorGrad, Vjp, vjp};
