"""Lengths and pages through `qkvault.torch`, beside the definition, with the oracle instead of a GPU.

    cargo xtask torch-tests
"""

import os
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault
import qkvault.torch as qt
from torch_common import FOLDER, Case, causal, exact, three


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


class Lengths(Case):
    def setUp(self):
        torch.manual_seed(5)

    def test_keys_behind_the_length_are_not_seen_and_have_no_gradient(self):
        given = torch.tensor([7, 12])
        seen = lambda b, h, i, j: j < given[b]  # noqa: E731
        both = lambda b, h, i, j: (j <= i) & (j < given[b])  # noqa: E731
        for options, mask in (({}, seen), ({"is_causal": True}, both), ({"is_causal": True, "softcap": 2.0}, both)):
            q, k, v = three(grad=True)
            cap = options.get("softcap")
            score = (lambda s, *_: cap * torch.tanh(s / cap)) if cap else None
            wanted = exact(q, k, v, score, mask)
            self.agree(wanted, [q, k, v], lambda: qt.attention(q, k, v, kv_lengths=given, **options))
            o = qt.attention(q, k, v, kv_lengths=given, **options)
            for gradient in torch.autograd.grad(o.sum(), (k, v)):
                self.assertEqual(gradient[0, :, 7:].abs().max().item(), 0)

    def test_rows_behind_the_length_of_queries_are_zero_and_have_no_gradient(self):
        q, k, v = three(s=(10, 12), grad=True)
        of_q, of_k = torch.tensor([3, 10], dtype=torch.int32), torch.tensor([12, 5], dtype=torch.int32)
        o = qt.attention(q, k, v, q_lengths=of_q, kv_lengths=of_k)
        wanted = exact(q, k, v, None, lambda b, h, i, j: j < of_k[b])
        live = (torch.arange(10) < of_q[:, None])[:, None, :, None]
        self.near(o, wanted * live)
        d_o = torch.randn_like(o)
        right = torch.autograd.grad(wanted * live, (q, k, v), d_o.double())
        for mine, exact_one in zip(torch.autograd.grad(o, (q, k, v), d_o), right):
            self.near(mine, exact_one)

    def test_lengths_beyond_the_tensors_are_cut_and_wrong_ones_are_named(self):
        q, k, v = three()
        self.near(qt.attention(q, k, v, kv_lengths=torch.tensor([99, 12])), exact(q, k, v))
        for wrong in (torch.tensor([3]), torch.tensor([3.0, 4.0]), torch.tensor([[3], [4]])):
            with self.assertRaisesRegex(qkvault.ArgumentError, "kv_lengths .* one integer for each of 2 sequences"):
                qt.attention(q, k, v, kv_lengths=wrong)
        with self.assertRaisesRegex(qkvault.ArgumentError, "move it there"):
            qt.attention(q, k, v, kv_lengths=torch.tensor([3, 4], device="meta"))

    def test_compiled_whole_lengths_are_tensors_of_the_program(self):
        q, k, v = three(grad=True)
        torch._dynamo.reset()
        attend = lambda q, k, v, n: qt.attention(q, k, v, kv_lengths=n)  # noqa: E731
        attend = torch.compile(attend, backend="aot_eager", fullgraph=True)
        for numbers in ([7, 12], [1, 3]):
            given = torch.tensor(numbers)
            wanted = exact(q, k, v, None, lambda b, h, i, j: j < given[b])  # noqa: B023
            self.agree(wanted, [q, k, v], lambda: attend(q, k, v, given))  # noqa: B023


class Pages(Case):
    def setUp(self):
        torch.manual_seed(6)

    def made(self, layout, queries, d=8):
        """Sequences of 5, 16 and 9 keys in pages of 4, and the same one behind the other."""
        table = torch.tensor([[6, 2, -1, -1], [1, 9, 4, 5], [3, 0, 8, 77]])
        given, rows = torch.tensor([5, 16, 9]), 4
        pools = [torch.randn(10, rows, 2, d, dtype=torch.float16) for _ in range(2)]
        dense = [pool[table.clamp(0, 9)].reshape(3, 16, 2, d).transpose(1, 2) for pool in pools]
        q = torch.randn(3, queries, 4, d, dtype=torch.float16).transpose(1, 2)
        if layout == "hnd":
            pools = [pool.transpose(1, 2).contiguous() for pool in pools]
        return q, pools, table, given, dense

    def test_pages_are_the_sequences_that_the_table_says(self):
        for layout in ("nhd", "hnd"):
            for queries in (1, 3):
                with self.subTest(layout=layout, queries=queries):
                    q, pools, table, given, (k, v) = self.made(layout, queries)
                    ahead = given - queries
                    seen = lambda b, h, i, j: j <= i + ahead[b]  # noqa: B023, E731
                    found = qt.paged_attention(q, *pools, table, given, layout=layout)
                    self.near(found, exact(q, k, v, None, seen))
                    near = lambda b, h, i, j: seen(b, h, i, j) & (i + ahead[b] - j <= 3)  # noqa: B023, E731
                    sinks = torch.randn(4)
                    options = {"layout": layout, "window": 3, "sinks": sinks, "softcap": 2.0}
                    found = qt.paged_attention(q, *pools, table, given, **options)
                    cap = lambda s, *_: 2.0 * torch.tanh(s / 2.0)  # noqa: E731
                    self.near(found, exact(q, k, v, cap, near, sinks=sinks))

    def test_what_pages_cannot_be_is_named(self):
        q, pools, table, given, _ = self.made("nhd", 1)
        refused = self.assertRaisesRegex
        with refused(qkvault.ArgumentError, "no gradient"):
            qt.paged_attention(q.requires_grad_(), *pools, table, given)
        q = q.detach()
        with refused(qkvault.ArgumentError, "k_pages has dims .* give \\(page, row, head"):
            qt.paged_attention(q, pools[0][0], pools[1], table, given)
        with refused(qkvault.ArgumentError, "a row for each of 3 sequences"):
            qt.paged_attention(q, *pools, table[:2], given)
        with refused(qkvault.ArgumentError, "kv_lengths"):
            qt.paged_attention(q, *pools, table, given[:2])
        with refused(qkvault.ArgumentError, "'nhd' or 'hnd'"):
            qt.paged_attention(q, *pools, table, given, layout="bshd")


if __name__ == "__main__":
    unittest.main()
