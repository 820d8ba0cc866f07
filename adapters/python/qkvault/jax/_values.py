"""What a traced function computes: values that become text of the expression language, or arrays computed ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp
import numpy as np

#: The indices that a function may read, in the order of a tensor's dims.
AXES = "bhqk"
#: Deepest nesting of an expression in the text, beyond which a part gets a name.
DEEP = 24


@dataclass(eq=False)
class Node:
    """A part of an expression: a format and its arguments. A leaf of a tensor has the value that is computed ahead."""

    form: str
    args: tuple["Node", ...] = ()
    tensor: Optional["Value"] = None
    #: A constant's value.
    constant: Any = None
    #: Whether it is an integer that is never negative.
    natural: bool = False


@dataclass(eq=False)
class Value:
    """One value of a traced function."""

    aval: Any
    #: Computes it from indices and captured arrays; None if it depends on the score.
    run: Optional[Callable[["Ahead"], Any]]
    #: Its text; None if there is none (yet).
    node: Optional[Node] = None
    #: The indices that it depends on.
    axes: frozenset = frozenset()
    #: The captured arrays that it depends on, by number.
    captured: frozenset = frozenset()
    #: The number of the captured array that its tensor is, as it is.
    whole: Optional[int] = None
    #: The score and the tensor whose sum it is.
    added: Optional[tuple["Value", "Value"]] = None

    @property
    def of_score(self) -> bool:
        return self.run is None

    def text(self) -> Node:
        """Its text; a tensor that is computed ahead if it has no other."""
        if self.node is None:
            truth = self.aval.dtype == np.bool_
            self.node = Node("({} != 0)", (Node("@", tensor=self),)) if truth else Node("@", tensor=self)
        return self.node


@dataclass
class Ahead:
    """One computation ahead: values of the indices and the captured arrays."""

    indices: dict[str, Any]
    captured: list
    memo: dict[int, Any] = field(default_factory=dict)

    def __getitem__(self, value: Value) -> Any:
        at = id(value)
        if at not in self.memo:
            self.memo[at] = value.run(self)
        return self.memo[at]


def tensor_dtype(value: Value) -> np.dtype:
    """The element type of the tensor that a value becomes."""
    return np.dtype(np.float32) if jnp.issubdtype(value.aval.dtype, jnp.floating) else np.dtype(np.int32)


def tensor_shape(value: Value, sizes: dict[str, int]) -> tuple[int, ...]:
    """The extents of the tensor that a value becomes."""
    return tuple(sizes[axis] if axis in value.axes else 1 for axis in AXES)


def compute(values: list[Value], captured: list, sizes: dict[str, int], some: Optional[dict] = None) -> list:
    """The tensors that values become, for all indices that each depends on; on axes in `some`, for those alone, which
    are as many as `sizes` say."""
    tensors = []
    for value in values:
        if value.whole is not None:
            tensors.append(captured[value.whole].astype(tensor_dtype(value)))
            continue
        axes = [axis for axis in AXES if axis in value.axes]

        def one(*indices, value=value, axes=axes):
            return Ahead(dict(zip(axes, indices)), captured)[value]

        for at in reversed(range(len(axes))):
            one = jax.vmap(one, tuple(0 if n == at else None for n in range(len(axes))))
        every = {axis: jnp.arange(sizes[axis], dtype=jnp.int32) for axis in axes}
        found = one(*({**every, **(some or {})}[axis] for axis in axes))
        tensors.append(jnp.reshape(found, tensor_shape(value, sizes)).astype(tensor_dtype(value)))
    return tensors


def printed(root: Node, leaf: Callable[[Node], str]) -> str:
    """The text of an expression; parts that are used twice, and deep ones, get names. `leaf` tells names of tensors."""
    uses: dict[int, int] = {}
    order: list[Node] = []

    def count(node: Node) -> None:
        uses[id(node)] = uses.get(id(node), 0) + 1
        if uses[id(node)] == 1:
            for arg in node.args:
                count(arg)
            order.append(node)

    count(root)
    lets, texts, depths = [], {}, {}
    for node in order:
        if node.tensor is not None:
            texts[id(node)], depths[id(node)] = leaf(node), 0
            continue
        text = node.form.format(*(texts[id(arg)] for arg in node.args))
        depth = 1 + max((depths[id(arg)] for arg in node.args), default=0)
        if node.args and node is not root and (uses[id(node)] > 1 or depth > DEEP):
            name = f"x{len(lets)}"
            lets.append(f"let {name} = {text}; ")
            text, depth = name, 0
        texts[id(node)], depths[id(node)] = text, depth
    return "".join(lets) + texts[id(root)]


def tensors_of(roots: list[Node]) -> list[Value]:
    """The tensors that expressions read, each once, in order."""
    found: dict[int, Value] = {}
    seen: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.tensor is not None:
            found.setdefault(id(node.tensor), node.tensor)
        stack.extend(reversed(node.args))
    return list(found.values())
