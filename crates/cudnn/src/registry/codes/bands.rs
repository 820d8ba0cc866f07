//! Bands.

use super::{FE_BACKWARD, FE_FORWARD};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Gpus, Standing, Versions};

declare![
    BAND_WINDOW_WRONG = Entry {
        code: "band.window-wrong",
        cause: "cuDNN 9.14.0 gives wrong results for a window without a right bound over more than 1024 keys.",
        affected: &[Versions::between((14, 0), (14, 1)).on(Gpus::ALL)],
        field: "mask.band.left",
        needed: "a right bound together with the window, or at most 1024 keys",
        fix: "use another cuDNN; a causal window is not affected",
        source: FE_FORWARD,
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h",
            "https://github.com/NVIDIA/TransformerEngine/pull/2344"
        ],
        applies: Applies::Rules(|f| {
            let open = f.a.mask.band.is_some_and(|band| band.right.is_none());
            (open && f.s_kv > 1024).then(|| format!("a window without a right bound over {} keys", f.s_kv))
        }),
        ..Entry::quirk(10)
    },
    BAND_WINDOW_OLD = Entry {
        code: "band.window-old",
        cause: "These versions support a window only with a right bound, and not with dropout or a score expression.",
        affected: &[Versions::before(10, 2).on(Gpus::ALL)],
        field: "mask.band.left",
        needed: "a window with a right bound, without dropout and without a score expression",
        fix: "use cuDNN 9.10.2 or newer",
        source: FE_FORWARD,
        applies: Applies::Rules(|f| {
            let band = f.a.mask.band?;
            let more = band.right.is_none() || f.dropout() || f.a.score_mod.is_some();
            band.left.filter(|_| more).map(|left| format!("a window of {left}"))
        }),
        ..Entry::rule()
    },
    BAND_WINDOW_CORNER_OLD = Entry {
        code: "band.window-corner-old",
        cause: "These versions do not support a bottom-right window with as many queries as keys.",
        affected: &[Versions::before(9, 1).on(Gpus::HOPPER)],
        field: "mask.band",
        needed: "on compute capability 9.0, with as many queries as keys, a window whose diagonal starts top left",
        fix: "start the diagonal top left, which is the same for as many queries as keys, or use cuDNN 9.10.2 or newer",
        source: FE_BACKWARD,
        applies: Applies::Rules(|f| {
            let window = f.window().filter(|_| f.causal_bottom_right() && f.s_q == f.s_kv);
            window.map(|left| format!("a bottom-right window of {left} over as many queries as keys"))
        }),
        ..Entry::rule()
    },
    BAND_ROWS_WITHOUT_KEYS = Entry {
        code: "band.rows-without-keys",
        cause: "The diagonal ends bottom right and there are more queries than keys, so the first queries see no key.",
        field: "mask.band",
        needed: "at least as many keys as queries, so that the diagonal that ends bottom right starts inside the \
                 matrix",
        fix: "remove the queries that see no key, or give per-sequence lengths",
        source: FE_FORWARD,
        evidence: "NVIDIA's front end refuses it; this was not confirmed on a GPU (docs/results/probe.md).",
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h"
        ],
        applies: Applies::Rules(|f| {
            let bare = f.causal_bottom_right() && !f.lengths() && f.s_q > f.s_kv;
            bare.then(|| {
                format!("{} queries over {} keys, of which the first {} see none", f.s_q, f.s_kv, f.s_q - f.s_kv)
            })
        }),
        ..Entry::quirk(11)
    },
];
