"""What a modification captures, in every way that Python has, changed in every way, in every way of calling, in JAX.

    cargo xtask jax-tests

The cases are generated: where values are read from, how they change between two calls, and how the attention is
called. Each result is compared with the definition, evaluated with what is captured then; gradients include that of a
captured table, which every source is given as a tracer.
"""

import functools
import math
import types
import unittest

from test_jax import Case, jax, jnp, keys, np, plain, qj, squares

ROWS, WIDTH, HEADS = 12, 8, 2
RNG = np.random.default_rng(37)


def make(*shape, dtype=jnp.bfloat16):
    return jnp.asarray(RNG.standard_normal(shape), dtype)


Q, K, V = (make(2, ROWS, HEADS, WIDTH) for _ in range(3))
HELD = types.SimpleNamespace()


def documents(n):
    return jnp.arange(ROWS) // n


def fresh():
    return types.SimpleNamespace(docs=documents(4), cap=2.0, table=make(HEADS, ROWS, dtype=jnp.float32))


def same(docs, i, j):
    docs = jnp.asarray(docs)
    return docs[i] == docs[j]


def pair(state):
    """Functions that read a state when they are called."""
    score = lambda s, b, h, i, j: state.cap * jnp.tanh(s / state.cap) + state.table[h, j]  # noqa: E731
    return score, lambda b, h, i, j: same(state.docs, i, j)


def of_closure(state):
    def functions():
        cap, table, docs = state.cap, state.table, state.docs
        score = lambda s, b, h, i, j: cap * jnp.tanh(s / cap) + table[h, j]  # noqa: E731
        return score, lambda b, h, i, j: same(docs, i, j)

    return functions


def of_object(state):
    own = pair(state)
    return lambda: own


def of_dict(state):
    held = vars(state)
    score = lambda s, b, h, i, j: held["cap"] * jnp.tanh(s / held["cap"]) + held["table"][h, j]  # noqa: E731
    mask = lambda b, h, i, j: same(held["docs"], i, j)  # noqa: E731
    return lambda: (score, mask)


def _masked(b, h, i, j, docs):
    return same(docs, i, j)


def _capped(cap, s, b, h, i, j, table):
    return cap * jnp.tanh(s / cap) + table[h, j]


def of_partial(state):
    return lambda: (
        functools.partial(_capped, state.cap, table=state.table), functools.partial(_masked, docs=state.docs)
    )  # fmt: skip


class Own:
    def __init__(self, state):
        self.state = state

    @property
    def cap(self):
        return self.state.cap

    def mask(self, b, h, i, j):
        return same(self.state.docs, i, j)

    def score(self, s, b, h, i, j):
        return _capped(self.cap, s, b, h, i, j, table=self.state.table)

    def __call__(self, *given):
        return self.score(*given)


def of_method(state):
    own = Own(state)
    return lambda: (own.score, own.mask)


def of_callable(state):
    own = Own(state)
    return lambda: (own, own.mask)


def of_global(state):
    global HELD
    HELD = state
    return lambda: (_global_score, _global_mask)


def _global_score(s, b, h, i, j):
    return HELD.cap * jnp.tanh(s / HELD.cap) + HELD.table[h, j]


def _global_mask(b, h, i, j):
    return same(HELD.docs, i, j)


SOURCES = {f.__name__[3:]: f for f in (of_closure, of_object, of_dict, of_partial, of_method, of_callable, of_global)}


def rebound(state):
    state.docs, state.table = documents(2), -state.table


def another_float(state):
    state.cap = 0.5


def in_place(state):
    # Arrays of NumPy change in place.
    state.docs = np.array(documents(3))
    state.docs[ROWS // 2:] = 7


CHANGES = (rebound, another_float, in_place)


def once(attend, q, k, v, table, state, functions):
    """One attention, with a table that may be a tracer."""
    kept, state.table = state.table, table
    try:
        score_mod, mask_mod = functions()
        return attend(q, k, v, score_mod, mask_mod)
    finally:
        state.table = kept


def ours(q, k, v, score_mod, mask_mod):
    return qj.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod)


