"""Dicts, objects, modules and classes whose reads are noted: what a followed function gets in their place."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._reads import told

if TYPE_CHECKING:
    from ._follow import Followed

#: Modules whose functions read nothing that changes. Their names may be part of a path's end, but no value of it.
TRUSTED = {
    "torch", "jax", "jaxlib", "flax", "equinox", "numpy", "math", "cmath", "operator", "functools", "itertools",
    "builtins", "typing", "collections", "einops", "dataclasses", "enum", "qkvault", "qkvault_record",
}  # fmt: skip


def trusted(name: Optional[str]) -> bool:
    return bool(name) and name.split(".")[0] in TRUSTED


class Dict(dict):
    """A dict that was read: its items are followed when they are."""

    __slots__ = ("_followed", "_path", "_keys")

    def __init__(self, followed: Followed, real: dict, path: tuple):
        super().__init__(real)
        self._followed, self._path, self._keys = followed, path, False
        followed._alive.append(real)
        followed.note(path, "type", dict)

    def __getitem__(self, key):
        return self._followed.value(dict.__getitem__(self, key), (*self._path, ("item", key)))

    def get(self, key, default=None):
        if dict.__contains__(self, key):
            return self[key]
        self.all()
        return default

    def all(self):
        if not self._keys:
            self._keys = True
            self._followed.note(self._path, "keys", tuple(dict.keys(self)))

    def __iter__(self):
        self.all()
        return dict.__iter__(self)

    def __len__(self):
        self.all()
        return dict.__len__(self)

    def __contains__(self, key):
        self.all()
        return dict.__contains__(self, key)

    def keys(self):
        self.all()
        return dict.keys(self)

    def values(self):
        return [self[key] for key in self]

    def items(self):
        return [(key, self[key]) for key in self]

    def _changed(self, *_, **__):
        self._followed.fail(f"a change of the dict at {told(self._path)}")
        raise TypeError("a modification changes a dict that it reads; compute it outside")

    __setitem__ = __delitem__ = pop = popitem = clear = update = setdefault = __ior__ = _changed


class Object:
    """An object that was read: its attributes are followed when they are."""

    __slots__ = ("_qkv_followed", "_qkv_real", "_qkv_path")

    def __init__(self, followed: Followed, real: Any, path: tuple):
        for name, value in (("_qkv_followed", followed), ("_qkv_real", real), ("_qkv_path", path)):
            object.__setattr__(self, name, value)
        followed._alive.append(real)

    def __getattribute__(self, name):
        if name.startswith("_qkv_"):
            return object.__getattribute__(self, name)
        followed, real, path = self._qkv_followed, self._qkv_real, self._qkv_path
        if name == "__class__":
            return type(real)
        return _attribute(followed, self, real, path, name)

    def __setattr__(self, name, value):
        self._qkv_followed.fail(f"an assignment to {name} at {told(self._qkv_path)}")
        setattr(self._qkv_real, name, value)

    def __call__(self, *arguments, **words):
        real = self._qkv_real
        if isinstance(real, type):
            self._qkv_followed.fail(f"a new {real.__name__} at {told(self._qkv_path)}")
            return real(*arguments, **words)
        return _special(self, "__call__")(*arguments, **words)

    def __instancecheck__(self, value):
        real = value._qkv_real if isinstance(value, Object) else value
        return isinstance(real, self._qkv_real)

    def __subclasscheck__(self, value):
        return issubclass(value._qkv_real if type(value) is Object else value, self._qkv_real)


def _special(own: Object, name: str) -> Callable:
    """A method that Python looks up in the class."""
    real, path = own._qkv_real, own._qkv_path
    found = next((vars(base)[name] for base in type(real).__mro__ if name in vars(base)), None)
    if isinstance(found, types.FunctionType) and not trusted(found.__module__):
        step = (*path, ("attr", name), ("attr", "__func__"))
        return types.MethodType(own._qkv_followed.value(found, step), own)
    if found is None:
        raise TypeError(f"a {type(real).__name__} has no {name}")
    own._qkv_followed.fail(f"{name} of a {type(real).__name__} at {told(path)}")
    return getattr(real, name)


def _passing(name: str) -> Callable:
    def method(self, *others):
        return _special(self, name)(*(other._qkv_real if type(other) is Object else other for other in others))

    return method


for _name in (
    "getitem len iter contains bool eq ne lt le gt ge hash add radd sub rsub mul rmul truediv rtruediv floordiv mod "
    "neg index int float array"
).split():
    if _name not in ("bool", "eq", "ne", "hash"):
        setattr(Object, f"__{_name}__", _passing(f"__{_name}__"))


def _bool(self):
    kind = type(self._qkv_real)
    if any("__bool__" in vars(base) or "__len__" in vars(base) for base in kind.__mro__):
        self._qkv_followed.fail(f"the truth of a {kind.__name__} at {told(self._qkv_path)}")
    return bool(self._qkv_real)


def _equal(self, other):
    kind = type(self._qkv_real)
    if kind.__eq__ is not object.__eq__:
        self._qkv_followed.fail(f"a comparison of a {kind.__name__} at {told(self._qkv_path)}")
    return self._qkv_real == (other._qkv_real if type(other) is Object else other)


def _hashed(self):
    return hash(self._qkv_real)


Object.__bool__, Object.__eq__, Object.__hash__ = _bool, _equal, _hashed


def object_of(followed: Followed, real: Any, path: tuple) -> Object:
    found = followed._memo.get(id(real))
    if found is None:
        found = followed._memo[id(real)] = Object(followed, real, path)
    return found


def _attribute(followed: Followed, own: Object, real: Any, path: tuple, name: str) -> Any:
    """An attribute of a followed object, by the rules of Python."""
    step = (*path, ("attr", name))
    if isinstance(real, (type, types.ModuleType)):
        value = getattr(real, name)
        if isinstance(value, types.MethodType) and isinstance(real, type):
            return types.MethodType(followed.value(value.__func__, (*step, ("attr", "__func__"))), own)
        return followed.value(value, step)
    stored = vars(real).get(name, step) if hasattr(real, "__dict__") else step
    if stored is step:
        found = next((vars(base)[name] for base in type(real).__mro__ if name in vars(base)), None)
        if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
            if not trusted(found.fget.__module__):
                inner = (*path, ("attr", "__class__"), ("attr", name), ("attr", "fget"))
                return followed.value(found.fget, inner)(own)
        elif isinstance(found, types.FunctionType):
            return types.MethodType(followed.value(found, (*step, ("attr", "__func__"))), own)
        elif isinstance(found, staticmethod):
            return followed.value(found.__func__, step)
        elif isinstance(found, classmethod):
            kind = followed.value(type(real), (*path, ("attr", "__class__")))
            return types.MethodType(followed.value(found.__func__, (*step, ("attr", "__func__"))), kind)
    return followed.value(getattr(real, name), step)


