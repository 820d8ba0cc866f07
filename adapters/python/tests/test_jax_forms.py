"""`qkvault.jax` for sequences behind each other, pages, segments and dropout, on CPUs with the oracle.

    cargo xtask jax-tests                                          # runs these too
    python3 -m unittest adapters/python/tests/test_jax_forms.py    # with JAX, and QKVAULT_LIBRARY or the wheel
"""

import unittest

from test_jax import CAUSAL, K, Q, RNG, V, Case, jax, jnp, keys, make, np, plain, qj, qkvault, squares  # noqa: I001
from qkvault.jax._call import _words

ENDS, T = jnp.asarray([0, 10, 11, 30]), 40
OWN = jnp.asarray(np.repeat([0, 1, 2, -1], [10, 1, 19, 10]))
ROWS, KEYS, VALUES = make(T, 4, 16), make(T, 2, 16), make(T, 2, 16)


def packed(q, k, v, *, causal=False, score_mod=None):
    """Attention within sequences from its definition: zeros behind the last."""
    keep = OWN[:, None] == OWN[None]
    keep = keep & jnp.tril(jnp.ones(keep.shape, bool)) if causal else keep
    found = plain(q[None], k[None], v[None], mask=keep[None, None], score_mod=score_mod)[0]
    return jnp.where((OWN >= 0)[:, None, None], found, 0)


class Varlen(Case):
    def test_sequences_behind_each_other(self):
        for options, exact in [
            ({"is_causal": True}, lambda *a: packed(*a, causal=True)),
            ({"max_seqlen_q": 20, "max_seqlen_k": 24}, packed),
            ({"cu_seqlens_k": ENDS.astype(jnp.int16)}, packed),
        ]:
            with self.subTest(options.keys()):
                self.both((ROWS, KEYS, VALUES), lambda *a: qj.varlen_attention(*a, ENDS, **options), exact)

    def test_positions_count_from_the_first_row_of_a_sequence(self):
        ours = lambda s, b, h, i, j: s * (1.0 + b) - 0.1 * jnp.abs(i - j) - 0.01 * j  # noqa: E731
        start = jnp.asarray([0, 10, 11, 30])[OWN]
        theirs = lambda s, b, h, i, j: s * (1.0 + OWN[i]) - 0.1 * jnp.abs(i - j) - 0.01 * (j - start[j])  # noqa: E731
        self.both((ROWS, KEYS, VALUES), lambda *a: qj.varlen_attention(*a, ENDS, score_mod=ours),
                  lambda *a: packed(*a, score_mod=theirs))

    def test_lengths_may_change_in_one_program(self):
        run = jax.jit(lambda ends: qj.varlen_attention(ROWS, KEYS, VALUES, ends, max_seqlen_q=T, max_seqlen_k=T))
        self.near(run(ENDS), packed(ROWS, KEYS, VALUES))
        self.near(run(jnp.asarray([0, T, T, T])), plain(ROWS[None], KEYS[None], VALUES[None])[0])
        self.assertEqual(run._cache_size(), 1)

    def test_fewer_rows_than_sequences(self):
        # flash-attention #1537: most sequences of a step may be empty.
        few = [x[:3] for x in (ROWS, KEYS, VALUES)]
        run = lambda ends: lambda *a: qj.varlen_attention(*a, jnp.asarray(ends), is_causal=True)  # noqa: E731
        self.both(few, run([0, 0, 2, 2, 2, 3, 3]), run([0, 2, 3]))

    def test_a_causal_mask_of_equal_sequences_ends_at_the_bottom_right(self):
        # FlashAttention-4's kernels take no other, and took 0.7 of the time of cuDNN's that ran instead.
        def mask(ends_k=None, **options):
            run = lambda *a: qj.varlen_attention(*a, ENDS, ends_k, is_causal=True, **options)  # noqa: E731
            text = str(jax.make_jaxpr(run)(ROWS, KEYS, VALUES))
            self.assertIn("mask: causal", text)
            return "mask: causal bottom-right" in text

        self.assertTrue(mask() and mask(ENDS))
        self.assertFalse(mask(ENDS + 0))
        self.assertFalse(mask(max_seqlen_q=20, max_seqlen_k=24))

    def test_wrong_offsets_stay_inside_of_the_arrays(self):
        for ends in ([5, 1000, -7, -1], [0, 2**31 - 1, 3, 4], [-9, -9, -9, -9]):
            self.assertEqual(qj.varlen_attention(ROWS, KEYS, VALUES, jnp.asarray(ends)).shape, ROWS.shape)

    def test_a_sequence_that_is_too_long_gives_nan_instead_of_something(self):
        found = qj.varlen_attention(ROWS, KEYS, VALUES, ENDS, max_seqlen_q=18)
        self.assertTrue(bool(jnp.isnan(found).all()))

    def test_vmap_gives_what_single_calls_give(self):
        run = lambda q, ends: qj.varlen_attention(q, KEYS, VALUES, ends)  # noqa: E731
        many, ends = jnp.stack([ROWS, ROWS + 1]), jnp.stack([ENDS, jnp.asarray([0, 3, 20, 40])])
        self.near(jax.vmap(run)(many, ends), jnp.stack([run(q, e) for q, e in zip(many, ends)]))

    def test_offsets_are_exact_beyond_32_bits(self):
        counts, factor = np.array([0, 1, 65_535, 65_536, 1_000_003, 2**31 - 1], np.int32), 128 * 96 + 65_537
        low, high = np.asarray(_words(jnp.asarray(counts), factor), np.uint64).T
        np.testing.assert_array_equal(low + (high << np.uint64(32)), counts.astype(np.uint64) * np.uint64(factor))

    def test_mistakes_are_named(self):
        for parts, call in [
            ("cu_seqlens_q", lambda: qj.varlen_attention(ROWS, KEYS, VALUES, ENDS[None])),
            ("cu_seqlens_k", lambda: qj.varlen_attention(ROWS, KEYS, VALUES, ENDS, ENDS[:2])),
            ("integers", lambda: qj.varlen_attention(ROWS, KEYS, VALUES, ENDS.astype(jnp.float32))),
            ("token, head, head dim", lambda: qj.varlen_attention(Q, K, V, ENDS)),
            ("max_seqlen_q", lambda: qj.varlen_attention(ROWS, KEYS, VALUES, ENDS, max_seqlen_q=0)),
        ]:
            with self.subTest(parts), self.assertRaises(qkvault.ArgumentError) as error:
                call()
            self.said(error, parts)


