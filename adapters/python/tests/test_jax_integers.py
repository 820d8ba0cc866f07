"""Integers of every type in `qkvault.jax`: captured, cast from indices, given as lengths, offsets and segments.

    cargo xtask jax-tests

What is not int32 wraps and compares as its own type does, or is refused by name.
"""

import unittest

from test_jax import K, Q, V, Case, jax, jnp, np, plain, qj, qkvault

NARROW = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
RNG = np.random.default_rng(39)
DOCUMENTS, PLACES, NUMBERS = RNG.integers(0, 3, (2, 24)), RNG.integers(0, 127, 24), jnp.asarray([0.1, 0.2, 0.3, 0.4])


def functions(kind):
    """Modifications that compute with integers of a type. Large numbers are scaled, as scores are float32."""
    docs, at, c = jnp.asarray(DOCUMENTS, kind), jnp.asarray(PLACES, kind), 4.0 / jnp.iinfo(kind).max
    three = jnp.asarray(3, kind)
    return {
        "documents": lambda s, b, h, i, j: jnp.where(docs[b, i] == docs[b, j], s, -1e9),
        "a difference of captured": lambda s, b, h, i, j: s + c * (at[i] - at[j]),
        "an order of captured": lambda s, b, h, i, j: jnp.where(at[i] - at[j] >= 0, s, s - 2),
        "a captured and an index": lambda s, b, h, i, j: jnp.where(at[j] - i < 10, s, s - 2) + NUMBERS[at[j] % 4],
        "one captured": lambda s, b, h, i, j: s + c * (at[3] - j.astype(kind)),
        "a cast": lambda s, b, h, i, j: s + c * (i - j).astype(kind),
        "there and back": lambda s, b, h, i, j: s + 0.1 * ((i - j).astype(kind) >= three),
        "a product": lambda s, b, h, i, j: s + c * (i.astype(kind) * j.astype(kind) * three),
        "a window": lambda s, b, h, i, j: jnp.where((i - j).astype(kind) < 5, s, s - 2),
        "bits": lambda s, b, h, i, j: s + 0.1 * ((j.astype(kind) >> 1) & 1) + c * ~i.astype(kind),
        "a sign": lambda s, b, h, i, j: s + c * (-j.astype(kind)) + 0.1 * jnp.sign((i - j).astype(kind)),
        "a quotient": lambda s, b, h, i, j: s + c * ((i - j).astype(kind) // three) + 0.1 * ((i - j).astype(kind) % 3),
        "heads": lambda s, b, h, i, j: s * (h.astype(kind) + 1) + c * (h.astype(kind) - three),
        "extremes": lambda s, b, h, i, j: s + c * jnp.maximum(jnp.clip((i - j).astype(kind), 2, 9), at[j]),
        "a choice": lambda s, b, h, i, j: s + c * jnp.where(i > j, j.astype(kind), (i - j).astype(kind)),
        "a power": lambda s, b, h, i, j: s + c * j.astype(kind) ** 2,
    }


def lengths(kind):
    return {
        "key_value_seq_lengths": lambda: qj.attention(Q, K, V, key_value_seq_lengths=jnp.asarray([24, 7], kind)),
        "segment_ids": lambda: qj.attention(Q, K, V, segment_ids=jnp.asarray(DOCUMENTS, kind)),
        "query_origin": lambda: qj.attention(Q, K, V, is_causal=True, query_origin=jnp.asarray(3, kind)),
        "cu_seqlens": lambda: qj.varlen_attention(Q[0], K[0], V[0], jnp.asarray([0, 5, 24], kind)),
        "bias": lambda: qj.attention(Q, K, V, bias=jnp.asarray(DOCUMENTS[:1, None, None], kind)),
    }


class Integers(Case):
    def every(self, kinds):
        for kind in kinds:
            for name, score in functions(kind).items():
                with self.subTest(kind=kind, name=name):
                    self.near(qj.attention(Q, K, V, score_mod=score), plain(Q, K, V, score_mod=score), 4e-3)
            for (name, call), right in zip(lengths(kind).items(), lengths("int32").values()):
                with self.subTest(kind=kind, name=name):
                    self.near(call(), right(), 1e-6)

    def large(self, kind):
        """Numbers that int32 does not have."""
        most = int(jnp.iinfo(kind).max)
        cut = qj.attention(Q, K, V, key_value_seq_lengths=jnp.asarray([most, 7], kind))
        self.near(cut, qj.attention(Q, K, V, key_value_seq_lengths=jnp.asarray([24, 7])), 1e-6)
        ids = jnp.asarray(np.where(np.arange(24) % 2 == DOCUMENTS % 2, most - 2**31 - 1, most), kind)
        mask = (ids[:, :, None] == ids[:, None])[:, None]
        self.near(qj.attention(Q, K, V, segment_ids=ids), plain(Q, K, V, mask=mask))
        self.near(qj.attention(Q, K, V, segment_ids=(ids, ids)), plain(Q, K, V, mask=mask))
        large = ids[0]
        score = lambda s, b, h, i, j: jnp.where(large[i] == large[j], s, s - 2) + (large[i] > large[j])  # noqa: E731
        self.near(qj.attention(Q, K, V, score_mod=score), plain(Q, K, V, score_mod=score))

    def test_types(self):
        self.every(NARROW)
        self.large("uint32")

    def test_wide_types(self):
        jax.config.update("jax_enable_x64", True)
        try:
            self.every(("int64", "uint64", "int16"))
            for kind in ("uint32", "int64", "uint64"):
                self.large(kind)
        finally:
            jax.config.update("jax_enable_x64", False)

    def test_what_is_not_served_is_said(self):
        for words, call in (
            (("segment_ids", "float32"), lambda: qj.attention(Q, K, V, segment_ids=jnp.zeros((2, 24)))),
            (("bias is bool", "mask"), lambda: qj.attention(Q, K, V, bias=jnp.zeros((2, 1, 1, 24), bool))),
            (("an integer",), lambda: qj.attention(Q, K, V, score_mod=lambda s, b, h, i, j: s + s.astype(jnp.int8))),
        ):
            with self.assertRaises((qkvault.ArgumentError, qj.TraceError)) as error:
                call()
            self.said(error, *words)


if __name__ == "__main__":
    unittest.main()
