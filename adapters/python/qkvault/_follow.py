"""What a function reads from outside while it runs, and how to read the same again.

A modification is traced once, and what it reads may change before the next call: `self.docs = ...`, an entry of a
dict, a float, a fresh closure. `Followed` builds a copy of the function that notes what it reads and the path to it,
from the function itself: cells, globals, defaults, attributes, items. `Followed.checked` reads the same paths of a
function with the same code: tensors and bound numbers come back, and everything else must be what it was.

What is not followed says so (`unfollowed`), and nothing may be kept of the run: callables that are not written in
Python, classes that are called, assignments to outer variables.
"""

from __future__ import annotations

import dis
import enum
import functools
import re
import sys
import types
from typing import Any, Callable, Optional

from ._objects import Dict, object_of, trusted
from ._reads import Number, Read, checker, told

_PLAIN = (type(None), bool, int, str, bytes, complex, range, type(...), type(NotImplemented))
_MOST = 64
_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType)


class _Globals(dict):
    """The globals of a followed function: each is followed when it is read."""

    __slots__ = ("real", "follow")

    def __getitem__(self, name):
        return self.follow(self.real[name], name)


class Followed:
    """A function whose reads are noted.

    `tensor(value)` says whether a value is one of the framework's tensors, `known(tensor)` gives what of it a trace
    depends on, and `stand(tensor)` what the function gets for it.
    """

    def __init__(
        self, function: Callable, tensor: Callable[[Any], bool], known: Callable[[Any], Any],
        instead: Optional[dict[tuple, float]] = None, stand: Callable[[Any], Any] = lambda tensor: tensor,
    ):  # fmt: skip
        self.tensor, self.known, self.stand = tensor, known, stand
        self.reads: list[Read] = []
        #: The tensors among the reads, in their order.
        self.tensors: list[Any] = []
        #: What the function got for them.
        self.stands: list[Any] = []
        self.unfollowed: Optional[str] = None
        self._seen: dict[tuple, Any] = {}
        self._memo: dict[int, Any] = {}
        self._alive: list[Any] = [function]
        #: Numbers that were read, by their place among the reads.
        self.numbers: dict[int, Number] = {}
        #: What numbers are instead, to see that a trace only passes them on.
        self.instead = instead or {}
        self.function = self.value(function, ())

    def again(self, instead: dict[tuple, float]) -> Followed:
        """The same function, anew, with other numbers at some paths."""
        return Followed(self._alive[0], self.tensor, self.known, instead, self.stand)

    def fail(self, why: str) -> None:
        """Notes that something could not be followed: the first is told."""
        self.unfollowed = self.unfollowed or why

    def note(self, path: tuple, kind: str, value: Any) -> int:
        place = len(self.reads)
        self.reads.append(Read(path, kind, value))
        return place

    def value(self, value: Any, path: tuple) -> Any:
        """What the function gets for a value at a path."""
        if path in self._seen:
            return self._seen[path]
        made = self._value(value, path)
        self._seen[path] = made
        return made

    def _value(self, value: Any, path: tuple) -> Any:
        kind = type(value)
        if kind is float:
            return self.number(value, path)
        if kind in _PLAIN or isinstance(value, enum.Enum):
            self.note(path, "value", value)
            return value
        if self.tensor(value):
            self.note(path, "tensor", self.known(value))
            self.tensors.append(value)
            self.stands.append(self.stand(value))
            return self.stands[-1]
        if kind is types.FunctionType:
            return self._function(value, path)
        if kind is types.MethodType:
            self.note(path, "method", value.__func__)
            inner = self.value(value.__func__, (*path, ("attr", "__func__")))
            return types.MethodType(inner, self.value(value.__self__, (*path, ("attr", "__self__"))))
        if kind is functools.partial:
            self.note(path, "partial", (len(value.args), tuple(value.keywords)))
            of_arguments = (*path, ("attr", "args"))
            arguments = [self.value(item, (*of_arguments, ("item", at))) for at, item in enumerate(value.args)]
            words = {
                name: self.value(item, (*path, ("attr", "keywords"), ("item", name)))
                for name, item in value.keywords.items()
            }
            return functools.partial(self.value(value.func, (*path, ("attr", "func"))), *arguments, **words)
        if kind is tuple or kind is list:
            if len(value) > _MOST:
                return self.opaque(value, path, f"a {kind.__name__} of {len(value)} items")
            self.note(path, "length", (kind, len(value)))
            return kind(self.value(item, (*path, ("item", at))) for at, item in enumerate(value))
        if kind is dict:
            return Dict(self, value, path)
        if isinstance(value, (types.ModuleType, type)):
            self.note(path, "same", value)
            owner = value.__module__ if isinstance(value, type) else value.__name__
            return value if trusted(owner) else object_of(self, value, path)
        if isinstance(value, _BUILTIN) or trusted(kind.__module__) and not hasattr(value, "__dict__"):
            self.note(path, "same", value)
            return value
        if trusted(kind.__module__) and not _a_module(value):
            return self.opaque(value, path, f"a {kind.__name__}")
        if isinstance(value, (list, dict, tuple, set, frozenset)) or kind.__module__ == "builtins":
            return self.opaque(value, path, f"a {kind.__name__}")
        self.note(path, "type", kind)
        return object_of(self, value, path)

    def number(self, value: Any, path: tuple) -> Any:
        """What the function gets for a float."""
        made = Number(self.instead.get(path, value))
        self.numbers[self.note(path, "float", value)] = made
        return made

    def named(self, path: tuple) -> str:
        """A name for what was read at a path: an identifier, of the variable in the place of its cell."""
        steps: list[tuple] = []
        for at, step in enumerate(path):
            if at >= 1 and path[at - 1] == ("attr", "__closure__"):
                owner = next((r.value for r in self.reads if r.kind == "code" and r.path == path[: at - 1]), None)
                names = () if owner is None else owner.co_freevars
                step = ("attr", names[step[1]]) if step[1] < len(names) else step
            steps.append(step)
        name = re.sub(r"[^A-Za-z0-9_]", "_", told(tuple(steps)).split(".")[-1])[:48].strip("_")
        return name if name and not name[0].isdigit() else f"t_{name}" if name else "tensor"

    def opaque(self, value: Any, path: tuple, what: str) -> Any:
        """A value that is given as it is: what is read of it is not known."""
        self.note(path, "same", value)
        self.fail(f"{what} at {told(path)}")
        return value

    def _function(self, function: types.FunctionType, path: tuple) -> Any:
        code = function.__code__
        self.note(path, "code", code)
        if id(function) in self._memo:
            return self._memo[id(function)]
        own = trusted(function.__module__)
        if own and not function.__closure__:
            return function
        self._alive.append(function)
        names = code.co_freevars
        why = None if own else _writes(code)
        if why:
            self.fail(f"{why} in {code.co_name} at {told(path)}")
        spaces: dict = function.__globals__
        if not own:
            spaces = _Globals(__builtins__=function.__globals__.get("__builtins__", sys.modules["builtins"]))
            spaces.real = function.__globals__
            spaces.follow = lambda value, name: self.value(value, (*path, ("attr", "__globals__"), ("item", name)))
            dict.__setitem__(spaces, "__name__", function.__globals__.get("__name__"))
        cells = tuple(types.CellType() for _ in names)
        made = types.FunctionType(code, spaces, function.__name__, None, cells)
        self._memo[id(function)] = made
        for at, cell in enumerate(function.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:
                self.fail(f"{names[at]} has no value yet at {told(path)}")
                continue
            step = (*path, ("attr", "__closure__"), ("item", at), ("attr", "cell_contents"))
            cells[at].cell_contents = self.value(content, step)
        if function.__defaults__:
            made.__defaults__ = tuple(
                self.value(item, (*path, ("attr", "__defaults__"), ("item", at)))
                for at, item in enumerate(function.__defaults__)
            )
        if function.__kwdefaults__:
            made.__kwdefaults__ = {
                name: self.value(item, (*path, ("attr", "__kwdefaults__"), ("item", name)))
                for name, item in function.__kwdefaults__.items()
            }
        return made

    def checked(self, bound: frozenset = frozenset()) -> Callable[[Callable], Optional[tuple]]:
        """A function of a function with the same code: what it would read, (tensors, bound numbers) in the order of the
        reads, or None if anything else is not what it was."""
        return checker(self.reads, bound, self.known)


def _a_module(value: Any) -> bool:
    """Whether a value is a module of a framework, whose tensors are attributes."""
    return any(base.__name__ == "Module" and trusted(base.__module__) for base in type(value).__mro__)


@functools.lru_cache(1024)
def _writes(code: types.CodeType) -> Optional[str]:
    """What code does that reads of the same paths would not repeat."""
    outer = set(code.co_freevars)
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"an assignment to the global {step.argval}"
        if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in outer:
            return f"an assignment to the outer variable {step.argval}"
        if step.opname == "IMPORT_NAME" and not trusted(step.argval):
            return f"an import of {step.argval}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            why = _writes(constant)
            if why and not why.startswith("an assignment to the outer"):
                return why
    return None
