"""Origins through `qkvault.jax`: chunks of a sequence beside the whole, as numbers and as arrays, and mistakes.

    cargo xtask jax-tests                                            # runs these too
    python3 -m unittest adapters/python/tests/test_jax_origins.py    # with JAX, and QKVAULT_LIBRARY or the wheel
"""

import functools
import unittest

from test_jax import Case, jax, jnp, keys, make, qj, qkvault, squares  # noqa: I001

ROWS, CHUNK = 24, 8
Q, K, V = make(2, ROWS, 4, 16), make(2, ROWS, 2, 16), make(2, ROWS, 2, 16)
SLOPES, TABLE = jnp.asarray([0.5, 0.25, 0.125, 0.0625]), make(4, 64, dtype=jnp.float32)
DOCUMENTS = jnp.asarray([[0] * 5 + [1] * 19, [0] * 15 + [1] * 9])

MODIFICATIONS = {
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": 5},
    "both sides": {"window": (6, 3)},
    "left alone": {"window": (6, None)},
    "softcap and sinks": {"is_causal": True, "softcap": 2.0, "sinks": make(4, dtype=jnp.float32)},
    "alibi": {"score_mod": lambda s, b, h, i, j: s - SLOPES[h] * (i - j), "is_causal": True},
    "positions": {"score_mod": lambda s, b, h, i, j: s + jnp.where(i % 5 == 0, 1.0, 0.0) - 0.02 * j},
    "a table": {"score_mod": lambda s, b, h, i, j: s + TABLE[h, i - j + 32], "is_causal": True},
    "documents": {"mask_mod": lambda b, h, i, j: (DOCUMENTS[b, i] == DOCUMENTS[b, j]) & (j <= i)},
}


class Origins(Case):
    def chunked(self, origin, options):
        def run(q, k, v):
            parts = [
                qj.attention(q[:, at : at + CHUNK], k, v, query_origin=origin(at), **options)
                for at in range(0, ROWS, CHUNK)
            ]
            return jnp.concatenate(parts, 1)

        return run

    def test_chunks_of_queries_over_earlier_keys_are_the_rows_of_the_whole(self):
        for kind, origin in (("numbers", int), ("arrays", jnp.int32)):
            for name, options in MODIFICATIONS.items():
                with self.subTest(name, kind=kind):
                    whole = functools.partial(qj.attention, **options)
                    self.both((Q, K, V), self.chunked(origin, options), whole)

    def test_gradients_of_what_a_function_captures(self):
        mod = lambda t: {"score_mod": lambda s, b, h, i, j: s + t[h, i - j + 32], "is_causal": True}  # noqa: E731
        exact = jax.grad(squares(lambda t: qj.attention(Q, K, V, **mod(t))))(TABLE)
        for origin in (int, jnp.int32):
            self.near(jax.grad(squares(lambda t: self.chunked(origin, mod(t))(Q, K, V)))(TABLE), exact)

    def test_keys_that_begin_later_have_their_positions(self):
        for origin in (int, jnp.int32):
            options = {"is_causal": True, "window": 4, "score_mod": lambda s, b, h, i, j: s - 0.01 * i * (i - j)}
            exact = qj.attention(Q[:, :CHUNK], K, V, query_origin=origin(12), **options)
            late = qj.attention(
                Q[:, :CHUNK], K[:, 8:20], V[:, 8:20], query_origin=origin(12), key_origin=origin(8), **options
            )
            self.near(late, exact)

    def test_tensors_over_queries_and_keys_are_those_of_the_call(self):
        bias, keep = make(1, 4, ROWS, ROWS), jnp.abs(make(ROWS, ROWS)) > 0.3
        keep = keep | jnp.eye(ROWS, dtype=bool)
        whole = qj.attention(Q, K, V, bias=bias, mask=keep, is_causal=True)
        for origin in (int, jnp.int32):
            for at in range(0, ROWS, CHUNK):
                rows = slice(at, at + CHUNK)
                found = qj.attention(Q[:, rows], K, V, bias=bias[:, :, rows], mask=keep[rows], is_causal=True,
                                     query_origin=origin(at))
                self.near(found, whole[:, rows])

    def test_numbers_are_under_no_key_and_arrays_are_not_traced_again(self):
        options, chunk = MODIFICATIONS["alibi"], Q[:, :CHUNK]
        of = lambda at: keys(lambda q: qj.attention(q, K, V, query_origin=at, **options), chunk)  # noqa: E731
        several = {tuple(of(at)) for at in (0, 8, 999)}
        self.assertEqual(len(several), 1)
        run = jax.jit(lambda q, at: qj.attention(q, K, V, query_origin=at, **options))
        for at in (0, 8, 16):
            self.near(run(chunk, at), qj.attention(chunk, K, V, query_origin=at, **options))
        self.assertEqual(run._cache_size(), 1)

    def test_arrays_compile_for_gpus(self):
        for backward in (False, True):
            for name in ("window", "alibi", "documents"):
                options = {**MODIFICATIONS[name], "query_origin": jnp.int32(8)}
                said = qj.explain(Q, K, V, gpu="h200", backward=backward, **options)
                self.assertTrue(said, str(said))

    def test_mistakes_are_named(self):
        for options, said in (
            ({"query_origin": -1}, "query_origin is -1; give a position"),
            ({"key_origin": 1.5}, "key_origin is 1.5"),
            ({"query_origin": True}, "query_origin is True"),
            ({"query_origin": (1 << 23) + 1}, "0 to 8388608"),
            ({"key_origin": jnp.asarray([1, 2])}, "key_origin is an array (2,) of int32; give one integer"),
        ):
            with self.subTest(said), self.assertRaises(qkvault.ArgumentError) as error:
                qj.attention(Q, K, V, **options)
            self.said(error, said)


if __name__ == "__main__":
    unittest.main()
