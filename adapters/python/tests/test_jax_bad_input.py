"""What a user of `qkvault.jax` may do wrong: each is an exception that says what came and what to do.

    cargo xtask jax-tests                                              # runs these too
    python3 -m unittest adapters/python/tests/test_jax_bad_input.py    # with JAX, and QKVAULT_LIBRARY or the wheel
"""

import tempfile
import unittest

from test_jax import CAUSAL, CUDNN, Case, K, P, Q, V, jax, jnp, make, np, plain, qj, qkvault, squares  # noqa: I001


class Wrong(Case):
    def told(self, error, parts, call):
        with self.subTest(parts), self.assertRaises(error) as raised:
            jax.block_until_ready(call())
        self.said(raised, *([parts] if isinstance(parts, str) else parts))

    def test_arrays_of_wrong_kinds_ranks_and_types(self):
        wrong = qkvault.ArgumentError
        self.told(wrong, ["q is of type list", "jnp.asarray(q)"], lambda: qj.attention([1.0], K, V))
        self.told(wrong, ["4 known sizes", "batch, sequence, head, head dim"], lambda: qj.attention(Q[0], K, V))
        self.told(wrong, "batch, head, sequence", lambda: qj.attention(Q[0], K, V, layout="bhsd"))
        self.told(wrong, "empty", lambda: qj.attention(Q[:0], K[:0], V[:0]))
        self.told(wrong, ["k is float16", "cast"], lambda: qj.attention(Q, K.astype(jnp.float16), V))
        self.told(wrong, ["int8", "bfloat16 or float16"], lambda: qj.attention(Q.astype(jnp.int8), K, V))
        self.told(wrong, ["head dim 16", "8"], lambda: qj.attention(Q, K[..., :8], V))
        self.told(wrong, ["2 heads and v 1"], lambda: qj.attention(Q, K, V[:, :, :1]))
        self.told(wrong, ["24 rows and v 20"], lambda: qj.attention(Q, K, V[:, :20]))
        self.told(wrong, ["batches"], lambda: qj.attention(Q, K[:1], V[:1]))
        self.told(qkvault.Refused, ["heads"], lambda: qj.attention(make(2, 24, 3, 16), K, V))

    def test_options_of_wrong_kinds(self):
        wrong = qkvault.ArgumentError
        self.told(wrong, ["mask is float32", "bias"], lambda: qj.attention(Q, K, V, mask=jnp.zeros((24, 24))))
        self.told(wrong, ["is_causal", "True or False"], lambda: qj.attention(Q, K, V, is_causal=jnp.bool_(True)))
        self.told(wrong, "window", lambda: qj.attention(Q, K, V, window=(1, 2, 3)))
        self.told(wrong, "at least 0", lambda: qj.attention(Q, K, V, window=-1))
        self.told(wrong, "softcap", lambda: qj.attention(Q, K, V, softcap=0.0))
        self.told(wrong, "query_seq_lengths", lambda: qj.attention(Q, K, V, query_seq_lengths=jnp.ones(2)))
        self.told(wrong, "implementation", lambda: qj.dot_product_attention(Q, K, V, implementation="xla"))
        self.told(TypeError, ["dropout", "dropout_rate"], lambda: qj.explain(Q, K, V, dropout=0.1))

    def test_arrays_and_numbers_of_numpy_are_arrays_and_numbers(self):
        given = [np.asarray(x) for x in (Q, K, V)]
        self.near(qj.attention(*given), plain(Q, K, V))
        options = {"is_causal": np.bool_(True), "window": np.int64(4), "scale": np.float32(0.5),
                   "softcap": np.float64(9)}
        mask = (CAUSAL & (jnp.arange(24)[None] >= jnp.arange(24)[:, None] - 4))[None, None]
        self.near(qj.attention(*given, **options), plain(Q, K, V, mask=mask, scale=0.5, softcap=9.0))
        listed = {"mask": np.asarray(CAUSAL).tolist(), "sinks": [0.5, -0.5, 0.0, 2.0], "bias": [[0.25]]}
        exact = plain(Q, K, V, mask=CAUSAL, sinks=jnp.asarray(listed["sinks"]), bias=0.25)
        self.near(qj.attention(*given, **listed), exact)

    def test_a_modification_that_depends_on_data(self):
        error = qj.TraceError
        self.told(error, ["score_mod", "jnp.where"], lambda: qj.attention(
            Q, K, V, score_mod=lambda s, b, h, i, j: s if s > 0 else -s))
        self.told(error, ["mask_mod", "jnp.where"], lambda: qj.attention(
            Q, K, V, mask_mod=lambda b, h, i, j: bool(i > j)))
        self.told(error, "while", lambda: qj.attention(
            Q, K, V, score_mod=lambda s, b, h, i, j: jax.lax.while_loop(lambda x: x > 1.0, lambda x: x / 2, s)))
        table = jnp.ones(24)
        self.told(error, ["score_mod", "line "], lambda: qj.attention(
            Q, K, V, score_mod=lambda s, b, h, i, j: table[s.astype(jnp.int32)]))

    def test_second_derivatives_and_forward_mode(self):
        total = squares(lambda q: qj.attention(q, K, V))
        for twice in (jax.grad(lambda q: jax.grad(total)(q).astype(jnp.float32).sum()), jax.hessian(total),
                      jax.jit(jax.grad(lambda q: jax.grad(total)(q).astype(jnp.float32).sum()))):
            self.told(qkvault.ArgumentError, ["first derivatives", "jax.nn.dot_product_attention"], lambda: twice(Q))
        self.told(TypeError, ["forward-mode", "custom_vjp"], lambda: jax.jvp(total, (Q,), (Q,)))
        self.told(TypeError, ["forward-mode", "custom_vjp"], lambda: jax.jacfwd(total)(Q))

    def test_sequences_that_are_known_to_be_sharded_are_refused_by_name(self):
        if len(jax.devices()) < 2:
            self.skipTest("two devices are needed")
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("cp",))
        put = lambda x, *spec: jax.device_put(x, jax.sharding.NamedSharding(mesh, P(*spec)))  # noqa: E731
        wrong = qkvault.ArgumentError
        rows = [put(x, None, "cp") for x in (Q, K, V)]
        self.told(wrong, ["q is sharded over its sequence", "'cp'", "shard_map"], lambda: qj.attention(*rows))
        self.told(wrong, ["k is sharded over its head dim"], lambda: qj.attention(Q, put(K, None, None, None, "cp"), V))
        turned = [put(jnp.swapaxes(x, 1, 2), None, None, "cp") for x in (Q, K, V)]
        self.told(wrong, ["over its sequence"], lambda: qj.attention(*turned, layout="bhsd"))
        for spec in (("cp",), (None, None, "cp")):
            self.near(qj.attention(*(put(x, *spec) for x in (Q, K, V))), plain(Q, K, V))
        if not hasattr(jax, "set_mesh"):
            return
        explicit = jax.make_mesh((2,), ("cp",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2])
        with jax.set_mesh(explicit):
            rows = [jax.device_put(x, P(None, "cp")) for x in (Q, K, V)]
            self.told(wrong, ["q is sharded over its sequence"], lambda: jax.jit(qj.attention)(*rows))
            # Batches of an explicit mesh are right; what JAX cannot follow says what helps.
            rows = [jax.device_put(x, P("cp")) for x in (Q, K, V)]
            self.near(jax.jit(qj.attention)(*rows), plain(Q, K, V))
            self.told(wrong, ["jax.shard_map"], lambda: jax.jit(lambda q, k, v: jax.vmap(
                lambda q: qj.attention(q, k, v))(jnp.stack([q, q])))(*rows))
            table = jax.device_put(jnp.ones((4, 24)), P("cp"))
            heads = [jax.device_put(x, P(None, None, "cp")) for x in (Q, K, V)]
            self.told(wrong, ["jax.shard_map"], lambda: jax.jit(lambda q, k, v, t: qj.attention(
                q, k, v, score_mod=lambda s, b, h, i, j: s + t[h, j]))(*heads, table))

    def test_arrays_on_the_cpu_beside_a_gpu(self):
        try:
            qj.configure(cpu=False)
            self.told(Exception, ["on the CPU", "jax.device_put", "configure(cpu=True)"],
                      lambda: jax.jit(qj.attention)(Q, K, V))
        finally:
            qj.configure()
        self.near(qj.attention(Q, K, V), plain(Q, K, V))

    def test_a_plan_that_is_missing_and_may_not_be_built(self):
        if not CUDNN:
            self.skipTest("QKVAULT_TEST_CUDNN names no cuDNN")
        with tempfile.TemporaryDirectory() as folder:
            try:
                qj.configure(vault=folder, target="h200", cudnn=CUDNN, build=False)
                good = jax.ShapeDtypeStruct((1, 128, 2, 64), jnp.bfloat16)
                table, tanh = jnp.ones((128, 128)), lambda t: lambda s, b, h, i, j: jnp.tanh(s) + t[i, j]  # noqa: E731
                late = squares(lambda q, t: qj.attention(q, q, q, score_mod=tanh(t)))
                for build in (False, True):
                    qj.configure(vault=folder, target="h200", cudnn=CUDNN, build=build)
                    self.told((qkvault.Refused, qkvault.PlanMissing), ["qkvault warm"] if not build else [
                        "backward.tensor-factor", "add it before softcap", "library."],
                        lambda: jax.jit(jax.grad(late, 1)).lower(good, table))
                qj.configure(vault=tempfile.mkdtemp(dir=folder), target="h200", cudnn=CUDNN, build=False)
                self.told(qkvault.PlanMissing, ["qkvault warm", "build=True", "sm_90"],
                          lambda: jax.jit(qj.attention).lower(good, good, good))
            finally:
                qj.configure()


if __name__ == "__main__":
    unittest.main()
