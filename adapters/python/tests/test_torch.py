"""PyTorch's door without a GPU: the operators compute with the oracle, and everything around them is the real thing.

    cargo xtask torch-tests

`QKVAULT_LIBRARY` names the library. Sizes are tiny, because the oracle computes in float64 on the host.
"""

import ast
import contextlib
import io
import itertools
import logging
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import torch
import torch._dynamo.testing
import torch.nn.functional as F
import triton
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint
from triton.backends.compiler import GPUTarget

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault
import qkvault.torch as qt
from qkvault.torch import _operators, _redirect, _spec
from torch_common import FOLDER, Case, causal, exact, tensor, three

SPEC = "numbers: scale :: mask: causal"


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


def inductor_for_triton(function, *given):
    """What Inductor writes with Triton for a function and its backward. Its kernels do not run; operators do."""
    written = []

    class Kernel:
        def run(self, *_, **__):
            pass

    driver = mock.Mock()
    driver.get_current_target.return_value = GPUTarget("cuda", 90, 32)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._inductor.config.patch(cpu_backend="triton", force_disable_caches=True))
        stack.enter_context(mock.patch.object(triton.runtime.driver, "_active", driver))
        stack.enter_context(mock.patch.object(AsyncCompile, "triton", lambda *_, **__: Kernel()))
        stack.enter_context(mock.patch.object(GraphLowering, "save_output_code", written.append))
        o = torch.compile(function, fullgraph=True)(*given)
        if o.requires_grad:
            o.square().sum().backward()
    return written


