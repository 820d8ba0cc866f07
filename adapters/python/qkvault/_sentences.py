"""What each reason of a refusal is in the words of the function that was called, by code: data alone.

`_words.py` fills in what stands in braces. Names are arguments of the function (`{q}` is `query` in PyTorch's SDPA),
or what is said in their place where it has none. `{0}` is the first number of what came, `{who}` the argument that the
reason is about, `{numbers}` all numbers that came. A sentence tells what came, what is needed, and what to write.
"""

from __future__ import annotations

_ROWS = "give {q} two rows per sequence, of which {q_lengths} says that one is used"
_SUM = "leave {deterministic} out"
_DENSE = "give the sequences side by side with {kv_lengths} of {attention}, or use {newer}"
_WIDE = "give that tensor a number for every key too: .expand(..., queries, keys) before the call"
_FORCED = "engine='fa4' is configured, and FlashAttention-4's kernels take "
_OWN = "engine='kernels' is configured, and qkvault's own kernels take "
_LEAVE = "; leave engine out, so that cuDNN takes the call"

#: Sentences of codes that a call of a door can meet.
SENTENCES = {
    # Shapes, types and places in memory.
    "heads.group": "{who} has {0} heads and {q} {1}; {who} needs a number of heads that divides that of {q}",
    "shape.mismatch": "{who} has a {axis} of {0} and {other} {n0}; give both the same",
    "shape.scores": "there are 2^63 scores or more (batch, heads, queries and keys multiplied); split the batch",
    "dtype.input": "{q} is {type}; bfloat16 and float16 are taken: {cast}",
    "dtype.mixed": "{who} is {type} and {q} {wanted_type}; give one type: cast {who}",
    "tensor.dims": "{who} has a size below 1 ({list}); skip a call without rows",
    "tensor.dims-limit": "{who} has a size above 2147483647 ({list}); split the batch or the sequence",
    "tensor.strides": "{who} has strides {list}, of which one is below 1, as expand() and flip() make them; {copy}",
    "tensor.head-dim-stride": "elements of a row of {who} lie {0} apart, and they must lie side by side; {copy}",
    "tensor.stride-alignment":
        "a stride of {who} is {0} elements, and kernels move 16 bytes at once: strides are multiples of 8 elements; "
        "{copy}",
    "tensor.span": "{who} spans 2^63 bytes or more; split the batch or the sequence",
    "tensor.tokens": "{who} has {0} tokens; skip a call without tokens",
    "tensor.pages": "{who} is {0} pages of {1} rows; give one page of one row at least",
    "tensor.pages-limit": "{who} is {0} pages of {1} rows; give at most 2147483647 of each: larger or fewer pages",
    "size.grid":
        "{q} has {0} sequences and {1} heads; a backward, and a call of one query, take at most 65535 of each: split "
        "the batch or the heads",
    "origins.extent":
        "there are {0} queries and {1} keys with {origins}; at most 8388608 of each are exact: give shorter chunks",
    "draft-tree.queries": "{q} has {0} rows with {draft_tree}; a row of bits has 64: verify fewer drafts at a time",
    "backward.far-rows":
        "the gradient of the result reaches {0} elements, and a backward on this GPU counts 2^31: split the batch",
    "memory.budget":
        "{0} bytes of tensors and scratch memory are more than the GPU has; give fewer sequences or heads at a time",
    "workspace.limit":
        "scratch memory of {0} bytes is needed, and {n0} are allowed; give more as workspace_limit to {configure}",
    "workspace.quadratic":
        "gradients need {0} bytes, which hold every score, because {deterministic} or the gradient of {table} asks "
        "for it; leave both out ({constant}), or give fewer sequences at a time",
    # Head dims.
    "head-dim.multiple-of-8":
        "the head dims are {0} ({q} and {k}) and {1} ({v}); they are multiples of 8: pad with zeros ({pad}), and give "
        "{scale} for the head dim without them",
    "head-dim.forward-old":
        "the head dims of {q} and {v} are {numbers}, and this cuDNN takes 128 (256 on Hopper); use {newer}",
    "head-dim.rubin-old":
        "the head dims of {q} and {v} are {numbers}, and this cuDNN takes 128, or 192 and 128, on this GPU; use "
        "{newer}",
    "head-dim.backward":
        "the head dims of {q} and {v} are {numbers}, and gradients are computed up to 128 (on Hopper 256); {forward}, "
        "or split the head dim of {v} into several calls, which is exact",
    "head-dim.backward-latent":
        "the head dims of {q} and {v} are {numbers}, and gradients of this cuDNN need 192 for {q} or 128 for {v}; pad "
        "with zeros ({pad}), or use {newer}",
    "head-dim.backward-latent-one-query":
        "{q} has one row of one sequence with head dims 192 and 128, whose gradients need two rows; " + _ROWS,
    "head-dim.philox":
        "{dropout} is given with head dims {0} and {1}, where {v} must be as wide as {q}; pad {v} with zeros ({pad}), "
        "or leave {dropout} out",
    "head-dim.philox-one-query": "{dropout} is given for one query with head dims over 128; leave it out, or " + _ROWS,
    # Masks and positions.
    "mask.contradiction":
        "{window} or {causal} hides every key that {mask_mod} keeps; change one of them: no query sees a key",
    "mask-mod.nothing": "{mask_mod} is false everywhere; give one that keeps some key",
    "mask-mod.gradient":
        "{mask_mod} reads a tensor that requires a gradient, and a mask has none; give {detached}, or use the tensor "
        "in {score_mod}",
    "band.rows-without-keys":
        "there are {0} queries over {1} keys and the mask ends {bottom_right}, so the first {2} queries see no key; "
        "leave these rows of {q} out, or give {kv_lengths}",
    "band.window-wrong":
        "{window} without a limit on the right, over {0} keys, is wrong under this cuDNN; give {causal}, or use "
        "{newer}",
    "band.window-old":
        "{window} with {0-1} keys on the left needs {causal}, and neither {dropout} nor {reads} under this cuDNN; use "
        "{newer}",
    "band.window-corner-old":
        "{window} ends {bottom_right} under a cuDNN that has none; leave that out, which is the same for as many "
        "queries as keys, or use {newer}",
    # Functions and tensors that they read.
    "score-mod.type":
        "{what} gives a {given}; {score_mod} gives a float and {mask_mod} a truth value: use a comparison",
    "score-mod.broadcast":
        "a tensor of {what} has the shape {list}; each size is 1, or that of (batch, heads, queries, keys)",
    "score-mod.slopes": "{alibi_slopes} are {0} numbers; give one for each head of {q}",
    "score-mod.unread":
        "{score_mod} does not use its first argument, so {q} and {k} change nothing; add to the score or multiply it "
        "(a key is hidden by {mask_mod})",
    "score-mod.derivative":
        "{score_mod} has an operation without a derivative; {forward}, or write it with others (abs, floor and "
        "comparisons of the score have none)",
    "score-mod.far-dividend":
        "{reads} divides a number from {0} to {1} by {2}, and a // b is exact below 2^22 (2^24 for a power of two); "
        "limit it first, as in {clamp} // 100",
    "score-mod.one-query-narrow":
        "{q} has one row and {table} has one 16-bit number per sequence ({list}), which kernels misread; give it in "
        "float32",
    "engine.wrong":
        "for one query, the engines that cuDNN has ({given}) count keys wrongly where {reads} depends on the key, and "
        "for {dropout}; give the numbers as {bias} of (1, heads, 1, keys), or leave {dropout} out",
    "backward.length-tail":
        "{q_lengths} and {kv_lengths} end inside a tile, and the derivative of {reads} is not finite there; pad "
        "queries and keys to multiples of 128",
    "backward.lowest-row":
        "{given}: its gradients are not exact; hide keys with {mask_mod}, {mask} of truth values or {kv_lengths} in "
        "place of a large negative number",
    "backward.tensor-factor":
        "the gradient of {table} was asked for, and cuDNN has that of one tensor which is added to the score before "
        "all else; add it before {softcap} and before what {score_mod} does with the score, add several tensors into "
        "one, or take no gradient of it: {constant}",
    "backward.tensor-type":
        "the gradient of a float32 {table} was asked for; cast it to the type of {q}, or {constant}",
    "backward.tensor-gradient":
        "the gradient of {table} of shape {list} was asked for, which is smaller than queries and keys; expand it "
        "before the call: .expand(..., {4}, {5})",
    "backward.wide-gradient":
        "the gradient of {table} was asked for with head dims {numbers}, and this GPU has it up to 128: {constant}",
    "backward.query-tensor":
        "{reads} or {dropout} has {given}: one number per query or sequence, which gradients on this GPU cannot read; "
        + _WIDE,
    "backward.query-tensors":
        "{reads} has tensors of one number per query or sequence, which are read {0} times, and gradients may do so "
        "twice; " + _WIDE + ", or add them into one",
    "backward.query-tensor-subtracted":
        "{reads} subtracts a tensor with one number per query or sequence; add its negative: t + (-x)",
    "backward.query-tensor-gradient":
        "the gradient of {table} was asked for beside a tensor of one number per query or sequence; " + _WIDE
        + ", or {constant}",
    # Sinks and dropout.
    "sink.old": "{sinks} are given, and this cuDNN has none; use {newer}",
    "queries.one-sink":
        "{q} has one row per sequence and {sinks} are given, which is no number where all scores are more than 88 "
        "below the sink; " + _ROWS + ", or let qkvault's own kernels compute it: leave engine out",
    "storage.paged-one-query-sink":
        "{q} has one row per sequence over pages and {sinks} are given, which is wrong under cuDNN; " + _ROWS,
    "storage.paged-one-query-heads":
        "{q} has one row per sequence over pages, and {table} has numbers for each head, which is wrong under cuDNN "
        "where heads share keys; let qkvault's own kernels compute it: leave engine out",
    "storage.varlen-sink":
        "gradients of sequences behind each other with {sinks} are wrong under this cuDNN; " + _DENSE,
    "backward.deterministic-sink":
        "the gradient of {sinks} varies from run to run, also with {deterministic}; " + _SUM + ", or {no_sink}",
    "backward.sink-philox": "the gradient of {sinks} is wrong with {dropout}; leave {dropout} out, or {no_sink}",
    "dropout.philox-old": "{dropout} is given, and cuDNN {0} draws none that is right; use {newer}",
    "backward.one-query-philox":
        "{q} has one row of one sequence and {dropout} is given, whose gradients do not compile; leave it out, or "
        + _ROWS,
    # One query.
    "queries.one-wrong":
        "{q} has one row per sequence, which this cuDNN computes wrongly where all scores are low; use {newer}, or "
        + _ROWS,
    "queries.one-old":
        "{q} has one row, and this cuDNN takes none with {causal}, nor with head dims over 128; leave {causal} out, "
        "which is the same for the last query, or use {newer}",
    "backward.single-row":
        "gradients of one sequence, one head and one query end the process under this cuDNN; give {q} two heads or "
        "two rows",
    "backward.keys-tail-old":
        "gradients over {0} keys count keys behind the last under this cuDNN; give {kv_lengths} that equal the number "
        "of keys, pad {k} and {v} to a multiple of 128, or use {newer}",
    # Deterministic gradients.
    "backward.deterministic-engine": "{deterministic} was asked for, and this cuDNN has none on this GPU; " + _SUM,
    "backward.deterministic-expression":
        "{deterministic} was asked for with {reads} or {dropout}; " + _SUM + ", or use {newer}",
    "backward.deterministic-one-query":
        "{deterministic} was asked for with one query of one sequence; " + _SUM + ", or " + _ROWS,
    "backward.deterministic-philox":
        "{deterministic} was asked for with {dropout}; leave one of them out: this GPU has no such gradients",
    "backward.deterministic-query-tensor":
        "{deterministic} was asked for where {reads} has {given}: one number per query; " + _WIDE + ", or " + _SUM,
    "backward.deterministic-tensor-gradient":
        "{deterministic} was asked for with the gradient of {table}; " + _SUM + ", or {constant}",
    "backward.deterministic-varlen":
        "{deterministic} was asked for with sequences behind each other and head dims of 256; " + _SUM
        + ", or use {newer}",
    "storage.varlen-deterministic":
        "{deterministic} was asked for with sequences behind each other on this GPU; " + _SUM,
    "engine.nondeterministic": "{deterministic} was asked for, and no engine of cuDNN keeps it here; " + _SUM,
    # Sequences behind each other, and pages.
    "storage.varlen-sm": "sequences behind each other need compute capability 9.0 under this cuDNN; " + _DENSE,
    "storage.varlen-one-query-stats":
        "one query per sequence behind each other with grouped heads: the log-sum-exp is wrong; give {most} of 2 for "
        "the queries, or {k} and {v} as many heads as {q}",
    "storage.varlen-no-keys-old":
        "there are {0} tokens of keys for {1} sequences, and this cuDNN leaves rows without keys unwritten; give each "
        "sequence a key, or use {newer}",
    "storage.varlen-keys": "keys lie behind each other and {q} does not; give the queries behind each other too",
    "storage.varlen-heads":
        "gradients of sequences behind each other with fewer heads of {k} or {v} than of {q}: repeat these heads "
        "({repeat}), or use {newer}",
    "storage.varlen-stats": "gradients of sequences behind each other are not computed on this GPU; " + _DENSE,
    "backward.varlen-head-dim-old":
        "gradients of sequences behind each other with head dims {0} and {1} are wrong under this cuDNN; " + _DENSE,
    "backward.varlen-head-dim":
        "gradients of sequences behind each other with a head dim of {0} are wrong; give {q} and {k} a head dim that is a "
        "multiple of 16 ({pad} with zeros), and the scale of {0}",
    "backward.varlen-no-queries-old":
        "gradients of sequences behind each other are not written for a sequence without queries; use {newer}",
    "backward.varlen-key-gradients-old":
        "gradients of {k} and {v} behind each other are written with the strides of these tensors; give each of them "
        "without gaps ({whole}), or use {newer}",
    "backward.varlen-rows":
        "tokens of {q} lie {0} elements apart and those of its gradient {1}, and cuDNN writes with one step; give {q} "
        "without gaps ({whole})",
    "backward.varlen-consumer-old":
        "gradients of sequences behind each other are not computed on this GPU by this cuDNN; " + _DENSE,
    "storage.paged-old": "{pages} is given, and this cuDNN has no pages; gather them: {gather}, or use {newer}",
    "storage.paged-head-dim":
        "pages have rows of more than 128 elements, which this cuDNN does not take; gather them: {gather}, or use "
        "{newer}",
    "storage.paged-tile":
        "the pages of one sequence hold {numbers} rows, and kernels look up whole tiles of 128; give {pages} so many "
        "columns that they hold a multiple of 128 rows ({kv_lengths} tells how many are used)",
    "storage.paged-varlen": "queries lie behind each other over pages; give {q} as (batch, head, query, head dim)",
    "storage.paged-backward": "gradients over pages were asked for, and there are none; gather them: {gather}",
    # Versions, GPUs and engines.
    "gpu.old": "the GPU has {given}; attention needs 8.0 or newer: {elsewhere} computes it",
    "gpu.unknown": "the GPU has {given}, which is untested; 8.x, 9.0, 10.x and 12.x are known: {elsewhere} computes it",
    "cudnn.major": "{given} is loaded; cuDNN 9 is needed: {newer}",
    "cudnn.too-old": "{given} is loaded, which compiles for no GPU that is absent; use {newer}",
    "cudnn.withdrawn": "{given} is loaded, in which NVIDIA turned attention off; use {newer}",
    "target.unknown": "the GPU is called {given}; it is {needed}",
    "profile.parse":
        "the description of a GPU cannot be read ({given}); give a name such as 'h200', or the file that `qkvault "
        "profile capture` writes",
    "profile.field":
        "the description of a GPU lacks a property that this cuDNN needs; write it anew with `qkvault profile "
        "capture`, or give a name such as 'h200'",
    "fa4.gpu": _FORCED + "compute capability 9.0, not {0}" + _LEAVE,
    "fa4.type": _FORCED + "bfloat16 and float16, and {q} is {type}" + _LEAVE,
    "fa4.head-dim":
        _FORCED + "head dims up to 256 that are multiples of 8, of 16 with pages and of 32 with gradients, alike for "
        "{q} and {v} or 192 and 128, not {numbers}" + _LEAVE,
    "fa4.heads": _FORCED + "as many heads of {k} ({0}) as of {v} ({1})" + _LEAVE,
    "fa4.dropout": _FORCED + "no {dropout}" + _LEAVE,
    "fa4.expression":
        _FORCED + "no gradient of {table}, no {mask_mod} with {deterministic}, and at most 16 captured numbers"
        + _LEAVE,
    "fa4.storage": _FORCED + "sequences with lengths only without gaps between them, and pages of one size" + _LEAVE,
    "fa4.sequences": _FORCED + "sequences with lengths without {mask_mod}, ending {bottom_right}" + _LEAVE,
    "fa4.band": _FORCED + "masks that end {bottom_right}, without {origins}" + _LEAVE,
    "fa4.sequence": _FORCED + "16777216 queries and keys ({numbers})" + _LEAVE,
    "fa4.grid": _FORCED + "65535 sequences and heads ({numbers})" + _LEAVE,
    "fa4.invariant": _FORCED + "no {invariant}; leave engine out, so that qkvault's own kernels take the call",
    "fa4.draft-tree": _FORCED + "no {draft_tree}; leave engine out, so that qkvault's own kernels take the call",
    "fa4.strides": _FORCED + "strides that are multiples of 8 elements, and those of {who} are {list}" + _LEAVE,
    "fa4.lowest-row": _FORCED + "no row of large negative scores ({given}); hide keys with {mask_mod}",
    "kernels.gpu": _OWN + "compute capability 9.0, not {0}" + _LEAVE,
    "kernels.backward": _OWN + "no gradients; {forward}, or leave engine out",
    "kernels.type": _OWN + "bfloat16 and float16, and {q} is {type}" + _LEAVE,
    "kernels.head-dim":
        _OWN + "head dims that are multiples of 16, to 576 of {q} and 512 of {v}, not {numbers}" + _LEAVE,
    "kernels.invariant":
        "{invariant} is kept for head dims of at most 256, without {origins} and {draft_tree}, with 4 GiB of scratch "
        "memory ({given}); leave {invariant} out",
    "kernels.heads": _OWN + "as many heads of {k} ({0}) as of {v} ({1})" + _LEAVE,
    "kernels.dropout": _OWN + "no {dropout}" + _LEAVE,
    "kernels.size": _OWN + "2^30 sequences, heads, rows and keys ({numbers})" + _LEAVE,
    "kernels.storage": _OWN + "keys and values that are stored alike, and pages of one size" + _LEAVE,
    "kernels.strides": _OWN + "strides that are multiples of 8 elements, and those of {who} are {list}" + _LEAVE,
    "not-built.draft-tree":
        "{draft_tree} was given, which qkvault's own kernels alone read, on compute capability 9.0; leave it out and "
        "give {mask} elsewhere",
    "not-built.invariant":
        "{invariant} was asked for, which qkvault's own kernels alone keep, on compute capability 9.0; leave "
        "{invariant} out elsewhere",
    "library.*": "cuDNN does not take this call, and says: {given}; {elsewhere} computes it",
}

