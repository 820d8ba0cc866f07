"""`qkvault.jax` on a GPU: random attentions beside float32, transformations, host times, first calls.

    python3 card_jax.py --out DIR [--quick] [--cases 200] [--threads 16] [--library libqkvault.so]

Writes DIR/adapter-jax.json. Exit code 0 if no number is wrong. On a machine without a GPU it tries the same with the
oracle, without times beside others.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if (folder / "qkvault" / "__init__.py").exists():
        sys.path.insert(0, str(folder))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="20 cases and few calls")
    parser.add_argument("--library", help="libqkvault.so; else that of the package, or the one beside this file")
    parser.add_argument("--vault")
    parser.add_argument("--child", help="what a process of its own does")
    return parser.parse_args()


ARGS = arguments()
BESIDE = HERE / "libqkvault.so"
if ARGS.library or BESIDE.exists():
    os.environ["QKVAULT_LIBRARY"] = str(ARGS.library or BESIDE)

import jax  # noqa: E402
import jax.export  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import qkvault  # noqa: E402
import qkvault.jax as qj  # noqa: E402
from families import family, roundings, shaped  # noqa: E402

ON_GPU = jax.default_backend() in ("gpu", "cuda")
CPU = jax.devices("cpu")[0]
BOUNDS = {"bfloat16": 2e-2, "float16": 5e-3}


def plain(q, k, v, more, case, added=0.0, whole=False):
    """Attention from its definition in float32, and in the layout `bshd`: `added` to the scaled products; with `whole`,
    probabilities too."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * case.get("scale", q.shape[-1] ** -0.5) + added
    if "bias" in more:
        scores = scores + more["bias"]
    if case.get("softcap"):
        scores = case["softcap"] * jnp.tanh(scores / case["softcap"])
    grid = jnp.ix_(*(jnp.arange(n) for n in scores.shape))
    mod = modification(case, more)
    if mod is not None:
        mapped = mod
        for at in reversed(range(4)):
            mapped = jax.vmap(mapped, (0, *(0 if n == at else None for n in range(4))))
        scores = mapped(scores, *(jnp.arange(n) for n in scores.shape))
    _, _, i, j = grid
    keep = jnp.ones(scores.shape, bool)
    if case["causal"]:
        keep &= i >= j
    if case.get("window"):
        keep &= (j >= i - case["window"][0]) & (j <= i + case["window"][1])
    if "documents" in more and case["mask_mod"] == "documents":
        ids = more["documents"][:, None]
        keep &= ids[:, :, : scores.shape[2], None] == ids[:, :, None, : scores.shape[3]]
    if case["mask_mod"] == "dilated":
        keep &= (i - j) % 2 == 0
    if "lengths" in more:
        keep &= j < more["lengths"][:, None, None, None]
    scores = jnp.where(keep, scores, -jnp.inf)
    if "sinks" in more:
        sink = jnp.broadcast_to(more["sinks"][None, :, None, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, sink], -1)
    weights = jax.nn.softmax(scores, -1)[..., : k.shape[1]]
    o = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return (o, weights) if whole else o


