//! Ready-made score modifications and predicates: each a few lines over the language, nothing in them is special.
//!
//! Queries are compared with keys by [`position`](super::position()): each function means the same in training, for one query over a cache
//! and for a piece of a prompt, also where sequences have lengths of their own.
//!
//! Predicates say which keys a query sees and go into the mask of the attention, composed with `&`, `|` and `!`. Score modifications
//! take a score and give a score, and are composed by nesting. Scalars and tensors are told apart by name within one expression, so two
//! uses of one function with the same name share the operand.
//!
//! ```
//! use qkvault_graph::expr::{library, score, scalar};
//!
//! let modified = library::alibi(library::softcap(score(), scalar("softcap")), 16).build_score_mod()?;
//! let keep = (library::causal() & library::padding()).build_mask_mod()?;
//! assert_eq!(modified.tensor_names(), ["alibi_slopes"]);
//! # let _ = keep;
//! # Ok::<(), qkvault_graph::expr::ExprErrors>(())
//! ```

mod masks;
mod scores;

pub use scores::ALIBI_SLOPES;

/// Exports the functions of a file and lists their names, so that tests notice where one is forgotten.
macro_rules! functions {
    ($(#[$about:meta])* $list:ident = $file:ident::{$($name:ident),+ $(,)?}) => {
        pub use $file::{$($name),+};

        $(#[$about])*
        pub const $list: &[&str] = &[$(stringify!($name)),+];
    };
}

functions! {
    /// The names of the score modifications.
    SCORE_MODS = scores::{alibi, alibi_of, alibi_with, bias, relative_bias, soft_window, softcap}
}

functions! {
    /// The names of the masks.
    MASK_MODS = masks::{
        causal, dilated_window, document_mask, padding, prefix_lm, sliding_window, top_left_causal, top_left_window,
    }
}
