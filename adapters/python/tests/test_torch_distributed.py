"""Training steps of two processes on the CPU: DDP and FSDP, with what a modification captures changing at each step.

    cargo xtask torch-tests
"""

import json
import os
import socket
import tempfile
import unittest

import torch
import torch.distributed as dist

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault.torch as qt
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

ROWS, HEADS, WIDTH = 16, 2, 16
SIZE = HEADS * WIDTH


class Layer(torch.nn.Module):
    """Attention with a cap and documents: qkvault's, or its definition."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(SIZE, 3 * SIZE, bias=False)
        self.cap = 2.0
        self.register_buffer("documents", torch.arange(ROWS) // 4)

    def score(self, score, b, h, i, j):
        return self.cap * torch.tanh(score / self.cap)

    def seen(self, b, h, i, j):
        return self.documents[i] == self.documents[j]

    def forward(self, x, own):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        if own:
            o = qt.attention(q, k, v, score_mod=self.score, mask_mod=self.seen)
        else:
            i, j = torch.arange(ROWS)[:, None], torch.arange(ROWS)
            scores = self.score(q.float() @ k.float().transpose(-1, -2) * WIDTH**-0.5, 0, 0, i, j)
            o = (scores.masked_fill(~self.seen(0, 0, i, j), -torch.inf).softmax(-1) @ v.float()).to(q.dtype)
        return x + o.transpose(1, 2).flatten(2)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x, own, checkpointed):
        for layer in self.layers:
            x = checkpoint(layer, x, own, use_reentrant=False) if checkpointed else layer(x, own)
        return x


def losses(kind, rank, own, checkpointed):
    torch.manual_seed(1)
    net = Layers().to(torch.bfloat16)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(net)
    else:
        mesh = init_device_mesh("cpu", (2,))
        for layer in net.layers:
            fully_shard(layer, mesh=mesh)
        model = fully_shard(net, mesh=mesh) or net
    optimizer, found = torch.optim.SGD(model.parameters(), 0.05), []
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        x = torch.randn(2, ROWS, SIZE, dtype=torch.bfloat16)
        for layer in net.layers:
            layer.cap = 2.0 + step
        loss = model(x, own, checkpointed).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def work(rank, port, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    qt.configure(os.path.join(folder, str(rank)), cpu=True)
    ways = {"definition": (False, False), "plain": (True, False), "checkpointed": (True, True)}
    found = {
        kind: {name: losses(kind, rank, *way) for name, way in ways.items()} for kind in ("ddp", "fsdp")
    }  # fmt: skip
    if rank == 0:
        with open(os.path.join(folder, "losses.json"), "w") as file:
            json.dump(found, file)
    dist.destroy_process_group()


class Processes(unittest.TestCase):
    def test_steps_of_two_processes_are_those_of_the_definition(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(work, (port, folder), 2)
            with open(os.path.join(folder, "losses.json")) as file:
                found = json.load(file)
        for kind, ways in found.items():
            for name in ("plain", "checkpointed"):
                for step, (a, b) in enumerate(zip(ways[name], ways["definition"])):
                    self.assertAlmostEqual(a, b, delta=2e-3, msg=f"{kind} {name} step {step}")
            self.assertNotEqual(ways["plain"][0], ways["plain"][2], kind)


if __name__ == "__main__":
    unittest.main()
