"""A sharded sequence through `qkvault.jax` on four devices of the host, beside one attention: values and gradients.

    cargo xtask jax-tests                                             # runs these too
    python3 -m unittest adapters/python/tests/test_jax_parallel.py    # with JAX, and QKVAULT_LIBRARY or the wheel
"""

import functools
import pathlib
import re
import unittest

from test_jax import Case, P, jax, jnp, make, np, qj, qkvault, squares  # noqa: I001

ROWS = 32
Q, K, V = make(2, ROWS, 4, 16), make(2, ROWS, 4, 16), make(2, ROWS, 4, 16)
ONE = make(2, ROWS, 1, 16), make(2, ROWS, 1, 16)
SLOPES, TABLE = jnp.asarray([0.5, 0.25, 0.125, 0.0625]), make(4, 64, dtype=jnp.float32)
DOCUMENTS = jnp.asarray([[0] * 5 + [1] * 27, [0] * 15 + [1] * 9 + [2] * 8])
BIAS, KEEP = make(1, 4, ROWS, ROWS), jnp.abs(make(ROWS, ROWS)) + jnp.eye(ROWS) > 0.3

ALIBI = {"score_mod": lambda s, b, h, i, j: s - SLOPES[h] * (i - j), "is_causal": True}
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": 9},
    "short window": {"is_causal": True, "window": 2},
    "both sides": {"window": (6, 3)},
    "left alone": {"window": (6, None)},
    "right alone": {"window": (None, 3)},
    "alibi": ALIBI,
    "window and positions": {"score_mod": lambda s, b, h, i, j: s - 0.01 * i * (i - j), "is_causal": True, "window": 9},
    "softcap and scale": {"is_causal": True, "softcap": 2.0, "scale": 0.5},
    "a table": {"score_mod": lambda s, b, h, i, j: s + TABLE[h, i - j + 32] + 0.01 * j},
    "documents": {"mask_mod": lambda b, h, i, j: (DOCUMENTS[b, i] == DOCUMENTS[b, j]) & (j <= i)},
    "by head": {"mask_mod": lambda b, h, i, j: (j <= i) | (h % 2 == 0)},
    "deterministic": {"is_causal": True, "deterministic": True},
}


def mesh_of(ranks):
    return jax.sharding.Mesh(np.array(jax.devices()[:ranks]), ("seq",))


def sharded(ranks, order, strategy="gather", *, more=(), specs=(), named=(), **options):
    """One attention over ranks as a function of whole arrays, and of further ones by name."""
    spec = P(None, "seq")

    def local(q, k, v, *others):
        given = dict(zip(named, others))
        return qj.context_parallel_attention(
            q, k, v, axis_name="seq", strategy=strategy, order=order, **options, **given)

    out = (spec, spec) if options.get("return_lse") else spec
    mapped = jax.shard_map(local, mesh=mesh_of(ranks), in_specs=(spec, spec, spec, *specs), out_specs=out)

    def run(q, k, v, *others):
        zigzag = order == "zigzag"
        given = [qj.zigzag(x, ranks) if zigzag else x for x in (q, k, v)]
        return jax.tree.map(lambda x: qj.unzigzag(x, ranks) if zigzag else x, jax.jit(mapped)(*given, *others))

    return run


