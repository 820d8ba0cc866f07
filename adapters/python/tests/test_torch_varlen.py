"""Sequences one after another, with all that dense calls have; and operands that are nothing or of other types.

    cargo xtask torch-tests
"""

import itertools
import math
import os
import unittest
import unittest.mock

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault
import qkvault.torch as qt
from qkvault.torch import _operators
from torch.utils.flop_counter import FlopCounterMode
from torch_common import FOLDER, Case, exact, three

#: Where sequences of queries and keys end: one without queries, one without keys, and rows behind the last.
ENDS = torch.tensor([0, 5, 5, 12, 16]), torch.tensor([0, 7, 9, 9, 20])
MOST = 8, 16


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


def made():
    return tuple(torch.randn(n, h, 16, dtype=torch.bfloat16) for n, h in ((20, 4), (24, 2), (24, 2)))


def apart(q, k, v, score_mod=None, mask_mod=None, sinks=None, is_causal=False):
    """Each sequence by itself, in float64; rows of none are zero."""
    rows = []
    for at in range(len(ENDS[0]) - 1):
        given = ((q, ENDS[0]), (k, ENDS[1]), (v, ENDS[1]))
        own = [t[ends[at] : ends[at + 1]].transpose(0, 1)[None] for t, ends in given]
        if own[1].shape[2] == 0:
            rows.append(torch.zeros(own[0].shape[2], q.shape[1], v.shape[2], dtype=torch.float64))
            continue
        score = score_mod and (lambda s, b, h, i, j: score_mod(s, b + at, h, i, j))
        keep = [lambda b, h, i, j: mask_mod(b + at, h, i, j)] if mask_mod else []
        keep += [lambda b, h, i, j: j <= i] if is_causal else []
        seen = (lambda b, h, i, j: math.prod(one(b, h, i, j).int() for one in keep) > 0) if keep else None
        rows.append(exact(*own, score, seen, sinks=sinks)[0].transpose(0, 1))
    known = torch.cat(rows)
    return torch.cat([known, torch.zeros(q.shape[0] - known.shape[0], *known.shape[1:], dtype=torch.float64)])


