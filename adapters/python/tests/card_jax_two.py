"""`qkvault.jax` on two GPUs, and what a program meets on one: remat, exported programs in another process, new shapes.

    python3 card_jax_two.py --out DIR [--vault DIR] [--library libqkvault.so] [--parts guide,two]

Parts: guide, two, forms, remat, export, shapes.

Writes DIR/adapter-jax-two.json, after each part. Exit code 0 if no number is wrong. Without a GPU the oracle computes:
XLA_FLAGS=--xla_force_host_platform_device_count=2 JAX_PLATFORMS=cpu python3 card_jax_two.py --out /tmp/two
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import traceback

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if (folder / "qkvault" / "__init__.py").exists():
        sys.path.insert(0, str(folder))
PARTS = ("guide", "two", "forms", "remat", "export", "shapes")

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--out", type=pathlib.Path, required=True)
PARSER.add_argument("--library", help="libqkvault.so; else that of the package, or the one beside this file")
PARSER.add_argument("--vault")
PARSER.add_argument("--parts", default=",".join(PARTS))
PARSER.add_argument("--child", nargs=2, help="what a process of its own does, and its file")
ARGS = PARSER.parse_args()
BESIDE = HERE / "libqkvault.so"
if ARGS.library or BESIDE.exists():
    os.environ["QKVAULT_LIBRARY"] = str(ARGS.library or BESIDE)

import jax  # noqa: E402
import jax.export  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import qkvault  # noqa: E402
import qkvault.jax as qj  # noqa: E402

from card_jax_forms import forms  # noqa: E402

P, NamedSharding = jax.sharding.PartitionSpec, jax.sharding.NamedSharding
ON_GPU = jax.default_backend() in ("gpu", "cuda")
CPU = jax.devices("cpu")[0]
#: Batch, rows, query heads, key heads, head dim.
SIZES = (2, 256, 8, 4, 64) if ON_GPU else (2, 16, 4, 2, 16)
BOUND = 3e-2


def make(*shape, dtype=jnp.bfloat16, seed=1):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def off(found, exact):
    worst = 0.0
    found, exact = jax.tree.leaves(found), jax.tree.leaves(exact)
    assert len(found) == len(exact)
    for a, b in zip(found, exact):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape, (a.shape, b.shape)
        worst = max(worst, float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-9)))
    return worst


def plain(q, k, v, score_mod=None, causal=False):
    """Attention from its definition in float32, on the CPU."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    if score_mod is not None:
        mapped = score_mod
        for at in reversed(range(4)):
            mapped = jax.vmap(mapped, (0, *(0 if n == at else None for n in range(4))))
        scores = mapped(scores, *(jnp.arange(n) for n in scores.shape))
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def on_cpu(function, *args):
    with jax.default_device(CPU):
        return jax.tree.map(np.asarray, function(*jax.device_put(jax.tree.map(np.asarray, args), CPU)))


def squares(function):
    return lambda *args: (function(*args).astype(jnp.float32) ** 2).sum()


def gradients(function, count):
    return jax.jit(jax.grad(squares(function), tuple(range(count))))


def qkv():
    b, s, h, kv, d = SIZES
    return make(b, s, h, d), make(b, s, kv, d, seed=2), make(b, s, kv, d, seed=3)


class Checks:
    """Relative errors by name; an exception stands for a number."""

    def __init__(self):
        self.found, self.wrong = {}, []

    def __call__(self, name, run, bound=BOUND):
        try:
            value = run()
            good = value < bound if isinstance(value, float) else bool(value)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            value, good = f"{type(error).__name__}: {error}"[:1500], False
        self.found[name] = value
        if not good:
            self.wrong.append(name)
        print("  " if good else "WRONG", name, value, flush=True)


def timed(run, args, calls):
    """Microseconds of a call with its wait."""
    jax.block_until_ready(run(*args))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            last = run(*args)
        jax.block_until_ready(last)
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    return round(best, 1)


