"""The rule of vmap: the new axis becomes part of the batch, and the specification that of the larger batch."""

from __future__ import annotations

import re

import torch

from . import _fake


def _folded(tensor, axis, n):
    """A tensor with the axis folded into its batch; one without the axis is repeated."""
    moved = tensor.expand(n, *tensor.shape).contiguous() if axis is None else tensor.movedim(axis, 0)
    return moved.reshape(n * moved.shape[1], *moved.shape[2:])


def _extra(extra, axes, n, spec, batch):
    """The further tensors and the specification of the larger batch."""
    names, new = _fake.names_of(spec, "extra"), []
    for at, (tensor, axis) in enumerate(zip(extra, axes)):
        name = names[at]
        if axis is None and tensor.shape[0] == 1:
            new.append(tensor)
            continue
        if name in ("sink", "dropout_seed", "dropout_offset") or tensor.dim() != (4 if axis is None else 5):
            return None, spec
        moved = tensor.expand(n, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        if moved.shape[1] != batch:
            moved = moved.expand(n, batch, *moved.shape[2:])
        new.append(moved.reshape(n * batch, *moved.shape[2:]).contiguous())
        spec = re.sub(rf"(tensor @{name}: \w+\[)\d+,", rf"\g<1>{n * batch},", spec)
    return new, spec


def _reduced(spec, batch):
    """The specification with the batch index of a call where it stands for that of the larger batch."""
    lines = spec.split(_fake.BETWEEN)
    inner = "0" if batch == 1 else f"(batch % {batch})"
    return _fake.BETWEEN.join(
        re.sub(r"(?<![@$\w])batch\b", inner, line) if line.startswith(("score_mod: ", "mask_mod: ")) else line
        for line in lines
    )


def _each(info, axes, run, tensors, extra, *more):
    """A call for each sample, where one larger batch cannot be described."""
    results = []
    for at in range(info.batch_size):
        one = [t if axis is None else t.select(axis, at) for t, axis in zip(tensors, axes)]
        own = [t if axis is None else t.select(axis, at) for t, axis in zip(extra, axes[len(tensors)])]
        results.append(run(*one, own, *more))
    return results


def _apart(tensor, n):
    return tensor.reshape(n, tensor.shape[0] // n, *tensor.shape[1:])


def _inner(tensor, axis):
    return tensor.shape[0] if axis is None else tensor.movedim(axis, 0).shape[1]


def _alone(spec):
    """Whether sequences lie one after another, or in pages: there is no batch to make larger."""
    return any(_fake.names_of(spec, field) for field in ("varlen", "paged"))


def _forward(info, axes, q, k, v, extra, spec, numbers):
    n, batch = info.batch_size, _inner(q, axes[0])
    told = isinstance(numbers, torch.Tensor)  # Numbers of a compiled program.
    run = torch.ops.qkvault.forward_told if told else torch.ops.qkvault.forward_only
    new, folded = (None, spec) if _alone(spec) else _extra(extra, axes[3], n, spec, batch)
    if new is None:
        o, stats = zip(*_each(info, axes, run, (q, k, v), extra, spec, numbers))
        return (torch.stack(o), torch.stack(stats)), (0, 0)
    q, k, v = (_folded(t, axis, n) for t, axis in zip((q, k, v), axes))
    o, stats = run(q, k, v, new, _reduced(folded, batch), numbers)
    return (_apart(o, n), _apart(stats, n)), (0, 0)


def _attend(info, axes, q, k, v, extra, spec, numbers):
    (o, _), (axis, _) = _forward(info, axes, q, k, v, extra, spec, numbers)
    return o, axis


def _backward(info, axes, d_o, q, k, v, o, stats, extra, spec, numbers):
    n, batch = info.batch_size, _inner(q, axes[1])
    told = isinstance(numbers, torch.Tensor)
    run = torch.ops.qkvault.backward_told if told else torch.ops.qkvault.backward_only
    new, folded = (None, spec) if _alone(spec) else _extra(extra, axes[6], n, spec, batch)
    places = _fake.with_gradient(spec)
    if new is None or any(axes[6][at] is None and extra[at].shape[0] == 1 for at in places):
        each = _each(info, axes, run, (d_o, q, k, v, o, stats), extra, spec, numbers)
        d_q, d_k, d_v, more = zip(*each)
        more = [torch.stack(of) for of in zip(*more)]
        return (torch.stack(d_q), torch.stack(d_k), torch.stack(d_v), more), (0, 0, 0, [0] * len(more))
    given = [_folded(t, axis, n) for t, axis in zip((d_o, q, k, v, o, stats), axes)]
    given[4] = _fake.like_result(given[4], given[1])
    d_q, d_k, d_v, more = run(*given, new, _reduced(folded, batch), numbers)
    each = []
    for gradient, at in zip(more, places):
        apart, own = _apart(gradient, n), _inner(extra[at], axes[6][at])
        each.append(apart.sum(1, keepdim=True) if own == 1 and batch != 1 else apart)
    return (_apart(d_q, n), _apart(d_k, n), _apart(d_v, n), each), (0, 0, 0, [0] * len(more))


torch.library.register_vmap("qkvault::attend", _attend)
torch.library.register_vmap("qkvault::forward", _forward)
torch.library.register_vmap("qkvault::forward_only", _forward)
torch.library.register_vmap("qkvault::forward_told", _forward)
torch.library.register_vmap("qkvault::backward", _backward)
torch.library.register_vmap("qkvault::backward_only", _backward)
torch.library.register_vmap("qkvault::backward_told", _backward)
