"""Types, devices, and strides of operands through `qkvault.torch`, beside SDPA.

    cargo xtask torch-tests
"""

import os
import unittest
import unittest.mock

import torch
import torch.nn.functional as F

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

from torch_common import FOLDER, Case, causal, exact, tensor, three

import qkvault
import qkvault.torch as qt
from qkvault.torch import _operands
from qkvault.torch import flash_attn as fa

qt.configure(FOLDER.name, cpu=True)


class Expanded(Case):
    def setUp(self):
        _operands._told.clear()

    def test_one_head_serves_all_queries_without_a_copy_or_a_word(self):
        q, k, v = three(h=(4, 1))
        wide = [t.expand(2, 4, 12, 8) for t in (k, v)]
        seen = []
        real = _operands.unrepeated
        with self.assertNoLogs("qkvault"), unittest.mock.patch(
            "qkvault.torch._attention.unrepeated", lambda *t: seen.append(real(*t)) or seen[-1]
        ):
            o = qt.attention(q, *wide, is_causal=True)
        self.near(o, exact(q, k, v, None, causal))
        self.assertEqual([t.data_ptr() for t in seen[0]], [t.data_ptr() for t in (q, k, v)])

    def test_other_axes_and_gradients_are_copied_and_told_once(self):
        q, k, v = tensor(2, 4, 12, 8, grad=True), tensor(2, 1, 12, 8, grad=True), tensor(1, 4, 12, 8, grad=True)
        wide = [k.expand(2, 4, 12, 8), v.expand(2, 4, 12, 8)]
        wanted = lambda: exact(q, *wide, None, causal)  # noqa: E731
        with self.assertLogs("qkvault") as told:
            self.agree(wanted(), [q, k, v, *wide], lambda: qt.attention(q, *wide, is_causal=True))
            qt.attention(q, *wide, softcap=3.0)
        self.assertEqual(len(told.output), 2, told.output)
        self.assertIn("k [2, 4, 12, 8] repeats its memory over axis 1, as expand() makes it", told.output[0])
        self.assertIn("v [2, 4, 12, 8] repeats its memory over axis 0", told.output[1])
        run = torch.compile(lambda q, k, v: qt.attention(q, k, v, is_causal=True), backend="aot_eager", fullgraph=True)
        self.agree(wanted(), [q, k, v], lambda: run(q, *wide))

    def test_queries_and_sequences_behind_each_other(self):
        q, k, v = tensor(1, 2, 12, 8, grad=True), *three(h=(2, 2))[1:]
        wide = q.expand(2, 2, 12, 8)
        with self.assertLogs("qkvault"):
            self.agree(exact(wide, k, v), [q], lambda: qt.attention(wide, k, v))
        ends = torch.tensor([0, 5, 12])
        packed = torch.randn(12, 2, 8, dtype=torch.float16)
        one = torch.randn(12, 1, 8, dtype=torch.float16)
        with self.assertNoLogs("qkvault"):
            o = qt.varlen_attention(packed, one.expand(12, 2, 8), one.expand(12, 2, 8), ends, ends, 7, 7)
        parts = [exact(*(t[a:b].transpose(0, 1)[None] for t in (packed, one, one)))[0] for a, b in ((0, 5), (5, 12))]
        self.near(o, torch.cat(parts, 1).transpose(0, 1))


