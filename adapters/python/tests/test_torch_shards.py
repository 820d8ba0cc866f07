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
        of_head = lambda s, b, h, i, j: s + (h + 2 * b) * (j - i) * 0.1  # noqa: E731
        table, docs = torch.randn(4, 12), torch.tensor([[0] * 5 + [1] * 7, [0] * 8 + [1] * 4])
        reads = lambda s, b, h, i, j: s + table[h, j]  # noqa: E731
        of_docs = lambda b, h, i, j: (docs[b, i] == docs[b, j]) & (j <= i + h)  # noqa: E731
        cases = [
            ("heads", Shard(1), {"is_causal": True}, None), ("batch", Shard(0), {"is_causal": True}, None),
            ("whole", Replicate(), {"is_causal": True}, None), ("sequence", Shard(2), {"is_causal": True}, None),
            ("function", Shard(1), {"score_mod": cap, "is_causal": True}, cap),
        ]  # fmt: skip
        for place, axis in ((Shard(0), "batch"), (Shard(1), "heads"), (Replicate(), "whole"), (Shard(2), "sequence")):
            cases += [
                (f"reads both over {axis}", place, {"score_mod": of_head, "is_causal": True}, of_head),
                (f"reads tables over {axis}", place, {"score_mod": reads, "mask_mod": of_docs}, (reads, of_docs)),
            ]
        for name, place, options, score in cases:
            plain = [t.clone().requires_grad_() for t in full]
            wanted = exact(*plain, *(score if isinstance(score, tuple) else (score, causal)))
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
        def split(place):
            return [distribute_tensor(t, mesh, [place]) for t in full]

        bias, sinks = torch.randn(2, 4, 12, 12, dtype=torch.float16), torch.randn(4)
        more = [*(t.clone().requires_grad_() for t in full), bias.clone().requires_grad_(), sinks.clone().requires_grad_()]
        ends = torch.tensor([12, 7])
        wanted, right_lse = qt.attention(*more[:3], bias=more[3], sinks=more[4], kv_lengths=ends, return_lse=True)
        right = torch.autograd.grad((wanted * wanted).sum() + (right_lse * right_lse).sum(), more)
        for name, place in (("batch", Shard(0)), ("heads", Shard(1)), ("whole", Replicate())):
            given = [t.requires_grad_() for t in split(place)]
            given += [distribute_tensor(t.detach(), mesh, [Replicate()]).requires_grad_() for t in more[3:]]
            o, lse = qt.attention(*given[:3], bias=given[3], sinks=given[4], kv_lengths=ends, return_lse=True)
            parts = torch.autograd.grad((o * o).sum() + (lse * lse).sum(), given)
            errors = [o.full_tensor() - wanted, lse.full_tensor() - right_lse]
            errors += [a.full_tensor() - b for a, b in zip(parts, right)]
            found[f"bias and sinks over {name}"] = (str(o.placements[0]), [e.double().norm().item() for e in errors])
        given = [t.requires_grad_() for t in split(Shard(1))]
        o, lse = qt.attention(*given, return_lse=True, is_causal=True)
        plain = [t.clone().requires_grad_() for t in full]
        right = torch.autograd.grad(qt.attention(*plain, return_lse=True, is_causal=True)[1].sum(), plain[:2])
        parts = torch.autograd.grad(lse.sum(), given[:2])
        found["lse"] = (str(o.placements[0]), [(a.full_tensor() - b).double().norm().item() for a, b in zip(parts, right)])
        run = torch.compile(lambda *t: qt.attention(*t, score_mod=of_head), backend="aot_eager", fullgraph=True)
        given = [t.requires_grad_() for t in split(Shard(1))]
        o = run(*given)
        wanted = exact(*plain, of_head)
        right = torch.autograd.grad((wanted * wanted).sum(), plain)
        parts = torch.autograd.grad((o * o).sum(), given)
        errors = [o.full_tensor() - wanted, *(a.full_tensor() - b for a, b in zip(parts, right))]
        found["compiled"] = (str(o.placements[0]), [e.double().norm().item() for e in errors])
        learned, slope = bias.clone().requires_grad_(), torch.ones(4, requires_grad=True)
        for name, options in {
            "dropout": {"dropout_p": 0.5}, "plain bias": {"bias": learned},
            "capture": {"score_mod": lambda s, b, h, i, j: s * slope[h]},
        }.items():  # fmt: skip
            try:
                qt.attention(*split(Shard(1)), **options)
            except qkvault.ArgumentError as error:
                found[name] = str(error)
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
        found = queue.get(timeout=60)
        [worker.join(60) for worker in workers]
        self.assertEqual([worker.exitcode for worker in workers], [0, 0])
        self.assertIn("draw dropout's mask", found.pop("dropout"))
        self.assertIn("give distribute_tensor(bias, mesh", found.pop("plain bias"))
        self.assertRegex(found.pop("capture"), "tensor slope.* that the modification reads has a gradient")
        self.assertEqual(found["heads"][0], "S(1)")
        self.assertEqual(found["batch"][0], "S(0)")
        self.assertEqual(found["whole"][0], "R")
        for name, (_, errors) in found.items():
            with self.subTest(name):
                self.assertLess(max(errors), 0.2 if "sequence" == name else 0.1, errors)


if __name__ == "__main__":
    unittest.main()