#: What an explanation calls nearest.
NEAREST = {
    "dO and gradients that lie as O, Q, K and V do": "gradients that lie as {q}, {k} and {v} do",
    "contiguous operands in the order BSHD": "tensors without gaps",
    "tensors whose gradient is computed in the element type of Q": "{table} in the type of {q}",
    "sums of gradients in any order (deterministic: no)": "no {deterministic}",
    "sums of gradients in one order (deterministic: yes)": "{deterministic}",
    "per-sequence lengths given at launch": "{q_lengths} and {kv_lengths}",
    "a diagonal that starts top left": "a mask that starts at the top left",
    "a causal mask without a window": "{causal} without {window}",
    "a diagonal that ends bottom right": "a mask that ends {bottom_right}",
    "dense operands with lengths instead of varlen ones": "sequences side by side with {kv_lengths}",
    "gathered keys and values instead of paged ones": "keys and values gathered from their pages",
    "no gradient of the sink": "no gradient of {sinks}",
    "no dropout": "no {dropout}",
    "no tree of drafts": "no {draft_tree}",
    "no sink": "no {sinks}",
    "no keep predicate": "no {mask_mod} or {mask}",
    "no score expression": "no {reads}",
    "no diagonal band": "no {causal} and no {window}",
    "the forward alone": "no gradient",
}

