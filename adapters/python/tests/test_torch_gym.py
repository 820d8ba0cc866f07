"""Every modification of `modifications.py`, the kinds of attention-gym and more, through `qkvault.torch.attention`.

    cargo xtask torch-tests

Values and gradients are compared with the function itself, mapped over all scores as FlexAttention's eager mode does.
"""

import os
import unittest

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import modifications
import qkvault
import qkvault.torch as qt
from torch_common import FOLDER, Case

WIDTH = 16
#: PyTorch has no derivative of floor_divide; qkvault's is zero but for jumps. PyTorch's is NaN where the branch of a
#: `where` that is not taken has none.
WITHOUT_DERIVATIVE = ("division_of_floats_rounded", "extremes_of_what_is_not_a_number")


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


def mapped(function, leading):
    """A function of one score, or of one place, over (batch, head, query, key)."""
    for axis in (3, 2, 1, 0):
        dims = [None] * 4
        dims[axis] = 0
        function = torch.vmap(function, in_dims=(0,) * leading + tuple(dims))
    return function


def definition(q, k, v, score_mod, mask_mod):
    """O and which rows see a key, in float64."""
    scores = q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5
    places = [torch.arange(n) for n in scores.shape]
    with TransformGetItemToIndex():
        if score_mod is not None:
            try:
                scores = mapped(score_mod, 1)(scores, *places).double()
            except RuntimeError:  # Not every function can be mapped, nor by every PyTorch; these take whole tensors.
                scores = score_mod(scores, *torch.meshgrid(*places, indexing="ij")).double()
        if mask_mod is not None:
            scores = scores.masked_fill(~mapped(mask_mod, 0)(*places), -torch.inf)
    live = (scores != -torch.inf).any(-1, keepdim=True)
    return torch.where(live, scores, 0).softmax(-1) @ v.double(), live


class Gym(Case):
    def test_every_expressible_modification_has_the_values_and_gradients_of_the_function(self):
        self.assertGreater(len(modifications.EXPRESSIBLE), 60)
        backwards = 0
        for name, (make, sizes) in modifications.EXPRESSIBLE.items():
            with self.subTest(name):
                torch.manual_seed(8)
                b, h, rows, keys = sizes
                score_mod, mask_mod = make()
                shapes = ((b, h, rows, WIDTH), (b, h, keys, WIDTH), (b, h, keys, WIDTH))
                q, k, v = (torch.randn(shape, dtype=torch.float16).requires_grad_() for shape in shapes)
                wanted, live = definition(q, k, v, score_mod, mask_mod)
                o = qt.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod)
                self.near(torch.where(live, o, 0), torch.where(live, wanted, 0))
                d_o = torch.where(live, torch.randn_like(o), 0)
                try:
                    mine = torch.autograd.grad(o, (q, k, v), d_o)
                except qkvault.Refused as why:
                    self.assertTrue(why.reasons)
                    continue
                if name in WITHOUT_DERIVATIVE:
                    continue
                right = torch.autograd.grad(wanted, (q, k, v), d_o.double())
                backwards += 1
                for a, exact in zip(mine, right):
                    self.near(a, exact, 1e-2)
        self.assertGreater(backwards, 55)

    def test_what_has_no_expression_is_refused_with_the_reason(self):
        q = torch.randn(modifications.SIZES[:3] + (WIDTH,), dtype=torch.float16)
        for name, (function, reason) in modifications.REFUSED.items():
            with self.subTest(name), self.assertRaises(qt.Untraceable) as caught:
                qt.attention(q, q, q, score_mod=function)
            self.assertIn(reason, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
