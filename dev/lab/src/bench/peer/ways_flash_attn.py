"""FlashAttention-4 by its own front end. Lists of blocks of a mask are made before, by PyTorch as in its own tests, and
count as nothing."""
import torch

from cases import Refused
from measure import computed, inputs

# Fails where the library is missing, which is told once.
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

NAME = "flash-attn 4"
# Blocks of a mask, as the kernels of each head dim want them: rows, and keys of a forward and of a backward.
BLOCKS = {64: (128, 128, 128), 96: (128, 128, 128), 128: (128, 128, 128), 256: (128, 80, 64)}


def ways(case):
    return {NAME: lambda: flash(case)}


def key(case, name):
    """Cases of one key have one kernel, as far as a shape does not decide; none if it is refused."""
    try:
        features(case)
    except Refused:
        return None
    w = dict(case.w, queries=min(case.sq, 256), keys=min(case.sk, 256), b=min(case.b, 16), pages=0)
    return (name, repr(sorted(w.items(), key=lambda item: item[0])))


def features(case):
    """Arguments of both functions."""
    case.corner()
    if case.latent or case.d > 256:
        raise Refused("its latent attention is for Blackwell")
    causal = case.causal and case.left is None
    more = {"softmax_scale": case.scale, "causal": causal, "deterministic": case.deterministic}
    if case.left is not None:
        more["window_size"] = (case.left - 1, 0 if case.causal else None)
    if case.softcap is not None:
        more["softcap"] = case.softcap
    if case.sink:
        more["learnable_sink"] = case.sinks
    if case.alibi:
        if case.softcap is not None:
            raise Refused("one modification of scores at a time")
        more["score_mod"], more["score_mod_bwd"] = alibi(case.h)
    return more


def alibi(heads):
    import cutlass
    import cutlass.cute as cute

    step = -8.0 / heads

    @cute.jit
    def score_mod(score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        slope = cute.math.exp2((h_idx + 1).to(cutlass.Float32) * step, fastmath=True)
        return score + slope * (kv_idx - q_idx).to(cutlass.Float32)

    @cute.jit
    def score_mod_bwd(grad, score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
        return grad

    return score_mod, score_mod_bwd


# The kernels are compiled for the text of a predicate and the numbers that it captures, which must be no functions.
def causal_or_all(causal, shift):
    def mask_mod(b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        return [kv_idx[0] <= q_idx[0] + shift] if causal else [kv_idx[0] >= 0]

    return mask_mod


def documents(causal, shift):
    def mask_mod(b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        same = aux_tensors[0][b[0], q_idx[0]] == aux_tensors[0][b[0], kv_idx[0]]
        return [same & (kv_idx[0] <= q_idx[0] + shift)] if causal else [same]

    return mask_mod


def of_tensor(causal, shift):
    def mask_mod(b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        seen = aux_tensors[0][q_idx[0], kv_idx[0]] != 0
        return [seen & (kv_idx[0] <= q_idx[0] + shift)] if causal else [seen]

    return mask_mod


def predicate(case):
    """The predicate of a mask, and the tensors that it reads."""
    at = torch.arange(case.sk, device=case.device)
    if case.mask == "documents":
        ids = (at // case.document).to(torch.int32)[None].repeat(case.b, 1).contiguous()
        return documents(case.causal, case.shift(0)), [ids]
    if case.mask == "tensor":
        seen = case.operand_mask(at[: case.sq, None], at[None]).to(torch.int32).contiguous()
        return of_tensor(case.causal, case.shift(0)), [seen]
    # The lists say which blocks are seen.
    return causal_or_all(case.causal, case.shift(0)), None


def masks(case):
    """The arguments of a mask: its predicate, and its lists of blocks in both directions."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    from torch.nn.attention.flex_attention import create_block_mask

    if case.mask is None:
        return {}
    if case.deterministic or case.left is not None or case.d not in BLOCKS:
        raise Refused("its masks have no window, no one order of sums, and head dims of 64, 96, 128 and 256")
    rows, columns, columns_back = BLOCKS[case.d]

    def lists(n):
        seen = lambda b, h, i, j: case.seen(0, i, j)
        return create_block_mask(seen, None, None, case.sq, case.sk, device=case.device, BLOCK_SIZE=(rows, n))

    mask_mod, aux = predicate(case)
    f = lists(columns)
    more = {"mask_mod": mask_mod, "aux_tensors": aux, "causal": False, "block_sparse_tensors": BlockSparseTensorsTorch(
        f.kv_num_blocks, f.kv_indices, f.full_kv_num_blocks, f.full_kv_indices, block_size=(rows, columns))}
    if case.backward:
        b = f if columns_back == columns else lists(columns_back)
        more["block_sparse_tensors_bwd"] = BlockSparseTensorsTorch(
            b.q_num_blocks, b.q_indices, b.full_q_num_blocks, b.full_q_indices, block_size=(rows, columns_back))
    return more


def flash(case):
    more = features(case) | masks(case)
    if not (case.lengths or case.packed_q or case.page):
        attend = lambda q, k, v: first(flash_attn_func(q, k, v, **more))
        return computed(case, "bshd", attend, inputs(case, map(case.batched, (case.q, case.k, case.v))))
    more["max_seqlen_q"], more["max_seqlen_k"] = case.sq, case.sk
    if case.packed_q:
        layout, q, more["cu_seqlens_q"] = "thd", case.q, case.starts(case.queries)
    else:
        layout, q = "bshd", case.batched(case.q)
        if case.padded:
            more["seqused_q"] = case.ints(case.queries)
    if case.page:
        k, v, more["page_table"] = case.pool("k"), case.pool("v"), case.table().contiguous()
    elif case.packed_k:
        k, v, more["cu_seqlens_k"] = case.k, case.v, case.starts(case.keys)
    else:
        k, v = case.batched(case.k), case.batched(case.v)
    if not case.packed_k:
        more["seqused_k"] = case.ints(case.keys)
    if case.mask:
        raise Refused("its masks are of batches without lengths")
    attend = lambda q, k, v: first(flash_attn_varlen_func(q, k, v, **more))
    return computed(case, layout, attend, inputs(case, (q, k, v)))


def first(results):
    return results[0] if isinstance(results, tuple) else results
