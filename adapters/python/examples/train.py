"""Training over several GPUs: a small language model whose sequence the ranks share, beside the same on one.

    torchrun --nproc-per-node=2 train.py          # a process for each GPU
    torchrun --nproc-per-node=2 train.py --cpu    # without GPUs, slowly: attention by the oracle

Each rank has its tokens, computes all that is done token by token for them alone, and meets the others in attention.
Then losses and gradients are added. It ends with an error if a loss differs from that of one rank.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import qkvault.torch as qt

WORDS, WIDTH, HEADS, KEYS, HEAD_DIM = 97, 64, 4, 2, 16


def rotated(x, positions):
    """Rotary embeddings, by the positions in the whole sequence."""
    angles = positions[:, None] * 100.0 ** -torch.arange(0, 1, 2 / HEAD_DIM, device=x.device)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.behind = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KEYS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, positions, attention):
        heads = self.qkv(self.before(x)).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        q, k, v = heads.split([HEADS, KEYS, KEYS], 1)
        q, k, v = (t.to(torch.bfloat16) for t in (rotated(q, positions), rotated(k, positions), v))
        x = x + self.out(attention(q, k, v).to(x.dtype).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.behind(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.words.weight, std=0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens, positions, attention):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, positions, attention)
        return x @ self.words.weight.T


def losses(device, steps, tokens, shared):
    """The loss of each step: of all ranks together, or of one that has everything."""
    torch.manual_seed(3)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    text = torch.randint(WORDS, (1, tokens + 1)).to(device)
    given, wanted, positions = text[:, :-1], text[:, 1:], torch.arange(tokens, device=device)
    attention = qt.context_parallel_attention if shared else qt.attention
    if shared:
        given, wanted = (qt.context_parallel_shard(x, 1) for x in (given, wanted))
        positions = qt.context_parallel_shard(positions, 0)
    found = []
    for _ in range(steps):
        scores = model(given, positions, lambda q, k, v: attention(q, k, v, is_causal=True))
        loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum") / tokens
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        if shared:  # Sums over ranks: each has its tokens' part of the loss, and of every gradient.
            dist.all_reduce(loss)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        found.append(loss.item())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tokens", type=int, help="of the whole sequence")
    parser.add_argument("--vault")
    args = parser.parse_args()
    device = torch.device("cpu") if args.cpu else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if not args.cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if args.cpu else "nccl")
    qt.configure(args.vault, cpu=args.cpu)
    tokens = args.tokens or (64 if args.cpu else 8192)
    together, alone = (losses(device, args.steps, tokens, shared) for shared in (True, False))
    if dist.get_rank() == 0:
        for step, (a, b) in enumerate(zip(together, alone)):
            print(f"step {step}: loss {a:.6f} over {dist.get_world_size()} ranks, {b:.6f} on one")
    dist.destroy_process_group()
    return max(abs(a - b) for a, b in zip(together, alone)) > 2e-3


if __name__ == "__main__":
    sys.exit(main())
