"""What a modification captures, in every way that Python has, changed in every way, in every way of calling.

    cargo xtask torch-tests

The cases are generated: where a value is read from, how it changes between two calls, and how the attention is called.
Each result is compared with the definition in float64, evaluated with what is captured then.
"""

import functools
import itertools
import math
import os
import types
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault.torch as qt
from qkvault.torch import _traces
from torch.utils.checkpoint import checkpoint
from torch_common import FOLDER, Case

ROWS, WIDTH = 16, 16
SHAPE = (2, 2, ROWS, WIDTH)
HELD = types.SimpleNamespace()


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


class Holder(torch.nn.Module):
    """Everything that a module may hold."""

    def __init__(self):
        super().__init__()
        self.register_buffer("docs", None)
        self.table = torch.nn.Parameter(torch.randn(ROWS, ROWS))
        self.cap = 2.0

    def mask(self, b, h, i, j):
        return self.docs[i] == self.docs[j]

    def scores(self, score, b, h, i, j):
        return self.cap * torch.tanh(score / self.cap) + self.table[i, j]


def documents(n):
    return torch.arange(ROWS) // n


def pair(docs, cap):
    """Functions that capture what they are given: a fresh closure at each call."""
    return lambda s, b, h, i, j: cap * torch.tanh(s / cap) + 0.01 * b, lambda b, h, i, j: docs[i] == docs[j]


def of_closure(state):
    return lambda: pair(state.docs, state.cap)


def of_object(state):
    mask = lambda b, h, i, j: state.docs[i] == state.docs[j]  # noqa: E731
    score = lambda s, b, h, i, j: state.cap * torch.tanh(s / state.cap) + 0.01 * b  # noqa: E731
    return lambda: (score, mask)


def of_dict(state):
    held = vars(state)
    mask = lambda b, h, i, j: held["docs"][i] == held["docs"][j]  # noqa: E731
    score = lambda s, b, h, i, j: held["cap"] * torch.tanh(s / held["cap"]) + 0.01 * b  # noqa: E731
    return lambda: (score, mask)


def _masked(b, h, i, j, docs):
    return docs[i] == docs[j]


def _capped(s, b, h, i, j, cap):
    return cap * torch.tanh(s / cap) + 0.01 * b


def of_partial(state):
    return lambda: (functools.partial(_capped, cap=state.cap), functools.partial(_masked, docs=state.docs))


def of_method(state):
    class Own:
        def mask(self, b, h, i, j):
            return state.docs[i] == state.docs[j]

        def score(self, s, b, h, i, j):
            return state.cap * torch.tanh(s / state.cap) + 0.01 * b

    own = Own()
    return lambda: (own.score, own.mask)


def of_module(state):
    holder = Holder()

    def functions():
        holder.docs, holder.cap = state.docs, state.cap
        return holder.scores, holder.mask

    return functions


def of_global(state):
    global HELD
    HELD = state
    return lambda: (_global_score, _global_mask)


def _global_mask(b, h, i, j):
    return HELD.docs[i] == HELD.docs[j]


def _global_score(s, b, h, i, j):
    return HELD.cap * torch.tanh(s / HELD.cap) + 0.01 * b


SOURCES = {f.__name__[3:]: f for f in (of_closure, of_object, of_dict, of_partial, of_method, of_module, of_global)}


def rebound(state):
    state.docs = documents(2)


def in_place(state):
    state.docs.copy_(documents(8))


def other_float(state):
    state.cap = 0.5


def both(state):
    state.docs, state.cap = documents(5), 7.0


CHANGES = {f.__name__: f for f in (rebound, in_place, other_float, both)}


def exact(q, k, v, score_mod, mask_mod):
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
    at = [torch.arange(n) for n in scores.shape]
    b, h, i, j = at[0][:, None, None, None], at[1][:, None, None], at[2][:, None], at[3]
    scores = score_mod(scores, b, h, i, j).masked_fill(~mask_mod(b, h, i, j), -math.inf)
    return scores.softmax(-1) @ v


def eager(q, k, v, functions):
    score_mod, mask_mod = functions()
    return qt.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod)


