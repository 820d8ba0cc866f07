//! Ready-made score modifications and predicates: each a few lines over the language, nothing in them is special.
//!
//! Predicates say which keys a query sees and go into the mask of the attention, composed with `&`, `|` and `!`. Score modifications
//! take a score and give a score, and are composed by nesting. Slots and tensors are told apart by name within one expression, so two
//! uses of one function with the same name share the operand.
//!
//! ```
//! use qkvault_graph::expr::{library, score, slot};
//!
//! let modified = library::alibi(library::softcap(score(), slot("softcap")), 16).build_score()?;
//! let keep = (library::causal() & library::padding()).build_predicate()?;
//! assert_eq!(modified.tensor_names(), ["alibi_slopes"]);
//! # let _ = keep;
//! # Ok::<(), qkvault_graph::expr::ExprErrors>(())
//! ```

mod masks;
mod scores;

pub use masks::{
    bottom_right_causal, bottom_right_window, causal, dilated_window, document_mask, padding, prefix_lm, sliding_window,
};
pub use scores::{ALIBI_SLOPES, alibi, alibi_of, alibi_with, bias, relative_bias, soft_window, softcap};
