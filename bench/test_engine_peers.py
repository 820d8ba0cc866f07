"""What of `engine_peers.py` needs no GPU: names of cases, and FlexAttention without its compiler beside float32.

    python3 -m unittest test_engine_peers      (in this folder, with PyTorch)
"""
import unittest

import torch
from torch.nn.attention.flex_attention import flex_attention

from engine_peers import Case, flex_run


class Peers(unittest.TestCase):
    def test_names_of_bench_engines_have_their_sizes(self):
        for name, sizes in {
            "decode b8 s1024 d128": (8, 1, 1024, 32, 8, 128),
            "draft q16 b1 s32768 d128": (1, 16, 32768, 32, 8, 128),
            "window 1024 b8 s32768": (8, 1, 32768, 32, 8, 128),
            "gpt-oss sinks b1 s8192": (1, 1, 8192, 64, 8, 64),
            "mpt-7b alibi b64 s8192": (64, 1, 8192, 32, 32, 128),
            "latent h16 b1 s8192": (1, 1, 8192, 16, 1, 576),
        }.items():
            case = Case(name)
            self.assertEqual((case.b, case.q, case.s, case.heads, case.kv_heads, case.d), sizes, name)
        with self.assertRaises(ValueError):
            Case("causal d128 b4 h16 s4096")

    def test_flex_attention_computes_each_case(self):
        torch.manual_seed(1)
        for name in (
            "decode b2 s192 d64",
            "draft q4 b2 s192 d64",
            "window 100 b1 s256 d64",
            "softcap b1 s192 d64",
            "alibi b1 s192 d64",
            "mpt-7b alibi b1 s192 d64",
            "gpt-oss sinks b1 s192",
            "latent h16 b1 s192",
            "mqa b1 s192 d64",
        ):
            case = Case(name)
            operands, run = flex_run(case, flex_attention)
            found = run()[0].float()
            expected = case.exact(*operands)
            off = ((found - expected).abs().max() / expected.abs().max()).item()
            self.assertLess(off, 0.02, name)
        # A test that cannot fail says nothing: other sinks give another result.
        case = Case("gpt-oss sinks b1 s192")
        operands, run = flex_run(case, flex_attention)
        found = run()[0].float()
        case.sink = case.sink + 3
        off = ((found - case.exact(*operands)).abs().max() / found.abs().max()).item()
        self.assertGreater(off, 0.05)


if __name__ == "__main__":
    unittest.main()
