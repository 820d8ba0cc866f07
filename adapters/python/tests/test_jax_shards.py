"""`qkvault.jax` of arrays that several devices hold: `shard_map` without `jit`, and `jit` with shardings.

    cargo xtask jax-tests
"""

import unittest

from test_jax import CAUSAL, K, P, Q, V, Case, jax, jnp, make, np, plain, qj, squares

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


if __name__ == "__main__":
    unittest.main()
