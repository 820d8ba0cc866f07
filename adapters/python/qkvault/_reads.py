"""What a function read: values with the paths to them, and the code that reads them again."""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass
from typing import Any, Callable


class Number(float):
    """A float that was read. What Python computes with it, or decides by it, is not in a trace: it is `used` then."""

    __slots__ = ("used",)

    def __new__(cls, value: float) -> Number:
        made = float.__new__(cls, value)
        made.used = False
        return made

    def __reduce__(self):
        return float, (float(self),)


def _using(name: str) -> Callable:
    own = getattr(float, name)

    def method(self, *others):
        # Tensors and tracers do the operation themselves, with the number as it is.
        if others and not isinstance(others[0], (int, float, complex)):
            return NotImplemented
        self.used = True
        return own(float(self), *(float(other) if isinstance(other, Number) else other for other in others))

    method.__name__ = name
    return method


for _name in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow neg pos abs lt le "
    "gt ge eq ne bool int trunc round floor ceil"
).split():
    if hasattr(float, f"__{_name}__"):
        setattr(Number, f"__{_name}__", _using(f"__{_name}__"))
for _name in ("is_integer", "as_integer_ratio", "hex", "conjugate"):
    setattr(Number, _name, _using(_name))


def _hash(self):
    self.used = True
    return float.__hash__(float(self))


Number.__hash__ = _hash


@dataclass
class Read:
    """Something that was read: where, how it is compared, and what it was."""

    path: tuple
    kind: str
    value: Any


def told(path: tuple) -> str:
    """A path in words of Python, for errors."""
    text = ""
    for kind, name in path:
        if name in ("cell_contents", "__closure__", "__func__", "__globals__"):
            continue
        if kind == "attr":
            text += f".{name}"
        else:
            text += f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r}]"
    return text.lstrip(".") or "the function"


def checker(reads: list[Read], bound: frozenset, known: Callable) -> Callable:
    """Code that reads all paths once and compares."""
    spaces: dict[str, Any] = {"known": known, "F": types.FunctionType, "M": types.MethodType, "dict": dict}
    lines: list[str] = []
    names: dict[tuple, str] = {(): "f"}
    tensors, numbers = [], []

    def constant(value: Any) -> str:
        name = f"c{len(spaces)}"
        spaces[name] = value
        return name

    def place(path: tuple) -> str:
        if path not in names:
            kind, name = path[-1]
            outer = place(path[:-1])
            names[path] = f"v{len(names)}"
            if kind == "attr":
                text = f"{outer}.{name}" if name.isidentifier() else f"getattr({outer}, {name!r})"
            else:
                text = f"{outer}[{name!r}]" if isinstance(name, (int, str)) else f"{outer}[{constant(name)}]"
            lines.append(f"{names[path]} = {text}")
        return names[path]

    def must(text: str) -> None:
        lines.append(f"if not ({text}): return None")

    for at, read in enumerate(reads):
        # Each read is compared before what lies behind it is read.
        x, value = place(read.path), read.value
        if read.kind == "tensor":
            must(f"known({x}) == {constant(value)}")
            tensors.append(x)
        elif read.kind == "float":
            must(f"type({x}) is float")
            if at in bound:
                numbers.append(x)
            else:
                must(f"{x} == {constant(value)}" if value == value else f"{x} != {x}")
        elif read.kind == "value":
            if value is None or isinstance(value, (bool, enum.Enum)) or value is ...:
                must(f"{x} is {constant(value)}")
            else:
                must(f"type({x}) is {constant(type(value))} and {x} == {constant(value)}")
        elif read.kind == "code":
            must(f"type({x}) is F and {x}.__code__ is {constant(value)}")
        elif read.kind == "method":
            must(f"type({x}) is M")
        elif read.kind == "partial":
            must(f"(len({x}.args), tuple({x}.keywords)) == {constant(value)}")
        elif read.kind == "length":
            must(f"type({x}) is {constant(value[0])} and len({x}) == {value[1]}")
        elif read.kind == "type":
            must(f"type({x}) is {constant(value)}")
        elif read.kind == "keys":
            must(f"tuple({x}) == {constant(value)}")
        else:
            must(f"{x} is {constant(value)}")
    found = [f"({''.join(f'{x}, ' for x in names)})" for names in (tensors, numbers)]
    body = "\n        ".join([*lines, f"return {found[0]}, {found[1]}"])
    text = f"def check(f):\n    try:\n        {body}\n    except Exception:\n        return None\n"
    exec(compile(text, "<qkvault reads>", "exec"), spaces)
    return spaces["check"]