class Drafts(Case):
    """Trees of drafts: four of a sequence, of which the second and third are children of the first."""

    PARENTS = (None, 0, 0, 2)

    def bits(self):
        """A row of bits for each draft, from parents."""
        rows = []
        for at, parent in enumerate(self.PARENTS):
            rows.append(1 << at | (0 if parent is None else rows[parent]))
        return torch.tensor(rows)

    def expected(self, q, k, v):
        """Plain softmax in float64: (head, draft, head dim) over (head, key, head dim)."""
        old = k.shape[1] - 4
        seen = torch.ones(4, k.shape[1], dtype=torch.bool)
        for at, row in enumerate(self.bits().tolist()):
            seen[at, old:] = torch.tensor([bool(row >> j & 1) for j in range(4)])
        q, k, v = (t.double().repeat_interleave(q.shape[0] // t.shape[0], 0) for t in (q, k, v))
        score = q @ k.mT / q.shape[-1] ** 0.5
        return score.masked_fill(~seen, -math.inf).softmax(-1) @ v

    def test_a_sibling_is_not_seen_over_pages_and_packed_keys(self):
        lengths = torch.tensor([9, 30])
        q = torch.randn(2, 4, 4, 16, dtype=torch.bfloat16)
        k, v = (torch.randn(5, 16, 2, 16, dtype=torch.bfloat16) for _ in range(2))
        table = torch.tensor([[3, 0], [4, 1]])
        bits = self.bits().expand(2, 4)
        keys = [[t[table[b]].flatten(0, 1)[: lengths[b]].transpose(0, 1) for t in (k, v)] for b in range(2)]
        known = torch.stack([self.expected(q[b], *keys[b]) for b in range(2)])
        wide = bits[..., None] >> torch.arange(4) & 1 == 1
        for given in (bits, wide):
            found = qt.paged_attention(q, k, v, table, lengths, draft_tree=given, is_causal=False)
            torch.testing.assert_close(found.double(), known, atol=0.02, rtol=0.02)
        other = qt.paged_attention(q, k, v, table, lengths)
        self.assertGreater((other.double() - known).abs().max(), 0.1)
        packed = [torch.cat([keys[b][n] for b in range(2)], 1).transpose(0, 1).contiguous() for n in range(2)]
        ends = torch.tensor([0, 4, 8]), torch.tensor([0, 9, 39])
        tokens = q.transpose(1, 2).flatten(0, 1)
        found = qt.varlen_attention(tokens, *packed, *ends, 4, 30, draft_tree=bits.flatten())
        torch.testing.assert_close(found.unflatten(0, (2, 4)).transpose(1, 2).double(), known, atol=0.02, rtol=0.02)

    def test_bits_that_do_not_fit_are_told_with_those_that_do(self):
        q, pool = torch.randn(1, 2, 4, 16).half(), torch.randn(2, 16, 2, 16).half()
        call = lambda tree, q=q: qt.paged_attention(  # noqa: E731
            q, pool, pool, torch.tensor([[0, 1]]), torch.tensor([20]), draft_tree=tree
        )
        for wrong in (self.bits(), self.bits()[None].int(), torch.ones(1, 4, 65).bool(), torch.ones(1, 3, 4).bool()):
            with self.assertRaisesRegex(qkvault.ArgumentError, "give int64 \\(batch, query\\) of dims \\[1, 4\\]"):
                call(wrong)
        with self.assertRaisesRegex(qkvault.Refused, "q has 65 rows with draft_tree; a row of bits has 64"):
            call(torch.ones(1, 65, dtype=torch.int64), torch.randn(1, 2, 65, 16).half())


class Varlen(Case):
    def test_a_causal_mask_of_equal_sequences_ends_at_the_bottom_right(self):
        # FlashAttention-4's kernels take no other, and took 0.7 of the time of cuDNN's that ran instead.
        q, k, v = (torch.randn(9, 2, 8, dtype=torch.bfloat16) for _ in range(3))
        ends = torch.tensor([0, 4, 9])
        run_parts, seen = _operators.run_parts, []

        def told(made, *given):
            seen.append("mask: causal bottom-right" in made.lines)
            return run_parts(made, *given)

        with unittest.mock.patch.object(_operators, "run_parts", told):
            for ends_k, most in ((ends, 5), (ends.clone(), 5), (ends, 6)):
                qt.varlen_attention(q, k, v, ends, ends_k, 5, most, is_causal=True)
            qt.varlen_attention(q, k, v, ends, ends, 5, 5)
        self.assertEqual(seen, [True, False, False, False])

    def test_options_of_dense_calls_and_gradients_of_any_strides(self):
        torch.manual_seed(4)
        w, documents = torch.randn(4), torch.arange(16) // 5
        score = lambda s, b, h, i, j: s * w[b] + 0.1 * (i - j)  # noqa: E731
        near = lambda b, h, i, j: (i - j).abs() <= 3 + b  # noqa: E731
        same = lambda b, h, i, j: documents[i] == documents[j]  # noqa: E731
        options = (
            {}, {"score_mod": score}, {"mask_mod": near}, {"mask_mod": same}, {"sinks": torch.randn(4)},
            {"score_mod": score, "mask_mod": near, "is_causal": True}, {"is_causal": True},
        )  # fmt: skip
        for given, strided in itertools.product(options, (False, True)):
            with self.subTest(list(given), strided=strided):
                q, k, v = (t.requires_grad_() for t in made())
                o = qt.varlen_attention(q, k, v, *ENDS, *MOST, **given)
                wanted = apart(q, k, v, **given)
                self.near(o, wanted)
                d_o = torch.randn(4, 20, 16, dtype=torch.bfloat16).transpose(0, 1) if strided else torch.randn_like(o)
                mine = torch.autograd.grad(o, (q, k, v), d_o)
                for a, b in zip(mine, torch.autograd.grad(wanted, (q, k, v), d_o.double())):
                    self.near(a, b, 2e-2)
                self.assertEqual(int(o[16:].count_nonzero()) + int(mine[0][16:].count_nonzero()), 0)
                self.assertEqual(int(mine[1][20:].count_nonzero()), 0)

    def test_ends_that_lie_elsewhere_read_and_write_no_other_memory(self):
        q, k, v = made()
        for ends in ([0, 30, 10, 90, 16], [-5, 3, 3, 100, 2], [0, 9, 18, 20, 20]):
            o = qt.varlen_attention(q, k, v, torch.tensor(ends), ENDS[1], *MOST)
            self.assertTrue(torch.isfinite(o).all())
        for bad, said in ((torch.tensor([0.0, 3.0]), "give integers"), (torch.tensor([[0, 3]]), "give integers")):
            with self.assertRaisesRegex(qkvault.ArgumentError, said):
                qt.varlen_attention(q, k, v, bad, ENDS[1], *MOST)
        with self.assertRaisesRegex(qkvault.ArgumentError, "as many of both"):
            qt.varlen_attention(q, k, v, torch.tensor([0, 3]), ENDS[1], *MOST)

    def test_documents_compile_with_a_mask_of_the_call(self):
        q, k, v = made()

        def call(d):
            return qt.varlen_attention(q, k, v, *ENDS, *MOST, mask_mod=lambda b, h, i, j: d[i] == d[j])

        run = torch.compile(call, backend="aot_eager", fullgraph=True)
        for n in (3, 5):
            documents = torch.arange(16) // n
            self.near(run(documents), call(documents))


class Pages(Case):
    def test_pages_take_modifications_and_rows_without_keys_are_zero(self):
        torch.manual_seed(2)
        pool, lengths = torch.randn(9, 4, 2, 16, dtype=torch.bfloat16), torch.tensor([11, 0, 6])
        values, q = torch.randn_like(pool), torch.randn(3, 4, 2, 16, dtype=torch.bfloat16)
        table = torch.tensor([[7, 2, 0], [1, 8, 3], [4, 6, 5]])
        w, documents = torch.randn(4), torch.arange(12) // 5
        score = lambda s, b, h, i, j: s * w[h] + 0.1 * (i - j) + 0.2 * b  # noqa: E731
        same = lambda b, h, i, j: documents[j] != b  # noqa: E731
        for given in ({"score_mod": score}, {"mask_mod": same}, {"score_mod": score, "mask_mod": same}, {}):
            with self.subTest(list(given)):
                o = qt.paged_attention(q, pool, values, table, lengths, is_causal=False, **given)
                self.assertFalse(o[1].any())
                for b, n in ((0, 11), (2, 6)):
                    k, v = (t[table[b]].flatten(0, 1)[:n].transpose(0, 1)[None] for t in (pool, values))
                    own = {
                        "score_mod": lambda s, _, *at, b=b: score(s, torch.tensor(b), *at),
                        "mask_mod": lambda _, *at, b=b: same(torch.tensor(b), *at),
                    }
                    own = {name: own[name] for name in given}
                    self.near(o[b : b + 1], exact(q[b : b + 1], k, v, **own))


class Operands(Case):
    def test_no_row_and_no_key_give_zeros(self):
        q, k, v = three(grad=True)
        for given in ((q[:0], k[:0], v[:0]), (q[:, :, :0], k, v), (q, k[:, :, :0], v[:, :, :0])):
            o, lse = qt.attention(*given, return_lse=True)
            self.assertEqual((o.shape, lse.shape), ((*given[0].shape[:-1], 8), given[0].shape[:-1]))
            self.assertFalse(o.any())
            for gradient in torch.autograd.grad(o.sum(), (q, k, v), allow_unused=True):
                self.assertFalse(gradient.any())
        self.assertFalse(qt.attention(q * torch.inf, k[:, :, :0], v[:, :, :0]).any())

    def test_rows_of_a_sequence_without_keys_are_zero(self):
        q, k, v = three(grad=True)
        o = qt.attention(q, k, v, kv_lengths=torch.tensor([0, 7]))
        self.assertFalse(o[0].any())
        self.near(o[1:], exact(q[1:], k[1:, :, :7], v[1:, :, :7]))

    def test_autocast_casts_as_sdpa_does(self):
        q, k, v = (t.to(torch.bfloat16) for t in three())
        wanted = qt.attention(q, k, v)
        for given in ((q.float(), k.float(), v.float()), (q, k.float(), v.float()), (q.float(), k, v)):
            with torch.autocast(q.device.type, torch.bfloat16):
                self.assertTrue(torch.equal(qt.attention(*given), wanted))

    def test_products_are_counted_as_those_of_sdpa(self):
        q, k, v = three(h=(4, 4), grad=True)
        with FlopCounterMode(display=False) as forward:
            o = qt.attention(q, k, v)
        with FlopCounterMode(display=False) as backward:
            o.sum().backward()
        found, (b, h, s, d) = (forward.get_total_flops(), backward.get_total_flops()), q.shape
        self.assertEqual(found, (2 * 2 * b * h * s * s * d, 5 * 2 * b * h * s * s * d))


if __name__ == "__main__":
    unittest.main()
