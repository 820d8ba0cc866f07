"""The attention function."""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any, Callable, Literal, Optional, Union, overload

import torch
from torch import Tensor

from .._errors import ArgumentError
from .._words import Words
from . import _compiled, _nested, _operators, _shards, _traces
from ._blocks import predicate
from ._composed import composed
from ._fake import BETWEEN
from ._lengths import dead, lengths, log_sums, padded
from ._operands import HALVES, named, typed, unrepeated
from ._origins import Origin, origins
from ._placed import checked
from ._spec import Parts, Window, band, placed, shaped
from ._told import single
from ._words import DOOR

#: A number of a launch; as a tensor of one element on the CPU it is an operand of a compiled program.
Number = Union[float, Tensor, None]

_plain: dict = {}


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, score_mod: Optional[Callable] = None, mask_mod: Optional[Callable] = None,
    block_mask: Any = None, bias: Optional[Tensor] = None, attn_mask: Optional[Tensor] = None, is_causal: bool = False,
    window: Window = None, bottom_right: bool = False, softcap: Number = None, sinks: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None, scale: Number = None, dropout_p: float = 0.0,
    q_lengths: Optional[Tensor] = None, kv_lengths: Optional[Tensor] = None, query_origin: Origin = None,
    key_origin: Origin = None, enable_gqa: bool = True,
    return_lse: Literal[True], deterministic: bool = False, invariant: bool = False, copy: bool = False,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, score_mod: Optional[Callable] = None, mask_mod: Optional[Callable] = None,
    block_mask: Any = None, bias: Optional[Tensor] = None, attn_mask: Optional[Tensor] = None, is_causal: bool = False,
    window: Window = None, bottom_right: bool = False, softcap: Number = None, sinks: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None, scale: Number = None, dropout_p: float = 0.0,
    q_lengths: Optional[Tensor] = None, kv_lengths: Optional[Tensor] = None, query_origin: Origin = None,
    key_origin: Origin = None, enable_gqa: bool = True,
    return_lse: Literal[False] = False, deterministic: bool = False, invariant: bool = False, copy: bool = False,
) -> Tensor: ...  # fmt: skip


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_mod: Optional[Callable] = None,
    mask_mod: Optional[Callable] = None,
    block_mask: Any = None,
    bias: Optional[Tensor] = None,
    attn_mask: Optional[Tensor] = None,
    is_causal: bool = False,
    window: Window = None,
    bottom_right: bool = False,
    softcap: Number = None,
    sinks: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    scale: Number = None,
    dropout_p: float = 0.0,
    q_lengths: Optional[Tensor] = None,
    kv_lengths: Optional[Tensor] = None,
    query_origin: Origin = None,
    key_origin: Origin = None,
    enable_gqa: bool = True,
    return_lse: bool = False,
    deterministic: bool = False,
    invariant: bool = False,
    copy: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Attention of `q` (batch, query head, query, head dim) over `k` and `v` (batch, key head, key, head dim).

    Tensors are bfloat16 or float16 on one GPU, with the head dim innermost; the result lies in memory as `q` does.

    * `score_mod(score, b, h, q_idx, kv_idx)` and `mask_mod(b, h, q_idx, kv_idx)` as in FlexAttention; `block_mask` is
      one of FlexAttention's, of which the `mask_mod` is used.
    * `bias` is added to the scores; `attn_mask` as in SDPA: bool (True is seen) or added. Both broadcast to
      (batch, head, query, key).
    * `is_causal`: the mask begins at the top left, as in SDPA; at the bottom right with `bottom_right`. `window`: how
      many keys a query sees on a side, itself not counted, as in flash-attention: (left, right), where -1 or None is
      all of them, or one number for both. With `is_causal`, nothing on the right is seen.
    * `softcap`: `softcap * tanh(score / softcap)`, before `score_mod`. `sinks`: a logit per query head.
      `alibi_slopes`: (head) or (batch, head). `scale`: 1 / sqrt(head dim) by default. Softcap and scale may be tensors
      of one element on the CPU.
    * `q_lengths`, `kv_lengths`: (batch), integers on the GPU: how many rows of a sequence there are; what lies behind
      is not seen, and O is zero there. They may change from call to call.
    * `query_origin`, `key_origin`: the positions of the first query and the first key, 0 or more, for a chunk of a
      longer sequence: causal masks, windows, ALiBi, `score_mod` and `mask_mod` count from there. `bias` and `attn_mask`
      are for the queries and keys of this call. They are numbers of a launch: one plan serves every chunk.
    * `return_lse`: also the natural log-sum-exp of every row, (batch, head, query), float32. Its gradient is one more
      launch of the backward; `lse.detach()` needs none.
    * `deterministic`: gradients are the same bit for bit. `invariant`: a row of the result has the same bits alone, in
      any batch and in any chunk of its prompt; its gradients are no part of that. `copy`: tensors with strides that
      cuDNN does not take are copied; otherwise they are an error that names them. What `expand` made is copied, and
      that is logged once, but for one head of keys and values without gradients.

    Raises `qkvault.Refused` with the reasons, `Untraceable` with the line of a function, `PlanMissing`, or another
    `qkvault.Error`. Nothing falls back to another kernel.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor) and q.dim() == k.dim() == 4):
        checked("(batch, head, query, head dim)", q=q, k=k, v=v)
    device = q.device
    if k.device != device or v.device != device:
        name, other = ("k", k.device) if k.device != device else ("v", v.device)
        raise ArgumentError(f"{name} is on {other}, and q on {device}; move it there: {name}.to(q.device)")
    dtype = q.dtype  # As in `same_type`, without the calls.
    cast = q.is_cuda and torch.is_autocast_enabled("cuda") or q.is_cpu and torch.is_autocast_enabled("cpu")
    if cast or dtype is not k.dtype or dtype is not v.dtype or dtype not in HALVES:
        q, k, v = typed(q, k, v, cast)
    if q.is_nested or k.is_nested or v.is_nested:
        dense = {
            "attn_mask": attn_mask, "block_mask": block_mask, "bias": bias, "q_lengths": q_lengths,
            "kv_lengths": kv_lengths, "query_origin": query_origin, "key_origin": key_origin,
        }  # fmt: skip
        return _nested.attention(q, k, v, return_lse, dense, {
            "score_mod": score_mod, "mask_mod": mask_mod, "is_causal": is_causal, "window": window,
            "bottom_right": bottom_right, "softcap": softcap, "sinks": sinks, "alibi_slopes": alibi_slopes,
            "scale": scale, "dropout_p": dropout_p, "deterministic": deterministic, "invariant": invariant,
        })  # fmt: skip
    if not enable_gqa and q.shape[1] != k.shape[1]:
        raise ArgumentError(f"q has {q.shape[1]} heads and k {k.shape[1]}; give enable_gqa=True, or as many heads")
    if not (q.numel() and k.numel()):
        return _nothing(q, k, v, return_lse)
    if isinstance(softcap, Tensor) or isinstance(scale, Tensor):
        softcap, scale = single("softcap", softcap), single("scale", scale)
    if 0 in k.stride() or 0 in v.stride() or 0 in q.stride():
        q, k, v = unrepeated(q, k, v)
    if scale is not None and type(scale) is not float:
        _number("scale", scale)
    if copy:
        q, k, v = (t if _operators.fits(t) else t.contiguous() for t in (q, k, v))
    # One by one: Dynamo compares no two functions.
    plain = score_mod is None and mask_mod is None and block_mask is None and bias is None and attn_mask is None
    plain = plain and sinks is None and alibi_slopes is None
    parted = type(q) not in _operators.PLAIN and hasattr(q, "placements")
    alone = q_lengths is kv_lengths is query_origin is key_origin is None and not dropout_p
    if not (plain and alone) or parted and return_lse:
        if alone and bias is attn_mask is sinks is alibi_slopes is block_mask is softcap is window is None:
            more = is_causal or deterministic or invariant or parted or torch.compiler.is_compiling()
            if not more and all(f is None or callable(f) for f in (score_mod, mask_mod)):
                o, stats = _of_functions(q, k, v, score_mod, mask_mod, scale, return_lse)
                return (o, stats) if return_lse else o
        options = {
            "score_mod": score_mod, "mask_mod": mask_mod, "block_mask": block_mask, "bias": bias,
            "attn_mask": attn_mask, "is_causal": is_causal, "window": window, "bottom_right": bottom_right,
            "softcap": softcap, "sinks": sinks, "alibi_slopes": alibi_slopes, "scale": scale, "dropout_p": dropout_p,
            "deterministic": deterministic, "invariant": invariant, "q_lengths": q_lengths, "kv_lengths": kv_lengths,
            "query_origin": query_origin, "key_origin": key_origin,
        }  # fmt: skip
        if parted:
            if block_mask is not None and mask_mod is None:
                dims = (*q.shape[:3], k.shape[2])
                options.update(block_mask=None, mask_mod=predicate(block_mask, dims, device))
            return _shards.attention(_of_part, q, k, v, return_lse, options)
        return _full(q, k, v, return_lse, **options)
    key = (is_causal, window, bottom_right, softcap is None, deterministic, invariant)
    spec = _plain.get(key) or _plain_spec(key)
    values = [q.shape[-1] ** -0.5 if scale is None else scale]
    if softcap is not None:
        _capped(softcap)
        values.append(softcap)
    o, stats = _operators.run(q, k, v, [], spec, values, return_lse)
    return (o, stats) if return_lse else o


