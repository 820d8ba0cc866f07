//! Every code that a reason can have, for people who look one up: `docs/reasons.md` is written from here and from the rules.

use std::fmt::Write as _;

use qkvault_graph::Origin;

use crate::RULES;

/// A code that is no row of the rules: who gives it, and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// The code.
    pub code: &'static str,
    /// The origin of its reasons.
    pub origin: Origin,
    /// What it says.
    pub says: &'static str,
}

const fn code(origin: Origin, code: &'static str, says: &'static str) -> Code {
    Code { code, origin, says }
}

use Origin::{Description as D, Library as L, NotBuilt as N, Quirk as Q, Rule as R};

/// Codes of validation, of lowering, of the library's words and of everything else that gives reasons.
pub const CODES: &[Code] = &[
    code(D, "tensor.dims", "a dim is below 1"),
    code(D, "tensor.dims-limit", "a dim is above 2^31 - 1"),
    code(D, "tensor.strides", "a stride is below 1"),
    code(D, "tensor.head-dim-stride", "the head dim is not contiguous"),
    code(D, "tensor.tokens", "a varlen buffer has no room"),
    code(D, "tensor.tokens-batch", "a varlen buffer has room for fewer tokens than there are sequences"),
    code(D, "tensor.pages", "a pool has no pages, or pages no rows"),
    code(D, "tensor.pages-limit", "a pool has more pages or rows than 32-bit tables can name"),
    code(D, "tensor.span", "a tensor spans more bytes than can be counted"),
    code(D, "tensor.overlap", "two elements of an output share memory"),
    code(D, "shape.mismatch", "two operands differ in a size that they share"),
    code(D, "shape.scores", "there are more scores than can be counted"),
    code(D, "heads.group", "query heads are no multiple of key or value heads"),
    code(D, "storage.paged", "an operand other than K and V is paged"),
    code(D, "storage.varlen", "Q is varlen and O is not, or the other way round"),
    code(D, "storage.paged-pair", "one of K and V is paged and the other is not"),
    code(D, "storage.paged-backward", "a backward has paged operands"),
    code(D, "storage.gradient", "a gradient is stored unlike its tensor"),
    code(D, "dtype.mixed", "Q, K and V differ in their element type"),
    code(D, "dtype.input", "Q's element type does not go with the scaling"),
    code(D, "dtype.output", "O's element type does not go with the scaling"),
    code(D, "dtype.gradient", "a gradient's element type does not go with the scaling"),
    code(D, "band.left", "a window holds not even the diagonal"),
    code(D, "band.right", "a right bound is negative"),
    code(D, "band.empty", "a band has no bound"),
    code(D, "mask.contradiction", "no key is seen by any query"),
    code(D, "mask-mod.score", "a predicate reads the score"),
    code(D, "mask-mod.nothing", "a predicate is false everywhere"),
    code(D, "mask-mod.gradient", "a gradient is asked of a tensor in a predicate"),
    code(D, "score-mod.type", "an expression has the wrong type"),
    code(D, "score-mod.broadcast", "a tensor of an expression does not broadcast to the scores"),
    code(D, "score-mod.slopes", "slopes of ALiBi of which there is not one for each query head"),
    code(D, "score-mod.unread", "a score expression does not read the score"),
    code(D, "score-mod.derivative", "a derivative that the backward needs does not exist"),
    code(D, "score-mod-bprop.alone", "a derivative by its author without a score modification"),
    code(D, "score-mod-bprop.type", "a derivative by its author is no float"),
    code(D, "score-mod-bprop.operand", "a derivative by its author reads what the modification does not"),
    code(D, "score-mod-bprop.disagrees", "a derivative by its author is not what the modification changes by"),
    code(D, "score-mod-bprop.unchecked", "the modification is too rough to compare a derivative with"),
    code(D, "lengths.missing", "varlen or paged operands without lengths"),
    code(D, "lengths.negative", "a length is negative"),
    code(D, "dropout.probability", "a probability is not in 0..1"),
    code(D, "backward.stats", "a backward of a forward that does not put out Stats"),
    code(D, "backward.sink", "a gradient of a sink that is not there"),
    code(D, "backward.half-missing", "a microscaled backward without the 16-bit dO"),
    code(D, "backward.half-extra", "a 16-bit dO where none is read"),
    code(D, "offsets.entries", "cumulative lengths of no sequence"),
    code(D, "offsets.start", "cumulative lengths that do not start at 0"),
    code(D, "offsets.falls", "cumulative lengths that fall"),
    code(D, "offsets.length-limit", "a sequence longer than 2^31 - 1"),
    code(D, "offsets.batch", "offsets of another number of sequences"),
    code(D, "offsets.capacity", "more tokens than the varlen buffer has room for"),
    code(D, "offsets.longest", "a sequence longer than the plan accepts"),
    code(D, "offsets.overflow", "an offset that does not fit 63 bits"),
    code(D, "offsets.storage", "offsets of an operand that is not varlen"),
    code(D, "documents.mask", "documents are to be varlen where no predicate compares them"),
    code(D, "documents.square", "documents whose queries are not their keys"),
    code(D, "documents.longest", "a longest document that no row can have"),
    code(D, "documents.most", "a number of documents that the rows cannot have"),
    code(D, "documents.rows", "rows to be varlen that do not lie one after another, token by token"),
    code(
        D,
        "documents.position",
        "an expression reads a position, which a varlen document counts from its own beginning",
    ),
    code(D, "documents.batch", "an expression reads the number of the row, which varlen documents do not have"),
    code(D, "documents.length", "an expression reads the length of the row, which varlen documents do not have"),
    code(D, "documents.tensor", "an expression reads a tensor by position or row, which varlen documents do not have"),
    code(D, "documents.lengths", "per-sequence lengths beside documents that are to be varlen"),
    code(
        D,
        "documents.dropout",
        "dropout, whose mask goes by the position in a row, over documents that are to be varlen",
    ),
    code(D, "documents.block-mask", "a block mask over documents that are to be varlen"),
    code(D, "documents.fp8", "microscaled formats of documents that are to be varlen"),
    code(D, "documents.ids", "document ids that are no whole rows"),
    code(D, "documents.split", "a document in two places of a row"),
    code(D, "documents.count", "more documents than a plan has room for"),
    code(D, "pages.batch", "a page table of another number of sequences"),
    code(D, "pages.short", "fewer pages than a sequence needs"),
    code(D, "pages.long", "more pages than a sequence can have"),
    code(D, "pages.pool", "a page that is not in the pool"),
    code(D, "pages.storage", "a page table of an operand that is not paged"),
    code(D, "config.json", "a model config is no JSON object"),
    code(D, "config.family", "a model family that is not known"),
    code(D, "config.missing", "a model config lacks a field"),
    code(D, "config.field", "a field of a model config makes no sense"),
    code(D, "config.dtype", "a model config names an element type that attention has not"),
    code(D, "config.prefix-lm", "a model config asks for prefix attention, which is not described"),
    code(D, "config.head-dim", "a model config whose head dim is no multiple of its heads"),
    code(D, "model.phase", "a phase that the model does not have"),
    code(D, "model.score-mod", "a model's score expression is not well typed"),
    code(D, "profile.parse", "a profile file cannot be read"),
    code(D, "profile.field", "a profile lacks a field that the cuDNN version needs"),
    code(D, "target.unknown", "no GPU of that name is known"),
    code(D, "target.device", "the library does not take the device properties"),
    code(D, "model.serve", "a set of plans is asked for with one batch and one length"),
    code(D, "serve.range", "a range of serving steps that is empty or too large"),
    code(D, "serve.growth", "plans of a serving set that would not grow"),
    code(D, "serve.queries", "more new tokens of a sequence than it has keys"),
    code(D, "serve.score-mod", "a score expression that is too large when queries are counted by position"),
    code(D, "serve.tokens", "fewer tokens in a step than it has sequences, or more than they can have"),
    code(D, "warm.nothing", "nothing is left to compile"),
    code(D, "run.train", "a training step is asked for where only inference is run"),
    code(D, "run.serve", "steps of an engine are asked for where only whole batches are run"),
    code(D, "training.backward", "a pair for training was given a backward"),
    code(R, "form.fused", "the fused form needs a newer cuDNN"),
    code(R, "form.unified", "the unified form needs a newer cuDNN"),
    code(R, "form.unified-lengths", "lengths in the unified form need a newer cuDNN"),
    code(R, "form.unified-paged", "paged keys and values in the unified form need a newer cuDNN"),
    code(R, "form.unified-outputs", "Max and Sum_exp in the unified form need a newer cuDNN"),
    code(R, "form.unified-band", "bands in the unified form need a newer cuDNN"),
    code(R, "form.unified-score-mod", "score expressions in the unified form need a newer cuDNN"),
    code(R, "form.unified-mask-mod", "predicates in the unified form need a newer cuDNN"),
    code(R, "form.unified-sink", "sinks in the unified form need a newer cuDNN"),
    code(R, "form.unified-dropout", "dropout is not written in the unified form"),
    code(R, "outputs.combination", "a set of outputs that needs the softmax operation of 9.21"),
    code(R, "storage.paged-old", "paged keys and values need a newer cuDNN"),
    code(R, "storage.paged-head-dim", "paged rows longer than 128 need a newer cuDNN"),
    code(R, "storage.paged-varlen", "varlen queries over pages need a newer cuDNN"),
    code(R, "storage.varlen-sm", "varlen operands on this GPU need a newer cuDNN"),
    code(R, "storage.varlen-heads", "varlen backwards with grouped heads need a newer cuDNN"),
    code(R, "storage.varlen-sink", "varlen backwards with a sink need a newer cuDNN"),
    code(R, "storage.varlen-stats", "a varlen backward reads dense Stats on this GPU"),
    code(R, "storage.varlen-deterministic", "a varlen backward is not deterministic on this GPU"),
    code(R, "backward.deterministic-engine", "a deterministic backward for which NVIDIA names no engine"),
    code(R, "engine.nondeterministic", "the engines that take it say of themselves that two runs may differ"),
    code(R, "workspace.limit", "the workspace is over the policy's limit"),
    code(R, "workspace.quadratic", "the workspace holds a gradient of every score and is too large"),
    code(R, "memory.budget", "operands and scratch memory are over the budget"),
    code(
        Q,
        "storage.varlen-one-query-stats",
        "varlen Stats of one query with grouped heads are wrong in 9.26 and 9.27",
    ),
    code(Q, "form.unified-wrong", "a score expression in the unified operation"),
    code(Q, "storage.paged-one-query-sink", "one query over pages with a sink"),
    code(Q, "storage.paged-tile", "several queries over a page table that is no whole number of 128-key tiles"),
    code(Q, "backward.tensor-gradient", "the gradient of a tensor that is broadcast over queries or keys"),
    code(Q, "backward.sink-philox", "the gradient of a sink with dropout drawn by Philox"),
    code(Q, "score-mod.one-query-narrow", "one query with a 16-bit tensor of one number per sequence"),
    code(
        Q,
        "backward.single-row",
        "a backward of one sequence, one head and one query ends the process of cuDNN 9.26 and 9.27",
    ),
    code(Q, "engine.wrong", "the only engines that take it compute it wrongly"),
    code(Q, "backward.length-tail", "lengths that fill no tile, with a derivative that is not finite beyond them"),
    code(N, "not-built.block-mask", "block masks"),
    code(N, "not-built.outputs", "Max or Sum_exp of an attention with a sink"),
    code(N, "not-built.padded-rows", "padded rows written as zeros"),
    code(N, "not-built.fp8", "8-bit formats"),
    code(L, "library.device", "the library refuses the device properties"),
    code(L, "library.graph", "the library refuses the op graph"),
    code(L, "library.heuristics", "the heuristics give no engine"),
    code(L, "library.engine", "the engine that is named does not take the op graph"),
    code(L, "library.plan", "no engine makes a plan"),
    code(L, "library.silent", "the library refuses without a word"),
    code(
        L,
        "library.refused",
        "the library's own status in the code, such as library.not-supported-shape, with its words and the engines that said so",
    ),
];

/// All codes as a Markdown page: the rules with their versions and sources, then the others.
#[must_use]
pub fn page() -> String {
    let mut text = String::from(
        "# Reasons by code\n\nWritten by `UPDATE_GOLDENS=1 cargo test -p qkvault-probe --test reasons`; a test fails when it is stale.\n\n\
         Codes are stable: none is renamed or given another meaning. `qkvault probe --allow CODE` takes what is computed wrongly\n\
         all the same; nothing else can be allowed.\n\n## Rules\n\n\
         | code | kind | cuDNN | needed | what to do | source |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for rule in RULES.iter().copied().flatten() {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} | {} |",
            rule.code, rule.kind, rule.versions, rule.needed, rule.fix, rule.source
        );
    }
    for (origin, title) in [
        (D, "The description contradicts itself"),
        (R, "Limits known to lowering and memory"),
        (Q, "Computed wrongly in the form that is emitted"),
        (N, "Not built yet"),
        (L, "The library's own"),
    ] {
        let _ = write!(text, "\n## {title}\n\n| code | what |\n| --- | --- |\n");
        for known in CODES.iter().filter(|c| c.origin == origin) {
            let _ = writeln!(text, "| `{}` | {} |", known.code, known.says);
        }
    }
    text
}
