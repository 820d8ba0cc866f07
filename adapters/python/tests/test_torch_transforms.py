"""Checkpointing by operators, and the transforms of torch.func, through `qkvault.torch`.

    cargo xtask torch-tests
"""

import functools
import os
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch_common import FOLDER, Case, causal, exact, three

import qkvault.torch as qt

qt.configure(FOLDER.name, cpu=True)


class Selective(Case):
    def test_attention_is_saved_or_computed_again(self):
        q, k, v = three(h=(4, 2), grad=True)
        table = torch.randn(4, 12, requires_grad=True)
        weight = torch.randn(8, 8, dtype=torch.float16, requires_grad=True)
        inputs = [q, k, v, table, weight]
        calls = []

        def layer(q, k, v, table, weight):
            o = qt.attention(q @ weight, k, v, score_mod=lambda s, b, h, i, j: s + table[h, j], is_causal=True)
            return o.sin()

        def saved(context, operator, *args, **kwargs):
            ours = "qkvault" in str(operator)
            calls.append((context.is_recompute, ours))
            return CheckpointPolicy.MUST_SAVE if ours else CheckpointPolicy.PREFER_RECOMPUTE

        policies = {
            "saved": saved, "again": lambda *_, **__: CheckpointPolicy.MUST_RECOMPUTE,
            "products": [torch.ops.aten.mm.default, torch.ops.aten.bmm.default],
            "listed": [torch.ops.qkvault.forward_only.default],
        }  # fmt: skip
        right = torch.autograd.grad(layer(*inputs).float().square().sum(), inputs)
        for name, policy in policies.items():
            for turn in range(2):  # The second call meets what the first backward made.
                with self.subTest(name, turn=turn):
                    context = functools.partial(create_selective_checkpoint_contexts, policy)
                    o = checkpoint(layer, *inputs, use_reentrant=False, context_fn=context)
                    found = torch.autograd.grad(o.float().square().sum(), inputs)
                    for mine, one in zip(found, right):
                        self.assertTrue(torch.equal(mine, one))
        self.assertIn((False, True), calls)

    def test_compiled(self):
        q, k, v = three(h=(4, 2), grad=True)
        context = functools.partial(
            create_selective_checkpoint_contexts, [torch.ops.qkvault.forward.default, torch.ops.aten.mm.default]
        )
        layer = lambda q, k, v: qt.attention(q, k, v, is_causal=True).sin()  # noqa: E731
        run = lambda *t: checkpoint(layer, *t, use_reentrant=False, context_fn=context)  # noqa: E731
        o = torch.compile(run, backend="aot_eager", fullgraph=True)(q, k, v)
        found = torch.autograd.grad(o.float().square().sum(), (q, k, v))
        for mine, one in zip(found, torch.autograd.grad(layer(q, k, v).float().square().sum(), (q, k, v))):
            self.assertTrue(torch.equal(mine, one))


class Transforms(Case):
    def setUp(self):
        self.q, self.k, self.v = three(h=(4, 2))
        self.table = torch.randn(4, 12)

    def test_captures_that_are_differentiated(self):
        k, v = self.k, self.v

        def loss(table, factor, q, k, v):
            mod = lambda s, b, h, i, j: s * factor + table[h, j]  # noqa: E731
            return (qt.attention(q[None], k[None], v[None], score_mod=mod, mask_mod=causal).float() ** 2).sum()

        factor = torch.tensor(1.5)
        found = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)), (None, None, 0, 0, 0))(
            self.table, factor, self.q, k, v
        )
        tables = torch.stack([self.table, 2 * self.table])
        each = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)), (0, None, 0, 0, 0))(tables, factor, self.q, k, v)
        for at, own, results in ((0, self.table, found), (1, self.table, found), (0, self.table, each), (1, tables[1], each)):
            table, number = own.clone().requires_grad_(), factor.clone().requires_grad_()
            one = self.q[at : at + 1].clone().requires_grad_()
            mod = lambda s, b, h, i, j: s * number + table[h, j]  # noqa: B023, E731
            right = torch.autograd.grad((exact(one, k[at : at + 1], v[at : at + 1], mod, causal) ** 2).sum(), (table, number, one))
            for mine, wanted in zip(results, right):
                self.near(mine[at], wanted.reshape(mine[at].shape), 6e-3)

    def test_vjp_and_jacrev_read_tables_anew(self):
        for table in (self.table, self.table + 1.0, self.table * 2.0):
            run = lambda q, t: qt.attention(q, self.k, self.v, score_mod=lambda s, b, h, i, j: s + t[h, j])  # noqa: E731
            o, pull = torch.func.vjp(run, self.q, table)
            q, t = self.q.clone().requires_grad_(), table.clone().requires_grad_()
            wanted = exact(q, self.k, self.v, lambda s, b, h, i, j: s + t[h, j])  # noqa: B023
            self.near(o, wanted)
            for mine, right in zip(pull(o), torch.autograd.grad(wanted, (q, t), o.double())):
                self.near(mine, right)
        small = [t[:1, :1, :3] for t in (self.q, self.k, self.v)]
        row = torch.randn(3)
        of = lambda f: torch.func.jacrev(lambda t: f(*small, lambda s, b, h, i, j: s + t[j]))(row)  # noqa: E731
        self.near(of(lambda q, k, v, mod: qt.attention(q, k, v, score_mod=mod)), of(exact), 6e-3)

    def test_what_cannot_be_followed_is_told(self):
        count = 0

        def loss(table):
            def mod(s, b, h, i, j):
                nonlocal count
                count += 1
                return s + table[h, j]

            return qt.attention(self.q, self.k, self.v, score_mod=mod).float().sum()

        with self.assertRaisesRegex(qt.Untraceable, "an assignment to the outer variable count.*torch.func"):
            torch.func.grad(loss)(self.table)

    def test_second_and_forward_derivatives_are_refused(self):
        q, k, v, ends = self.q, self.k, self.v, torch.tensor([0, 5, 12])

        def twice(run):
            a = q.clone().requires_grad_()
            (g,) = torch.autograd.grad(run(a).float().square().sum(), a, create_graph=True)
            (g * g).sum().backward()

        mod = lambda s, b, h, i, j: s * 2.0  # noqa: E731
        runs = {
            "plain": lambda a: qt.attention(a, k, v), "again": lambda a: qt.attention(a, k, v),
            "score_mod": lambda a: qt.attention(a, k, v, score_mod=mod),
            "lse": lambda a: qt.attention(a, k, v, return_lse=True)[1],
            "varlen": lambda a: qt.varlen_attention(*(t[0].transpose(0, 1) for t in (a, k, v)), ends, ends, 7, 7),
        }  # fmt: skip
        for name, run in runs.items():
            with self.subTest(name), self.assertRaisesRegex(NotImplementedError, "no second derivative"):
                twice(run)
        forward = {
            "jvp": lambda: torch.func.jvp(runs["plain"], (q,), (q,)), "jacfwd": lambda: torch.func.jacfwd(runs["plain"])(q),
            "hessian": lambda: torch.func.hessian(lambda a: runs["score_mod"](a).sum())(q),
        }  # fmt: skip
        for name, call in forward.items():
            with self.subTest(name), self.assertRaisesRegex(NotImplementedError, "no derivative forward.*vjp or jacrev"):
                call()
        import torch.autograd.forward_ad as forward_ad

        for grad in (False, True):
            with self.subTest("dual", grad=grad), forward_ad.dual_level(), self.assertRaises(NotImplementedError):
                qt.attention(forward_ad.make_dual(q.clone().requires_grad_(grad), q), k, v)


if __name__ == "__main__":
    unittest.main()
