//! Rows of the table of the unified operation: forwards with one property changed at a time, for a GPU of each family
//! that cuDNN distinguishes.

use qkvault_graph::expr::library::{alibi, document_mask, softcap};
use qkvault_graph::expr::{TensorSpec, key, scalar, score, tensor};
use qkvault_graph::{Attention, Band, Corner, DType, Form, Order, Outputs, Tensor};

use crate::compile::Row;

const GPUS: [&str; 4] = ["h200", "b200", "rtx-pro-6000", "a100"];
const DTYPE: DType = DType::BF16;

/// A dense attention with two sequences and 8 query heads over 2 KV heads.
fn dense(seq: (i64, i64), head_dim: i64) -> Attention {
    Attention::bshd(2, (8, 2), seq, head_dim, DTYPE)
}

/// A varlen attention with two sequences and 8 query heads over 2 KV heads.
fn varlen(s: i64) -> Attention {
    let [q, kv] = [8, 2].map(|h| Tensor::thd(2, h, s, 128, 2 * s, DTYPE));
    Attention::forward(q, kv, kv, q).with_lengths()
}

/// An attention with `s_q` dense queries over pages of 64 tokens.
fn paged(s_q: i64) -> Attention {
    let q = Tensor::bshd(2, 8, s_q, 128, DTYPE);
    let pool = Tensor::paged_nhd(2, 2, 1024, 128, 40, 64, DTYPE);
    Attention::forward(q, pool, pool, q).with_lengths()
}

/// An attention with varlen queries over pages of 64 tokens.
fn mixed() -> Attention {
    let q = varlen(256).q;
    let mut a = paged(256);
    (a.q, a.o) = (q, q);
    a
}

/// A dense attention with different head dims for Q and K, and for V and O.
fn split(d_qk: i64, d_v: i64) -> Attention {
    let rows = |h, d| Tensor::dense(Order::Bshd, [2, h, 512, d], DTYPE);
    Attention::forward(rows(8, d_qk), rows(8, d_qk), rows(8, d_v), rows(8, d_v))
}

fn capped(a: Attention) -> Attention {
    a.with_score_mod(softcap(score(), scalar("softcap")).build_score_mod().unwrap())
}

fn biased(a: Attention) -> Attention {
    let (s_q, s_kv) = a.seq();
    let spec = TensorSpec::new(DTYPE, [1, 8, s_q, s_kv]);
    a.with_score_mod((score() + tensor("bias", spec)).build_score_mod().unwrap())
}

/// Rows for every GPU.
fn plain() -> Vec<(&'static str, Attention)> {
    let square = || dense((512, 512), 128);
    vec![
        ("plain", square()),
        ("stats", square().with_stats()),
        ("causal, stats", square().with_band(Band::CAUSAL).with_stats()),
        ("lengths, bottom-right causal", dense((256, 1024), 128).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT)),
        ("varlen, causal", varlen(512).with_band(Band::CAUSAL)),
    ]
}

/// Further rows for the first GPU.
fn varied() -> Vec<(&'static str, Attention)> {
    let square = || dense((512, 512), 128);
    let chunk = || dense((256, 1024), 128);
    let decode = || dense((1, 1024), 128);
    let br = Band::CAUSAL_BOTTOM_RIGHT;
    let window = |corner| Band::window(corner, 128);
    let outputs = |outputs| square().with_outputs(outputs);
    let documents = document_mask("query_documents", "key_documents", 2, 512, 512);
    vec![
        ("head_dim 64", dense((512, 512), 64)),
        ("head_dim 256", dense((512, 512), 256)),
        ("head_dim 192/128, causal", split(192, 128).with_band(Band::CAUSAL)),
        ("odd lengths", dense((1000, 777), 128).with_stats()),
        ("causal", square().with_band(Band::CAUSAL)),
        ("window", square().with_band(window(Corner::TopLeft))),
        ("left bound alone", square().with_band(Band { corner: Corner::TopLeft, left: Some(128), right: None })),
        ("chunk, bottom-right causal", chunk().with_band(br)),
        ("chunk, bottom-right window", chunk().with_band(window(Corner::BottomRight))),
        ("lengths", square().with_lengths()),
        ("lengths, bottom-right window", chunk().with_lengths().with_band(window(Corner::BottomRight))),
        ("varlen, stats", varlen(512).with_stats()),
        ("varlen, bottom-right causal, stats", varlen(512).with_band(br).with_stats()),
        ("varlen, one query", varlen(1)),
        ("decode", decode()),
        ("decode, lengths", decode().with_lengths()),
        ("decode, window", decode().with_band(window(Corner::BottomRight))),
        ("paged, decode", paged(1)),
        ("paged, chunk, bottom-right causal", paged(256).with_band(br)),
        ("paged, varlen queries", mixed()),
        ("paged, varlen queries, bottom-right causal, stats", mixed().with_band(br).with_stats()),
        ("stats, max, sum-exp", outputs(Outputs::of(true, true, true))),
        ("sink, causal, stats", square().with_sink().with_band(Band::CAUSAL).with_stats()),
        ("softcap, causal", capped(square()).with_band(Band::CAUSAL)),
        ("softcap, lengths, bottom-right causal", capped(chunk()).with_lengths().with_band(br)),
        ("softcap, varlen, causal", capped(varlen(512)).with_band(Band::CAUSAL)),
        (
            "alibi, causal",
            square().with_score_mod(alibi(score(), 8).build_score_mod().unwrap()).with_band(Band::CAUSAL),
        ),
        ("bias, causal, stats", biased(square()).with_band(Band::CAUSAL).with_stats()),
        ("documents", square().with_mask_mod(documents.build_mask_mod().unwrap())),
        ("decode, every other key", decode().with_mask_mod((key() % 2).eq(0).build_mask_mod().unwrap())),
        ("dropout", square().with_dropout(0.1)),
    ]
}

/// The rows, in the order of the golden.
#[must_use]
pub fn rows() -> Vec<Row> {
    let row = |gpu: &'static str, (name, attention): (&str, Attention)| Row {
        name: format!("{gpu} | {name}"),
        attention,
        gpu,
        form: Form::Unified,
    };
    let all = |gpu| plain().into_iter().map(move |given| row(gpu, given));
    let more = varied().into_iter().map(|given| row(GPUS[0], given));
    GPUS.into_iter().flat_map(all).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::validate;

    #[test]
    fn every_row_is_valid_and_has_a_unique_name() {
        let rows = rows();
        for row in &rows {
            validate(row.attention.clone()).unwrap_or_else(|e| panic!("{}: {e}", row.name));
        }
        let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), rows.len());
    }
}
