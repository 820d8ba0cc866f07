"""PyTorch's compiled FlexAttention, where SDPA has no fused way. It compiles each shape, which takes seconds: over
pages and packed rows it has a turn only where libraries are missing that were always faster there. A sink is a factor
that follows from the log-sum-exp, packed sequences are one with a mask of documents, and a mask of blocks is made
before and counts as nothing."""
import importlib.util

import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from cases import Refused
from measure import computed, inputs

# Each shape is compiled.
torch._dynamo.config.recompile_limit = 10_000
torch._dynamo.config.accumulated_recompile_limit = 10_000
COMPILED = torch.compile(flex_attention, dynamic=False)
FASTER = ("flashinfer", "flash_attn")
# The head dim beyond which its tiles do not fit.
HEAD_DIM = 256


def ways(case):
    return {"torch flex" + (", contiguous" if case.page else ""): lambda: flex(case)}


def key(case, name):
    """Each shape is compiled; none if it is refused."""
    try:
        needed(case)
    except Refused:
        return None
    return repr(case.w)


def one_sequence(case):
    """Packed queries and keys as one sequence of documents."""
    return case.packed_q and case.packed_k


def predicate(case):
    """Which keys are seen, in the coordinates of FlexAttention; none if all are."""
    if one_sequence(case):
        if case.sq != case.sk or case.queries != case.keys or case.left is not None or case.mask:
            raise Refused("packed rows with other keys or a window are no mask of documents")
        ids = torch.repeat_interleave(torch.arange(case.b, device=case.device), case.ints(case.queries))
        causal = (lambda i, j: (ids[i] == ids[j]) & (i >= j)) if case.causal else (lambda i, j: ids[i] == ids[j])
        return lambda b, h, i, j: causal(i, j)
    case.batched(case.q)
    parts, shift = [], case.shift(0)
    if case.causal and case.sq > 1:
        parts.append(lambda b, i, j: j <= i + shift)
    if case.left is not None:
        parts.append(lambda b, i, j: j > i + shift - case.left)
    if case.padded:
        lengths_q, lengths_k = case.ints(case.queries), case.ints(case.keys)
        parts.append(lambda b, i, j: (i < lengths_q[b]) & (j < lengths_k[b]))
    if case.mask == "tensor":
        at = torch.arange(case.sk, device=case.device)
        tensor = case.operand_mask(at[: case.sq, None], at[None])
        parts.append(lambda b, i, j: tensor[i, j])
    elif case.mask:
        parts.append(lambda b, i, j: case.operand_mask(i, j))

    def seen(b, h, i, j):
        result = parts[0](b, i, j)
        for part in parts[1:]:
            result = result & part(b, i, j)
        return result

    return seen if parts else None


def modification(case):
    cap = case.softcap
    if case.alibi:
        slopes = case.slopes()
        return lambda x, b, h, i, j: x + slopes[h] * (j - i)
    return None if cap is None else lambda x, b, h, i, j: cap * torch.tanh(x / cap)


def needed(case):
    """FlexAttention is for what SDPA does not compute."""
    if not (case.expression or case.sink or case.mask or case.padded or case.left is not None or case.packed_q):
        raise Refused("SDPA computes it")
    if case.latent or case.d > HEAD_DIM:
        raise Refused(f"its tiles do not fit at head dim {case.d}")
    if case.packed_q and case.page:
        raise Refused("packed queries with keys of their own sequences are no mask of documents")
    if (case.page or case.packed_q) and all(map(importlib.util.find_spec, FASTER)):
        raise Refused("FlashInfer and FlashAttention-4 compute it")
    if case.softcap is not None and case.alibi:
        raise Refused("one modification at a time")


def flex(case, run=None):
    needed(case)
    run = run or COMPILED
    seen, packed = predicate(case), one_sequence(case)
    sq, sk = (sum(case.queries), sum(case.keys)) if packed else (case.sq, case.sk)
    mask = None
    if seen is not None:
        mask = create_block_mask(seen, case.b if case.padded else None, None, sq, sk, device=case.device)
    shape = (lambda t: t[None]) if packed else case.batched
    operands = inputs(case, (shape(t).transpose(1, 2) for t in (case.q, case.k, case.v)))
    more = {"score_mod": modification(case), "block_mask": mask, "enable_gqa": case.group > 1}
    if not case.sink:
        return computed(case, "bhsd", lambda q, k, v: run(q, k, v, **more), operands)

    def with_sinks(q, k, v):
        out, told = run(q, k, v, return_aux=AuxRequest(lse=True), **more)
        # The sink leaves this share of the softmax to the keys.
        share = torch.sigmoid(told.lse - case.sinks[None, :, None])
        return (out * share[..., None]).to(out.dtype)

    return computed(case, "bhsd", with_sinks, operands)