def _of_functions(q, k, v, score_mod, mask_mod, scale, both: bool) -> tuple:
    """A call that has functions and no option: what most modifications are, with less of Python on the way."""
    dims = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    entry, read, named_numbers = _traces.found(score_mod, mask_mod, dims, q.dtype, q.device, None)
    tensors = entry.operands(read, q, None)
    values = [q.shape[-1] ** -0.5 if scale is None else float(scale)]
    values += [value for _, value in named_numbers]
    return _operators.run(q, k, v, tensors, entry.spec(named_numbers), values, both)


def _full(q, k, v, return_lse, q_lengths, kv_lengths, sinks, local=False, **options):
    """Attention with options that have tensors or functions."""
    made = parts(q, k, q_lengths=q_lengths, kv_lengths=kv_lengths, sinks=sinks, local=local, **options)
    q, k, v = padded(q, q_lengths), padded(k, kv_lengths), padded(v, kv_lengths)
    o, stats = _operators.run_parts(made, q, k, v, return_lse)
    unseen = dead(q_lengths, kv_lengths, o.shape[2])
    o = o if unseen is None else o.masked_fill(unseen, 0)
    return (o, log_sums(stats, q_lengths, kv_lengths, sinks)) if return_lse else o


_of_part = functools.partial(_full, local=True)


