"""Tensors that are distributed over a mesh of devices (DTensor): batch and heads may be sharded, each part computes."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .._errors import ArgumentError

#: Where the batch and the heads are among the axes of a tensor that has less than four, from behind.
_PLACES = {
    "bias": (-4, -3), "attn_mask": (-4, -3), "alibi_slopes": (-2, -1), "sinks": (None, -1), "q_lengths": (-1, None),
    "kv_lengths": (-1, None),
}  # fmt: skip


def check(q: Any, extra: list) -> None:
    """Raises for distributed tensors with further ones, for which there is no rule."""
    if extra and hasattr(q, "placements"):
        raise ArgumentError(
            "q is a DTensor, and this attention has further tensors whose parts are not known; call it inside of "
            "torch.distributed.tensor.experimental.local_map"
        )


def attention(call: Callable, q: Any, k: Any, v: Any, both: bool, options: dict[str, Any]) -> Any:
    """Attention with options that have tensors or functions, of DTensors: each rank computes its part of the batch and
    of the heads, whose indices are those of the whole."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh, whole = q.device_mesh, tuple(q.shape)
    for name, tensor in (("k", k), ("v", v)):
        if not hasattr(tensor, "placements") or tensor.device_mesh != mesh:
            raise ArgumentError(f"q is a DTensor, and {name} is none of its mesh; give distribute_tensor({name}, mesh, ...)")
    if options["dropout_p"]:
        raise ArgumentError(
            "q is a DTensor, and ranks would draw dropout's mask each for itself; call it inside of "
            "torch.distributed.tensor.experimental.local_map"
        )
    places = _placements(q, k)
    starts, counts = zip(*(_part(axis, whole[axis], mesh, places) for axis in (0, 1)))
    of_parts = [Partial() if place.is_shard() else Replicate() for place in places]

    def own(name: str, tensor: Any) -> Tensor:
        if hasattr(tensor, "placements"):
            tensor = tensor.redistribute(mesh, [Replicate()] * mesh.ndim).to_local(grad_placements=of_parts)
        elif tensor.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(
                f"{name} has a gradient and is no DTensor, as q is, so each rank would have the gradient of its part; "
                f"give distribute_tensor({name}, mesh, [Replicate()])"
            )
        axes = (0, 1) if tensor.dim() == 4 else _PLACES[name]
        for at, start, count, extent in zip(axes, starts, counts, whole):
            if at is not None and -at <= tensor.dim() and tensor.shape[at] == extent and count != extent:
                tensor = tensor.narrow(at, start, count)
        return tensor

    for name in _PLACES:
        if options[name] is not None:
            options[name] = own(name, options[name])
    moved = [
        None if count == extent else torch.arange(start, start + count, device=q.to_local().device)
        for start, count, extent in zip(starts, counts, whole)
    ]
    for name, at in (("score_mod", 1), ("mask_mod", 0)):
        options[name] = _counted(options[name], at, *moved)
    parts = (tensor.redistribute(mesh, places).to_local() for tensor in (q, k, v))
    found = call(*parts, both, **options)
    if not both:
        return DTensor.from_local(found, mesh, places, run_check=False)
    return tuple(DTensor.from_local(one, mesh, places, run_check=False) for one in found)


def _placements(q: Any, k: Any) -> list:
    """Where q, k and v lie: batch and heads in equal parts, all else whole."""
    from torch.distributed.tensor import Replicate

    left, found = [q.shape[0], k.shape[1]], []
    for at, place in enumerate(q.placements):
        n = q.device_mesh.size(at)
        axis = next((axis for axis in (0, 1) if place.is_shard(axis) and left[axis] % n == 0), None)
        if axis is not None:
            left[axis] //= n
        found.append(Replicate() if axis is None else place)
    return found


def _part(axis: int, extent: int, mesh: Any, places: list) -> tuple[int, int]:
    """Where this rank's part of an axis begins, and how much it is."""
    start = 0
    for at, place in enumerate(places):
        if place.is_shard(axis):
            extent //= mesh.size(at)
            start += mesh.get_coordinate()[at] * extent
    return start, extent


def _counted(function: Optional[Callable], at: int, batch: Optional[Tensor], heads: Optional[Tensor]) -> Any:
    """A function that is told indices of the whole: read in tensors, so that ranks share a plan."""
    if function is None or batch is heads is None:
        return function

    def mod(*given: Tensor) -> Any:
        b, h = given[at : at + 2]
        b, h = b if batch is None else batch[b], h if heads is None else heads[h]
        return function(*given[:at], b, h, *given[at + 2 :])

    return mod


def _axes(q: Any, k: Any) -> list[int]:
    """The axes that may be sharded: heads only if they go into equal parts."""
    return [0, 1] if k.shape[1] % max(q.mesh.shape) == 0 else [0]


def _register() -> None:
    try:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:  # A PyTorch without distributed tensors.
        return
    operators = torch.ops.qkvault

    def rules(axes: list[int], outputs: int, inputs: int) -> list:
        each = [Replicate(), *(Shard(axis) for axis in axes)]
        return [([place] * outputs, [place] * inputs + [None] * 3) for place in each]

    @register_sharding(operators.attend.default)
    def attend(q, k, v, extra, spec, numbers):
        return rules(_axes(q, k), 1, 3)

    @register_sharding([operators.forward.default, operators.forward_only.default])
    def forward(q, k, v, extra, spec, numbers):
        return rules(_axes(q, k), 2, 3)

    @register_sharding(operators.backward_plain.default)
    def backward_plain(d_o, q, k, v, o, stats, extra, spec, numbers):
        return rules(_axes(q, k), 3, 6)


_register()
