"""Origins through `qkvault.torch` on the CPU: chunks of a sequence beside the whole, values, errors, compilation.

    cargo xtask torch-tests
"""

import os
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault
import qkvault.torch as qt
from qkvault.torch import _ahead, _operators
from torch_common import FOLDER, Case, three

ROWS, CHUNK = 24, 8


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


def modifications():
    table, documents = torch.randn(4, 64), torch.randint(0, 2, (2, ROWS))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    return {
        "causal": {"is_causal": True},
        "window": {"is_causal": True, "window": 5},
        "both sides": {"window": (6, 3)},
        "softcap and ALiBi": {"is_causal": True, "softcap": 2.0, "alibi_slopes": slopes},
        "sinks": {"is_causal": True, "sinks": torch.randn(4)},
        "distance": {"score_mod": lambda s, b, h, i, j: s - 0.125 * torch.abs(i - j), "is_causal": True},
        "positions": {"score_mod": lambda s, b, h, i, j: s + torch.where(i % 5 == 0, 1.0, 0.0) - 0.02 * j},
        "a table": {"score_mod": lambda s, b, h, i, j: s + table[h, i - j + 32], "is_causal": True},
        "documents": {"mask_mod": lambda b, h, i, j: (documents[b, i] == documents[b, j]) & (j <= i)},
        "dilated": {"mask_mod": lambda b, h, i, j: (i - j) % 2 == 0},
    }


