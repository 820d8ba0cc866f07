"""What differs on a GPU: graphs that are captured, backwards on threads of their own, compiled FlexAttention.

Skipped without one. `python -m unittest test_gpu` needs PyTorch alone.
"""

import os
import tempfile
import unittest

import golden  # noqa: F401, for the path
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import qkvault_record
from qkvault_record import record


@unittest.skipUnless(torch.cuda.is_available(), "there is no GPU")
class Gpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "m.json")
        self.q = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16)

    def tearDown(self):
        self.folder.cleanup()

    def test_masks_on_the_gpu_are_read(self):
        mask = torch.ones(256, 256, dtype=torch.bool, device="cuda").tril()
        with record(self.path) as recorder:
            F.scaled_dot_product_attention(self.q, self.q, self.q, attn_mask=mask)
        self.assertIn("mask: causal", recorder.entries[0]["text"])

    def test_a_capture_is_not_disturbed(self):
        mask = torch.ones(256, 256, dtype=torch.bool, device="cuda").tril()
        F.scaled_dot_product_attention(self.q, self.q, self.q, attn_mask=mask)
        with record(self.path) as recorder:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = F.scaled_dot_product_attention(self.q, self.q, self.q, attn_mask=mask)
            graph.replay()
        self.assertIn("tensor @mask: i32[1, 1, 256, 256]", recorder.entries[0]["text"])
        wanted = F.scaled_dot_product_attention(self.q, self.q, self.q, is_causal=True)
        self.assertLess((out - wanted).abs().max().item(), 0.05)

    def test_a_backward_that_computes_the_forward_again_is_seen(self):
        leaf = self.q.clone().requires_grad_()

        def program(x):
            return F.scaled_dot_product_attention(x, x, x, is_causal=True).float().sum()

        for reentrant in (False, True):
            with record(self.path) as recorder:
                checkpoint(program, leaf, use_reentrant=reentrant).backward()
            self.assertEqual(sum(entry["layers"] for entry in recorder.entries), 2, recorder.entries)

    def test_a_large_flex_attention_runs_compiled(self):
        q = [self.q.clone().requires_grad_() for _ in range(3)]
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
        run = torch.compile(flex_attention)
        wanted, wanted_lse = run(*q, block_mask=mask, return_lse=True)
        (wanted_gradient,) = torch.autograd.grad(wanted.float().sum(), q[0])
        qkvault_record._LARGE_SCORES, kept = 0, qkvault_record._LARGE_SCORES
        try:
            with record(self.path) as recorder:
                out, lse = run(*q, block_mask=mask, return_lse=True)
                (gradient,) = torch.autograd.grad(out.float().sum(), q[0])
        finally:
            qkvault_record._LARGE_SCORES = kept
        self.assertEqual(recorder.entries[0]["phase"], "train")
        for a, b in ((out, wanted), (lse, wanted_lse), (gradient, wanted_gradient)):
            self.assertLess((a.float() - b.float()).abs().max().item(), 0.05)


if __name__ == "__main__":
    unittest.main()
