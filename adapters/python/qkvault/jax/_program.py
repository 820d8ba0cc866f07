"""What a call of `attention` computes, whatever its shapes: the description follows for each shape."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional, Union

import jax
import jax.numpy as jnp

from .._errors import ArgumentError
from .._words import Words
from ._sharing import Sharing
from ._trace import Function
from ._values import AXES, Node, Value, compute, printed, tensors_of
from ._words import DOOR

#: Element types of JAX in descriptions.
DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "int32": "i32", "float64": "f64"}


def dtype_word(dtype: Any) -> str:
    """The word of an element type."""
    name = jnp.dtype(dtype).name
    if name not in DTYPES:
        raise ArgumentError(f"an array is {name}; give bfloat16, float16, float32 or int32")
    return DTYPES[name]


@dataclass(frozen=True)
class Sizes:
    """Extents of one call."""

    b: int
    h: int
    heads_kv: int
    q: int
    k: int
    d: int
    d_v: int
    #: What the batch was before `vmap` folded axes into it: what `b` counts.
    batch: int
    #: How Q and O, and how K and V lie in memory.
    rows: str
    keys: str

    def axes(self) -> dict[str, int]:
        """Extents that tensors of expressions have."""
        return {"b": self.batch, "h": self.h, "q": self.q, "k": self.k}


@dataclass
class Expressions:
    """Both expressions, and the tensors that they read, computed ahead."""

    score: Optional[Node]
    mask: Optional[Node]
    tensors: list[Value]


@dataclass(eq=False)
class Program:
    """One attention with its modifications, for any shape."""

    layout: str
    mask: str
    score_mod: Optional[Callable[..., Any]] = None
    mask_mod: Optional[Callable[..., Any]] = None
    softcap: Any = None
    has_bias: bool = False
    has_mask: bool = False
    lengths: bool = False
    sinks: bool = False
    deterministic: bool = False
    has_segments: bool = False
    #: The probability with which a weight is dropped.
    dropout: float = 0.0
    #: Sequences behind each other: how many there are, and the most queries and keys of one.
    packed: Optional[tuple[int, int, int]] = None
    #: Whether K and V are pools of pages.
    paged: bool = False
    #: Positions of the first query and the first key: numbers of a launch, or True if they are the last of its own
    #: arrays, which the functions' indices are added to.
    origins: Union[None, bool, tuple[int, int]] = None
    #: Ranks that compute it together, each of which has a part of the rows.
    shared: Optional[Sharing] = None
    _known: dict[bool, Expressions] = field(default_factory=dict)
    #: Arrays: bias, mask, both segment ids, softcap, then those that the functions captured.
    arrays: list = field(default_factory=list)
    #: The function that was called, whose words errors of a launch have.
    words: Words = field(default_factory=lambda: DOOR.current)

    def __post_init__(self):
        given = (("score_mod", self.score_mod, "s_"), ("mask_mod", self.mask_mod, "m_"))
        self._functions = [Function(function, what, prefix) for what, function, prefix in given if function is not None]
        self.scalars = {name: value for function in self._functions for name, value in function.scalars.items()}

    def expressions(self, dense: bool) -> Expressions:
        """The expressions, traced with the first call."""
        if dense not in self._known:
            self._known[dense] = self._expressions(dense)
        return self._known[dense]

    def _expressions(self, dense: bool) -> Expressions:
        arrays = list(self.arrays[: self._own()])
        score, keep = Node("score"), []
        at = iter(range(len(arrays)))
        if self.has_bias:
            score = Node("({} + {})", (score, _given(next(at), arrays).text()))
        if self.has_mask:
            keep.append(_given(next(at), arrays).text())
        if self.has_segments:
            keep.append(Node("({} == {})", tuple(_given(next(at), arrays).text() for _ in range(2))))
        if self.softcap is not None:
            cap = Node("$softcap") if isinstance(self.softcap, float) else _given(next(at), arrays).text()
            score = Node("(tanh({0} / {1}) * {1})", (score, cap))
        moved = self._moved(arrays)
        for function in self._functions:
            found = function.written(dense, arrays, moved)
            if found.score is not None or found.mask is not None:
                before = score
                score = _inserted(found.score, before) if found.score is not None else before
                keep += [] if found.mask is None else [_inserted(found.mask, before)]
        self.arrays += arrays[len(self.arrays):]
        mask = functools.reduce(lambda a, b: Node("({} & {})", (a, b)), keep) if keep else None
        changed = None if score.form == "score" else score
        return Expressions(changed, mask, tensors_of([root for root in (changed, mask) if root is not None]))

    def _own(self) -> int:
        given_cap = self.softcap is not None and not isinstance(self.softcap, float)
        return self.has_bias + self.has_mask + 2 * self.has_segments + given_cap + 2 * (self.origins is True)

    def _moved(self, arrays: list) -> dict[str, Value]:
        """The positions of queries and keys, if they do not count from 0. What a launch is told is in the words `query`
        and `key` already, and not in what is computed ahead."""
        if self.origins is None:
            return {}
        if self.origins is True:
            numbers = [_given(self._own() - 2 + at, arrays) for at in range(2)]
            nodes = [
                Node("({} + {})", (Node(word, natural=True), origin.text()), natural=True)
                for word, origin in zip(("query", "key"), numbers)
            ]
        else:
            aval = jax.core.ShapedArray((), jnp.int32)
            numbers = [Value(aval, lambda ahead, n=n: n) for n in self.origins]  # type: ignore[union-attr]
            nodes = [Node(word, natural=True) for word in ("query", "key")]
        return {axis: _position(axis, number, node) for axis, number, node in zip("qk", numbers, nodes)}

    def sizes(self, arrays: dict[str, Any], batch: Optional[int] = None) -> Sizes:
        """The extents of a call, of all ranks together. `batch` is the batch that functions know, if `vmap` has made
        another one of it."""
        q, k, v = (arrays[name] for name in "qkv")
        if self.packed is not None:
            count, rows, keys = self.packed
            lie = (f"varlen tokens {x.shape[0]}" for x in (q, k))
            return Sizes(count, q.shape[1], k.shape[1], rows, keys, q.shape[2], v.shape[2], count, *lie)
        s, h = (1, 2) if self.layout == "bshd" else (2, 1)
        own = q.shape[0] if batch is None else batch
        heads, d, d_v = (q.shape[h], k.shape[h]), q.shape[3], v.shape[3]
        if self.paged:
            keys = arrays["page_table"].shape[1] * k.shape[s]
            lie = f"paged {k.shape[0]} x {k.shape[s]} {'nhd' if self.layout == 'bshd' else 'hnd'}"
            return Sizes(q.shape[0], *heads, q.shape[s], keys, d, d_v, own, self.layout, lie)
        ranks = self.shared.ranks if self.shared else 1
        return Sizes(q.shape[0], *heads, ranks * q.shape[s], ranks * k.shape[s], d, d_v, own, self.layout, self.layout)

    def tensors(
        self, dense: bool, captured: list, sizes: Sizes, dtype: Any = None, grads: frozenset = frozenset(),
        place: Any = None,
    ) -> list:
        """The tensors of the expressions; of ranks, the parts of the one that is at `place`. Those with a gradient have
        the element type of Q and an element for each query and key: cuDNN writes no other gradients."""
        some = None
        if self.shared is not None:
            some = self.shared.indices(sizes.h, sizes.q, place[0])
            part = self.shared.part("scores", (1, sizes.h, sizes.q, 1))
            sizes = replace(sizes, h=part[1], q=part[2])

        def wide(tensor):
            return jnp.broadcast_to(tensor, (*tensor.shape[:2], sizes.q, sizes.k)).astype(dtype)

        found = compute(self.expressions(dense).tensors, captured, sizes.axes(), some)
        return [wide(tensor) if number in grads else tensor for number, tensor in enumerate(found)]

    def text(self, sizes: Sizes, dtype: Any, tensors: list, dense: bool, grads: frozenset,
             moved: frozenset = frozenset()) -> str:
        """The description for shapes. `grads` are the tensors, by number, whose gradient is wanted; `moved` the
        indices that count from a number in a tensor on."""
        found, word = self.expressions(dense), dtype_word(dtype)
        b = sizes.b
        lines = [
            f"q: {word} [{b},{sizes.h},{sizes.q},{sizes.d}] {sizes.rows}",
            f"k: {word} [{b},{sizes.heads_kv},{sizes.k},{sizes.d}] {sizes.keys}",
            f"v: {word} [{b},{sizes.heads_kv},{sizes.k},{sizes.d_v}] {sizes.keys}",
            f"o: {word} [{b},{sizes.h},{sizes.q},{sizes.d_v}] {sizes.rows}",
            f"mask: {self.mask}",
        ]
        lines += [f"dropout: philox {self.dropout!r}"] if self.dropout else []
        lines += ["lengths: per-sequence"] if self.lengths else []
        lines += ["sink: yes"] if self.sinks else []
        lines += ["origins: any"] if isinstance(self.origins, tuple) else []
        for name, root in (("score_mod", found.score), ("mask_mod", found.mask)):
            if root is not None:
                lines.append(f"{name}: {{ {self._expression(root, sizes, found.tensors, tensors, grads, moved)} }}")
        return "\n".join(lines) + "\n"

    def _expression(self, root: Node, sizes: Sizes, values: list, tensors: list, grads: frozenset,
                    moved: frozenset) -> str:
        heads, numbers = [], {id(value): number for number, value in enumerate(values)}
        head, batch = ("(head + @first_h)" if "h" in moved else "head"), "batch"
        if "b" in moved:
            batch = f"((batch + @first_b) % {sizes.batch})"
        elif sizes.b != sizes.batch:
            batch = f"(batch % {sizes.batch})"

        def leaf(node: Node) -> str:
            return f"@t{numbers[id(node.tensor)]}"

        body = printed(root, leaf).replace("<batch>", batch).replace("<head>", head)
        heads += [f"tensor @first_{axis}: i32[1,1,1,1]; " for axis in sorted(moved) if f"@first_{axis}" in body]
        for number in sorted(numbers[id(value)] for value in tensors_of([root])):
            tensor, grad = tensors[number], " grad" if number in grads else ""
            dims = ", ".join(map(str, self._whole(values[number], number in grads, tensor.shape, sizes)))
            heads.append(f"tensor @t{number}: {dtype_word(tensor.dtype)}[{dims}]{grad}; ")
        names = [name for name in ("softcap", *self.scalars) if f"${name}" in _words(body)]
        heads += [f"scalar ${name}: float; " for name in names]
        return "".join(heads) + body

    def _whole(self, value: Value, wide: bool, shape: tuple, sizes: Sizes) -> tuple:
        """The extents of a tensor of all ranks together, from those of a rank's part."""
        if self.shared is None:
            return shape
        h = sizes.h if "h" in value.axes else 1
        q = sizes.q if wide or "q" in value.axes else 1
        return (shape[0], h, q, shape[3])

    def values(self, scale: float) -> dict[str, float]:
        """The values of the scalars by name."""
        softcap = {"softcap": self.softcap} if isinstance(self.softcap, float) else {}
        begin = dict(zip(("query_origin", "key_origin"), self.origins)) if isinstance(self.origins, tuple) else {}
        return {"scale": scale, **softcap, **begin, **self.scalars}


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c in "_$" else " " for c in text).split())


