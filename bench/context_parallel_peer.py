#!/usr/bin/env python3
"""PyTorch's context_parallel over several GPUs beside one GPU that computes all of it: the peer of `bench parallel`.

    python3 -m torch.distributed.run --nproc-per-node 2 context_parallel_peer.py --out PEER.json [--tokens 8192 16384]

First what NCCL moves, then causal attention of 32 query heads, head dim 128, bf16, over each rotation method that
PyTorch has (https://docs.pytorch.org/tutorials/unstable/context_parallel.html), forward and forward + backward.
`of_ideal` is the time of one GPU divided by the ranks, over the time of all ranks. Medians; ranks begin at a barrier.
"""
import argparse
import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def milliseconds(step, rounds=5):
    """The median of some rounds, each from a barrier on, on this rank's GPU."""
    for _ in range(2):
        step()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        dist.barrier()
        torch.cuda.synchronize()
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    times.sort()
    return times[len(times) // 2]


def slowest(ms):
    """The time of the slowest rank."""
    time = torch.tensor([ms], device="cuda")
    dist.all_reduce(time, op=dist.ReduceOp.MAX)
    return time.item()


def links(rank, ranks):
    """GB/s of messages to a neighbour, and of an all-gather, by MB of a rank."""
    rows = []
    for mb in (1, 4, 16, 64, 256):
        sent = torch.empty(mb << 19, device="cuda", dtype=torch.bfloat16)
        received, gathered = torch.empty_like(sent), torch.empty(ranks * sent.numel(), device="cuda", dtype=sent.dtype)

        def neighbour():
            ops = [dist.P2POp(dist.isend, sent, (rank + 1) % ranks), dist.P2POp(dist.irecv, received, (rank - 1) % ranks)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        rate = lambda step: (mb << 20) / milliseconds(step) / 1e6
        rows.append({"mb": mb, "neighbour": rate(neighbour), "gather": rate(lambda: dist.all_gather_into_tensor(gathered, sent))})
    return rows


def steps(q, k, v, gradient, grouped):
    """A forward, and a forward with its backward."""
    options = {"is_causal": True, "enable_gqa": grouped}
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    forward = lambda: F.scaled_dot_product_attention(q, k, v, **options)
    return forward, lambda: F.scaled_dot_product_attention(*leaves, **options).backward(gradient)


def rows(mesh, ranks, tokens, kv_heads, backend):
    torch.manual_seed(0)
    make = lambda heads: torch.randn(1, heads, tokens * ranks, 128, device="cuda", dtype=torch.bfloat16)
    q, k, v, gradient = make(32), make(kv_heads), make(kv_heads), make(32)
    grouped = kv_heads != 32
    found = []
    with sdpa_kernel(BACKENDS[backend]):
        alone = [milliseconds(step) for step in steps(q, k, v, gradient, grouped)]
        for method in ("allgather", "alltoall"):
            set_rotate_method(method)
            own = [x.clone() for x in (q, k, v, gradient)]
            with context_parallel(mesh, buffers=own, buffer_seq_dims=[2] * 4, no_restore_buffers=set(own)):
                shared = [slowest(milliseconds(step)) for step in steps(*own, grouped)]
            for name, one, all_ranks in zip(("forward", "forward + backward"), alone, shared):
                found.append(
                    {
                        "tokens_a_rank": tokens, "kv_heads": kv_heads, "backend": backend, "rotation": method,
                        "direction": name, "one_gpu_ms": one, "ranks_ms": all_ranks, "of_ideal": one / ranks / all_ranks,
                    }
                )
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="peer.json")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--kv-heads", type=int, nargs="+", default=[8, 32])
    args = parser.parse_args()
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (ranks,))
    record = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "ranks": ranks}
    record["gpu"] = torch.cuda.get_device_name()
    record["links_GBps"], record["rows"], record["failed"] = links(rank, ranks), [], []
    for tokens in args.tokens:
        for kv_heads in args.kv_heads:
            for backend in BACKENDS:
                case = f"{tokens} tokens, {kv_heads} key heads, {backend}"
                try:
                    record["rows"] += rows(mesh, ranks, tokens, kv_heads, backend)
                except Exception as error:
                    record["failed"].append(f"{case}: {type(error).__name__}: {str(error)[:200]}")
                dist.barrier()
                if rank == 0:
                    print(case, flush=True)
                    with open(args.out, "w") as file:
                        json.dump(record, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
