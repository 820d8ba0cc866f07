//! The one-line summary of an attention, for tables, logs and file headers. The text form is the full description.

use std::fmt;

use crate::{
    Attention, Band, Corner, Dropout, DropoutSource, Fp8, Lengths, Mask, Outputs, Pass, Storage, Tensor, Valid,
};

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attention {
            q,
            k,
            v,
            o,
            mask,
            score_mod,
            score_mod_bprop,
            origins,
            sink,
            dropout,
            block_mask,
            outputs,
            padded_rows: _,
            invariant,
            draft_tree,
            fp8,
            pass,
        } = self;
        f.write_str(match pass {
            Pass::Forward => "fwd",
            Pass::Backward(_) => "bwd",
        })?;
        write!(f, " {} b{}", q.dtype, q.dims[0])?;
        let (h_q, h_k, h_v) = self.heads();
        match (h_k == h_v, h_q == h_k) {
            (true, true) => write!(f, " h{h_q}")?,
            (true, false) => write!(f, " h{h_q}/{h_k}")?,
            (false, _) => write!(f, " h{h_q}/{h_k}/{h_v}")?,
        }
        write!(f, " q{} kv{}", q.dims[2], k.dims[2])?;
        let (d_qk, d_v) = self.head_dims();
        if d_qk == d_v { write!(f, " d{d_qk}") } else { write!(f, " d{d_qk}/{d_v}") }?;
        for (name, t) in [("q", q), ("k", k), ("v", v), ("o", o)] {
            write_storage(f, name, t)?;
        }
        write_mask(f, mask)?;
        for (on, word) in [
            (score_mod.is_some(), "score_mod"),
            (score_mod_bprop.is_some(), "score_mod_bprop"),
            (origins.is_some(), "origins"),
            (*sink, "sink"),
            (*block_mask, "blocks"),
            (*invariant, "invariant"),
            (*draft_tree, "draft-tree"),
        ] {
            if on {
                write!(f, " {word}")?;
            }
        }
        if let Some(Dropout { source, probability }) = dropout {
            let name = match source {
                DropoutSource::Philox => "dropout",
                DropoutSource::Mask => "dropout-mask",
                DropoutSource::Places => "dropout-places",
            };
            write!(f, " {name} {probability}")?;
        }
        if let Some(fp8) = fp8 {
            write!(f, " fp8-{}", format!("{fp8:?}").to_lowercase())?;
            if *fp8 == Fp8::Cache {
                write!(f, "-{}", k.dtype)?;
            }
        }
        let Outputs { stats, max, sum_exp, amax } = *outputs;
        for (on, word) in [(stats, "stats"), (max, "max"), (sum_exp, "sum-exp"), (!amax, "no-amax")] {
            if on {
                write!(f, " {word}")?;
            }
        }
        if let Pass::Backward(g) = pass {
            f.write_str(if g.deterministic { " deterministic" } else { "" })?;
        }
        Ok(())
    }
}

/// Writes the storage of a tensor, unless it is plain BSHD.
fn write_storage(f: &mut fmt::Formatter<'_>, name: &str, t: &Tensor) -> fmt::Result {
    match t.storage {
        Storage::Dense => match t.order() {
            Some(crate::Order::Bshd) => Ok(()),
            Some(order) => write!(f, " {name}:{order}"),
            None => write!(f, " {name}:strided"),
        },
        Storage::Varlen { tokens } => write!(f, " {name}:varlen{tokens}"),
        Storage::Paged { pages, page_size } => write!(f, " {name}:paged{pages}x{page_size}"),
    }
}

fn write_mask(f: &mut fmt::Formatter<'_>, mask: &Mask) -> fmt::Result {
    let Mask { band, lengths, mask_mod } = mask;
    if let Some(Band { corner, left, right }) = band {
        match (left, right) {
            (None, Some(0)) => f.write_str(" causal")?,
            (Some(l), Some(0)) => write!(f, " causal window{l}")?,
            (Some(l), None) => write!(f, " window{l}")?,
            (None, Some(r)) => write!(f, " right{r}")?,
            (Some(l), Some(r)) => write!(f, " window{l}+{r}")?,
            (None, None) => {}
        }
        if *corner == Corner::BottomRight {
            f.write_str("-br")?;
        }
    }
    if *lengths == Lengths::PerSequence {
        f.write_str(" lengths")?;
    }
    if mask_mod.is_some() { f.write_str(" mask_mod") } else { Ok(()) }
}

impl fmt::Display for Valid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Attention, Band, Corner, DType, Tensor};

    #[test]
    fn a_summary_names_what_is_not_plain() {
        let a = Attention::bshd(1, (32, 8), (512, 512), 128, DType::BF16).with_band(Band::CAUSAL).with_stats();
        assert_eq!(a.to_string(), "fwd bf16 b1 h32/8 q512 kv512 d128 causal stats");
        let mut a = Attention::bshd(8, (16, 16), (1, 8192), 64, DType::F16).with_band(Band {
            corner: Corner::BottomRight,
            left: Some(4096),
            right: None,
        });
        a.q = Tensor::bhsd(8, 16, 2, 64, DType::F16);
        assert_eq!(a.to_string(), "fwd f16 b8 h16 q2 kv8192 d64 q:bhsd window4096-br");
    }
}