def _position(axis: str, origin: Value, node: Node) -> Value:
    """The position of a query or key."""
    aval = jax.core.ShapedArray((), jnp.int32)
    return Value(aval, lambda ahead: ahead.indices[axis] + ahead[origin], node, frozenset(axis))


def _given(number: int, arrays: list) -> Value:
    """The tensor of an array that is given over (batch, head, query, key), with extents of 1 where it is the same."""
    array = arrays[number]
    axes = frozenset(axis for axis, extent in zip(AXES, array.shape) if extent != 1)

    def run(ahead):
        found = ahead.captured[number]
        for axis, extent in zip(AXES, array.shape):
            found = found[ahead.indices[axis]] if extent != 1 else found[0]
        return found

    aval = jax.core.ShapedArray((), jnp.result_type(array))
    return Value(aval, run, axes=axes, captured=frozenset([number]), whole=number)


def _inserted(root: Node, score: Node) -> Node:
    """An expression of the score, of another expression in its place."""
    known: dict[int, Node] = {}

    def of(node: Node) -> Node:
        if node.form == "score" and not node.args:
            return score
        if id(node) not in known:
            args = tuple(of(arg) for arg in node.args)
            same = all(a is b for a, b in zip(args, node.args))
            known[id(node)] = node if same else Node(node.form, args, node.tensor, node.constant, node.natural)
        return known[id(node)]

    return of(root)


