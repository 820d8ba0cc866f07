//! Score expressions: what an attention does to its scores, and which of them it keeps, as data.
//!
//! An expression is written with ordinary Rust operators on [`Expr`] handles and closed by [`Expr::build`] into a [`ScoreExpr`]: a
//! canonical list of typed nodes that holds no address, no closure and no name, so that equal meaning is equal data. From that one value
//! everything else follows: its value at a point ([`Program::eval`]), its derivative ([`derivative`], [`vjp`]), its text (`Display`,
//! [`parse_expr`]), its serde form, and outside this module its key, its lowering and its interpreter.
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
//! # What an expression reads
//!
//! The scaled score, the four indices and the actual lengths of the two sequences ([`query`] is the row of the launch, [`position()`] where it
//! is among the keys); constants; *scalars*, numbers that the host gives at
//! launch and that are never part of a key; and device *tensors* that broadcast over (batch, head, query, key). A host tensor of
//! several elements cannot be written down. A tensor may be said to hold ALiBi's slopes ([`AlibiSlopes`]): it is under the key then
//! which ones, and whoever prepares a plan brings them.
//!
//! # Types
//!
//! Float (float32 on a device), int (32 bits, wrapping) and bool. Integers that meet floats become floats; nothing else is converted.
//! Building never fails half-way: operators take anything, and `build` reports every problem with its place.
//!
//! # Masks
//!
//! A score expression modifies scores that are kept; which scores are kept is said by the mask of the attention, whose predicate is an
//! expression of type bool. Infinities are no constants here, see [`FloatConst`]. A predicate that is a diagonal band is recognised
//! ([`ScoreExpr::as_band`]), so that causal and window masks have one encoding.
//!
//! # Derivatives
//!
//! Derived, always. [`derivative`] states what holds where none exists. A gradient that is asked of a tensor is given or refused, never
//! silently zero; an author's own derivative ([`crate::ScoreModBprop`]) is taken after [`check_override`], or on trust.

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
mod print;
mod program;
mod rank;
mod rules;
mod scalar;
pub(crate) mod shift;
mod simplify;
mod slopes;
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
pub use limits::{MAX_DEPTH, MAX_DERIVED_NODES, MAX_EXTENT, MAX_NAME, MAX_NODES, MAX_SLOTS, MAX_TENSORS};
pub use node::{Axis, FloatConst, Node, NodeId, NotFinite, ScalarId, Side, TensorId, Ty};
pub use operand::{Grad, ScalarSpec, ScalarTy, TensorSpec};
pub use ops::{Binary, Compare, Logic, Unary};
pub(crate) use own_backward::over_operands_of;
pub use own_backward::{OverrideError, Tolerance, check_override};
pub use parse::parse_expr;
pub use parse_error::ParseError;
pub use position::position;
pub use program::{Derived, Program, ScoreExpr};
pub(crate) use vjp::vjp_with;
pub use vjp::{TensorGrad, Vjp, vjp};
