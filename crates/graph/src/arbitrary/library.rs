//! Attentions with expressions of the library, for tests that compare results within tolerances: random expressions
//! amplify roundings of scores.

use crate::expr::{self, Expr, TensorSpec, library};
use crate::{Attention, DType};

/// The attention with the `n`th of some expressions of the library: every second `n` has none. It may be invalid.
#[must_use]
pub fn modified(a: Attention, n: usize) -> Attention {
    let [batch, heads, queries, _] = a.q.dims;
    let keys = a.k.dims[2];
    let score = |e: Expr| e.build_score_mod().expect("a score modification");
    let mask = |e: Expr| e.build_mask_mod().expect("a mask");
    match n % 14 {
        1 => a.with_score_mod(score(library::softcap(expr::score(), expr::scalar("cap")))),
        3 => a.with_score_mod(score(library::alibi(expr::score(), heads))),
        5 => a.with_mask_mod(mask(library::prefix_lm("prefix", batch))),
        7 => a.with_mask_mod(mask(library::dilated_window(40, 3))),
        9 => a.with_mask_mod(mask(library::document_mask("of_query", "of_key", batch, queries, keys))),
        11 => {
            let bias = TensorSpec::new(DType::F32, [1, heads, queries, keys]);
            a.with_score_mod(score(library::bias(expr::score(), "bias", bias)))
        }
        13 => a.with_score_mod(score(library::softcap(library::alibi(expr::score(), heads), 2.0))),
        _ => a,
    }
}
