"""The same bits in any batch, on a GPU: sequences alone, in crowds, in chunks, as decodes, dense, packed and in pages.

    python3 card_invariant.py --out FOLDER        # QKVAULT_LIBRARY or the wheel, and NVRTC
"""

import argparse
import json
import pathlib
import random

import torch
import torch.nn.functional as F

import qkvault.torch as qt

DEVICE = torch.device("cuda", 0)
HEADS, DIM = (8, 2), 128


def exact(q, k, v):
    """Causal attention in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(HEADS[0] // HEADS[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * DIM**-0.5
    at = torch.arange(q.shape[2], device=DEVICE)[:, None]
    scores = scores.masked_fill(torch.arange(k.shape[2], device=DEVICE) > at, float("-inf"))
    return scores.softmax(-1) @ v


def whole(q, k, v):
    return qt.attention(q, k, v, is_causal=True, invariant=True)


def chunk(q, k, v, first, count):
    """Some queries of a sequence over the keys up to their last one."""
    end = first + count
    return qt.attention(
        q[:, :, first:end].contiguous(), k[:, :, :end].contiguous(), v[:, :, :end].contiguous(), is_causal=True,
        bottom_right=True, invariant=True,
    )  # fmt: skip


def crowd(sequences, which):
    """Sequences of a batch, as long as the longest one."""
    lengths = [sequences[n][0].shape[2] for n in which]
    room = max(lengths)
    q, k, v = (
        torch.stack([F.pad(sequences[n][part][0], (0, 0, 0, room - length)) for n, length in zip(which, lengths)])
        for part in range(3)
    )
    given = torch.tensor(lengths, device=DEVICE)
    o = qt.attention(q, k, v, is_causal=True, q_lengths=given, kv_lengths=given, invariant=True)
    return [o[at : at + 1, :, :length] for at, length in enumerate(lengths)]


def packed(sequences, which):
    """The same behind each other."""
    lengths = [sequences[n][0].shape[2] for n in which]
    q, k, v = (torch.cat([sequences[n][part][0].transpose(0, 1) for n in which]) for part in range(3))
    ends = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)
    o = qt.varlen_attention(q, k, v, ends, ends, max(lengths), max(lengths), is_causal=True, invariant=True)
    return [part.transpose(0, 1)[None] for part in o.split(lengths)]


def decodes(sequences, which, page, rng):
    """The last query of each, over pages in any order."""
    lengths = [sequences[n][0].shape[2] for n in which]
    counts = [-(-length // page) for length in lengths]
    order = list(range(sum(counts) + 3))
    rng.shuffle(order)
    pools = [torch.full((len(order), page, HEADS[1], DIM), 3e4, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
    tables = torch.zeros((len(which), max(counts)), dtype=torch.int32)
    for at, n in enumerate(which):
        for number in range(counts[at]):
            tables[at, number] = place = order.pop()
            for pool, rows in zip(pools, sequences[n][1:]):
                part = rows[0, :, number * page : (number + 1) * page].transpose(0, 1)
                pool[place, : part.shape[0]] = part
    q = torch.cat([sequences[n][0][:, :, -1:] for n in which])
    given = torch.tensor(lengths, device=DEVICE)
    o = qt.paged_attention(q, *pools, tables.to(DEVICE), given, invariant=True)
    return [o[at : at + 1] for at in range(len(which))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    args = parser.parse_args()
    torch.manual_seed(1)
    rng = random.Random(1)
    qt.configure(build=True)
    sequences = [
        tuple(torch.randn(1, heads, length, DIM, device=DEVICE, dtype=torch.bfloat16) for heads in (8, 2, 2))
        for length in (1, 70, 256, 300, 1000, 2300)
    ]
    with torch.no_grad():
        alone = [whole(*sequence) for sequence in sequences]
        worst = max((o.double() - exact(*sequence)).abs().max().item() for o, sequence in zip(alone, sequences))
        compared = 0

        def same(o, n, first, what):
            nonlocal compared
            assert torch.equal(o, alone[n][:, :, first : first + o.shape[2]]), (what, n, first)
            compared += o.shape[2]

        for n in (2, 4, 5):
            length = sequences[n][0].shape[2]
            for first in sorted({0, length // 3, length - 1}):
                same(chunk(*sequences[n], first, max(1, (length - first) // 2)), n, first, "a chunk")
        for which in ([0, 1, 2, 3, 4, 5], [5, 5, 1], [4, 3]):
            for o, n in zip(crowd(sequences, which), which):
                same(o, n, 0, "a crowd")
            for o, n in zip(packed(sequences, which), which):
                same(o, n, 0, "packed")
            for page in (16, 64):
                for o, n in zip(decodes(sequences, which, page, rng), which):
                    same(o, n, sequences[n][0].shape[2] - 1, f"pages of {page}")
    # A trainer: the forward keeps its bits, and any engine computes gradients.
    q, k, v = (t.clone().requires_grad_() for t in sequences[4])
    o = whole(q, k, v)
    assert torch.equal(o, alone[4])
    d_o = torch.randn_like(o)
    mine = torch.autograd.grad(o, (q, k, v), d_o)
    right = torch.autograd.grad(exact(q, k, v), (q, k, v), d_o.double())
    gradient = max((a.double() - b).abs().max().item() for a, b in zip(mine, right))
    assert worst < 0.02 and gradient < 0.1 and compared > 10_000, (worst, gradient, compared)
    report = {
        "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "queries": compared, "different": 0,
        "largest_error": round(worst, 5), "largest_gradient_error": round(gradient, 5),
    }  # fmt: skip
    (args.out / "invariant-torch.json").write_text(json.dumps(report, indent=1) + "\n")
    print(report)


if __name__ == "__main__":
    main()
