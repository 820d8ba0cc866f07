"""Microseconds of the host for calls of PyTorch's door, on the CPU, where outputs are made and nothing is computed.

    export QKVAULT_LIBRARY=target/release/libqkvault_c.so PYTHONPATH=adapters/python
    python3 adapters/python/tests/bench_torch.py

The least of batches: what is left is the work of Python, PyTorch and qkvault without a GPU.
"""

import ctypes
import tempfile
import time

import torch

import qkvault.torch as qt
from qkvault._library import call
from qkvault.torch import _context, _operators


def least(make, calls=2000, batches=9):
    for _ in range(200):
        make()
    rows = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(calls):
            make()
        rows.append((time.perf_counter() - start) / calls * 1e6)
    return min(rows)


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        context = qt.configure(folder)
        call("qkv_torch_use", ctypes.c_void_p(context._address), 2, _context._built)
        q, k, v = (torch.randn(1, 16, 8, 64, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
        given = [t.clone().requires_grad_() for t in (q, k, v)]
        d_o, spec = torch.randn_like(q), "numbers: scale :: mask: causal"
        bias = torch.zeros(1, 8, 16, 16, dtype=torch.bfloat16).requires_grad_()

        def score_mod(s, b, h, i, j):
            return s * 0.5

        def train(*inputs, **options):
            return torch.autograd.grad(qt.attention(*given, **options), [*given, *inputs], d_o)

        rows = {
            "torch.empty_like": lambda: torch.empty_like(q),
            "the operator, forward": lambda: _operators.attend(q, k, v, [], spec, [0.125]),
            "attention": lambda: qt.attention(q, k, v, is_causal=True),
            "attention, score_mod": lambda: qt.attention(q, k, v, score_mod=score_mod),
            "a product and its gradients": lambda: torch.autograd.grad(given[0] * given[1], given[:2], d_o),
            "attention and its gradients": lambda: train(is_causal=True),
            "the same with a bias": lambda: train(bias, bias=bias),
        }
        for name, make in rows.items():
            print(f"{name:30} {least(make):7.2f} us")


if __name__ == "__main__":
    main()
