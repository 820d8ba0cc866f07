"""What a call of PyTorch's door costs on the host, and the way of training calls through PyTorch's own derivative.

    cargo xtask torch-tests

`bench_torch.py` measures; here Python's calls are counted, which gives the same number on every machine.
"""

import gc
import os
import resource
import sys
import unittest

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault.torch as qt
from qkvault.torch import _native
from torch_common import FOLDER, Case, causal, exact, three

NODE = "ScaledDotProductFusedAttentionOverrideableBackward0"


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


def calls_of(make):
    """How many functions of Python are called, those of C++ not counted."""
    count = 0

    def told(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    for _ in range(3):
        make()
    gc.disable()
    sys.setprofile(told)
    try:
        make()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


class Native(Case):
    def setUp(self):
        torch.manual_seed(4)
        if not _native.known:
            self.skipTest("this PyTorch has another operator")

    def trained(self, options, q, k, v):
        o = qt.attention(q, k, v, **options)
        return o, torch.autograd.grad(o.float().square().sum(), (q, k, v))

    def test_from_the_second_step_on_gradients_need_no_python_and_are_the_same(self):
        half = lambda s, b, h, i, j: s * 0.5  # noqa: E731
        for options in ({"is_causal": True, "softcap": 3.0}, {"window": 4}, {"score_mod": half}):
            for outside in (True, False):
                with self.subTest(options=options, outside=outside):
                    _native._kept.clear()
                    q, k, v = three(heads_outside=outside, grad=True)
                    o, first = self.trained(options, q, k, v)
                    self.assertEqual(type(o.grad_fn).__name__, "AttendBackward")
                    again, second = self.trained(options, q, k, v)
                    self.assertEqual(type(again.grad_fn).__name__, NODE)
                    self.assertEqual(o.stride(), again.stride())
                    for a, b in zip((o, *first), (again, *second)):
                        self.assertTrue(torch.equal(a, b))
                    self.assertEqual([g.stride() for g in first], [g.stride() for g in second])

    def test_a_gradient_of_any_strides_and_one_of_three_gradients(self):
        q, k, v = three(h=(2, 2), grad=True)
        options = {"is_causal": True}
        self.trained(options, q, k, v)
        wanted = exact(q, k, v, None, causal)
        turned = lambda o: o.transpose(1, 2).flatten().double().square().sum()  # noqa: E731
        for loss in (torch.sum, turned, lambda o: o[:, :1].sum()):
            o = qt.attention(q, k, v, **options)
            self.assertEqual(type(o.grad_fn).__name__, NODE)
            self.near(torch.autograd.grad(loss(o), v)[0], torch.autograd.grad(loss(wanted), v, retain_graph=True)[0])
        o = qt.attention(q.detach(), k, v.detach(), **options)
        (d_k,) = torch.autograd.grad(o.float().square().sum(), k)
        self.near(d_k, torch.autograd.grad(wanted.square().sum(), k)[0], 1e-2)

    def test_a_second_derivative_is_refused_in_words(self):
        q, k, v = three(grad=True)
        for node in ("AttendBackward", NODE):
            if node == "AttendBackward":
                _native._kept.clear()
            o = qt.attention(q, k, v)
            self.assertEqual(type(o.grad_fn).__name__, node)
            (d_q,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
            with self.assertRaisesRegex(NotImplementedError, "no second derivative; compute this part with"):
                d_q.sum().backward()
            self.trained({}, q, k, v)

    def test_modes_that_watch_operators_see_qkvault_s(self):
        seen = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        q, k, v = three(grad=True)
        self.trained({}, q, k, v)
        with Watch():
            self.trained({}, q, k, v)
        self.assertIn("qkvault.forward_only.default", seen)
        self.assertFalse([name for name in seen if "overrideable" in name], seen)

    def test_the_operator_of_pytorch_refuses_other_callers_and_sdpa_never_chooses_it(self):
        q, k, v = three(h=(2, 2))
        operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
        for given in ((), (None, 0.5), (None, -9999.0), (None, float("nan"))):
            with self.assertRaisesRegex(RuntimeError, "for qkvault alone"):
                operator(q, k, v, *given)
        o = torch.nn.functional.scaled_dot_product_attention(*(t.detach().requires_grad_() for t in (q, k, v)))
        self.assertNotEqual(type(o.grad_fn).__name__, NODE)

    def test_nothing_is_leaked_by_steps_and_refusals(self):
        q, k, v = three(grad=True)
        operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable

        def step():
            self.trained({}, q, k, v)
            try:
                operator(q, k, v)
            except RuntimeError:
                pass

        [step() for _ in range(200)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        [step() for _ in range(2000)]
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 2048, "KiB")

    def test_numbers_that_change_with_every_step_do_not_fill_the_list(self):
        q, k, v = three(grad=True)
        for n in range(5):
            self.trained({"softcap": 1.0 + n}, q, k, v)
        kept = {key for key in _native._kept if "softcap" in key[0]}
        self.assertGreaterEqual(len(kept), 5)
        full = dict.fromkeys(range(1024), 0.0)
        original, _native._kept = _native._kept, full
        try:
            o, _ = self.trained({"softcap": 77.0}, q, k, v)
            self.assertEqual((len(full), type(o.grad_fn).__name__), (1024, "AttendBackward"))
        finally:
            _native._kept = original


class Costs(Case):
    """Functions of Python in a call. A change that adds some shows here, before it costs microseconds on a GPU."""

    def test_a_forward_calls_few_functions_of_python(self):
        q, k, v = three()
        self.assertLessEqual(calls_of(lambda: qt.attention(q, k, v, is_causal=True)), 8)

    def test_a_training_step_calls_no_more_than_a_product(self):
        if not _native.known:
            self.skipTest("this PyTorch has another operator")
        q, k, v = three(h=(2, 2), grad=True)
        d_o = torch.ones_like(q)
        floor = calls_of(lambda: torch.autograd.grad(q * k, (q, k, v), d_o, allow_unused=True))
        step = calls_of(lambda: torch.autograd.grad(qt.attention(q, k, v, is_causal=True), (q, k, v), d_o))
        self.assertLessEqual(step - floor, 12, (step, floor))


if __name__ == "__main__":
    unittest.main()
