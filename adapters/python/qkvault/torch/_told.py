"""Numbers of a launch that a compiled program is given: a tensor on the host, so that other numbers are no new program.

`torch.compile` makes a float that changes an operand of the program only where tensors are computed with it; as an
argument of an operator it is a constant, and each value would compile anew. What never changes stays an argument: CUDA
graphs of Inductor take no tensors of the host.
"""

from __future__ import annotations

import re
from typing import Any, Union

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from .._errors import ArgumentError
from . import _fake


def single(name: str, given: Any) -> Any:
    """The value of a number that may be given as a tensor of one element on the host; in a compiled program that
    tensor, which is an operand of the program."""
    if not isinstance(given, Tensor):
        return given
    if given.numel() != 1 or given.dtype is torch.bool:
        raise ArgumentError(f"{name} has dims {list(given.shape)} and {given.dtype}; give one number")
    if given.device.type not in ("cpu", "meta"):
        raise ArgumentError(
            f"{name} is on {given.device}, and a launch takes it from the host; give a number or a tensor on the CPU "
            f"({name}.item() waits for the GPU)"
        )
    if given.requires_grad:
        raise ArgumentError(f"{name} asks for a gradient, and a number of a launch has none; detach() it")
    if torch.compiler.is_compiling():
        return given.reshape(())
    return 1 if given.device.type == "meta" else given.item()


def constant(number: Any) -> bool:
    """Whether a compiled program has this value for good."""
    return not isinstance(number, Tensor) and has_static_value(number)


def told(numbers: list[Any], spec: str) -> Union[list[Any], Tensor]:
    """Numbers as they are if all of a call are constants of the program, else a tensor of them."""
    if all(constant(number) for number in numbers) and SIZED not in spec:
        return numbers
    zero = torch.zeros((), dtype=torch.float64, device="cpu")
    return torch.stack([zero + number for number in numbers])


#: The dims of a tensor that are no constants of the program; it has them when it is launched.
SIZED = "[?]"


def _sized(spec: str, extra: list[Tensor]) -> str:
    """A specification with the dims of its tensors."""
    if SIZED not in spec:
        return spec
    dims = {name: [int(n) for n in tensor.shape] for name, tensor in zip(_fake.names_of(spec, "extra"), extra)}
    return re.sub(r"tensor @(\w+): (\w+)\[\?\]", lambda found: f"tensor @{found[1]}: {found[2]}{dims[found[1]]}", spec)


@torch.library.custom_op("qkvault::forward_told", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, extra: list[Tensor], spec: str, numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """O and Stats."""
    o, stats = torch.ops.qkvault.forward_only(q, k, v, extra, _sized(spec, extra), numbers.tolist())
    return o, stats


@torch.library.custom_op("qkvault::backward_told", mutates_args=())
def backward(
    d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, stats: Tensor, extra: list[Tensor], spec: str,
    numbers: Tensor,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """The gradients of Q, K, V and of further tensors."""
    spec = _sized(spec, extra)
    d_q, d_k, d_v, more = torch.ops.qkvault.backward_only(d_o, q, k, v, o, stats, extra, spec, numbers.tolist())
    return d_q, d_k, d_v, list(more)


forward.register_fake(_fake.forward)
backward.register_fake(_fake.backward)
