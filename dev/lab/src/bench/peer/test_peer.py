"""What of the peers needs no GPU: requests of every row, small ones on the CPU beside float32 in both directions, and
calls whose parameters libraries have. `bench/engines/request.rs` runs it.

    QKVAULT_PEER_REQUESTS=FILE python3 -m unittest test_peer      (in this folder, with PyTorch)
"""
import json
import os
import unittest
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import flex_attention

import exact
import measure
import warm
import ways_flex
import ways_torch
from cases import Case, Refused

SIZES = {
    "do": "case", "direction": "forward", "b": 2, "h": 4, "hk": 2, "d": 64, "dv": 64, "queries": [256] * 2,
    "keys": [256] * 2, "left": None, "right": 0, "bottom_right": True, "softcap": None, "alibi": False, "sink": False,
    "d_sink": False, "lengths": False, "mask": None, "document": 64, "page": 0, "pages": 0, "packed_q": False,
    "packed_k": False, "latent": False, "deterministic": False,
}
PACKED = {"packed_q": True, "packed_k": True, "lengths": True}
PAGES = {"page": 32, "pages": 16, "lengths": True}
FLEX = [
    {"softcap": 50.0}, {"alibi": True}, {"left": 64}, {"sink": True}, {"lengths": True}, {"mask": "documents"},
    {"mask": "documents", "right": None}, {"mask": "tensor"},
    {"mask": "blocks", "queries": [1024] * 2, "keys": [1024] * 2}, PACKED,
    PACKED | {"queries": [256, 64], "keys": [256, 64]}, {"left": 64, "softcap": 20.0}, {"left": 64, "sink": True},
    PAGES | {"queries": [1, 1], "softcap": 20.0}, PAGES | {"queries": [16, 16], "left": 40},
    PAGES | {"queries": [4, 4], "alibi": True}, PAGES | {"queries": [1, 1], "sink": True, "pages": 9},
]
SDPA = [
    {}, {"right": None}, {"d": 96, "dv": 64}, PACKED, PAGES, PAGES | {"queries": [1, 1]}, PAGES | {"queries": [16, 16]},
]
# What neither of both computes.
OTHERS = [
    PAGES | {"queries": [16, 1], "packed_q": True}, PAGES | {"keys": [250] * 2, "queries": [3, 3]},
    PAGES | {"latent": True, "d": 96, "hk": 1, "queries": [4, 4]},
]


