//! Varlen operands, and operands that reach far.

use super::{FE_STORAGE, FUZZED, GPU};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};
use crate::{Storage, Tensor};

/// What was given, with the version, if the attention is a varlen backward and `is` holds.
fn backward(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (f.backward() && f.varlen() && is).then(|| format!("{what}, for cuDNN {}", f.version()))
}

/// The elements from the first of dO to the end of its last; of a varlen dO by its tokens and their stride.
fn reach(f: &Facts<'_>) -> Option<i64> {
    let d_o = f.gradients?.d_o;
    Some(match d_o.storage {
        Storage::Varlen { tokens } => tokens.saturating_mul(d_o.strides[2]),
        Storage::Dense | Storage::Paged { .. } => {
            let steps = d_o.dims.iter().zip(d_o.strides).map(|(n, step)| (n - 1).saturating_mul(step));
            steps.fold(1, i64::saturating_add)
        }
    })
}

declare![
    BACKWARD_FAR_ROWS = Entry {
        code: "backward.far-rows",
        cause: "A backward computes the place of a row of dO in 32 bits.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "d_o.strides",
        needed: "in a backward, a dO that reaches no more than 2^31 elements; a varlen one fewer, by tokens times their \
                 stride",
        fix: "copy dO to rows that lie one behind the other, or split the batch",
        source: "flash-attention issue 2611, for dO",
        evidence: "On an H100 under cuDNN 9.19 dQ is off by 0.08 where tokens times the stride of a varlen dO pass 2^31; \
                   where the batch stride of a dense dO is 2^31, dQ and dK of the second sequence are wrong (2 of 2: 6.8 \
                   for -0.2). A dense dO that ends at 2^31 is right (2 of 2), as are strides of 2^31 of Q, K, V and O \
                   in a forward.",
        standing: Some(Standing::seen(
            "an H100",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow backward.far-rows --file CASES"
        )),
        reports: &["https://github.com/Dao-AILab/flash-attention/issues/2611"],
        applies: Applies::Rules(|f| {
            let most = if matches!(f.gradients?.d_o.storage, Storage::Varlen { .. }) { (1 << 31) - 1 } else { 1 << 31 };
            let reach = reach(f).filter(|reach| *reach > most)?;
            Some(format!("a dO that reaches {reach} elements"))
        }),
        ..Entry::quirk(40)
    },
    STORAGE_VARLEN_SM = Entry {
        code: "storage.varlen-sm",
        cause: "These versions have no varlen kernels for GPUs before compute capability 9.0.",
        affected: &[Versions::before(18, 1).on(Gpus::BEFORE_HOPPER)],
        field: "q.storage",
        fix: "use dense operands with lengths",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| {
            let given = || format!("varlen operands before compute capability 9.0, for cuDNN {}", f.version());
            f.varlen().then(given)
        }),
        ..Entry::rule()
    },
    STORAGE_VARLEN_ONE_QUERY_STATS = Entry {
        code: "storage.varlen-one-query-stats",
        cause: "With one query per sequence and grouped heads, cuDNN writes varlen Stats only for the first head of \
                each group.",
        affected: &[Versions::ALL.on(Gpus::ALL)],
        field: "outputs.stats",
        needed: "room for two queries per sequence, as many key heads as query heads, or no Stats",
        fix: "use dense queries, or room for two queries per sequence",
        source: "NVIDIA/cudnn-frontend issue 1083, of 9.26 and 9.27",
        evidence: "On an H100 under cuDNN 9.19 the Stats of three heads in four were never written in 24 of 24 forwards \
                   over dense, varlen and paged keys; O was right. Dense queries and two queries were right.",
        standing: Some(Standing::seen(
            "an H100",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow storage.varlen-one-query-stats --file CASES"
        )),
        reports: &["https://github.com/NVIDIA/cudnn-frontend/issues/1083"],
        applies: Applies::Lowering(|f| {
            let grouped = f.a.q.heads() != f.a.k.heads();
            let varlen = matches!(f.a.q.storage, Storage::Varlen { .. });
            let wrong = varlen && f.s_q == 1 && grouped && f.a.outputs.stats && !f.backward();
            wrong.then(|| {
                format!("varlen Stats of one query per sequence with grouped heads, for cuDNN {}", f.version())
            })
        }),
        ..Entry::quirk(7)
    },
    STORAGE_VARLEN_NO_KEYS_OLD = Entry {
        code: "storage.varlen-no-keys-old",
        cause: "These versions do not write the O of a varlen sequence that has queries and no keys, or write NaN.",
        affected: &[Versions::before(25, 0).on(Gpus::ALL)],
        field: "k.storage",
        needed: "at least as many tokens of keys as sequences, so that each can have a key",
        fix: "leave sequences without keys out of the batch, or give them a key",
        source: "NVIDIA/cudnn-frontend issue 943, of 9.22",
        evidence: "On an H200 under cuDNN 9.19 rows of O were never written in 10 of 10 forwards with fewer tokens of keys \
                   than sequences. With more tokens, lengths decide, which no rule sees.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow storage.varlen-no-keys-old --file CASES"
        )),
        reports: &["https://github.com/NVIDIA/cudnn-frontend/issues/943"],
        applies: Applies::Rules(|f| {
            let Storage::Varlen { tokens } = f.a.k.storage else { return None };
            let batch = f.a.batch();
            (tokens < batch)
                .then(|| format!("{tokens} tokens of keys for {batch} sequences, for cuDNN {}", f.version()))
        }),
        ..Entry::quirk(44)
    },
    STORAGE_VARLEN_KEYS = Entry {
        code: "storage.varlen-keys",
        cause: "cuDNN has no attention of dense queries over varlen keys.",
        field: "k.storage",
        needed: "varlen queries over varlen keys, or dense or paged keys",
        fix: "make queries varlen too: with one query per sequence they lie in memory as dense ones do",
        source: FUZZED,
        evidence: "All answer `Flash Attention with int64 ragged offset must have all ragged`, forward and backward, from \
                   8.0 to 12.0.",
        applies: Applies::Rules(|f| {
            let varlen = |t: &Tensor| matches!(t.storage, Storage::Varlen { .. });
            (varlen(&f.a.k) && !varlen(&f.a.q)).then(|| "dense queries and varlen keys".to_owned())
        }),
        ..Entry::rule()
    },
    STORAGE_VARLEN_HEADS = Entry {
        code: "storage.varlen-heads",
        cause: "These versions have no varlen backward with grouped heads.",
        affected: &[Versions::before(6, 0).on(Gpus::ALL)],
        field: "k.dims[1]",
        fix: "repeat the key and value heads",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| {
            let (h_q, h_k, h_v) = f.a.heads();
            let what = "a varlen backward with fewer key or value heads than query heads";
            backward(f, h_q != h_k || h_q != h_v, what)
        }),
        ..Entry::rule()
    },
    STORAGE_VARLEN_SINK = Entry {
        code: "storage.varlen-sink",
        cause: "A varlen backward with a sink reads out of bounds.",
        affected: &[Versions::before(26, 0).on(Gpus::ALL)],
        field: "sink",
        fix: "use dense operands with lengths",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| {
            backward(f, f.a.sink, "a varlen backward with a sink, in which earlier versions read out of bounds")
        }),
        ..Entry::rule()
    },
    STORAGE_VARLEN_STATS = Entry {
        code: "storage.varlen-stats",
        cause: "On these GPUs, a varlen backward reads Stats only as a dense tensor.",
        affected: &[Versions::from(18, 1).on(Gpus::BEFORE_HOPPER), Versions::from(18, 1).on(Gpus::CONSUMER_BLACKWELL)],
        field: "outputs.stats",
        needed: "compute capability 9.0 or 10.x",
        fix: "use dense operands with lengths on this GPU",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| {
            let rows = matches!(f.a.q.storage, Storage::Varlen { .. });
            (f.backward() && rows).then(|| "varlen Stats in a backward".to_owned())
        }),
        ..Entry::rule()
    },
    STORAGE_VARLEN_DETERMINISTIC = Entry {
        code: "storage.varlen-deterministic",
        cause: "On these GPUs, a varlen backward is not deterministic.",
        affected: &[Versions::from(18, 1).on(Gpus::BEFORE_HOPPER), Versions::from(18, 1).on(Gpus::CONSUMER_BLACKWELL)],
        field: "pass.deterministic",
        needed: "compute capability 9.0 or 10.x",
        fix: "use dense operands with lengths on this GPU",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| {
            let deterministic = f.gradients.is_some_and(|g| g.deterministic);
            (f.varlen() && deterministic).then(|| "a deterministic varlen backward".to_owned())
        }),
        ..Entry::rule()
    },
    BACKWARD_VARLEN_HEAD_DIM_OLD = Entry {
        code: "backward.varlen-head-dim-old",
        cause: "A varlen backward with a head dim over 128 gives wrong results.",
        affected: &[Versions::before(19, 0).on(Gpus::ALL)],
        field: "q.dims[3], v.dims[3]",
        needed: "cuDNN 9.19 or newer for varlen backwards with head dims over 128",
        fix: "use a newer cuDNN, or dense operands with lengths",
        source: GPU,
        evidence: "Under 9.14, 5 of 5 gave NaN, or dQ and dV that were off by 0.3 to 0.7; 9.19 and 9.27 are right. \
                   Versions between 9.14 and 9.19 were not tested.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.14",
            "qkvault-lab selftest --serving --allow backward.varlen-head-dim-old"
        )),
        applies: Applies::Rules(|f| {
            let wide = f.backward() && f.varlen() && (f.d_qk > 128 || f.d_v > 128);
            wide.then(|| format!("head dims {} and {} of varlen operands in a backward", f.d_qk, f.d_v))
        }),
        ..Entry::quirk(14)
    },
    BACKWARD_VARLEN_HEAD_DIM = Entry {
        code: "backward.varlen-head-dim",
        cause: "A varlen backward that is not deterministic gives a wrong dQ if the head dim of Q and K is no multiple of \
                16.",
        affected: &[Versions::ALL.on(Gpus::ALL)],
        field: "q.dims[3]",
        needed: "in a varlen backward that is not deterministic, a head dim of Q and K that is a multiple of 16",
        fix: "ask for a deterministic backward, or pad the head dim of Q and K with zeros to the next multiple of 16 and \
              leave the scale as it is",
        source: GPU,
        evidence: "On an H200 under cuDNN 9.19, 32 of 32 with head dims of 8, 24, 40, 56, 72, 88, 104 and 120 had a dQ \
                   that was off by 0.3 to 1.2, whatever the head dim of V; dK and dV were right, and so was everything \
                   in 18 of 18 with multiples of 16 (bench/varlen-heads.txt), in 12 of 12 that were deterministic, and in \
                   3 of 3 of dense operands with lengths. Other versions and GPUs were not run, and are refused.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow backward.varlen-head-dim --file bench/varlen-heads.txt"
        )),
        applies: Applies::Rules(|f| {
            let odd = f.gradients.is_some_and(|g| !g.deterministic) && f.varlen() && f.d_qk % 16 != 0;
            odd.then(|| format!("a head dim of {} of varlen Q and K in a backward", f.d_qk))
        }),
        ..Entry::quirk(46)
    },
    BACKWARD_VARLEN_NO_QUERIES_OLD = Entry {
        code: "backward.varlen-no-queries-old",
        cause: "A varlen backward does not write dK and dV of a sequence that has keys but no queries.",
        affected: &[Versions::before(19, 0).on(Gpus::ALL)],
        field: "q.storage, k.storage",
        needed: "cuDNN 9.19 or newer for varlen backwards: 9.14 does not write dK and dV of a sequence that has keys \
                 but no queries",
        fix: "use a newer cuDNN, or use dense operands with lengths; if every sequence has a query, allow this code",
        source: GPU,
        evidence: "Under 9.14, 52 of 192 random batches were wrong: every one with a sequence without queries, and no \
                   other; 9.19 and 9.27 are right. Versions between 9.14 and 9.19 were not tested.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.14",
            "qkvault-lab selftest --allow backward.varlen-no-queries-old"
        )),
        reports: &["https://github.com/NVIDIA/TransformerEngine/issues/2186"],
        applies: Applies::Rules(|f| (f.backward() && f.varlen()).then(|| "varlen operands in a backward".to_owned())),
        ..Entry::quirk(15)
    },
    BACKWARD_VARLEN_KEY_GRADIENTS_OLD = Entry {
        code: "backward.varlen-key-gradients-old",
        cause: "A varlen backward writes dK and dV with the strides of K and V, even if dK and dV have other strides.",
        affected: &[Versions::before(19, 0).on(Gpus::ALL)],
        field: "d_k.strides",
        needed: "cuDNN 9.19 or newer, or dK and dV of a varlen backward with the strides of K and V: 9.14 writes them \
                 with those strides",
        fix: "use a newer cuDNN, or give dK and dV the strides of K and V",
        source: GPU,
        evidence: "Under 9.14, 4 of 4 were written at the rows of K and V; 9.19 and 9.27 are right \
                   (docs/results/strides.md).",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.14",
            "qkvault-lab selftest --allow backward.varlen-key-gradients-old"
        )),
        applies: Applies::Rules(|f| {
            let gradients = f.gradients.filter(|_| f.varlen())?;
            let pairs = [("dK", &gradients.d_k, "K", &f.a.k), ("dV", &gradients.d_v, "V", &f.a.v)];
            // The batch stride of varlen operands is not used.
            let other = pairs.into_iter().find(|(_, d, _, t)| d.strides[1..] != t.strides[1..])?;
            let (name, gradient, of, tensor) = other;
            Some(format!("strides {:?} of {name} and {:?} of {of}", gradient.strides, tensor.strides))
        }),
        ..Entry::quirk(18)
    },
    BACKWARD_VARLEN_ROWS = Entry {
        code: "backward.varlen-rows",
        cause: "A varlen backward writes dQ at the offsets of Q.",
        field: "d_q.strides",
        needed: "in a varlen backward that is not deterministic, the same distance from token to token in dQ as in Q: \
                 cuDNN writes dQ at the offsets of Q",
        fix: "give dQ the strides of Q (a gradient of the whole QKV tensor), or ask for a deterministic backward",
        source: GPU,
        evidence: "Under 9.27, with Q, K and V in one tensor and dQ in its own, cuDNN wrote dQ at the offsets of Q.",
        standing: Some(Standing::seen("an H200", "cuDNN 9.27", "qkvault-lab selftest --allow backward.varlen-rows")),
        applies: Applies::Rules(|f| {
            let gradients = f.gradients.filter(|g| f.varlen() && !g.deterministic)?;
            let (q, d_q) = (f.a.q.strides, gradients.d_q.strides);
            (q[2] != d_q[2]).then(|| format!("tokens of Q are {} elements apart, those of dQ {}", q[2], d_q[2]))
        }),
        ..Entry::quirk(16)
    },
    BACKWARD_VARLEN_CONSUMER_OLD = Entry {
        code: "backward.varlen-consumer-old",
        cause: "These versions have no varlen backward for compute capability 12.x.",
        affected: &[Versions::before(18, 1).on(Gpus::CONSUMER_BLACKWELL)],
        field: "q.storage",
        needed: "cuDNN 9.18.1 or newer for varlen backwards on compute capability 12.x",
        fix: "use a newer cuDNN, or dense operands with lengths",
        source: FUZZED,
        evidence: "9.14 answers `Fused Attention graph was not given to the engine`.",
        applies: Applies::Rules(|f| {
            let varlen = f.backward() && f.varlen();
            varlen.then(|| "varlen operands in a backward".to_owned())
        }),
        ..Entry::rule()
    },
];
