"""The other half of card_jax.py: transformations, times, and processes of their own. It is not run by itself."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

import qkvault
import qkvault.jax as qj


def make(*shape, dtype=jnp.bfloat16, seed=1):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def off(found, exact):
    a, b = (np.asarray(x, np.float64) for x in (found, exact))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def transformations(card):
    """vmap, grad of vmap, shard_map, remat, export, a scalar that is given, and many calls in one program."""
    q, k, v = make(2, 256, 4, 64), make(2, 256, 2, 64, seed=2), make(2, 256, 2, 64, seed=3)
    mod = lambda s, b, h, i, j: 4.0 * jnp.tanh(s / 4.0) - 0.01 * jnp.abs(i - j)  # noqa: E731
    ours = lambda q, k, v: qj.attention(q, k, v, score_mod=mod, is_causal=True)  # noqa: E731
    case = {"causal": True, "mask_mod": None, "score_mod": None}

    def theirs(q, k, v):
        kept = card.modification
        card.modification = lambda case, more: mod
        try:
            return card.plain(q, k, v, {}, case)
        finally:
            card.modification = kept

    total = lambda f: lambda *a: (f(*a).astype(jnp.float32) ** 2).sum()  # noqa: E731
    many = jnp.stack([q, q * 0.5, -q])
    found = {}

    def check(name, run):
        try:
            found[name] = run()
        except Exception as error:  # noqa: BLE001
            found[name] = f"{type(error).__name__}: {error}"[:1500]
        print(name, found[name], flush=True)

    def shard():
        mesh = jax.make_mesh((1, 1), ("x", "y"))
        spec = jax.sharding.PartitionSpec("x", None, "y")
        put = lambda x: jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))  # noqa: E731
        mapped = jax.jit(jax.shard_map(ours, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec))
        return off(jax.grad(total(mapped))(put(q), put(k), put(v)), jax.grad(total(theirs))(q, k, v))

    def exported():
        made = jax.export.export(jax.jit(ours), disabled_checks=qj.export_checks())(q, k, v)
        try:
            made = jax.export.deserialize(made.serialize())
        except ImportError:
            found["export without flatbuffers"] = True
        return off(made.call(q, k, v), theirs(q, k, v))

    def given():
        run = jax.jit(lambda q, cap: qj.attention(q, k, v, softcap=cap))
        capped = {"causal": False, "mask_mod": None, "score_mod": None}
        exact = lambda cap: card.plain(q, k, v, {}, {**capped, "softcap": cap})  # noqa: E731
        return max(off(run(q, jnp.float32(cap)), exact(cap)) for cap in (2.0, 7.0))

    def chain():
        run = jax.jit(lambda q, k, v: jax.lax.fori_loop(0, 2, lambda _, q: ours(ours(ours(q, k, v), k, v), k, v), q))
        compiled = run.lower(q, k, v).compile()
        found["command buffers in the program"] = "command_buffer" in compiled.as_text()
        first = np.asarray(run(q, k, v), np.float32)
        kept = [run(q + 0, k + 0, v + 0) for _ in range(8)]
        return max(off(np.asarray(x, np.float32), first) for x in kept)

    of = lambda f: jax.jit(jax.vmap(f, (0, None, None)))  # noqa: E731
    check("vmap", lambda: off(of(ours)(many, k, v), of(theirs)(many, k, v)))
    each = lambda f: jax.vmap(jax.grad(total(f)), (0, None, None))  # noqa: E731
    check("vmap of grad", lambda: off(each(ours)(many, k, v), each(theirs)(many, k, v)))
    check("remat", lambda: off(jax.grad(jax.checkpoint(total(ours)))(q, k, v), jax.grad(total(theirs))(q, k, v)))
    check("shard_map", shard)
    check("export", exported)
    check("given softcap", given)
    check("replays differ", chain)
    good = lambda x: isinstance(x, bool) or (isinstance(x, float) and x < 3e-2)  # noqa: E731
    found["wrong"] = [name for name, x in found.items() if not good(x)]
    return found


def timed(run, args, calls):
    """Microseconds of the host for a call (queued, not waited for), and of a call with its wait."""
    jax.block_until_ready(run(*args))
    host, whole = [], []
    for _ in range(7):
        jax.block_until_ready(run(*args))
        start = time.perf_counter()
        for _ in range(calls):
            last = run(*args)
        host.append((time.perf_counter() - start) / calls * 1e6)
        jax.block_until_ready(last)
        whole.append((time.perf_counter() - start) / calls * 1e6)
    row = {"host_us": min(host), "whole_us": min(whole), "whole_median_us": statistics.median(whole)}
    return {name: round(us, 2) for name, us in row.items()}


def times(on_gpu, calls):
    """Each call beside jax.nn's with cuDNN."""
    nn = jax.nn.dot_product_attention
    sides = {"qkvault": lambda q, k, v: qj.attention(q, k, v, is_causal=True)}
    if on_gpu:
        sides["jax.nn cudnn"] = lambda q, k, v: nn(q, k, v, is_causal=True, implementation="cudnn")
    total = lambda f: lambda q, k, v: f(q, k, v).astype(jnp.float32).sum()  # noqa: E731
    found = {}
    shapes = {"small": (1, 128, 4, 64), "large": (2, 4096, 16, 128)} if on_gpu else {"small": (1, 16, 2, 8)}
    for size, (b, s, h, d) in shapes.items():
        args = [make(b, s, h, d, seed=n) for n in range(3)]
        for name, f in sides.items():
            many = calls if size == "small" else max(calls // 10, 5)
            found[f"{name}, {size}, forward"] = timed(jax.jit(f), args, many)
            found[f"{name}, {size}, step"] = timed(jax.jit(jax.grad(total(f), (0, 1, 2))), args, many)
            if size == "small":
                def chained(q, k, v, f=f):
                    for _ in range(32):
                        q = f(q, k, v)
                    return q

                row = timed(jax.jit(chained), args, max(calls // 10, 5))
                found[f"{name}, 32 in a program"] = {key: round(us / 32, 2) for key, us in row.items()}
    if on_gpu:
        mod = lambda s, b, h, i, j: 30.0 * jnp.tanh(s / 30.0)  # noqa: E731
        args = [make(2, 4096, 16, 128, seed=n) for n in range(3)]
        run = jax.jit(jax.grad(total(lambda q, k, v: qj.attention(q, k, v, score_mod=mod, is_causal=True)), (0, 1, 2)))
        found["qkvault, large, softcap and causal, step"] = timed(run, args, max(calls // 10, 5))
    for name, row in found.items():
        print(name, row, flush=True)
    return found


def first_calls(side, vault):
    """A process of its own: the first call, and new shapes, of one side. Prints JSON."""
    if side == "jax.nn cudnn":
        run = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn"))
    else:
        qj.configure(vault=vault, build=True)
        run = jax.jit(lambda q, k, v: qj.attention(q, k, v, is_causal=True))
    found = []
    for s in (1024, 1152, 1280, 1408):
        args = [make(1, s, 8, 64, seed=n) for n in range(3)]
        jax.block_until_ready(args)
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        found.append(round((time.perf_counter() - start) * 1e3, 1))
    print(json.dumps({"first_ms": found[0], "new_shapes_ms": found[1:]}))


#: Flags with which XLA captures custom calls and cuDNN's graphs from the first on, and those with which it never does.
GRAPHS = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN --xla_gpu_graph_min_graph_size=1"
NO_GRAPHS = "--xla_gpu_enable_command_buffer="


def captured(side, vault):
    """A process of its own: 32 attentions in a program, whose replays over other addresses are right. Prints JSON."""
    qj.configure(vault=vault, build=True)
    nn = jax.nn.dot_product_attention
    f = (lambda q, k, v: nn(q, k, v, is_causal=True, implementation="cudnn")) if "jax.nn" in side else (
        lambda q, k, v: qj.attention(q, k, v, is_causal=True))

    def chained(q, k, v):
        for _ in range(32):
            q = f(q, k, v)
        return q

    run, args = jax.jit(chained), [make(1, 128, 4, 64, seed=n) for n in range(3)]
    first = np.asarray(run(*args), np.float32)
    found = timed(run, args, 30)
    row = {key: round(us / 32, 2) for key, us in found.items()}
    kept, worst = [], 0.0
    for n in range(6):
        other = [x * (1 + n) for x in args]
        step = other[0]
        for _ in range(32):
            step = jax.jit(f)(step, *other[1:])
        kept.append(run(*other))
        worst = max(worst, off(kept[-1], step))
    row["replays_differ"] = max(worst, off(run(*args), first))
    print(json.dumps(row))


def child(args, side, vault, flags=None):
    command = [sys.executable, str(args.script), "--out", str(args.out), "--child", side, "--vault", vault]
    environment = {**os.environ, **({"XLA_FLAGS": flags} if flags is not None else {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    if done.returncode:
        return {"error": done.stderr[-1500:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def more_checks(args, card):
    """Everything of card_jax.py. Returns the exit code."""
    args.script = card.__file__
    if args.child:
        run = captured if args.child.startswith("captured") else first_calls
        run(args.child.removeprefix("captured "), args.vault)
        return 0
    started = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="qkvault-jax-")
    context = qkvault.Context(args.vault or folder, build=True, handles=args.threads)
    qj.configure(context=context)
    # One call before asking, so that JAX has loaded its cuDNN.
    if card.ON_GPU:
        x = make(1, 128, 2, 64)
        jax.block_until_ready(jax.nn.dot_product_attention(x, x, x, implementation="cudnn"))
    record = {"jax": jax.__version__, "jaxlib": jax.lib.__version__, "backend": jax.default_backend(),
              "device": str(jax.devices()[0].device_kind), "qkvault": qkvault.version()}
    if card.ON_GPU:
        record["cudnn"], record["cudnn_path"] = context.cudnn, context.cudnn_path
    print(record, flush=True)
    calls = 30 if args.quick or not card.ON_GPU else 300

    def part(name, run):
        try:
            record[name] = run()
        except Exception as error:  # noqa: BLE001
            import traceback

            traceback.print_exc()
            record[name] = {"error": f"{type(error).__name__}: {error}"[:1500]}
        print(f"-- {name}: {time.time() - started:.0f} s", flush=True)
        (args.out / "adapter-jax.json").write_text(json.dumps(record, indent=1) + "\n")

    part("transformations", lambda: transformations(card))
    part("times", lambda: times(card.ON_GPU, calls))
    if card.ON_GPU:
        with tempfile.TemporaryDirectory() as vault:
            rows = (("qkvault, empty vault", "qkvault"), ("qkvault, from the vault", "qkvault"), ("jax.nn cudnn",) * 2)
            part("first_calls", lambda: {name: child(args, side, vault) for name, side in rows})
            print(record["first_calls"], flush=True)
            rows = [(side, word, flags) for side in ("qkvault", "jax.nn cudnn")
                    for word, flags in (("captured", GRAPHS), ("not captured", NO_GRAPHS))]
            part("command_buffers", lambda: {
                f"{side}, {word}": child(args, f"captured {side}", vault, flags) for side, word, flags in rows
            })
            print(json.dumps(record["command_buffers"], indent=1), flush=True)
    part("numbers", lambda: card.numbers(20 if args.quick else args.cases))
    record["seconds"] = round(time.time() - started, 1)
    (args.out / "adapter-jax.json").write_text(json.dumps(record, indent=1) + "\n")
    bad = record["numbers"].get("wrong", 1) or record["transformations"].get("wrong", 1)
    print(f"{record['numbers'].get('right')} right, {record['numbers'].get('refused')} refused, "
          f"{record['numbers'].get('wrong')} wrong; transformations wrong: {record['transformations'].get('wrong')}; "
          f"{record['seconds']} s")
    return 1 if bad else 0