class Paged(Case):
    def setUp(self):
        self.pools = make(12, 4, 2, 16), make(12, 4, 2, 16)
        self.table = jnp.asarray(RNG.permutation(12)[:10].reshape(2, 5))
        self.lengths = jnp.asarray([17, 9])

    def exact(self, q, window=None):
        k, v = (pool[self.table].reshape(2, 20, 2, 16) for pool in self.pools)
        i, j, n = jnp.arange(q.shape[1])[:, None], jnp.arange(20)[None], self.lengths[:, None, None]
        last = n - q.shape[1] + i[None]
        keep = (j[None] < n) & (j[None] <= last) & (True if window is None else j[None] >= last - window)
        return plain(q, k, v, mask=keep[:, None])

    def test_decode_and_several_rows_in_both_layouts(self):
        for rows in (1, 3):
            q = make(2, rows, 4, 16)
            found = qj.paged_attention(q, *self.pools, self.table, self.lengths)
            self.near(found, self.exact(q))
            turned = [jnp.swapaxes(x, 1, 2) for x in (q, *self.pools)]
            other = jax.jit(lambda *a: qj.paged_attention(*a, self.table, self.lengths, layout="bhsd"))(*turned)
            self.near(jnp.swapaxes(other, 1, 2), found)
            self.near(qj.paged_attention(q, *self.pools, self.table, self.lengths, window=5), self.exact(q, 5))

    def test_wrong_pages_and_lengths_stay_inside_of_the_pools(self):
        q, table = make(2, 1, 4, 16), jnp.asarray([[0, 99, -5, 3, 2**31 - 1]] * 2)
        self.assertEqual(qj.paged_attention(q, *self.pools, table, jnp.asarray([10_000, -4])).shape, q.shape)

    def test_a_gradient_is_refused_with_what_helps(self):
        run = squares(lambda q: qj.paged_attention(q, *self.pools, self.table, self.lengths))
        with self.assertRaises(qkvault.Refused) as error:
            jax.grad(run)(make(2, 1, 4, 16))
        self.said(error, "storage.paged-backward", "gather them: k_pages[page_table]")

    def test_mistakes_are_named(self):
        q, k, v = make(2, 1, 4, 16), *self.pools
        for parts, call in [
            ("page_table", lambda: qj.paged_attention(q, k, v, self.table[0], self.lengths)),
            ("one for each of 2", lambda: qj.paged_attention(q, k, v, self.table[:1], self.lengths)),
            ("pages that are alike", lambda: qj.paged_attention(q, k, v[:3], self.table, self.lengths)),
            ("lengths", lambda: qj.paged_attention(q, k, v, self.table, self.lengths[:1])),
        ]:
            with self.subTest(parts), self.assertRaises(qkvault.ArgumentError) as error:
                call()
            self.said(error, parts)


