"""The answer in float32 for a part of a case: some rows of the last sequence, and for backwards some of its keys."""
import torch

from cases import MOST, Refused

# How far off a result may be, as a share of the right one.
OFF = 0.02


def attend(case, b, heads, i, q, k, v):
    """Rows `i` of a sequence for query heads of one head of keys: (heads, rows, head dim)."""
    j = torch.arange(k.shape[0], device=k.device)
    scores = torch.einsum("rhd,kd->hrk", q, k) * case.scale
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    if case.alibi:
        distance = j[None] - (i[:, None] + case.shift(b))
        scores = scores + case.slopes()[heads][:, None, None] * distance
    scores = scores.masked_fill(~case.seen(b, i[:, None], j[None]), float("-inf"))
    if case.sink:
        sinks = case.sinks[heads].detach()[:, None, None].expand(-1, len(i), 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v
    return scores.softmax(-1) @ v


def off(found, right, each_row=False):
    """How far off, as a share of the length of the right vectors."""
    found, right = found.detach().float(), right.detach().float()
    if not each_row:
        found, right = found.flatten(), right.flatten()
    share = (found - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-6)
    return share.max().item()


def differences(case, results):
    """How far off results are: O, or dQ, dK and dV, all as (rows, heads, head dim)."""
    b = max(range(case.b), key=lambda b: (case.queries[b], b))
    first_q, first_k = sum(case.queries[:b]), sum(case.keys[:b])
    rows, keys = case.queries[b], case.keys[b]
    group = torch.arange(case.h - case.group, case.h, device=case.device)
    heads = group[-2:]
    take = lambda t, at: t.detach()[first_q + at][:, heads]
    k, v = (t.detach()[first_k : first_k + keys, -1].float() for t in (case.k, case.v))
    count = max(1, min(rows, 128, MOST // (len(heads) * keys)))
    i = torch.linspace(0, rows - 1, count, device=case.device).long().unique()
    q = take(case.q, i).float().requires_grad_(case.backward)
    with torch.enable_grad():
        o = attend(case, b, heads, i, q, k, v).transpose(0, 1)
        if not case.backward:
            return {"O": off(take(results[0], i), o, each_row=True)}
        (d_q,) = torch.autograd.grad(o, [q], take(case.d_o, i).float())
    told = {"dQ": off(take(results[0], i), d_q)}
    last = torch.arange(max(0, keys - 64), keys, device=case.device)
    everything = torch.arange(rows, device=case.device)
    i = everything[case.seen(b, everything[:, None], last[None]).any(1)]
    if len(i) * keys > MOST * 2:
        # All queries of a long sequence: dQ has to do.
        return told
    k, v = k.requires_grad_(), v.requires_grad_()
    d_k, d_v = 0, 0
    for head in group:
        take = lambda t: t.detach()[first_q + i][:, head, None].float()
        with torch.enable_grad():
            o = attend(case, b, head[None], i, take(case.q), k, v).transpose(0, 1)
            more = torch.autograd.grad(o, [k, v], take(case.d_o))
        d_k, d_v = d_k + more[0], d_v + more[1]
    at = first_k + last
    told["dK"] = off(results[1].detach()[at, -1], d_k[last])
    told["dV"] = off(results[2].detach()[at, -1], d_v[last])
    return told


def check(case, results):
    """Refuses results that are far off."""
    for name, share in differences(case, results).items():
        if not share < OFF:
            raise Refused(f"{name} is off by {share:.3f} of what float32 gives")