class Numbers(Case):
    def setUp(self):
        torch.manual_seed(1)

    def test_options_compute_what_they_say_forward_and_backward(self):
        cap, slopes, sinks = 5.0, torch.rand(4), torch.randn(4, requires_grad=True)
        bias = torch.randn(1, 4, 12, 12, dtype=torch.float16, requires_grad=True)
        keep = torch.rand(2, 1, 12, 12) > 0.2
        keep[..., 0] = True
        cases = [
            ({}, None, None),
            ({"is_causal": True}, None, causal),
            ({"is_causal": True, "window": 3}, None, lambda b, h, i, j: (j <= i) & (i - j <= 3)),
            ({"is_causal": True, "window": (3, 2)}, None, lambda b, h, i, j: (j <= i) & (i - j <= 3)),
            ({"window": 3}, None, lambda b, h, i, j: (i - j).abs() <= 3),
            ({"window": (None, 1)}, None, lambda b, h, i, j: j - i <= 1),
            ({"window": (0, -1)}, None, lambda b, h, i, j: j >= i),
            ({"window": (2, 1)}, None, lambda b, h, i, j: (j - i <= 1) & (i - j <= 2)),
            ({"softcap": cap}, lambda s, b, h, i, j: cap * torch.tanh(s / cap), None),
            ({"alibi_slopes": slopes}, lambda s, b, h, i, j: s - slopes.double()[h] * (i - j).abs(), None),
            ({"alibi_slopes": slopes, "is_causal": True}, lambda s, b, h, i, j: s + slopes[h] * (j - i), causal),
            ({"bias": bias}, lambda s, *_: s + bias.double(), None),
            ({"attn_mask": keep}, None, lambda b, h, i, j: keep),
            ({"attn_mask": bias.detach()}, lambda s, *_: s + bias.detach().double(), None),
            ({"scale": 0.5, "is_causal": True, "deterministic": True}, None, causal),
        ]
        for at, (options, score_mod, mask_mod) in enumerate(cases):
            for outside in (True, False):
                with self.subTest(options=list(options), outside=outside):
                    q, k, v = three(heads_outside=outside, grad=True)
                    inputs = [q, k, v] + ([bias] if options.get("bias") is not None else [])
                    wanted = exact(q, k, v, score_mod, mask_mod, options.get("scale"))
                    self.agree(wanted, inputs, lambda: qt.attention(q, k, v, **options))
        q, k, v = three(grad=True)
        wanted = exact(q, k, v, None, causal, sinks=sinks)
        self.agree(wanted, [q, k, v, sinks], lambda: qt.attention(q, k, v, is_causal=True, sinks=sinks))
        fixed = sinks.detach()
        wanted = exact(q, k, v, None, causal, sinks=fixed)
        self.agree(wanted, [q, k, v], lambda: qt.attention(q, k, v, is_causal=True, sinks=fixed))

    def test_functions_of_flex_attention_are_traced_and_have_their_derivative(self):
        table = torch.randn(4, 23, requires_grad=True)
        documents = torch.arange(12) // 5

        def relative(s, b, h, i, j):
            return s + table[h, j - i + 11]

        def capped(s, b, h, i, j):
            return 3.0 * torch.tanh(s / 3.0) + 0.1 * (j - i)

        def same(b, h, i, j):
            return documents[i] == documents[j]

        q, k, v = three(grad=True)
        self.agree(exact(q, k, v, capped), [q, k, v], lambda: qt.attention(q, k, v, score_mod=capped))
        both = lambda: qt.attention(q, k, v, score_mod=capped, mask_mod=same)  # noqa: E731
        self.agree(exact(q, k, v, capped, same), [q, k, v], both)
        wanted = exact(q, k, v, relative)
        self.agree(wanted, [q, k, v, table], lambda: qt.attention(q, k, v, score_mod=relative))
        blocks = create_block_mask(lambda b, h, i, j: causal(b, h, i, j), 2, None, 12, 12, device="cpu")
        self.agree(exact(q, k, v, None, causal), [q, k, v], lambda: qt.attention(q, k, v, block_mask=blocks))
        mixed = lambda: qt.attention(q, k, v, score_mod=capped, is_causal=True, window=4, softcap=2.0)  # noqa: E731
        first = lambda s, *at: capped(2.0 * torch.tanh(s / 2.0), *at)  # noqa: E731
        seen = lambda b, h, i, j: (j <= i) & (i - j <= 4)  # noqa: E731
        self.agree(exact(q, k, v, first, seen), [q, k, v], mixed)

    def test_a_captured_number_that_changes_changes_the_result_and_no_specification(self):
        q, k, v = three()
        specs = set()
        for cap in (2.0, 7.0):
            def score_mod(s, b, h, i, j, cap=cap):
                return cap * torch.tanh(s / cap)

            self.near(qt.attention(q, k, v, score_mod=score_mod), exact(q, k, v, score_mod))
            parts = _spec.Parts(1.0)
            parts.functions(score_mod, None, (2, 4, 12, 12), q)
            specs.add(parts.spec())
        self.assertEqual(len(specs), 1, specs)

    def test_a_captured_tensor_that_changes_in_place_is_read_again(self):
        q, k, v = three()
        bias = torch.zeros(12, 12)

        def score_mod(s, b, h, i, j):
            return s + bias[i, j]

        before = qt.attention(q, k, v, score_mod=score_mod)
        bias.normal_()
        after = qt.attention(q, k, v, score_mod=score_mod)
        self.near(after, exact(q, k, v, score_mod))
        self.assertFalse(torch.equal(before, after))

    def test_varlen_sequences_lie_behind_each_other(self):
        ends = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
        q, k, v = (torch.randn(14, 2, 8, dtype=torch.float16, requires_grad=True) for _ in range(3))
        parts = []
        for a, b in zip(ends[:-1], ends[1:]):
            one = [t[a:b].transpose(0, 1)[None] for t in (q, k, v)]
            parts.append(exact(*one, None, causal)[0].transpose(0, 1))
        make = lambda: qt.varlen_attention(q, k, v, ends, ends, 8, 8, is_causal=True)  # noqa: E731
        self.agree(torch.cat(parts), [q, k, v], make)

    def test_varlen_takes_fewer_tokens_than_sequences(self):
        # flash-attention #1537: most sequences of a step may be empty.
        q, k, v = (torch.randn(3, 2, 8, dtype=torch.float16, requires_grad=True) for _ in range(3))
        found = []
        for ends in ([0, 0, 2, 2, 2, 3, 3], [0, 2, 3]):
            ends = torch.tensor(ends, dtype=torch.int32)
            o = qt.varlen_attention(q, k, v, ends, ends, 4, 4, is_causal=True)
            found.append((o, *torch.autograd.grad(o.square().sum(), (q, k, v))))
        for mine, wanted in zip(*found):
            self.near(mine, wanted)

    def test_dropout_is_described_with_its_seed_as_a_tensor(self):
        q, k, v = (tensor(1, 4, 128, 64, dtype=torch.bfloat16, grad=True) for _ in range(3))
        self.assertTrue(qt.explain(q, k, v, dropout_p=0.1))
        with self.assertRaises(qkvault.ArgumentError) as caught:
            qt.attention(q, k, v, dropout_p=0.1)
        self.assertIn("dropout_p is given on the CPU", str(caught.exception), "the oracle has no random numbers")

    def test_a_gradient_of_any_strides_is_taken(self):
        q, k, v = three(h=(2, 2), grad=True)
        right = torch.autograd.grad(exact(q, k, v).sum(), (q, k, v))
        for mine, wanted in zip(torch.autograd.grad(qt.attention(q, k, v).sum(), (q, k, v)), right):
            if wanted.abs().max() > 1e-3:
                self.near(mine, wanted)