def cancelled(qkv, more, case, d_o):
    """How far the gradients of Q and K may be off by what kernels round."""
    q, k, _ = (np.asarray(x, np.float64) for x in qkv)
    shape = (case["b"], case["h"], case["q"], case["k"])
    inner = lambda added: plain(*qkv, more, case, added, whole=True)  # noqa: E731
    (o, weights), pull = jax.vjp(inner, jnp.zeros(shape, jnp.float32))
    d_o = np.asarray(d_o, np.float32)
    (d_products,) = pull((d_o, jnp.zeros_like(weights)))
    by_head = lambda x: np.asarray(x, np.float64).swapaxes(1, 2)  # noqa: E731
    weights, d_products = (np.asarray(x, np.float64) for x in (weights, d_products))
    of_keys = by_head(k.repeat(case["h"] // case["kv"], 2))
    scale, bits = case.get("scale", case["d"] ** -0.5), 7 if case["dtype"] == "bfloat16" else 10
    return roundings(weights, d_products, by_head(o), by_head(d_o), by_head(q), of_keys, scale, bits)


def modification(case, more):
    """The score modification of a case."""
    cap, kind = 5.0, case["score_mod"]
    if kind == "alibi":
        slopes = more["slopes"]
        return lambda s, b, h, i, j: s - slopes[h] * jnp.abs(i - j)
    if kind == "relative":
        table = more["table"]
        return lambda s, b, h, i, j: s + table[h, jnp.clip(j - i + 32, 0, 63)]
    return {
        None: None,
        "softcap": lambda s, b, h, i, j: cap * jnp.tanh(s / cap),
        "gated": lambda s, b, h, i, j: s * jax.nn.sigmoid(s) + 0.1 * jnp.where(i // 16 == j // 16, 1.0, 0.0),
        "by head": lambda s, b, h, i, j: s * (1.0 + 0.25 * (h % 2)) - 0.01 * jnp.abs(i - j),
    }[kind]


def ours(q, k, v, more, case):
    options = {"score_mod": modification(case, more), "is_causal": case["causal"], "softcap": case.get("softcap"),
               "scale": case.get("scale"), "window": case.get("window"), "bias": more.get("bias"),
               "sinks": more.get("sinks"), "key_value_seq_lengths": more.get("lengths")}
    if case["mask_mod"] == "dilated":
        options["mask_mod"] = lambda b, h, i, j: (i - j) % 2 == 0
    if case["mask_mod"] == "documents":
        ids = more["documents"]
        options["mask_mod"] = lambda b, h, i, j: ids[b, i] == ids[b, j]
    if case["layout"] == "bhsd":
        turned = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
        return jnp.swapaxes(qj.attention(*turned, layout="bhsd", **options), 1, 2)
    return qj.attention(q, k, v, **options)


def drawn(rng, dtype, data="normal"):
    """A random case: what it is, and its arrays."""
    pick = lambda *of: of[rng.integers(len(of))]  # noqa: E731
    heads_kv, group, d = pick(1, 2, 4), pick(1, 2, 4), pick(32, 64, 96, 128)
    rows = pick(64, 128, 200, 256, 384)
    same = pick(True, True, False)
    case = {"dtype": dtype, "data": data, "b": pick(1, 2, 3), "h": heads_kv * group, "kv": heads_kv, "q": rows,
            "k": rows if same else rows + pick(64, 100), "d": d, "causal": bool(pick(True, False)),
            "layout": pick("bshd", "bhsd"),
            "score_mod": pick(None, None, "softcap", "alibi", "relative", "gated", "by head"),
            "mask_mod": pick(None, None, None, "dilated", "documents")}
    if case["score_mod"] is None and pick(True, False):
        case["softcap"] = 10.0
    if pick(True, False, False):
        case["window"] = (int(pick(16, 50)), int(pick(0, 8)))
        case["causal"] = False
    if pick(True, False):
        case["scale"] = 0.2
    array = lambda *shape, scale=1.0: (scale * rng.standard_normal(shape)).astype(np.float32)  # noqa: E731
    more = {}
    if case["score_mod"] == "alibi":
        more["slopes"] = np.abs(array(case["h"], scale=0.1))
    if case["score_mod"] == "relative":
        more["table"] = array(case["h"], 64)
    if case["score_mod"] is None and pick(True, False, False):
        more["bias"] = array(pick(1, case["b"]), pick(1, case["h"]), case["q"], case["k"])
    if case["mask_mod"] == "documents":
        more["documents"] = np.sort(rng.integers(0, 3, (case["b"], max(case["q"], case["k"]))), 1).astype(np.int32)
        more["documents"][:, : max(case["q"], case["k"])] //= 2
    if pick(True, False, False, False):
        more["sinks"] = array(case["h"])
    if case["mask_mod"] is None and "window" not in case and pick(True, False, False, False):
        more["lengths"] = rng.integers(1, case["k"] + 1, case["b"]).astype(np.int32)
    qkv = [array(case["b"], n, h, d) for n, h in ((case["q"], case["h"]), (case["k"], heads_kv), (case["k"], heads_kv))]
    qkv = shaped(data, *qkv, case.get("scale", d**-0.5), 1)
    return case, [np.asarray(jnp.asarray(x, dtype)) for x in qkv], more, array(case["b"], case["q"], case["h"], d)


def step(function, case):
    """The value and the gradients of an attention, by q, k, v and every float array beside them."""
    def run(qkv, floats, fixed, d_o):
        def inner(qkv, floats):
            return function(*qkv, {**floats, **fixed}, case)

        o, pull = jax.vjp(inner, qkv, floats)
        return o, pull(d_o.astype(o.dtype))

    return jax.jit(run)


def compared(wanted):
    """One case beside float32: ('right', ...), ('refused', codes) or ('wrong', why)."""
    seed, dtype, data = wanted
    case, qkv, more, d_o = drawn(np.random.default_rng(seed), dtype, data)
    # The derivative by what is multiplied with the score or with an index is refused; ALiBi's slopes stay fixed.
    floats = {name: x for name, x in more.items() if name in ("bias", "table", "sinks")}
    fixed = {name: x for name, x in more.items() if name not in floats}
    d_o = np.asarray(jnp.asarray(d_o, dtype))
    try:
        found = jax.tree.map(np.asarray, step(ours, case)(qkv, floats, fixed, d_o))
    except qkvault.Refused as refused:
        return "refused", case, sorted({reason.code for reason in refused.reasons})
    except Exception as error:  # noqa: BLE001
        return "wrong", case, "".join(traceback.format_exception(error)[-4:])
    with jax.default_device(CPU):
        put = lambda tree: jax.tree.map(lambda x: jax.device_put(x, CPU), tree)  # noqa: E731
        exact = jax.tree.map(np.asarray, step(plain, case)(put(qkv), put(floats), put(fixed), put(d_o)))
        rounded = cancelled(put(qkv), put({**floats, **fixed}), case, put(d_o))
    rows = seen(case, more)
    worst = 0.0
    leaves = jax.tree_util.tree_leaves_with_path
    # Gradients of Q and K come behind O.
    for at, ((path, a), (_, b)) in enumerate(zip(leaves(found), leaves(exact))):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if not rows.all():
            # A query that sees no key has no defined average here.
            return "skipped", case, "a query sees no key"
        bound = BOUNDS[dtype] * (1 if len(path) == 1 else 2)
        nothing = rounded[at - 1] / bound if at in (1, 2) else 0.0
        off = np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-3 * np.sqrt(b.size), nothing)
        worst = max(worst, off / bound)
        if not off < bound:
            return "wrong", case, f"{jax.tree_util.keystr(path)}: relative {off:.3g}, bound {bound}"
    return "right", case, worst


def seen(case, more):
    """Which queries see a key."""
    i, j = np.arange(case["q"])[:, None], np.arange(case["k"])[None]
    keep = np.ones((case["b"], case["q"], case["k"]), bool)
    if case["causal"]:
        keep &= i >= j
    if case.get("window"):
        keep &= (j >= i - case["window"][0]) & (j <= i + case["window"][1])
    if case["mask_mod"] == "documents":
        ids = more["documents"]
        keep &= ids[:, : case["q"], None] == ids[:, None, : case["k"]]
    if case["mask_mod"] == "dilated":
        keep &= (i - j) % 2 == 0
    if "lengths" in more:
        keep &= j[None] < more["lengths"][:, None, None]
    return keep.any(-1)


def numbers(count):
    """Random cases in threads, bf16 and f16 in turn."""
    wanted = [(ARGS.seed * 100_000 + n, ("bfloat16", "float16")[n % 2], family(n // 2)) for n in range(4 * count)]
    families = collections.defaultdict(collections.Counter)
    tally, wrong, codes, worst, done = collections.Counter(), [], collections.Counter(), 0.0, 0
    started = time.time()
    with concurrent.futures.ThreadPoolExecutor(ARGS.threads) as pool:
        for kind, case, told in pool.map(compared, wanted[: int(count * 1.25)]):
            if kind == "skipped" or done >= count:
                tally[kind] += kind == "skipped"
                continue
            done += 1
            tally[kind] += 1
            families[case["data"]][kind] += 1
            if kind == "wrong":
                wrong.append({"case": case, "why": told})
                print("WRONG", case, told, flush=True)
            elif kind == "refused":
                codes.update(told)
            else:
                worst = max(worst, told)
    print(f"{count} cases: {dict(tally)} in {time.time() - started:.1f} s", flush=True)
    return {"cases": done, "right": tally["right"], "refused": tally["refused"], "wrong": tally["wrong"],
            "families": {name: dict(of) for name, of in families.items()}, "refused_codes": dict(codes), "worst_of_bound": round(worst, 3), "wrong_cases": wrong[:20],
            "seconds": round(time.time() - started, 1)}


from card_jax_more import more_checks  # noqa: E402

if __name__ == "__main__":
    sys.exit(more_checks(ARGS, sys.modules[__name__]))
