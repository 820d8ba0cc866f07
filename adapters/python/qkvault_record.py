"""Writes down which attentions a PyTorch program computes, as a manifest that `qkvault warm` compiles plans for.

    from qkvault_record import record

    with record("manifest.toml"):
        model(**inputs)                     # any program, on meta, CPU or GPU tensors

    python -m qkvault_record --out manifest.toml script.py args...

Each distinct call of `torch.nn.functional.scaled_dot_product_attention` and of
`torch.nn.attention.flex_attention.flex_attention` becomes an entry, with the number of calls that made it. What
has no place in qkvault's language is named in the manifest's notes with the reason and the line of code; nothing is
left out in silence. The file needs PyTorch (2.5 or newer) and nothing else.

Seen: calls through any name of the two functions, on every thread; `torch.nn.MultiheadAttention` and the transformer
layers of `torch.nn` (their fused fast path is off meanwhile); models of transformers and diffusers; calls under `vmap`,
`torch.func.grad` and checkpointing. Inside `record`, what `torch.compile` made runs uncompiled, so that its calls are
seen too; a large `flex_attention` on a GPU still runs compiled, because it has no room for its scores otherwise.

Not seen: attention in C++ (TorchScript, exported and AOT-compiled programs, replayed CUDA graphs), kernels of other
libraries (flash_attn, xformers: a note says that they are loaded), products and softmax written by hand (among them
`MultiheadAttention` that returns its weights: a note names it), and other processes, which record for themselves.
`torch.export` with `strict=True` does not work inside `record`: export before, or without `strict`.

The file has four parts: the tracer of modifications (`trace`), the description of a call (`describe`), the recorder
(`record`) and the program.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import json
import math
import os
import re
import runpy
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Captured", "Traced", "Untraceable", "describe", "record", "trace"]

MANIFEST_VERSION = 1
INT_MAX = 2**31 - 1
FLOAT_MAX = 3.4028234663852886e38
AXES = ("batch", "head", "query", "key")

# ---------------------------------------------------------------------------------------------------------------------
# 1. The tracer: a modification of scores or a mask predicate, as text of qkvault's expression language.
#
# The function is called once with 0-d tensors. A dispatch mode sees every ATen operation on them and notes it as a
# node; a writer turns nodes into text. What the language lacks and what does not depend on the score is computed ahead
# for every index, as a tensor that the expression reads.
# ---------------------------------------------------------------------------------------------------------------------


class Untraceable(Exception):
    """A function that qkvault's expression language cannot express: the reason, and the line of the user's code."""

    def __init__(self, reason: str, where: str = ""):
        super().__init__(f"{reason} ({where})" if where else reason)
        self.reason, self.where = reason, where


@dataclass
class Captured:
    """A tensor that an expression reads. A launch binds a tensor of these dims and this element type under its name."""

    dims: tuple
    dtype: str
    grad: bool
    alibi: Optional[int] = None
    """The number of heads whose ALiBi slopes it holds: qkvault provides the values."""
    source: Optional[torch.Tensor] = None
    """The tensor that the function read, if it is read as it is."""
    compute: Optional[Callable[..., torch.Tensor]] = None
    """Computes the values, in the dims of the tensor, before conversion to its element type. With origins, it takes the
    positions of the first query and the first key."""
    roots: tuple = ()
    """The tensors that the function read and that the values are made of."""
    moves: bool = False
    """Whether the values depend on origins, if there are any."""
    bind: Optional[Callable[..., torch.Tensor]] = None
    """Computes the values from others in the place of `roots`: it takes them by the `id` of a root, and origins."""


@dataclass
class Traced:
    """Modifications in qkvault's text form: the values of the fields `mask`, `mask_mod` and `score_mod`."""

    mask: str = "none"
    mask_mod: Optional[str] = None
    score_mod: Optional[str] = None
    tensors: dict = field(default_factory=dict)
    scalars: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    """Tensors whose values decided something while the function was traced."""

    def lines(self) -> list:
        """The lines of an attention's text."""
        fields = (("mask", self.mask), ("mask_mod", self.mask_mod), ("score_mod", self.score_mod))
        return [f"{name}: {value}" for name, value in fields if value not in (None, "none")]


MAX_ORIGIN = 1 << 23
"""The largest position of a first query or key, as in `qkvault::graph`."""


def trace(
    score_mod=None, mask_mod=None, *, sizes, scalars=True, grad_dtype=None, origins=False, names=None
) -> Traced:  # fmt: skip
    """Traces modifications of FlexAttention.

    `score_mod(score, b, h, q_idx, kv_idx)` and `mask_mod(b, h, q_idx, kv_idx)` are functions as FlexAttention takes
    them; `sizes` is (batch, query heads, queries, keys). With `scalars`, softcaps and floats that the functions capture
    become scalars of a launch, which are under no key; otherwise they are constants. `grad_dtype` ("bf16" or "f16") is
    the element type of tensors whose gradient is needed: cuDNN gives gradients of tensors in 16 bits. With `origins`,
    `q_idx` and `kv_idx` are positions that begin at numbers of each launch: the text is the same for all of them, and
    what is computed ahead is computed for them. `names(function)` gives the names of tensors by their `id` and of
    floats by their value, instead of those found in what the functions capture.

    Raises `Untraceable` if the language cannot express them.
    """
    writer = _Writer(tuple(int(n) for n in sizes), scalars, grad_dtype, origins)
    writer.known_names = names
    keep, score = _TRUE, None
    if mask_mod is not None:
        keep = writer.truth(writer.traced(mask_mod, False))
    if score_mod is not None:
        hidden, score = writer.split(writer.number(writer.traced(score_mod, True)))
        keep = writer.both(keep, hidden)
        if score.kind == "score":
            score = None
        elif not writer.reads_score(score):
            unread = "the result does not depend on the score; add to the score or multiply it"
            raise Untraceable(unread, _line_of(score_mod))
    mask, rest = writer.band(keep)
    if rest is _FALSE:
        raise Untraceable("no key is seen; give a mask_mod that keeps some key", _line_of(mask_mod or score_mod))
    return writer.finish(mask, None if rest is _TRUE else rest, None if score is None else writer.softcaps(score))


@dataclass(eq=False)
class _Node:
    """One ATen operation on what differs from score to score, or one of the five inputs."""

    func: Any
    args: tuple
    kwargs: dict
    shape: tuple
    dtype: torch.dtype
    axes: frozenset
    score: bool
    where: str
    out: int = -1

    @property
    def name(self) -> str:
        return self.func if isinstance(self.func, str) else self.func._opname


_BRANCHES = (
    "an `if`, int(), float() or .item() asks for a value that differs per score; choose with torch.where(condition, a, "
    "b)"
)
_RANDOM = "gives random numbers; draw them before the call, and read that tensor at the indices"
_OWN_FILES = {__file__, os.path.splitext(__file__)[0] + ".py"}
_TORCH = os.path.dirname(torch.__file__) + os.sep


def _place(frame) -> str:
    """The line of the user's code that a frame belongs to."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _OWN_FILES and not name.startswith(_TORCH) and not name.startswith("<frozen"):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _line_of(function) -> str:
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""


@contextlib.contextmanager
def _plain():
    """Runs without any mode and without torch functions of subclasses, so that looking changes nothing."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


class _Operations(TorchDispatchMode):
    """Notes the operations on inputs as nodes."""

    def __init__(self):
        super().__init__()
        self.nodes: dict = {}
        self.made: set = set()
        self.origin: dict = {}
        self.recipes: dict = {}
        """How tensors were made of others that the function read: an operation, its arguments, and which result."""
        self.asked: list = []
        self.alive: list = []
        self.line = ""
        """The line of the operation that is expressed by simpler ones, if one is."""

    def input(self, kind: str, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros((), dtype=dtype)
        axes = frozenset() if kind == "score" else frozenset([AXES.index(kind)])
        self.track(tensor, _Node(kind, (), {}, (), dtype, axes, kind == "score", ""))
        return tensor

    def track(self, tensor: torch.Tensor, node: _Node) -> None:
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)

    def node(self, value) -> Optional[_Node]:
        return self.nodes.get(id(value)) if isinstance(value, torch.Tensor) else None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        flat = _leaves((args, kwargs))
        tracked = [node for node in map(self.node, flat) if node is not None]
        if not tracked:
            return self.constant(func, args, kwargs, flat)
        where = self.line or _place(sys._getframe(1))
        name = func._opname
        if name in ("_local_scalar_dense", "item", "is_nonzero", "equal"):
            raise Untraceable(_BRANCHES, where)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Untraceable(f"{name} {_RANDOM}", where)
        changed = func._schema.is_mutable
        if changed and not (name.endswith("_") and self.node(args[0]) is not None):
            raise Untraceable(f"{name} changes a tensor that is not the score; make a new one", where)
        try:
            made = _shape_of_read(func, args)
            if made is None:
                shadow = _mapped(_one if all(_is_single(a) for a in flat) else _shadow, (args, kwargs))
                made = func(*shadow[0], **shadow[1])
        except Exception as error:
            raise Untraceable(f"{name}: {str(error).splitlines()[0]}", where) from error
        if name in _FILLED:
            # The values do not depend on those of the tensor that it is like.
            real = _mapped(lambda a: self.zeros(a) if self.node(a) else a, (args, kwargs))
            return self.constant(func, *real, [])
        if changed:
            func = _functional(func, where)
        axes = frozenset().union(*(node.axes for node in tracked))
        score = any(node.score for node in tracked)
        notes = _mapped(lambda a: self.node(a) or a, (args, kwargs))

        def result(out, at):
            tensor = args[0] if changed else torch.zeros(out.shape, dtype=out.dtype)
            shape = tuple(out.shape)
            self.track(tensor, _Node(func, notes[0], notes[1], shape, out.dtype, axes, score, where, at))
            return tensor

        if isinstance(made, torch.Tensor):
            return result(made, -1)
        if isinstance(made, (tuple, list)):
            return type(made)(result(out, at) if isinstance(out, torch.Tensor) else out for at, out in enumerate(made))
        raise Untraceable(f"{name} gives no tensor", where)

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(like.shape, dtype=like.dtype)
        self.made.add(id(made))
        self.alive.append(made)
        return made

    def constant(self, func, args, kwargs, flat):
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Untraceable(f"{func._opname} {_RANDOM}", _place(sys._getframe(2)))
        out = func(*args, **kwargs)
        if func._opname in ("lift_fresh", "lift_fresh_copy"):  # A literal of the function.
            self.made.update(map(id, flat))
            self.alive += flat
        captured = [a for a in flat if isinstance(a, torch.Tensor) and id(a) not in self.made]
        self.alive += captured
        outputs = _leaves(out)
        if captured and (func._schema.is_mutable or not any(isinstance(o, torch.Tensor) for o in outputs)):
            self.ask(captured)
        for at, tensor in enumerate(outputs):
            if isinstance(tensor, torch.Tensor):
                self.alive.append(tensor)
                if captured:
                    self.origin[id(tensor)] = self.origin.get(id(captured[0]), captured[0])
                else:
                    self.made.add(id(tensor))
                if not any(tensor is a for a in flat):
                    self.recipes[id(tensor)] = (func, args, kwargs, at)
        return out

    def ask(self, tensors) -> None:
        """Notes that the values of tensors decide something, or are kept where they are not read again."""
        for tensor in tensors:
            self.asked += self.roots(tensor)

    def roots(self, tensor) -> list:
        """The tensors that the function read, of which a tensor was made."""
        if id(tensor) in self.made:
            return []
        recipe = self.recipes.get(id(tensor))
        if recipe is None:
            return [tensor]
        inputs = [a for a in _leaves(recipe[1:3]) if isinstance(a, torch.Tensor)]
        return list({id(root): root for a in inputs for root in self.roots(a)}.values())

    def again(self, tensor, given: dict, done: dict):
        """A tensor made anew, with others in the place of those that were read."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if id(tensor) in given:
            return given[id(tensor)]
        recipe = self.recipes.get(id(tensor))
        if id(tensor) in self.made and not _traced_now():
            return tensor
        if recipe is None or recipe[0]._opname in ("lift_fresh", "lift_fresh_copy"):
            # Under a mode that traces, a literal is one of that trace.
            return tensor if recipe is None and id(tensor) not in self.made else _literal(tensor)
        if id(tensor) not in done:
            func, args, kwargs, at = recipe
            args, kwargs = _mapped(lambda a: self.again(a, given, done), (args, kwargs))
            out = func(*args, **kwargs)
            done[id(tensor)] = _leaves(out)[at]
        return done[id(tensor)]


def _leaves(value) -> list:
    """What nested arguments of an operation hold, in order; ten times as fast as the function for all containers."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return [value]
    return [leaf for item in value for leaf in (_leaves(item) if isinstance(item, (tuple, list, dict)) else (item,))]


