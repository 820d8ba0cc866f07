//! Rows of the table of serving: named varlen and paged attentions for each GPU.

use qkvault_cudnn::Form;
use qkvault_graph::expr::library::{alibi, softcap};
use qkvault_graph::expr::{scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, Tensor};

use crate::compile::Row;

/// The part of the table to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The rows of every test run.
    Usual,
    /// Every row for every GPU.
    Full,
}

const GPUS: [&str; 5] = ["h200", "a100", "l40s", "b200", "rtx-pro-6000"];
const DTYPE: DType = DType::BF16;

/// Sizes of a row.
#[derive(Clone, Copy)]
struct Sizes {
    batch: i64,
    heads: (i64, i64),
    head_dim: (i64, i64),
    seq: (i64, i64),
    page: i64,
    hnd: bool,
}

/// The plain sizes: 8 sequences, 32 query heads over 8 KV heads of head dim 128, up to 512 queries and 4096 keys, pages
/// of 64 tokens.
const PLAIN: Sizes = Sizes { batch: 8, heads: (32, 8), head_dim: (128, 128), seq: (512, 4096), page: 64, hnd: false };

impl Sizes {
    fn pool(&self, d: i64) -> Tensor {
        let Sizes { batch, heads: (_, h), seq: (_, s), page, hnd, .. } = *self;
        let pages = batch * (s + page - 1).div_euclid(page);
        let paged = if hnd { Tensor::paged_hnd } else { Tensor::paged_nhd };
        paged(batch, h, s, d, pages, page, DTYPE)
    }

    fn varlen(&self, h: i64, s: i64, d: i64) -> Tensor {
        Tensor::thd(self.batch, h, s, d, self.batch * s, DTYPE)
    }

    /// One query per sequence over pages.
    fn decode(&self) -> Attention {
        self.chunk(1)
    }

    /// A few dense queries over pages.
    fn chunk(&self, s: i64) -> Attention {
        let Sizes { batch, heads: (h, _), head_dim: (d_qk, d_v), .. } = *self;
        let rows = |d| Tensor::bshd(batch, h, s, d, DTYPE);
        Attention::forward(rows(d_qk), self.pool(d_qk), self.pool(d_v), rows(d_v)).with_lengths()
    }

    /// Varlen queries over pages.
    fn mixed(&self) -> Attention {
        let Sizes { heads: (h, _), head_dim: (d_qk, d_v), seq: (s, _), .. } = *self;
        let (q, o) = (self.varlen(h, s, d_qk), self.varlen(h, s, d_v));
        Attention::forward(q, self.pool(d_qk), self.pool(d_v), o).with_lengths()
    }

    /// Everything varlen.
    fn thd(&self) -> Attention {
        let Sizes { heads: (h, h_kv), head_dim: (d_qk, d_v), seq: (s, _), .. } = *self;
        let (q, o) = (self.varlen(h, s, d_qk), self.varlen(h, s, d_v));
        Attention::forward(q, self.varlen(h_kv, s, d_qk), self.varlen(h_kv, s, d_v), o).with_lengths()
    }
}

fn capped(a: Attention) -> Attention {
    a.with_score_mod(softcap(score(), scalar("softcap")).build_score_mod().unwrap())
}

fn sloped(a: Attention) -> Attention {
    let heads = a.q.heads();
    a.with_score_mod(alibi(score(), heads).build_score_mod().unwrap())
}

fn back(a: &Attention) -> Attention {
    a.clone().with_stats().backward(BackwardOptions::default())
}

/// Rows that every run compiles for every GPU.
fn plain() -> Vec<(String, Attention)> {
    let br = Band::CAUSAL_BOTTOM_RIGHT;
    [
        ("decode", PLAIN.decode()),
        ("mixed, bottom-right causal", PLAIN.mixed().with_band(br)),
        ("varlen, causal", PLAIN.thd().with_band(Band::CAUSAL).with_stats()),
        ("varlen, causal, backward", back(&PLAIN.thd().with_band(Band::CAUSAL))),
    ]
    .map(|(name, a)| (name.to_owned(), a))
    .into()
}

/// Further rows that every run compiles for the first GPU, because they have their own rules.
const USUAL: [&str; 12] = [
    "decode, pages of 16",
    "mixed, pages of 256",
    "decode, window",
    "decode, softcap",
    "decode, sink",
    "mixed, softcap, window",
    "mixed, alibi",
    "mixed, sink, window",
    "mixed, one query each, stats",
    "decode, latent 576/512",
    "varlen, softcap, backward",
    "varlen, sink, backward",
];