def compiled():
    torch._dynamo.reset()
    return torch.compile(eager, backend="aot_eager", fullgraph=True)


def checkpointed(reentrant):
    def call(q, k, v, functions):
        # Two layers: the backward of the second comes before the first is computed again.
        for _ in range(2):
            q = checkpoint(eager, q, k, v, functions, use_reentrant=reentrant)
        return q

    return call


def mapped(q, k, v, functions):
    over = torch.vmap(lambda q, k, v: eager(q, k, v, functions))
    return over(*(t.unsqueeze(0).expand(3, *t.shape) for t in (q, k, v)))[1]


def mapped_inside(q, k, v, functions):
    """The mapped axis stands inside, and one of two."""
    over = torch.vmap(torch.vmap(lambda q: eager(q, k, v, functions), in_dims=2), in_dims=0)
    return over(torch.stack([torch.stack([q, q], 2)] * 2))[1, 0]


def with_gradients(call, layers=1):
    def run(q, k, v, functions):
        given = [t.clone().requires_grad_() for t in (q, k, v)]
        o = call(*given, functions)
        o.float().square().sum().backward()
        return o, *(t.grad for t in given)

    def right(q, k, v, score_mod, mask_mod):
        given = [t.clone().requires_grad_() for t in (q, k, v)]
        o = given[0]
        for _ in range(layers):
            o = exact(o, *given[1:], score_mod, mask_mod)
        return o, *torch.autograd.grad(o.square().sum(), given)

    return run, right


def functional(q, k, v, functions):
    of = lambda q, k, v: eager(q, k, v, functions).float().square().sum()  # noqa: E731
    return eager(q, k, v, functions), *torch.func.grad(of, (0, 1, 2))(q, k, v)


PLAIN = lambda q, k, v, *functions: (exact(q, k, v, *functions),)  # noqa: E731
ONE = lambda call: (lambda *given: (call(*given),), PLAIN)  # noqa: E731
WAYS = {
    "eager": lambda: ONE(eager),
    "training": lambda: with_gradients(eager),
    "compile": lambda: with_gradients(compiled()),
    "checkpoint": lambda: with_gradients(checkpointed(False), 2),
    "checkpoint, reentrant": lambda: with_gradients(checkpointed(True), 2),
    "vmap": lambda: ONE(mapped),
    "vmap of vmap": lambda: ONE(mapped_inside),
    "grad": lambda: (functional, with_gradients(eager)[1]),
}  # fmt: skip


