"""`qkvault.jax` on CPUs, where the oracle computes: numbers, transformations, modifications, errors.

    cargo xtask jax-tests                                # installs JAX into an environment of its own
    python3 -m unittest adapters/python/tests/test_jax.py    # with JAX, and QKVAULT_LIBRARY or the installed wheel

`QKVAULT_TEST_CUDNN` names a cuDNN 9.19 or newer, without which no plan is compiled for a GPU that is not here.
"""

import functools
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 " + os.environ.get("XLA_FLAGS", "")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
try:
    import jax
    import jax.export
    import jax.numpy as jnp
    import numpy as np
except ImportError:
    raise unittest.SkipTest("JAX is not installed") from None

import qkvault
import qkvault.jax as qj

P = jax.sharding.PartitionSpec
CUDNN = os.environ.get("QKVAULT_TEST_CUDNN")
RNG = np.random.default_rng(16)


def make(*shape, dtype=jnp.bfloat16):
    return jnp.asarray(RNG.standard_normal(shape), dtype)


Q, K, V = make(2, 24, 4, 16), make(2, 24, 2, 16), make(2, 24, 2, 16)
CAUSAL = jnp.tril(jnp.ones((24, 24), bool))


def plain(q, k, v, *, score_mod=None, mask=None, scale=None, bias=None, sinks=None, softcap=None):
    """Attention from its definition in float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    scores = scores if softcap is None else softcap * jnp.tanh(scores / softcap)
    if score_mod is not None:
        mapped = score_mod
        for at in reversed(range(4)):
            mapped = jax.vmap(mapped, (0, *(0 if n == at else None for n in range(4))))
        scores = mapped(scores, *(jnp.arange(n) for n in scores.shape))
    scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    if sinks is not None:
        more = jnp.broadcast_to(sinks.astype(jnp.float32)[None, :, None, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, more], -1)
    weights = jax.nn.softmax(scores, -1)[..., : k.shape[1]]
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def squares(function):
    return lambda *args: (function(*args).astype(jnp.float32) ** 2).sum()


class Case(unittest.TestCase):
    def near(self, found, exact, bound=1.5e-2):
        found, exact = jax.tree.leaves(found), jax.tree.leaves(exact)
        self.assertEqual(len(found), len(exact))
        for a, b in zip(found, exact):
            self.assertEqual(a.shape, b.shape)
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            self.assertLess(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-6), bound)

    def both(self, args, ours, theirs, bound=1.5e-2):
        """Compares values and gradients."""
        moved = tuple(range(len(args)))
        self.near(ours(*args), theirs(*args))
        self.near(jax.jit(jax.grad(squares(ours), moved))(*args), jax.grad(squares(theirs), moved)(*args), bound)

    def said(self, error, *parts):
        for part in parts:
            self.assertIn(part, str(error.exception))


class Numbers(Case):
    def test_masks_and_lengths(self):
        rows, keys = jnp.arange(24)[:, None], jnp.arange(24)[None]
        for options, mask in [
            ({}, None), ({"is_causal": True}, CAUSAL), ({"window": (3, 2)}, (keys >= rows - 3) & (keys <= rows + 2)),
            ({"window": 4, "is_causal": True}, (keys >= rows - 4) & (keys <= rows)),
            ({"window": (None, 2)}, keys <= rows + 2), ({"mask": CAUSAL.T}, CAUSAL.T),
        ]:
            with self.subTest(options):
                self.both((Q, K, V), lambda *a: qj.attention(*a, **options), lambda *a: plain(*a, mask=mask))
        lengths = jnp.asarray([24, 7])
        keep = (jnp.arange(24) < lengths[:, None])
        options = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths, "is_causal": True}
        exact = lambda q, k, v: plain(q, k, v, mask=keep[:, None, None] & CAUSAL) * keep[:, :, None, None]  # noqa: E731
        self.both((Q, K, V), lambda q, k, v: qj.attention(q, k, v, **options), exact)

    def test_layouts_types_and_heads(self):
        for dtype in (jnp.bfloat16, jnp.float16):
            q, k, v = make(1, 8, 6, 16, dtype=dtype), make(1, 12, 3, 16, dtype=dtype), make(1, 12, 3, 8, dtype=dtype)
            self.both((q, k, v), qj.attention, plain)
            turned = [jnp.swapaxes(x, 1, 2) for x in (q, k, v)]
            found = qj.attention(*turned, layout="bhsd")
            self.assertEqual(found.dtype, dtype)
            self.near(jnp.swapaxes(found, 1, 2), plain(q, k, v))

    def test_bias_softcap_scale_and_sinks(self):
        bias, sinks, cap = make(1, 4, 24, 24, dtype=jnp.float32), make(4, dtype=jnp.float32), jnp.float32(2.0)
        self.both((Q, K, V, bias), lambda q, k, v, b: qj.attention(q, k, v, bias=b),
                  lambda q, k, v, b: plain(q, k, v, bias=b))
        self.both((Q, K, V, sinks), lambda q, k, v, s: qj.attention(q, k, v, sinks=s),
                  lambda q, k, v, s: plain(q, k, v, sinks=s))
        self.both((Q, K, V), lambda q, k, v: qj.attention(q, k, v, softcap=2.0, scale=0.5),
                  lambda q, k, v: plain(q, k, v, softcap=2.0, scale=0.5))
        self.both((Q, K, V), lambda *a: qj.attention(*a, softcap=cap), lambda *a: plain(*a, softcap=2.0))
        self.both((Q, K, V), lambda *a: qj.attention(*a, scale=cap), lambda *a: plain(*a, scale=2.0))

    def test_sinks_that_do_not_move_have_no_part_in_the_gradients_call(self):
        sinks = make(4, dtype=jnp.float32)
        self.both((Q, K, V), lambda *a: qj.attention(*a, sinks=sinks), lambda *a: plain(*a, sinks=sinks))

    def test_the_front_is_that_of_jax_nn(self):
        theirs = jax.nn.dot_product_attention
        mask, bias = CAUSAL[None, None], make(1, 4, 24, 24)
        for options in [{}, {"is_causal": True}, {"mask": mask}, {"bias": bias}, {"local_window_size": 5},
                        {"local_window_size": (3, 0), "scale": 0.5}, {"key_value_seq_lengths": jnp.asarray([24, 9])}]:
            with self.subTest(options.keys()):
                if "local_window_size" in options and jax.__version_info__ < (0, 11):
                    continue  # The windows of jax.nn were wrong in these versions.
                exact = theirs(Q, K, V, implementation="xla", **options)
                self.near(qj.dot_product_attention(Q, K, V, **options), exact)
        self.near(qj.dot_product_attention(Q[0], K[0], V[0]), theirs(Q[0], K[0], V[0], implementation="xla"))


class Modifications(Case):
    def mod(self, score_mod):
        ours, theirs = (functools.partial(f, score_mod=score_mod) for f in (qj.attention, plain))
        self.both((Q, K, V), ours, theirs)

    def test_functions_of_the_score(self):
        cap, slopes, documents = 3.0, jnp.asarray([0.5, 0.25, 0.125, 0.0625]), jnp.asarray(RNG.integers(0, 3, (2, 24)))
        for name, mod in {
            "softcap": lambda s, b, h, i, j: cap * jnp.tanh(s / cap),
            "alibi": lambda s, b, h, i, j: s - slopes[h] * jnp.abs(i - j),
            "alibi computed": lambda s, b, h, i, j: s - jnp.exp2(-(h + 1.0)) * jnp.abs(i - j),
            "causal as where": lambda s, b, h, i, j: jnp.where(i >= j, s, -jnp.inf),
            "causal and softcap": lambda s, b, h, i, j: jnp.where(i >= j, jnp.tanh(s), -jnp.inf),
            "documents": lambda s, b, h, i, j: jnp.where(documents[b, i] == documents[b, j], s, -1e9),
            "powers": lambda s, b, h, i, j: s + 0.1 * s**3 - jax.nn.sigmoid(s) * jax.nn.relu(s),
            "remainders": lambda s, b, h, i, j: s + ((i - j) % 3) * 0.25 + jnp.where((j - i) % 2 == 0, 0.5, 0.0),
            "blocks": lambda s, b, h, i, j: s + jnp.where(i // 8 == j // 8, 1.0, 0.0) + (j % 3 == 1) * 0.5,
            "by batch and head": lambda s, b, h, i, j: s * (1.0 + 0.5 * (b == 1)) + jnp.clip(j - h, -2, 2),
            "a table computed ahead": lambda s, b, h, i, j: s + jnp.cumsum(slopes)[(i ^ j) & 3],
            "double": lambda s, b, h, i, j: s * 1 + jnp.sign(s) * jnp.log1p(jnp.abs(s)),
        }.items():
            with self.subTest(name):
                self.mod(mod)

    def test_types_wrap_and_round_and_operations_are_those_of_jax(self):
        zeros, lax = jnp.zeros((), jnp.int32), jax.lax
        for name, mod in {
            "int8 wraps": lambda s, b, h, i, j: s + 0.01 * ((i - j) * 20).astype(jnp.int8),
            "uint8 wraps": lambda s, b, h, i, j: s + 0.01 * (i - j).astype(jnp.uint8),
            "a window by uint32": lambda s, b, h, i, j: jnp.where((i - j).astype(jnp.uint32) < 5, s, s - 2.0),
            "int32 wraps": lambda s, b, h, i, j: jnp.where(j * 100000 * 10000 < 0, s, s - 1),
            "bfloat16 of an index": lambda s, b, h, i, j: s + 0.01 * (i * 37 + j).astype(jnp.bfloat16) - 0.01 * j,
            "a sum in bfloat16": lambda s, b, h, i, j: s + 0.01 * ((j * 37).astype(jnp.bfloat16) + jnp.bfloat16(0.3)),
            "an integer of a float": lambda s, b, h, i, j: s + 0.1 * ((i - j) / 3).astype(jnp.int32),
            "a remainder by 0": lambda s, b, h, i, j: s + 0.1 * lax.rem(j, j % 3),
            "a remainder of truncation": lambda s, b, h, i, j: s + 0.1 * lax.rem(i - j, zeros + 4),
            "a quotient of truncation": lambda s, b, h, i, j: s + 0.1 * lax.div(i - j, zeros + 4),
            "remainders of floats": lambda s, b, h, i, j: s + 0.1 * (s % 0.75) + 0.1 * (s % -0.5) + jnp.fmod(s, 0.3),
            "powers": lambda s, b, h, i, j: s + 0.1 * s**3 + 0.1 * s**2.0 + 0.01 * jnp.minimum(s**-2, 9.0),
            "a power by an index": lambda s, b, h, i, j: s + 0.01 * s ** (j % 3).astype(jnp.float32),
            "a maximum of NaN": lambda s, b, h, i, j: jnp.where(jnp.maximum(jnp.log(s), -1.0) > -9.0, s, s + 1),
            "where": lambda s, b, h, i, j: jnp.where(s > 0.1, jnp.log(jnp.where(s > 0.1, s, 1.0)), s),
        }.items():
            with self.subTest(name):
                self.near(qj.attention(Q, K, V, score_mod=mod), plain(Q, K, V, score_mod=mod), 4e-3)

    def test_masks(self):
        documents = jnp.asarray(RNG.integers(0, 3, (2, 24)))
        for name, keep in {
            "causal": lambda b, h, i, j: i >= j,
            "documents": lambda b, h, i, j: (documents[b, i] == documents[b, j]) & (i >= j),
            "prefix": lambda b, h, i, j: (j < 5) | ~(j > i),
            "dilated": lambda b, h, i, j: (abs(i - j) <= 8) & ((i - j) % 2 == 0),
            "heads differ": lambda b, h, i, j: jnp.where(h % 2 == 0, j <= i, j >= i),
        }.items():
            with self.subTest(name):
                full = jnp.broadcast_to(keep(*jnp.ix_(*(jnp.arange(n) for n in (2, 4, 24, 24)))), (2, 4, 24, 24))
                self.both((Q, K, V), lambda *a: qj.attention(*a, mask_mod=keep), lambda *a: plain(*a, mask=full))

    def test_a_gradient_that_is_numpy_s_is_no_zero(self):
        q, k, v = make(1, 16, 2, 16), make(1, 16, 2, 16), make(1, 16, 2, 16)
        o, pull = jax.vjp(lambda *a: qj.attention(*a, is_causal=True), q, k, v)
        self.near(pull(np.asarray(o)), pull(o))

    def test_captured_arrays_have_gradients(self):
        # What has a gradient is rounded to bfloat16, as the tensor that cuDNN adds to the scores.
        table, slopes = make(4, 64, dtype=jnp.float32), make(4, dtype=jnp.float32)

        def relative(table, slopes):
            return lambda s, b, h, i, j: s + table[h, jnp.clip(j - i + 32, 0, 63)] - slopes[h] * jnp.abs(i - j)

        self.both((Q, K, V, table, slopes), lambda q, k, v, t, a: qj.attention(q, k, v, score_mod=relative(t, a)),
                  lambda q, k, v, t, a: plain(q, k, v, score_mod=relative(t, a)), 5e-2)
        only = jax.grad(squares(lambda t: qj.attention(Q, K, V, score_mod=relative(t, slopes))))(table)
        self.near(only, jax.grad(squares(lambda t: plain(Q, K, V, score_mod=relative(t, slopes))))(table), 5e-2)

    def test_captured_floats_are_numbers_and_change_no_description(self):
        def of(cap):
            return keys(lambda q: qj.attention(q, K, V, score_mod=lambda s, b, h, i, j: jnp.tanh(s / cap) * cap), Q)

        self.assertEqual(of(2.0), of(5.0))
        # One that decides in Python is a constant.
        decided = lambda cap: lambda s, b, h, i, j: s * cap if cap > 1.0 else s  # noqa: E731
        several = [keys(lambda q: qj.attention(q, K, V, score_mod=decided(cap)), Q) for cap in (0.5, 2.0, 3.0)]
        self.assertEqual(len(set(map(tuple, several))), 3)

    def test_keys_are_those_of_descriptions_by_hand(self):
        shapes = "q: bf16 [2,4,24,16]\nk: bf16 [2,2,24,16]\n"
        for hand, options in [
            ("mask: causal", {"is_causal": True}),
            ("mask: band left 4 right 0", {"is_causal": True, "window": 3}),
            ("mask: causal", {"mask_mod": lambda b, h, i, j: i >= j}),
            ("score_mod: scalar $cap: float; tanh(score / $cap) * $cap", {"softcap": 5.0}),
            ("mask_mod: query // 8 == key // 8", {"mask_mod": lambda b, h, i, j: i // 8 == j // 8}),
            ("mask_mod: (query - key) % 2 == 0", {"mask_mod": lambda b, h, i, j: (i - j) % 2 == 0}),
            ("score_mod: tensor @b: f32[1,4,24,24]; score + @b", {"bias": jnp.zeros((1, 4, 24, 24))}),
        ]:
            with self.subTest(hand):
                ours = keys(lambda q: qj.attention(q, K, V, **options), Q)
                self.assertEqual(ours, [qkvault.Attention(shapes + hand).key])
        ours = keys(jax.grad(squares(lambda q: qj.attention(q, K, V, is_causal=True))), Q)
        self.assertEqual(ours, [both.key for both in qkvault.Attention(shapes + "mask: causal").training()])

    def test_a_value_that_a_program_is_given_traces_nothing_again(self):
        traces = []

        @jax.jit
        def step(q, cap):
            traces.append(1)
            return qj.attention(q, K, V, softcap=cap)

        for cap in (1.0, 2.0, 3.0):
            self.near(step(Q, jnp.float32(cap)), plain(Q, K, V, softcap=cap))
        self.assertEqual(len(traces), 1)


def keys(function, *args):
    """The keys of the attentions that a function calls, in order."""
    return re.findall("'key', '([0-9a-f]{64})'", str(jax.make_jaxpr(function)(*args)))


class Transformations(Case):
    def test_vmap_folds_into_the_batch(self):
        mod = lambda s, b, h, i, j: s * (1.0 + b) + SLOPES[h] * (i - j)  # noqa: E731
        many = jnp.stack([Q, 2 * Q, Q - 1])
        ours = lambda q, k, v: qj.attention(q, k, v, score_mod=mod)  # noqa: E731
        theirs = lambda q, k, v: plain(q, k, v, score_mod=mod)  # noqa: E731
        twice = jnp.stack([many, many + 1])
        turned = jnp.moveaxis(many, 0, 2)
        gradient = lambda f: jax.grad(squares(f), (0, 1, 2))  # noqa: E731
        for name, of, args in [
            ("one", lambda f: jax.vmap(f, (0, None, None)), (many, K, V)),
            ("nested", lambda f: jax.vmap(jax.vmap(f, (0, None, None)), (0, None, None)), (twice, K, V)),
            ("another axis", lambda f: jax.vmap(f, (2, None, None), out_axes=1), (turned, K, V)),
            ("keys alone", lambda f: jax.vmap(f, (None, 0, None)), (Q, jnp.stack([K, -K]), V)),
            ("jit", lambda f: jax.jit(jax.vmap(f, (0, None, None))), (many, K, V)),
            ("of grad", lambda f: jax.vmap(gradient(f), (0, None, None)), (many, K, V)),
            ("grad of", lambda f: gradient(jax.vmap(f, (0, None, None))), (many, K, V)),
            ("remat", lambda f: jax.grad(jax.checkpoint(squares(jax.vmap(f, (0, None, None))))), (many, K, V)),
        ]:
            with self.subTest(name):
                self.near(of(ours)(*args), of(theirs)(*args))

    def test_vmap_over_captured_arrays_sinks_and_lengths(self):
        tables, sinks = make(3, 4, 24, dtype=jnp.float32), make(3, 4, dtype=jnp.float32)
        mod = lambda t: lambda s, b, h, i, j: s + t[h, j]  # noqa: E731
        of = lambda f: lambda t: f(Q, K, V, score_mod=mod(t))  # noqa: E731
        self.near(jax.vmap(of(qj.attention))(tables), jax.vmap(of(plain))(tables))
        self.near(jax.vmap(jax.grad(squares(of(qj.attention))))(tables), jax.vmap(jax.grad(squares(of(plain))))(tables))
        each = jax.vmap(jax.grad(squares(lambda q, t: qj.attention(q, K, V, score_mod=mod(t))), 1), (0, None))
        exact = jax.vmap(jax.grad(squares(lambda q, t: plain(q, K, V, score_mod=mod(t))), 1), (0, None))
        self.near(each(jnp.stack([Q, Q + 1]), tables[0]), exact(jnp.stack([Q, Q + 1]), tables[0]))
        of = lambda f: lambda s: f(Q, K, V, sinks=s)  # noqa: E731
        self.near(jax.vmap(of(qj.attention))(sinks), jax.vmap(of(plain))(sinks))
        self.near(jax.vmap(jax.grad(squares(of(qj.attention))))(sinks), jax.vmap(jax.grad(squares(of(plain))))(sinks))
        lengths = jnp.asarray([[24, 7], [3, 24]])
        found = jax.vmap(lambda n: qj.attention(Q, K, V, key_value_seq_lengths=n))(lengths)
        exact = jax.vmap(lambda n: plain(Q, K, V, mask=(jnp.arange(24) < n[:, None])[:, None, None]))(lengths)
        self.near(found, exact)

    def test_remat_scan_and_a_program_that_is_called_often(self):
        ours = lambda q: qj.attention(q, K, V, is_causal=True)  # noqa: E731
        theirs = lambda q: plain(q, K, V, mask=CAUSAL).astype(q.dtype)  # noqa: E731
        self.near(jax.grad(jax.checkpoint(squares(ours)))(Q), jax.grad(squares(theirs))(Q))
        def steps(f):
            return jax.grad(squares(lambda q: jax.lax.scan(lambda c, _: (f(c), None), q, None, length=3)[0]))

        self.near(steps(ours)(Q), steps(theirs)(Q), 3e-2)
        compiled = jax.jit(ours)
        first = compiled(Q)
        self.assertTrue(all((compiled(Q) == first).all() for _ in range(5)))

    def test_shard_map_over_batch_and_heads(self):
        if len(jax.devices()) < 4:
            self.skipTest("four devices are needed")
        mesh = jax.make_mesh((2, 2), ("x", "y"))
        spec = P("x", None, "y")
        q, k, v = (jax.device_put(x, jax.sharding.NamedSharding(mesh, spec)) for x in (Q, K, V))
        table = jax.device_put(make(24, 24, dtype=jnp.float32), jax.sharding.NamedSharding(mesh, P()))
        mod = lambda t: lambda s, b, h, i, j: jnp.tanh(s) + t[i, j]  # noqa: E731
        local = lambda q, k, v, t: qj.attention(q, k, v, score_mod=mod(t))  # noqa: E731
        whole = lambda q, k, v, t: plain(q, k, v, score_mod=mod(t))  # noqa: E731
        mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec, spec, P()), out_specs=spec))
        self.near(mapped(q, k, v, table), whole(Q, K, V, jnp.asarray(np.asarray(table))))
        text = mapped.lower(q, k, v, table).compile().as_text()
        self.assertEqual(text.count("all-gather("), 0)
        gradient = jax.jit(jax.grad(squares(mapped), (0, 1, 2, 3)))
        exact = jax.grad(squares(whole), (0, 1, 2, 3))(Q, K, V, jnp.asarray(np.asarray(table)))
        self.near(gradient(q, k, v, table), exact)

    def test_a_table_by_heads_beside_a_whole_one_under_shard_map(self):
        if len(jax.devices()) < 2:
            self.skipTest("two devices are needed")
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("heads",))
        spec, slopes, table = P(None, None, "heads"), make(4, dtype=jnp.float32), make(24, 24, dtype=jnp.float32)
        mod = lambda a, t: lambda s, b, h, i, j: s - a[h] * jnp.abs(i - j) + t[i, j]  # noqa: E731
        local = lambda q, k, v, a, t: qj.attention(q, k, v, score_mod=mod(a, t))  # noqa: E731
        specs = (spec, spec, spec, P("heads"), P())
        mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=spec))
        place = lambda x, spec: jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))  # noqa: E731
        given = [place(x, spec) for x, spec in zip((Q, K, V, slopes, table), specs)]
        whole = lambda q, k, v, a, t: plain(q, k, v, score_mod=mod(a, t))  # noqa: E731
        self.near(mapped(*given), whole(Q, K, V, slopes, table))
        exact = jax.grad(squares(whole), (0, 1, 2, 4))(Q, K, V, slopes, table)
        self.near(jax.jit(jax.grad(squares(mapped), (0, 1, 2, 4)))(*given), exact, 5e-2)

    def test_gradients_of_fewer_arrays_after_those_of_more_through_one_program(self):
        table = make(24, 24, dtype=jnp.float32)
        mod = lambda t: lambda s, b, h, i, j: s + t[i, j]  # noqa: E731
        program = jax.jit(lambda q, t: qj.attention(q, K, V, score_mod=mod(t)))
        exact = jax.grad(squares(lambda q, t: plain(q, K, V, score_mod=mod(t))), (0, 1))(Q, table)
        self.near(jax.grad(squares(program), (0, 1))(Q, table), exact)
        for few in (jax.grad(squares(program)), jax.grad(jax.checkpoint(squares(program)))):
            self.near(few(Q, table), exact[0])
        self.near(jax.grad(squares(program), 1)(Q, table), exact[1], 5e-2)

    def test_a_process_that_only_loads_a_program_knows_its_call(self):
        exported = jax.export.export(jax.jit(qj.attention), disabled_checks=qj.export_checks())(Q, K, V)
        program = "import sys, jax.export, jax.numpy as jnp, numpy as np, qkvault.jax\n" \
            "loaded = jax.export.deserialize(open(sys.argv[1], 'rb').read())\n" \
            "args = [jnp.asarray(x, jnp.bfloat16) for x in np.load(sys.argv[2]).values()]\n" \
            "np.save(sys.argv[3], np.asarray(loaded.call(*args), np.float32))\n"
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in ("program", "args.npz", "found.npy")]
            pathlib.Path(files[0]).write_bytes(exported.serialize())
            np.savez(files[1], *(np.asarray(x, np.float32) for x in (Q, K, V)))
            path = os.pathsep.join([str(pathlib.Path(qkvault.__file__).parents[1]), *sys.path])
            subprocess.run([sys.executable, "-c", program, *files], check=True, env={**os.environ, "PYTHONPATH": path})
            self.near(np.load(files[2]), plain(Q, K, V))

    def test_importing_starts_no_backend(self):
        program = "import qkvault.jax; from jax._src import xla_bridge; assert not xla_bridge._backends"
        path = os.pathsep.join([str(pathlib.Path(qkvault.__file__).parents[1]), *sys.path])
        subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path})

    def test_export_and_gradients_of_what_is_loaded(self):
        ours = jax.jit(lambda q, k, v: qj.attention(q, k, v, is_causal=True))
        with self.assertRaises(ValueError):
            jax.export.export(ours)(Q, K, V)
        exported = jax.export.export(ours, disabled_checks=qj.export_checks())(Q, K, V)
        loaded = jax.export.deserialize(exported.serialize())
        self.near(loaded.call(Q, K, V), plain(Q, K, V, mask=CAUSAL))
        loaded = jax.export.deserialize(exported.serialize(vjp_order=1))
        exact = jax.grad(squares(lambda *a: plain(*a, mask=CAUSAL)))(Q, K, V)
        self.near(jax.grad(squares(loaded.call))(Q, K, V), exact)

    def test_a_program_for_a_gpu_that_is_not_here(self):
        if not CUDNN:
            self.skipTest("QKVAULT_TEST_CUDNN names no cuDNN")
        with tempfile.TemporaryDirectory() as folder:
            try:
                qj.configure(vault=folder, target="h200", cudnn=CUDNN)
                q, k, v = (jax.ShapeDtypeStruct((2, 256, n, 64), jnp.bfloat16) for n in (4, 2, 2))
                step = jax.jit(jax.grad(squares(lambda *a: qj.attention(*a, is_causal=True, softcap=30.0))))
                made = jax.export.export(step, platforms=["cuda"], disabled_checks=qj.export_checks())(q, k, v)
                self.assertGreater(len(made.serialize()), 1000)
                qj.configure(vault=folder, target="h200", cudnn=CUDNN, build=False)
                jax.export.export(step, platforms=["cuda"], disabled_checks=qj.export_checks())(q, k, v)
                # Among several devices a plan is looked for when it is known how arrays are divided: not before.
                with self.assertRaises(qkvault.PlanMissing):
                    jax.jit(qj.attention).lower(q, k, v)
                odd = jax.ShapeDtypeStruct((2, 256, 4, 60), jnp.bfloat16)
                with self.assertRaises(qkvault.Refused) as refused:
                    jax.jit(qj.attention).lower(odd, odd, odd)
                self.assertIn("head-dim.multiple-of-8", [reason.code for reason in refused.exception.reasons])
            finally:
                qj.configure()


SLOPES = jnp.asarray([0.05, 0.04, 0.03, 0.02])


class Errors(Case):
    def test_what_has_no_equivalent_is_named_with_its_line(self):
        for name, mod in {
            "round": lambda s, b, h, i, j: jnp.round(s),
            "convert_element_type": lambda s, b, h, i, j: s + s.astype(jnp.int32),
            "cumsum": lambda s, b, h, i, j: jnp.cumsum(s[None])[0],
        }.items():
            with self.assertRaises(qj.TraceError) as error:
                qj.attention(Q, K, V, score_mod=mod)
            self.said(error, "score_mod", "test_jax.py", "line ")
            self.assertTrue(name in str(error.exception) or "broadcast" in str(error.exception), error.exception)
        with self.assertRaises(qj.TraceError) as error:
            qj.attention(Q, K, V, score_mod=lambda s, b, h, i, j: s if i > j else -s)
        self.said(error, "jnp.where")
        with self.assertRaises(qj.TraceError) as error:
            qj.attention(Q, K, V, mask_mod=lambda b, h, i, j: i - j)
        self.said(error, "truth value")
        with self.assertRaises(qj.TraceError) as error:
            qj.attention(Q, K, V, score_mod=lambda s, b, h, i, j: jnp.tanh(jnp.where(i > j, s, -jnp.inf)))
        self.said(error, "infinity")

    def test_an_array_of_numpy_is_told_how_to_be_captured(self):
        slopes = np.ones(4, np.float32)
        with self.assertRaises(qj.TraceError) as error:
            qj.attention(Q, K, V, score_mod=lambda s, b, h, i, j: s * slopes[h])
        self.said(error, "jnp.asarray")
        self.near(qj.attention(Q, K, V, score_mod=lambda s, b, h, i, j: s * np.float32(2.0)), plain(Q, K, V, scale=0.5))

    def test_wrong_arrays_are_told(self):
        wide = Q.astype(jnp.float32)
        for error, parts, call in [
            (qkvault.Refused, ["dtype.input"], lambda: qj.attention(wide, wide, wide)),
            (qkvault.ArgumentError, ["int8"], lambda: qj.attention(*[Q.astype(jnp.int8)] * 3)),
            (qkvault.ArgumentError, ["k is float16"], lambda: qj.attention(Q, K.astype(jnp.float16), V)),
            (qkvault.ArgumentError, ["(24, 4, 16)"], lambda: qj.attention(Q[0], K[0], V[0])),
            (qkvault.ArgumentError, ["sinks"], lambda: qj.attention(Q, K, V, sinks=jnp.ones(3))),
            (qkvault.ArgumentError, ["bias"], lambda: qj.attention(Q, K, V, bias=jnp.ones((5, 24)))),
            (qkvault.ArgumentError, ["layout"], lambda: qj.attention(Q, K, V, layout="thd")),
            (qkvault.ArgumentError, ["lengths"], lambda: qj.attention(Q, K, V, query_seq_lengths=jnp.ones(3))),
            (qkvault.Refused, ["heads"], lambda: qj.attention(Q, make(2, 24, 3, 16), make(2, 24, 3, 16))),
        ]:
            with self.assertRaises(error) as raised:
                call()
            self.said(raised, *parts)

    def test_explain_has_reasons(self):
        q = jax.ShapeDtypeStruct((2, 256, 4, 60), jnp.bfloat16)
        answer = qj.explain(q, q, q, gpu="h200", is_causal=True)
        self.assertFalse(answer)
        self.assertIn("head-dim.multiple-of-8", [reason.code for reason in answer.reasons])
        good = jax.ShapeDtypeStruct((2, 256, 4, 64), jnp.bfloat16)
        tanh = lambda s, b, h, i, j: jnp.tanh(s)  # noqa: E731
        self.assertTrue(qj.explain(good, good, good, gpu="h200", backward=True, score_mod=tanh))

    def test_a_second_derivative_and_forward_mode_are_errors(self):
        total = squares(lambda q: qj.attention(q, K, V))
        with self.assertRaises(TypeError):
            jax.jvp(total, (Q,), (Q,))
        with self.assertRaises(Exception) as error:
            jax.grad(lambda q: jax.grad(total)(q).astype(jnp.float32).sum())(Q)
        self.assertTrue(str(error.exception))

    def test_a_symbolic_batch_is_refused_while_tracing(self):
        (batch,) = jax.export.symbolic_shape("b")
        q = jax.ShapeDtypeStruct((batch, 24, 4, 16), jnp.bfloat16)
        with self.assertRaises(qkvault.ArgumentError) as error:
            jax.export.export(jax.jit(qj.attention), disabled_checks=qj.export_checks())(q, q, q)
        self.said(error, "known sizes")


class Package(unittest.TestCase):
    def test_the_guide_runs(self):
        page = pathlib.Path(__file__).resolve().parents[3] / "crates/qkvault/src/guide/jax.md"
        first, chunks, second = page.read_text().split("```python\n")[1:]
        lines = [line for line in first.split("```")[0].splitlines() if line and not line.startswith("import ")]
        self.assertLessEqual(len(lines), 10)
        names = {}
        exec(first.split("```")[0], names)
        self.assertEqual((names["w"].shape, names["w"].dtype), ((3, 32, 8, 16), jnp.bfloat16))
        before = jax.random.normal(jax.random.key(0), names["w"].shape, jnp.bfloat16)
        self.assertTrue(bool(jnp.isfinite(names["w"]).all()) and bool((names["w"] != before).any()))
        exec(chunks.split("```")[0], names)
        q, k, v = make(1, 48, 8, 16), make(1, 48, 8, 16), make(1, 48, 8, 16)
        whole = qj.attention(q, k, v, score_mod=names["score_mod"], is_causal=True)
        self.assertLess(float(jnp.abs(names["prefill"](q, k, v) - whole).max()), 1e-2)
        names["q"] = names["k"] = names["v"] = jax.ShapeDtypeStruct((1, 64, 8, 64), jnp.bfloat16)
        with tempfile.TemporaryDirectory() as folder:
            exec(second.split("```")[0].replace("/tmp/plans", folder).replace("print(", "told = str("), names)
        self.assertIn("sm_90", names["told"])
        qj.configure()

    def test_errors_are_pickled(self):
        self.assertIsInstance(pickle.loads(pickle.dumps(qj.TraceError("why"))), ValueError)


if __name__ == "__main__":
    unittest.main()
