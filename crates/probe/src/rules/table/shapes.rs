//! Sizes: hidden dims, lengths, heads.

use crate::rules::{Kind, Rule, Versions};

const FE_FORWARD: &str = "cudnn-frontend 1.23, node/sdpa_support_surface.h";

pub(super) const RULES: &[Rule] = &[Rule {
    code: "hidden.multiple-of-8",
    kind: Kind::Unsupported,
    versions: Versions::ALL,
    field: "q.dims[3], v.dims[3]",
    needed: "hidden sizes that are multiples of 8",
    fix: "pad the rows with zeros to the next multiple of 8",
    source: FE_FORWARD,
    given: |f| (f.d_qk % 8 != 0 || f.d_v % 8 != 0).then(|| format!("{} and {}", f.d_qk, f.d_v)),
}];
