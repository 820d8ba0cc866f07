"""Where tensors of an expression are, and of which type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkvault_record import Captured

from .._errors import ArgumentError

#: The types that an expression has, by PyTorch's and by their names.
NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.int32: "i32"}
KINDS = {name: dtype for dtype, name in NAMES.items()}


def checked(shape: str, **given: Any) -> None:
    """Raises what is no tensor, and what has not the dims of `shape`, such as `(token, head, head dim)`."""
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{name} is of type {type(tensor).__name__}; give a tensor of {shape}")
        if tensor.dim() != shape.count(",") + 1:
            raise ArgumentError(f"{name} has dims {list(tensor.shape)}; give {shape}")


def placed(tensor: Tensor, device: torch.device, name: str) -> Tensor:
    """The tensor, if it is one, and where the others are."""
    if not isinstance(tensor, Tensor):
        kind = type(tensor).__name__
        raise ArgumentError(f"{name} is of type {kind}; give a tensor: torch.tensor({name}, device=q.device)")
    if tensor.device != device:
        raise ArgumentError(f"{name} is on {tensor.device}, and q on {device}; move it there: {name}.to(q.device)")
    return tensor


def there(tensor: Tensor, captured: Captured, device: torch.device, name: str) -> Tensor:
    """The tensor where the others are: one that a modification makes itself is made on the CPU while it is traced."""
    if type(tensor) is not Tensor and hasattr(tensor, "placements"):
        raise ArgumentError(
            f"the tensor {name} that the modification reads is a DTensor; give it whole: full_tensor(), without a gradient"
        )
    if not captured.roots:
        return tensor.to(device)
    return placed(tensor, device, f"the tensor {name} that the modification reads")


_WIDE = (torch.int64, torch.uint32, torch.uint64)


def converted(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """The tensor of a type that kernels read. Integers that do not fit are an error, on a GPU an assertion of a kernel:
    a trace was made for smaller ones, and to look at these would wait for the GPU."""
    if dtype is torch.int32 and tensor.dtype in _WIDE and tensor.device.type != "meta":
        wide = tensor if tensor.dtype is torch.int64 else tensor.to(torch.int64)
        least, most = wide.aminmax()
        torch._assert_async(
            (least >= -(2**31)) & (most < 2**31),
            f"the tensor {name} that a modification reads has integers of more than 32 bits now; give smaller ones, such "
            "as places of its numbers in torch.unique(tensor, return_inverse=True)",
        )
    return tensor.to(dtype)


def of_ranks(name: str) -> ArgumentError:
    """What is said of a captured tensor with a gradient, in a rank's part of a call."""
    return ArgumentError(
        f"q is a DTensor, and the tensor {name} that the modification reads has a gradient, of which each rank would "
        "have a part; call it inside of torch.distributed.tensor.experimental.local_map, and add the parts"
    )


def typed(lines: list, name: str, captured: Captured, half: torch.dtype) -> tuple[list, torch.dtype]:
    """The lines of an expression and the type of one of its tensors, which is that of Q if it has a gradient."""
    kind = captured.dtype
    if not captured.grad or KINDS[kind] == half:
        return lines, KINDS[kind]
    return [line.replace(f"@{name}: {kind}[", f"@{name}: {NAMES[half]}[") for line in lines], half
