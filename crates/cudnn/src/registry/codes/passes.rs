//! Sinks and backwards.

use super::{FE_BACKWARD, FE_FORWARD, FUZZED};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Gpus, Standing, Versions};

declare![
    SINK_OLD = Entry {
        code: "sink.old",
        cause: "The kernels of these versions do not support a sink.",
        affected: &[Versions::before(13, 0).on(Gpus::ALL)],
        field: "sink",
        needed: "cuDNN 9.13 or newer",
        fix: "use a newer cuDNN, or add the sink to the output afterwards with Stats: multiply O by exp(Stats) / \
              (exp(Stats) + exp(sink))",
        source: FE_FORWARD,
        applies: Applies::Rules(|f| f.a.sink.then(|| "a sink".to_owned())),
        ..Entry::rule()
    },
    BACKWARD_KEYS_TAIL_OLD = Entry {
        code: "backward.keys-tail-old",
        cause: "In a backward whose number of keys does not fill whole tiles, these versions count keys beyond the \
                last.",
        affected: &[Versions::before(15, 1).on(Gpus::ALL)],
        field: "k.dims[2]",
        needed: "a number of keys that is a multiple of 128, or per-sequence lengths",
        fix: "give per-sequence lengths that equal the number of keys, as NVIDIA's front end does by itself for these \
              versions",
        source: FE_BACKWARD,
        evidence: "NVIDIA's front end adds lengths to such backwards by itself; this was not confirmed on a GPU \
                   (docs/results/probe.md).",
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/issues/160",
            "https://github.com/pytorch/pytorch/issues/169849",
            "https://github.com/NVIDIA/TransformerEngine/pull/2344"
        ],
        applies: Applies::Rules(|f| {
            let tail = f.backward() && f.s_kv % 128 != 0 && !f.lengths();
            tail.then(|| format!("a backward over {} keys", f.s_kv))
        }),
        ..Entry::quirk(12)
    },
    BACKWARD_TENSOR_FACTOR = Entry {
        code: "backward.tensor-factor",
        cause: "cuDNN gives a tensor only the gradient from which it computes dQ and dK, and this tensor needs another \
                one.",
        field: "score_mod",
        needed: "for the gradient of a tensor, a single tensor whose gradient is the derivative of the score itself, \
                 as for a bias that is added first",
        fix: "add the bias before any other operation on the score, or add several biases into one; otherwise request \
              no gradient",
        source: FUZZED,
        evidence: "cuDNN answers `consumer_nodes_of_producer.size() != 2` or `This tile size is not supported` \
                   (docs/results/forms.md).",
        applies: Applies::Rules(|f| f.gradient_apart()),
        ..Entry::rule()
    },
    BACKWARD_TENSOR_TYPE = Entry {
        code: "backward.tensor-type",
        cause: "The kernels of a backward write the gradient of a tensor in 16 bits, and it has the tensor's own type.",
        field: "score_mod",
        needed: "bf16 or f16 for a tensor whose gradient is computed",
        fix: "declare the tensor as bf16 or f16, or request no gradient of it",
        source: FUZZED,
        evidence: "cuDNN answers `reduction output datatype in flash bprop should be fp16/bf16` (15 of 15: 9.14, 9.19, \
                   9.27 on five GPUs).",
        applies: Applies::Rules(|f| f.gradient_wide()),
        ..Entry::rule()
    },
    BACKWARD_QUERY_TENSOR = Entry {
        code: "backward.query-tensor",
        cause: "The kernels of a backward read at most two tensors with one number per query, and Stats and the row \
                sums are these two.",
        affected: &[Versions::ALL.on(Gpus::BEFORE_HOPPER), Versions::ALL.on(Gpus::CONSUMER_BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "compute capability 9.0 or 10.x for a backward that reads a tensor with one number per query or per \
                 sequence (cuDNN reads at most two such tensors, and Stats and the row sums are these two); a dropout \
                 mask over one key is such a tensor, and so are lengths that an expression reads, as `position` does",
        fix: "expand the tensor to all keys (extents [.., queries, keys]); give what is computed from lengths as such \
              a tensor; or run the backward on another GPU",
        source: FUZZED,
        evidence: "cuDNN answers `Only 2 sq broadcasted vectors are supported`, on 12.x also `No knob was found` (66 \
                   descriptions).",
        applies: Applies::Rules(|f| if f.backward() { f.query_tensor() } else { None }),
        ..Entry::rule()
    },
    BACKWARD_QUERY_TENSORS = Entry {
        code: "backward.query-tensors",
        cause: "The kernels of a backward read at most four tensors with one number per query, and Stats and the row \
                sums are two of them.",
        affected: &[Versions::ALL.on(Gpus::HOPPER), Versions::before(22, 0).on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in a backward on compute capability 9.0, or on 10.x before 9.22, at most two reads of tensors with \
                 one number per query or per sequence (cuDNN allows four, and Stats and the row sums are two of them; \
                 a derivative reads again what it needs)",
        fix: "expand the tensors to all keys (extents [.., queries, keys]), join them into one, or give what is \
              computed from lengths as such a tensor",
        source: FUZZED,
        evidence: "cuDNN answers `Only 4 sq broadcasted vectors`; it counts by operation.",
        applies: Applies::Rules(|f| {
            let (reads, _) = f.query_reads()?;
            (reads > 2).then(|| format!("{reads} reads of such tensors, lengths among them"))
        }),
        ..Entry::rule()
    },
    BACKWARD_QUERY_TENSOR_SUBTRACTED = Entry {
        code: "backward.query-tensor-subtracted",
        cause: "For a subtraction of a tensor with one number per query, cuDNN generates a kernel that does not \
                compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod",
        needed: "in a backward on compute capability 10.x, no subtraction of a tensor with one number per query or per \
                 sequence: cuDNN generates a kernel for it that does not compile",
        fix: "negate the tensor and add it",
        source: FUZZED,
        evidence: "cuDNN answers `compilationResult != NVRTC_SUCCESS` in 20 of 20; `score + @t` compiles.",
        applies: Applies::Rules(|f| {
            let (_, subtracted) = f.query_reads()?;
            (subtracted > 0).then(|| format!("{subtracted} subtractions of such a tensor"))
        }),
        ..Entry::rule()
    },
    BACKWARD_QUERY_TENSOR_GRADIENT = Entry {
        code: "backward.query-tensor-gradient",
        cause: "A backward that computes the gradient of a tensor cannot read a tensor with one number per query.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in a backward on compute capability 10.x that computes a tensor's gradient, no tensor with one number \
                 per query or per sequence",
        fix: "expand that tensor to all keys (extents [.., queries, keys]), also what is computed from lengths; or \
              request no gradient",
        source: FUZZED,
        evidence: "cuDNN answers `Only 2 sq broadcasted vectors`, or finds no tile (46 of 46).",
        applies: Applies::Rules(|f| {
            let found = if f.wants_tensor_gradient() { f.query_tensor() } else { None };
            found.map(|found| format!("{found}, beside the gradient of another"))
        }),
        ..Entry::rule()
    },
    BACKWARD_WIDE_GRADIENT = Entry {
        code: "backward.wide-gradient",
        cause: "No kernel computes the gradient of a tensor with head dims over 128.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[3]",
        needed: "in a backward on compute capability 10.x that computes a tensor's gradient, head dims of up to 128",
        fix: "request no gradient of the tensor, or run the backward on a Hopper GPU",
        source: FUZZED,
        evidence: "cuDNN answers `d_qk > 128`, or finds no tile (10 of 10).",
        applies: Applies::Rules(|f| {
            let wide = f.d_qk > 128 && f.wants_tensor_gradient();
            wide.then(|| format!("the gradient of a tensor, with head dims {} and {}", f.d_qk, f.d_v))
        }),
        ..Entry::rule()
    },
    BACKWARD_ONE_QUERY_PHILOX = Entry {
        code: "backward.one-query-philox",
        cause: "For a backward with one query and Philox dropout, cuDNN generates a kernel that does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "dropout",
        needed: "in a backward with Philox dropout on compute capability 10.x, more than one query or sequence, or a \
                 single head: for one query, cuDNN generates a kernel that does not compile",
        fix: "give the dropout mask as an operand, or pad to two queries and give lengths of 1",
        source: FUZZED,
        evidence: "cuDNN answers `compilationResult != NVRTC_SUCCESS`; with a single head the kernel compiles.",
        applies: Applies::Rules(|f| {
            let one = f.backward() && f.one_query_of_several_heads();
            (one && f.philox())
                .then(|| format!("one query of one sequence and {} heads, with dropout drawn by Philox", f.a.q.heads()))
        }),
        ..Entry::rule()
    },
];
