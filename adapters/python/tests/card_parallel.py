"""A sequence over several GPUs through `qkvault.torch` or `qkvault.jax`, beside one GPU: right numbers, and times.

    torchrun --nproc-per-node=2 card_parallel.py --torch --out DIR [--one-gpu] [--vault DIR]   # one process for each GPU
    python3 card_parallel.py --jax --out DIR [--vault DIR]                                      # all GPUs that it sees

With `--one-gpu`, PyTorch's ranks share the first GPU and exchange over gloo, on the host: numbers alone. Writes
DIR/adapter-parallel-{torch,jax}.json; exit code 0 if no number is wrong. Rows of `times` are milliseconds of a forward
and of a forward with backward, causal: of the ranks together, and of one GPU over half of the sequence's work; with
`prefixes` of 4 (keys before a chunk's end, in quarters) and 1 (all keys: blocks behind the band must be skipped). Rows
with a `window` are of causal windows, of which the halo alone moves, beside one GPU's own rows.
"""

import argparse
import functools
import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if (folder / "qkvault" / "__init__.py").exists():
        sys.path.insert(0, str(folder))
PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--out", type=pathlib.Path, required=True)
PARSER.add_argument("--torch", action="store_true")
PARSER.add_argument("--jax", action="store_true")
PARSER.add_argument("--one-gpu", action="store_true")
PARSER.add_argument("--vault")
PARSER.add_argument("--window", type=int, default=4096, help="keys before the query, for times")
PARSER.add_argument("--rows", type=int, nargs="*", default=[8192, 32768], help="tokens of a rank, for times")
ARGS = PARSER.parse_args()
BOUND, HEADS, KEYS, WIDTH = 3e-2, 32, 8, 128
CASES = {
    "plain": {}, "causal": {"is_causal": True}, "window": {"is_causal": True, "window": 300},
    "both sides": {"window": (200, 100)}, "softcap": {"is_causal": True, "softcap": 5.0},
    "alibi": {"is_causal": True, "alibi": True}, "positions": {"is_causal": True, "window": 300, "positions": True},
}  # fmt: skip
#: What is timed, causal: with keys in quarters, over all keys, and through a window, of which the halo moves.
SPEEDS = [{"prefixes": 4}, {"prefixes": 1}, {"window": ARGS.window}]
FORMS = [("gather", "zigzag"), ("gather", "contiguous"), ("heads", "zigzag")]


def options_of(case, slopes):
    """Arguments of both frameworks."""
    options = dict(case)
    if options.pop("alibi", False):
        options["score_mod"] = lambda s, b, h, i, j: s - slopes[h] * (i - j)
    if options.pop("positions", False):
        options["score_mod"] = lambda s, b, h, i, j: s - 0.001 * j
    return options


