//! Score expressions: what an attention does to its scores, and which of them it keeps, as data.
//!
//! An expression is written with ordinary Rust operators on [`Expr`] handles and closed by [`Expr::build`] into a [`ScoreExpr`]:
//! a canonical list of typed nodes that holds no address, no closure and no name, so that equal meaning is equal data.

mod applied;
mod arena;
mod band;
mod build;
mod canon;
mod codec;
mod derive;
mod error;
mod eval;
mod handle;
mod items;
mod lex;
pub mod library;
mod limits;
mod node;
mod operand;
mod operators;
mod ops;
mod own_backward;
mod parse;
mod print;
mod program;
mod rank;
mod rules;
mod scalar;
mod simplify;
mod term;
mod typing;
mod vjp;

pub use derive::{DeriveError, Wrt, derivative, simplified};
pub use error::{ExprError, ExprErrors, OperandKind};
pub use eval::{EvalError, PointContext, Value};
pub use handle::{Expr, batch, constant, head, int_slot, key, key_len, query, query_len, score, select, slot, tensor};
pub use limits::{MAX_DEPTH, MAX_DERIVED_NODES, MAX_EXTENT, MAX_NAME, MAX_NODES, MAX_SLOTS, MAX_TENSORS};
pub use node::{Axis, FloatConst, Node, NodeId, NotFinite, Side, SlotId, TensorId, Ty};
pub use operand::{Grad, SlotSpec, SlotTy, TensorSpec};
pub use ops::{Binary, Compare, Logic, Unary};
pub use own_backward::{OverrideError, Tolerance, check_override};
pub use parse::{ParseError, parse_expr};
pub use program::{Derived, Program, ScoreExpr};
pub use vjp::{TensorGrad, Vjp, vjp};