/// Rows with one property changed at a time.
fn varied() -> Vec<(String, Attention)> {
    let br = Band::CAUSAL_BOTTOM_RIGHT;
    let window = Band::window(Corner::BottomRight, 1024);
    let mut rows: Vec<(String, Attention)> = Vec::new();
    let mut add = |name: &str, a: Attention| rows.push((name.to_owned(), a));
    for page in [16, 256, 512] {
        let sizes = Sizes { page, hnd: page == 256, ..PLAIN };
        add(&format!("decode, pages of {page}"), sizes.decode());
        add(&format!("mixed, pages of {page}"), sizes.mixed().with_band(br));
    }
    add("decode, window", PLAIN.decode().with_band(window));
    add("decode, softcap", capped(PLAIN.decode()).with_stats());
    add("decode, sink", PLAIN.decode().with_sink());
    add("decode, alibi", sloped(PLAIN.decode()));
    add("mixed, no band", PLAIN.mixed().with_stats());
    add("mixed, window", PLAIN.mixed().with_band(window));
    add("mixed, softcap", capped(PLAIN.mixed().with_band(br)));
    add("mixed, softcap, window", capped(PLAIN.mixed().with_band(window)));
    add("mixed, alibi", sloped(PLAIN.mixed().with_band(br)));
    add("mixed, sink, window", PLAIN.mixed().with_band(window).with_sink());
    add("mixed, one query each, stats", Sizes { seq: (1, 4096), ..PLAIN }.mixed().with_stats());
    add("chunk of 4", PLAIN.chunk(4).with_band(br));
    add("chunk of 256, hnd", Sizes { hnd: true, ..PLAIN }.chunk(256).with_band(br));
    for (h, h_kv) in [(8, 8), (8, 1)] {
        add(&format!("mixed, heads {h}/{h_kv}"), Sizes { heads: (h, h_kv), ..PLAIN }.mixed().with_band(br));
    }
    for d in [64, 96, 256] {
        let sizes = Sizes { head_dim: (d, d), ..PLAIN };
        add(&format!("decode, head_dim {d}"), sizes.decode());
        add(&format!("mixed, head_dim {d}"), sizes.mixed().with_band(br));
    }
    let latent = Sizes { heads: (16, 1), head_dim: (576, 512), ..PLAIN };
    add("decode, latent 576/512", latent.decode());
    add("mixed, latent 576/512", Sizes { seq: (64, 4096), ..latent }.mixed().with_band(br));
    let expanded = Sizes { heads: (16, 16), head_dim: (192, 128), ..PLAIN };
    add("mixed, head_dim 192/128", expanded.mixed().with_band(br));
    add("varlen, head_dim 192/128, causal", expanded.thd().with_band(Band::CAUSAL));
    add("varlen, softcap, causal", capped(PLAIN.thd().with_band(Band::CAUSAL)));
    add("varlen, sink, causal", PLAIN.thd().with_band(Band::CAUSAL).with_sink());
    let grouped = PLAIN.thd();
    add("varlen, softcap, backward", back(&capped(grouped.clone())));
    add("varlen, sink, backward", back(&grouped.clone().with_sink()));
    add("varlen, bottom-right causal, backward", back(&grouped.clone().with_band(br)));
    add("varlen, no groups, backward", back(&Sizes { heads: (8, 8), ..PLAIN }.thd()));
    let deterministic = BackwardOptions { deterministic: true, ..BackwardOptions::default() };
    add("varlen, deterministic, backward", grouped.with_stats().backward(deterministic));
    rows
}

/// The rows, in the order of the golden.
#[must_use]
pub fn rows(extent: Extent) -> Vec<Row> {
    let mut list = Vec::new();
    for (i, gpu) in GPUS.into_iter().enumerate() {
        let selected = |name: &str| extent == Extent::Full || (i == 0 && USUAL.contains(&name));
        let more = varied().into_iter().filter(|(name, _)| selected(name));
        list.extend(plain().into_iter().chain(more).map(|(name, attention)| Row {
            name: format!("{gpu} | {name}"),
            attention,
            gpu,
            form: Form::Auto,
        }));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::validate;

    #[test]
    fn every_row_is_valid_and_has_a_unique_name() {
        let rows = rows(Extent::Full);
        let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        for row in &rows {
            validate(row.attention.clone()).unwrap_or_else(|e| panic!("{}: {e}", row.name));
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), rows.len());
        assert_eq!(super::rows(Extent::Usual).len(), GPUS.len() * plain().len() + USUAL.len());
    }
}
