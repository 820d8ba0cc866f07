"""PyTorch's door under `torch.compile`: sizes and numbers that change, beside the same call in eager mode.

    cargo xtask torch-tests
"""

import os
import types
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.flop_counter import FlopCounterMode

import qkvault.torch as qt
from torch_common import FOLDER, Case

DOCS = torch.arange(256) // 7
SIZES = (32, 48, 64, 80, 96)


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


def options(size):
    """Options of a call by name, of this many queries and keys."""
    table = torch.sin(torch.arange(1024.0).reshape(4, 256)).requires_grad_()
    return {
        "causal": dict(is_causal=True, window=(20, 0)),
        "softcap": dict(softcap=20.0),
        "bias": dict(bias=torch.randn(1, 4, size, size, dtype=torch.bfloat16, requires_grad=True)),
        "bias of keys": dict(bias=torch.randn(2, 1, 1, size, dtype=torch.bfloat16)),
        "attn_mask": dict(attn_mask=torch.rand(size, size) > 0.3, bottom_right=True, is_causal=True),
        "alibi": dict(alibi_slopes=torch.rand(4), is_causal=True),
        "kv_lengths": dict(kv_lengths=torch.tensor([size, size // 2], dtype=torch.int32)),
        "score_mod": dict(score_mod=lambda s, b, h, i, j: s + 0.1 * (i - j)),
        "documents": dict(mask_mod=lambda b, h, i, j: (DOCS[i] == DOCS[j]) & (i >= j)),
        "table": dict(score_mod=lambda s, b, h, i, j: s + table[h, j] * 0.5, sinks=torch.zeros(4, requires_grad=True)),
        "size": dict(mask_mod=lambda b, h, i, j: i - j <= size // 2, bias=torch.randn(1, 4, size, size)),
        "origin": dict(mask_mod=lambda b, h, i, j: DOCS[i] == DOCS[j], query_origin=size // 2, key_origin=size // 2),
    }


def leaves(given):
    """The tensors of options that have a gradient, also those that functions capture."""
    cells = [c.cell_contents for f in given.values() for c in getattr(f, "__closure__", None) or ()]
    return [t for t in (*given.values(), *cells) if isinstance(t, torch.Tensor) and t.requires_grad]


def called(q, k, v, given):
    return qt.attention(q, k, v, **given)


def with_gradients(call, q, k, v, given):
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    o = call(*inputs, given)
    return [o, *torch.autograd.grad(o.float().square().sum(), [*inputs, *leaves(given)])]


class Sizes(Case):
    def test_sizes_that_change_are_compiled_as_often_as_by_flex_attention(self):
        for name in options(32):
            for dynamic in (None, True):
                with self.subTest(name=name, dynamic=dynamic):
                    torch.manual_seed(5)
                    torch._dynamo.reset()
                    counter = CompileCounterWithBackend("aot_eager")
                    call = torch.compile(called, backend=counter, dynamic=dynamic, fullgraph=True)
                    for size in SIZES:
                        given = options(size)[name]
                        q, k, v = (torch.randn(2, 4, size, 16, dtype=torch.bfloat16) for _ in range(3))
                        found = with_gradients(call, q, k, v, given)
                        for a, b in zip(found, with_gradients(called, q, k, v, given)):
                            self.near(a, b, 1e-2)
                    # Dynamo compiles once for the first size, and once for all others.
                    self.assertLessEqual(counter.frame_count, self.of_flex(dynamic))

    def of_flex(self, dynamic):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        call = torch.compile(flex_attention, backend=counter, dynamic=dynamic, fullgraph=True)
        for size in SIZES:
            q, k, v = (torch.randn(2, 4, size, 16) for _ in range(3))
            call(q, k, v, block_mask=create_block_mask(lambda b, h, i, j: DOCS[i] == DOCS[j], 2, 4, size, size, DOCS.device))
        return max(counter.frame_count, 2)


#: Functions of a number, and numbers.
NUMBERS = {
    "passed on": (lambda n: lambda s, b, h, i, j: s + n * 0.1 * j, (0.5, 1.5, 2.5, 3.5)),
    "whole part": (lambda n: lambda s, b, h, i, j: s + (n // 1) * 0.1 * j, (1.5, 2.25, 3.5, 4.5)),
    "least": (lambda n: lambda s, b, h, i, j: s + min(n, 3.0) * 0.1 * j, (1.5, 2.0, 3.5, 4.0)),
    "decides": (lambda n: lambda s, b, h, i, j: s + (0.3 * j if n > 3 else 0.1 * i), (1.5, 2.5, 3.5, 4.5)),
    "half an integer": (lambda n: lambda s, b, h, i, j: torch.where(abs(i - j) <= n // 2, s, -torch.inf), range(1, 7)),
    "an integer": (lambda n: lambda s, b, h, i, j: torch.where(i - j < n, s, -torch.inf), range(1, 7)),
}


class Numbers(Case):
    """Silent: `n // 2` of an integer that changes and `min(x, 3.0)` of a float kept their first values."""

    def test_numbers_that_python_computes_with_are_those_of_each_call(self):
        q, k, v = (torch.randn(2, 4, 32, 16, dtype=torch.bfloat16) for _ in range(3))
        for name, (make, numbers) in NUMBERS.items():
            with self.subTest(name):
                torch._dynamo.reset()
                call = torch.compile(
                    lambda q, k, v, n: qt.attention(q, k, v, score_mod=make(n)), backend="aot_eager", fullgraph=True
                )
                for n in numbers:
                    self.near(call(q, k, v, n), qt.attention(q, k, v, score_mod=make(n)), 1e-2)

    def test_a_float_of_the_scores_and_one_of_the_mask_are_not_mixed(self):
        q, k, v = (torch.randn(2, 4, 32, 16, dtype=torch.bfloat16) for _ in range(3))

        def run(q, k, v, cap, least):
            return qt.attention(
                q, k, v, score_mod=lambda s, b, h, i, j: cap * torch.tanh(s / cap),
                mask_mod=lambda b, h, i, j: j * least <= i,
            )  # fmt: skip

        torch._dynamo.reset()
        call = torch.compile(run, backend="aot_eager", fullgraph=True)
        for cap, least in ((0.5, 1.0), (0.75, 0.5), (1.25, 2.0)):
            self.near(call(q, k, v, cap, least), run(q, k, v, cap, least), 1e-2)

    def test_a_program_of_inductor_has_the_code_of_the_modifications(self):
        state = types.SimpleNamespace(docs=DOCS)
        torch._dynamo.reset()
        call = torch.compile(
            lambda q, k, v, n: qt.attention(
                q, k, v, mask_mod=lambda b, h, i, j: (state.docs[i] == state.docs[j]) & (i - j <= n // 2)
            ),
            fullgraph=True,
        )  # fmt: skip
        for size, n in ((32, 3), (48, 5), (64, 9)):
            q, k, v = (torch.randn(2, 4, size, 16, dtype=torch.bfloat16) for _ in range(3))
            mask_mod = lambda b, h, i, j: (state.docs[i] == state.docs[j]) & (i - j <= n // 2)  # noqa: E731
            self.near(call(q, k, v, n), qt.attention(q, k, v, mask_mod=mask_mod), 1e-2)


CALLS = {
    "flex_attention": lambda *given: flex_attention(*given),
    "scaled_dot_product_attention": lambda *given: torch.nn.functional.scaled_dot_product_attention(*given),
}


class Redirected(Case):
    def test_a_flex_attention_that_was_compiled_before_runs_on_qkvault_inside_use(self):
        torch._dynamo.reset()
        call = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
        q, k, v = (torch.randn(2, 4, 32, 16, dtype=torch.bfloat16) for _ in range(3))
        mask = create_block_mask(lambda b, h, i, j: DOCS[i] == DOCS[j], 2, 4, 32, 32, DOCS.device)
        score_mod = lambda s, b, h, i, j: s + 0.01 * (i - j)  # noqa: E731
        for given in (dict(block_mask=mask), dict(score_mod=score_mod, scale=0.3), dict(block_mask=mask)):
            before = call(q, k, v, **given)
            with qt.use():
                inside = call(q, k, v, **given)
                self.near(inside, before, 2e-2)
                self.assertFalse(torch.equal(inside, before), "two ways of computing round in two ways")
            self.assertTrue(torch.equal(call(q, k, v, **given), before))

    def test_it_runs_on_qkvault_where_operations_are_watched(self):
        torch._dynamo.reset()
        call = torch.compile(flex_attention, backend="aot_eager")
        q, k, v = (torch.randn(2, 4, 32, 16, dtype=torch.bfloat16) for _ in range(3))
        if torch.__version__ >= (2, 12):
            return  # It refuses a compiled call that is watched.
        with qt.use(), FlopCounterMode(display=False) as watched:  # Dynamo stands aside.
            call(q, k, v, score_mod=lambda s, b, h, i, j: s + 0.01 * (i - j))
        self.assertIn("qkvault", " ".join(map(str, watched.get_flop_counts()["Global"])))

    def test_what_is_not_taken_goes_on_as_before(self):
        torch._dynamo.reset()
        call = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
        q, k, v = (torch.randn(2, 4, 32, 16) for _ in range(3))
        before = call(q, k, v)
        with qt.use(), self.assertLogs("qkvault") as told:
            self.assertTrue(torch.equal(call(q, k, v), before))
            flex_attention(q, k, v)
            for name in ("flex_attention", "scaled_dot_product_attention"):  # Dynamo asked for the text of the error.
                inside = torch.compile(lambda q, k, v: CALLS[name](q, k, v), backend="aot_eager", fullgraph=True)
                self.near(inside(q, k, v), before)
        self.assertEqual(len(told.output), 2, "once for each function and reason")
        self.assertIn("q is float32", told.output[0])


if __name__ == "__main__":
    unittest.main()