def _mapped(function, value):
    """The same arguments with other leaves."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_mapped(function, item) for item in value])
    return {name: _mapped(function, item) for name, item in value.items()} if kind is dict else function(value)


def _traced_now() -> bool:
    """Whether a mode is on that traces what is computed."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode() is not None


def _literal(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same numbers, made anew."""
    with _plain():
        numbers = tensor.tolist()
    return torch.tensor(numbers, dtype=tensor.dtype, device=tensor.device)


_FILLED = {
    "new_ones",
    "new_zeros",
    "new_full",
    "new_empty",
    "ones_like",
    "zeros_like",
    "full_like",
    "new_empty_strided",
}


def _shadow(value):
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value


def _is_single(value) -> bool:
    return not isinstance(value, torch.Tensor) or value.dim() == 0


def _one(value):
    """In the place of single numbers, which is quicker than on the device of shapes."""
    return torch.ones((), dtype=value.dtype) if isinstance(value, torch.Tensor) else value


def _shape_of_read(func, args):
    """What a read of a tensor at single places has for a shape, as a tensor."""
    if func is not torch.ops.aten.index.Tensor or not all(i is None or i.dim() == 0 for i in args[1]):
        return None
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        return None
    tensor, index = args
    left = [n for at, n in enumerate(tensor.shape) if at >= len(index) or index[at] is None]
    return torch.empty(left, dtype=tensor.dtype, device="meta")


def _functional(func, where):
    """The operation that gives what an operation in place would leave."""
    packet = getattr(torch.ops.aten, func._opname[:-1], None)
    found = packet and getattr(packet, func._overloadname, None)
    if found is None:
        raise Untraceable(f"{func._opname} changes a tensor in place; make a new one", where)
    return found


class _Reads(TorchFunctionMode):
    """Makes `tensor[index]` one operation: by itself, PyTorch asks for the value of a 0-d index."""

    def __init__(self, operations: _Operations):
        super().__init__()
        self.operations = operations

    def __torch_function__(self, func, types, args=(), kwargs=None):
        node = self.operations.node
        if func is torch.Tensor.__getitem__:
            items = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(node(item) is not None for item in items):
                return self.read(args[0], items)
        elif args and func in _VALUES:
            if node(args[0]) is not None:
                raise Untraceable(_BRANCHES, _place(sys._getframe(1)))
            if isinstance(args[0], torch.Tensor):
                self.operations.ask(args[:1])
        return func(*args, **(kwargs or {}))

    def read(self, tensor, items):
        node = self.operations.node
        if any(item is Ellipsis for item in items):
            at = next(at for at, item in enumerate(items) if item is Ellipsis)
            given = sum(item is not None and item is not Ellipsis for item in items)
            items = items[:at] + (slice(None),) * (tensor.dim() - given) + items[at + 1 :]
        whole = slice(None)
        is_whole = lambda item: isinstance(item, slice) and item == whole  # noqa: E731
        index = []
        if not all(node(item) is not None or is_whole(item) for item in items):
            tensor = tensor[tuple(whole if node(item) is not None else item for item in items)]
        for item in items:
            if node(item) is not None:
                index.append(item)
            elif item is None or isinstance(item, slice):
                index.append(None)
            elif not isinstance(item, int):
                where = _place(sys._getframe(2))
                raise Untraceable("a tensor is read at a list of places; read it at one: table[q_idx]", where)
        return torch.ops.aten.index.Tensor(tensor, index)


_VALUES = {
    torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.item,
    torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__contains__,
}  # fmt: skip


# What a function captures: names of its tensors and floats.


def _captures(function) -> tuple:
    tensors, floats, seen = {}, {}, set()

    def note(name, value, depth):
        if isinstance(value, torch.Tensor):
            tensors.setdefault(id(value), _identifier(name))
        elif isinstance(value, float) and value not in (0.0, 1.0, -1.0) and math.isfinite(value):
            floats.setdefault(value, _identifier(name))
        elif callable(value) or hasattr(value, "__dict__"):
            walk(value, depth + 1)
        elif isinstance(value, (list, tuple)) and depth < 4:
            for item in value:
                note(name, item, depth + 1)
        elif isinstance(value, dict) and depth < 4:
            for key, item in value.items():
                note(str(key), item, depth + 1)

    def walk(value, depth):
        if id(value) in seen or depth > 6 or isinstance(value, type) or inspect.ismodule(value):
            return
        seen.add(id(value))
        if isinstance(value, functools.partial):
            names = _names(value.func)
            for name, item in [*zip(names, value.args), *value.keywords.items()]:
                note(name, item, depth)
            walk(value.func, depth + 1)
        elif inspect.ismethod(value):
            walk(value.__func__, depth + 1)
            note("self", value.__self__, depth)
        elif inspect.isfunction(value):
            if value.__module__ and value.__module__.split(".")[0] == "torch" and not value.__closure__:
                return
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
                with contextlib.suppress(ValueError):
                    note(name, cell.cell_contents, depth)
            for name, item in zip(reversed(_names(value)), reversed(value.__defaults__ or ())):
                note(name, item, depth)
            for name in value.__code__.co_names:
                item = value.__globals__.get(name)
                if isinstance(item, (torch.Tensor, float)) or inspect.isfunction(item):
                    note(name, item, depth)
        elif isinstance(value, torch.nn.Module):
            for name, item in [*value.named_parameters(), *value.named_buffers()]:
                tensors.setdefault(id(item), _identifier(name))
        elif hasattr(value, "__dict__") and depth < 4:
            for name, item in list(vars(value).items())[:100]:
                if isinstance(item, (torch.Tensor, float, list, tuple)) or inspect.isfunction(item):
                    note(name, item, depth)
            walk(vars(type(value)).get("__call__"), depth + 1)

    walk(function, 0)
    return tensors, floats


def _names(function) -> list:
    code = getattr(function, "__code__", None)
    return list(code.co_varnames[: code.co_argcount]) if code else []


def _identifier(name: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", str(name))[:48].lstrip("_")
    return name if name and not name[0].isdigit() else f"t_{name}" if name else "tensor"


# Terms: the expression language as data. Equal terms are one object.


class _Term:
    __slots__ = ("kind", "args", "ty", "low", "high", "infinite", "serial")

    def __init__(self, kind, args, ty, low=None, high=None, infinite=False, serial=0):
        self.kind, self.args, self.ty, self.low, self.high = kind, args, ty, low, high
        self.infinite, self.serial = infinite, serial


_TRUE, _FALSE = _Term("bool", (True,), "b", serial=-1), _Term("bool", (False,), "b", serial=-2)
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_INFIX = {
    "|": 1,
    "&": 2,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "==": 3,
    "!=": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "//": 5,
    "%": 5,
}


class _Missing(Exception):
    """The language has no such operation."""


class _Wide(_Missing):
    """A value that no 32-bit integer holds."""


_wide = WeakTensorKeyDictionary()
"""What was found of tensors of integers, and of which of their versions: to look at one waits for its GPU."""


def _is_wide(tensor) -> bool:
    """Whether a tensor has integers that need more than 32 bits, as far as its values are known."""
    if tensor.dtype not in (torch.int64, torch.uint32, torch.uint64) or not _concrete(tensor) or not tensor.numel():
        return False
    if tensor.is_inference():
        return _has_wide(tensor)
    version, found = _wide.get(tensor, (None, False))
    if version != tensor._version:
        found = _has_wide(tensor)
        _wide[tensor] = (tensor._version, found)
    return found


def _has_wide(tensor) -> bool:
    with _plain():
        least, most = tensor.detach().to(torch.int64).aminmax()
        return bool((least < -INT_MAX - 1) | (most > INT_MAX))


_NARROWING = ("remainder", "fmod", "clamp")


def _of(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "b"
    if dtype.is_floating_point:
        return "f"
    if dtype.is_complex:
        raise _Missing("complex numbers")
    return "i"


@dataclass(eq=False)
class _Operand:
    """A tensor that terms may read; it gets its name when the text is written."""

    name: str
    dims: tuple
    dtype: str
    node: Optional[_Node] = None
    source: Optional[torch.Tensor] = None
    grad: bool = False
    alibi: Optional[int] = None
    roots: list = field(default_factory=list)
    operations: Any = None
    own: tuple = ()
    """The dims of its values, some of which `dims` repeat."""


_ROLES = (
    "q k v o scale stats max sum_exp sink seq_len_q seq_len_kv page_table_k page_table_v block_mask dropout_seed "
    "dropout_offset dropout_mask d_q d_k d_v d_o d_sink"
).split()
"""Names of operands of every attention, which no tensor of an expression has."""


class _Writer:
    """Turns nodes into terms, and terms into text."""

    def __init__(self, sizes, scalars, grad_dtype, origins=False):
        self.sizes, self.name_scalars, self.grad_dtype, self.origins = sizes, scalars, grad_dtype, origins
        self.grad = torch.is_grad_enabled()
        self.terms, self.done, self.operands, self.notes = {}, {}, {}, []
        self.names, self.floats, self.values_of, self.floored = {}, {}, {}, {}
        self.operations, self.all_operations = None, []

    # Tracing.

    def traced(self, function, with_score):
        self.operations = operations = _Operations()
        self.all_operations.append(operations)
        self.names, self.floats = _captures(function) if self.known_names is None else self.known_names(function)
        inputs = [operations.input("score", torch.float32)] if with_score else []
        inputs += [operations.input(axis, torch.int64) for axis in AXES]
        self.recording = True
        try:
            with self.modes():
                out = function(*inputs)
        except Untraceable:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            users = [f for f in frames if f.filename not in _OWN_FILES and not f.filename.startswith(_TORCH)]
            where = f"{os.path.basename(users[-1].filename)}:{users[-1].lineno}" if users else _line_of(function)
            first = (str(error).splitlines() or [""])[0]
            if isinstance(error, TypeError) and not users:  # The call itself.
                names = [*(["score"] if len(inputs) == 5 else []), "b", "h", "q_idx", "kv_idx"]
                first += f"; it is called with ({', '.join(names)})"
            raise Untraceable(f"{type(error).__name__}: {first}", where) from error
        try:
            return self.any(out)
        except _Missing as missing:
            raise Untraceable(str(missing), _line_of(function)) from missing

    @contextlib.contextmanager
    def modes(self):
        from torch.utils._python_dispatch import _disable_current_modes

        elsewhere = torch.get_default_device().type != "cpu"
        with _disable_current_modes(), torch.no_grad(), torch.device("cpu") if elsewhere else contextlib.nullcontext():
            with _Reads(self.operations), self.operations:
                yield

    # Terms.

    def make(self, kind, args, ty, low=None, high=None, infinite=False):
        if ty == "i" and low is not None and (low < -INT_MAX - 1 or high > INT_MAX):
            raise _Wide("an integer may be larger than 32 bits")
        key = (kind, ty, *(id(a) if isinstance(a, (_Term, _Operand)) else (type(a), a) for a in args))
        if key not in self.terms:
            self.terms[key] = _Term(kind, args, ty, low, high, infinite, len(self.terms) + 1)
        return self.terms[key]

    def int(self, n):
        return self.make("int", (int(n),), "i", int(n), int(n))

    def float(self, x):
        x = float(x)
        if x == -math.inf:
            return self.make("infinity", (), "f", infinite=True)
        if not abs(x) <= FLOAT_MAX:
            raise _Missing(f"the number {x} in a score")
        return self.make("float", (x + 0.0,), "f")

    def any(self, value):
        if isinstance(value, _Node):
            return self.translated(value)
        if isinstance(value, bool):
            return _TRUE if value else _FALSE
        if isinstance(value, int):
            return self.int(value)
        if isinstance(value, float):
            name = self.floats.get(value) if self.name_scalars else None
            return self.make("scalar", (name, value), "f") if name else self.float(value)
        if isinstance(value, torch.Tensor):
            node = self.operations.node(value)
            if node is not None:
                return self.translated(node)
            if value.numel() != 1:
                raise _Missing("a tensor in place of a number; return one number for one score")
            if id(value) in self.operations.made:
                return self.any(value.item())
            return self.operand(self.name_of(value), (1, 1, 1, 1), value.dtype, source=value)
        raise _Missing(f"{type(value).__name__} in place of a number; return one number for one score")

    def convert(self, term, ty):
        if term.ty == ty:
            return term
        if ty == "f":
            if term.ty == "b":
                return self.select(term, self.float(1.0), self.float(0.0))
            if term.kind == "int":
                return self.float(term.args[0])
            return self.make("call", ("float", term), "f")
        if ty == "i" and term.ty == "b":
            return self.select(term, self.int(1), self.int(0))
        if ty == "b":
            return self.compare("!=", term, self.int(0) if term.ty == "i" else self.float(0.0))
        raise _Missing("a float as an integer")

    def as_(self, value, ty):
        return self.convert(self.any(value), ty)

    def finite(self, *terms):
        if any(term.infinite for term in terms):
            raise _Missing("minus infinity in other places than torch.where and a sum")

    def truth(self, term):
        return self.convert(term, "b")

    def number(self, term):
        return self.convert(term, "f")

    def call(self, name, *terms):
        self.finite(*terms)
        ty = terms[0].ty
        bounds = (None, None)
        known = [(t.low, t.high) for t in terms]
        if ty == "i" and all(low is not None for low, _ in known):
            (a, b), (c, d) = known[0], known[-1]
            bounds = {
                "min": (min(a, c), min(b, d)), "max": (max(a, c), max(b, d)), "neg": (-b, -a),
                "abs": (0 if a <= 0 <= b else min(abs(a), abs(b)), max(abs(a), abs(b))),
                "floor_rem": (min(c + 1, 0), max(d - 1, 0)),
            }.get(name, bounds)  # fmt: skip
        if all(t.kind == "int" for t in terms) and bounds[0] is not None and bounds[0] == bounds[1]:
            return self.int(bounds[0])
        return self.make("call", (name, *terms), ty, *bounds)

    def infix(self, sign, a, b):
        if sign == "+" and (a.infinite or b.infinite):
            return self.make("infix", ("+", a, b), "f", infinite=True)
        self.finite(a, b)
        low = high = None
        if a.ty == "i" and None not in (a.low, b.low):
            ends = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "//": _floor, "%": None}[
                sign
            ]
            if sign == "%":
                low, high = 0, min(a.high, b.high - 1)
            else:
                corners = [ends(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
                low, high = min(corners), max(corners)
            if a.kind == b.kind == "int":
                return self.int(a.args[0] % b.args[0] if sign == "%" else low)
        if a.ty == "f" and a.kind == b.kind == "float" and sign in "+-*":
            x, y = a.args[0], b.args[0]
            return self.float({"+": x + y, "-": x - y, "*": x * y}[sign])
        zero = ("int", "float")
        if sign in ("+", "-") and b.kind in zero and b.args[0] == 0:
            return a
        if sign == "+" and a.kind in zero and a.args[0] == 0:
            return b
        if sign in ("*", "/", "//") and b.kind in zero and b.args[0] == 1:
            return a
        if sign == "*" and a.kind in zero and a.args[0] == 1:
            return b
        return self.make("infix", (sign, a, b), a.ty, low, high)

    def compare(self, sign, a, b):
        if "b" in (a.ty, b.ty):
            if a.ty == b.ty:
                same = self.either(self.both(a, b), self.both(self.opposite(a), self.opposite(b)))
                if sign in ("==", "!="):
                    return same if sign == "==" else self.opposite(same)
            a, b = (self.convert(t, "i") if t.ty == "b" else t for t in (a, b))
        if a.ty != b.ty:
            a, b = self.convert(a, "f"), self.convert(b, "f")
        self.finite(a, b)
        if sign in ("==", "!=") and b.kind == "int" and b.args[0] == 0 and a in self.floored:
            a = self.infix("%", *self.floored[a])  # Whether a remainder is 0 does not depend on its sign.
        return self.make("infix", (sign, a, b), "b")

    def opposite(self, a):
        if a in (_TRUE, _FALSE):
            return _FALSE if a is _TRUE else _TRUE
        if a.kind == "not":
            return a.args[0]
        if a.kind == "infix" and a.args[0] in _NEGATED and a.args[1].ty == "i":
            return self.make("infix", (_NEGATED[a.args[0]], *a.args[1:]), "b")
        return self.make("not", (a,), "b")

    def both(self, a, b):
        if a is _TRUE or b is _FALSE or a is b:
            return b
        return a if b is _TRUE or a is _FALSE else self.make("infix", ("&", a, b), "b")

    def either(self, a, b):
        if a is _FALSE or b is _TRUE or a is b:
            return b
        return a if b is _FALSE or a is _TRUE else self.make("infix", ("|", a, b), "b")

    def select(self, keep, a, b):
        if keep in (_TRUE, _FALSE):
            return a if keep is _TRUE else b
        if a.ty == "b":
            return self.either(self.both(keep, a), self.both(self.opposite(keep), b))
        low = high = None
        if a.ty == "i" and None not in (a.low, b.low):
            low, high = min(a.low, b.low), max(a.high, b.high)
        return self.make("select", (keep, a, b), a.ty, low, high, a.infinite or b.infinite)

    def quotient(self, a, b):
        """Division of integers, rounded down."""
        if b.kind != "int" or b.args[0] == 0:
            raise _Missing("a quotient of integers by what is not a constant")
        reach = 2**24 if abs(b.args[0]) & (abs(b.args[0]) - 1) == 0 else 2**22 - 1
        if a.low is None or max(abs(a.low), abs(a.high)) > reach:
            raise _Missing("a quotient of integers that may be too large for float32")
        return self.infix("//", a, b)

    def remainder(self, a, b):
        """Remainder of floored division of integers."""
        if None not in (a.low, b.low) and a.low >= 0 and b.low >= 1:
            return self.infix("%", a, b)
        if b.kind == "int" and b.args[0] > 0:
            with contextlib.suppress(_Missing):
                whole = self.infix("*", self.quotient(a, b), b)
                found = self.make("infix", ("-", a, whole), "i", 0, b.args[0] - 1)
                self.floored[found] = (a, b)
                return found
        if b.kind == "int" and b.args[0] == 0:
            raise _Missing("a remainder by zero")
        return self.call("floor_rem", a, b)

    # Operands.

    def operand(self, name, dims, dtype, node=None, source=None, alibi=None):
        kind = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f32"}.get(dtype)
        ty = _of(dtype)
        if kind is None:
            if ty == "f":
                raise _Missing(f"a tensor of {dtype}")
            kind = "i32"
            if source is not None and _is_wide(source):
                raise _Wide("a tensor of integers that are larger than 32 bits")
        captured = self.roots(node, source)
        grad = self.grad and ty == "f" and alibi is None and any(t.requires_grad for t in captured)
        if grad and self.grad_dtype and kind != self.grad_dtype:
            self.notes.append(f"tensor @{name} is {kind}, and {self.grad_dtype} here, as cuDNN gives its gradient")
            kind = self.grad_dtype
        key = ("operand", id(node) if node is not None else id(source), dims, alibi)
        if key not in self.operands:
            # Kernels give gradients for every query and key; PyTorch adds up those of a tensor that has fewer.
            whole = (*dims[:2], *self.sizes[2:]) if grad else dims
            self.operands[key] = _Operand(name, whole, kind, node, source, grad, alibi, captured, self.operations, dims)
        read = self.make("tensor", (self.operands[key],), "i" if ty == "b" else ty)
        return self.compare("!=", read, self.int(0)) if ty == "b" else read

    def name_of(self, tensor):
        base = self.operations.origin.get(id(tensor))
        return self.names.get(id(tensor)) or self.names.get(id(base)) or self.name_of_base(tensor) or "tensor"

    def name_of_base(self, tensor):
        base = tensor._base if isinstance(tensor, torch.Tensor) and tensor._is_view() else None
        return self.names.get(id(base)) if base is not None else None

    def captured(self, node, seen=None):
        """The tensors that a node reads, directly or through others."""
        seen = set() if seen is None else seen
        if id(node) in seen:
            return
        seen.add(id(node))
        for value in _leaves((node.args, node.kwargs)):
            if isinstance(value, _Node):
                yield from self.captured(value, seen)
            elif isinstance(value, torch.Tensor) and id(value) not in self.operations.made:
                yield value

    def roots(self, node, source=None):
        """The tensors that the function read, on which a node or a tensor depends."""
        tensors = [source] if source is not None else self.captured(node) if node is not None else []
        return list({id(root): root for tensor in tensors for root in self.operations.roots(tensor)}.values())

    def values(self, node, origins=(0, 0), given=None):
        """The values of a node that does not read the score, at every index that it depends on; with other tensors in
        the place of those that were read, if they are `given` by the `id` of these."""
        first, given, made = (0, 0, *origins), given or {}, {}
        axes = sorted(node.axes)
        anew = lambda a: self.operations.again(a, given, made)  # noqa: E731
        device = next((anew(t).device for t in self.captured(node)), torch.device("cpu"))

        def at(*index):
            done = {}

            def value(n):
                if isinstance(n.func, str):
                    return index[AXES.index(n.func)]
                if id(n) not in done:
                    args, kwargs = _mapped(lambda a: value(a) if isinstance(a, _Node) else anew(a), (n.args, n.kwargs))
                    try:
                        out = n.func(*args, **kwargs)
                    except IndexError as error:
                        why = f"a tensor is read where it ends: {error}; clamp the index, or give a longer tensor"
                        raise Untraceable(why, n.where) from None
                    done[id(n)] = out if n.out < 0 else out[n.out]
                return done[id(n)]

            return value(node)

        function = at
        for axis in reversed(axes):
            function = torch.vmap(function, in_dims=tuple(0 if i == axis else None for i in range(4)))
        index = [
            torch.arange(first[i], first[i] + self.sizes[i], device=device) if i in axes
            else torch.tensor(0, device=device)
            for i in range(4)
        ]  # fmt: skip
        return function(*index).reshape([self.sizes[i] if i in axes else 1 for i in range(4)])

    def computed(self, node, why):
        """A tensor with the values of a node, computed ahead."""
        if node.score:
            help = "write it with other operations, or of indices and tensors alone, which are computed before"
            raise Untraceable(f"{why} has no place in the language, and it reads the score; {help}", node.where)
        if math.prod(node.shape) != 1:
            raise _Missing(why)
        name = next((self.name_of(t) for t in self.captured(node) if self.name_of(t) != "tensor"), "table")
        name = f"{name}_{''.join(AXES[i][0] for i in sorted(node.axes))}"
        dims = tuple(self.sizes[i] if i in node.axes else 1 for i in range(4))
        return self.operand(name, dims, node.dtype, node=node)

    # Nodes to terms.

    def translated(self, node):
        if id(node) not in self.done:
            self.done[id(node)] = (self.translate(node), node)
        return self.done[id(node)][0]

    def translate(self, node):
        if node.func == "score":
            return self.make("score", (), "f")
        if isinstance(node.func, str):
            far = MAX_ORIGIN if self.origins and node.func in ("query", "key") else 0
            return self.make("index", (node.func,), "i", 0, far + self.sizes[AXES.index(node.func)] - 1)
        if self.is_alibi(node):
            return self.operand("alibi_slopes", (1, self.sizes[1], 1, 1), torch.float32, node=node, alibi=self.sizes[1])
        try:
            term = self.operation(node)
            self.finite_unless_split(node, term)
            self.wraps_unless_fitting(node, term)
        except _Missing as why:
            if isinstance(why, _Wide) and _of(node.dtype) == "i" and node.name not in _NARROWING:
                # Its values do not fit a tensor of 32-bit integers either: those of what is made of it may.
                raise
            return self.computed(node, str(why))
        if not node.score and any(
            # A table of this size is needed anyway: then it may as well hold the whole. And gradients are those of
            # tables that are added to the score as they are.
            t.node is not None and not t.alibi and self.spans(t, node) or t.grad and term.kind != "tensor"
            for t in self.tables(term)
        ):
            return self.computed(node, "")
        return term

    def finite_unless_split(self, node, term):
        if term.infinite and node.shape != ():
            raise _Missing("minus infinity in a tensor")

    def wraps_unless_fitting(self, node, term):
        """Integers of a launch have 32 bits: those of narrower or unsigned types must be none that wrap there."""
        if term.ty != "i" or _of(node.dtype) != "i" or node.name in _EXACT:
            return
        holds = torch.iinfo(node.dtype)
        if holds.min <= -INT_MAX - 1 and holds.max >= INT_MAX:
            return
        if term.low is None or term.low < holds.min or term.high > holds.max:
            raise _Missing(f"an operation in {node.dtype}, which wraps")

    def spans(self, operand, node):
        return operand.dims == tuple(self.sizes[i] if i in node.axes else 1 for i in range(4))

    def tables(self, term, seen=None):
        seen = set() if seen is None else seen
        if term.serial in seen:
            return
        seen.add(term.serial)
        for arg in term.args:
            if isinstance(arg, _Operand):
                yield arg
            elif isinstance(arg, _Term):
                yield from self.tables(arg, seen)

    def is_alibi(self, node):
        if node.score or node.axes != frozenset([1]) or not node.dtype.is_floating_point or node.shape != ():
            return False
        if any(t.device.type == "meta" or t.requires_grad for t in self.roots(node)):
            return False
        try:
            with _plain():
                found = self.values(node).flatten().to(torch.float64).tolist()
        except Exception:
            return False
        self.operations.asked += self.roots(node)
        return all(abs(x - y) <= 1e-5 * y for x, y in zip(found, _slopes(self.sizes[1])))

    def operation(self, node):
        ours = node.func.namespace == "aten" or node.func._schema.name in _ALIKE
        handler = _HANDLERS.get(node.name) if ours else None
        numbers = math.prod(node.shape) == 1 and all(
            math.prod(a.shape) == 1 for a in _leaves((node.args, node.kwargs)) if isinstance(a, _Node)
        )
        if self.rounds(node):
            raise _Missing(f"an operation in {node.dtype}, which rounds")
        if handler is None or not (numbers or node.name == "index"):
            return self.decomposed(node) if numbers else self.missing(node)
        try:
            return handler(self, node, *node.args, **node.kwargs)
        except TypeError as error:
            raise _Missing(f"{node.name} with these arguments") from error

    def missing(self, node):
        raise _Missing(f"torch's {node.name}")

    def decomposed(self, node):
        """The operation in terms of simpler ones, as PyTorch has it."""
        from torch._decomp import decomposition_table

        rule = decomposition_table.get(node.func)
        if rule is None:
            self.missing(node)

        def input(value):
            if not isinstance(value, _Node):
                return value
            tensor = torch.zeros(value.shape, dtype=value.dtype, device="cpu")
            self.operations.track(tensor, value)
            return tensor

        args, kwargs = _mapped(input, (node.args, node.kwargs))
        before, self.operations.line = self.operations.line, node.where
        try:
            with self.modes():
                out = rule(*args, **kwargs)
        finally:
            self.operations.line = before
        return self.any(out if node.out < 0 else out[node.out])

    def makes_nan(self, term, seen=None):
        """Whether a float may be NaN although what it is made of is not."""
        seen = set() if seen is None else seen
        if term.serial in seen:
            return False
        seen.add(term.serial)
        word = term.args[0] if term.ty == "f" and term.args else None
        # A quotient by a number that all scores share is one of two infinities at most.
        shared = word in ("/", "%", "floor_rem") and term.args[2].kind in ("float", "scalar")
        shared |= word == "pow" and term.args[2].kind == "float" and term.args[2].args[0].is_integer()
        if word in ("log", "sqrt", "rsqrt", "pow", "floor_rem", "/", "%") and not shared:
            return True
        return any(self.makes_nan(a, seen) for a in term.args if isinstance(a, _Term))

    def rounds(self, node):
        """Whether an operation rounds to 16 bits, and can be computed ahead as it is."""
        return node.dtype in _DTYPES and not node.score and node.name not in (*_EXACT, "neg", "abs")

    # What is done to the whole.

    def split(self, term):
        """Takes minus infinity out of a score: the predicate of the scores that are kept, and their values."""
        if not term.infinite:
            return _TRUE, term
        if term.kind == "infinity":
            return _FALSE, self.float(0.0)
        if term.kind == "select":
            keep, a, b = term.args
            (keep_a, a2), (keep_b, b2) = self.split(a), self.split(b)
            value = b2 if keep_a is _FALSE else a2 if keep_b is _FALSE else self.select(keep, a2, b2)
            return self.either(self.both(keep, keep_a), self.both(self.opposite(keep), keep_b)), value
        (keep_a, a), (keep_b, b) = self.split(term.args[1]), self.split(term.args[2])
        return self.both(keep_a, keep_b), self.infix("+", a, b)

    def reads_score(self, term):
        return term.kind == "score" or any(self.reads_score(a) for a in term.args if isinstance(a, _Term))

    def softcaps(self, term, done=None):
        """Numbers of softcaps as scalars: cap * tanh(score / cap)."""
        done = {} if done is None else done
        if not self.name_scalars or not term.args:
            return term
        if term.serial in done:
            return done[term.serial]
        args = tuple(self.softcaps(a, done) if isinstance(a, _Term) else a for a in term.args)
        new = term if args == term.args else self.make(term.kind, args, term.ty, term.low, term.high, term.infinite)
        if new.kind == "infix" and new.args[0] == "*":
            for cap, curve in (new.args[1:], new.args[:0:-1]):
                if cap.kind == "float" and curve.kind == "call" and curve.args[0] == "tanh" and cap.args[0] > 0:
                    inner = curve.args[1]
                    if inner.kind != "infix" or inner.args[0] not in "/*":
                        continue
                    sign, a, b = inner.args
                    a, b = (b, a) if sign == "*" and a.kind == "float" else (a, b)
                    if b.kind != "float" or b.args[0] == 0:
                        continue
                    by = b.args[0] if sign == "/" else 1 / b.args[0]
                    if abs(by - cap.args[0]) <= 1e-6 * by:
                        scalar = self.make("scalar", ("softcap", cap.args[0]), "f")
                        new = self.infix("*", self.call("tanh", self.infix("/", a, scalar)), scalar)
                        break
        done[term.serial] = new
        return new

    def conjuncts(self, term):
        if term.kind == "infix" and term.args[0] == "&":
            return self.conjuncts(term.args[1]) + self.conjuncts(term.args[2])
        return [term]

    def band(self, keep):
        """Splits a predicate into a diagonal band and the rest."""
        # With origins, queries and keys count from one beginning.
        queries, keys = (0, 0) if self.origins else self.sizes[2:]
        rights, lefts, rest = [], [], _TRUE
        for part in self.conjuncts(keep):
            bounds = _bounds(part)
            if bounds is None:
                rest = self.both(rest, part)
                continue
            # Bounds on key - query: at most `right`, and above -`left`.
            right, left = bounds
            if (right is not None and right < min(0, keys - queries)) or (left is not None and left < 1):
                rest = self.both(rest, part)
                continue
            rights += [] if right is None else [(right, part)]
            lefts += [] if left is None else [(left, part)]
        right = min((bound for bound, _ in rights), default=None)
        left = min((bound for bound, _ in lefts), default=None)
        text, unused = _band_text(right, left, queries, keys)
        if unused:
            return "none", keep
        return text, rest

    def finish(self, mask, keep, score):
        """The text of both expressions, with names for operands."""
        traced, taken = Traced(mask), set(_ROLES)
        names = {}

        def name_of(key, wish, axes=""):
            if key not in names:
                name, n = wish if wish not in taken or not axes else f"{wish}_{axes}", 2
                while name in taken:
                    name, n = f"{wish}{n}", n + 1
                taken.add(name)
                names[key] = name
            return names[key]

        for field_name, term in (("mask_mod", keep), ("score_mod", score)):
            if term is not None:
                setattr(traced, field_name, self.text(term, name_of, traced))
        traced.notes = list(dict.fromkeys(self.notes))
        traced.asked = [tensor for operations in self.all_operations for tensor in operations.asked]
        return traced

    def text(self, root, name_of, traced):
        uses, order = {}, []

        def count(term):
            uses[term.serial] = uses.get(term.serial, 0) + 1
            if uses[term.serial] == 1:
                for arg in term.args:
                    if isinstance(arg, _Term):
                        count(arg)
                order.append(term)

        count(root)
        heads, lets, known = [], [], {}
        depths = {}
        for term in order:
            depth = 1 + max((depths[a.serial] for a in term.args if isinstance(a, _Term)), default=0)
            if term.kind == "scalar":
                name = name_of(("scalar", term.args), term.args[0])
                heads.append(f"scalar ${name}: float")
                traced.scalars[name] = term.args[1]
                known[term.serial] = f"${name}"
            elif term.kind == "tensor":
                operand = term.args[0]
                axes = "" if operand.node else "".join(a[0] for a, n in zip(AXES, operand.own) if n > 1)
                name = name_of(("tensor", id(operand)), operand.name, axes)
                heads.append(self.declared(name, operand))
                known[term.serial] = f"@{name}"
                if name not in traced.tensors:
                    traced.tensors[name] = self.read(operand)
                    self.warn(name, operand)
            elif (
                term is not root
                and any(isinstance(a, _Term) for a in term.args)
                and (uses[term.serial] > 1 or depth > 40)
            ):
                lets.append(f"let t{len(lets)} = {_printed(term, known, 0)}")
                known[term.serial] = f"t{len(lets) - 1}"
                depth = 1
            depths[term.serial] = depth
        return "; ".join([*heads, *lets, _printed(root, known, 0)])

    def declared(self, name, operand):
        dims = ", ".join(map(str, operand.dims))
        end = f" alibi {operand.alibi}" if operand.alibi else " grad" if operand.grad else ""
        return f"tensor @{name}: {operand.dtype}[{dims}]{end}"

    def read(self, operand):
        bind = self.binder(operand)
        repeated = operand.own != operand.dims
        compute = None if operand.node is None and not repeated else lambda *origins: bind({}, *origins)
        source = None if repeated else operand.source
        captured = Captured(operand.dims, operand.dtype, operand.grad, operand.alibi, source, compute)
        captured.roots, captured.bind = tuple(operand.roots), bind
        captured.moves = operand.node is not None and operand.own[2:] != (1, 1)
        return captured

    def binder(self, operand):
        # Bound to the operations of the function that the tensor belongs to.
        operations, node, source = operand.operations, operand.node, operand.source
        writer = self

        def values(given, origins):
            if node is None:
                return operations.again(source, given, {})
            kept, writer.operations = writer.operations, operations
            try:
                return writer.values(node, origins, given)
            finally:
                writer.operations = kept

        def bind(given, origins=(0, 0)):
            made = values(given, origins)
            return made if operand.own == operand.dims else made.reshape(operand.own).expand(operand.dims)

        return bind

    def warn(self, name, operand):
        if operand.node is not None and operand.alibi is None:
            elements = math.prod(operand.dims)
            size = f", {elements * 4 / 2**20:.0f} MiB" if elements * 4 >= 2**20 else ""
            at = f" ({operand.node.where})" if operand.node.where else ""
            self.notes.append(f"tensor @{name} {list(operand.dims)} is computed ahead of a launch{size}{at}")


def _floor(a, b):
    return a // b


def _slopes(heads):
    n = 1 << (heads.bit_length() - 1)
    return [2.0 ** (-8.0 * (i + 1) / n if i < n else -4.0 * (2 * (i - n) + 1) / n) for i in range(heads)]


def _linear(term):
    """An integer term as query * a + key * b + c."""
    if term.kind == "int":
        return 0, 0, term.args[0]
    if term.kind == "index" and term.args[0] in ("query", "key"):
        return (1, 0, 0) if term.args[0] == "query" else (0, 1, 0)
    if term.kind == "infix" and term.args[0] in "+-*":
        a, b = _linear(term.args[1]), _linear(term.args[2])
        if a is None or b is None:
            return None
        if term.args[0] == "*":
            a, b = (b, a) if a[:2] == (0, 0) else (a, b)
            return tuple(x * b[2] for x in a) if b[:2] == (0, 0) else None
        sign = 1 if term.args[0] == "+" else -1
        return tuple(x + sign * y for x, y in zip(a, b))
    if term.kind == "call" and term.args[0] == "neg":
        a = _linear(term.args[1])
        return None if a is None else tuple(-x for x in a)
    return None


def _bounds(term):
    """A comparison as bounds (right, left) of a band: key - query <= right, query - key < left."""
    if term.kind != "infix" or term.args[0] not in ("<", "<=", ">", ">=") or term.args[1].ty != "i":
        return None
    sign, a, b = term.args
    if sign in (">", ">="):
        sign, a, b = _FLIPPED[sign], b, a
    if a.kind == "call" and a.args[0] == "abs" and b.kind == "int":
        inner = _linear(a.args[1])
        most = b.args[0] - (sign == "<")
        if inner in ((1, -1, 0), (-1, 1, 0)) and most >= 0:
            return most, most + 1
        return None
    a, b = _linear(a), _linear(b)
    if a is None or b is None:
        return None
    # query * q + key * k + c <= 0
    q, k, c = (x - y for x, y in zip(a, b))
    c += sign == "<"
    if (q, k) == (-1, 1):
        return -c, None
    if (q, k) == (1, -1):
        return None, -c + 1
    return None


def _band_text(right, left, queries, keys):
    """A band as text, and whether it has no text."""
    if right is None and left is None:
        return "none", False
    ahead = keys - queries
    corner = ""
    if ahead and right == ahead:
        right, left, corner = 0, None if left is None else left + ahead, " bottom-right"
    if (right is not None and right < 0) or (left is not None and left < 1):
        return "none", True
    if right == 0:
        return f"causal{'' if left is None else f' window {left}'}{corner}", False
    sides = [f"left {left}"] if left is not None else []
    sides += [f"right {right}"] if right is not None else []
    return f"band {' '.join(sides)}{corner}", False


def _printed(term, known, least):
    if term.serial in known:
        return known[term.serial]
    kind, args = term.kind, term.args
    if kind == "bool":
        return "true" if args[0] else "false"
    if kind in ("int", "float"):
        return repr(args[0])
    if kind == "score":
        return "score"
    if kind == "index":
        return args[0]
    if kind == "not":
        return f"!{_printed(args[0], known, 7)}"
    if kind == "select":
        return f"select({', '.join(_printed(a, known, 0) for a in args)})"
    if kind == "call":
        return f"{args[0]}({', '.join(_printed(a, known, 0) for a in args[1:])})"
    if kind == "infix":
        tightness = _INFIX[args[0]]
        strict = tightness == 3
        text = f"{_printed(args[1], known, tightness + strict)} {args[0]} {_printed(args[2], known, tightness + 1)}"
        return f"({text})" if tightness < least else text
    raise Untraceable("minus infinity in other places than torch.where and a sum")


# ATen operations as terms.


def _arithmetic(sign):
    def handler(w, node, a, b, alpha=1):
        ty = _of(node.dtype)
        if ty == "b":
            return {"+": w.either, "*": w.both}[sign](w.as_(a, "b"), w.as_(b, "b"))
        a, b = w.as_(a, ty), w.as_(b, ty)
        return w.infix(sign, a, b if alpha == 1 else w.infix("*", b, w.as_(alpha, ty)))

    return handler


def _reverse_sub(w, node, a, b, alpha=1):
    return _arithmetic("-")(w, node, b, a, alpha)


def _div(w, node, a, b, rounding_mode=None):
    ty = _of(node.dtype)
    if rounding_mode is None:
        return w.infix("/", w.as_(a, "f"), w.as_(b, "f"))
    a, b = w.as_(a, ty), w.as_(b, ty)
    if ty == "i":
        if rounding_mode == "floor" or (None not in (a.low, b.low) and a.low >= 0 and b.low >= 1):
            return w.quotient(a, b)
        down, up = w.quotient(a, b), w.quotient(w.call("neg", a), b)
        same = w.compare(">=", a, w.int(0))
        return w.select(same, down, w.call("neg", up))
    whole = w.infix("/", a, b)
    if rounding_mode == "floor":
        return w.call("floor", whole)
    return w.select(w.compare("<", whole, w.float(0.0)), w.call("ceil", whole), w.call("floor", whole))


def _remainder(w, node, a, b):
    ty = _of(node.dtype)
    a, b = w.as_(a, ty), w.as_(b, ty)
    return w.remainder(a, b) if ty == "i" else w.call("floor_rem", a, b)


def _fmod(w, node, a, b):
    ty = _of(node.dtype)
    a, b = w.as_(a, ty), w.as_(b, ty)
    w.finite(a, b)
    if ty == "i" and a.low is not None and a.low >= 0 and b.low is not None and b.low >= 1:
        return w.infix("%", a, b)
    return w.make("infix", ("%", a, b), ty)


def _comparison(sign):
    return lambda w, node, a, b: w.compare(sign, w.any(a), w.any(b))


def _logic(name):
    def handler(w, node, a, b):
        if not name.startswith("logical") and _of(node.dtype) != "b":
            raise _Missing(f"torch's {name} of integers")
        a, b = w.as_(a, "b"), w.as_(b, "b")
        if name.endswith("xor"):
            return w.compare("!=", a, b)
        return w.both(a, b) if name.endswith("and") else w.either(a, b)

    return handler


def _not(w, node, a):
    if node.name == "bitwise_not" and _of(node.dtype) != "b":
        a = w.any(a)
        return w.infix("-", w.call("neg", a), w.int(1))
    return w.opposite(w.as_(a, "b"))


def _unary(name):
    return lambda w, node, a: w.call(name, w.as_(a, "f"))


def _signed(name):
    def handler(w, node, a):
        a = w.as_(a, _of(node.dtype))
        return w.float(-a.args[0]) if name == "neg" and a.kind == "float" else w.call(name, a)

    return handler


def _two(name):
    def handler(w, node, a, b):
        ty = _of(node.dtype)
        return w.call(name, w.as_(a, ty), w.as_(b, ty))

    return handler


def _extreme(name):
    """PyTorch's maximum is NaN if one of its operands is, and the other operand in the language."""

    def handler(w, node, a, b):
        ty = _of(node.dtype)
        return _guarded(w, name, w.as_(a, ty), w.as_(b, ty))

    return handler


def _guarded(w, name, a, b):
    found = w.call(name, a, b)
    for term in (a, b):
        if term.ty == "f" and w.makes_nan(term):
            found = w.select(w.compare("==", term, term), found, term)
    return found


def _where(w, node, keep, a=None, b=None):
    ty = _of(node.dtype)
    return w.select(w.as_(keep, "b"), w.as_(a, ty), w.as_(b, ty))


def _masked_fill(w, node, a, hide, value):
    ty = _of(node.dtype)
    return w.select(w.as_(hide, "b"), w.as_(value, ty), w.as_(a, ty))


def _clamp(w, node, a, min=None, max=None):
    ty = _of(node.dtype)
    a = w.as_(a, ty)
    a = a if min is None else _guarded(w, "max", a, w.as_(min, ty))
    return a if max is None else _guarded(w, "min", a, w.as_(max, ty))


def _copy(w, node, a, *_, **__):
    term, ty = w.any(a), _of(node.dtype)
    if node.dtype in (torch.float16, torch.bfloat16) and isinstance(a, _Node) and a.dtype != node.dtype and a.score:
        w.notes.append(f"a conversion to {node.dtype} is left out: expressions compute in float32 ({node.where})")
    if term.ty == "f" and ty == "i":
        raise _Missing("a conversion of a float to an integer")
    return w.convert(term, ty)


def _same(w, node, a, *_, **__):
    if not isinstance(a, _Node):
        raise _Missing(f"torch's {node.name}")
    return w.any(a)


def _pow(w, node, a, b):
    ty = _of(node.dtype)
    if isinstance(b, (int, float)) and not isinstance(b, bool) and b in (1, 2, 3, 4):
        a = w.as_(a, ty)
        square = w.infix("*", a, a)
        return {1: a, 2: square}.get(b) or w.infix("*", square, a if b == 3 else square)
    if isinstance(b, (int, float)) and ty == "f" and b in (0.5, -0.5, -1):
        return w.call({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[b], w.as_(a, ty))
    if ty != "f":
        raise _Missing("a power of integers")
    if isinstance(a, (int, float)) and a > 0:
        return w.call("exp", w.infix("*", w.as_(b, "f"), w.float(math.log(a))))
    return w.call("pow", w.as_(a, "f"), w.as_(b, "f"))


def _gelu(w, node, a, approximate="none"):
    return w.call("gelu_tanh" if approximate == "tanh" else "gelu", w.as_(a, "f"))


def _elu(w, node, a, alpha=1, scale=1, input_scale=1):
    if (alpha, scale, input_scale) != (1, 1, 1):
        raise _Missing("torch's elu with factors")
    return w.call("elu", w.as_(a, "f"))


def _softplus(w, node, a, beta=1, threshold=20):
    a = w.as_(a, "f")
    if beta == 1:
        return w.call("softplus", a)
    return w.infix("/", w.call("softplus", w.infix("*", a, w.float(beta))), w.float(beta))


def _leaky(w, node, a, slope=0.01):
    a = w.as_(a, "f")
    return w.select(w.compare(">", a, w.float(0.0)), a, w.infix("*", a, w.float(slope)))


def _scaled(inner, factor):
    return lambda w, node, a: w.infix("*", w.call(inner, w.as_(a, "f")), w.float(factor))


def _sign(w, node, a):
    ty = _of(node.dtype)
    a, zero, one = w.as_(a, ty), w.as_(0, ty), w.as_(1, ty)
    below = w.select(w.compare("<", a, zero), w.as_(-1, ty), zero)
    return w.select(w.compare(">", a, zero), one, below)


def _index(w, node, tensor, index):
    if isinstance(tensor, _Node):
        raise _Missing("a read of a tensor that differs per score")
    axes = [
        AXES.index(i.func) if isinstance(i, _Node) and isinstance(i.func, str) and i.func in AXES else None
        for i in index
    ]
    known = None not in axes and len(axes) == tensor.dim() and axes == sorted(set(axes))
    if not known or any(tensor.size(d) != w.sizes[axis] for d, axis in enumerate(axes)):
        raise _Missing("a read of a tensor at a place that is not an index of the scores, or of another length")
    if w.origins and any(AXES[axis] in ("query", "key") for axis in axes):
        raise _Missing("a read of a tensor at a position that a launch says")
    dims = tuple(w.sizes[i] if i in axes else 1 for i in range(4))
    return w.operand(w.name_of(tensor), dims, tensor.dtype, source=tensor)


_HANDLERS = {
    "add": _arithmetic("+"), "sub": _arithmetic("-"), "mul": _arithmetic("*"), "rsub": _reverse_sub, "div": _div,
    "floor_divide": lambda w, node, a, b: _div(w, node, a, b, "floor"), "remainder": _remainder, "fmod": _fmod,
    "ge": _comparison(">="), "gt": _comparison(">"), "le": _comparison("<="), "lt": _comparison("<"),
    "eq": _comparison("=="), "ne": _comparison("!="),
    **{f"{kind}_{op}": _logic(f"{kind}_{op}") for kind in ("bitwise", "logical") for op in ("and", "or", "xor")},
    "bitwise_not": _not, "logical_not": _not, "neg": _signed("neg"), "abs": _signed("abs"),
    **{
        name: _unary(name)
        for name in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "tanh", "sigmoid", "erf")
    },
    "floor": lambda w, node, a: _rounded(w, a, "floor"), "ceil": lambda w, node, a: _rounded(w, a, "ceil"),
    "relu": lambda w, node, a: _clamp(w, node, a, 0) if _of(node.dtype) == "i" else w.call("relu", w.as_(a, "f")),
    "silu": _unary("swish"), "gelu": _gelu, "elu": _elu, "softplus": _softplus, "leaky_relu": _leaky,
    "exp2": lambda w, node, a: w.call("exp", w.infix("*", w.as_(a, "f"), w.float(math.log(2)))),
    "log2": _scaled("log", 1 / math.log(2)), "log10": _scaled("log", 1 / math.log(10)),
    "log1p": lambda w, node, a: w.call("log", w.infix("+", w.as_(a, "f"), w.float(1.0))),
    "expm1": lambda w, node, a: w.infix("-", w.call("exp", w.as_(a, "f")), w.float(1.0)),
    "square": lambda w, node, a: _pow(w, node, a, 2), "pow": _pow, "sign": _sign, "sgn": _sign,
    "maximum": _extreme("max"), "minimum": _extreme("min"), "fmax": _two("max"), "fmin": _two("min"),
    "atan2": _two("atan2"),
    "where": _where, "masked_fill": _masked_fill, "clamp": _clamp,
    "clamp_min": lambda w, node, a, min: _clamp(w, node, a, min),
    "hardtanh": lambda w, node, a, low=-1, high=1: _clamp(w, node, a, low, high),
    "clamp_max": lambda w, node, a, max: _clamp(w, node, a, None, max), "_to_copy": _copy, "index": _index,
    **{
        name: _same
        for name in (
            "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "expand", "alias", "detach", "clone",
            "lift_fresh", "lift_fresh_copy", "permute", "select", "slice", "t", "contiguous", "positive",
        )
    },
}  # fmt: skip


_EXACT = ("index", "maximum", "minimum", "where", "masked_fill", *(
    name for name, handler in _HANDLERS.items() if handler is _same
))
"""Operations that give one of their operands, in whatever type."""

_ALIKE = ("approx::tanh",)
"""Operations of others that are those of ATen: attention-gym's tanh by an instruction of the GPU."""


def _rounded(w, a, name):
    a = w.any(a)
    return a if a.ty == "i" else w.call(name, a)


# ---------------------------------------------------------------------------------------------------------------------
# 2. The description of a call: the text form of an attention.
# ---------------------------------------------------------------------------------------------------------------------

_DENSE = "bshd sbhd bhsd bs3hd bsh3d sb3hd sbh3d b3hsd bh3sd bs2hd bsh2d sb2hd sbh2d b2hsd bh2sd".split()
_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16"}
_MOST_READ = 2**27
"""The most elements of a mask whose values are read."""


class Undescribed(Exception):
    """A call that has no description in qkvault's text form, with the reason."""


@dataclass
class Described:
    """One attention: its text form, its softmax scale if that is not 1 / sqrt(head dim), and remarks."""

    text: str
    scale: Optional[float]
    phase: str
    remarks: list
    padded: Optional[str] = None
    """The text with lengths for each sequence, if a mask of keys hides nothing this time."""


@dataclass
class _Strided:
    """The dims and strides of a tensor; under vmap, those of the whole batch."""

    dims: list
    strides: list
    levels: dict


def _size(n) -> int:
    """A number, or the example of a symbolic one, which stays symbolic."""
    if not isinstance(n, torch.SymInt):
        return int(n)
    if not isinstance(n.node.hint, int):
        raise Undescribed("a dim without a size")
    return n.node.hint


def _strided(tensor) -> _Strided:
    from torch._C import _functorch as functorch

    layers = []
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            layers.append((functorch.maybe_get_level(tensor), functorch.maybe_get_bdim(tensor)))
        tensor = functorch.get_unwrapped(tensor)
    if not isinstance(tensor, torch.Tensor):
        raise Undescribed(f"{type(tensor).__name__} in place of a tensor")
    if tensor.is_nested:
        raise Undescribed("nested tensors: describe them as varlen sequences by hand")
    if tensor.layout != torch.strided:
        raise Undescribed(f"a tensor of layout {tensor.layout}")
    if hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor  # The part of this GPU of a DTensor.
    dims, strides, levels = [_size(n) for n in tensor.shape], [_size(n) for n in tensor.stride()], {}
    for level, at in reversed(layers):
        levels[level] = (dims.pop(at), strides.pop(at))
    return _Strided(dims, strides, levels)


def _four(tensors: list) -> list:
    """Dims and strides of (batch, heads, sequence, head dim), with equal batches."""
    levels = sorted({level for t in tensors for level in t.levels})
    sizes = {level: next(t.levels[level][0] for t in tensors if level in t.levels) for level in levels}
    rank = max(len(t.dims) for t in tensors)
    if rank < 2:
        raise Undescribed("tensors of fewer than two dims")
    rows = []
    for t in tensors:
        lead = [t.levels.get(level, (sizes[level], 0)) for level in levels]
        missing = rank - len(t.dims)
        rows.append(lead + [(1, 1)] * missing + list(zip(t.dims, t.strides)))
    rank += len(levels)
    rows = [[(1, 1)] * max(0, 4 - rank) + row for row in rows]
    lead = len(rows[0]) - 3
    shape = [max(row[axis][0] for row in rows) for axis in range(lead)]
    out = []
    for row in rows:
        if any(n not in (1, most) for (n, _), most in zip(row, shape)):
            raise Undescribed("batches that differ")
        batch = [(most, stride if n == most else 0) for (n, stride), most in zip(row, shape) if most > 1]
        size, stride = 1, 1
        for n, step in reversed(batch):
            if size > 1 and step != stride * size:
                stride = 0  # No single stride: a copy.
            elif size == 1:
                stride = step
            size *= n
        heads, rest = row[lead], row[lead + 1 :]
        out.append(([size, heads[0], rest[0][0], rest[1][0]], [stride, heads[1], rest[0][1], rest[1][1]]))
    return out


def _layout_strides(word: str, dims: list) -> list:
    strides, step = [1] * 4, 1
    for axis in reversed(word):
        if axis.isdigit():
            step *= int(axis)
        else:
            strides["bhsd".index(axis)] = step
            step *= dims["bhsd".index(axis)]
    return strides


def _word(dims: list, strides: list) -> Optional[str]:
    def same(word):
        return all(n == 1 or a == b for n, a, b in zip(dims, strides, _layout_strides(word, dims)))

    return next((word for word in _DENSE if same(word)), None)


def _tensor(name: str, dtype: str, dims: list, strides: list, remarks: list) -> tuple:
    """A tensor's text without its name, and its layout word."""
    if any(n > 1 and step < 1 for n, step in zip(dims, strides)) or (dims[3] > 1 and strides[3] != 1):
        why = "is expanded, or its rows are not contiguous"
        remarks.append(f"{name} with strides {strides} {why}: it is described as a copy")
        strides = _layout_strides("bshd", dims)
    word = _word(dims, strides)
    text = f"{dtype} [{','.join(map(str, dims))}]".strip()
    if word is None:
        strides = [max(step, 1) for step in strides]
        return f"{text} strides [{','.join(map(str, strides))}]", None
    return text if word == "bshd" else f"{text} {word}", word


def _output(query: tuple, word: Optional[str], width: int) -> Optional[str]:
    """The line of O, if it is not the default: compact rows in the order of Q."""
    if word in ("bshd", "sbhd", "bhsd"):
        return None
    dims, strides = [*query[0][:3], width], query[1]
    order = sorted(range(3), key=lambda axis: -strides[axis] if dims[axis] > 1 else 0)
    axes = "".join("bhs"[axis] for axis in order) + "d"
    steps = _layout_strides(axes, dims)
    found = _word(dims, steps)
    return f"[{','.join(map(str, dims))}] " + (found or f"strides [{','.join(map(str, steps))}]")


def _concrete(tensor) -> bool:
    """Whether the values of a tensor can be looked at."""
    from torch._C import _functorch as functorch
    from torch._subclasses.fake_tensor import FakeTensor

    if functorch.is_functorch_wrapped_tensor(tensor) or isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        return False
    if tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _broadcast(tensor) -> tuple:
    """The dims of a mask over (batch, head, query, key), with 1 where it is the same for all."""
    facts = _strided(tensor)
    if facts.levels:
        raise Undescribed("a mask that differs per sample of a vmap")
    dims = [1 if step == 0 else n for n, step in zip(facts.dims, facts.strides)]
    dims = [1] * (4 - len(dims)) + dims
    while len(dims) > 4:
        if dims[0] != 1:
            raise Undescribed("a mask of more than four dims")
        dims.pop(0)
    return tuple(dims)


_read: dict = {}
"""Masks that were read, by number of the tensor: layers share them."""


def _known_mask(mask, sizes: tuple, dims: tuple):
    """What the values of a mask are, and its dims as bool; read once for all layers that it is given to."""
    try:
        version = mask._version
    except RuntimeError:
        version = None  # A tensor of inference mode, whose changes nobody counts.
    key = (id(mask), version, sizes)
    kept = _read.get(key)
    if version is not None and kept is not None and kept[0]() is mask:
        return kept[1]
    with _plain():
        values = mask.detach()
        values = values.reshape([1] * (4 - values.dim()) + list(values.shape)) if values.dim() <= 4 else values
        while values.dim() > 4:
            values = values[0]
        for axis, n in enumerate(dims):
            values = values.narrow(axis, 0, n)
        keep = values if values.dtype == torch.bool else _as_bool(values)
        found = (keep is not None, None if keep is None else _read_mask(keep, sizes))
    if len(_read) >= 256:
        _read.clear()
    _read[key] = (weakref.ref(mask), found)
    return found


@dataclass
class _Mask:
    """What a mask is: lines of text, or a tensor of these dims."""

    lines: list
    read: str


def _row_bounds(kept, rows: int, keys: int) -> Optional[tuple]:
    """The bounds (right, left) of the band that a mask of (query, key) is, if it is one; None where nothing bounds."""
    q = torch.arange(rows, device=kept.device)
    first = kept.to(torch.int8).argmax(-1)
    last = keys - 1 - kept.flip(-1).to(torch.int8).argmax(-1)
    if not bool((kept.sum(-1) == last - first + 1).all()) or not bool(kept.any(-1).all()):
        return None
    ends, starts = last < keys - 1, first > 0
    right = int((last - q)[ends].max()) if bool(ends.any()) else None
    left = int((q - first)[starts].max()) + 1 if bool(starts.any()) else None
    bounded = last == (keys - 1 if right is None else (q + right).clamp(max=keys - 1))
    bounded &= first == (0 if left is None else (q - left + 1).clamp(min=0))
    return (right, left) if bool(bounded.all()) else None


def _read_mask(keep, sizes: tuple) -> Optional[_Mask]:
    """Recognises the values of a bool mask of dims that broadcast to (batch, head, query, key)."""
    _, _, rows, keys = sizes
    if bool(keep.all()):
        return _Mask([], "hides nothing")
    k = torch.arange(keys, device=keep.device)
    by_key = keep[:, :1, :1]
    if keep.shape[2] == 1 or rows == 1 or bool((keep == by_key).all()):
        lengths = by_key.sum(-1, keepdim=True)
        padding = bool((keep == (k < lengths)).all()) and bool((lengths > 0).all())
        return _Mask(["lengths: per-sequence"], "is a padding of keys") if padding else None
    if keep.shape[3] != keys:
        return None
    ahead = keys - rows
    bounds = _row_bounds(keep[0, 0], rows, keys) if bool((keep == keep[:1, :1]).all()) else None
    if bounds is not None:
        right, left = bounds
        if right in (None, 0, ahead) or ahead == 0:
            text, unused = _band_text(right, left, rows, keys)
            if not unused:
                return _Mask([f"mask: {text}"], f"is {text}")
        elif 0 < right < ahead and left is None:
            # The first keys of a cache: the last query is aligned with the last key that there is.
            lines = ["mask: causal bottom-right", "lengths: per-sequence"]
            return _Mask(lines, "is causal over a part of a cache")
    whole, q = keep, torch.arange(rows, device=keep.device)[:, None]
    if keep.shape[1] == 1:
        causal = k <= q
        lengths = whole.any(2, keepdim=True).sum(-1, keepdim=True)
        if bool((whole == (causal & (k < lengths))).all()):
            return _Mask(["mask: causal", "lengths: per-sequence"], "is causal with a padding of keys")
        if rows == keys and bool(whole.any(-1).all()):
            for band in ("none", "causal"):
                # The document of a token is named by its first one, which the rows of a document see.
                ids = whole.to(torch.int8).argmax(-1)
                same = ids[..., :, None] == ids[..., None, :]
                if bool((whole == (same & causal if band == "causal" else same)).all()):
                    batch = keep.shape[0]
                    declared = f"tensor @query_documents: i32[{batch}, 1, {rows}, 1]; "
                    declared += f"tensor @key_documents: i32[{batch}, 1, 1, {keys}]"
                    lines = [f"mask: {band}"] if band != "none" else []
                    lines.append(f"mask_mod: {declared}; @query_documents == @key_documents")
                    return _Mask(lines, "keeps documents apart")
    return None


def _as_bool(bias) -> Optional[torch.Tensor]:
    """An additive mask of zeros and values that hide, as bool."""
    hidden = bias <= torch.finfo(bias.dtype).min / 2
    if not bool(((bias == 0) | hidden).all()):
        return None
    infinite = bool((bias[hidden] == -math.inf).all()) if bool(hidden.any()) else True
    # A row of the least finite number everywhere is a row of equal probabilities.
    return ~hidden if infinite or not bool(hidden.all(-1).any()) else None


def _mask_lines(mask, sizes: tuple, dtype: str, training: bool, reading: bool, remarks: list) -> list:
    dims = _broadcast(mask)
    if not (mask.dtype == torch.bool or mask.dtype.is_floating_point):
        raise Undescribed(f"a mask of {mask.dtype}")
    if any(n not in (1, most) for n, most in zip(dims, sizes)):
        raise Undescribed(f"a mask of dims {list(mask.shape)} for scores of dims {list(sizes)}")
    shape = ", ".join(map(str, dims))
    if reading and _concrete(mask) and not mask.requires_grad:
        if math.prod(dims) > _MOST_READ:
            remarks.append(f"a mask of {math.prod(dims)} elements is not read, because it is large")
        else:
            is_bool, found = _known_mask(mask, sizes, dims)
            if found is not None:
                remarks.append(f"the mask {found.read}")
                return found.lines
            if is_bool:
                return [f"mask_mod: tensor @mask: i32[{shape}]; @mask != 0"]
    if mask.dtype == torch.bool:
        return [f"mask_mod: tensor @mask: i32[{shape}]; @mask != 0"]
    grad = " grad" if training and mask.requires_grad else ""
    return [f"score_mod: tensor @bias: {dtype}[{shape}]{grad}; score + @bias"]


_traces: dict = {}


def _known_trace(score_mod, mask_mod, sizes: tuple, dtype: str) -> Traced:
    """A trace, made once for all layers that share the functions."""
    key = (id(score_mod), id(mask_mod), sizes, dtype, torch.is_grad_enabled())
    if key not in _traces:
        if len(_traces) >= 64:
            _traces.clear()
        # The functions are kept, so that no other gets their numbers.
        _traces[key] = (trace(score_mod, mask_mod, sizes=sizes, grad_dtype=dtype), score_mod, mask_mod)
    return _traces[key][0]


def describe(
    query, key, value, *, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, score_mod=None, mask_mod=None,
    outputs=(), dtype=None, read_masks=True, autocast=True,
) -> Described:  # fmt: skip
    """Describes a call of `scaled_dot_product_attention`, or of `flex_attention` if there are modifications.

    `outputs` are "stats" (the log-sum-exp) and "max"; `dtype` ("bf16" or "f16") takes the place of float32, which
    cuDNN's attention does not have. With `read_masks`, a mask with values is recognised as causal, a window, a padding
    or documents, where it is exactly that. `autocast`: whether the call follows autocast.

    Raises `Undescribed` or `Untraceable` with the reason.
    """
    remarks: list = []
    tensors = [query, key, value]
    kind = query.dtype
    device = query.device.type
    if autocast and device != "meta" and kind != torch.float64 and torch.is_autocast_enabled(device):
        kind = torch.get_autocast_dtype(device)
    elif len({t.dtype for t in tensors}) > 1:
        raise Undescribed(f"element types that differ: {', '.join(str(t.dtype) for t in tensors)}")
    if kind in _DTYPES:
        name = _DTYPES[kind]
    elif kind in (torch.float32, torch.float64) and dtype:
        name = dtype
    else:
        hint = ": run it in 16 bits or under autocast, or give dtype='bf16'" if kind.is_floating_point else ""
        raise Undescribed(f"{str(kind).removeprefix('torch.')}, and cuDNN's attention takes bf16 and f16{hint}")
    (q, q_strides), (k, k_strides), (v, v_strides) = _four([_strided(t) for t in tensors])
    if 0 in (*q, *k, *v):
        raise Undescribed("no elements")
    for dims, strides in ((k, k_strides), (v, v_strides)):
        if dims[1] > 1 and strides[1] == 0:
            dims[1] = 1  # One head that all share.
    if q[1] < max(k[1], v[1]):
        q[1], q_strides[1] = max(k[1], v[1]), 0
    if q[1] % k[1] or q[1] % v[1] or q[3] != k[3] or k[2] != v[2]:
        raise Undescribed(f"dims that do not go together: {q}, {k}, {v}")
    sizes = (q[0], q[1], q[2], k[2])
    training, whole = torch.is_grad_enabled() and any(t.requires_grad for t in tensors), False

    q_text, word = _tensor("Q", name, q, q_strides, remarks)
    k_text, _ = _tensor("K", "", k, k_strides, remarks)
    v_text, _ = _tensor("V", "", v, v_strides, remarks)
    lines = [f"q: {q_text}", f"k: {k_text}"]
    lines += [f"v: {v_text}"] if v_text != k_text else []
    o_text = _output((q, q_strides), word, v[3])
    lines += [f"o: {o_text}"] if o_text else []

    mask_at = len(lines)
    if score_mod is not None or mask_mod is not None:
        traced = _known_trace(score_mod, mask_mod, sizes, name)
        lines += traced.lines()
        remarks += traced.notes
        training = training or any(t.grad for t in traced.tensors.values())
    elif is_causal:
        lines.append("mask: causal")
    elif attn_mask is not None:
        variant = getattr(attn_mask, "variant", None)
        if variant is not None:
            lower = getattr(variant, "name", "") == "LOWER_RIGHT"
            lines.append("mask: causal bottom-right" if lower else "mask: causal")
        else:
            training = training or (torch.is_grad_enabled() and attn_mask.requires_grad)
            found = _mask_lines(attn_mask, sizes, name, training, read_masks, remarks)
            whole = not found and attn_mask.dim() > 1 and attn_mask.shape[-2] == 1
            lines += found
    if dropout_p:
        if not 0 <= dropout_p < 1:
            raise Undescribed(f"a dropout probability of {dropout_p}")
        lines.append(f"dropout: philox {float(dropout_p)!r}")
    outputs = [word for word in ("stats", "max") if word in outputs or (word == "stats" and training)]
    lines += [f"outputs: {' '.join(outputs)}"] if outputs else []
    default = 1.0 / math.sqrt(q[3])
    scale = default if scale is None else float(scale)
    if not (math.isfinite(scale) and scale > 0):
        raise Undescribed(f"a softmax scale of {scale}")
    scale = None if abs(scale - default) <= 1e-12 * default else scale
    phase = "train" if training else "decode" if q[2] == 1 else "prefill"
    padded = "\n".join([*lines[:mask_at], "lengths: per-sequence", *lines[mask_at:]]) if whole else None
    return Described("\n".join(lines), scale, phase, remarks, padded)


# ---------------------------------------------------------------------------------------------------------------------
# 3. The recorder.
# ---------------------------------------------------------------------------------------------------------------------

_SDPA = torch._C._nn.scaled_dot_product_attention
_LARGE_SCORES = 2**30
"""Bytes of scores from which a `flex_attention` on a GPU runs compiled."""
_ON_HOST = ("cpu",)
_OTHERS = ("flash_attn", "flash_attn_interface", "xformers.ops", "sageattention", "aiter")

_active: list = []
_lock = threading.RLock()
_here = threading.local()
_undo = contextlib.ExitStack()


@dataclass
class _Entry:
    described: Described
    calls: int = 0
    layers: list = field(default_factory=list)


class record(contextlib.ContextDecorator):
    """Writes down the attentions of the code that runs inside it, as a manifest.

    `path` ends in `.toml` or `.json`. The file is replaced; with `merge`, what it has stays, and what is new is added.
    `model` is the model's name in the entries. `dtype` ("bf16" or "f16") takes the place of float32, for programs that
    are tried on the CPU. With `read_masks=False` masks are described as tensors whatever their values are: do so if a
    mask of this run happens to hide less than another's.

    The file is written at the end, as a whole, also if the code raises: then it has what was seen until then, and a
    note says so. `entries` and `notes` are what it has.
    """

    def __init__(
        self, path, *, merge: bool = False, model: str = "", dtype: Optional[str] = None, read_masks: bool = True
    ):
        if dtype not in (None, "bf16", "f16"):
            raise ValueError(f"dtype is {dtype!r}; give 'bf16' or 'f16'")
        self.path, self.merge, self.model, self.dtype, self.read_masks = (
            os.fspath(path),
            merge,
            model,
            dtype,
            read_masks,
        )
        if not self.path.endswith((".toml", ".json")):
            raise ValueError(f"{self.path!r} ends neither in .toml nor in .json")
        self._seen: dict = {}
        self._notes: dict = {}
        self._mode: list = []

    @property
    def entries(self) -> list:
        """The entries of the manifest, as dicts."""
        with _lock:
            extra: dict = {}
            for key, entry in self._seen.items():
                padded = (entry.described.padded, *key[1:])
                if padded in self._seen:
                    # A cache that is full, or a batch without padding: a launch with whole lengths.
                    extra[padded] = extra.get(padded, 0) + entry.calls
                    extra[key] = -entry.calls
            out = [self._entry(entry, extra.get(key, 0)) for key, entry in self._seen.items()]
            return [entry for entry in out if entry["layers"]]

    @property
    def notes(self) -> list:
        """What was not recorded and why, and remarks on what was."""
        with _lock:
            return [note if calls == 1 else f"{note} ({calls} calls)" for note, calls in self._notes.items()]

    def __enter__(self):
        self._seen, self._notes = {}, {}
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"there is no folder {folder} for {os.path.basename(self.path)}")
        with _lock:
            if not _active:
                _install()
            _active.append(self)
        mode = _Calls()
        mode.__enter__()
        self._mode.append(mode)
        return self

    def __exit__(self, kind, error, trace_back):
        self._mode.pop().__exit__(None, None, None)
        with _lock:
            _active.remove(self)
            if not _active:
                _uninstall()
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            first = (str(error).splitlines() or [""])[0]
            self._note(f"the program ended early ({type(error).__name__}: {first}): later attentions are missing")
        for name in _OTHERS:
            if name in sys.modules:
                self._note(f"{name} is loaded: its attentions are not seen")
        try:
            self.write()
        except Exception as why:
            if error is None:
                raise
            # What ended the program is the error to see.
            warnings.warn(f"{self.path} is not written: {why}", stacklevel=2)
        return False

    def write(self) -> None:
        """Writes the file: as a whole, or not at all."""
        with _locked(self.path) if self.merge else contextlib.nullcontext():
            entries, notes = self.entries, self.notes
            if self.merge and os.path.exists(self.path):
                old = _read_manifest(self.path)
                same = ("model", "phase", "scale", "batch", "seq", "text")
                key = lambda entry: tuple(json.dumps(_bare(entry.get(name))) for name in same)  # noqa: E731
                known = {key(entry) for entry in old.get("attention", [])}
                entries = [entry for entry in entries if key(entry) not in known]
                notes = [note for note in notes if note not in old.get("notes", [])]
                if not entries and not notes:
                    return
                entries, notes = old.get("attention", []) + entries, old.get("notes", []) + notes
            _replace(self.path, _manifest_text(self.path, entries, notes))

    def _entry(self, entry: _Entry, more: int) -> dict:
        described = entry.described
        out = {
            "model": self.model,
            "layer": ", ".join(entry.layers),
            "layers": entry.calls + more,
            "phase": described.phase,
        }
        if described.scale is not None:
            out["scale"] = described.scale
        out["text"] = described.text
        return out

    def _note(self, note: str) -> None:
        with _lock:
            self._notes[note] = self._notes.get(note, 0) + 1

    def _add(self, what: str, call: dict) -> None:
        layer, place = _layer()
        at = ", ".join(part for part in (layer, place) if part)
        try:
            described = describe(**call, dtype=self.dtype, read_masks=self.read_masks)
        except (Undescribed, Untraceable) as why:
            return self._note(f"not recorded: {what} of {_shapes(call)} in {at}: {why}")
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            return self._note(f"not recorded: {what} of {_shapes(call)} in {at}: {type(error).__name__}: {first}")
        with _lock:
            key = (described.text, described.scale, described.phase)
            entry = self._seen.setdefault(key, _Entry(described))
            entry.calls += 1
            if layer and layer not in entry.layers and len(entry.layers) < 3:
                entry.layers.append(layer)
            for remark in described.remarks:
                self._notes.setdefault(f"{layer or place}: {remark}", 1)


