"""What tests of PyTorch's door share: tensors, the definition in float64, and comparisons with it."""

import math
import os
import tempfile
import unittest
import warnings

import torch

warnings.filterwarnings("ignore", message="CUDA initialization")
FOLDER = tempfile.TemporaryDirectory()
# On a GPU, what the oracle computes on the CPU: QKVAULT_TEST_DEVICE=cuda python3 -m unittest test_torch_captures
if "QKVAULT_TEST_DEVICE" in os.environ:
    torch.set_default_device(os.environ["QKVAULT_TEST_DEVICE"])


def tensor(b, h, s, d, *, heads_outside=True, grad=False, dtype=torch.float16):
    made = torch.randn((b, h, s, d) if heads_outside else (b, s, h, d), dtype=dtype)
    return (made if heads_outside else made.transpose(1, 2)).requires_grad_(grad)


def three(b=2, h=(4, 2), s=(12, 12), d=8, **options):
    return tensor(b, h[0], s[0], d, **options), tensor(b, h[1], s[1], d, **options), tensor(b, h[1], s[1], d, **options)


def exact(q, k, v, score_mod=None, mask_mod=None, scale=None, sinks=None):
    """The definition, in float64, differentiable."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(groups, 1), v.double().repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(b, h, i, j).expand(scores.shape), -math.inf)
    if sinks is not None:
        logits = sinks.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return (torch.cat([scores, logits], -1).softmax(-1)[..., :-1]) @ v
    return scores.softmax(-1) @ v


def causal(b, h, i, j):
    return j <= i


class Case(unittest.TestCase):
    def near(self, a, b, most=4e-3):
        self.assertEqual(a.shape, b.shape)
        a, b = a.detach().double(), b.detach().double()
        self.assertLess(((a - b).norm() / b.norm().clamp(min=1e-6)).item(), most)

    def agree(self, wanted, inputs, make):
        """An attention, and the gradients of all inputs, beside the definition."""
        o = make()
        self.near(o, wanted)
        d_o = torch.randn_like(o)
        for mine, right in zip(torch.autograd.grad(o, inputs, d_o), torch.autograd.grad(wanted, inputs, d_o.double())):
            self.near(mine, right)
