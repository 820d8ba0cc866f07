//! The prompts and training steps that `bench engines` measures, each forward and backward: NVIDIA's table of an H200,
//! shapes of published models, short prompts, and expressions.

use qkvault_graph::expr::{self, library};
use qkvault_graph::{Attention, Band, Corner, DType};

/// What is done to the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modification {
    None,
    Softcap,
    Alibi,
    /// A query sees the keys of its own document.
    Documents,
    /// Both.
    DocumentsSoftcap,
}

impl Modification {
    const fn name(self) -> &'static str {
        match self {
            Modification::None => "",
            Modification::Softcap => "softcap",
            Modification::Alibi => "alibi",
            Modification::Documents => "documents",
            Modification::DocumentsSoftcap => "documents softcap",
        }
    }
}

/// One attention, in sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dense {
    group: &'static str,
    b: i64,
    h: i64,
    hk: i64,
    s: i64,
    d: i64,
    causal: bool,
    window: Option<i64>,
    modification: Modification,
}

impl Dense {
    const fn new(group: &'static str, (b, h, hk, s, d): (i64, i64, i64, i64, i64), causal: bool) -> Dense {
        Dense { group, b, h, hk, s, d, causal, window: None, modification: Modification::None }
    }

    /// A name of its own.
    pub(super) fn name(&self) -> String {
        let Dense { group, b, h, hk, s, d, causal, window, modification } = *self;
        let mask = if causal { "causal" } else { "full" };
        let window = window.map_or_else(String::new, |keys| format!(" window {keys}"));
        let modification = if modification == Modification::None { "" } else { modification.name() };
        let space = if modification.is_empty() { "" } else { " " };
        format!("{group} b{b} h{h}/{hk} s{s} d{d} {mask}{window}{space}{modification}")
    }

    /// The forward without Stats, as for inference, and the backward.
    pub(super) fn attentions(&self) -> anyhow::Result<[Attention; 2]> {
        use Modification::{Alibi, Documents, DocumentsSoftcap, Softcap};
        let Dense { b, h, hk, s, d, causal, window, modification, .. } = *self;
        let mut a = Attention::bshd(b, (h, hk), (s, s), d, DType::BF16);
        if let Some(keys) = window {
            a = a.with_band(Band::window(Corner::BottomRight, keys));
        } else if causal {
            a = a.causal();
        }
        if matches!(modification, Softcap | DocumentsSoftcap) {
            a = a.with_score_mod(library::softcap(expr::score(), expr::scalar("cap")).build_score_mod()?);
        }
        if modification == Alibi {
            a = a.with_score_mod(library::alibi(expr::score(), h).build_score_mod()?);
        }
        if matches!(modification, Documents | DocumentsSoftcap) {
            a = a.with_mask_mod(library::document_mask("q_ids", "k_ids", b, s, s).build_mask_mod()?);
        }
        let backward = a.clone().with_stats().backward(Default::default());
        Ok([a, backward])
    }
}

/// Every prompt and training step.
pub(super) fn list() -> Vec<Dense> {
    let mut all = Vec::new();
    for s in [2048, 4096, 8192, 16_384, 32_768] {
        for causal in [true, false] {
            all.push(Dense::new("nvidia", (1, 64, 8, s, 128), causal));
        }
        // The layers of gpt-oss with a window.
        all.push(Dense { window: Some(1024), ..Dense::new("nvidia", (2, 64, 8, s, 64), true) });
    }
    for (sizes, causal) in [
        ((4, 16, 16, 4096, 128), false),
        ((4, 16, 16, 4096, 128), true),
        ((1, 16, 16, 16_384, 128), true),
        ((4, 32, 8, 4096, 128), true),
        ((8, 16, 16, 1024, 64), true),
        ((4, 32, 8, 4096, 64), true),
        ((64, 16, 16, 197, 64), false),
        ((32, 12, 12, 512, 64), false),
        ((1, 24, 24, 4608, 128), false),
        ((1, 8, 8, 256, 64), true),
        ((1, 16, 8, 4096, 256), true),
        ((2, 32, 32, 4096, 96), true),
        ((16, 20, 20, 1500, 64), false),
        ((4, 32, 1, 4096, 128), true),
    ] {
        all.push(Dense::new("plain", sizes, causal));
    }
    for d in [64, 128] {
        for s in [256, 512, 1024, 2048] {
            for b in [1, 8] {
                all.push(Dense::new("prompt", (b, 32, 8, s, d), true));
            }
        }
    }
    let sizes = (4, 16, 16, 4096, 128);
    for modification in [Modification::Softcap, Modification::Alibi] {
        all.push(Dense { modification, ..Dense::new("expression", sizes, true) });
    }
    all.push(Dense { window: Some(1024), ..Dense::new("expression", sizes, true) });
    all.push(Dense {
        window: Some(1024),
        modification: Modification::Softcap,
        ..Dense::new("expression", sizes, true)
    });
    for modification in [Modification::Documents, Modification::DocumentsSoftcap] {
        all.push(Dense { modification, ..Dense::new("expression", sizes, false) });
        // Packed training of long rows: few tiles are left of many.
        for s in [8192, 32_768] {
            all.push(Dense { modification, ..Dense::new("expression", (1, 16, 16, s, 128), true) });
        }
    }
    all
}