def _bare(value):
    return (value.strip() if isinstance(value, str) else value) or None


def _shapes(call: dict) -> str:
    try:
        return " x ".join(str([_size(n) for n in call[name].shape]) for name in ("query", "key", "value"))
    except Exception:
        return "tensors without shapes"


def _layer() -> tuple:
    """The class of the innermost module that calls, and the line of code outside PyTorch."""
    frame, place = sys._getframe(2), ""
    place = _place(frame)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            return type(owner).__name__, place
        frame = frame.f_back
    return "", place


def _busy() -> bool:
    return getattr(_here, "busy", False)


def _tell(what: str, call: dict) -> None:
    with _lock:
        recorders = list(_active)
    for recorder in recorders:
        recorder._add(what, call)


def _tell_note(note: str) -> None:
    with _lock:
        recorders = list(_active)
    for recorder in recorders:
        recorder._note(note)


_SDPA_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _sdpa(*args, **kwargs):
    """`scaled_dot_product_attention` while a recorder is active."""
    if _busy() or not _active:
        return _SDPA(*args, **kwargs)
    _here.busy = True
    try:
        call = {**dict(zip(_SDPA_NAMES, args)), **kwargs}
        call.pop("enable_gqa", None)
        # A mask that is a class decides by the name of the function, which is this one meanwhile.
        decides = getattr(type(call.get("attn_mask")), "_dispatch", None) is not None
        try:
            if decides:
                kind, function = type(call["attn_mask"]), torch.nn.functional.scaled_dot_product_attention
                out = kind.__torch_function__(function, (kind,), args, kwargs)
            else:
                out = _SDPA(*args, **kwargs)
        except Exception as error:
            if type(error).__name__ == "_StopRecomputationError":
                # Checkpointing has what it recomputes for.
                _tell("scaled_dot_product_attention", call)
                raise
            shapes = _shapes(call) if {"query", "key", "value"} <= set(call) else "?"
            first = (str(error).splitlines() or [""])[0]
            _tell_note(f"not recorded: scaled_dot_product_attention of {shapes} failed: {first}")
            raise
        _tell("scaled_dot_product_attention", call)
        return out
    finally:
        _here.busy = False


