"""`qkvault.jax` of arrays that several devices hold: `shard_map` without `jit`, and `jit` with shardings.

    cargo xtask jax-tests
"""

import itertools
import tempfile
import unittest

from test_jax import CAUSAL, K, P, Q, V, Case, jax, jnp, np, plain, qj, qkvault, squares

RNG = np.random.default_rng(38)


def make(*shape, dtype=jnp.bfloat16):
    return jnp.asarray(RNG.standard_normal(shape), dtype)


TABLE, SLOPES = make(24, 24, dtype=jnp.float32), make(4, dtype=jnp.float32)
ROWS = P("x", None, "y")


def setUpModule():
    if len(jax.devices()) < 4:
        raise unittest.SkipTest("four devices are needed")


def mesh(x=2, y=2):
    return jax.sharding.Mesh(np.array(jax.devices()[: x * y]).reshape(x, y), ("x", "y"))


def mod(table, slopes):
    return lambda s, b, h, i, j: jnp.tanh(s) + table[i, j] - slopes[h] * jnp.abs(i - j)


def ours(q, k, v, table, slopes):
    return qj.attention(q, k, v, score_mod=mod(table, slopes))


def exact(q, k, v, table, slopes):
    return plain(q, k, v, score_mod=mod(table, slopes))


class ShardMap(Case):
    def test_without_jit(self):
        given, every = (Q, K, V, TABLE, SLOPES), (0, 1, 2, 3, 4)
        for check in (True, False):
            with self.subTest(check_vma=check):
                over = {"mesh": mesh(), "in_specs": (*[ROWS] * 3, P(), P("y")), "check_vma": check}
                mapped = jax.shard_map(ours, out_specs=ROWS, **over)
                self.near(mapped(*given), exact(*given))
                self.near(jax.grad(squares(mapped), every)(*given), jax.grad(squares(exact), every)(*given), 5e-2)
                inner = jax.shard_map(jax.grad(squares(ours), (0, 1, 2)), out_specs=(ROWS,) * 3, **over)
                self.near(inner(*given), jax.grad(squares(exact), (0, 1, 2))(*given), 5e-2)
                many = (jnp.stack([Q, 2 * Q]), *given[1:])
                axes = (0, *[None] * 4)
                self.near(jax.vmap(mapped, axes)(*many), jax.vmap(exact, axes)(*many))

    def test_packed_sequences_and_lse_without_jit(self):
        ends = jnp.asarray([0, 10, 24])
        over = {"mesh": mesh(), "in_specs": (P(None, "y"),) * 3, "out_specs": P(None, "y")}
        packed = jax.shard_map(lambda *a: qj.varlen_attention(*a, ends, is_causal=True), **over)
        self.near(packed(Q[0], K[0], V[0]), qj.varlen_attention(Q[0], K[0], V[0], ends, is_causal=True))
        both = jax.shard_map(lambda *a: qj.attention(*a, is_causal=True, return_lse=True), mesh=mesh(),
                             in_specs=(ROWS,) * 3, out_specs=(ROWS, ROWS))
        self.near(both(Q, K, V), qj.attention(Q, K, V, is_causal=True, return_lse=True))


def by_index(table, slopes):
    """It reads the numbers of sequences and heads, which are those of the whole."""
    def score(s, b, h, i, j):
        return jnp.tanh(s) * (1.0 + 0.5 * b + 0.25 * h) + table[i, j] - slopes[h] * jnp.abs(i - j)

    return score


def put(mesh, *pairs):
    return [jax.device_put(x, jax.sharding.NamedSharding(mesh, spec)) for x, spec in pairs]


