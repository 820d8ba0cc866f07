"""Nested tensors through `qkvault.torch`, each sequence beside the definition.

    cargo xtask torch-tests
"""

import os
import unittest

import torch
import torch.nn.functional as F

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

from qkvault.torch import _redirect
from torch_common import FOLDER, Case, causal, exact

import qkvault
import qkvault.torch as qt

qt.configure(FOLDER.name, cpu=True)


def jagged(lengths, heads=2, **more):
    parts = [torch.randn(n, heads, 8, dtype=torch.float16) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True, **more)


def attend(q, k, v, call=qt.attention, **more):
    return call(*(t.transpose(1, 2) for t in (q, k, v)), **more)


class Nested(Case):
    def checked(self, lengths, of_keys=None, heads=(2, 2), score=None, mask=None, run=attend, **more):
        q = jagged(lengths, heads[0])
        k, v = (jagged(of_keys or lengths, heads[1]) for _ in range(2))
        o = run(q, k, v, **more)
        self.assertTrue(o.is_nested)
        total = 0.0
        for at, (one, *own) in enumerate(zip(o.unbind(), q.unbind(), k.unbind(), v.unbind())):
            of = None if score is None else lambda s, b, h, i, j, at=at: score(s, b + at, h, i, j)
            right = exact(*(t.transpose(0, 1)[None] for t in own), of, mask)
            if one.shape[1]:
                self.near(one[None], right)
            total = total + (right**2).sum()
        found = torch.autograd.grad((o.values().double() ** 2).sum(), (q, k, v))
        for mine, wanted in zip(found, torch.autograd.grad(total, (q, k, v))):
            self.near(mine.values(), wanted.values())

    def test_sequences_and_their_gradients(self):
        cap = lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0) - 0.1 * (i - j) * (b + 1)  # noqa: E731
        self.checked([5, 1, 9])
        self.checked([5, 1, 9], is_causal=True, mask=causal)
        self.checked([33, 20], [7, 40])
        self.checked([5, 7], heads=(4, 2), score=cap, score_mod=cap, mask_mod=causal, mask=causal)
        self.checked([6, 9], run=lambda *t: attend(*t, call=qt.scaled_dot_product_attention))

    def test_under_use_and_compiled(self):
        with qt.use(), self.assertNoLogs("qkvault"):
            self.checked([5, 7], run=lambda *t: attend(*t, call=F.scaled_dot_product_attention))
        call = lambda q, k, v: attend(q * 1.0, k, v, is_causal=True)  # noqa: E731
        self.checked([5, 7], run=torch.compile(call, backend="aot_eager"), mask=causal)
        q = jagged([5, 7])
        with self.assertRaisesRegex(RuntimeError, "nested tensors is called between compiled parts.*varlen_attention"):
            torch.compile(call, backend="aot_eager", fullgraph=True)(q, q, q)

    def test_the_result_has_the_sequences_of_q(self):
        q = jagged([5, 7])
        o, lse = qt.attention(*[q.transpose(1, 2)] * 3, return_lse=True)
        self.assertEqual((o.shape, lse.shape[:2]), (q.transpose(1, 2).shape, (2, 2)))
        (o.transpose(1, 2) + q).values().sum().backward()
        for one, a in zip(lse.unbind(), q.unbind()):
            a = a.transpose(0, 1).double()
            self.near(one, (a @ a.transpose(1, 2) * 8**-0.5).logsumexp(-1))

    def test_what_they_do_not_take_is_told(self):
        q = jagged([5, 7])
        parts = [torch.randn(2, n, 8, dtype=torch.float16) for n in (5, 7)]
        strided = torch.nested.nested_tensor(parts)
        t = q.transpose(1, 2)
        holes = torch.nested.narrow(
            torch.randn(2, 9, 2, 8, dtype=torch.float16), 1, torch.tensor([0, 1]), torch.tensor([3, 4]), layout=torch.jagged
        ).transpose(1, 2)
        for words, call in {
            "strided layout; give the jagged one": lambda: qt.attention(strided, strided, strided),
            "k is no nested tensor": lambda: qt.attention(t, torch.randn(2, 2, 7, 8).half(), t),
            r"q has dims .*\.transpose\(1, 2\)": lambda: qt.attention(q, q, q),
            "attn_mask with nested tensors.*give mask_mod": lambda: qt.attention(t, t, t, attn_mask=torch.ones(7, 7) > 0),
            "kv_lengths with nested tensors": lambda: qt.attention(t, t, t, kv_lengths=torch.tensor([1, 2])),
            "k and v are nested with other lengths": lambda: qt.attention(t, t, jagged([6, 6]).transpose(1, 2)),
            "q has 2 sequences and k 3": lambda: qt.attention(t, *[jagged([4, 4, 4]).transpose(1, 2)] * 2),
            "holes": lambda: qt.attention(holes, holes, holes),
            "bfloat16 and float16": lambda: qt.attention(t.float(), t.float(), t.float()),
        }.items():
            with self.subTest(words), self.assertRaisesRegex(qkvault.ArgumentError, words):
                call()
        _redirect._told.clear()
        with qt.use(), self.assertLogs("qkvault") as told:
            F.scaled_dot_product_attention(strided.float(), strided.float(), strided.float())
        self.assertIn("q nested goes on without qkvault", told.output[0])


if __name__ == "__main__":
    unittest.main()
