"""Modules of flax whose modifications read their parameters: linen and nnx, in every way of calling.

    cargo xtask jax-tests

The cases are generated; each is compared with the same module over the definition.
"""

import functools
import itertools
import unittest

from test_jax import Case, jax, jnp, keys, np, plain, qj, squares

try:
    import flax.linen as nn
    from flax import nnx
except ImportError:
    raise unittest.SkipTest("flax is not installed") from None

RNG = np.random.default_rng(40)
ROWS, HEADS, WIDTH, LAYERS = 12, 2, 8, 2
X = jnp.asarray(RNG.standard_normal((2, ROWS, HEADS, WIDTH)), jnp.bfloat16)
TABLE = nn.initializers.normal(1.0)


def theirs(q, k, v, score_mod):
    return plain(q, k, v, score_mod=score_mod).astype(q.dtype)


class Compact(nn.Module):
    attend: object
    cap: float = 2.0

    @nn.compact
    def __call__(self, x):
        table = self.param("table", TABLE, (HEADS, ROWS))
        q = nn.Dense(WIDTH, dtype=x.dtype)(x)
        return self.attend(q, x, x, score_mod=lambda s, b, h, i, j: self.cap * jnp.tanh(s / self.cap) + table[h, j])


class Setup(nn.Module):
    attend: object
    cap: float = 2.0

    def setup(self):
        self.table = self.param("table", TABLE, (HEADS, ROWS))
        self.dense = nn.Dense(WIDTH, dtype=jnp.bfloat16)

    def score(self, s, b, h, i, j):
        return self.cap * jnp.tanh(s / self.cap) + self.table[h, j]

    def __call__(self, x):
        return self.attend(self.dense(x), x, x, score_mod=self.score)


class Layers(nn.Module):
    """Layers by `scan`, each computed again."""

    attend: object
    of: type = Compact
    cap: float = 2.0

    @nn.compact
    def __call__(self, x):
        over = nn.scan(lambda layer, x, _: (layer(x), None), variable_axes={"params": 0}, split_rngs={"params": True},
                       length=LAYERS)
        return over(nn.remat(self.of)(self.attend, self.cap), x, None)[0]


class Own(nnx.Module):
    """`read` gets the table of its parameter."""

    def __init__(self, attend, read, rngs):
        self.attend, self.read, self.cap = attend, read, 2.0
        self.dense = nnx.Linear(WIDTH, WIDTH, dtype=jnp.bfloat16, rngs=rngs)
        self.table = nnx.Param(TABLE(rngs.params(), (HEADS, ROWS)))

    def score(self, s, b, h, i, j):
        return self.cap * jnp.tanh(s / self.cap) + self.read(self.table)[h, j]

    def __call__(self, x):
        return self.attend(self.dense(x), x, x, score_mod=self.score)


class OwnLayers(nnx.Module):
    def __init__(self, attend, read, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def layers(rngs):
            return Own(attend, read, rngs)

        self.layers = layers(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def over(x, layer):
            return nnx.remat(lambda layer, x: layer(x))(layer, x)

        return over(x, self.layers)


READS = {"itself": lambda p: p, "its value": lambda p: p.value, "all of it": lambda p: p[...]}
KINDS = {
    "compact": Compact, "setup": Setup, "layers": Layers, "layers of setup": functools.partial(Layers, of=Setup),
}  # fmt: skip


def gradient(f):
    return jax.grad(squares(f), (0, 1))


#: How a function of parameters and an input is called.
WAYS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "grad": gradient,
    "jit of grad": lambda f: jax.jit(gradient(f)),
    "checkpoint": lambda f: gradient(jax.checkpoint(f)),
    "vmap": lambda f: lambda p, x: jax.vmap(f, (None, 0))(p, jnp.stack([x, 2 * x])),
    "vmap of grad": lambda f: lambda p, x: jax.vmap(gradient(f), (None, 0))(p, jnp.stack([x, 2 * x])),
    "vmap over parameters": lambda f: lambda p, x: jax.vmap(f, (0, None))(jax.tree.map(lambda a: jnp.stack([a, -a]), p), x),
}  # fmt: skip


class Flax(Case):
    def compared(self, ours, exact, parameters, way):
        self.near(WAYS[way](ours)(parameters, X), WAYS[way](exact)(parameters, X), 5e-2)

    def test_linen(self):
        for (kind, module), way in itertools.product(KINDS.items(), WAYS):
            with self.subTest(kind=kind, way=way):
                ours, exact = module(qj.attention), module(theirs)
                self.compared(ours.apply, exact.apply, exact.init(jax.random.key(1), X), way)

    def test_nnx(self):
        kinds = [*((Own, reads) for reads in READS), (OwnLayers, "itself")]
        for (kind, reads), way in itertools.product(kinds, WAYS):
            with self.subTest(kind=kind.__name__, reads=reads, way=way):
                both = []
                for attend in (qj.attention, theirs):
                    graph, state = nnx.split(kind(attend, READS[reads], nnx.Rngs(2)))
                    both.append(lambda state, x, graph=graph: nnx.merge(graph, state)(x))
                self.compared(*both, state, way)

    def test_nnx_by_its_own_transformations(self):
        for read in READS.values():
            found = []
            for attend in (qj.attention, theirs):
                module = Own(attend, read, nnx.Rngs(3))
                step = nnx.grad(lambda module, x: squares(module)(x))
                first, second = step(module, X), nnx.jit(step)(module, X)
                # A parameter after a step, and a float: both are read anew.
                module.table.value, module.cap = -module.table.value, 0.5
                found.append((first, second, module(X), nnx.jit(lambda module, x: module(x))(module, X)))
            self.near(*found, 5e-2)

    def test_a_float_of_a_module_changes_no_plan(self):
        for module in (Compact, Setup):
            parameters = module(theirs).init(jax.random.key(1), X)
            found = {tuple(keys(module(qj.attention, cap).apply, parameters, X)) for cap in (2.0, 0.5)}
            self.assertEqual(len(found), 1)
        own, found = Own(qj.attention, READS["itself"], nnx.Rngs(3)), set()
        for own.cap in (2.0, 0.5):
            found.add(tuple(keys(own, X)))
        self.assertEqual(len(found), 1)


if __name__ == "__main__":
    unittest.main()