class Captures(Case):
    def test_what_is_captured_is_read_anew(self):
        torch.manual_seed(3)
        q, k, v = (torch.randn(SHAPE, dtype=torch.bfloat16) for _ in range(3))
        for (source, make), (change, apply), way in itertools.product(SOURCES.items(), CHANGES.items(), WAYS):
            with self.subTest(source=source, change=change, way=way):
                state = types.SimpleNamespace(docs=documents(4), cap=2.0)
                functions = make(state)
                run, right = WAYS[way]()
                for _ in range(2):
                    with torch.no_grad() if way in ("eager", "vmap", "vmap of vmap") else torch.enable_grad():
                        found, wanted = run(q, k, v, functions), right(q, k, v, *functions())
                    for a, b in zip(found, wanted):
                        self.near(a.double(), b.double(), 0.03)
                    apply(state)

    def test_nothing_is_traced_again_where_code_is_the_same(self):
        q, k, v = (torch.randn(SHAPE, dtype=torch.bfloat16) for _ in range(3))
        for source, make in SOURCES.items():
            with self.subTest(source):
                state = types.SimpleNamespace(docs=documents(4), cap=2.0)
                functions = make(state)
                eager(q, k, v, functions)
                before = _traces.made
                for change in CHANGES.values():
                    change(state)
                    eager(q, k, v, functions)
                self.assertEqual(_traces.made, before)

    def test_a_learned_table_is_read_after_a_step_without_gradients(self):
        holder = Holder()
        holder.docs = documents(4)
        q, k, v = (torch.randn(SHAPE, dtype=torch.bfloat16) for _ in range(3))
        for _ in range(2):
            with torch.no_grad():
                found = qt.attention(q, k, v, score_mod=holder.scores, mask_mod=holder.mask)
                self.near(found.double(), exact(q, k, v, holder.scores, holder.mask), 0.03)
                holder.table.add_(torch.randn(ROWS, ROWS))

    def test_integers_that_grow_beyond_32_bits_do_not_wrap(self):
        """In silence, documents 1 and 1 + 2**32 were one."""
        q, k, v = (torch.randn(SHAPE, dtype=torch.bfloat16) for _ in range(3))
        if q.is_cuda:
            return  # An assertion of a kernel ends the process's use of its GPU.
        docs = torch.arange(ROWS) // 4
        mask = lambda b, h, i, j: docs[i] == docs[j]  # noqa: E731
        runs = [qt.attention, torch.compile(qt.attention, backend="aot_eager", fullgraph=True)]
        for run in runs:
            docs.copy_(torch.arange(ROWS) // 4)
            run(q, k, v, mask_mod=mask)
            docs[:4] += 1 + 2**32
            with self.assertRaisesRegex(RuntimeError, "the tensor .* has integers of more than 32 bits now"):
                run(q, k, v, mask_mod=mask)

    def test_floats_that_decide_are_compared(self):
        q, k, v = (torch.randn(SHAPE, dtype=torch.bfloat16) for _ in range(3))
        every = lambda b, h, i, j: b >= 0  # noqa: E731
        for make in (
            lambda c: lambda s, b, h, i, j: s * c if c > 1 else s,
            lambda c: lambda s, b, h, i, j: s * math.sqrt(c) + 1 / c,
            lambda c: lambda s, b, h, i, j: s**c if c == 2.0 else s * c,
            lambda c: lambda s, b, h, i, j: s + torch.tensor(c),
        ):
            for value in (2.0, 0.5, 3.0, 2.0):
                score = make(value)
                self.near(qt.attention(q, k, v, score_mod=score).double(), exact(q, k, v, score, every), 0.03)

    def test_what_cannot_be_followed_is_traced_at_every_call(self):
        q, k, v = (torch.randn(SHAPE, dtype=torch.bfloat16) for _ in range(3))
        tables = {"now": documents(4)}

        @functools.lru_cache
        def table(which):
            return tables["now"]

        def counting(b, h, i, j):
            nonlocal count
            count += 1
            return j <= i + count

        count = 0
        cached = lambda b, h, i, j: table(0)[i] == table(0)[j]  # noqa: E731
        score = lambda s, b, h, i, j: s  # noqa: E731
        for n in (4, 2):
            tables["now"] = documents(n)
            table.cache_clear()
            found = qt.attention(q, k, v, mask_mod=cached)
            self.near(found.double(), exact(q, k, v, score, cached), 0.03)
        for _ in range(2):
            before = count
            found = qt.attention(q, k, v, mask_mod=counting)
            used, count = count, before
            self.assertGreater(used, before)
            wide = lambda b, h, i, j, ahead=used: j <= i + ahead  # noqa: E731
            self.near(found.double(), exact(q, k, v, score, wide), 0.03)
            count = used

    def test_values_that_python_asks_for_are_compared(self):
        q, k, v = (torch.randn(SHAPE, dtype=torch.bfloat16) for _ in range(3))
        wide = torch.tensor(2)
        mask = lambda b, h, i, j: j <= i + wide.item()  # noqa: E731
        score = lambda s, b, h, i, j: s  # noqa: E731
        for n in (2, 5):
            wide.fill_(n)
            self.near(qt.attention(q, k, v, mask_mod=mask).double(), exact(q, k, v, score, mask), 0.03)

    def test_tensors_named_as_operands_have_other_names(self):
        x = torch.randn(SHAPE, dtype=torch.bfloat16)
        for name in ("d", "k", "sink", "scale", "stats"):
            spaces = {"own": documents(4)}
            exec(f"def made({name}):\n    return lambda b, h, i, j: {name}[i] == {name}[j]", spaces)
            mask = spaces["made"](spaces["own"])
            found = qt.attention(x, x, x, mask_mod=mask)
            self.near(found.double(), exact(x, x, x, lambda s, b, h, i, j: s, mask), 0.03)


if __name__ == "__main__":
    unittest.main()
