"""The log-sum-exp of `qkvault.torch` and its gradient, beside the definition in float64.

    cargo xtask torch-tests
"""

import math
import os
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

from torch.utils.checkpoint import checkpoint
from torch_common import FOLDER, Case, causal, three

import qkvault.torch as qt

qt.configure(FOLDER.name, cpu=True)


def both(q, k, v, score_mod=None, mask_mod=None, bias=None, sinks=None, scale=None):
    """O and the log-sum-exp by definition, in float64."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(groups, 1), v.double().repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    scores = scores if score_mod is None else score_mod(scores, b, h, i, j)
    scores = scores if bias is None else scores + bias.double()
    scores = scores if mask_mod is None else scores.masked_fill(~mask_mod(b, h, i, j), -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., : v.shape[2]] @ v, scores.logsumexp(-1)


#: Losses of O and of the log-sum-exp, with weights of very different sizes.
LOSSES = {
    "lse": lambda o, lse, w: (lse * w).sum(),
    "both": lambda o, lse, w: (o.double() ** 2).sum() + (lse * w).sum(),
    "small": lambda o, lse, w: (lse * w * 2.0**-9).sum(),
    "z": lambda o, lse, w: (lse**2).sum() + o.double().sum(),
}


class LogSumExp(Case):
    def differentiated(self, inputs, made, wanted, most=4e-3):
        weights = torch.randn(wanted()[1].shape)
        for name, loss in LOSSES.items():
            with self.subTest(name):
                o, lse = made()
                self.near(lse, wanted()[1])
                found = torch.autograd.grad(loss(o, lse, weights), inputs, allow_unused=True)
                right = torch.autograd.grad(loss(*wanted(), weights), inputs, allow_unused=True)
                for mine, one in zip(found, right):
                    self.assertEqual(mine is None, one is None)
                    if one is not None:
                        self.near(mine, one, most)

    def test_its_gradient_is_that_of_the_definition(self):
        q, k, v = three(h=(4, 2), grad=True)
        table = torch.randn(12, dtype=torch.float16, requires_grad=True)
        factor = torch.randn(4, requires_grad=True)
        bias = torch.randn(1, 4, 12, 12, dtype=torch.float16, requires_grad=True)
        sinks = torch.randn(4, requires_grad=True)
        cap = lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0)  # noqa: E731
        learned = lambda s, b, h, i, j: s * factor[h] + table[j]  # noqa: E731
        cases = {
            "plain": ({}, {}, []),
            "causal": ({"is_causal": True}, {"mask_mod": causal}, []),
            "softcap": ({"softcap": 2.0, "is_causal": True}, {"score_mod": cap, "mask_mod": causal}, []),
            "score_mod": ({"score_mod": learned}, {"score_mod": learned}, [table, factor]),
            "mask_mod": ({"score_mod": cap, "mask_mod": causal}, {"score_mod": cap, "mask_mod": causal}, []),
            "bias": ({"bias": bias}, {"bias": bias}, [bias]),
            "sinks": ({"sinks": sinks}, {"sinks": sinks}, [sinks]),
            "scale": ({"scale": 0.9}, {"scale": 0.9}, []),
        }  # fmt: skip
        for name, (given, means, more) in cases.items():
            with self.subTest(name):
                self.differentiated(
                    [q, k, v, *more], lambda: qt.attention(q, k, v, return_lse=True, **given),
                    lambda: both(q, k, v, **means), 8e-3 if name == "score_mod" else 4e-3,
                )  # fmt: skip

    def test_packed_projections_and_heads_inside(self):
        packed = torch.randn(2, 12, 3, 4, 8, dtype=torch.bfloat16, requires_grad=True)
        parts = lambda: (t.transpose(1, 2) for t in packed.unbind(2))  # noqa: E731
        self.differentiated(
            [packed], lambda: qt.attention(*parts(), return_lse=True), lambda: both(*parts()), 2e-2
        )  # fmt: skip

    def test_samples_along_any_axis(self):
        def loss(q, k, v):
            o, lse = qt.attention(q, k, v, return_lse=True)
            return (o.float() ** 2).sum() + (lse**2).sum()

        for axis in (0, 1, 2, 4):
            q, k, v = (torch.randn(2, 2, 5, 8, 3, dtype=torch.float16).movedim(-1, axis) for _ in range(3))
            grads = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)), axis)(q, k, v)
            for at in range(3):
                one = [t.select(axis, at).clone().requires_grad_() for t in (q, k, v)]
                o, lse = both(*one)
                for mine, right in zip(grads, torch.autograd.grad((o**2).sum() + (lse**2).sum(), one)):
                    self.near(mine[at], right)

    def test_rows_that_see_nothing_have_none(self):
        q, k, v = three(b=3, h=(2, 2), grad=True)
        of_q, of_k = torch.tensor([12, 5, 7]), torch.tensor([12, 9, 0])
        sinks = torch.tensor([0.5, -1.0], requires_grad=True)
        for given in (None, sinks):
            _, lse = qt.attention(q, k, v, q_lengths=of_q, kv_lengths=of_k, sinks=given, return_lse=True)
            found = torch.autograd.grad(lse[lse.isfinite()].sum(), (q, k))
            total = 0.0
            for at, (rows, keys) in enumerate(zip(of_q.tolist(), of_k.tolist())):
                if keys:
                    right = both(q[at : at + 1, :, :rows], k[at : at + 1, :, :keys], v[at : at + 1, :, :keys], sinks=given)[1]
                    self.near(lse[at : at + 1, :, :rows], right)
                    total = total + right.sum()
            for mine, right in zip(found, torch.autograd.grad(total, (q, k))):
                self.near(mine, right)
            alone = torch.full((2, 12), -math.inf) if given is None else sinks.detach()[:, None].expand(2, 12)
            self.assertTrue(torch.equal(lse[2].detach(), alone))

    def test_sequences_behind_each_other(self):
        ends = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
        packed = torch.randn(16, 3, 2, 8, dtype=torch.float16, requires_grad=True)
        q, k, v = packed.unbind(1)
        o, lse = qt.varlen_attention(q, k, v, ends, ends, 8, 8, is_causal=True, return_lse=True)
        total = 0.0
        for a, b in zip(ends[:-1], ends[1:]):
            right = both(*(t[a:b].transpose(0, 1)[None] for t in (q, k, v)), mask_mod=causal)
            self.near(lse[a:b].T[None], right[1])
            total = total + (right[0] ** 2).sum() + right[1].sum()
        self.assertTrue((lse[14:] == -math.inf).all())
        (found,) = torch.autograd.grad((o.double() ** 2).sum() + lse[:14].sum(), packed)
        self.near(found, torch.autograd.grad(total, packed)[0])

    def test_compiled_checkpointed_and_transformed(self):
        q, k, v = three(h=(4, 2), grad=True)
        scale = torch.tensor(1.5, requires_grad=True)

        def loss(q, k, v, scale=None):
            mod = None if scale is None else lambda s, b, h, i, j: s * scale
            o, lse = qt.attention(q, k, v, score_mod=mod, is_causal=True, return_lse=True)
            return (o.float() ** 2).sum() + (lse * lse).sum()

        def right(q, k, v, scale=None):
            mod = None if scale is None else lambda s, b, h, i, j: s * scale
            o, lse = both(q, k, v, mod, causal)
            return (o**2).sum() + (lse**2).sum()

        wanted = torch.autograd.grad(right(q, k, v), (q, k, v))
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        ways = {
            "compile": lambda: torch.autograd.grad(compiled(q, k, v), (q, k, v)),
            "checkpoint": lambda: torch.autograd.grad(checkpoint(loss, q, k, v, use_reentrant=False), (q, k, v)),
            "func": lambda: torch.func.grad(loss, (0, 1, 2))(*(t.detach() for t in (q, k, v))),
        }
        for name, way in ways.items():
            with self.subTest(name):
                for mine, one in zip(way(), wanted):
                    self.near(mine, one)
        with self.subTest("compile with a captured factor"):
            found = torch.autograd.grad(compiled(q, k, v, scale), (q, k, v, scale))
            for mine, one in zip(found, torch.autograd.grad(right(q, k, v, scale), (q, k, v, scale))):
                self.near(mine, one, 1e-2)
        with self.subTest("per sample"):
            samples = [torch.randn(3, 1, n, 12, 8, dtype=torch.float16) for n in (4, 2, 2)]
            found = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))(*samples)
            for at in range(3):
                one = [t[at].clone().requires_grad_() for t in samples]
                for mine, exact in zip(found, torch.autograd.grad(right(*one), one)):
                    self.near(mine[at], exact)
        for outside in (True, False):
            with self.subTest("jacrev", outside=outside):
                given = list(three(b=1, h=(2, 2), s=(4, 4), heads_outside=outside))
                log = lambda f: lambda q: f(q, *given[1:])  # noqa: B023, E731
                mine = torch.func.jacrev(log(lambda *t: qt.attention(*t, return_lse=True)[1]))(given[0])
                self.near(mine, torch.func.jacrev(log(lambda *t: both(*t)[1]))(given[0]))


if __name__ == "__main__":
    unittest.main()
