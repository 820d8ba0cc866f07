//! Ready-made score modifications and predicates, each a few lines of the expression language.
//!
//! Queries are compared with keys by [`position`](super::position()), so each function means the same in training, for
//! one query over a cache and for a piece of a prompt, also if sequences have different lengths.
//!
//! Predicates select the keys that a query sees. They go into the mask of the attention, and `&`, `|` and `!` combine
//! them. Score modifications map a score to a score, and nesting combines them. Names distinguish scalars and tensors
//! within one expression, so two uses of a function with the same name share the operand.
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
