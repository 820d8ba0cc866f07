"""PyTorch's fused attention: SDPA with cuDNN and with flash, and attention of packed sequences.

PyTorch has no pages: keys and values are contiguous, which is easier, and the name of the peer says so. Packed
sequences of one length are a batch for SDPA, which is easier too.
"""
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from cases import Refused
from measure import computed, inputs


def ways(case):
    easier = ", contiguous" if case.page else ", as a batch" if case.packed_q else ""
    return {
        f"torch sdpa cudnn{easier}": lambda: sdpa(case, SDPBackend.CUDNN_ATTENTION),
        f"torch sdpa flash{easier}": lambda: sdpa(case, SDPBackend.FLASH_ATTENTION),
        "torch varlen flash" + (", contiguous" if case.page else ""): lambda: varlen(case),
    }


def plain(case):
    """Refuses what no fused attention of PyTorch has."""
    for has, words in (
        (case.expression, "no expression of scores"), (case.sink, "no sink"), (case.mask, "no such mask"),
        (case.padded, "no lengths of a batch"), (case.latent, "no values that are columns of keys"),
    ):
        if has:
            raise Refused(f"its fused attention has {words}")
    case.corner()


def sdpa(case, backend):
    plain(case)
    if case.left is not None:
        raise Refused("its fused attention has no window")
    q, k, v = (case.batched(t) for t in (case.q, case.k, case.v))
    lower = case.causal and case.sq != case.sk
    if case.sq == 1:
        # The heads that share keys as queries of one head: the same numbers, and what its users would write.
        rows = q.view(case.b, case.hk, case.group, case.d)
        operands = inputs(case, (rows, k.transpose(1, 2), v.transpose(1, 2)))
        attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v).reshape(case.b, 1, case.h, case.dv)
        return fixed(case, backend, "bshd", attend, operands)
    if lower and backend == SDPBackend.CUDNN_ATTENTION:
        raise Refused("its causal mask begins in the top left corner")
    more = {"attn_mask": causal_lower_right(case.sq, case.sk)} if lower else {"is_causal": case.causal}
    operands = inputs(case, (t.transpose(1, 2) for t in (q, k, v)))
    attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=case.group > 1, **more)
    return fixed(case, backend, "bhsd", attend, operands)


def fixed(case, backend, layout, attend, operands):
    def with_backend(*operands):
        with sdpa_kernel(backend):
            return attend(*operands)

    return computed(case, layout, with_backend, operands)


def varlen(case):
    """For what SDPA does not take: packed sequences, and windows."""
    plain(case)
    if not case.packed_q and case.left is None:
        raise Refused("SDPA computes it")
    from torch.nn.attention.varlen import varlen_attn

    starts_q, starts_k = case.starts(case.queries), case.starts(case.keys)
    window = (-1 if case.left is None else case.left - 1, 0 if case.causal else -1)
    attend = lambda q, k, v: varlen_attn(q, k, v, starts_q, starts_k, case.sq, case.sk, window_size=window)
    return computed(case, "thd", attend, inputs(case, (case.q, case.k, case.v)))