class More(Case):
    def test_segments_are_a_mask_of_documents(self):
        ids = jnp.asarray(np.sort(RNG.integers(0, 3, (2, 24)), 1))
        same = (ids[:, :, None] == ids[:, None])[:, None]
        self.both((Q, K, V), lambda *a: qj.attention(*a, segment_ids=ids, is_causal=True),
                  lambda *a: plain(*a, mask=same & CAUSAL))
        few = make(2, 8, 4, 16)
        found = qj.attention(few, K, V, segment_ids=(ids[:, :8], ids))
        self.near(found, plain(few, K, V, mask=same[:, :, :8]))
        with self.assertRaises(qkvault.ArgumentError) as error:
            qj.attention(few, K, V, segment_ids=ids)
        self.said(error, "queries", "(2, 8)")

    def test_the_log_sum_exp_of_rows_has_no_gradient(self):
        k = jnp.repeat(K, 2, 2).astype(jnp.float32)
        exact = jax.nn.logsumexp(jnp.einsum("bqhd,bkhd->bqhk", Q.astype(jnp.float32), k) / 4, -1)
        self.near(qj.attention(Q, K, V, return_lse=True)[1], exact)
        turned = [jnp.swapaxes(x, 1, 2) for x in (Q, K, V)]
        self.near(qj.attention(*turned, layout="bhsd", return_lse=True)[1], jnp.swapaxes(exact, 1, 2))
        self.near(qj.dot_product_attention(Q[0], K[0], V[0], return_residual=True)[1], exact[0])
        both = jax.grad(lambda q: sum(x.astype(jnp.float32).sum() for x in qj.attention(q, K, V, return_lse=True)))
        self.near(both(Q), jax.grad(lambda q: plain(q, K, V).sum())(Q), 3e-2)

    def test_dropout_is_described_with_its_seed_as_an_array(self):
        run = lambda q: qj.attention(q, K, V, dropout_rate=0.5, dropout_rng=jax.random.key(0))  # noqa: E731
        hand = qkvault.Attention("q: bf16 [2,4,24,16]\nk: bf16 [2,2,24,16]\ndropout: philox 0.5")
        self.assertEqual(keys(jax.grad(squares(run)), Q), [both.key for both in hand.training()])
        seeds = jax.make_jaxpr(lambda key: qj.attention(Q, K, V, dropout_rate=0.5, dropout_rng=key))(jax.random.key(1))
        self.assertIn("random_bits", str(seeds))
        with self.assertRaises(Exception) as error:
            jax.block_until_ready(run(Q))
        self.said(error, "dropout_rate=0.0", "GPU")

    def test_dropout_without_a_key_or_with_a_wrong_rate_is_named(self):
        for parts, options in [
            ("dropout_rng", {"dropout_rate": 0.1}), ("below 1", {"dropout_rate": 1.0}),
            ("below 1", {"dropout_rate": jnp.float32(0.1)}),
        ]:
            with self.assertRaises(qkvault.ArgumentError) as error:
                qj.attention(Q, K, V, **options)
            self.said(error, parts)
        self.near(qj.attention(Q, K, V, dropout_rate=0.0), plain(Q, K, V))


if __name__ == "__main__":
    unittest.main()