def every(case):
    """All rows in float32, as one matrix for each sequence: it has nothing of `exact.py`."""
    first_q, first_k, out = 0, 0, []
    q, k, v = (t.detach().float().requires_grad_(case.backward) for t in (case.q, case.k, case.v))
    for b, (rows, keys) in case.each():
        i, j = torch.arange(rows)[:, None], torch.arange(keys)[None]
        take = lambda t, at, n: t[at : at + n].repeat_interleave(case.h // t.shape[1], 1).transpose(0, 1)
        scores = take(q, first_q, rows) @ take(k, first_k, keys).transpose(1, 2) * case.scale
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        if case.alibi:
            scores = scores + case.slopes()[:, None, None] * (j - i)
        scores = scores.masked_fill(~case.seen(b, i, j), float("-inf"))
        weights = scores.exp()
        below = weights.sum(-1, keepdim=True) + (case.sinks.exp()[:, None, None] if case.sink else 0)
        out.append((weights / below @ take(v, first_k, keys)).transpose(0, 1))
        first_q, first_k = first_q + rows, first_k + keys
    out = torch.cat(out)
    return torch.autograd.grad(out, [q, k, v], case.d_o.float()) if case.backward else (out.detach(),)


class Peers(unittest.TestCase):
    def case(self, more, direction="forward"):
        torch.manual_seed(1)
        return Case(SIZES | more | {"direction": direction}, "cpu")

    def results(self, case, made):
        f, layout = made
        return [measure.shaped(t, layout) for t in f()[:3]]

    def test_a_part_of_the_answer_is_that_of_all_rows_in_both_directions(self):
        for more in FLEX + SDPA + OTHERS:
            for direction in ("forward", "backward"):
                case = self.case(more, direction)
                told = exact.differences(case, every(case))
                self.assertEqual(set(told), {"dQ", "dK", "dV"} if case.backward else {"O"}, more)
                self.assertLess(max(told.values()), 1e-4, (more, direction))
                # Another mask is noticed, and so are other keys.
                other = [t.clone() for t in every(case)]
                case.right = None if case.causal else 0
                if case.sq > 1 and case.mask != "tensor":
                    self.assertGreater(max(exact.differences(case, other).values()), exact.OFF, (more, direction))

    def test_flex_attention_computes_what_sdpa_does_not(self):
        ways_flex.FASTER = ("a library that is missing",)
        for more in FLEX:
            case = self.case(more)
            exact.check(case, self.results(case, ways_flex.flex(case, flex_attention)))
        for more in (SDPA[0], SDPA[4], {"latent": True, "d": 96} | PAGES):
            with self.assertRaises(Refused):
                ways_flex.flex(self.case(more), flex_attention)

    def test_sdpa_computes_prompts_batches_and_decodes_in_both_directions(self):
        for more in SDPA:
            for direction in ("forward",) if more.get("page") else ("forward", "backward"):
                case = self.case(more, direction)
                with torch.set_grad_enabled(case.backward):
                    exact.check(case, self.results(case, ways_torch.sdpa(case, SDPBackend.MATH)))
        for more in ({"sink": True}, {"left": 9}, {"mask": "tensor"}, {"lengths": True}, {"alibi": True}):
            with self.assertRaises(Refused):
                ways_torch.sdpa(self.case(more), SDPBackend.MATH)
        with self.assertRaises(Refused):
            ways_torch.sdpa(self.case(PAGES | {"queries": [16, 16]}), SDPBackend.CUDNN_ATTENTION)

    def test_results_that_are_off_are_refused_with_how_much(self):
        case = self.case({})
        with self.assertRaisesRegex(Refused, "O is off by 0.1"):
            exact.check(case, [every(case)[0] * 1.1])

    def test_libraries_that_are_missing_are_told_once_and_others_have_a_name_for_each_way(self):
        measure.TOLD.clear()
        ways, lost = measure.all_ways(self.case({}))
        self.assertTrue({"torch sdpa cudnn", "torch sdpa flash", "torch flex"} <= set(ways))
        there = {"flash-attn", "flashinfer"} - set(lost)
        self.assertEqual(len(ways), 4 + ("flash-attn" in there) + 2 * ("flashinfer" in there))
        for why in lost.values():
            self.assertRegex(why, "Error: ")
        self.assertEqual(measure.all_ways(self.case({}))[1], {})

    def test_every_row_of_bench_engines_is_a_case_with_operands_of_its_sizes(self):
        requests = json.loads(Path(os.environ["QKVAULT_PEER_REQUESTS"]).read_text())
        self.assertGreater(len(requests), 300)
        for w in requests:
            self.assertEqual(set(w), set(SIZES))
            with torch.device("meta"):
                case = Case(w, "meta")
                self.assertEqual(case.q.shape, (sum(case.queries), case.h, case.d))
                self.assertEqual(case.k.shape, (sum(case.keys), case.hk, case.d))
                self.assertEqual(case.v.shape, (sum(case.keys), case.hk, case.dv))
            if not (case.expression or case.sink or case.mask or case.padded or case.latent or case.left):
                if case.even and not (case.causal and 1 < case.sq < case.sk):
                    # What nothing keeps SDPA from is not refused.
                    ways_torch.plain(case)
            small = warm.small(w)
            self.assertEqual((small["b"], small["keys"][0] % max(1, w["page"])), (1, 0))


if __name__ == "__main__":
    unittest.main()