class Types(Case):
    def test_other_types_are_told_with_the_way_out(self):
        q = torch.randn(2, 4, 12, 8)
        packed, ends = torch.randn(12, 2, 8), torch.tensor([0, 5, 12])
        pages, table, lengths = torch.randn(6, 2, 4, 8), torch.tensor([[0, 1], [3, 2]]), torch.tensor([3, 8])
        calls = {
            "attention": lambda dtype: qt.attention(*[q.to(dtype)] * 3),
            "sdpa": lambda dtype: qt.scaled_dot_product_attention(*[q.to(dtype)] * 3),
            "varlen": lambda dtype: qt.varlen_attention(*[packed.to(dtype)] * 3, ends, ends, 7, 7),
            "paged": lambda dtype: qt.paged_attention(q[:, :, :1].to(dtype), pages, pages, table, lengths),
            "flash": lambda dtype: fa.flash_attn_func(*[q.to(dtype)] * 3),
        }
        for name, call in calls.items():
            for dtype in (torch.float32, torch.float64):
                own = str(dtype).split(".")[1]
                words = (
                    rf"(q|query) is {own}, .*bfloat16 and float16; give (q|query).to\(torch.bfloat16\)"
                    rf".*scaled_dot_product_attention.*{own}"
                )
                with self.subTest(name, dtype=own), self.assertRaisesRegex(qkvault.ArgumentError, words):
                    call(dtype)
            words = "(q|query) is float8_e4m3fn, .* give (q|query).to"
            with self.subTest(name), self.assertRaisesRegex(qkvault.ArgumentError, words):
                call(torch.float8_e4m3fn)
            if name != "sdpa":
                with self.subTest(name, autocast=True), torch.autocast("cpu", torch.bfloat16):
                    self.assertEqual(call(torch.float32).dtype, torch.bfloat16)
        with self.assertRaisesRegex(qkvault.ArgumentError, r"k_pages is float32 and q float16.*k_pages.to\(q.dtype\)"):
            qt.paged_attention(q[:, :, :1].half(), pages, pages, table, lengths)
        with qt.use(), self.assertLogs("qkvault") as told:
            self.near(F.scaled_dot_product_attention(*[q.double()] * 3), exact(q, q, q))
        self.assertIn("goes on without qkvault: query is float64", told.output[0])

    def test_the_cpu_is_told_with_the_way_out(self):
        q = torch.randn(2, 4, 12, 8, dtype=torch.float16)
        try:
            qt.configure(FOLDER.name)
            with self.assertRaisesRegex(qkvault.Error, r"on the CPU.*move them to a GPU.*configure\(cpu=True\)"):
                qt.attention(q, q, q, softcap=7.0)
            with qt.use(), self.assertLogs("qkvault") as told:
                self.near(F.scaled_dot_product_attention(q, q, q, scale=0.3), exact(q, q, q, scale=0.3))
            self.assertIn("goes on without qkvault: the tensors are on the CPU", told.output[0])
        finally:
            qt.configure(FOLDER.name, cpu=True)

    def test_as_sdpa_where_there_are_more_keys_or_queries_and_shared_heads(self):
        for heads, rows in (((4, 4), (6, 12)), ((4, 4), (12, 6)), ((4, 2), (12, 12)), ((4, 1), (5, 9))):
            with self.subTest(heads=heads, rows=rows):
                q, k, v = three(h=heads, s=rows, grad=True)
                options = {"is_causal": True, "enable_gqa": heads[0] != heads[1]}
                wanted = F.scaled_dot_product_attention(*(t.double() for t in (q, k, v)), **options)
                self.agree(wanted, [q, k, v], lambda: qt.scaled_dot_product_attention(q, k, v, **options))
        q, k, v = three(h=(4, 2))
        with self.assertRaisesRegex(qkvault.ArgumentError, "query has 4 heads and key 2; give enable_gqa=True"):
            qt.scaled_dot_product_attention(q, k, v)

    def test_inference_mode_reads_what_changes(self):
        with torch.inference_mode():
            q, k, v = three()
            docs = torch.tensor([0] * 5 + [1] * 7)
            same = lambda b, h, i, j: docs[i] == docs[j]  # noqa: E731
            for change in (lambda: None, lambda: docs.fill_(0), lambda: docs[3:].fill_(2)):
                change()
                self.near(qt.attention(q, k, v, mask_mod=same), exact(q, k, v, None, same))


if __name__ == "__main__":
    unittest.main()