_CHECKED = "the doors check the argument in Python"
_MADE = "the doors make this operand themselves, as it must be"
_UNSAID = "no argument of a door leads to it"

#: Why no call of a door meets a code.
UNMET = {
    "fp8.*": "doors take bfloat16 and float16",
    "backward.cache": "doors take bfloat16 and float16",
    "kernels.cache": "doors take bfloat16 and float16",
    "fa4.cache": "doors take bfloat16 and float16",
    "not-built.cache": "doors take bfloat16 and float16",
    "mxfp8.*": "doors take bfloat16 and float16",
    "engine.amax": "doors take bfloat16 and float16",
    "backward.half-*": "doors take bfloat16 and float16",
    "dtype.output": _MADE,
    "dtype.gradient": _MADE,
    "storage.paged": _MADE,
    "storage.paged-pair": _MADE,
    "storage.varlen": _MADE,
    "storage.gradient": _MADE,
    "tensor.overlap": _MADE,
    "lengths.missing": _MADE,
    "backward.stats": _MADE,
    "backward.sink": _MADE,
    "training.backward": _MADE,
    "band.empty": _CHECKED,
    "band.left": _CHECKED,
    "band.right": _CHECKED,
    "dropout.probability": _CHECKED,
    "mask-mod.score": "a mask_mod is not given the score",
    "score-mod-bprop.*": "doors derive gradients themselves",
    "form.*": "doors choose no form of the graph",
    "outputs.combination": "doors ask for the result and the log-sum-exp alone",
    "not-built.outputs": "doors ask for the result and the log-sum-exp alone",
    "fa4.outputs": "doors ask for the result and the log-sum-exp alone",
    "kernels.outputs": "doors ask for the result and the log-sum-exp alone",
    "draft-tree.backward": "functions with a draft_tree have no gradient",
    "draft-tree.origins": "functions with a draft_tree have no origins",
    "not-built.block-mask": "a block_mask is its mask_mod",
    "kernels.block-mask": "a block_mask is its mask_mod",
    "not-built.dropout-places": _UNSAID,
    "not-built.padded-rows": "doors zero these rows themselves",
    "dropout.mask-odd": "doors let cuDNN draw the dropout",
    "combination.*": "doors add parts in PyTorch and JAX",
    "append.*": "doors append to no caches",
    "conversion.*": "doors convert no tensors",
    "conversion.gpu": "doors convert no tensors",
    "documents.*": "doors pack no documents",
    "offsets.*": "doors give cumulative lengths on the GPU and clip them there",
    "pages.*": "doors give tables of pages on the GPU and clip them there",
    "lengths.negative": "doors give lengths on the GPU",
    "nccl.*": "doors exchange by torch.distributed and JAX",
    "ranks.*": "doors exchange by torch.distributed and JAX",
    "shard.*": "doors share an attention in Python",
    "config.*": "doors read no configuration of a model",
    "manifest.*": "doors read no manifest",
    "model.*": "doors read no configuration of a model",
    "run.*": "commands alone have phases",
    "serve.*": "doors make no set of plans for serving",
    "warm.nothing": "commands alone compile lists",
}
