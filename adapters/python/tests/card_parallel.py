"""A sequence over several GPUs through `qkvault.torch` or `qkvault.jax`, beside one GPU: right numbers, and times.

    torchrun --nproc-per-node=2 card_parallel.py --torch --out DIR [--vault DIR] [--rust FILE]  # a process for each GPU
    python3 card_parallel.py --jax --out DIR [--vault DIR]                                      # all GPUs that it sees

Writes DIR/adapter-parallel-{torch,jax}.json; exit code 0 if no number is wrong. Rows of `times` of PyTorch are those of
`qkvault-lab bench parallel`, whose record `--rust` names: milliseconds of one GPU with everything, of the ranks
together, and of a rank's host; `of_ideal` is the time of one GPU divided by the ranks, over that of the ranks, and
`of_rust` the best gather of the crate over it. Those of JAX are of one GPU over half of the sequence's work, with
`prefixes` of 4 (keys before a chunk's end, in quarters) and 1 (all keys). With `--cpu`, PyTorch's ranks compute small
numbers by the oracle, without times: whether the program runs. `--random` adds so many attentions, each of which runs
three times: steps, then graphs.
"""

import argparse
import functools
import json
import os
import pathlib
import random
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
PARSER.add_argument("--cpu", action="store_true")
PARSER.add_argument("--rust", type=pathlib.Path, help="the record of qkvault-lab bench parallel")
PARSER.add_argument("--vault")
PARSER.add_argument("--window", type=int, default=4096, help="keys before the query, for times")
PARSER.add_argument("--rows", type=int, nargs="*", default=[8192, 32768], help="tokens of a rank, for times")
PARSER.add_argument("--random", type=int, default=0, help="random attentions of PyTorch, besides the others")
PARSER.add_argument("--seed", type=int, default=1, help="of the random attentions")
ARGS = PARSER.parse_args()
BOUND, HEADS, KEYS, WIDTH = 3e-2, 32, 8, 128
CASES = {
    "plain": {}, "causal": {"is_causal": True}, "window": {"is_causal": True, "window": 300},
    "both sides": {"window": (200, 100)}, "softcap": {"is_causal": True, "softcap": 5.0},
    "alibi": {"is_causal": True, "alibi": True}, "positions": {"is_causal": True, "window": 300, "positions": True},
}  # fmt: skip
#: What is timed of JAX, causal: with keys in quarters, over all keys, and through a window, of which the halo moves.
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

    import qkvault
    import qkvault.torch as qt

    device = torch.device("cpu" if ARGS.cpu else f"cuda:{os.environ['LOCAL_RANK']}")
    if not ARGS.cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if ARGS.cpu else "nccl")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    qt.configure(ARGS.vault, cpu=ARGS.cpu)
    heads, keys, width, rows = (4, 2, 16, 16) if ARGS.cpu else (HEADS, KEYS, WIDTH, 1024)
    slopes = lambda heads: 2.0 ** -(torch.arange(heads, device=device) / 4.0)  # noqa: E731

    def make(rows, seed, batch=1, heads=heads, keys=keys, width=width, dtype=torch.bfloat16):
        """Q, K, V and the gradient of O, with the heads of a row side by side."""
        torch.manual_seed(seed)
        sizes = [(batch, rows, h, width) for h in (heads, keys, keys, heads)]
        return [torch.randn(size, device=device, dtype=dtype).transpose(1, 2) for size in sizes]

    def judge(name, whole, d_o, options, forms, runs=1):
        """The largest relative error of O and of the gradients of any rank, in every run."""
        whole = [x.requires_grad_() for x in whole]
        o = qt.attention(*whole, **options)
        exact = [o, *torch.autograd.grad(o, whole, d_o)]
        for strategy, order in forms:
            mine = lambda x: qt.context_parallel_shard(x, 2, order=order)  # noqa: B023, E731
            parts, errors = [mine(x.detach()).requires_grad_() for x in whole], []
            for _ in range(runs):
                o = qt.context_parallel_attention(*parts, strategy=strategy, order=order, **options)
                got = [o, *torch.autograd.grad(o, parts, mine(d_o))]
                errors += [((a - mine(b)).float().norm() / b.float().norm()).item() for a, b in zip(got, exact)]
            worst = torch.tensor(max(errors) if all(e == e for e in errors) else 9.0, device=device)
            dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            found["right"][f"{name} {strategy} {order}"] = worst.item()

    for name, case in CASES.items():
        *whole, d_o = make(rows * ranks, 5)
        judge(name, whole, d_o, options_of(case, slopes(heads)), FORMS)
    draw, start = random.Random(ARGS.seed), time.perf_counter()
    for number in range(ARGS.random):
        name = draw.choice(list(CASES))
        count, share = draw.choice([2, 4, 8, 12]), draw.choice([1, 2, 2, 4])
        shape = {
            "batch": draw.choice([1, 1, 2]), "heads": count, "keys": max(count // share, 1),
            "width": 16 if ARGS.cpu else draw.choice([64, 128]),
            "dtype": draw.choice([torch.bfloat16, torch.float16]),
        }  # fmt: skip
        length = (16 if ARGS.cpu else 64) * draw.randint(1, 2 if ARGS.cpu else 24)
        *whole, d_o = make(length * ranks, number, **shape)
        if draw.random() < 0.4:
            whole, d_o = [x.contiguous() for x in whole], d_o.contiguous()
        options, form = options_of(CASES[name], slopes(count)), draw.choice(FORMS)
        words = f"{number}: {name} {length} rows, {list(shape.values())}"
        if rank == 0:
            print(f"{time.perf_counter() - start:.0f} s, {words} {form}", file=sys.stderr, flush=True)
        try:
            judge(words, whole, d_o, options, [form], runs=3)
        except (qkvault.Refused, qkvault.ArgumentError) as error:
            found.setdefault("refused", {})[f"{words} {form}"] = str(error)[:200]

    def timed(run):
        """Milliseconds of the slowest rank, and of a host until all is queued: medians."""
        [run() for _ in range(3)]
        both = []
        for _ in range(7):
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            [run() for _ in range(5)]
            queued = time.perf_counter()
            torch.cuda.synchronize()
            both.append((time.perf_counter() - begin, queued - begin))
        middle = torch.tensor([sorted(list)[3] * 200 for list in zip(*both)], device=device)
        dist.all_reduce(middle, op=dist.ReduceOp.MAX)
        return middle.tolist()

    rust = json.loads(ARGS.rust.read_text())["rows"] if ARGS.rust else []
    for count in [] if ARGS.cpu else ARGS.rows:
        for name, options in (("causal", {}), (f"window of {ARGS.window}", {"window": ARGS.window - 1})):
            *whole, d_o = (x.requires_grad_() for x in make(count * ranks, 1))
            parts = [qt.context_parallel_shard(x.detach(), 2).requires_grad_() for x in whole]
            own = qt.context_parallel_shard(d_o.detach(), 2)
            runs = ((qt.attention, whole, d_o.detach()), (qt.context_parallel_attention, parts, own))
            for direction in ("forward", "forward + backward"):

                def step(call, given, gradient):
                    if direction == "forward":  # noqa: B023
                        with torch.no_grad():
                            return call(*given, is_causal=True, return_lse=True, **options)  # noqa: B023
                    o, _ = call(*given, is_causal=True, return_lse=True, **options)  # noqa: B023
                    return torch.autograd.grad(o, given, gradient)

                one, (together, host) = (timed(functools.partial(step, *run)) for run in runs)
                row = {
                    "case": f"{name}, {count} tokens a rank", "direction": direction, "one_gpu_ms": one[0],
                    "ranks_ms": together, "host_ms": host, "of_ideal": one[0] / ranks / together,
                }  # fmt: skip
                same = [r for r in rust if r["case"].startswith(f"{row['case']}, gather")]
                same = [r for r in same if r["direction"] == direction]
                best = min(same, key=lambda r: r["ours_ms"], default=None)
                if best is not None:
                    row.update(rust=best, of_rust=best["ours_ms"] / together)
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
