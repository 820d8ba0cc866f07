"""A sequence over several GPUs through `qkvault.torch` or `qkvault.jax`, beside one GPU: right numbers, and times.

    torchrun --nproc-per-node=2 card_parallel.py --torch --out DIR [--vault DIR] [--rust FILE]  # a process for each GPU
    python3 card_parallel.py --jax --out DIR [--vault DIR] [--rust FILE] [--processes 2]        # all GPUs that it sees

Writes DIR/adapter-parallel-{torch,jax,jax-processes}.json; exit code 0 if no number is wrong. Rows of `times` are those
of `qkvault-lab bench parallel`, whose record `--rust` names: milliseconds of one GPU with everything, of the ranks
together, and of a rank's host; `of_ideal` is the time of one GPU divided by the ranks, over that of the ranks, and
`of_rust` the best gather of the crate over it. With `--cpu`, ranks compute small numbers by the oracle, without times:
whether the program runs. `--random` adds so many attentions of PyTorch. Each attention runs three times: steps, then
graphs.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import random
import signal
import subprocess
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
PARSER.add_argument("--hang", action="store_true", help="at last one rank of PyTorch hangs: writes DIR/hangs.json")
PARSER.add_argument("--vault")
PARSER.add_argument("--processes", type=int, default=1, help="of JAX, each with one GPU")
PARSER.add_argument("--process", type=int, help="the number of one, which the program starts")
PARSER.add_argument("--port", type=int)
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

    def note(name, errors):
        """Notes the largest error of any rank."""
        worst = torch.tensor(max(errors) if all(e == e for e in errors) else 9.0, device=device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        found["right"][name] = worst.item()

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
            note(f"{name} {strategy} {order}", errors)

    def captured():
        """A graph of the user's: other numbers in the same memory, forward and gradients."""
        parts = [qt.context_parallel_shard(x, 2).requires_grad_() for x in make(rows * ranks, 6)]

        def step():
            o = qt.context_parallel_attention(*parts[:3], is_causal=True)
            return [o, *torch.autograd.grad(o, parts[:3], parts[3])]

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            [step() for _ in range(3)]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        step()  # The communicator's watch asks for its end.
        with torch.cuda.graph(graph, stream=side):
            got = step()
            time.sleep(1.2)
        errors = []
        for seed in (7, 8, 9):
            *whole, d_o = make(rows * ranks, seed)
            with torch.no_grad():
                [part.copy_(qt.context_parallel_shard(x, 2)) for part, x in zip(parts, (*whole, d_o))]
            graph.replay()
            whole = [x.requires_grad_() for x in whole]
            o = qt.attention(*whole, is_causal=True)
            exact = [qt.context_parallel_shard(x, 2) for x in (o, *torch.autograd.grad(o, whole, d_o))]
            errors += [((a - b).float().norm() / b.float().norm()).item() for a, b in zip(got, exact)]
        note("captured by the user, causal gather zigzag", errors)

    for name, case in [] if ARGS.hang else CASES.items():
        *whole, d_o = make(rows * ranks, 5)
        judge(name, whole, d_o, options_of(case, slopes(heads)), FORMS)
    if not ARGS.cpu and not ARGS.hang:
        captured()
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
            if rank == 0 and number % 5 == 4:
                ARGS.out.mkdir(parents=True, exist_ok=True)
                (ARGS.out / "random.json").write_text(json.dumps(found))
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

    def hangs():
        """The last rank hangs: the first one's stream ends, without numbers, and its next call names the rank."""
        group, pids = dist.new_group(timeout=datetime.timedelta(seconds=4)), [None] * ranks
        dist.all_gather_object(pids, os.getpid())
        *parts, _ = [qt.context_parallel_shard(x, 2) for x in make(rows * ranks, 6)]
        call = functools.partial(qt.context_parallel_attention, *parts, is_causal=True, group=group)
        [call() for _ in range(3)]
        torch.cuda.synchronize()
        dist.barrier()
        if rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        begin, o = time.perf_counter(), call()
        torch.cuda.synchronize()
        said = {"seconds": time.perf_counter() - begin, "nan": o.isnan().float().mean().item()}
        try:
            call()
        except qkvault.Refused as error:
            said["told"] = [str(error), [reason.code for reason in error.reasons]]
        (ARGS.out / "hangs.json").write_text(json.dumps(said))
        [os.kill(pid, signal.SIGKILL) for pid in pids if pid != os.getpid()]
        os._exit(0)

    if ARGS.hang:
        hangs()
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
                found["times"].append({**row, **of_rust(rust, row)})
    dist.destroy_process_group()
    return rank == 0


