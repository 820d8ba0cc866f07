"""What of `engine_peers.py` and `packed_peer.py` needs no GPU: names of cases, and FlexAttention without its compiler
beside float32, also the gradients of packed documents.

    python3 -m unittest test_engine_peers      (in this folder, with PyTorch)
"""
import unittest

import torch
from torch.nn.attention.flex_attention import flex_attention

import packed_peer
from engine_peers import Case, flex_run, measure, named


class Peers(unittest.TestCase):
    def test_names_of_bench_engines_have_their_sizes(self):
        for name, sizes in {
            "decode b8 s1024 d128": (8, 1, 1024, 32, 8, 128),
            "draft q16 b1 s32768 d128": (1, 16, 32768, 32, 8, 128),
            "prefill q2048 b8 s2048 d64": (8, 2048, 2048, 32, 8, 64),
            "window 1024 b8 s32768": (8, 1, 32768, 32, 8, 128),
            "gpt-oss sinks b1 s8192": (1, 1, 8192, 64, 8, 64),
            "mpt-7b alibi b64 s8192": (64, 1, 8192, 32, 32, 128),
            "latent h16 b1 s8192": (1, 1, 8192, 16, 1, 576),
        }.items():
            case = Case(name)
            self.assertEqual((case.b, case.q, case.s, case.heads, case.kv_heads, case.d), sizes, name)
        with self.assertRaises(ValueError):
            Case("causal d128 b4 h16 s4096")

    def test_lines_of_the_list_of_cases_have_a_name_and_a_direction(self):
        self.assertEqual(named("decode b1 s1024 d128, forward\n"), ("decode b1 s1024 d128", "forward"))
        self.assertEqual(named("varlen b2 h4/2 s64 d64 causal, backward")[1], "backward")
        self.assertEqual(named("mqa b1 s8192\n"), ("mqa b1 s8192", "forward"))
        with self.assertRaises(ValueError):
            measure("decode b1 s1024 d128", "backward", "FlexAttention", False)
        with self.assertRaises(ValueError):
            measure("varlen b2 h4/2 s64 d64 causal", "backward", "FlashInfer FA3", False)

    def test_packed_documents_are_computed_in_both_directions(self):
        torch.manual_seed(2)
        calls = []
        timed = lambda f, peer: calls.append(f() is None) or 7.0
        for name in ("varlen b3 h4/4 s64 d32 causal", "varlen b2 h4/2 s128 d64 causal"):
            case = packed_peer.Packed(name)
            attend = packed_peer.flex(case, flex_attention)
            self.assertEqual(packed_peer.measured(case, attend, False, timed, "x"), 7.0, name)
            # FlexAttention has no backward on a CPU.
            with_gradients = lambda q, k, v, case=case: self.documents(case, q, k, v)
            self.assertEqual(packed_peer.measured(case, with_gradients, True, timed, "x"), 7.0, name)
            # A query that sees the document before it is noticed.
            case.b, case.s = case.b * 2, case.s // 2
            for backward, other in ((False, attend), (True, with_gradients)):
                case.document = case.s * 2
                with self.assertRaises(ValueError):
                    packed_peer.measured(case, other, backward, timed, "x")
        self.assertEqual(len(calls), 4)

    def documents(self, case, q, k, v):
        size = getattr(case, "document", case.s)
        at = torch.arange(case.b * case.s)
        seen = (at[:, None] >= at) & (at[:, None] // size == at // size)
        rows = (t.transpose(0, 1)[None] for t in (q, k, v))
        grouped = case.heads != case.kv_heads
        out = torch.nn.functional.scaled_dot_product_attention(*rows, attn_mask=seen, enable_gqa=grouped)
        return out[0].transpose(0, 1)

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
