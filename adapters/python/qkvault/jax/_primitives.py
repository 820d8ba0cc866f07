"""JAX's primitives in the expression language of scores."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import jax.numpy as jnp
import numpy as np

from ._values import Node, Value


class NoWord(Exception):
    """The expression language has no word for it; the text says why."""


def constant(value: Any) -> Node:
    """A constant. Infinities have no text: they are masks at the root of an expression, and errors elsewhere."""
    kind = np.asarray(value).dtype
    if kind == np.bool_:
        return Node("true" if value else "false", constant=bool(value))
    if jnp.issubdtype(kind, jnp.floating):
        number = float(np.float32(value))
        text = repr(number) if math.isfinite(number) else "<infinity>"
        return Node(f"({text})" if number < 0 else text, constant=number)
    number = int(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise NoWord(f"the integer {number} has more than 32 bits")
    return Node(f"({number})" if number < 0 else str(number), constant=number, natural=number >= 0)


def _is_float(value: Value) -> bool:
    return jnp.issubdtype(value.aval.dtype, jnp.floating)


def _is_bool(value: Value) -> bool:
    return value.aval.dtype == np.bool_


def _float(form: str) -> Callable[..., Node]:
    def write(args: list[Value], params: dict) -> Node:
        if not all(map(_is_float, args)):
            raise NoWord("it is for floats here")
        return Node(form, tuple(arg.text() for arg in args))

    return write


def _number(form: str, natural: bool = False) -> Callable[..., Node]:
    def write(args: list[Value], params: dict) -> Node:
        if any(map(_is_bool, args)):
            raise NoWord("it is for numbers here")
        texts = tuple(arg.text() for arg in args)
        return Node(form, texts, natural=natural and all(text.natural for text in texts))

    return write


def _truth(form: str) -> Callable[..., Node]:
    def write(args: list[Value], params: dict) -> Node:
        if not all(map(_is_bool, args)):
            raise NoWord("it is for truth values here, not for bits")
        return Node(form, tuple(arg.text() for arg in args))

    return write


def _div(args: list[Value], params: dict) -> Node:
    a, b = (arg.text() for arg in args)
    if _is_float(args[0]):
        return Node("({} / {})", (a, b))
    if not a.natural or not isinstance(b.constant, int) or b.constant <= 0:
        raise NoWord("integers are divided by positive constants, and indices alone")
    return Node("({} // {})", (a, b), natural=True)


def _rem(args: list[Value], params: dict) -> Node:
    a, b = (arg.text() for arg in args)
    if isinstance(b.constant, int) and b.constant == 0:
        raise NoWord("the divisor is 0")
    if b.constant is None and not _is_float(args[1]):
        # XLA's remainder by 0 is the dividend, and that of the language is 0.
        return Node("select({1} == 0, {0}, {0} % {1})", (a, b), natural=a.natural)
    return Node("({} % {})", (a, b), natural=a.natural)


def _select(args: list[Value], params: dict) -> Node:
    if len(args) != 3 or not _is_bool(args[0]):
        raise NoWord("it selects one of two by a truth value")
    condition, other, chosen = (arg.text() for arg in args)
    if _is_bool(args[1]):
        return Node("(({0} & {1}) | (!{0} & {2}))", (condition, chosen, other))
    return Node("select({}, {}, {})", (condition, chosen, other), natural=chosen.natural and other.natural)


def _convert(args: list[Value], params: dict) -> Node:
    (value,), wanted = args, np.dtype(params["new_dtype"])
    text = value.text()
    if jnp.issubdtype(wanted, jnp.floating):
        if _is_bool(value):
            return Node("select({}, 1.0, 0.0)", (text,))
        if wanted.itemsize < 4 and not value.of_score and value.aval.dtype != wanted:
            raise NoWord(f"expressions compute in float32, and round nothing to {wanted}")
        if not _is_float(value):
            return Node("float({})", (text,)) if text.constant is None else constant(float(text.constant))
        if value.of_score and wanted.itemsize < 4:
            raise NoWord(f"scores stay float32, and are not rounded to {wanted}")
        return text
    if wanted == np.bool_:
        return text if _is_bool(value) else Node("({} != 0.0)" if _is_float(value) else "({} != 0)", (text,))
    if _is_float(value):
        raise NoWord("a float does not become an integer")
    if _is_bool(value):
        return Node("select({}, 1, 0)", (text,), natural=True)
    given = value.aval.dtype
    if wanted != np.int32 and not np.can_cast(given, wanted):
        raise NoWord(f"expressions compute in int32, and wrap nothing to {wanted}")
    return text


def _integer_pow(args: list[Value], params: dict) -> Node:
    power, text = params["y"], args[0].text()
    if not 1 <= abs(power) <= 8 or (power < 0 and not _is_float(args[0])):
        raise NoWord(f"the power {power} is not between 1 and 8")
    found = text
    for _ in range(abs(power) - 1):
        found = Node("({} * {})", (found, text))
    return found if power > 0 else Node("reciprocal({})", (found,))


def _pow(args: list[Value], params: dict) -> Node:
    a, b = (arg.text() for arg in args)
    return Node("pow({}, {})", (a, b if _is_float(args[1]) else Node("float({})", (b,))))


def _sign(args: list[Value], params: dict) -> Node:
    text = args[0].text()
    form = "select({0} > 0.0, 1.0, select({0} < 0.0, -1.0, 0.0))"
    return Node(form if _is_float(args[0]) else form.replace(".0", ""), (text,))


#: Signs of operations that are NaN for some numbers, and of those that are not by a number that all scores share.
_NOT_A_NUMBER = ("log(", "sqrt(", "pow(", " / ", " % ")
_BY_SHARED = (" / ", " % ")


def _makes_nan(root: Node) -> bool:
    """Whether a float may be NaN although what it is made of is not: JAX's maximum is NaN then, and that of the language
    is the other operand."""
    seen, stack = set(), [root]
    while stack:
        node = stack.pop()
        second = node.args[1] if len(node.args) > 1 else None
        shared = second is not None and (second.constant is not None or second.form.startswith("$"))
        if any(sign in node.form and not (shared and sign in _BY_SHARED) for sign in _NOT_A_NUMBER):
            return True
        if id(node) not in seen:
            seen.add(id(node))
            stack.extend(node.args)
    return False


def _extreme(name: str) -> Callable[..., Node]:
    plain = _number(f"{name}({{}}, {{}})", True)

    def write(args: list[Value], params: dict) -> Node:
        node = plain(args, params)
        if _is_float(args[0]) and any(map(_makes_nan, node.args)):
            return Node(f"select(({{0}} == {{0}}) & ({{1}} == {{1}}), {name}({{0}}, {{1}}), {{0}} + {{1}})", node.args)
        return node

    return write


def _clamp(args: list[Value], params: dict) -> Node:
    low, x, high = (arg.text() for arg in args)
    if _makes_nan(x):
        return Node("select({0} == {0}, min(max({0}, {1}), {2}), {0})", (x, low, high))
    return Node("min(max({}, {}), {})", (x, low, high), natural=x.natural or low.natural)


def _same(args: list[Value], params: dict) -> Node:
    return args[0].text()


def _calls(*names: str) -> dict[str, Callable[..., Node]]:
    return {name: _float(f"{name}({{}})") for name in names}


#: The remainder that is never negative, of any integer and a positive constant.
_MODULO = "((({0} % {1}) + {1}) % {1})"


_XOR = "(({0} & !{1}) | (!{0} & {1}))"


def _equal(form: str, of_truths: str) -> Callable[..., Node]:
    plain = _number(form)

    def write(args: list[Value], params: dict) -> Node:
        if all(map(_is_bool, args)):
            return Node(of_truths, tuple(arg.text() for arg in args))
        node = plain(args, params)
        # Whether a remainder is 0 does not depend on its sign.
        both = [
            Node("({} % {})", arg.args) if arg.form == _MODULO and other.constant == 0 else arg
            for arg, other in zip(node.args, reversed(node.args))
        ]
        return Node(form, tuple(both))

    return write


#: What writes each primitive.
WRITERS: dict[str, Callable[..., Node]] = {
    **_calls("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "erf", "floor", "ceil"),
    "logistic": _float("sigmoid({})"), "log1p": _float("log(1.0 + {})"), "expm1": _float("(exp({}) - 1.0)"),
    "exp2": _float("exp({} * 0.6931471805599453)"), "erfc": _float("(1.0 - erf({}))"), "atan2": _float("atan2({}, {})"),
    "neg": _number("(-{})"), "abs": _number("abs({})"), "add": _number("({} + {})", True),
    "add_any": _number("({} + {})", True), "sub": _number("({} - {})"), "mul": _number("({} * {})", True),
    "max": _extreme("max"), "min": _extreme("min"), "div": _div, "rem": _rem, "pow": _pow,
    "integer_pow": _integer_pow, "sign": _sign, "clamp": _clamp, "select_n": _select, "convert_element_type": _convert,
    "eq": _equal("({} == {})", "(({0} & {1}) | (!{0} & !{1}))"), "ne": _equal("({} != {})", _XOR), "lt": _number("({} < {})"), "le": _number("({} <= {})"),
    "gt": _number("({} > {})"), "ge": _number("({} >= {})"), "and": _truth("({} & {})"), "or": _truth("({} | {})"),
    "not": _truth("(!{})"), "xor": _truth(_XOR), "square": _number("({0} * {0})"),
    **{name: _same for name in ("copy", "copy_p", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "pvary")},
}


def _remainder(args: list[Value], params: dict) -> Node:
    a, b = (arg.text() for arg in args)
    if a.natural and b.natural:
        return _rem(args, params)
    if not isinstance(b.constant, int) or isinstance(b.constant, bool) or b.constant <= 0:
        raise NoWord("it is for positive constants, and for numbers that are never negative")
    return Node(_MODULO, (a, b), natural=True)


#: What writes functions of jax.numpy whose own primitives are many.
FUNCTIONS: dict[str, Callable[..., Node]] = {"floor_divide": _div, "remainder": _remainder}


#: Types whose numbers are those of int32.
_WHOLE = tuple(np.dtype(kind) for kind in (np.int8, np.int16, np.int32, np.uint8, np.uint16))


def computes(name: str, wanted: np.dtype) -> None:
    """Raises `NoWord` if the result of a primitive has a type that expressions do not compute in: they compute in
    float32 and int32, which neither round nor wrap as others do."""
    if name in _EXACT:
        return
    if jnp.issubdtype(wanted, jnp.integer) and wanted != np.int32:
        raise NoWord(f"expressions compute in int32, and wrap nothing to {wanted}")
    if jnp.issubdtype(wanted, jnp.floating) and np.dtype(wanted).itemsize < 4:
        raise NoWord(f"expressions compute in float32, and round nothing to {wanted}")


#: What gives one of its operands.
_EXACT = ("copy", "copy_p", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "pvary", "select_n", "max", "min")


def written(name: str, args: list[Value], params: dict, table: Optional[dict] = None) -> Node:
    """A primitive in the expression language."""
    writer = (WRITERS if table is None else table).get(name)
    if writer is None:
        raise NoWord("the expression language has no such operation")
    for arg in args:
        if jnp.issubdtype(arg.aval.dtype, jnp.integer) and arg.aval.dtype not in _WHOLE:
            raise NoWord(f"integers of expressions have 32 bits and a sign, and these are {arg.aval.dtype}")
    if any(arg.aval.shape for arg in args):
        raise NoWord("it takes an array; scores are computed one by one")
    return writer(args, params)