class Transforms(Case):
    def setUp(self):
        torch.manual_seed(2)
        torch._dynamo.reset()

    def test_opcheck_with_strides_of_every_kind(self):
        for outside in (True, False):
            for s in ((12, 12), (1, 8)):
                q, k, v = three(b=1, h=(2, 1), s=s, heads_outside=outside, grad=True)
                torch.library.opcheck(_operators.forward, (q, k, v, [], "numbers: scale", [0.3]))
                plain = [t.detach() for t in (q, k, v)]
                torch.library.opcheck(_operators.attend, (*plain, [], "numbers: scale", [0.3]))
                with torch.no_grad():
                    o, stats = _operators.forward_only(q, k, v, [], "numbers: scale", [0.3])
                given = [t.detach() for t in (torch.randn_like(o), q, k, v, o, stats)]
                tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
                torch.library.opcheck(_operators.backward, (*given, [], "numbers: scale", [0.3]), test_utils=tests)

    def test_compiled_whole_it_gives_the_same_with_gradients(self):
        def step(q, k, v):
            return qt.attention(q * 1.0, k, v, is_causal=True, softcap=4.0).square().sum()

        for backend in ("aot_eager", "inductor"):
            with self.subTest(backend=backend):
                q, k, v = three(grad=True)
                wanted = torch.autograd.grad(step(q, k, v), (q, k, v))
                compiled = torch.compile(step, backend=backend, fullgraph=True)
                for mine, right in zip(torch.autograd.grad(compiled(q, k, v), (q, k, v)), wanted):
                    self.near(mine, right, 1e-6)

    def test_compiled_with_dynamic_shapes_few_graphs_serve_many_lengths(self):
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(lambda q, k, v: qt.attention(q, k, v, is_causal=True), backend=counter, dynamic=True)
        for s in (9, 10, 14, 15, 17):
            q, k, v = three(s=(s, s))
            self.near(compiled(q, k, v), exact(q, k, v, None, causal))
        self.assertLessEqual(counter.frame_count, 2)

    def test_a_traced_function_is_compiled_whole(self):
        def score_mod(s, b, h, i, j):
            return 3.0 * torch.tanh(s / 3.0)

        attend = lambda q, k, v: qt.attention(q, k, v, score_mod=score_mod)  # noqa: E731
        compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
        q, k, v = three(grad=True)
        self.agree(exact(q, k, v, score_mod), [q, k, v], lambda: compiled(q, k, v))

    def test_a_specification_is_one_line_because_inductor_writes_it_into_comments(self):
        specs, original = [], _operators.run
        q, k, v = three()
        try:
            _operators.run = lambda *given: specs.append(given[4]) or original(*given)
            qt.attention(q, k, v, is_causal=True, softcap=3.0, deterministic=True)
            bias, sinks = torch.zeros(1, 4, 12, 12).half(), torch.zeros(4)
            qt.attention(q, k, v, is_causal=True, bias=bias, sinks=sinks)
            qt.attention(q, k, v, score_mod=lambda s, b, h, i, j: s * 2 + i, mask_mod=causal)
        finally:
            _operators.run = original
        self.assertEqual(len(specs), 3)
        self.assertTrue(all("\n" not in spec and " :: " in spec for spec in specs), specs)

    def test_names_that_python_allows_do_not_reach_a_specification(self):
        q, k, v = three()
        größe = torch.randn(12)
        tables = {"it's \"quoted\"\n": torch.randn(12), "back\\slash": torch.randn(12)}

        def score_mod(s, b, h, i, j):
            return s + größe[i] + tables["it's \"quoted\"\n"][j] + tables["back\\slash"][i]

        parts = _spec.Parts(1.0)
        parts.functions(score_mod, None, (2, 4, 12, 12), q)
        self.assertRegex(parts.spec(), r"\A[ !#-&(-\[\]-~]*\Z")
        self.assertEqual(len(parts.tensors), 3)
        self.near(qt.attention(q, k, v, score_mod=score_mod), exact(q, k, v, score_mod))

    def test_the_programs_that_inductor_writes_for_gpus_are_python_forward_and_backward(self):
        bias = torch.zeros(1, 4, 12, 12).half().requires_grad_()
        größe = torch.randn(12)

        def score_mod(s, b, h, i, j):
            return 3.0 * torch.tanh(s / 3.0) + größe[i] * (j - i)

        cases = {
            "options": {"is_causal": True, "softcap": 4.0, "window": 3},
            "tensors": {"bias": bias, "sinks": torch.zeros(4)},
            "function": {"score_mod": score_mod, "mask_mod": causal},
        }
        for name, options in cases.items():
            with self.subTest(case=name):
                torch._dynamo.reset()
                attend = lambda q, k, v, options=options: qt.attention(q * 1.0, k, v, **options) * 2.0  # noqa: E731
                programs = inductor_for_triton(attend, *three(grad=True))
                self.assertEqual([f"qkvault.{p}" in c for p, c in zip(("forward", "backward"), programs)], [True] * 2)
                for program in programs:
                    ast.parse(program)

    def test_the_check_of_programs_finds_the_line_break_that_broke_them(self):
        spec = "extra: \n  :: numbers: scale"
        with self.assertRaisesRegex(Exception, "IndentationError|one line of ASCII"):  # 2.15 writes comments well
            inductor_for_triton(lambda q, k, v: _operators.forward(q * 1.0, k, v, [], spec, [0.3])[0] * 2.0, *three())

    def test_checkpointing_computes_the_same_gradients(self):
        q, k, v = three(grad=True)
        step = lambda q, k, v: qt.attention(q * 2, k, v, is_causal=True)  # noqa: E731
        wanted = torch.autograd.grad(step(q, k, v).square().sum(), (q, k, v))
        saved = checkpoint(step, q, k, v, use_reentrant=False).square().sum()
        for mine, right in zip(torch.autograd.grad(saved, (q, k, v)), wanted):
            self.assertTrue(torch.equal(mine, right))

    def test_exported_saved_and_loaded_it_computes_the_same(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return qt.attention(q, k, v, is_causal=True)

        given = three()
        program = torch.export.export(Model(), given)
        with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
            torch.export.save(program, file.name)
            loaded = torch.export.load(file.name)
        self.assertIn("qkvault.attend", str(program.graph))
        self.assertTrue(torch.equal(loaded.module()(*given), qt.attention(*given, is_causal=True)))

    def test_vmap_puts_its_axis_into_the_batch(self):
        q, k, v = (torch.randn(3, 2, 4, 12, 8, dtype=torch.float16) for _ in range(3))
        bias = torch.randn(1, 4, 12, 12, dtype=torch.float16)
        f = lambda q, k, v: qt.attention(q, k, v, is_causal=True, bias=bias)  # noqa: E731
        wanted = torch.stack([f(*one) for one in zip(q, k, v)])
        self.assertTrue(torch.equal(torch.vmap(f)(q, k, v), wanted))
        shared = torch.vmap(f, in_dims=(0, None, None))(q, k[0], v[0])
        self.assertTrue(torch.equal(shared, torch.stack([f(one, k[0], v[0]) for one in q])))
        loss = lambda q, k, v: f(q, k, v).float().square().sum()  # noqa: E731
        mine = torch.vmap(torch.func.grad(loss))(q, k, v)
        each = torch.stack([torch.func.grad(loss)(*one) for one in zip(q, k, v)])
        self.near(mine, each, 1e-6)

    def test_fake_tensors_have_the_strides_of_real_ones(self):
        for outside in (True, False):
            for s in ((12, 12), (1, 12)):
                q, k, v = three(s=s, heads_outside=outside)
                real = qt.attention(q, k, v, return_lse=True)
                fake = qt.attention(*(t.to("meta") for t in (q, k, v)), return_lse=True)
                for a, b in zip(real, fake):
                    self.assertEqual((a.shape, a.stride(), a.dtype), (b.shape, b.stride(), b.dtype))

    def test_threads_share_the_table(self):
        q, k, v = three()
        wanted, found = qt.attention(q, k, v), []
        work = lambda: found.extend(qt.attention(q, k, v) for _ in range(20))  # noqa: E731
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(len(found), 80)
        self.assertTrue(all(torch.equal(o, wanted) for o in found))

    def test_autocast_decides_the_element_type(self):
        q, k, v = (t.float() for t in three())
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(qt.attention(q, k, v).dtype, torch.bfloat16)


class Refusals(Case):
    def refused(self, kind, words, make):
        with self.assertRaises(kind) as caught:
            make()
        self.assertIn(words, str(caught.exception))
        return caught.exception

    def test_what_cannot_be_computed_is_an_exception_that_says_what_to_do(self):
        q, k, v = three()
        attend = qt.attention
        self.refused(qkvault.ArgumentError, "bfloat16 and float16", lambda: attend(q.float(), k.float(), v.float()))
        self.refused(qkvault.Refused, "head", lambda: attend(q, k[..., :4], v))
        self.refused(qkvault.ArgumentError, "enable_gqa", lambda: attend(q, k, v, enable_gqa=False))
        self.refused(qkvault.ArgumentError, "dims", lambda: attend(q, k, v, bias=torch.zeros(3, 12, 12)))
        self.refused(qkvault.ArgumentError, "create_block_mask", lambda: attend(q, k, v, block_mask=3))
        self.refused(qkvault.ArgumentError, "window", lambda: attend(q, k, v, window=-2))
        self.refused(qkvault.ArgumentError, "probability", lambda: attend(q, k, v, dropout_p=1.5))
        self.refused(qkvault.ArgumentError, "move it", lambda: attend(q, k, v, bias=torch.zeros(1, device="meta")))
        self.refused(qkvault.ArgumentError, "k is on meta, and q on cpu; move it", lambda: attend(q, k.to("meta"), v))
        self.refused(qkvault.ArgumentError, "v is on meta, and q on cpu; move it", lambda: attend(q, k, v.to("meta")))
        self.refused(qkvault.ArgumentError, "k is bfloat16 and q float16", lambda: attend(q, k.bfloat16(), v))
        self.refused(qkvault.ArgumentError, "q is float64", lambda: attend(q.double(), k.double(), v.double()))
        whole = torch.ones(12, 12, dtype=torch.int64)
        self.refused(qkvault.ArgumentError, "attn_mask is int64", lambda: attend(q, k, v, attn_mask=whole))
        self.refused(qkvault.ArgumentError, "finite", lambda: attend(q, k, v, softcap=math.inf))
        blocks = create_block_mask(causal, None, None, 24, 24, device="cpu")
        self.refused(qkvault.ArgumentError, "for 24 queries", lambda: attend(q, k, v, block_mask=blocks))
        self.refused(qkvault.ArgumentError, "dims", lambda: attend(q[0], k[0], v[0], window=3, scale=1.0))

    def test_a_library_without_operators_for_pytorch_says_to_install_one_wheel(self):
        program = "import qkvault._library as l; l.library = object; import qkvault.torch"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertIn("install library and package from one wheel", done.stderr)

    def test_strides_that_cudnn_does_not_take_are_named_and_copied_on_request(self):
        q, k, v = three(h=(2, 2))
        odd = torch.empty(2, 2, 8, 12, dtype=q.dtype).copy_(q.transpose(-1, -2)).transpose(-1, -2)
        error = self.refused(qkvault.Refused, "stride", lambda: qt.attention(odd, k, v))
        self.assertTrue(error.reasons[0].code)
        self.assertTrue(torch.equal(qt.attention(odd, k, v, copy=True), qt.attention(q, k, v)))

    def test_functions_without_an_equivalent_show_their_line(self):
        q, k, v = three()

        def branches(s, b, h, i, j):
            return s if i > j else -s

        error = self.refused(qt.Untraceable, "test_torch.py", lambda: qt.attention(q, k, v, score_mod=branches))
        self.assertIn("if", str(error))

        elsewhere = torch.zeros(12, device="meta")
        reads = lambda s, b, h, i, j: s + elsewhere[i]  # noqa: E731
        self.refused(qkvault.ArgumentError, "move it", lambda: qt.attention(q, k, v, score_mod=reads))

    def test_a_second_derivative_is_refused_eager_and_registered(self):
        q, k, v = three(grad=True)
        for attend in (qt.attention, lambda *t: _operators.forward(*t, [], "numbers: scale", [0.3])[0]):
            (d_q,) = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
            self.refused(NotImplementedError, "no second derivative", lambda d=d_q: d.sum().backward())

    def test_the_cpu_is_refused_unless_allowed(self):
        q, k, v = three()
        try:
            qt.configure(FOLDER.name)
            error = self.refused(qkvault.DeviceError, "configure(cpu=True)", lambda: qt.attention(q, k, v))
            self.assertEqual(error.kind, "device")
        finally:
            qt.configure(FOLDER.name, cpu=True)

    def test_errors_of_the_operators_leave_arguments_alive(self):
        q, k, v = three()
        for _ in range(200):
            with self.assertRaises(qkvault.ArgumentError):
                _operators.forward(q, k, v, [q], "numbers: scale", [0.3])
        self.near(qt.attention(q, k, v), exact(q, k, v))

    def test_explain_says_what_would_run_and_why_not(self):
        q, k, v = (tensor(1, 4, 128, 64, dtype=torch.bfloat16) for _ in range(3))
        good = qt.explain(q, k, v, is_causal=True, softcap=30.0)
        self.assertTrue(good, good)
        bad = qt.explain(*(tensor(1, 4, 128, 12, dtype=torch.bfloat16) for _ in range(3)))
        self.assertFalse(bad)
        self.assertTrue(bad.reasons)
        with self.assertRaises(TypeError):
            qt.explain(q, k, v, casual=True)

    def test_invariant_is_part_of_every_form_of_a_call(self):
        q, k, v = (torch.empty(2, 4, 128, 64, dtype=torch.bfloat16, device="meta") for _ in range(3))
        lengths = torch.empty(2, dtype=torch.int32, device="meta")
        bias = torch.zeros(1, 1, 128, 128, device="meta")
        for options in ({}, {"is_causal": True}, {"softcap": 30.0}, {"bias": bias}, {"kv_lengths": lengths},
                        {"score_mod": lambda s, b, h, i, j: s * 2}):  # fmt: skip
            said = str(qt.explain(q, k, v, gpu="h200", invariant=True, **options))
            self.assertIn(" invariant", said.splitlines()[0])
            self.assertIn("engine: kernels", said)
            self.assertNotIn("invariant", str(qt.explain(q, k, v, gpu="h200", **options)))
            refused = qt.explain(q, k, v, gpu="a100", invariant=True, **options)
            self.assertEqual([reason.code for reason in refused.reasons], ["not-built.invariant"])


class Ahead(Case):
    def test_plans_are_compiled_ahead_for_a_gpu_that_is_not_there(self):
        if torch.version.cuda is None:
            self.skipTest("this PyTorch brings no cuDNN")
        made = lambda: torch.empty(1, 4, 128, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)  # noqa: E731
        q, k, v = made(), made(), made()
        with tempfile.TemporaryDirectory() as folder:
            try:
                qt.configure(folder)
                plans = qt.prepare(q, k, v, is_causal=True, softcap=30.0, gpu="h200")
                self.assertEqual([plan.source for plan in plans], ["built", "built"])
                plain = [t.detach() for t in (q, k, v)]
                again = qt.prepare(*plain, is_causal=True, softcap=30.0, return_lse=True, gpu="h200")
                self.assertEqual([plan.key for plan in again], [plans[0].key])
                self.assertNotEqual(again[0].source, "built")
                alone = qt.prepare(*plain, is_causal=True, softcap=30.0, gpu="h200")
                self.assertNotEqual([plan.key for plan in alone], [plans[0].key], "it writes no Stats")
            finally:
                qt.configure(FOLDER.name, cpu=True)


class Background(Case):
    def test_until_a_plan_is_built_pytorch_serves_and_afterwards_qkvault(self):
        from qkvault.torch import _background

        q, k, v = three(h=(2, 2), grad=True)
        asked, go, load = [], threading.Event(), _background._load

        def slow(context, text, training, *rest):
            asked.append((context.build, text.split("\n")[0], training))
            if not context.build:
                raise qkvault.PlanMissing("no plan")
            go.wait(30)

        try:
            qt.configure(FOLDER.name, cpu=True, background=True)
            _background._load = slow
            with qt.use(), self.assertLogs("qkvault", logging.WARNING) as logs:
                self.near(F.scaled_dot_product_attention(q, k, v), exact(q, k, v))
                self.near(F.scaled_dot_product_attention(q, k, v), exact(q, k, v))
            self.assertIn("built in the background", logs.output[0])
            with self.assertRaises(qkvault.PlanMissing):
                qt.attention(q, k, v)
            self.assertEqual([built for built, *_ in asked], [False, True], asked)
            go.set()
            for thread in threading.enumerate():
                if thread.name == "qkvault-build":
                    thread.join()
            self.near(qt.attention(q, k, v), exact(q, k, v))
            self.assertTrue(asked[1][2])
        finally:
            _background._load = load
            qt.configure(FOLDER.name, cpu=True)

    def test_the_description_is_the_one_that_the_kernel_completes(self):
        for outside in (True, False):
            q, k, v = three(heads_outside=outside)
            text = _spec.described(SPEC, q[:, :, ::2], k, v, True)
            o = qt.attention(q[:, :, ::2], k, v, is_causal=True)
            self.assertIn(f"o: f16 {list(o.shape)} strides {list(o.stride())}".replace(", ", ","), text)
            qkvault.Attention(text)


class Guide(unittest.TestCase):
    def test_the_examples_of_the_guide_run(self):
        guide = pathlib.Path(__file__).parents[3] / "crates/qkvault/src/guide/pytorch.md"
        first, *blocks = (block.split("```")[0] for block in guide.read_text().split("```python\n")[1:])
        names = {}
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(first, names)
            for name, parameter in names["layer"].named_parameters():
                self.assertTrue(parameter.grad.abs().sum() > 0, name)
            self.assertTrue(names["layer"].distance.abs().min() > 0, "the optimizer changed what the modification reads")
            self.assertLess(names["loss"].item(), 2.0)
            for block in blocks:
                exec(block, names)
        self.assertIn("sm_90", told.getvalue())


class Redirected(Case):
    def setUp(self):
        _redirect._told.clear()

    def test_inside_use_both_functions_run_on_qkvault_and_what_is_not_taken_is_told_once(self):
        q, k, v = three(h=(2, 2))
        calls = []
        original = _operators.run
        _operators.run = lambda *given: calls.append(given[4]) or original(*given)
        try:
            with qt.use():
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                b = torch.nn.attention.flex_attention.flex_attention(q, k, v)
                with self.assertLogs("qkvault", logging.WARNING) as logs:
                    for _ in range(2):
                        c = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
            outside = F.scaled_dot_product_attention(q, k, v)
        finally:
            _operators.run = original
        self.assertEqual(len(calls), 2)
        self.near(a, exact(q, k, v, None, causal))
        self.near(b, exact(q, k, v))
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertIn("bfloat16", logs.output[0])
        self.assertEqual(c.dtype, torch.float32)
        self.near(outside, exact(q, k, v))
        self.assertIs(torch.nn.attention.flex_attention.flex_attention, flex_attention)

    def test_the_drop_in_takes_the_shapes_of_sdpa(self):
        q = torch.randn(5, 12, 8, dtype=torch.float16)
        self.near(qt.scaled_dot_product_attention(q, q, q), F.scaled_dot_product_attention(q, q, q))
        with self.assertRaises(qkvault.ArgumentError):
            qt.scaled_dot_product_attention(q, q, q, torch.zeros(12, 12), is_causal=True)

    def test_models_of_transformers_give_the_logits_and_gradients_of_eager(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        small = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}  # fmt: skip
        name = qt.register_transformers()
        models = {
            "LlamaForCausalLM": transformers.LlamaConfig(**small),
            "Gemma2ForCausalLM": transformers.Gemma2Config(**small, sliding_window=4, query_pre_attn_scalar=8),
            "GptOssForCausalLM": transformers.GptOssConfig(
                **small, sliding_window=4, num_local_experts=2, num_experts_per_tok=1
            ),
            # Chunks of four tokens have a size as windows have, and were taken for the causal mask alone.
            "Llama4ForCausalLM": transformers.Llama4TextConfig(
                **small, intermediate_size_mlp=32, num_local_experts=2, num_experts_per_tok=1, attention_chunk_size=4,
                interleave_moe_layer_step=1, no_rope_layers=[1, 1],
            ),
            "MistralForCausalLM": transformers.MistralConfig(**small, sliding_window=4),
        }  # fmt: skip
        for (kind, config), checkpointing in itertools.product(models.items(), (None, False, True)):
            with self.subTest(model=kind, checkpointing=checkpointing):
                torch.manual_seed(3)
                config._attn_implementation = "eager"
                model = getattr(transformers, kind)(config).to(torch.bfloat16).train()
                if checkpointing is not None:
                    model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
                tokens = torch.randint(1, 40, (2, 10))
                results = []
                for implementation in ("eager", name):
                    model.set_attn_implementation(implementation)
                    model.zero_grad()
                    out = model(tokens, labels=tokens)
                    out.loss.backward()
                    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
                    results.append((out.logits.detach(), gradients))
                self.near(results[1][0], results[0][0], 0.03)
                self.assertEqual(results[0][1].keys(), results[1][1].keys())
                for n, gradient in results[0][1].items():
                    if "self_attn" in n and gradient.norm() > 1e-4:
                        self.near(results[1][1][n], gradient, 0.1)

    def test_a_prompt_in_a_static_cache_begins_at_the_first_key(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        small = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}  # fmt: skip
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)).to(torch.bfloat16).eval()
        model.set_attn_implementation(qt.register_transformers())
        tokens, found = torch.randint(1, 40, (2, 10)), []
        for cache in ("dynamic", "static"):
            more = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
            with torch.no_grad():
                out = model.generate(tokens, max_new_tokens=3, min_new_tokens=3, do_sample=False, output_logits=True,
                                     return_dict_in_generate=True, **more)  # fmt: skip
            found.append(out.logits[0])
        self.near(found[1], found[0], 0.02)

    def test_padding_behind_the_tokens_of_a_model_becomes_lengths_and_other_padding_a_mask(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        small = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}  # fmt: skip
        name = qt.register_transformers()
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)).to(torch.bfloat16)
        tokens, ones = torch.randint(1, 40, (2, 10)), torch.ones(2, 10, dtype=torch.long)
        behind, before = ones.clone(), ones.clone()
        behind[0, 6:], before[0, :4] = 0, 0
        specs, original = [], _operators.run
        try:
            _operators.run = lambda *given: specs.append(given[4]) or original(*given)
            for mask, word in ((ones, None), (behind, "lengths: per-sequence"), (before, "@mask != 0")):
                logits = []
                for implementation in ("eager", name):
                    model.set_attn_implementation(implementation)
                    logits.append(model(tokens, attention_mask=mask).logits)
                self.near(logits[1][mask.bool()], logits[0][mask.bool()], 0.03)
                spec = specs.pop()
                self.assertIn(word or "mask: causal", spec)
                self.assertEqual("mask_mod" in spec, word == "@mask != 0", spec)
        finally:
            _operators.run = original


if __name__ == "__main__":
    unittest.main()
