"""Functions of JAX become expressions: traced with `jax.make_jaxpr` on numbers, and written primitive by primitive.

What depends on indices and captured arrays alone and has no word in the language is computed ahead as a tensor. What
depends on the score and has none is an error that names the primitive and the line.
"""

from __future__ import annotations

import functools
import inspect
import os
from dataclasses import dataclass
from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import Error
from ._numbers import SPARE, traced
from ._primitives import FUNCTIONS, NoWord, computes, constant, written
from ._shards import varying
from ._values import AXES, Node, Value

_NAMES = {"b": "<batch>", "h": "<head>", "q": "query", "k": "key"}
_JAX = os.path.dirname(jax.__file__)
_OWN = os.path.dirname(__file__)


class TraceError(Error, ValueError):
    """A score or mask modification does something that the expression language has no word for."""


@dataclass
class Written:
    """A modification as expressions."""

    #: The new score; None if it does not change.
    score: Optional[Node]
    #: Which keys stay; None for all.
    mask: Optional[Node]


class Function:
    """`score_mod(score, b, h, q_idx, kv_idx)` or `mask_mod(b, h, q_idx, kv_idx)`, traced once."""

    def __init__(self, function: Callable, what: str, prefix: str):
        self.what = what
        _takes(function, what)
        number, index = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
        try:
            found = traced(function, [*([number] if what == "score_mod" else []), *[index] * 4])
        except jax.errors.TracerArrayConversionError as error:
            first = str(error).strip().splitlines()[0]
            text = f"{what} uses an index or the score with NumPy; make its arrays with jnp.asarray: {first}"
            raise TraceError(text) from None
        except jax.errors.ConcretizationTypeError as error:
            raise TraceError(_conditional(what, error)) from None
        self.jaxpr = found.jaxpr
        #: Floats that the function read: their names in the text and values, by their place among its parameters.
        self.numbers = {place: (f"{prefix}{name}", value) for place, (name, value) in found.numbers.items()}
        self.scalars = dict(self.numbers.values())

    def written(self, dense: bool, captured: list, moved: dict[str, Value]) -> Written:
        """It as expressions. Arrays that it captured are added to `captured`; `moved` are indices that do not count
        from 0.

        With `dense`, whatever depends on captured arrays and not on the score becomes one tensor as late as possible:
        a tensor is then a term of the score, of which cuDNN computes gradients.
        """
        what = self.what
        indices = [
            moved[axis] if axis in moved else
            Value(_aval(jnp.int32), lambda ahead, axis=axis: ahead.indices[axis], Node(_NAMES[axis], natural=True),
                  frozenset(axis))
            for axis in AXES
        ]
        numbers = [self._number(place) for place in range(sum(SPARE))]
        score = [Value(_aval(jnp.float32), None, Node("score"))] if what == "score_mod" else []
        writer = _Writer(what, dense, captured)
        outputs = writer.run(self.jaxpr.jaxpr, self.jaxpr.consts, numbers + score + indices)
        if len(outputs) != 1 or outputs[0].aval.shape != ():
            given = ", ".join(output.aval.str_short() for output in outputs) or "nothing"
            raise TraceError(f"{what} gives {given}; it must give one number")
        (result,) = outputs
        if what == "mask_mod":
            if result.aval.dtype != np.bool_:
                text = f"mask_mod gives {result.aval.str_short()}; it must give a truth value: whether a key stays"
                raise TraceError(text)
            return Written(None, result.text())
        if not jnp.issubdtype(result.aval.dtype, jnp.floating):
            raise TraceError(f"score_mod gives {result.aval.str_short()}; it must give a float")
        changed, mask = _split(result.text())
        _finite(changed, what)
        return Written(None if changed.form == "score" else changed, mask)

    def _number(self, place: int) -> Value:
        """A float that the function read: of what is computed ahead it is part, and no text depends on its value."""
        name, value = self.numbers.get(place, ("", 0.0))
        return Value(_aval(jnp.float32), lambda ahead: np.float32(value), Node(f"${name}"))


def _aval(dtype: Any) -> Any:
    return jax.core.ShapedArray((), jnp.dtype(dtype))


