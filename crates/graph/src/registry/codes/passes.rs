//! Sinks, and what holds for backwards.

use super::{FE_BACKWARD, FE_FORWARD, FUZZED};
use crate::registry::entry::entries;
use crate::registry::{Applies, Entry, Gpus, Versions};

entries![
    SINK_OLD = Entry {
        code: "sink.old",
        cause: "These versions have no sink in their kernels.",
        affected: &[Versions::before(13, 0).on(Gpus::ALL)],
        field: "sink",
        needed: "cuDNN 9.13 or newer",
        fix: "use a newer cuDNN, or join the sink to the output by Stats afterwards: O times exp(Stats) over \
              (exp(Stats) + exp(sink))",
        source: FE_FORWARD,
        applies: Applies::Rules(|f| f.a.sink.then(|| "a sink".to_owned())),
        ..Entry::rule()
    },
    BACKWARD_KEYS_TAIL_OLD = Entry {
        code: "backward.keys-tail-old",
        cause: "These versions count keys beyond the last in a backward whose number of keys fills no tile.",
        affected: &[Versions::before(15, 1).on(Gpus::ALL)],
        field: "k.dims[2]",
        needed: "a number of keys that is a multiple of 128, or per-sequence lengths",
        fix: "give per-sequence lengths that say how many there are, as NVIDIA's front end does by itself for these \
              versions",
        source: FE_BACKWARD,
        evidence: "NVIDIA's front end gives such backwards lengths by itself; it was not confirmed on a GPU \
                   (docs/results/probe.md).",
        applies: Applies::Rules(|f| {
            let tail = f.backward() && f.s_kv % 128 != 0 && !f.lengths();
            tail.then(|| format!("a backward over {} keys", f.s_kv))
        }),
        ..Entry::quirk(12)
    },
    BACKWARD_TENSOR_FACTOR = Entry {
        code: "backward.tensor-factor",
        cause: "The gradient of a tensor has to be what dQ and dK are computed from, and here it is another.",
        field: "score_mod",
        needed: "for the gradient of a tensor, one tensor that the score's own derivative is the gradient of, as that \
                 of a bias which is added first",
        fix: "add the bias before anything else is done to the score, or sum several into one; else ask for no \
              gradient",
        source: FUZZED,
        evidence: "The answer is `consumer_nodes_of_producer.size() != 2` or `This tile size is not supported` \
                   (docs/results/forms.md).",
        applies: Applies::Rules(|f| f.gradient_apart()),
        ..Entry::rule()
    },
    BACKWARD_QUERY_TENSOR = Entry {
        code: "backward.query-tensor",
        cause: "The kernels of a backward read two tensors with one number per query, and those are Stats and the row \
                sums.",
        affected: &[Versions::ALL.on(Gpus::BEFORE_HOPPER), Versions::ALL.on(Gpus::CONSUMER_BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "compute capability 9.0 or 10.x for a backward that reads a tensor with one number per query or per \
                 sequence (the library takes two such tensors, which Stats and the row sums are); a dropout mask over \
                 one key is one too, and lengths that an expression reads, as `position` does",
        fix: "say the tensor with all keys (extents [.., queries, keys]); give what is computed of lengths as such a \
              tensor; or run the backward on another GPU",
        source: FUZZED,
        evidence: "The answer is `Only 2 sq broadcasted vectors are supported`, on 12.x also `No knob was found` (66 \
                   descriptions).",
        applies: Applies::Rules(|f| if f.backward() { f.query_tensor() } else { None }),
        ..Entry::rule()
    },
    BACKWARD_QUERY_TENSORS = Entry {
        code: "backward.query-tensors",
        cause: "The kernels of a backward read four tensors with one number per query, and two of them are Stats and \
                the row sums.",
        affected: &[Versions::ALL.on(Gpus::HOPPER), Versions::before(22, 0).on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in a backward on compute capability 9.0, or on 10.x before 9.22, at most two reads of tensors with \
                 one number per query or per sequence (the library counts four, of which Stats and the row sums are \
                 two; a derivative reads again what it needs)",
        fix: "say the tensors with all keys (extents [.., queries, keys]), join them into one, or give what is \
              computed of lengths as such a tensor",
        source: FUZZED,
        evidence: "The answer is `Only 4 sq broadcasted vectors`, counted by operation.",
        applies: Applies::Rules(|f| {
            let (reads, _) = f.query_reads()?;
            (reads > 2).then(|| format!("{reads} reads of such tensors, lengths among them"))
        }),
        ..Entry::rule()
    },
    BACKWARD_QUERY_TENSOR_SUBTRACTED = Entry {
        code: "backward.query-tensor-subtracted",
        cause: "The kernel that the library generates for a subtraction of a tensor with one number per query does not \
                compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod",
        needed: "in a backward on compute capability 10.x, no tensor with one number per query or per sequence that is \
                 subtracted: the kernel that the library generates does not compile",
        fix: "give the tensor with the other sign and add it",
        source: FUZZED,
        evidence: "The answer is `compilationResult != NVRTC_SUCCESS` in 20 of 20; `score + @t` compiles.",
        applies: Applies::Rules(|f| {
            let (_, subtracted) = f.query_reads()?;
            (subtracted > 0).then(|| format!("{subtracted} subtractions of such a tensor"))
        }),
        ..Entry::rule()
    },
    BACKWARD_QUERY_TENSOR_GRADIENT = Entry {
        code: "backward.query-tensor-gradient",
        cause: "A backward that gives a tensor its gradient reads no tensor with one number per query.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in a backward on compute capability 10.x that wants a tensor's gradient, no tensor with one number \
                 per query or per sequence",
        fix: "say that tensor with all keys (extents [.., queries, keys]), what is computed of lengths too; or ask for \
              no gradient",
        source: FUZZED,
        evidence: "The answer is `Only 2 sq broadcasted vectors`, or there is no tile (46 of 46).",
        applies: Applies::Rules(|f| {
            let found = if f.wants_tensor_gradient() { f.query_tensor() } else { None };
            found.map(|found| format!("{found}, beside the gradient of another"))
        }),
        ..Entry::rule()
    },
    BACKWARD_WIDE_GRADIENT = Entry {
        code: "backward.wide-gradient",
        cause: "No kernel gives a tensor its gradient with head dims over 128.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[3]",
        needed: "in a backward on compute capability 10.x that wants a tensor's gradient, head dims of up to 128",
        fix: "ask for no gradient of the tensor, or run the backward on a Hopper GPU",
        source: FUZZED,
        evidence: "The answer names `d_qk > 128`, or there is no tile (10 of 10).",
        applies: Applies::Rules(|f| {
            let wide = f.d_qk > 128 && f.wants_tensor_gradient();
            wide.then(|| format!("the gradient of a tensor, with head dims {} and {}", f.d_qk, f.d_v))
        }),
        ..Entry::rule()
    },
    BACKWARD_ONE_QUERY_PHILOX = Entry {
        code: "backward.one-query-philox",
        cause: "The kernel that the library generates for a backward of one query with Philox does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "dropout",
        needed: "in a backward with dropout drawn by Philox on compute capability 10.x, more than one query or \
                 sequence, or a single head: the kernel that the library generates for one does not compile",
        fix: "give the dropout mask as an operand, or pad to two queries, with lengths that say one",
        source: FUZZED,
        evidence: "The answer is `compilationResult != NVRTC_SUCCESS`; a single head compiles.",
        applies: Applies::Rules(|f| {
            let one = f.backward() && f.one_query_of_several_heads();
            (one && f.philox())
                .then(|| format!("one query of one sequence and {} heads, with dropout drawn by Philox", f.a.q.heads()))
        }),
        ..Entry::rule()
    },
];
