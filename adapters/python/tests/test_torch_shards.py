"""Distributed tensors through `qkvault.torch`: two processes on the CPU, with the oracle instead of GPUs.

    cargo xtask torch-tests
"""

import os
import sys
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import torch.multiprocessing as mp
from torch_common import causal, exact, three


def work(rank, port, queue):
    import tempfile

    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import qkvault
    import qkvault.torch as qt

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        qt.configure(tempfile.mkdtemp(), cpu=True)
        mesh, found = init_device_mesh("cpu", (2,)), {}
        torch.manual_seed(7)
        full = three(h=(4, 2))
        cap = lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0)  # noqa: E731
        of_head = lambda s, b, h, i, j: s + h * (j - i) * 0.1  # noqa: E731
        cases = [
            ("heads", Shard(1), {"is_causal": True}, None), ("batch", Shard(0), {"is_causal": True}, None),
            ("whole", Replicate(), {"is_causal": True}, None), ("sequence", Shard(2), {"is_causal": True}, None),
            ("function", Shard(1), {"score_mod": cap, "is_causal": True}, cap),
            ("reads heads", Shard(0), {"score_mod": of_head, "is_causal": True}, of_head),
        ]  # fmt: skip
        for name, place, options, score in cases:
            plain = [t.clone().requires_grad_() for t in full]
            wanted = exact(*plain, score, causal)
            d_o = torch.ones_like(wanted)
            right = torch.autograd.grad((wanted * wanted).sum(), plain)
            given = [distribute_tensor(t.detach(), mesh, [place]).requires_grad_() for t in plain]
            o = qt.attention(*given, **options)
            parts = torch.autograd.grad((o * o).sum(), given)
            errors = [o.full_tensor() - wanted, *(a.full_tensor() - b for a, b in zip(parts, right))]
            kept = str(o.placements[0])
            with torch.no_grad():
                alone = qt.attention(*given, **options).full_tensor()
            errors.append(alone - wanted)
            found[name] = (kept, [e.double().norm().item() for e in errors])
        bias = torch.zeros(1, 4, 12, 12, dtype=torch.float16)
        try:
            qt.attention(*(distribute_tensor(t, mesh, [Shard(0)]) for t in full), bias=bias)
        except qkvault.ArgumentError as error:
            found["bias"] = str(error)
        try:
            qt.attention(*(distribute_tensor(t, mesh, [Shard(1)]) for t in full), score_mod=of_head)
        except qkvault.ArgumentError as error:
            found["head"] = str(error)
        if rank == 0:
            queue.put(found)
    finally:
        dist.destroy_process_group()


class Shards(unittest.TestCase):
    def test_batch_and_heads_are_computed_in_parts_and_other_axes_are_gathered(self):
        if not torch.distributed.is_available():
            self.skipTest("this PyTorch has no distributed tensors")
        context = mp.get_context("spawn")
        queue = context.Queue()
        workers = [context.Process(target=work, args=(rank, 29517, queue)) for rank in range(2)]
        [worker.start() for worker in workers]
        found = queue.get(timeout=120)
        [worker.join(60) for worker in workers]
        self.assertEqual([worker.exitcode for worker in workers], [0, 0])
        self.assertIn("local_map", found.pop("bias"))
        self.assertIn("reads the head, over which q is sharded", found.pop("head"))
        self.assertEqual(found["heads"][0], "S(1)")
        self.assertEqual(found["batch"][0], "S(0)")
        self.assertEqual(found["whole"][0], "R")
        for name, (_, errors) in found.items():
            with self.subTest(name):
                self.assertLess(max(errors), 0.2 if "sequence" == name else 0.1, errors)


if __name__ == "__main__":
    unittest.main()
