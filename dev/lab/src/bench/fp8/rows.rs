//! The FP8 rows of the table that NVIDIA publishes for an H200, and the cases that measure them beside bf16.

use crate::bench::timed::file::{self, TimedCase};

/// Sequence length, and NVIDIA's TFLOP/s forward and backward.
type Published = (i64, f64, f64);

/// One sequence, 64 query heads over 8 KV heads of 128, E4M3, with one scale per tensor. Source: the page of benchmarks
/// in the repository of cudnn-frontend 1.19 (cuDNN 9.19.1, H200). A causal mask counts as half. All operands are BSHD
/// there but dO, which is BHSD.
const TABLE: [(&str, [Published; 5]); 2] = [
    (
        "causal",
        [
            (2048, 698.0, 393.0),
            (4096, 854.0, 471.0),
            (8192, 964.0, 430.0),
            (16384, 1010.0, 374.0),
            (32768, 1042.0, 370.0),
        ],
    ),
    (
        "full",
        [
            (2048, 870.0, 531.0),
            (4096, 973.0, 602.0),
            (8192, 1023.0, 636.0),
            (16384, 1055.0, 659.0),
            (32768, 1062.0, 674.0),
        ],
    ),
];

/// Lengths of forwards with head dims of 64, for which compute capability 9.0 has no kernel of its own: it computes
/// 128. NVIDIA publishes no figures.
const OF_64: [i64; 3] = [2048, 8192, 32_768];

/// A row of the table: the same attention in FP8 and in bf16.
pub(super) struct Fp8Row {
    pub(super) mask: &'static str,
    pub(super) seq: i64,
    pub(super) head_dim: i64,
    /// The case in FP8, then in bf16.
    pub(super) cases: [TimedCase; 2],
    /// NVIDIA's TFLOP/s in FP8, forward and backward.
    pub(super) published: [Option<f64>; 2],
}

impl Fp8Row {
    fn new(
        mask: &'static str,
        seq: i64,
        head_dim: i64,
        published: [Option<f64>; 2],
        alone: bool,
    ) -> anyhow::Result<Fp8Row> {
        let case = |name: &str, dtype: &str, scaling: &str| {
            let masked = if mask == "full" { "" } else { "mask: causal\n" };
            let (q, kv) = (format!("{dtype} [1,64,{seq},{head_dim}]"), format!("{dtype} [1,8,{seq},{head_dim}] bshd"));
            let (pass, d_o) =
                if alone { ("", String::new()) } else { ("pass: backward\n", format!("d_o: {q} bhsd\n")) };
            let more = if alone { "alone: yes\n" } else { "" };
            let text = format!("case: {name}\n{pass}q: {q} bshd\nk: {kv}\nv: {kv}\n{d_o}{masked}{scaling}{more}");
            anyhow::Ok(file::read(&text, 1)?.remove(0))
        };
        let cases = [case("fp8", "e4m3", "fp8: delayed\n")?, case("bf16", "bf16", "")?];
        Ok(Fp8Row { mask, seq, head_dim, cases, published })
    }

    /// What the row is called on the command line.
    pub(super) fn name(&self) -> String {
        format!("{} s{} d{}", self.mask, self.seq, self.head_dim)
    }
}

/// Every row.
pub(super) fn all() -> anyhow::Result<Vec<Fp8Row>> {
    let mut list = Vec::new();
    for (mask, rows) in TABLE {
        for (seq, forward, backward) in rows {
            list.push(Fp8Row::new(mask, seq, 128, [Some(forward), Some(backward)], false)?);
        }
        for seq in OF_64 {
            list.push(Fp8Row::new(mask, seq, 64, [None, None], true)?);
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use qkvault_graph::{DType, Fp8};

    use super::*;

    #[test]
    fn every_row_is_the_same_attention_in_both_formats() {
        let rows = all().expect("valid");
        assert_eq!(rows.iter().map(Fp8Row::name).collect::<BTreeSet<_>>().len(), 16);
        for row in &rows {
            let [eight, sixteen] = &row.cases;
            let (a, b) = (eight.forward(), sixteen.forward());
            assert_eq!((a.fp8, a.q.dtype, b.q.dtype), (Some(Fp8::Delayed), DType::E4M3, DType::BF16));
            assert_eq!((a.q.dims, a.k.dims, &a.mask.band), (b.q.dims, b.k.dims, &b.mask.band), "{}", row.name());
            assert_eq!(eight.flops(true), sixteen.flops(true));
            assert_eq!(eight.backward().is_some(), row.published[1].is_some(), "{}", row.name());
        }
        assert_eq!(rows[0].cases[0].flops(false), 0.5 * 4.0 * 64.0 * 2048.0 * 2048.0 * 128.0);
    }
}
