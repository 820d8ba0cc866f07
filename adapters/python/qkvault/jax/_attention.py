"""`attention`: attention with modifications of its scores, and its derivative."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Literal, Optional, Union, overload

import jax

from .._attention import Attention, Explanation
from .._words import Words
from ._arguments import Number, Window, program_of
from ._call import described, trained
from ._config import gpu as traced_for
from ._config import settings
from ._operator import operator
from ._origins import Origin
from ._shards import varying
from ._words import DOOR


@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    bias: Optional[jax.Array] = None,
    mask: Optional[jax.Array] = None,
    score_mod: Optional[Callable[..., Any]] = None,
    mask_mod: Optional[Callable[..., Any]] = None,
    is_causal: bool = False,
    window: Window = None,
    softcap: Number = None,
    sinks: Optional[jax.Array] = None,
    scale: Number = None,
    query_seq_lengths: Optional[jax.Array] = None,
    key_value_seq_lengths: Optional[jax.Array] = None,
    segment_ids: Union[jax.Array, tuple[jax.Array, jax.Array], None] = None,
    dropout_rate: float = 0.0,
    dropout_rng: Optional[jax.Array] = None,
    query_origin: Origin = None,
    key_origin: Origin = None,
    layout: str = "bshd",
    deterministic: bool = False,
    return_lse: Literal[False] = False,
) -> jax.Array: ...


@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    bias: Optional[jax.Array] = None,
    mask: Optional[jax.Array] = None,
    score_mod: Optional[Callable[..., Any]] = None,
    mask_mod: Optional[Callable[..., Any]] = None,
    is_causal: bool = False,
    window: Window = None,
    softcap: Number = None,
    sinks: Optional[jax.Array] = None,
    scale: Number = None,
    query_seq_lengths: Optional[jax.Array] = None,
    key_value_seq_lengths: Optional[jax.Array] = None,
    segment_ids: Union[jax.Array, tuple[jax.Array, jax.Array], None] = None,
    dropout_rate: float = 0.0,
    dropout_rng: Optional[jax.Array] = None,
    query_origin: Origin = None,
    key_origin: Origin = None,
    layout: str = "bshd",
    deterministic: bool = False,
    return_lse: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...


@DOOR.worded()
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    bias: Optional[jax.Array] = None,
    mask: Optional[jax.Array] = None,
    score_mod: Optional[Callable[..., Any]] = None,
    mask_mod: Optional[Callable[..., Any]] = None,
    is_causal: bool = False,
    window: Window = None,
    softcap: Number = None,
    sinks: Optional[jax.Array] = None,
    scale: Number = None,
    query_seq_lengths: Optional[jax.Array] = None,
    key_value_seq_lengths: Optional[jax.Array] = None,
    segment_ids: Union[jax.Array, tuple[jax.Array, jax.Array], None] = None,
    dropout_rate: float = 0.0,
    dropout_rng: Optional[jax.Array] = None,
    query_origin: Origin = None,
    key_origin: Origin = None,
    layout: str = "bshd",
    deterministic: bool = False,
    return_lse: bool = False,
) -> Union[jax.Array, tuple[jax.Array, jax.Array]]:
    """Attention of `q` [B, T, N, H] over `k` and `v` [B, S, K, H], where K divides N; bfloat16 or float16.

    Scores are `q @ k * scale`, then `+ bias`, `softcap`, `score_mod(score, b, h, q_idx, kv_idx)`. Masks: `is_causal`,
    `window` (keys to the left and to the right of a query; None is no limit), `mask` (true where a key stays),
    `mask_mod(b, h, q_idx, kv_idx)` and the lengths. Rows count from the first query, as in `jax.nn`. `bias` and `mask`
    broadcast over [B, N, T, S]; `sinks` [N] are one more score per head, which takes weight and has no value.

    The functions are traced on numbers into cuDNN's kernel: arrays that they capture become tensors, floats become
    numbers that no plan depends on. `softcap` and `scale` may be arrays of one element: then a program takes another
    value without being traced again. The derivative follows from the functions; it is that of q, k, v, sinks, bias and
    of captured arrays that are added to the score.

    `segment_ids` [B, T] of documents in a row (a pair for queries and keys): a query sees keys with its number.
    `dropout_rate` drops weights; `dropout_rng` is a key of `jax.random`, and the same key drops the same.
    `return_lse` gives also the natural log-sum-exp of every row, [B, T, N], float32, without gradient.

    `query_origin` and `key_origin` are the positions of the first query and the first key, for a chunk of a longer
    sequence: masks and functions count from there, `bias` and `mask` are those of the chunk. Integers are numbers of a
    launch: one plan serves all, and JAX traces a program again for each. Arrays are read by the kernel, so another
    value needs neither; then a causal mask is computed for all keys, because blocks are skipped by numbers alone.

    `layout` is `bshd` or `bhsd`. Under `shard_map` and `pmap`, indices count within a shard, whose place `query_origin`
    may tell; `context_parallel_attention` does so for a sharded sequence.

    Raises `Refused` with every reason where cuDNN cannot, and `PlanMissing` where a plan may not be built.
    """
    program, arrays, fixed = program_of(
        q, k, v, bias=bias, mask=mask, score_mod=score_mod, mask_mod=mask_mod, is_causal=is_causal, window=window,
        softcap=softcap, sinks=sinks, scale=scale, query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths, segment_ids=segment_ids, dropout_rate=dropout_rate,
        dropout_rng=dropout_rng, layout=layout, deterministic=deterministic, query_origin=query_origin,
        key_origin=key_origin,
    )
    found = operator(program, fixed, return_lse)(varying(arrays))
    return (found[0], jax.lax.stop_gradient(found[1])) if return_lse else found


DOOR.base = Words(DOOR, attention)


@DOOR.worded(attention, gpu="gpu")
def explain(q: Any, k: Any, v: Any, *, gpu: Optional[str] = None, cudnn: Optional[str] = None,
            backward: bool = False, **options: Any) -> Explanation:
    """What the rules say of a call of `attention` with these arguments; nothing is compiled or run.

    `q`, `k` and `v` may be `jax.ShapeDtypeStruct`s. It is true if the call is supported; its text has every reason and
    what is nearest. `gpu` is a name such as `h200`, that of this process by default; `cudnn` a version. With
    `backward`, the answer is about the gradients of q, k and v.
    """
    known = [name for name, one in inspect.signature(attention).parameters.items() if one.kind is one.KEYWORD_ONLY]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"attention has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
    options.pop("return_lse", None)
    found: list[Attention] = []

    def traced(q, k, v):
        program, arrays, _ = program_of(q, k, v, **options)
        sizes = program.sizes(arrays)
        tensors = program.tensors(False, arrays["captured"], sizes)
        text = program.text(sizes, q.dtype, tensors, False, frozenset())
        found.append(trained(text, program.deterministic, False)[1] if backward else described(text))
        return q

    jax.eval_shape(traced, q, k, v)
    return found[0].explain(gpu or traced_for(), cudnn, context=settings().context)
