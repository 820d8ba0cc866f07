"""The tracer: the text of a modification means what the function computes.

Python writes down, at random points, what each function gives and what the text's tensors hold there. The Rust test
`crates/models/tests/recorded.rs` evaluates the texts at these points. A part of the points lies in the repository
(`modifications.json`); `cargo xtask record-tests` tries many more.
"""

import json
import math
import os
import unittest

import modifications
import torch

import golden
from qkvault_record import Untraceable, trace


def traced(name):
    make, sizes = modifications.EXPRESSIBLE[name]
    score_mod, mask_mod = make()
    return score_mod, mask_mod, sizes, trace(score_mod, mask_mod, sizes=sizes)


def values(captured):
    """The elements of an operand in its dims, as a launch would get them."""
    with torch.no_grad():
        tensor = captured.compute() if captured.compute else captured.source
        return tensor.reshape(captured.dims).to(torch.float64)


def points(name, count):
    """The text of a modification, and what the function gives at random points."""
    score_mod, mask_mod, sizes, text = traced(name)
    random = torch.Generator().manual_seed(sum(map(ord, name)))
    tensors = {key: values(captured) for key, captured in text.tensors.items()}
    rows = []
    for _ in range(count):
        at = [int(torch.randint(n, (), generator=random)) for n in sizes]
        if torch.rand((), generator=random) < 0.5:
            # Near the diagonal, where masks change.
            at[3] = min(max(at[2] + int(torch.randint(-4, 5, (), generator=random)), 0), sizes[3] - 1)
        score = torch.randn((), generator=random) * 6
        index = [torch.tensor(i) for i in at]
        with torch.no_grad():
            kept = bool(mask_mod(*index)) if mask_mod else True
            out = float(score_mod(score.clone(), *index)) if score_mod else float(score)
        kept, out = kept and out != -math.inf, 0.0 if out == -math.inf else out
        held = [float(t[tuple(i if n > 1 else 0 for i, n in zip(at, t.shape))]) for t in tensors.values()]
        rows.append([*at, float(score), int(kept), out, *held])
    assert all(math.isfinite(number) for row in rows for number in row), name
    facts = {"name": name, "sizes": list(sizes), "text": text.lines(), "scalars": text.scalars}
    return {**facts, "tensors": list(tensors), "points": rows}


class Trace(unittest.TestCase):
    def test_every_expressible_modification_is_traced_and_written_down(self):
        cases = [points(name, 24) for name in modifications.EXPRESSIBLE]
        lines = ",\n".join(json.dumps(one) for one in cases)
        golden.check("modifications.json", f"[\n{lines}\n]\n")
        many = os.environ.get("QKVAULT_RECORDED_POINTS")
        if many:
            with open(many, "w", encoding="utf-8") as file:
                json.dump([points(name, 400) for name in modifications.EXPRESSIBLE], file)

    def test_what_has_no_expression_is_refused_with_the_reason_and_the_line(self):
        for name, (function, reason) in modifications.REFUSED.items():
            with self.assertRaises(Untraceable) as caught:
                trace(function, sizes=modifications.SIZES)
            self.assertIn(reason, str(caught.exception), name)
            self.assertRegex(caught.exception.where, r"^modifications\.py:\d+$", name)
            line = int(caught.exception.where.split(":")[1])
            first = function.__code__.co_firstlineno
            self.assertIn(line, range(first, first + 4), name)

    def test_recognised_forms_become_fields(self):
        for name, wanted in {
            "causal": ["mask: causal"],
            "causal_from_the_end": ["mask: causal bottom-right"],
            "sliding_window": ["mask: causal window 8"],
            "symmetric_window": ["mask: band left 5 right 4"],
            "causal_as_minus_infinity": ["mask: causal", "score_mod: score * 0.5"],
            "noop": [],
        }.items():
            self.assertEqual(traced(name)[3].lines(), wanted, name)
        self.assertEqual(traced("softcap")[3].scalars, {"softcap": 20.0})
        self.assertEqual(traced("captured_number")[3].scalars, {"factor": 1.75, "shift": 0.125})
        for name in ("alibi", "alibi_of_six_heads"):
            text = traced(name)[3]
            self.assertEqual([t.alibi for t in text.tensors.values()], [text.tensors["alibi_slopes"].dims[1]], name)
        self.assertTrue(traced("learned_relative_bias")[3].tensors["bias"].grad)
        with torch.no_grad():
            self.assertFalse(traced("learned_relative_bias")[3].tensors["bias"].grad)

    def test_scalars_are_constants_if_asked_for(self):
        score_mod, mask_mod = modifications.EXPRESSIBLE["softcap"][0]()
        text = trace(score_mod, mask_mod, sizes=modifications.SIZES, scalars=False)
        self.assertEqual((text.scalars, text.score_mod), ({}, "tanh(score / 20.0) * 20.0"))

    def test_tensors_without_values_are_traced(self):
        bias = torch.empty(4, 95, device="meta")

        def mod(score, b, h, q, k):
            return score + bias[h, q - k + 47]

        text = trace(mod, sizes=modifications.SIZES)
        self.assertEqual(text.score_mod, "tensor @bias_hqk: f32[1, 4, 48, 48]; score + @bias_hqk")
        self.assertIn("computed ahead", text.notes[0])


if __name__ == "__main__":
    unittest.main()