def exact(q, k, v, score_mod, mask_mod):
    full = jnp.broadcast_to(mask_mod(*jnp.ix_(*(jnp.arange(n) for n in (2, HEADS, ROWS, ROWS)))), (2, HEADS, ROWS, ROWS))
    return plain(q, k, v, score_mod=score_mod, mask=full).astype(q.dtype)


def layers(step):
    """Two layers by `scan`, each with a table of its own."""
    def run(q, k, v, table):
        return jax.lax.scan(lambda x, t: (step(x, k, v, t), None), q, jnp.stack([table, 0.5 * table]))[0]

    return run


def gradient(step):
    return jax.grad(squares(step), (0, 1, 2, 3))


def mapped(step):
    """Over queries and tables."""
    over = jax.vmap(step, (0, None, None, 0))
    return lambda q, k, v, t: over(jnp.stack([q, 2 * q]), k, v, jnp.stack([t, -t]))


def of_checkpoint(step):
    return gradient(lambda q, k, v, t: jax.checkpoint(step)(jax.checkpoint(step)(q, k, v, t), k, v, t))


WAYS = {
    "eager": lambda step: step,
    "jit": lambda step: jax.jit(lambda *given: step(*given)),
    "grad": gradient,
    "jit of grad": lambda step: jax.jit(gradient(step)),
    "checkpoint": of_checkpoint,
    "vmap": mapped,
    "vmap of grad": lambda step: mapped(gradient(step)),
    "scan": layers,
    "grad of scan of checkpoint": lambda step: gradient(layers(jax.checkpoint(step))),
}  # fmt: skip