def two():
    """`shard_map` over batch and over heads on two devices, beside one device, float32 and jax.nn."""
    if len(jax.devices()) < 2:
        return {"skipped": "there is one device", "wrong": []}
    check, devices = Checks(), jax.devices()[:2]
    b, s, h, kv, d = SIZES
    q, k, v = (jax.device_put(x, devices[0]) for x in qkv())
    slopes = 2.0 ** -jnp.arange(1.0, h + 1)
    table = make(s, s, dtype=jnp.float32, seed=4)

    def mod(slopes, table):
        # cuDNN has gradients of what is added to the score before a function of it, and not behind.
        return lambda s, b, h, i, j: 8.0 * jnp.tanh((s - slopes[h] * jnp.abs(i - j) + table[i, j]) / 8.0)

    ours = lambda q, k, v, a, t: qj.attention(q, k, v, score_mod=mod(a, t), is_causal=True)  # noqa: E731
    theirs = lambda q, k, v, a, t: plain(q, k, v, mod(a, t), True)  # noqa: E731
    fixed = lambda f, a: lambda q, k, v, t: f(q, k, v, a, t)  # noqa: E731
    args = (q, k, v, slopes, table)
    exact = on_cpu(theirs, *args)
    moved = on_cpu(jax.grad(squares(fixed(theirs, slopes)), (0, 1, 2, 3)), q, k, v, table)
    check("one device", lambda: off(jax.jit(ours)(*args), exact))
    alone = jax.jit(ours)(*args)
    alone_moved = gradients(fixed(ours, slopes), 4)(q, k, v, table)
    check("one device, gradients", lambda: off(alone_moved, moved))

    def alternatives(axis, spec, of_slopes):
        mesh = jax.sharding.Mesh(np.array(devices), (axis,))
        put = lambda x, how: jax.device_put(x, NamedSharding(mesh, how))  # noqa: E731
        given = (*(put(x, spec) for x in (q, k, v)), put(slopes, of_slopes), put(table, P()))
        specs = (spec, spec, spec, of_slopes, P())
        mapped = jax.jit(jax.shard_map(ours, mesh=mesh, in_specs=specs, out_specs=spec))
        check(f"{axis}: forward", lambda: off(mapped(*given), exact))
        check(f"{axis}: forward as on one device", lambda: off(mapped(*given), alone), 1e-3)
        check(f"{axis}: lies on both", lambda: len(mapped(*given).sharding.device_set) == 2)
        text = mapped.lower(*given).compile().as_text()
        check(f"{axis}: moves nothing", lambda: "all-gather" not in text and "all-reduce" not in text)
        step = gradients(lambda q, k, v, t: mapped(q, k, v, given[3], t), 4)
        check(f"{axis}: gradients", lambda: off(step(*given[:3], given[4]), moved))
        check(f"{axis}: gradients as on one device", lambda: off(step(*given[:3], given[4]), alone_moved), 1e-2)
        many = jnp.stack([q, q * 0.5, -q])
        inner = lambda q, k, v, a, t: jax.vmap(ours, (0, None, None, None, None))(q, k, v, a, t)  # noqa: E731
        wide = P(None, *spec)
        folded = jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=(wide, *specs[1:]), out_specs=wide))
        each = np.stack([on_cpu(theirs, x, *args[1:]) for x in many])
        check(f"{axis}: vmap inside", lambda: off(folded(put(many, wide), *given[1:]), each))
        check(f"{axis}: replays", lambda: max(off(mapped(*given), exact) for _ in range(10)))
        remat = jax.jit(jax.grad(squares(jax.checkpoint(lambda q: mapped(q, *given[1:])))))
        check(f"{axis}: remat", lambda: off(remat(given[0]), moved[0]))
        automatic = jax.jit(ours)
        check(f"{axis}: jit with sharded arrays", lambda: off(automatic(*given), exact))
        check(f"{axis}: gradients of jit with sharded arrays",
              lambda: off(gradients(fixed(ours, given[3]), 4)(*given[:3], given[4]), moved))
        text = automatic.lower(*given).compile().as_text()
        check.found[f"{axis}: all-gathers of jit with sharded arrays"] = (
            text.count("all-gather(") + text.count("all-gather-start("))
        if ON_GPU:
            nn = functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn")
            same = jax.jit(jax.shard_map(lambda q, k, v: qj.attention(q, k, v, is_causal=True), mesh=mesh,
                                         in_specs=(spec,) * 3, out_specs=spec))
            check(f"{axis}: as jax.nn", lambda: off(same(*given[:3]), nn(q, k, v)), 1e-2)
            b, s, h, d = 4, 4096, 16, 128
            large = [make(b, s, h, d, seed=n) for n in range(3)]
            cases = {"one": (lambda q, k, v: qj.attention(q, k, v, is_causal=True), large)}
            wide = jax.shard_map(cases["one"][0], mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
            cases["two"] = (wide, [put(x, spec) for x in large])
            for name, (f, xs) in cases.items():
                check.found[f"{axis}: us of a causal step of [4, 4096, 16, 128] on {name}"] = timed(
                    jax.jit(jax.grad(squares(f), (0, 1, 2))), xs, 10)

    alternatives("batch", P("batch"), P())
    alternatives("heads", P(None, None, "heads"), P("heads"))

    def mapped_by_pmap():
        # On no device, because newer versions take arrays of one device for a mistake.
        split = lambda x: np.asarray(x).reshape(2, x.shape[0] // 2, *x.shape[1:])  # noqa: E731
        run = jax.pmap(lambda q, k, v: ours(q, k, v, slopes, table), devices=devices)
        return off(np.asarray(run(*map(split, (q, k, v))), np.float32).reshape(exact.shape), exact)

    check("pmap", mapped_by_pmap)

    def second_device():
        moved = [jax.device_put(x, devices[1]) for x in args]
        found = jax.jit(ours)(*moved)
        return off(found, exact) if found.devices() == {devices[1]} else "it is elsewhere"

    check("the second device alone", second_device)
    worst = [0.0] * 8

    def thread(at):
        here = [jax.device_put(x, devices[at % 2]) for x in args]
        for _ in range(20):
            worst[at] = max(worst[at], off(jax.jit(ours)(*here), exact))

    def threads():
        all_of = [threading.Thread(target=thread, args=(at,)) for at in range(len(worst))]
        for one in all_of:
            one.start()
        for one in all_of:
            one.join()
        return max(worst) if min(worst) > 0 else "a thread failed"

    check("eight threads on two devices", threads)
    if ON_GPU:
        same = qkvault.Attention(f"q: bf16 [{b},{h},{s},{d}]\nk: [{b},{kv},{s},{d}]\nmask: causal\n")
        for device in devices:
            here = [jax.device_put(x, device) for x in (q, k, v)]
            for _ in range(3):
                jax.block_until_ready(jax.jit(lambda q, k, v: qj.attention(q, k, v, is_causal=True))(*here))
            at = device.local_hardware_id
            # Another context finds what this process has loaded, and loads nothing.
            plan = qkvault.Context(VAULT, handles=8).prepare(same, at)
            check(f"loaded once on device {at}", lambda: plan.source == "loaded" and plan.device == at)
    return {**check.found, "wrong": check.wrong}


def guide():
    """The guide's page, from import to a training step, as it stands there."""
    beside = HERE / "jax.md"
    page = beside if beside.exists() else HERE.parents[2] / "crates/qkvault/src/guide/jax.md"
    check, names = Checks(), {}
    exec(page.read_text().split("```python\n")[1].split("```")[0], names)
    step = jax.jit(jax.grad(names["loss"]))
    slopes = 2.0 ** -jnp.arange(1.0, 9.0)
    mod = lambda s, b, h, i, j: 30.0 * jnp.tanh(s / 30.0) - slopes[h] * (i - j)  # noqa: E731

    def loss(w, x):
        q, k, v = jnp.einsum("bsm,cmhd->cbshd", x, w)
        return plain(q, k, v, mod, True).var()

    w, x = make(3, 32, 8, 16, seed=2), make(2, 64, 32, seed=3)
    check("a training step of the guide", lambda: off(step(w, x), on_cpu(jax.grad(loss), w, x)), 5e-2)
    check("its weights move", lambda: bool(jnp.isfinite(names["w"]).all()))
    return {**check.found, "wrong": check.wrong}


def remat():
    """`jax.checkpoint` with policies, in a scan over layers."""
    check, (q, k, v) = Checks(), qkv()
    ours = lambda q: qj.attention(q, k, v, is_causal=True, softcap=5.0)  # noqa: E731
    theirs = lambda q: plain(q, k, v, lambda s, *_: 5.0 * jnp.tanh(s / 5.0), True).astype(q.dtype)  # noqa: E731
    known = jax.checkpoint_policies
    policies = {"nothing": known.nothing_saveable, "everything": known.everything_saveable,
                "dots": known.dots_with_no_batch_dims_saveable}

    def layers(f):
        return lambda q: jax.lax.scan(lambda c, _: (f(c), None), q, None, length=3)[0]

    exact = on_cpu(jax.grad(squares(layers(theirs))), q)
    for name, policy in policies.items():
        run = jax.jit(jax.grad(squares(layers(jax.checkpoint(ours, policy=policy)))))
        check(f"scan of three layers, {name} saved", lambda: off(run(q), exact), 6e-2)
    return {**check.found, "wrong": check.wrong}


def export():
    """A training step that this process exports, and another one runs that has the library and the vault alone."""
    check, (q, k, v) = Checks(), qkv()
    mod = lambda s, b, h, i, j: 4.0 * jnp.tanh(s / 4.0) - 0.01 * jnp.abs(i - j)  # noqa: E731
    ours = lambda q, k, v: qj.attention(q, k, v, score_mod=mod, is_causal=True)  # noqa: E731
    theirs = lambda q, k, v: plain(q, k, v, mod, True)  # noqa: E731
    step = lambda f: lambda *a: (f(*a), *jax.grad(squares(f), (0, 1, 2))(*a))  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "step"
        made = jax.export.export(jax.jit(step(ours)), disabled_checks=qj.export_checks())(q, k, v)
        file.write_bytes(made.serialize())
        here = jax.tree.map(np.asarray, jax.jit(step(ours))(q, k, v))
        np.savez(f"{file}.npz", *(np.asarray(x, np.float32) for x in (q, k, v)))
        row = child("export", file)
        exact = on_cpu(step(theirs), q, k, v)
        check("another process", lambda: row.get("error", True) is True or row["error"])
        there = list(np.load(f"{file}.out.npz").values()) if not row.get("error") else []
        check("its numbers", lambda: off(there, exact))
        check("its numbers are those of this process", lambda: off(there, here), 1e-2)
        check.found["ms of its first call"] = row.get("first_ms")
    return {**check.found, "wrong": check.wrong}


def run_exported(file):
    """The other process: it traces nothing and configures nothing but its vault."""
    import qkvault.jax  # noqa: F401

    loaded = jax.export.deserialize(pathlib.Path(file).read_bytes())
    args = [jnp.asarray(x, jnp.bfloat16) for x in np.load(f"{file}.npz").values()]
    start = time.perf_counter()
    found = jax.block_until_ready(jax.jit(loaded.call)(*args))
    first = (time.perf_counter() - start) * 1e3
    np.savez(f"{file}.out", *(np.asarray(x, np.float32) for x in found))
    print(json.dumps({"first_ms": round(first, 1)}))


def shapes():
    """Host time of the first call with a shape, part by part; plans in the vault."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {"empty vault": child("shapes", folder), "from the vault": child("shapes", folder)}
    print(json.dumps(rows, indent=1), flush=True)
    return {**rows, "wrong": [name for name, row in rows.items() if "error" in row]}


def run_shapes(vault):
    """The other process: new shapes, of which qkvault's own part is told."""
    from qkvault.jax import _call

    qj.configure(vault=vault, build=True)
    spent, inner = [], _call._bound

    def bound(*args):
        start = time.perf_counter()
        try:
            return inner(*args)
        finally:
            spent.append((time.perf_counter() - start) * 1e3)

    plan_ms, look = [], _call.workspace

    def prepared(attention):
        start = time.perf_counter()
        try:
            return look(attention)
        finally:
            plan_ms.append((time.perf_counter() - start) * 1e3)

    _call._bound, _call.workspace = bound, prepared

    def measured(function, args):
        jax.block_until_ready(args)
        row, jitted, start = {}, jax.jit(function), time.perf_counter()
        for name, step in (
            ("trace", lambda _: jitted.trace(*args)), ("lower", lambda traced: traced.lower()),
            ("compile", lambda lowered: lowered.compile()),
            ("first run", lambda run: (run, jax.block_until_ready(run(*args)))),
            ("second run", lambda both: jax.block_until_ready(both[0](*args))),
        ):
            value = step(value if row else None)  # noqa: F821
            row[name] = round((time.perf_counter() - start) * 1e3, 2)
            start = time.perf_counter()
        return row

    found = {}
    heads, d = (8, 64) if ON_GPU else (2, 16)
    for s in (1024, 1152, 1280, 1408, 1536) if ON_GPU else (8, 16, 24):
        args = [make(1, s, heads, d, seed=n) for n in range(3)]
        spent.clear(), plan_ms.clear()
        row = measured(lambda q, k, v: qj.attention(q, k, v, is_causal=True), args)
        row["binding in trace"], row["plan in trace"] = round(sum(spent), 2), round(sum(plan_ms), 2)
        found[f"qkvault {s}"] = row
        # What JAX itself takes for a program of this shape with one custom call in it and no attention.
        found[f"jax alone {s}"] = measured(lambda q, k, v: jnp.tanh(q) + k * v, args)
        if ON_GPU:
            nn = functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn")
            found[f"jax.nn cudnn {s}"] = measured(nn, args)
    print(json.dumps(found))


def child(what, file):
    command = [sys.executable, __file__, "--out", str(ARGS.out), "--child", what, str(file)]
    environment = {**os.environ, "QKVAULT_CACHE_DIR": VAULT}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    if done.returncode:
        return {"error": done.stderr[-1500:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    global VAULT, CONTEXT
    if ARGS.child:
        {"export": run_exported, "shapes": run_shapes}[ARGS.child[0]](ARGS.child[1])
        return 0
    started = time.time()
    ARGS.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="qkvault-jax-") as folder:
        VAULT = str(ARGS.vault or folder)
        CONTEXT = qkvault.Context(VAULT, build=True, handles=8)
        qj.configure(context=CONTEXT)
        if ON_GPU:
            # One call before asking, so that JAX has loaded its cuDNN.
            x = make(1, 128, 2, 64)
            jax.block_until_ready(jax.nn.dot_product_attention(x, x, x, implementation="cudnn"))
        record = {"jax": jax.__version__, "devices": [str(x.device_kind) for x in jax.devices()],
                  "qkvault": qkvault.version(), "cudnn": CONTEXT.cudnn if ON_GPU else None}
        print(record, flush=True)
        wrong, parts = [], {"two": two, "remat": remat, "export": export, "shapes": shapes}
        parts["guide"] = guide
        parts["forms"] = lambda: forms(sys.modules[__name__])
        for name in ARGS.parts.split(","):
            try:
                record[name] = parts[name]()
            except Exception as error:  # noqa: BLE001
                traceback.print_exc()
                record[name] = {"wrong": [f"{type(error).__name__}: {error}"[:1500]]}
            wrong += [f"{name}: {row}" for row in record[name]["wrong"]]
            record["seconds"] = round(time.time() - started, 1)
            print(f"-- {name}: {record['seconds']} s", flush=True)
            (ARGS.out / "adapter-jax-two.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrong: {wrong}" if wrong else f"all right, {record['seconds']} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