class Jit(Case):
    """XLA divides a call over batch and heads, and gathers nothing."""

    def alike(self, function, right, mesh, *pairs, gathers=0, bound=5e-2, moved=None):
        """Compares values and gradients of sharded arrays with those of the definition, and looks for all-gathers."""
        given, where = [x for x, _ in pairs], tuple(range(len(pairs))) if moved is None else moved
        for ours, theirs in ((function, right), (jax.grad(squares(function), where), jax.grad(squares(right), where))):
            compiled = jax.jit(ours).lower(*put(mesh, *pairs)).compile()
            self.near(compiled(*put(mesh, *pairs)), theirs(*given), bound)
            text = compiled.as_text()
            self.assertEqual(("all-gather" in text or "all-to-all" in text), bool(gathers))
        return text

    def test_batch_and_heads(self):
        for x, y, rows in ((2, 2, ROWS), (2, 1, P("x")), (1, 2, P(None, None, "y")), (2, 2, P("x", None, None))):
            with self.subTest(rows):
                score = lambda f: lambda q, k, v, t, a: f(q, k, v, score_mod=by_index(t, a))  # noqa: E731
                self.alike(score(qj.attention), score(plain), mesh(x, y), *((t, rows) for t in (Q, K, V)),
                           (TABLE, P()), (SLOPES, P()))

    def test_a_table_by_heads_and_a_bias_by_batch(self):
        bias = make(2, 4, 24, 24, dtype=jnp.float32)
        mask = lambda b, h, i, j: (j <= i + h) | (j == b)  # noqa: E731
        full = jnp.broadcast_to(mask(*jnp.ix_(*(jnp.arange(n) for n in (2, 4, 24, 24)))), (2, 4, 24, 24))
        score = lambda a: lambda s, b, h, i, j: s - a[h] * jnp.abs(i - j)  # noqa: E731
        self.alike(lambda q, k, v, b: qj.attention(q, k, v, bias=b, mask_mod=mask),
                   lambda q, k, v, b: plain(q, k, v, bias=b, mask=full),
                   mesh(), *((t, ROWS) for t in (Q, K, V)), (bias, P("x", "y")))
        self.alike(lambda q, k, v, a: qj.attention(q, k, v, score_mod=score(a), is_causal=True),
                   lambda q, k, v, a: plain(q, k, v, score_mod=score(a), mask=CAUSAL),
                   mesh(), *((t, ROWS) for t in (Q, K, V)), (SLOPES, P("y")))

    def test_sinks_lengths_and_segments(self):
        sinks, lengths, rows = make(4, dtype=jnp.float32), jnp.asarray([24, 7]), [(t, ROWS) for t in (Q, K, V)]
        keep = (jnp.arange(24) < lengths[:, None])[:, None, None]
        self.alike(lambda q, k, v, s, n: qj.attention(q, k, v, sinks=s, key_value_seq_lengths=n),
                   lambda q, k, v, s, n: plain(q, k, v, sinks=s, mask=keep),
                   mesh(), *rows, (sinks, P("y")), (lengths, P("x")), moved=(0, 1, 2, 3))
        ids = jnp.asarray(np.arange(24) // 9 + np.array([[0], [1]]) * (np.arange(24) % 2))
        both = (ids[:, :, None] == ids[:, None])[:, None]
        self.alike(lambda q, k, v, n: qj.attention(q, k, v, segment_ids=n), lambda q, k, v, n: plain(q, k, v, mask=both),
                   mesh(), *rows, (ids, P("x")), moved=(0, 1, 2))

    def test_heads_of_keys(self):
        q = make(2, 24, 8, 16)
        score = lambda s, b, h, i, j: s * (1.0 + h)  # noqa: E731
        for axes, heads in itertools.product(("y", ("x", "y"), ("y", "x")), (8, 4, 1, 2)):
            with self.subTest(axes=axes, heads=heads):
                k, v = make(2, 24, heads, 16), make(2, 24, heads, 16)
                whole = P(None, None, axes if heads % 4 == 0 else None)
                self.alike(lambda *a: qj.attention(*a, score_mod=score), lambda *a: plain(*a, score_mod=score),
                           mesh(1, 4) if axes == "y" else mesh(), (q, P(None, None, axes)), (k, whole), (v, whole),
                           gathers=heads == 2)

    def test_a_batch_that_vmap_makes_larger(self):
        score = lambda s, b, h, i, j: s * (1.0 + b) - 0.1 * h * j  # noqa: E731
        many = [jnp.stack([x, 2 * x, x, -x]) for x in (Q, K, V)]
        over = lambda f: jax.vmap(lambda q, k, v: f(q, k, v, score_mod=score))  # noqa: E731
        self.alike(over(qj.attention), over(plain), mesh(), *((x, P("x", None, None, "y")) for x in many))

    def test_layers_that_are_computed_again(self):
        tables = make(3, 4, 24, dtype=jnp.float32)

        def layers(f):
            layer = jax.checkpoint(lambda x, t, k, v: f(x, k, v, score_mod=lambda s, b, h, i, j: s + t[h, j] * (b + 1)))
            over = lambda q, k, v, ts: jax.lax.scan(  # noqa: E731
                lambda x, t: (layer(x, t, k, v).astype(x.dtype), None), q, ts)[0]
            return over

        self.alike(layers(qj.attention), layers(plain), mesh(), *((x, ROWS) for x in (Q, K, V)), (tables, P(None, "y")))

    def test_lse_layout_and_a_first_position(self):
        turned = [jnp.swapaxes(x, 1, 2) for x in (Q, K, V)]
        ours = lambda *a: qj.attention(*a, layout="bhsd", query_origin=jnp.int32(3), is_causal=True,  # noqa: E731
                                       return_lse=True, score_mod=lambda s, b, h, i, j: s + 0.1 * (b - h) * i)
        given = put(mesh(), *((x, P("x", "y")) for x in turned))
        compiled = jax.jit(ours).lower(*given).compile()
        self.near(compiled(*given), ours(*turned))
        self.assertNotIn("all-gather", compiled.as_text())

    def test_what_does_not_divide_is_gathered(self):
        rows = [(make(3, 24, 4, 16), P(None, "x")) for _ in range(3)]  # Over the sequence.
        self.alike(lambda *a: qj.attention(*a), plain, mesh(), *rows, gathers=1)
        given = put(mesh(), *((x, ROWS) for x in (Q, K, V)))
        self.near(qj.attention(*given, is_causal=True), plain(Q, K, V, mask=CAUSAL))  # Without jit.

    def test_an_explicit_mesh(self):
        kinds = (jax.sharding.AxisType.Explicit,) * 2
        given = put(jax.make_mesh((2, 2), ("x", "y"), axis_types=kinds), *((x, ROWS) for x in (Q, K, V)))
        score = lambda s, b, h, i, j: s * (1.0 + b) - 0.1 * h * j  # noqa: E731
        step = jax.jit(jax.grad(squares(lambda *a: qj.attention(*a, score_mod=score)), (0, 1, 2)))
        self.near(step(*given), jax.grad(squares(lambda *a: plain(*a, score_mod=score)), (0, 1, 2))(Q, K, V), 5e-2)
        self.assertNotIn("all-gather", step.lower(*given).compile().as_text())

    def test_without_shardy(self):
        was = jax.config.jax_use_shardy_partitioner
        jax.config.update("jax_use_shardy_partitioner", False)
        try:
            self.alike(ours, exact, mesh(), *((x, ROWS) for x in (Q, K, V)), (TABLE, P()), (SLOPES, P()))
        finally:
            jax.config.update("jax_use_shardy_partitioner", was)

    def test_plans_are_those_of_parts(self):
        q = make(2, 64, 4, 64)
        with tempfile.TemporaryDirectory() as folder:
            try:
                qj.configure(vault=folder, target="h200", build=False)
                with self.assertRaises(qkvault.PlanMissing) as error:
                    jax.jit(qj.attention).lower(q, q, q)
                self.said(error, "b2 h4")
                given = put(mesh(), *[(q, ROWS)] * 3)
                with self.assertRaises(Exception) as error:
                    jax.jit(qj.attention).lower(*given).compile()
                self.said(error, "PlanMissing", "b1 h2")
            finally:
                qj.configure()

    def test_one_device_of_several_computes_whole_arrays(self):
        one = jax.jit(lambda *a: qj.attention(*a, is_causal=True))
        self.near(one(*(jax.device_put(x, jax.devices()[3]) for x in (Q, K, V))), plain(Q, K, V, mask=CAUSAL))


if __name__ == "__main__":
    unittest.main()