def with_torch(found):
    import torch
    import torch.distributed as dist

    import qkvault.torch as qt

    local = 0 if ARGS.one_gpu else int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    dist.init_process_group("cpu:gloo,cuda:gloo" if ARGS.one_gpu else "nccl")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    qt.configure(ARGS.vault)
    slopes = 2.0 ** -(torch.arange(HEADS, device=device) / 4.0)

    def make(rows, seed):
        torch.manual_seed(seed)
        sizes = [(1, h, rows, WIDTH) for h in (HEADS, KEYS, KEYS, HEADS)]
        return [torch.randn(size, device=device, dtype=torch.bfloat16) for size in sizes]

    for name, case in CASES.items():
        *whole, d_o = make(1024 * ranks, 5)
        whole, options = [x.requires_grad_() for x in whole], options_of(case, slopes)
        o = qt.attention(*whole, **options)
        exact = [o, *torch.autograd.grad(o, whole, d_o)]
        for strategy, order in FORMS:
            mine = lambda x: qt.context_parallel_shard(x, 2, order=order)  # noqa: B023, E731
            parts = [mine(x.detach()).requires_grad_() for x in whole]
            o = qt.context_parallel_attention(*parts, strategy=strategy, order=order, **options)
            got = [o, *torch.autograd.grad(o, parts, mine(d_o))]
            errors = [((a - mine(b)).float().norm() / b.float().norm()).item() for a, b in zip(got, exact)]
            worst = torch.tensor(max(errors) if all(e == e for e in errors) else 9.0, device=device)
            dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            found["right"][f"{name} {strategy} {order}"] = worst.item()

    def timed(run):
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            run()
        torch.cuda.synchronize()
        return round((time.perf_counter() - begin) * 100, 3)

    for rows in [] if ARGS.one_gpu else ARGS.rows:
        parts = [x.requires_grad_() for x in make(rows, rank)[:3]]
        d_o = torch.randn_like(parts[0])
        # One GPU that has a rank's share of the work: its queries over all keys, without a mask over half of them.
        keys = [x.repeat(1, 1, ranks // 2 or 1, 1).detach() for x in parts[1:]]
        own = [x.detach().requires_grad_() for x in parts]
        for options in SPEEDS:
            window = options.get("window")

            def shared():
                return qt.context_parallel_attention(*parts, is_causal=True, **options)  # noqa: B023

            def alone():
                if window is None:  # noqa: B023
                    return qt.attention(parts[0], *keys)  # noqa: B023
                return qt.attention(*own, is_causal=True, window=window)  # noqa: B023

            step = lambda run, inputs: lambda: torch.autograd.grad(run(), inputs, d_o)  # noqa: B023, E731
            row = {"rows": rows, **options}
            with torch.no_grad():
                row["forward"], row["ideal"] = timed(shared), timed(alone)
            row["step"] = timed(step(shared, parts))
            row["ideal step"] = timed(step(alone, parts[:1] if window is None else own))
            found["times"].append(row)
    dist.destroy_process_group()
    return rank == 0


def with_jax(found):
    import jax
    import jax.numpy as jnp
    import numpy as np

    import qkvault.jax as qj

    qj.configure(vault=ARGS.vault)
    devices, part = jax.devices(), jax.sharding.PartitionSpec(None, "seq")
    ranks = len(devices)
    mesh = jax.sharding.Mesh(np.array(devices), ("seq",))
    small = jax.default_backend() not in ("gpu", "cuda")
    heads, kv, width, rows = (4, 4, 16, 16) if small else (HEADS, KEYS, WIDTH, 1024)
    slopes = 2.0 ** -(jnp.arange(heads) / 4.0)

    def make(rows, seed):
        sizes = [(1, rows, h, width) for h in (heads, kv, kv, heads)]
        return [jax.random.normal(jax.random.key(seed + n), size, jnp.bfloat16) for n, size in enumerate(sizes)]

    def shared(strategy, order, **options):
        def local(q, k, v):
            return qj.context_parallel_attention(
                q, k, v, axis_name="seq", strategy=strategy, order=order, **options)

        return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(part,) * 3, out_specs=part))

    def both(run, given, d_o):
        o, pull = jax.vjp(run, *given)
        return o, *pull(d_o)

    place = lambda x: jax.device_put(x, jax.sharding.NamedSharding(mesh, part))  # noqa: E731
    for name, case in CASES.items():
        *whole, d_o = make(rows * ranks, 5)
        options = options_of(case, slopes)
        exact = both(lambda *a: qj.attention(*a, **options), whole, d_o)  # noqa: B023
        for strategy, order in FORMS:
            to, back = (qj.zigzag, qj.unzigzag) if order == "zigzag" else (lambda x, n: x, lambda x, n: x)
            given = [place(to(x, ranks)) for x in (*whole, d_o)]
            got = both(shared(strategy, order, **options), given[:3], given[3])
            errors = []
            for a, b in zip(got, exact):
                a, b = np.asarray(back(a, ranks), np.float64), np.asarray(b, np.float64)
                errors.append(float(np.linalg.norm(a - b) / np.linalg.norm(b)))
            found["right"][f"{name} {strategy} {order}"] = max(errors)

    def timed(run, *args):
        jax.block_until_ready(run(*args))
        begin = time.perf_counter()
        for _ in range(10):
            last = run(*args)
        jax.block_until_ready(last)
        return round((time.perf_counter() - begin) * 100, 3)

    for rows in [] if small or ranks < 2 else ARGS.rows:
        q, k, v, d_o = (place(x) for x in make(rows * ranks, 1))
        one = [x[:, : rows * (ranks // 2 or 1)] for x in (k, v)]
        given = [jax.device_put(x, devices[0]) for x in (q[:, :rows], *one)]
        own = [jax.device_put(x[:, :rows], devices[0]) for x in (q, k, v)]
        own_d_o = jax.device_put(d_o[:, :rows], devices[0])
        for options in SPEEDS:
            run, windowed = shared("gather", "zigzag", is_causal=True, **options), "window" in options
            alone = functools.partial(qj.attention, is_causal=True, **options) if windowed else qj.attention
            mine = own if windowed else given
            step = lambda run: jax.jit(lambda q, k, v, d_o: both(run, (q, k, v), d_o)[1:])  # noqa: B023, E731
            row = {"rows": rows, **options, "forward": timed(run, q, k, v), "ideal": timed(jax.jit(alone), *mine)}
            row["step"] = timed(step(run), q, k, v, d_o)
            row["ideal step"] = timed(step(alone), *mine, own_d_o)
            found["times"].append(row)
    return True


def main():
    found = {"right": {}, "times": []}
    tell = with_torch(found) if ARGS.torch else with_jax(found)
    wrong = [name for name, error in found["right"].items() if not error < BOUND]
    if tell:
        ARGS.out.mkdir(parents=True, exist_ok=True)
        name = f"adapter-parallel-{'torch' if ARGS.torch else 'jax'}.json"
        (ARGS.out / name).write_text(json.dumps({**found, "wrong": wrong}, indent=1) + "\n")
        print(json.dumps(found, indent=1), "\nWRONG" if wrong else "\nall right", wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