_sdpa.__name__ = "scaled_dot_product_attention"
_sdpa.__doc__ = _SDPA.__doc__


def _flex(query, key, value, score_mod, block_mask, scale, kernel_options, *rest, **kwargs):
    """FlexAttention's operator while a recorder is active."""
    run = functools.partial(
        _flex_op(), query, key, value, score_mod, block_mask, scale, kernel_options, *rest, **kwargs
    )
    if _busy() or not _active:
        return run()
    _here.busy = True
    try:
        call = {"query": query, "key": key, "value": value, "scale": scale, "autocast": False}
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "flex_attention":
            frame = frame.f_back
        asked = frame.f_locals if frame is not None else {}
        aux = asked.get("return_aux")
        call["outputs"] = [
            *(["stats"] if asked.get("return_lse") or getattr(aux, "lse", False) else []),
            *(["max"] if getattr(aux, "max_scores", False) else []),
        ]
        mask_mod = block_mask[-1]
        call["score_mod"] = None if getattr(score_mod, "__name__", "") == "_identity" else score_mod
        call["mask_mod"] = None if getattr(mask_mod, "__name__", "") == "noop_mask" else mask_mod
        hidden = call["mask_mod"] is None and _hides_blocks(block_mask)
        if hidden:
            layer, place = _layer()
            _tell_note(f"not recorded: flex_attention of {_shapes(call)} in {layer or place}: {hidden}")
        else:
            _tell("flex_attention", call)
        if query.device.type == "meta":
            shape = [*query.shape[:3], value.shape[-1]]
            lse = query.new_empty(shape[:3], dtype=torch.float32)
            return (
                (query.new_empty(shape), lse, lse.clone())
                if hasattr(_flex_module(), "AuxRequest")
                else (query.new_empty(shape), lse)
            )
        scores = 4 * query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
        if query.device.type not in _ON_HOST and scores > _LARGE_SCORES:
            return _run_compiled(run, query, call["outputs"])
        return run()
    finally:
        _here.busy = False


