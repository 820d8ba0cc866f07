"""FlashInfer over pages and ragged rows, forwards. It plans a batch on the host before, which counts as nothing."""
import functools

import torch

from cases import DTYPE, Refused

# Fails where the library is missing, which is told once.
from flashinfer import prefill
from flashinfer.attention import BatchAttentionWithAttentionSinkWrapper
from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from flashinfer.jit.core import JitSpecNvcc
from flashinfer.mla import BatchMLAPagedAttentionWrapper
from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper

HEAD_DIMS = (64, 128, 256)
BUILD = JitSpecNvcc.build


def compile_nothing():
    """A module of kernels takes minutes, in which nothing is to be measured."""

    def build(spec, *args, **more):
        if not spec.jit_library_path.exists():
            raise Refused("its kernels are not compiled: bench engines --warm-peers does that")
        return BUILD(spec, *args, **more)

    JitSpecNvcc.build = build


def pack(mask, starts, bitorder):
    """What its `segment_packbits` gives, which is a module of kernels of its own: bits of segments of whole bytes."""
    assert bitorder == "little" and not (starts % 8).any()
    bits = mask.to(torch.uint8).view(-1, 8) << torch.arange(8, device=mask.device, dtype=torch.uint8)
    return bits.sum(1, dtype=torch.uint8), (starts // 8).to(torch.int32)


prefill.segment_packbits = pack


def ways(case):
    if case.latent:
        return {f"flashinfer mla {backend}": functools.partial(mla, case, backend) for backend in ("fa2", "fa3")}
    if not case.page:
        return {f"flashinfer {backend}": functools.partial(ragged, case, backend) for backend in ("fa2", "fa3")}
    found = {f"flashinfer {backend}": functools.partial(paged, case, backend) for backend in ("fa2", "fa3")}
    if case.sq == 1:
        found["flashinfer cuda cores"] = functools.partial(paged, case, None)
    return found


def key(case, name):
    """Cases of one key have one module of kernels; none if it is refused."""
    try:
        plain(case, None if name.endswith("cores") else name[-3:])
    except Refused:
        return None
    return (name, case.d, case.dv, case.left is not None, case.softcap is not None, case.alibi, case.sink)


def plain(case, backend):
    """Refuses what its kernels lack, and modules of kernels for rows that others compute."""
    dense = not (case.page or case.packed_q)
    changed = case.expression or case.sink or case.left is not None
    for has, words in (
        (case.backward, "no backwards"),
        (case.mask and (case.mask != "tree" or backend != "fa2" or not case.page), "no such mask"),
        (case.latent and changed, "no latent attention with that"),
        (case.alibi and backend == "fa3", "no ALiBi in FA3"),
        (case.sink and not case.page, "sinks over pages alone"),
        (case.sink and (backend is None or case.expression), "sinks for FA2 and FA3, without expressions"),
        (dense and (changed or case.padded), "no kernels for such prompts that are compiled here"),
        (dense and backend == "fa2", "FA3 for it"),
        (case.softcap is not None and case.d != 128, "no kernels with a soft cap that are compiled here but of 128"),
        (not case.latent and case.d not in HEAD_DIMS and (case.d, case.dv) != (192, 128), f"no head dim {case.d}"),
        (case.page and any(keys != case.sk for keys in case.keys), "sequences of one length of keys here"),
    ):
        if has:
            raise Refused(f"FlashInfer has {words}")
    case.corner()


@functools.cache
def workspace():
    return torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")


def modifications(case):
    more = {"q_data_type": DTYPE, "kv_data_type": DTYPE, "sm_scale": case.scale}
    if case.left is not None:
        more["window_left"] = case.left - 1
    if case.softcap is not None:
        more["logits_soft_cap"] = case.softcap
    if case.alibi:
        more["pos_encoding_mode"] = "ALIBI"
    return more


def pages(case):
    """Where the pages of each sequence begin in the list of all, that list, and the rows of last pages."""
    table = case.table()
    per = table.shape[1]
    starts = torch.arange(case.b + 1, device=case.device, dtype=torch.int32) * per
    return starts, table.reshape(-1).contiguous(), case.ints([case.sk - (per - 1) * case.page] * case.b)


def paged(case, backend):
    plain(case, backend)
    starts, table, last = pages(case)
    more, pool = modifications(case), (case.pool("k"), case.pool("v"))
    sizes = (case.h, case.hk, case.d, case.page)
    q, starts_q = case.q, case.starts(case.queries)
    if case.sink:
        dims = {"head_dim_qk": case.d, "head_dim_vo": case.dv, "q_data_type": DTYPE, "kv_data_type": DTYPE}
        wrapper = BatchAttentionWithAttentionSinkWrapper(
            workspace(), "NHD", backend=backend, window_left=more.get("window_left", -1), **dims)
        wrapper.plan(starts_q, starts, table, last, *sizes, causal=case.causal, **more)
        return (lambda: (wrapper.run(q, pool, case.sinks, case.scale),)), "thd"
    if case.sq == 1:
        how = {"use_tensor_cores": True, "backend": backend} if backend else {}
        wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", **how)
        wrapper.plan(starts, table, last, *sizes, **more)
    else:
        wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend=backend)
        if case.mask == "tree":
            i, j = torch.arange(case.sq, device=case.device)[:, None], torch.arange(case.sk, device=case.device)[None]
            more["custom_mask"] = torch.cat([case.seen(b, i, j).flatten() for b in range(case.b)])
        wrapper.plan(starts_q, starts, table, last, *sizes, causal=case.causal and not case.mask, **more)
    return (lambda: (wrapper.run(q, pool),)), "thd"


def ragged(case, backend):
    """Packed rows, and plain prompts as such."""
    plain(case, backend)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD", backend=backend)
    starts_q, starts_k, dims = case.starts(case.queries), case.starts(case.keys), {"head_dim_vo": case.dv}
    wrapper.plan(starts_q, starts_k, case.h, case.hk, case.d, causal=case.causal, **dims, **modifications(case))
    q, k, v = case.q, case.k, case.v
    return (lambda: (wrapper.run(q, k, v),)), "thd"


def mla(case, backend):
    """Multi-head latent attention: the first columns of a row are keys and values, the others are keys alone."""
    plain(case, backend)
    starts, table, _ = pages(case)
    wrapper = BatchMLAPagedAttentionWrapper(workspace(), backend=backend)
    lengths, rope = case.ints(case.keys), case.d - case.dv
    wrapper.plan(
        case.starts(case.queries), starts, table, lengths, case.h, case.dv, rope, case.page, case.causal, case.scale,
        DTYPE, DTYPE)
    pool, q = case.pool("k")[:, :, 0], case.q
    parts = [t.contiguous() for t in (q[..., : case.dv], q[..., case.dv :], pool[..., : case.dv], pool[..., case.dv :])]
    return (lambda: (wrapper.run(*parts),)), "thd"