def with_jax(found):
    import jax
    import jax.numpy as jnp
    import numpy as np

    if ARGS.process is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        own = None if ARGS.cpu else [ARGS.process]
        jax.distributed.initialize(f"127.0.0.1:{ARGS.port}", ARGS.processes, ARGS.process, local_device_ids=own)
    import qkvault.jax as qj

    qj.configure(vault=ARGS.vault)
    devices, part = jax.devices(), jax.sharding.PartitionSpec(None, "seq")
    ranks = len(devices)
    mesh = jax.sharding.Mesh(np.array(devices), ("seq",))
    small = jax.default_backend() not in ("gpu", "cuda")
    heads, kv, width, rows = (4, 4, 16, 16) if small else (HEADS, KEYS, WIDTH, 1024)
    slopes = 2.0 ** -(np.arange(heads, dtype=np.float32) / 4.0)

    def make(rows, seed):
        """Q, K, V and the gradient of O, on this process's first device."""
        sizes = [(1, rows, h, width) for h in (heads, kv, kv, heads)]
        return [jax.random.normal(jax.random.key(seed + n), size, jnp.bfloat16) for n, size in enumerate(sizes)]

    def dealt(x, order):
        """An array of all devices, of one on each process."""
        lies = jax.sharding.NamedSharding(mesh, part)
        x = np.asarray(qj.zigzag(x, ranks) if order == "zigzag" else x)
        return jax.make_array_from_callback(x.shape, lies, lambda at: x[at])

    def shared(strategy, order, **options):
        def local(q, k, v):
            return qj.context_parallel_attention(
                q, k, v, axis_name="seq", strategy=strategy, order=order, **options)

        return jax.shard_map(local, mesh=mesh, in_specs=(part,) * 3, out_specs=part)

    def step(run):
        def both(q, k, v, d_o):
            o, pull = jax.vjp(run, q, k, v)
            return o, *pull(d_o)

        return jax.jit(both)

    for name, case in CASES.items():
        whole = make(rows * ranks, 5)
        options = options_of(case, jnp.asarray(slopes))
        exact = step(lambda *a: qj.attention(*a, **options))(*whole)  # noqa: B023
        for strategy, order in FORMS:
            run, given = step(shared(strategy, order, **options)), [dealt(x, order) for x in whole]
            errors = []
            for _ in range(3):  # Steps, then graphs.
                for a, b in zip(run(*given), exact):
                    b = np.asarray(qj.zigzag(b, ranks) if order == "zigzag" else b, np.float64)
                    for piece in a.addressable_shards:
                        mine, other = np.asarray(piece.data, np.float64), b[piece.index]
                        errors.append(float(np.linalg.norm(mine - other) / np.linalg.norm(other)))
            found["right"][f"{name} {strategy} {order}"] = max(errors) if all(e == e for e in errors) else 9.0

    def timed(run, *args):
        """Milliseconds of a run, and of the host until it is queued: medians."""
        both = []
        for _ in range(9):
            begin = time.perf_counter()
            for _ in range(5):
                last = run(*args)
            queued = time.perf_counter()
            jax.block_until_ready(last)
            both.append((time.perf_counter() - begin, queued - begin))
        return [sorted(list)[4] * 200 for list in zip(*both)]

    rust = json.loads(ARGS.rust.read_text())["rows"] if ARGS.rust else []
    for count in [] if small or ranks < 2 else ARGS.rows:
        for name, options in (("causal", {}), (f"window of {ARGS.window}", {"window": ARGS.window - 1})):
            whole = make(count * ranks, 1)
            given = [dealt(x, "zigzag") for x in whole]
            one = functools.partial(qj.attention, is_causal=True, **options)
            ours = shared("gather", "zigzag", is_causal=True, **options)
            for direction in ("forward", "forward + backward"):
                form, n = (jax.jit, 3) if direction == "forward" else (step, 4)
                alone, together = timed(form(one), *whole[:n])[0], timed(form(ours), *given[:n])
                row = {
                    "case": f"{name}, {count} tokens a rank", "direction": direction, "one_gpu_ms": alone,
                    "ranks_ms": together[0], "host_ms": together[1], "of_ideal": alone / ranks / together[0],
                }  # fmt: skip
                found["times"].append({**row, **of_rust(rust, row)})
    return jax.process_index() == 0


def of_rust(rust, row):
    """The best gather of the crate in the same case, and its time over that of the row."""
    same = [r for r in rust if r["case"].startswith(f"{row['case']}, gather") and r["direction"] == row["direction"]]
    best = min(same, key=lambda r: r["ours_ms"], default=None)
    return {} if best is None else {"rust": best, "of_rust": best["ours_ms"] / row["ranks_ms"]}


def processes():
    """Starts the processes of JAX."""
    from qkvault._ranks import meeting

    _, port, _ = meeting("127.0.0.1")
    more = [[f"--process={number}", f"--port={port}"] for number in range(ARGS.processes)]
    return max([one.wait() for one in [subprocess.Popen([sys.executable, *sys.argv, *own]) for own in more]])


def main():
    if ARGS.jax and ARGS.processes > 1 and ARGS.process is None:
        return processes()
    found = {"right": {}, "times": []}
    tell = with_torch(found) if ARGS.torch else with_jax(found)
    wrong = [name for name, error in found["right"].items() if not error < BOUND]
    if tell:
        ARGS.out.mkdir(parents=True, exist_ok=True)
        name = f"adapter-parallel-{'torch' if ARGS.torch else 'jax'}{'-processes' if ARGS.processes > 1 else ''}.json"
        (ARGS.out / name).write_text(json.dumps({**found, "wrong": wrong}, indent=1) + "\n")
        print(json.dumps(found, indent=1), "\nWRONG" if wrong else "\nall right", wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