def _takes(function: Callable, what: str) -> None:
    """Raises if a function does not take the arguments of a modification."""
    names = ["score"] * (what == "score_mod") + ["b", "h", "q_idx", "kv_idx"]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Of a function of C.
        return
    try:
        signature.bind(*names)
    except TypeError:
        while isinstance(function, functools.partial):
            function = function.func
        code = getattr(function, "__code__", None)
        place = f" (line {code.co_firstlineno} of {code.co_filename})" if code is not None else ""
        raise TraceError(f"{what} takes {signature}, and is given ({', '.join(names)}){place}") from None


def _conditional(what: str, error: Exception) -> str:
    first = str(error).strip().splitlines()[0]
    return f"{what} decides in Python by a number that is not known yet: {first} Write it with jnp.where"


def _split(root: Node) -> tuple[Node, Optional[Node]]:
    """A score whose infinities at the root are a mask, and that mask."""
    mask = None
    while root.form.startswith("select(") and len(root.args) == 3:
        condition, chosen, other = root.args
        if other.constant == float("-inf"):
            keep, root = condition, chosen
        elif chosen.constant == float("-inf"):
            keep, root = Node("(!{})", (condition,)), other
        else:
            break
        mask = keep if mask is None else Node("({} & {})", (mask, keep))
    return root, mask


def _finite(root: Node, what: str) -> None:
    seen, stack = set(), [root]
    while stack:
        node = stack.pop()
        if node.form == "<infinity>" or node.form == "(<infinity>)":
            raise TraceError(f"{what} has an infinity inside; write jnp.where(keep, score, -jnp.inf), or use mask_mod")
        if id(node) not in seen:
            seen.add(id(node))
            stack.extend(node.args)


