//! Bands and lengths.

use super::{FE_BACKWARD, FE_FORWARD};
use crate::{Kind, Rule, Versions};

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "band.window-wrong",
        kind: Kind::Wrong,
        versions: Versions::between((14, 0), (14, 1)),
        field: "mask.band.left",
        needed: "a right bound beside the window, or at most 1024 keys",
        fix: "use another cuDNN; a causal window is not affected",
        source: FE_FORWARD,
        given: |f| {
            let open = f.a.mask.band.is_some_and(|band| band.right.is_none());
            (open && f.s_kv > 1024).then(|| format!("a window without a right bound over {} keys", f.s_kv))
        },
    },
    Rule {
        code: "band.window-old",
        kind: Kind::Unsupported,
        versions: Versions::before(10, 2),
        field: "mask.band.left",
        needed: "a window with a right bound, without dropout and without a score expression",
        fix: "use cuDNN 9.10.2 or newer",
        source: FE_FORWARD,
        given: |f| {
            let band = f.a.mask.band?;
            let more = band.right.is_none() || f.dropout() || f.a.score_mod.is_some();
            band.left.filter(|_| more).map(|left| format!("a window of {left}"))
        },
    },
    Rule {
        code: "band.window-corner-old",
        kind: Kind::Unsupported,
        versions: Versions::before(9, 1),
        field: "mask.band",
        needed: "as many queries as keys for a bottom-right window on compute capability 9.0 to be written top-left",
        fix: "start the diagonal top left, which is the same for as many queries as keys, or use cuDNN 9.10.2 or newer",
        source: FE_BACKWARD,
        given: |f| {
            let square = f.s_q == f.s_kv && f.is_hopper();
            let window = f.window().filter(|_| f.causal_bottom_right() && square);
            window.map(|left| format!("a bottom-right window of {left} over as many queries as keys"))
        },
    },
    Rule {
        code: "band.rows-without-keys",
        kind: Kind::Wrong,
        versions: Versions::ALL,
        field: "mask.band",
        needed: "at least as many keys as queries, so that the diagonal that ends bottom right starts in the matrix",
        fix: "cut the queries that see no key, or give per-sequence lengths",
        source: FE_FORWARD,
        given: |f| {
            let bare = f.causal_bottom_right() && !f.lengths() && f.s_q > f.s_kv;
            bare.then(|| {
                format!("{} queries over {} keys, of which the first {} see none", f.s_q, f.s_kv, f.s_q - f.s_kv)
            })
        },
    },
];
