"""A sharded sequence through `qkvault.jax` on four devices of the host, beside one attention: values and gradients.

    cargo xtask jax-tests                                             # runs these too
    python3 -m unittest adapters/python/tests/test_jax_parallel.py    # with JAX, and QKVAULT_LIBRARY or the wheel
"""

import functools
import os
import pathlib
import subprocess
import sys
import unittest

from test_jax import Case, P, jax, jnp, make, np, qj, qkvault, squares  # noqa: I001
from qkvault._ranks import meeting  # noqa: I001
from qkvault.jax._meetings import Meetings  # noqa: I001

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
        for strategy in ("gather", "heads"):
            self.same((Q, *ONE), sharded(4, "zigzag", strategy, **ALIBI), whole)

    def test_what_no_schedule_takes_is_refused_while_a_program_is_traced(self):
        six, few = jnp.concatenate([Q, Q[:, :, :2]], 2), K[:, :, :3]
        with self.assertRaisesRegex(qkvault.Refused, "6 query heads and 3 key heads over 2 ranks") as error:
            jax.make_jaxpr(sharded(2, "zigzag", "heads"))(six, few, few)
        self.assertEqual([reason.code for reason in error.exception.reasons], ["shard.heads"])

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

    def test_windows_that_reach_over_several_chunks(self):
        for window, ranks, order in (((9, 0), 4, "contiguous"), ((9, 5), 4, "zigzag"), ((3, 9), 2, "zigzag"),
                                     ((17, 0), 4, "zigzag"), ((0, 0), 4, "zigzag")):
            with self.subTest(window, ranks=ranks, order=order):
                whole = functools.partial(qj.attention, window=window)
                self.same((Q, K, V), sharded(ranks, order, window=window), whole)

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
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "seq"))
        spec = P("data", "seq")
        local = functools.partial(qj.context_parallel_attention, axis_name="seq", order="contiguous", **ALIBI)
        mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec))
        self.same((Q, K, V), mapped, functools.partial(qj.attention, **ALIBI))

    def test_each_row_of_a_mesh_has_ranks_of_its_own(self):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "seq"))
        spec = P(None, "seq")
        local = functools.partial(qj.context_parallel_attention, axis_name="seq", order="contiguous", is_causal=True)
        mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec))
        self.near(mapped(Q, K, V), qj.attention(Q, K, V, is_causal=True))

    def test_equal_programs_on_other_devices_meet_apart(self):
        spec = P(None, "seq")
        local = functools.partial(qj.context_parallel_attention, axis_name="seq", order="contiguous", is_causal=True)
        whole = qj.attention(Q, K, V, is_causal=True)
        for devices in ([0, 1], [1, 0], [1, 2], [0, 1]):
            mesh = jax.sharding.Mesh(np.array(jax.devices())[devices], ("seq",))
            with self.subTest(devices):
                mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec)
                self.near(jax.jit(mapped)(Q, K, V), whole)

    def test_calls_that_do_not_depend_on_each_other(self):
        """A CPU may run them in any order, and each of its devices in another one."""
        moved = [Q + number for number in range(4)]

        def local(q, k, v):
            call = functools.partial(qj.context_parallel_attention, axis_name="seq", order="contiguous", is_causal=True)
            return jnp.stack([call(q + number, k, v) for number in range(4)])

        spec = P(None, "seq")
        mapped = jax.shard_map(local, mesh=mesh_of(4), in_specs=(spec,) * 3, out_specs=P(None, None, "seq"))
        self.near(jax.jit(mapped)(Q, K, V), jnp.stack([qj.attention(q, K, V, is_causal=True) for q in moved]))

    def test_vmap_and_checkpoint_inside_of_ranks(self):
        three, spec = [jnp.stack([x, x + 1, x - 1]) for x in (Q, K, V)], P(None, None, "seq")
        call = functools.partial(qj.context_parallel_attention, axis_name="seq", order="contiguous", **ALIBI)
        mapped = jax.shard_map(
            jax.checkpoint(jax.vmap(call)), mesh=mesh_of(2), in_specs=(spec, spec, spec), out_specs=spec)
        self.same(three, jax.jit(mapped), jax.vmap(functools.partial(qj.attention, **ALIBI)))

    def test_a_rank_that_meets_again_goes_where_the_others_will(self):
        """Each rank counted its meetings, and after one that failed on a rank alone they never met again."""
        meetings, key = Meetings(), ("a mesh", 0)
        first = [meetings._here(key, rank) for rank in (0, 1)]
        again = [meetings._here(key, rank) for rank in (1, 0)]
        self.assertEqual([len(set(first)), len(set(again)), first[0] == again[0]], [1, 1, False])
        with self.assertRaises(qkvault.Refused):
            meetings.link(qkvault.Context(), key, 1, 2, None, deadline=0.2)  # Rank 0 does not come.
        late = [meetings._here(key, rank) for rank in (0, 1)]
        self.assertEqual(len(set(late)), 1)

    def processes(self, *more):
        """What two processes say, with two devices each."""
        _, port, _ = meeting("127.0.0.1")
        program = str(pathlib.Path(__file__).parent / "jax_ranks.py")
        flags = os.environ.get("XLA_FLAGS", "").replace("device_count=4", "device_count=2")
        variables = {**os.environ, "XLA_FLAGS": flags}
        started = [
            subprocess.Popen([sys.executable, program, str(port), "2", str(process), *more], env=variables, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for process in range(2)
        ]  # fmt: skip
        try:
            return [process.communicate(timeout=120)[0] for process in started]
        finally:
            [process.kill() for process in started]

    def test_processes_are_ranks_of_one_mesh(self):
        for said in self.processes():
            self.assertTrue(said.endswith("right\n"), said)

    def test_a_process_that_ends_is_named(self):
        said = self.processes("--end")[0]
        self.assertRegex(said, r"told: .*ranks\.gone.* rank [23]: rank [23] is gone")

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
        one = [x[:, :, :1] for x in (Q, K, V)]
        told(["q has 1 heads", "2 ranks", "gather"], lambda: sharded(2, "zigzag", "heads", **ALIBI)(*one))
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "seq"))
        partly = jax.shard_map(
            functools.partial(ours, axis_name="seq"), mesh=mesh, in_specs=(P(None, "seq"),) * 3,
            out_specs=P(None, "seq"), axis_names={"seq"})
        mapped = jax.vmap(functools.partial(ours, axis_name="seq"), axis_name="seq")
        told(["axis_name is 'seq'", "no devices of their own"], lambda: mapped(*(jnp.stack([x, x]) for x in (Q, K, V))))
        told(["'data' is no manual one", "without axis_names"], lambda: jax.jit(partly)(Q, K, V))
        told(["bias is not exchanged"], lambda: sharded(2, "zigzag", "heads", bias=BIAS)(Q, K, V))
        told(["bias has the shape", "8 rows"], lambda: sharded(4, "contiguous", bias=BIAS)(Q, K, V))
        told(["8 queries and 4 keys"], lambda: sharded(4, "contiguous", is_causal=True)(Q, K[:, :16], V[:, :16]))


if __name__ == "__main__":
    unittest.main()
