//! Sinks, and what holds for backwards.

use super::{CARD, FE_BACKWARD, FE_FORWARD, FUZZED};
use crate::{Kind, Rule, Versions};

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "sink.old",
        kind: Kind::Unsupported,
        versions: Versions::before(13, 0),
        field: "sink",
        needed: "cuDNN 9.13 or newer",
        fix: "use a newer cuDNN, or join the sink to the output by Stats afterwards: O times exp(Stats) over (exp(Stats) + exp(sink))",
        source: FE_FORWARD,
        given: |f| f.a.sink.then(|| "a sink".to_owned()),
    },
    Rule {
        code: "backward.keys-tail-old",
        kind: Kind::Wrong,
        versions: Versions::before(15, 1),
        field: "k.dims[2]",
        needed: "a number of keys that is a multiple of 128, or per-sequence lengths",
        fix: "give per-sequence lengths that say how many there are, as NVIDIA's front end does by itself for these versions",
        source: FE_BACKWARD,
        given: |f| {
            let tail = f.backward() && f.s_kv % 128 != 0 && !f.lengths();
            tail.then(|| format!("a backward over {} keys", f.s_kv))
        },
    },
    Rule {
        code: "backward.tensor-factor",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "score_mod",
        needed: "for the gradient of a tensor, one tensor that the score's own derivative is the gradient of, as that of a bias which is added \
                 first",
        fix: "add the bias before anything else is done to the score, or sum several into one; else ask for no gradient",
        source: FUZZED,
        given: |f| f.gradient_apart(),
    },
    Rule {
        code: "backward.query-tensor",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "score, mask.mask_mod, dropout",
        needed: "compute capability 9.0 or 10.x for a backward that reads a tensor with one number per query or per sequence (the \
                 library takes two such tensors, which Stats and the row sums are); a dropout mask over one key is one too, and lengths that \
                 an expression reads, as `position` does",
        fix: "say the tensor with all keys (extents [.., queries, keys]); give what is computed of lengths as such a tensor; or run the \
              backward on another GPU",
        source: FUZZED,
        given: |f| {
            let narrow = f.backward() && (f.sm() < 90 || f.sm() >= 120);
            if narrow { f.query_tensor() } else { None }
        },
    },
    Rule {
        code: "backward.query-tensors",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "score, mask.mask_mod, dropout",
        needed: "in a backward on compute capability 9.0, or on 10.x before 9.22, at most two reads of tensors with one number per query or \
                 per sequence (the library counts four, of which Stats and the row sums are two; a derivative reads again what it needs)",
        fix: "say the tensors with all keys (extents [.., queries, keys]), join them into one, or give what is computed of lengths as such a tensor",
        source: FUZZED,
        given: |f| {
            let counted = f.is_hopper() || (f.is_blackwell() && f.version() < super::v9(22, 0));
            if !counted {
                return None;
            }
            let (reads, _) = f.query_reads()?;
            (reads > 2).then(|| format!("{reads} reads of such tensors, lengths among them"))
        },
    },
    Rule {
        code: "backward.query-tensor-subtracted",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "score, mask.mask_mod",
        needed: "in a backward on compute capability 10.x, no tensor with one number per query or per sequence that is subtracted: the \
                 kernel that the library generates does not compile",
        fix: "give the tensor with the other sign and add it",
        source: FUZZED,
        given: |f| {
            if !f.is_blackwell() {
                return None;
            }
            let (_, subtracted) = f.query_reads()?;
            (subtracted > 0).then(|| format!("{subtracted} subtractions of such a tensor"))
        },
    },
    Rule {
        code: "backward.query-tensor-gradient",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "score, mask.mask_mod, dropout",
        needed: "in a backward on compute capability 10.x that wants a tensor's gradient, no tensor with one number per query or per sequence",
        fix: "say that tensor with all keys (extents [.., queries, keys]), what is computed of lengths too; or ask for no gradient",
        source: FUZZED,
        given: |f| {
            let wanted = f.is_blackwell() && f.wants_tensor_gradient();
            let found = if wanted { f.query_tensor() } else { None };
            found.map(|found| format!("{found}, beside the gradient of another"))
        },
    },
    Rule {
        code: "backward.wide-gradient",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "q.dims[3]",
        needed: "in a backward on compute capability 10.x that wants a tensor's gradient, head dims of up to 128",
        fix: "ask for no gradient of the tensor, or run the backward on a Hopper GPU",
        source: FUZZED,
        given: |f| {
            let wide = f.is_blackwell() && f.d_qk > 128 && f.wants_tensor_gradient();
            wide.then(|| format!("the gradient of a tensor, with head dims {} and {}", f.d_qk, f.d_v))
        },
    },
    Rule {
        code: "backward.one-query-philox",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "dropout",
        needed: "in a backward with dropout drawn by Philox on compute capability 10.x, more than one query or sequence, or a single \
                 head: the kernel that the library generates for one does not compile",
        fix: "give the dropout mask as an operand, or pad to two queries, with lengths that say one",
        source: FUZZED,
        given: |f| {
            let one = f.backward() && f.is_blackwell() && f.one_query_of_several_heads();
            (one && f.philox())
                .then(|| format!("one query of one sequence and {} heads, with dropout drawn by Philox", f.a.q.heads()))
        },
    },
    Rule {
        code: "backward.varlen-head-dim-old",
        kind: Kind::Wrong,
        versions: Versions::before(19, 0),
        field: "q.dims[3], v.dims[3]",
        needed: "cuDNN 9.19 or newer for varlen backwards with head dims over 128: with 9.14, 192 and 256 came out wrong or as NaN",
        fix: "use a newer cuDNN, or dense operands with lengths",
        source: CARD,
        given: |f| {
            let wide = f.backward() && f.varlen() && (f.d_qk > 128 || f.d_v > 128);
            wide.then(|| format!("head dims {} and {} of varlen operands in a backward", f.d_qk, f.d_v))
        },
    },
    Rule {
        code: "backward.varlen-no-queries-old",
        kind: Kind::Wrong,
        versions: Versions::before(19, 0),
        field: "q.storage, k.storage",
        needed: "cuDNN 9.19 or newer for varlen backwards: 9.14 does not write dK and dV of a sequence that has keys and no queries",
        fix: "use a newer cuDNN, or use dense operands with lengths; where every sequence has a query, allow the code",
        source: CARD,
        given: |f| (f.backward() && f.varlen()).then(|| "varlen operands in a backward".to_owned()),
    },
    Rule {
        code: "backward.varlen-key-gradients-old",
        kind: Kind::Wrong,
        versions: Versions::before(19, 0),
        field: "d_k.strides",
        needed: "cuDNN 9.19 or newer, or dK and dV of a varlen backward with the strides of K and V: 9.14 writes them by those of K and V",
        fix: "use a newer cuDNN, or give dK and dV the strides of K and V",
        source: CARD,
        given: |f| {
            let gradients = f.gradients.filter(|_| f.varlen())?;
            let pairs = [("dK", &gradients.d_k, "K", &f.a.k), ("dV", &gradients.d_v, "V", &f.a.v)];
            // The batch stride of varlen operands is not used.
            let other = pairs.into_iter().find(|(_, d, _, t)| d.strides[1..] != t.strides[1..])?;
            let (name, gradient, of, tensor) = other;
            Some(format!("strides {:?} of {name} and {:?} of {of}", gradient.strides, tensor.strides))
        },
    },
    Rule {
        code: "backward.varlen-rows",
        kind: Kind::Wrong,
        versions: Versions::ALL,
        field: "d_q.strides",
        needed: "in a varlen backward that is not deterministic, dQ as far apart from token to token as Q: the library writes dQ at Q's offsets \
                 (9.27: Q beside K and V in one tensor and dQ alone)",
        fix: "give dQ the strides of Q (a gradient of the whole QKV tensor), or ask for a deterministic backward",
        source: CARD,
        given: |f| {
            let gradients = f.gradients.filter(|g| f.varlen() && !g.deterministic)?;
            let (q, d_q) = (f.a.q.strides, gradients.d_q.strides);
            (q[2] != d_q[2]).then(|| format!("tokens of Q are {} elements apart, those of dQ {}", q[2], d_q[2]))
        },
    },
    Rule {
        code: "backward.varlen-consumer-old",
        kind: Kind::Unsupported,
        versions: Versions::before(18, 1),
        field: "q.storage",
        needed: "cuDNN 9.18.1 or newer for varlen backwards on compute capability 12.x",
        fix: "use a newer cuDNN, or dense operands with lengths",
        source: FUZZED,
        given: |f| {
            let varlen = f.backward() && f.varlen() && f.sm() >= 120;
            varlen.then(|| "varlen operands in a backward".to_owned())
        },
    },
];