DOOR.base = Words(DOOR, attention)


def _plain_spec(key: tuple) -> str:
    """The specification of options without tensors and functions."""
    is_causal, window, bottom_right, uncapped, deterministic, invariant = key
    lines = ["numbers: scale" if uncapped else "numbers: scale softcap"]
    mask = band(is_causal, window, bottom_right)
    lines += [f"mask: {mask}"] if mask != "none" else []
    lines += [] if uncapped else ["score_mod: scalar $softcap: float; tanh(score / $softcap) * $softcap"]
    lines += ["deterministic: yes"] if deterministic else []
    lines += ["invariant: yes"] if invariant else []
    spec = BETWEEN.join(lines)
    if not torch.compiler.is_compiling():
        _plain[key] = spec
    return spec


def _number(name: str, given: Any) -> None:
    if not isinstance(given, (numbers.Real, Tensor, torch.SymFloat, torch.SymInt)):
        raise ArgumentError(f"{name} is {given!r}; give a number, or None")


def _capped(softcap: Number) -> None:
    if softcap is None:
        return
    _number("softcap", softcap)
    if not isinstance(softcap, Tensor) and not 0 < softcap < math.inf:
        raise ArgumentError(f"softcap is {softcap}; give a finite number above 0, or None")


def _nothing(q: Tensor, k: Tensor, v: Tensor, both: bool) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Attention without a row, or without a key: zeros, whose gradients are zeros."""
    zero = sum(t[..., :0].sum() for t in (q, k, v))  # Of no number: those of the operands may be infinite.
    o = zero.expand(*q.shape[:-1], v.shape[-1]).clone()
    return (o, torch.full(q.shape[:-1], -math.inf, device=q.device)) if both else o


def parts(
    q, k, score_mod, mask_mod, block_mask, bias, attn_mask, is_causal, window, bottom_right, softcap, sinks,
    alibi_slopes, scale, dropout_p, deterministic, q_lengths=None, kv_lengths=None, query_origin=None, key_origin=None,
    dims=None, local=False, invariant=False,
) -> Parts:  # fmt: skip
    """The specification of any call. `dims` are those of the scores, if the tensors do not tell them. A `local` call is
    a rank's part of one."""
    compiling = torch.compiler.is_compiling()
    made = Parts(q.shape[-1] ** -0.5 if scale is None else scale if compiling else float(scale))
    made.local = local
    if not (query_origin is key_origin is None):
        origins(made, query_origin, key_origin, bottom_right)
    dims = (q.shape[0], q.shape[1], q.shape[2], k.shape[2]) if dims is None else dims
    for name, function, what in (("score_mod", score_mod, "score, "), ("mask_mod", mask_mod, "")):
        if function is not None and not callable(function):
            raise ArgumentError(
                f"{name} is of type {type(function).__name__}; give a function of ({what}b, h, q_idx, kv_idx), or a "
                "tensor as attn_mask"
            )
    if bias is not None and not placed(bias, q.device, "bias").is_floating_point():
        raise ArgumentError(f"bias is {named(bias.dtype)}; give floats, which are added, or truth values as attn_mask")
    keep = None
    if attn_mask is not None:
        attn_mask = shaped(placed(attn_mask, q.device, "attn_mask"), dims, "attn_mask")
        if not (attn_mask.dtype == torch.bool or attn_mask.is_floating_point()):
            raise ArgumentError(
                f"attn_mask is {named(attn_mask.dtype)}; give truth values, of which True is seen (attn_mask != 0), "
                "or floats, which are added"
            )
        if attn_mask.dtype == torch.bool:
            keep = attn_mask
        elif bias is None:
            bias = attn_mask
        else:
            bias = shaped(bias, dims, "bias") + attn_mask
    if block_mask is not None:
        if mask_mod is not None:
            raise ArgumentError(
                "block_mask and mask_mod are both given; give one: block_mask has a mask_mod of its own"
            )
        if made.origins is not None:
            raise ArgumentError(
                "block_mask with query_origin or key_origin: its lists count from the first query of the call; give "
                "its mask_mod alone"
            )
        mask_mod = predicate(block_mask, tuple(dims), q.device)
    _capped(softcap)
    mask = band(is_causal, window, bottom_right)
    if score_mod is None and mask_mod is None:
        made.options(mask, dims, q, softcap, alibi_slopes, bias, keep)
    else:
        later = compiling and _compiled.known
        dims = dims if later else tuple(int(n) for n in dims)
        functions = composed(score_mod, mask_mod, mask, dims, q, softcap, alibi_slopes, bias, keep, made.origins)
        if later:
            made.later = (*functions, dims)
        else:
            made.functions(*functions, dims, q)
    if sinks is not None:
        logits = placed(sinks, q.device, "sinks").reshape(-1)
        if logits.shape[0] != dims[1]:
            raise ArgumentError(f"sinks has dims {list(sinks.shape)}; give one for each of {dims[1]} heads")
        made.tensor("sink", logits.reshape(1, -1, 1, 1).to(torch.float32).contiguous())
        made.lines.append("sink: yes")
        if sinks.requires_grad and torch.is_grad_enabled():
            made.lines.append("d_sink: yes")
    if dropout_p:
        if not isinstance(dropout_p, numbers.Real) or not 0 <= float(dropout_p) < 1:
            raise ArgumentError(f"dropout_p is {dropout_p!r}; give a probability of at least 0 and below 1")
        made.lines.append(f"dropout: philox {float(dropout_p)!r}")
        # Drawn on the GPU: nothing waits, and a graph draws anew with every replay.
        made.tensor("dropout_seed", torch.randint(2**62, (1, 1, 1, 1), device=q.device))
        made.tensor("dropout_offset", torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=q.device))
    if q_lengths is not None or kv_lengths is not None:
        lengths(made, q, k.shape[2], q_lengths, kv_lengths)
    if deterministic:
        made.lines.append("deterministic: yes")
    if invariant:
        made.lines.append("invariant: yes")
    return made

