"""Where tensors are."""

from __future__ import annotations

import torch
from torch import Tensor

from .._errors import ArgumentError


def placed(tensor: Tensor, device: torch.device, name: str) -> Tensor:
    """The tensor, if it is where the others are."""
    if tensor.device != device:
        raise ArgumentError(f"{name} is on {tensor.device}, and q on {device}; move it there: {name}.to(q.device)")
    return tensor