def _run_compiled(run, query, outputs):
    """Runs FlexAttention's operator compiled. What nobody asked for stays empty: not every backend has it."""
    wanted = [True, "stats" in outputs, "max" in outputs]
    stance = getattr(torch.compiler, "set_stance", None)

    def some():
        return tuple(out for out, is_wanted in zip(run(), wanted) if is_wanted)

    with torch._C.DisableTorchFunction(), stance("default") if stance else contextlib.nullcontext():
        found = iter(torch.compile(some, fullgraph=True)())
    out = [next(found) if is_wanted else query.new_empty(0) for is_wanted in wanted]
    return tuple(out if hasattr(_flex_module(), "AuxRequest") else out[:2])


def _hides_blocks(block_mask: tuple) -> str:
    """Whether lists of blocks hide keys that no function hides."""
    first = next(at for at, part in enumerate(block_mask) if isinstance(part, torch.Tensor))
    counts, places, full = block_mask[first : first + 3]
    blocks = places.shape[-1]
    if blocks == 1 and counts.device.type == "meta":
        return ""
    if not _concrete(counts):
        return "a mask of blocks without mask_mod, whose values are not there"
    with _plain():
        seen = counts if full is None else counts + full
        return "" if bool((seen == blocks).all()) else "a mask of blocks without mask_mod, which cuDNN does not have"