class Captures(Case):
    def test_what_is_captured_is_read_anew(self):
        table = fresh().table
        for way, wrapped in WAYS.items():
            rights = {}
            for source, make_one in SOURCES.items():
                # All begin with the same, so that the definition is evaluated with the first alone.
                state = fresh()
                state.table = table
                functions = make_one(state)
                for change in (None, *CHANGES):
                    with self.subTest(source=source, way=way, change=change and change.__name__):
                        if change is not None:
                            change(state)
                        found, right = (
                            lambda attend=attend: wrapped(
                                lambda *given: once(attend, *given, state, functions))(Q, K, V, state.table)
                            for attend in (ours, exact)
                        )  # fmt: skip
                        if change not in rights:
                            rights[change] = right()
                        self.near(found(), rights[change], 4e-2 if "grad" in way or way == "checkpoint" else 1.5e-2)

    def test_policies_of_checkpoint(self):
        from jax.ad_checkpoint import checkpoint_name

        policies, state = jax.checkpoint_policies, fresh()
        functions = of_object(state)
        given = (Q, K, V, state.table)

        def loss(attend, policy):
            def layer(q, k, v, t):
                return checkpoint_name(once(attend, jnp.sin(q), k, v, t, state, functions), "o")

            layer = jax.checkpoint(layer, policy=policy)
            return jax.grad(squares(lambda q, k, v, t: layer(layer(q, k, v, t), k, v, 2 * t)), (0, 1, 2, 3))

        for name, policy in {
            "nothing": policies.nothing_saveable, "everything": policies.everything_saveable,
            "dots": policies.dots_with_no_batch_dims_saveable, "names": policies.save_only_these_names("o"),
            "others": policies.save_any_names_but_these("o"),
        }.items():
            with self.subTest(name):
                state.cap += 1.0
                self.near(loss(ours, policy)(*given), loss(exact, policy)(*given), 4e-2)
                self.near(jax.jit(loss(ours, policy))(*given), loss(exact, policy)(*given), 4e-2)

    def test_a_float_that_changes_changes_no_plan(self):
        for source, make_one in SOURCES.items():
            with self.subTest(source):
                state = fresh()
                functions, found = make_one(state), set()
                for cap in (2.0, 0.5, 1.0):
                    state.cap = cap
                    step = lambda q: once(ours, q, K, V, state.table, state, functions)  # noqa: E731
                    found.add((*keys(step, Q), *keys(jax.grad(squares(step)), Q)))
                self.assertEqual(len(found), 1)

    def test_floats_from_elsewhere_change_no_plan(self):
        for name, of in {
            "a helper": lambda c: lambda s, b, h, i, j: _scaled(s, c),
            "a default": lambda c: lambda s, b, h, i, j, c=c: s * c,
            "of NumPy": lambda c: lambda s, b, h, i, j, c=np.float32(c): s * c,
            "of NumPy, wide": lambda c: lambda s, b, h, i, j, c=np.float64(c): s * c,
            "Python's arithmetic": lambda c: lambda s, b, h, i, j: jnp.clip(s, -c, 2 * c) / c,
            "computed ahead": lambda c: lambda s, b, h, i, j: s + jnp.cumsum(jnp.arange(24.0) * c)[j] / 99,
            "in a table": lambda c: lambda s, b, h, i, j: s + jnp.asarray([c, 1.0, 2.0, c])[h],
            "a factor of what moves": lambda c: lambda s, b, h, i, j: s + c * SLOPES[h] * (i - j),
            "beside one that decides": lambda c: lambda s, b, h, i, j, d=c: s * c if d > 0 else s,
        }.items():
            with self.subTest(name):
                found = set()
                for c in (2.0, 1.0, 0.7):
                    score = of(c)
                    ours = lambda q: qj.attention(q, K, V, score_mod=score)  # noqa: E731
                    self.near(ours(Q), plain(Q, K, V, score_mod=score))
                    found.add(tuple(keys(ours, Q)))
                self.assertEqual(len(found), 1)

    def test_floats_that_python_decides_or_computes_by_are_constants(self):
        for name, of in {
            "a condition": lambda c: lambda s, b, h, i, j: s * c if c > 1 else s,
            "math": lambda c: lambda s, b, h, i, j: s * math.sqrt(c) + 1 / c,
            "its type": lambda c: lambda s, b, h, i, j: s * c if isinstance(c, float) else s,
            "an error of it": lambda c: lambda s, b, h, i, j: s * _tried(c),
            "its text": lambda c: lambda s, b, h, i, j: s * {"2.0": 3.0}.get(f"{c}", 1.0),
            "an integer": lambda c: lambda s, b, h, i, j: s + (j % int(c + 1)),
            "more than float32 has": lambda c: lambda s, b, h, i, j, low=-c * 1e300: jnp.where(j <= i, s, low),
            "infinity": lambda c: lambda s, b, h, i, j: jnp.where(j <= i + c, s, -HUGE),
        }.items():
            with self.subTest(name):
                for c in (2.0, 0.5, 3.0, 2.0):
                    score = of(c)
                    self.near(qj.attention(Q, K, V, score_mod=score), plain(Q, K, V, score_mod=score))

    def test_what_changes_what_it_reads_is_traced_as_it_is(self):
        counts = {"calls": 0.0}

        def counting(s, b, h, i, j):
            nonlocal last
            last = last + 1.0
            return s + last * (j == 0)

        def entry(s, b, h, i, j):
            counts["calls"] += 1.0
            return s + counts["calls"] * (j == 0)

        last = 0.0
        for function, read in ((counting, lambda: last), (entry, lambda: counts["calls"])):
            for _ in range(2):
                found, used = qj.attention(Q, K, V, score_mod=function), read()
                self.near(found, plain(Q, K, V, score_mod=lambda s, b, h, i, j: s + used * (j == 0)))


HUGE, SLOPES = math.inf, jnp.asarray([0.5, 0.25])


def _scaled(score, factor):
    return score * factor


def _tried(value):
    try:
        return float(value)
    except TypeError:
        return 9.0


if __name__ == "__main__":
    unittest.main()
