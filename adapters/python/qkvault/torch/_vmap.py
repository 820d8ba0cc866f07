"""The rule of vmap: the new axis becomes part of the batch, and the specification that of the larger batch."""

from __future__ import annotations

import re

import torch

from . import _fake


def _folded(tensor, axis, n):
    """A tensor with the axis folded into its batch; one without the axis is repeated."""
    moved = tensor.expand(n, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return moved.reshape(n * moved.shape[1], *moved.shape[2:])


def _extra(extra, axes, n, spec, batch):
    """The further tensors and the specification of the larger batch."""
    names, new = _fake.names_of(spec, "extra"), []
    for at, (tensor, axis) in enumerate(zip(extra, axes)):
        name = names[at]
        if axis is None and tensor.shape[0] == 1:
            new.append(tensor)
            continue
        if name == "sink" or tensor.dim() != 4:
            raise NotImplementedError(f"qkvault: vmap over {name}, which has no batch; give it once for all")
        moved = tensor.expand(n, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        if moved.shape[1] != batch:
            moved = moved.expand(n, batch, *moved.shape[2:])
        new.append(moved.reshape(n * batch, *moved.shape[2:]).contiguous())
        spec = re.sub(rf"(tensor @{name}: \w+\[)\d+,", rf"\g<1>{n * batch},", spec)
    return new, spec


def _apart(tensor, n):
    return tensor.reshape(n, tensor.shape[0] // n, *tensor.shape[1:])


def _inner(tensor, axis):
    return tensor.shape[0] if axis is None else tensor.movedim(axis, 0).shape[1]


def _refuse(spec):
    for field in ("varlen", "paged"):
        if _fake.names_of(spec, field):
            raise NotImplementedError(f"qkvault: vmap of {field} sequences; put the sequences into one batch")


def _forward(info, axes, q, k, v, extra, spec, numbers):
    _refuse(spec)
    n, batch = info.batch_size, _inner(q, axes[0])
    new, spec = _extra(extra, axes[3], n, spec, batch)
    q, k, v = (_folded(t, axis, n) for t, axis in zip((q, k, v), axes))
    told = isinstance(numbers, torch.Tensor)  # Numbers of a compiled program.
    run = torch.ops.qkvault.forward_told if told else torch.ops.qkvault.forward_only
    o, stats = run(q, k, v, new, spec, numbers)
    return (_apart(o, n), _apart(stats, n)), (0, 0)


def _attend(info, axes, q, k, v, extra, spec, numbers):
    (o, _), (axis, _) = _forward(info, axes, q, k, v, extra, spec, numbers)
    return o, axis


def _backward(info, axes, d_o, q, k, v, o, stats, extra, spec, numbers):
    _refuse(spec)
    n, batch = info.batch_size, _inner(q, axes[1])
    given = [_folded(t, axis, n) for t, axis in zip((d_o, q, k, v, o, stats), axes)]
    places = _fake.with_gradient(spec)
    if any(axes[6][at] is None and extra[at].shape[0] == 1 for at in places):
        raise NotImplementedError(
            "qkvault: the gradient per sample of a tensor that all samples share; give it an axis with expand()"
        )
    new, spec = _extra(extra, axes[6], n, spec, batch)
    told = isinstance(numbers, torch.Tensor)
    run = torch.ops.qkvault.backward_told if told else torch.ops.qkvault.backward_only
    d_q, d_k, d_v, more = run(*given, new, spec, numbers)
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