def _flex_module():
    return importlib.import_module("torch.nn.attention.flex_attention")


@functools.lru_cache(None)
def _flex_op():
    from torch._higher_order_ops.flex_attention import flex_attention

    return flex_attention


class _Calls(TorchFunctionMode):
    """Sees calls by names that no module has, on the thread that it is active on, and turns fused fast paths off."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not _busy():
            if func is _SDPA:
                return _sdpa(*args, **kwargs)
            name = getattr(func, "__name__", "")
            if name == "multi_head_attention_forward":
                names = list(inspect.signature(func).parameters)
                if {**dict(zip(names, args)), **kwargs}.get("need_weights", True):
                    layer, place = _layer()
                    shapes = " x ".join(str(list(tensor.shape)) for tensor in args[:2])
                    _tell_note(
                        f"not recorded: {layer or place} of {shapes} (rows, batch, width) returns its weights, so "
                        "PyTorch multiplies matrices instead; give need_weights=False"
                    )
            elif name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
                _tell_note(f"not recorded: torch.{name}, a fused layer")
        return func(*args, **kwargs)


def _install() -> None:
    """Puts the recorder in the places of the two functions."""
    global _undo
    _read.clear()
    _traces.clear()
    _undo = contextlib.ExitStack()

    def put(owner, name, value):
        _undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    for module in list(sys.modules.values()):
        try:
            names = [name for name, value in list(vars(module).items()) if value is _SDPA]
        except Exception:
            continue
        for name in names:
            if module is not torch._C._nn and module is not sys.modules[__name__]:
                put(module, name, _sdpa)
    put(torch.nn.functional, "scaled_dot_product_attention", _sdpa)
    with contextlib.suppress(AttributeError, ImportError):
        # TorchScript looks the function up by identity.
        importlib.import_module("torch.jit._builtins")._register_builtin(_sdpa, "aten::scaled_dot_product_attention")
    flex = _flex_module()
    put(flex, "flex_attention_hop", _flex)
    check = getattr(flex, "_validate_device", None)
    if check is not None:
        put(flex, "_validate_device", lambda q, *rest: None if q.device.type == "meta" else check(q, *rest))
    start = threading.Thread._bootstrap_inner

    def started(thread):
        with _Calls():
            start(thread)

    put(threading.Thread, "_bootstrap_inner", started)
    if hasattr(torch.compiler, "set_stance"):
        stance = torch.compiler.set_stance("force_eager")
        stance.__enter__()
        _undo.callback(stance.__exit__, None, None, None)
    else:
        put(importlib.import_module("torch._dynamo").config, "disable", True)


def _uninstall() -> None:
    _undo.close()
    _read.clear()
    _traces.clear()


# The file.


def _quoted(text: str) -> str:
    return json.dumps(re.sub(r"[\x00-\x1f\x7f]", " ", str(text)), ensure_ascii=False)


def _toml(entries: list, notes: list) -> str:
    out = [f"qkvault-manifest = {MANIFEST_VERSION}"]
    if notes:
        out.append("notes = [\n" + "".join(f"    {_quoted(note)},\n" for note in notes) + "]")
    for entry in entries:
        out.append("\n[[attention]]")
        for name, value in entry.items():
            if name == "text" and "'''" not in value:
                out.append(f"text = '''\n{value.strip()}\n'''")
            else:
                out.append(f"{name} = {_quoted(value) if isinstance(value, str) else repr(value)}")
    return "\n".join(out) + "\n"


def _manifest_text(path: str, entries: list, notes: list) -> str:
    if path.endswith(".json"):
        data = {"qkvault-manifest": MANIFEST_VERSION, **({"notes": notes} if notes else {}), "attention": entries}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return _toml(entries, notes)


def _read_manifest(path: str) -> dict:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".json"):
        data = json.loads(text)
    else:
        try:
            import tomllib
        except ImportError as error:
            raise RuntimeError("merging TOML needs Python 3.11 or newer; use a .json manifest") from error
        data = tomllib.loads(text)
    if data.get("qkvault-manifest") != MANIFEST_VERSION:
        raise ValueError(f"{path} is no manifest of version {MANIFEST_VERSION}: it stays as it is")
    return data


@contextlib.contextmanager
def _locked(path: str):
    """Holds the lock file that qkvault's own recorder uses, so that processes may add to one file."""
    folder, name = os.path.split(os.path.abspath(path))
    with open(os.path.join(folder, f".{name}.lock"), "w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:
            pass
        yield


def _replace(path: str, text: str) -> None:
    """Writes a file beside it and renames that, so that readers see the old one or the new one."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, new = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", suffix=".new", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(new, 0o666 & ~mask)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(new)
        raise


# ---------------------------------------------------------------------------------------------------------------------
# 4. The program.
# ---------------------------------------------------------------------------------------------------------------------


def main(arguments=None) -> None:
    """Runs a script or a module inside `record`."""
    parser = argparse.ArgumentParser(prog="python -m qkvault_record", description=main.__doc__)
    parser.add_argument("--out", required=True, help="the manifest, .toml or .json")
    parser.add_argument("--merge", action="store_true", help="add to what the file has")
    parser.add_argument("--model", default="", help="the model's name in the entries")
    parser.add_argument("--dtype", choices=("bf16", "f16"), help="takes the place of float32")
    parser.add_argument(
        "--keep-masks", action="store_true", help="describe masks as tensors, whatever their values are"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, not a file")
    parser.add_argument("program", help="the script, or the module after -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is called with")
    given = parser.parse_args(arguments)
    recorder = record(
        given.out, merge=given.merge, model=given.model, dtype=given.dtype, read_masks=not given.keep_masks
    )
    sys.argv = [given.program, *given.arguments]
    try:
        with recorder:
            if given.module:
                sys.path[0] = os.getcwd()
                runpy.run_module(given.program, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.abspath(given.program))
                runpy.run_path(given.program, run_name="__main__")
    finally:
        calls = sum(entry["layers"] for entry in recorder.entries)
        print(
            f"{given.out}: {len(recorder.entries)} attentions of {calls} calls, {len(recorder.notes)} notes",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
