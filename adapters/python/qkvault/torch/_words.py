"""What PyTorch's door says in errors, whose sentences are in `_sentences.py`."""

from __future__ import annotations

import torch

from .._words import Door

DOOR = Door(
    "qkvault.torch",
    {
        "cast": "{q}.to(torch.bfloat16)",
        "clamp": "x.clamp(0, 4194303)",
        "configure": "qkvault.torch.configure",
        "constant": "give it as .detach()",
        "copy": "{who}.contiguous()",
        "detached": "tensor.detach()",
        "elsewhere": "torch.nn.functional.scaled_dot_product_attention or flex_attention",
        "forward": "call it under torch.no_grad()",
        "gather": "{k}[{pages}].flatten(1, 2), and {v} likewise",
        "newer": "a newer cuDNN (pip install -U nvidia-cudnn-cu13)",
        "no_sink": "give {sinks}.detach()",
        "pad": "torch.nn.functional.pad",
        "repeat": "torch.repeat_interleave",
        "tensor": "a tensor",
        "whole": ".contiguous()",
    },
    torch.compiler.is_compiling,
)