class Sharded(Case):
    def setUp(self):
        if len(jax.devices()) < 4:
            self.skipTest("four devices are needed")

    def same(self, args, ours, theirs, bound=1.5e-2):
        moved = tuple(range(len(args)))
        self.near(ours(*args), theirs(*args), bound)
        self.near(jax.grad(squares(ours), moved)(*args), jax.grad(squares(theirs), moved)(*args), bound)

    def test_every_kind_of_attention_is_that_of_the_whole(self):
        for at, (name, options) in enumerate(CASES.items()):
            whole = functools.partial(qj.attention, **options)
            orders = ("zigzag", "contiguous") if at < 4 else ("zigzag", "contiguous")[at % 2:][:1]
            for order in orders:
                ranks = 4 if at % 3 else 2
                with self.subTest(name, order=order, ranks=ranks):
                    self.same((Q, K, V), sharded(ranks, order, **options), whole)

    def test_heads_are_exchanged_for_rows(self):
        for at, name in enumerate(("causal", "alibi", "a table", "by head", "both sides")):
            order = ("zigzag", "contiguous")[at % 2]
            with self.subTest(name, order=order):
                whole = functools.partial(qj.attention, **CASES[name])
                self.same((Q, K, V), sharded(4 if at else 2, order, "heads", **CASES[name]), whole)

    def test_one_key_head_serves_all_query_heads(self):
        whole = functools.partial(qj.attention, **ALIBI)
        self.same((Q, *ONE), sharded(4, "zigzag", **ALIBI), whole)

    def test_sinks_and_what_functions_capture_have_gradients(self):
        sinks, table = make(4, dtype=jnp.float32), make(64, dtype=jnp.float32)
        whole = lambda q, k, v, s: qj.attention(q, k, v, sinks=s, is_causal=True)  # noqa: E731
        for strategy in ("gather", "heads"):
            ours = sharded(4, "zigzag", strategy, specs=(P(),), named=("sinks",), is_causal=True)
            self.same((Q, K, V, sinks), ours, whole)
        mod = lambda t: lambda s, b, h, i, j: s + t[i - j + 32]  # noqa: E731
        spec = P(None, "seq")

        def local(q, k, v, t):
            return qj.context_parallel_attention(q, k, v, axis_name="seq", order="contiguous", score_mod=mod(t))

        mapped = jax.jit(jax.shard_map(local, mesh=mesh_of(4), in_specs=(spec, spec, spec, P()), out_specs=spec))
        self.same((Q, K, V, table), mapped, lambda q, k, v, t: qj.attention(q, k, v, score_mod=mod(t)), 5e-2)

    def test_windows_move_what_is_seen_of_the_neighbours_and_no_more(self):
        def sent(jaxpr, found):
            """Elements that leave their rank, by the operation that moves them."""
            for equation in jaxpr.eqns:
                name = equation.primitive.name
                count = sum(v.aval.size for v in equation.invars if hasattr(v.aval, "size"))
                if name == "ppermute":
                    found[name] = found.get(name, 0) + count * len(equation.params["perm"])
                elif name in ("all_gather", "reduce_scatter", "psum_scatter", "all_to_all"):
                    found["whole"] = found.get("whole", 0) + 4 * 3 * count
                for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        sent(inner, found)
            return found

        row = 2 * 4 * 16
        # K and V; three borders of four chunks, or six of eight, because the fourth and fifth chunk are on one rank.
        for order, borders in (("contiguous", 3), ("zigzag", 6)):
            for options, rows in (({"is_causal": True, "window": 2}, 2), ({"window": (2, 1)}, 3)):
                ours = sharded(4, order, **options)
                with self.subTest(order, rows=rows):
                    forward = 2 * row * borders * rows
                    self.assertEqual(sent(jax.make_jaxpr(ours)(Q, K, V).jaxpr, {}), {"ppermute": forward})
                    program = jax.make_jaxpr(jax.grad(squares(ours), (0, 1, 2)))(Q, K, V)
                    self.assertEqual(sent(program.jaxpr, {}), {"ppermute": 2 * forward})
        wide = sent(jax.make_jaxpr(sharded(4, "zigzag", is_causal=True, window=40))(Q, K, V).jaxpr, {})
        self.assertEqual(wide, {"whole": 2 * row * ROWS * 3})

    def test_windows_that_reach_over_several_chunks(self):
        for window, ranks, order in (((9, 0), 4, "contiguous"), ((9, 5), 4, "zigzag"), ((3, 9), 2, "zigzag"),
                                     ((17, 0), 4, "zigzag"), ((0, 0), 4, "zigzag")):
            with self.subTest(window, ranks=ranks, order=order):
                whole = functools.partial(qj.attention, window=window)
                self.same((Q, K, V), sharded(ranks, order, window=window), whole)

    def test_keys_before_the_last_chunk_s_end_are_enough_under_a_causal_mask(self):
        for prefixes, extents in ((1, {32}), (2, {16, 32}), (4, {16, 32})):
            ours = sharded(4, "zigzag", is_causal=True, prefixes=prefixes)
            texts = re.findall(r"'text', '([^']*)'", str(jax.make_jaxpr(ours)(Q, K, V)))
            self.assertEqual({int(re.search(r"k: bf16 \[2,4,(\d+),", text)[1]) for text in texts}, extents)
            self.same((Q, K, V), ours, functools.partial(qj.attention, is_causal=True))
        for window in ((6, None), (None, 3)):
            ours = sharded(4, "zigzag", window=window, prefixes=8)
            self.same((Q, K, V), ours, functools.partial(qj.attention, window=window))

    def test_tensors_over_queries_have_a_rank_s_rows(self):
        for name, given, spec in (("bias", BIAS, P(None, None, "seq")), ("mask", KEEP, P("seq"))):
            ours = sharded(4, "contiguous", specs=(spec,), named=(name,), is_causal=True)
            whole = lambda q, k, v, x: qj.attention(q, k, v, is_causal=True, **{name: x})  # noqa: B023, E731
            with self.subTest(name):
                if name == "bias":
                    self.same((Q, K, V, given), ours, whole)
                else:
                    self.near(ours(Q, K, V, given), whole(Q, K, V, given))
        order = qj.zigzag(BIAS, 2, 2)
        ours = sharded(2, "zigzag", specs=(P(None, None, "seq"),), named=("bias",), is_causal=True, window=7)
        self.near(ours(Q, K, V, order), qj.attention(Q, K, V, bias=BIAS, is_causal=True, window=7))

    def test_lengths_and_documents_are_those_of_the_whole(self):
        lengths = jnp.asarray([27, 9])
        options = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths, "is_causal": True}
        for strategy in ("gather", "heads"):
            self.same((Q, K, V), sharded(4, "zigzag", strategy, **options), functools.partial(qj.attention, **options))
        whole = functools.partial(qj.attention, segment_ids=DOCUMENTS, is_causal=True)
        for strategy in ("gather", "heads"):
            ours = sharded(2, "zigzag", strategy, specs=(P(None, "seq"),), named=("segment_ids",), is_causal=True)
            ids = qj.zigzag(DOCUMENTS, 2)
            self.same((Q, K, V), lambda q, k, v: ours(q, k, v, ids), whole)  # noqa: B023

    def test_the_log_sum_exp_is_that_of_the_whole(self):
        for strategy in ("gather", "heads"):
            found = sharded(4, "zigzag", strategy, is_causal=True, return_lse=True)(Q, K, V)
            self.near(found, qj.attention(Q, K, V, is_causal=True, return_lse=True))

    def test_the_other_layout(self):
        turned = [jnp.swapaxes(x, 1, 2) for x in (Q, K, V)]
        spec, options = P(None, None, "seq"), {"layout": "bhsd", "is_causal": True}
        for strategy in ("gather", "heads"):
            local = functools.partial(
                qj.context_parallel_attention, axis_name="seq", order="contiguous", strategy=strategy, **options)
            mapped = jax.shard_map(local, mesh=mesh_of(4), in_specs=(spec, spec, spec), out_specs=spec)
            self.same(turned, jax.jit(mapped), functools.partial(qj.attention, **options))

    def test_a_batch_may_be_sharded_over_another_axis(self):
        mesh = jax.make_mesh((2, 2), ("data", "seq"))
        spec = P("data", "seq")
        local = functools.partial(qj.context_parallel_attention, axis_name="seq", order="contiguous", **ALIBI)
        mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec))
        self.same((Q, K, V), mapped, functools.partial(qj.attention, **ALIBI))

    def test_the_guide_runs(self):
        page = pathlib.Path(__file__).resolve().parents[3] / "crates/qkvault/src/guide/several_gpus.md"
        program, names = page.read_text().split("## JAX")[1].split("```python\n")[1].split("```")[0], {}
        exec(program, names)
        q, k, v = (qj.unzigzag(names[name], 2) for name in "qkv")
        one = functools.partial(qj.attention, score_mod=names["alibi"], is_causal=True)
        whole = lambda *a: one(*a).astype(jnp.float32).var()  # noqa: E731
        found = [qj.unzigzag(x, 2) for x in names["gradients"]]
        self.near(found, jax.grad(whole, (0, 1, 2))(q, k, v))

    def test_zigzag_is_undone_and_its_positions_are_known(self):
        self.assertEqual(qj.zigzag(jnp.arange(8), 2, 0).tolist(), [0, 1, 6, 7, 2, 3, 4, 5])
        x = make(3, 24)
        for ranks in (1, 2, 3):
            self.assertTrue(bool((qj.unzigzag(qj.zigzag(x, ranks), ranks) == x).all()))

    def test_mistakes_are_named(self):
        def told(parts, call):
            with self.subTest(parts), self.assertRaises(qkvault.ArgumentError) as error:
                call()
            self.said(error, *parts)

        ours = qj.context_parallel_attention
        told(["axis_name is 'seq'", "jax.shard_map"], lambda: ours(Q, K, V, axis_name="seq"))
        told(["order is 'striped'", "zigzag"], lambda: sharded(2, "striped")(Q, K, V))
        told(["prefixes is 0", "1 or more"], lambda: sharded(2, "contiguous", prefixes=0)(Q, K, V))
        told(["strategy is 'ring'", "'gather' or 'heads'"], lambda: sharded(2, "contiguous", "ring")(Q, K, V))
        odd = [x[:, :28] for x in (Q, K, V)]
        told(["28 rows", "8 equal chunks", "pad it to 32"], lambda: sharded(4, "zigzag")(*odd))
        rows = lambda *a: jax.shard_map(  # noqa: E731
            functools.partial(ours, axis_name="seq"), mesh=mesh_of(4), in_specs=(P(None, "seq"),) * 3,
            out_specs=P(None, "seq"))(*a)
        told(["7 rows", "2 equal chunks", "contiguous"], lambda: rows(*odd))
        told(["k has 1 heads", "4 ranks", "gather"], lambda: sharded(4, "zigzag", "heads")(Q, *ONE))
        told(["bias is not exchanged"], lambda: sharded(2, "zigzag", "heads", bias=BIAS)(Q, K, V))
        told(["bias has the shape", "8 rows"], lambda: sharded(4, "contiguous", bias=BIAS)(Q, K, V))
        told(["8 queries and 4 keys"], lambda: sharded(4, "contiguous", is_causal=True)(Q, K[:, :16], V[:, :16]))

    def test_every_launch_is_supported_on_an_h200(self):
        for name, options in CASES.items():
            program = jax.make_jaxpr(jax.grad(squares(sharded(4, "zigzag", **options)), (0, 1, 2)))(Q, K, V)
            texts = {text.encode().decode("unicode_escape") for text in re.findall(r"'text', '([^']*)'", str(program))}
            self.assertGreater(len(texts), 1)
            for text in texts:
                said = qkvault.Attention(text).explain("h200")
                with self.subTest(name):
                    self.assertTrue(said, str(said))


if __name__ == "__main__":
    unittest.main()