class _Writer:
    """Walks through a jaxpr."""

    def __init__(self, what: str, dense: bool, captured: list):
        self.what, self.dense, self.captured = what, dense, captured
        #: The line of the function that is walked through: JAX traces its own functions once and keeps no line of them.
        self.place = ""
        #: Whether that function is JAX's own, whose line is that of the first program that called it.
        self.of_jax = False

    def run(self, jaxpr: Any, consts: list, args: list[Value]) -> list[Value]:
        known = dict(zip(jaxpr.constvars, map(self.const, consts)))
        known.update(zip(jaxpr.invars, args))

        def read(atom: Any) -> Value:
            return self.const(atom.val, atom.aval) if hasattr(atom, "val") else known[atom]

        for eqn in jaxpr.eqns:
            known.update(zip(eqn.outvars, self.equation(eqn, [read(atom) for atom in eqn.invars])))
        return [read(atom) for atom in jaxpr.outvars]

    def const(self, value: Any, aval: Any = None) -> Value:
        aval = aval if aval is not None else jax.core.ShapedArray(np.shape(value), jnp.result_type(value))
        if aval.shape == () and not isinstance(value, jax.Array):
            try:
                return Value(aval, lambda ahead: value, constant(value))
            except NoWord:
                return Value(aval, lambda ahead: value)
        for number, other in enumerate(self.captured):
            if other is value:
                break
        else:
            number = len(self.captured)
            self.captured.append(value)
        return Value(aval, lambda ahead: ahead.captured[number], captured=frozenset([number]))

    def equation(self, eqn: Any, args: list[Value]) -> list[Value]:
        name, params = eqn.primitive.name, eqn.params
        if name in ("pvary", "pcast"):
            # It says how arrays lie in a shard_map; what is computed ahead says that anew.
            return args
        self.place = self.place if self.of_jax else _place(eqn) or self.place
        function = FUNCTIONS.get(params.get("name", "")) if name in ("pjit", "jit") else None
        if function is not None and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.integer):
            try:
                computes(params["name"], eqn.outvars[0].aval.dtype)
                return [self.result(eqn, args, written(params["name"], args, params, FUNCTIONS))]
            except NoWord:
                pass
        inner = params.get("jaxpr", params.get("call_jaxpr", params.get("fun_jaxpr")))
        if inner is not None and name not in ("scan", "while", "cond"):
            closed = inner if hasattr(inner, "consts") else jax.extend.core.ClosedJaxpr(inner, ())
            outside, self.of_jax = self.of_jax, self.of_jax or _of_jax(closed.jaxpr)
            try:
                return self.run(closed.jaxpr, closed.consts, args[len(args) - len(closed.jaxpr.invars):])
            finally:
                self.of_jax = outside
        if name == "sub" and self.dense and args[0].of_score and args[1].captured:
            # cuDNN computes gradients of what is added.
            name, args = "add", [args[0], _negative(args[1])]
        if name in ("add", "add_any") and self.dense and len(args) == 2:
            score, term = args if args[0].of_score else (args[1], args[0])
            if score.of_score and term.captured and not term.of_score:
                return [_added(score, term)]
        node, why = None, "it gives several values"
        if len(eqn.outvars) == 1 and self.symbolic(args):
            try:
                if name != "convert_element_type":
                    computes(name, eqn.outvars[0].aval.dtype)
                node = written(name, args, params)
            except NoWord as error:
                why = str(error)
        if node is not None:
            return [self.result(eqn, args, node)]
        if any(arg.of_score for arg in args):
            raise TraceError(f"{self.what}: {name} has no equivalent{self.place}: {why}")
        return self.ahead(eqn, args)

    def symbolic(self, args: list[Value]) -> bool:
        """Whether an operation is written, in place of computed ahead."""
        if any(arg.of_score for arg in args):
            return True
        all_axes = frozenset().union(*(arg.axes for arg in args))
        captured = [arg for arg in args if arg.captured]
        return not captured or not (self.dense or any(arg.axes == all_axes for arg in captured))

    def result(self, eqn: Any, args: list[Value], node: Node) -> Value:
        if any(arg.of_score for arg in args):
            return Value(eqn.outvars[0].aval, None, node)
        (value,) = self.ahead(eqn, args)
        value.node = node
        return value

    def ahead(self, eqn: Any, args: list[Value]) -> list[Value]:
        bind, several = _binding(eqn), eqn.primitive.multiple_results

        def run(ahead):
            found = bind(*(ahead[arg] for arg in args))
            return found if several else [found]

        axes = frozenset().union(*(arg.axes for arg in args))
        captured = frozenset().union(*(arg.captured for arg in args))
        whole = Value(None, run, axes=axes, captured=captured)
        return [
            Value(var.aval, lambda ahead, at=at: ahead[whole][at], axes=axes, captured=captured)
            for at, var in enumerate(eqn.outvars)
        ]


def _added(score: Value, term: Value) -> Value:
    """A score and a tensor. Tensors that are added one after the other become one: cuDNN has one gradient of these."""
    if score.added is not None:
        score, first = score.added
        second, axes, captured = term, first.axes | term.axes, first.captured | term.captured
        term = Value(second.aval, lambda ahead: ahead[first] + ahead[second], axes=axes, captured=captured)
    found = Value(score.aval, None, Node("({} + {})", (score.text(), term.text())))
    found.added = (score, term)
    return found


def _negative(value: Value) -> Value:
    return Value(value.aval, lambda ahead: -ahead[value], axes=value.axes, captured=value.captured)


def _binding(eqn: Any) -> Callable:
    """What binds the primitive of an equation. Versions of JAX differ in what `get_bind_params` gives."""

    def bind(*args):
        given = eqn.primitive.get_bind_params(eqn.params)
        functions, params = given if isinstance(given, tuple) else ((), given)
        return eqn.primitive.bind(*functions, *varying(args), **params)

    return bind


def _of_jax(jaxpr: Any) -> bool:
    """Whether a function of JAX itself was traced."""
    told = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
    return f" at {_JAX}" in str(told)


def _place(eqn: Any) -> str:
    """The line of the user's code that an operation came from."""
    trace = getattr(eqn.source_info, "traceback", None)
    for frame in trace.frames if trace is not None else ():
        if not frame.file_name.startswith((_JAX, _OWN)) and "<" not in frame.file_name:
            return f" (line {frame.line_num} of {frame.file_name})"
    return ""
