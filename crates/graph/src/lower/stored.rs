//! What the library is known not to take of varlen and paged operands, by version and architecture, as rules with their
//! source: cudnn-frontend 1.23 and 1.32, `node/sdpa_support_surface.h` and `node/scaled_dot_product_flash_attention.h`.

use crate::{Attention, CudnnVersion, Origin, Pass, Reason, Storage, Target};

/// Keys of a tile of the kernels for several queries: they look up the pages of whole tiles, past the end of a sequence's row of
/// the table where it is no multiple of them (seen on an H200 with cuDNN 9.19: NaN of other pages came out).
const TILE: i64 = 128;

/// Versions from which something holds.
mod since {
    use crate::CudnnVersion;

    /// Paged keys and values.
    pub(super) const PAGED: CudnnVersion = CudnnVersion::v9(5, 0);
    /// Varlen queries over paged keys and values.
    pub(super) const PAGED_PACKED: CudnnVersion = CudnnVersion::v9(7, 0);
    /// Paged keys and values with rows longer than 128.
    pub(super) const PAGED_WIDE: CudnnVersion = CudnnVersion::v9(9, 1);
    /// Varlen forwards before Hopper.
    pub(super) const PACKED_AMPERE: CudnnVersion = CudnnVersion::v9(18, 1);
    /// Varlen backwards with fewer key than query heads.
    pub(super) const PACKED_GROUPS: CudnnVersion = CudnnVersion::v9(6, 0);
    /// Varlen backwards with a sink, which read out of bounds before.
    pub(super) const PACKED_SINK: CudnnVersion = CudnnVersion::v9(26, 0);
    /// Varlen Stats of one query per sequence with grouped heads being wrong (NVIDIA/cudnn-frontend issue 1083: only the first
    /// head of each group is written, in 9.26 and 9.27).
    pub(super) const WRONG_ONE_QUERY_STATS: CudnnVersion = CudnnVersion::v9(26, 0);
}

/// Why varlen and paged operands cannot be lowered for a target.
pub(super) fn limits(a: &Attention, target: &Target) -> Vec<Reason> {
    let mut rules = Rules { version: target.cudnn, reasons: Vec::new() };
    let varlen = |s: Storage| matches!(s, Storage::Varlen { .. });
    let any_varlen = [a.q, a.k, a.v, a.o].into_iter().any(|t| varlen(t.storage));
    let paged = a.k.is_paged();
    if paged {
        rules.from(since::PAGED, "storage.paged-old", "k.storage", "paged keys and values", "gather the pages first");
        let wide = a.q.head_dim().max(a.v.head_dim()) > 128;
        if wide {
            let fix = "gather the pages first";
            rules.from(since::PAGED_WIDE, "storage.paged-head-dim", "k.dims[3]", "paged rows longer than 128", fix);
        }
        for (t, field) in [(a.k, "k.dims[2]"), (a.v, "v.dims[2]")] {
            let (Some(width), Storage::Paged { page_size, .. }) = (t.pages_per_sequence(), t.storage) else { continue };
            if a.q.seq() > 1 && width.saturating_mul(page_size) % TILE != 0 {
                rules.reasons.push(Reason::new(
                    Origin::Quirk,
                    "storage.paged-tile",
                    field,
                    format!("up to {} keys, {width} pages of {page_size}, for several queries", t.seq()),
                    format!("whole tiles of {TILE} keys: cuDNN reads the table up to the end of the last one"),
                    "round the longest sequence up to a multiple of 128; lengths say how much of it there is",
                ));
            }
        }
        if a.q.seq() == 1 && a.sink {
            rules.reasons.push(Reason::new(
                Origin::Quirk,
                "storage.paged-one-query-sink",
                "sink",
                "a sink, with one query per sequence over paged keys",
                "cuDNN 9.19's result was wrong for this on an H200, and NVIDIA's front end refuses it for every version",
                "use varlen queries with room for two per sequence: a sequence may still have one",
            ));
        }
        if any_varlen {
            let fix = "use dense queries";
            rules.from(since::PAGED_PACKED, "storage.paged-varlen", "q.storage", "varlen queries over pages", fix);
        }
    }
    if any_varlen {
        // Of consumer GPUs with compute capability 12, the backward's rules are those of Ampere and Ada.
        let (old, narrow) = (target.sm() < 90, target.sm() < 90 || target.sm() >= 120);
        if old {
            let given = "varlen operands before compute capability 9.0";
            let fix = "use dense operands with lengths";
            rules.from(since::PACKED_AMPERE, "storage.varlen-sm", "q.storage", given, fix);
        }
        let grouped = a.q.heads() != a.k.heads();
        let one_query = varlen(a.q.storage) && a.q.seq() == 1 && grouped && a.outputs.stats && !a.is_backward();
        if one_query && target.cudnn >= since::WRONG_ONE_QUERY_STATS {
            rules.reasons.push(Reason::new(
                Origin::Quirk,
                "storage.varlen-one-query-stats",
                "outputs.stats",
                format!("varlen Stats of one query per sequence with grouped heads, for cuDNN {}", target.cudnn),
                "the library writes those of the first head of each group only",
                "use dense queries, or room for two queries per sequence",
            ));
        }
        if let Pass::Backward(gradients) = &a.pass {
            backward(&mut rules, a, gradients.deterministic, narrow);
        }
    }
    rules.reasons
}

fn backward(rules: &mut Rules, a: &Attention, deterministic: bool, narrow: bool) {
    let (h_q, h_k, h_v) = a.heads();
    if h_q != h_k || h_q != h_v {
        let given = "a varlen backward with fewer key or value heads than query heads";
        rules.from(since::PACKED_GROUPS, "storage.varlen-heads", "k.dims[1]", given, "repeat the heads");
    }
    if a.sink {
        let given = "a varlen backward with a sink, in which earlier versions read out of bounds";
        rules.from(since::PACKED_SINK, "storage.varlen-sink", "sink", given, "use dense operands with lengths");
    }
    if narrow && rules.version >= since::PACKED_AMPERE {
        let varlen_rows = matches!(a.q.storage, Storage::Varlen { .. });
        for (is, code, field, given) in [
            (varlen_rows, "storage.varlen-stats", "outputs.stats", "varlen Stats in a backward"),
            (deterministic, "storage.varlen-deterministic", "pass.deterministic", "a deterministic varlen backward"),
        ] {
            if is {
                rules.reasons.push(Reason::new(
                    Origin::Rule,
                    code,
                    field,
                    given,
                    "compute capability 9.0 or 10.x",
                    "use dense operands with lengths on this GPU",
                ));
            }
        }
    }
}

struct Rules {
    version: CudnnVersion,
    reasons: Vec<Reason>,
}

impl Rules {
    /// Adds a reason if the version is older than the first that takes it.
    fn from(
        &mut self,
        since: CudnnVersion,
        code: &'static str,
        field: &'static str,
        given: &'static str,
        fix: &'static str,
    ) {
        if self.version < since {
            let given = format!("{given}, for cuDNN {}", self.version);
            let mut reason = Reason::new(Origin::Rule, code, field, given, format!("cuDNN {since} or newer"), fix);
            reason.since = Some(since);
            self.reasons.push(reason);
        }
    }
}
