"""A program as a user writes it, which `mypy --strict` takes: `cargo xtask torch-tests` checks it, and runs it."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor

import qkvault
import qkvault.torch as qt


def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return 30.0 * torch.tanh(score / 30.0) - 0.1 * (q_idx - kv_idx)


def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return kv_idx <= q_idx


def main() -> None:
    with tempfile.TemporaryDirectory() as vault:
        context: qkvault.Context = qt.configure(vault, cpu=True)
        print(context)
        q, k, v = (torch.randn(2, 4, 16, 8, dtype=torch.float16, requires_grad=True) for _ in range(3))
        o: Tensor = qt.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, window=(8, 0), softcap=20.0)
        torch.autograd.backward(o.float().square().mean())
        assert q.grad is not None
        with torch.no_grad():
            both: tuple[Tensor, Tensor] = qt.attention(q, k, v, is_causal=True, return_lse=True)
            packed: Tensor = qt.varlen_attention(
                q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1),
                torch.tensor([0, 5, 16]), torch.tensor([0, 5, 16]), 11, 11,
            )  # fmt: skip
            pages = torch.randn(6, 4, 4, 8, dtype=torch.float16)
            table = torch.tensor([[0, 1], [3, 2]])
            paged: Tensor = qt.paged_attention(q[:, :, :1], pages, pages, table, torch.tensor([3, 8]))
            short: Tensor = qt.attention(q, k, v, kv_lengths=torch.tensor([3, 16]))
        assert both[1].shape == (2, 4, 16) and packed.shape == (16, 4, 8) and paged.shape == (2, 4, 1, 8)
        answer: qkvault.Explanation = qt.explain(q, k, v, is_causal=True, gpu="h200")
        codes: list[str] = [reason.code for reason in answer.reasons]
        print(short.shape, answer.text, codes)
        with qt.use():
            same: Tensor = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        assert same.shape == q.shape
        try:
            qt.attention(q.float(), k, v)
        except qkvault.ArgumentError as error:
            kind: str = error.kind
            print(kind)
        plans: list[qkvault.Plan] = []
        print(plans, qt.prepare, qt.attention_interface, qt.register_transformers, qt.Untraceable)


if __name__ == "__main__":
    main()
