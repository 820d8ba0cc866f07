//! Sizes: head dims and lengths.

use super::{CARD, FE_BACKWARD, FE_FORWARD, FUZZED};
use crate::{Facts, Kind, Rule, Versions};

/// The head dims of Q with K and of V with O, as a reason gives them.
fn head_dim(f: &Facts<'_>) -> String {
    format!("{} and {} on compute capability {}.{}", f.d_qk, f.d_v, f.sm() / 10, f.sm() % 10)
}

/// The head dims, where one is over a limit.
fn over(f: &Facts<'_>, limit: i64) -> Option<String> {
    (f.d_qk.max(f.d_v) > limit).then(|| head_dim(f))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "head-dim.multiple-of-8",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "q.dims[3], v.dims[3]",
        needed: "head dims that are multiples of 8",
        fix: "pad the rows with zeros to the next multiple of 8",
        source: FUZZED,
        given: |f| (f.d_qk % 8 != 0 || f.d_v % 8 != 0).then(|| format!("{} and {}", f.d_qk, f.d_v)),
    },
    Rule {
        code: "head-dim.forward-old",
        kind: Kind::Unsupported,
        versions: Versions::before(9, 1),
        field: "q.dims[3], v.dims[3]",
        needed: "head dims of up to 256 on compute capability 9.0, up to 128 on others",
        fix: "use cuDNN 9.10.2 or newer",
        source: FE_FORWARD,
        given: |f| {
            let blackwell_is_newer = f.is_blackwell() && f.version() >= super::v9(9, 0);
            if f.backward() || blackwell_is_newer { None } else { over(f, if f.is_hopper() { 256 } else { 128 }) }
        },
    },
    Rule {
        code: "head-dim.backward",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "q.dims[3], v.dims[3]",
        needed: "in a backward, head dims of up to 128; of up to 256 on compute capability 9.0; 192 with 128 too on 10.x \
                 since 9.11, and 256 with 256 there since 9.23 if it is deterministic",
        fix: "run the backward on a Hopper GPU, or split the head dim of V and O, which is exact",
        source: FUZZED,
        given: |f| {
            let limit = if f.is_hopper() { 256 } else { 128 };
            let latent = f.is_blackwell() && (f.d_qk, f.d_v) == (192, 128) && f.version() >= super::v9(11, 0);
            let named = f.names_engine() && (f.d_qk, f.d_v) == (256, 256) && f.version() >= super::v9(23, 0);
            if f.backward() && !latent && !named { over(f, limit) } else { None }
        },
    },
    Rule {
        code: "head-dim.backward-latent",
        kind: Kind::Unsupported,
        versions: Versions::between((11, 0), (13, 0)),
        field: "q.dims[3], v.dims[3]",
        needed: "between 128 and 192 for Q and between 64 and 128 for V, either 192 for Q or 128 for V",
        fix: "use cuDNN 9.13 or newer",
        source: FE_BACKWARD,
        given: |f| {
            let between = (129..=192).contains(&f.d_qk) && (65..=128).contains(&f.d_v);
            let refused = f.backward() && f.is_hopper() && between && f.d_qk != 192 && f.d_v != 128;
            refused.then(|| head_dim(f))
        },
    },
    Rule {
        code: "head-dim.backward-latent-one-query",
        kind: Kind::Unsupported,
        versions: Versions::from(11, 0),
        field: "q.dims[2]",
        needed: "in a backward of head dims 192 and 128 on compute capability 10.x, more than one query or sequence, or a single \
                 head: the kernel that the library generates for one does not compile",
        fix: "pad to two queries, with lengths that say one, or run the backward on a Hopper GPU",
        source: FUZZED,
        given: |f| {
            let latent = f.backward() && f.is_blackwell() && (f.d_qk, f.d_v) == (192, 128);
            (latent && f.one_query_of_several_heads())
                .then(|| format!("one query of one sequence and {} heads", f.a.q.heads()))
        },
    },
    Rule {
        code: "head-dim.philox",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "q.dims[3], v.dims[3]",
        needed: "in a forward with dropout drawn by Philox on compute capability 10.x, head dims of V and O other than 128 where \
                 those of Q and K are over 128 (192 is taken for nine queries and more): the kernel that the library generates does \
                 not compile",
        fix: "pad V and O to the head dim of Q, give the dropout mask as an operand, or use a Hopper GPU",
        source: FUZZED,
        given: |f| {
            let drawn = !f.backward() && f.is_blackwell() && f.philox();
            let refused = drawn && f.d_v == 128 && f.d_qk > 128 && (f.d_qk != 192 || f.s_q <= 8);
            refused.then(|| format!("{}, {} queries", head_dim(f), f.s_q))
        },
    },
    Rule {
        code: "head-dim.philox-one-query",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "q.dims[2]",
        needed: "more than one query in a forward with dropout drawn by Philox and head dims over 128 on compute capability 10.x; \
                 256 for both is taken since 9.23",
        fix: "pad to two queries, with lengths that say one, give the dropout mask as an operand, or use a Hopper GPU",
        source: FUZZED,
        given: |f| {
            let drawn = !f.backward() && f.is_blackwell() && f.philox() && f.s_q == 1;
            let taken = (f.d_qk, f.d_v) == (256, 256) && f.version() >= super::v9(23, 0);
            let refused = drawn && !taken && f.d_qk.max(f.d_v) > 128;
            refused.then(|| format!("one query, head dims {}", head_dim(f)))
        },
    },
    Rule {
        code: "dropout.mask-odd",
        kind: Kind::Wrong,
        versions: Versions::ALL,
        field: "k.dims[2]",
        needed: "for a dropout mask of one query, one head and one sequence, an even number of keys: the kernel reads two elements of the \
                 mask at a time, and multiplies the values by what lies behind the last",
        fix: "pad to an even number of keys, with a mask, lengths or a predicate that hides the last, or let the library draw the dropout",
        source: CARD,
        given: |f| {
            let by_mask = !f.backward() && f.dropout() && !f.philox();
            let one_row = f.a.batch() * f.a.q.heads() * f.s_q == 1;
            (by_mask && one_row && f.s_kv >= 3 && f.s_kv % 2 == 1)
                .then(|| format!("a dropout mask of one row of {} keys", f.s_kv))
        },
    },
    Rule {
        code: "queries.one-old",
        kind: Kind::Unsupported,
        versions: Versions::before(9, 1),
        field: "q.dims[2]",
        needed: "more than one query for a right bound, or for head dims over 128 on compute capability 10.x",
        fix: "use cuDNN 9.10.2 or newer, or leave the causal mask out: one query at the end sees every key",
        source: FE_FORWARD,
        given: |f| {
            let bound = f.a.mask.band.is_some_and(|band| band.right.is_some());
            let wide = f.is_blackwell() && f.d_qk.max(f.d_v) > 128;
            (!f.backward() && f.s_q == 1 && (bound || wide)).then(|| "one query".to_owned())
        },
    },
];