class Origins(Case):
    def test_chunks_of_queries_over_earlier_keys_are_the_rows_of_the_whole(self):
        for name, options in modifications().items():
            with self.subTest(name):
                q, k, v = three(s=(ROWS, ROWS), grad=True)
                whole = qt.attention(q, k, v, **options)
                parts = [
                    qt.attention(q[:, :, at : at + CHUNK], k, v, query_origin=at, **options)
                    for at in range(0, ROWS, CHUNK)
                ]
                d_o = torch.randn_like(whole)
                self.near(torch.cat(parts, 2), whole)
                right = torch.autograd.grad(whole, (q, k, v), d_o)
                for a, b in zip(torch.autograd.grad(torch.cat(parts, 2), (q, k, v), d_o), right):
                    self.near(a, b)

    def test_keys_that_begin_later_have_their_positions(self):
        q, k, v = three(s=(CHUNK, ROWS))
        window = {"is_causal": True, "window": 4}
        for options in ({}, {"score_mod": lambda s, b, h, i, j: s * 0.5 - 0.01 * i * (i - j)}):
            all_keys = qt.attention(q, k, v, query_origin=12, **window, **options)
            late = qt.attention(q, k[:, :, 8:20], v[:, :, 8:20], query_origin=12, key_origin=8, **window, **options)
            self.near(late, all_keys)

    def test_tensors_over_queries_and_keys_are_those_of_the_call(self):
        q, k, v = three(s=(ROWS, ROWS))
        bias, keep = torch.randn(1, 4, ROWS, ROWS), torch.rand(ROWS, ROWS) > 0.3
        keep |= torch.eye(ROWS, dtype=torch.bool)
        twice = lambda s, b, h, i, j: s * 2.0 - 0.1 * torch.abs(i - j)  # noqa: E731
        for options in ({}, {"score_mod": twice}):
            whole = qt.attention(q, k, v, bias=bias, attn_mask=keep, is_causal=True, **options)
            for at in range(0, ROWS, CHUNK):
                rows = slice(at, at + CHUNK)
                found = qt.attention(
                    q[:, :, rows], k, v, bias=bias[:, :, rows], attn_mask=keep[rows], is_causal=True, query_origin=at,
                    **options,
                )  # fmt: skip
                self.near(found, whole[:, :, rows])

    def test_values_are_under_no_key(self):
        q, k, v = three(s=(CHUNK, ROWS), grad=True)
        for options in ({"is_causal": True}, {"mask_mod": lambda b, h, i, j: (i - j) % 3 == 0}):
            several = {
                tuple(attention.key for attention in _ahead._attentions(q, k, v, {**options, "query_origin": origin}))
                for origin in (0, 8, 4096, torch.tensor(16))
            }
            self.assertEqual(len(several), 1)
        calls, run = [], _operators.run
        _operators.run = lambda *given: calls.append(given[4]) or run(*given)
        try:
            a = qt.attention(q, k, v, is_causal=True, query_origin=torch.tensor([16]), key_origin=0)
            b = qt.attention(q, k, v, is_causal=True, query_origin=16)
            c = qt.attention(q, k, v, is_causal=True, query_origin=3)
        finally:
            _operators.run = run
        self.assertEqual(len(set(calls)), 1)
        self.assertTrue(torch.equal(a, b) and not torch.equal(a, c))

    def test_origins_that_nothing_counts_from_change_nothing(self):
        q, k, v = three()
        self.assertTrue(torch.equal(qt.attention(q, k, v, query_origin=7), qt.attention(q, k, v)))

    def test_mistakes_are_named(self):
        q, k, v = three()
        for options, said in (
            ({"query_origin": -1}, "query_origin is -1; give a position"),
            ({"key_origin": 1.5}, "key_origin is 1.5; give a position"),
            ({"query_origin": True}, "query_origin is True"),
            ({"query_origin": (1 << 23) + 1}, "0 to 8388608"),
            ({"key_origin": torch.tensor([1, 2])}, "key_origin has dims [2]"),
            ({"query_origin": 4, "bottom_right": True, "is_causal": True}, "bottom_right goes without query_origin"),
        ):
            with self.subTest(said), self.assertRaises(qkvault.ArgumentError) as error:
                qt.attention(q, k, v, **options)
            self.assertIn(said, str(error.exception))
        with self.assertRaises(TypeError):
            _ahead._attentions(q, k, v, {"query_origins": 1})
        self.assertTrue(qt.explain(q, k, v, query_origin=512, is_causal=True, gpu="h200"))

    def test_compiled_whole_each_origin_is_right(self):
        table = torch.randn(64)
        lookup = lambda s, b, h, i, j: s + table[i - j + 32]  # noqa: E731
        run = torch.compile(qt.attention, backend="aot_eager", fullgraph=True)
        q, k, v = three(s=(CHUNK, ROWS), grad=True)
        for origin in (3, 5, 8):
            options = {"is_causal": True, "query_origin": origin}
            self.near(run(q, k, v, **options), qt.attention(q, k, v, **options))
        with self.assertRaisesRegex(Exception, "outside of what is compiled"):
            run(q, k, v, score_mod=lookup, query_origin=3)

    def test_other_numbers_compile_no_other_program(self):
        q, k, v = three(s=(CHUNK, ROWS), grad=True)
        whole = [-2.0, 2.0]
        cases = (
            ("softcap", lambda c: qt.attention(q, k, v, softcap=c), [1.5, 2.5, 3.5, 4.5, 0.5], 2),
            ("scale", lambda c: qt.attention(q, k, v, scale=c), [0.1, 0.2, 0.4, 0.3], 2),
            ("origin", lambda c: qt.attention(q, k, v, is_causal=True, query_origin=c), [1, 3, 5, 9, 12], 2),
            ("all", lambda c: qt.attention(
                q, k, v, is_causal=True, softcap=c, scale=c / 4, query_origin=3), [1.0, 2.0, 3.0, 4.0], 2),
            ("computed", lambda c: qt.attention(q, k, v, is_causal=True, softcap=c + 1.0, scale=c / 4),
             [torch.tensor(n) for n in (1.0, 2.0, 3.0)], 1),
            ("beside a function", lambda c: qt.attention(
                q, k, v, score_mod=lambda s, b, h, i, j: s - 0.5 * (i - j), scale=c / 4, query_origin=(c * 2).int()),
             [torch.tensor(n) for n in (1.0, 2.0, 3.0)], 1),
            ("a tensor", lambda c: qt.attention(q, k, v, is_causal=True, query_origin=c, key_origin=1),
             [torch.tensor(n) for n in (1, 3, 5, 9)], 1),
            ("constant", lambda c: qt.attention(q, k, v, is_causal=True, softcap=2.0, query_origin=3), whole, 2),
        )
        for name, call, values, most in cases:
            torch._dynamo.reset()
            programs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
            compiled = torch.compile(call, backend=programs, fullgraph=True)
            for value in values:
                with self.subTest(name, value=value):
                    wanted, found = call(value), compiled(value)
                    self.near(found, wanted)
                    grads = [torch.autograd.grad(o.float().square().sum(), (q, k, v)) for o in (found, wanted)]
                    [self.near(*pair) for pair in zip(*grads)]
            self.assertLessEqual(programs.frame_count, most, name)
            told = [str(node.target) for graph in programs.graphs for node in graph.graph.nodes
                    if "qkvault" in str(node.target)]
            # A number that does not change stays an argument, so that CUDA graphs may take the program. Beside a function
            # the compiler behind Dynamo decides it.
            self.assertEqual("told" in told[-1] or "attend" in told[-1], name != "constant", told)

    def test_numbers_may_be_tensors_on_the_host(self):
        q, k, v = three()
        wanted = qt.attention(q, k, v, softcap=2.0, scale=0.5)
        self.near(qt.attention(q, k, v, softcap=torch.tensor(2.0), scale=torch.tensor([0.5])), wanted)
        for options, said in (
            ({"softcap": torch.ones(2)}, "softcap has dims [2]"),
            ({"scale": torch.tensor(0.5, requires_grad=True)}, "scale asks for a gradient"),
        ):
            with self.assertRaises(qkvault.ArgumentError) as error:
                qt.attention(q, k, v, **options)
            self.assertIn(said, str(error.exception))
        mod = lambda s, b, h, i, j: s - 0.5 * (i - j)  # noqa: E731
        torch._dynamo.reset()
        call = lambda c: qt.attention(q, k, v, score_mod=mod, softcap=c)  # noqa: E731
        run = torch.compile(call, backend="aot_eager", fullgraph=True)
        for softcap in (torch.tensor(2.0), torch.tensor(0.5)):
            self.near(run(softcap), call(softcap))

    def test_numbers_that_change_go_with_vmap(self):
        q, k, v = (x.unsqueeze(0).repeat(3, 1, 1, 1, 1) for x in three(s=(CHUNK, ROWS)))
        call = torch.func.vmap(lambda q, k, v, c: qt.attention(q, k, v, softcap=c), in_dims=(0, 0, 0, None))
        torch._dynamo.reset()
        compiled = torch.compile(call, backend="aot_eager")
        for softcap in (1.5, 2.5, 3.5):
            self.near(compiled(q, k, v, softcap), call(q, k, v, softcap))

    def test_numbers_that_change_are_inductor_s_operands_too(self):
        q, k, v = three(s=(CHUNK, ROWS))
        compiled = torch.compile(lambda c: qt.attention(q, k, v, is_causal=True, softcap=c), fullgraph=True)
        for softcap in (1.5, 2.5, 3.5):
            self.near(compiled(softcap), qt.attention(q, k, v, is_causal=True, softcap=softcap))


if __name__ == "__main__":
    unittest.main()
