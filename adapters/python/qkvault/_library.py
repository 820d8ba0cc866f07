"""The shared library: where it is, how it is called, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any, Callable, Optional

from . import _abi
from ._errors import from_status

#: Names the library that is loaded, instead of the one in the package.
VARIABLE = "QKVAULT_LIBRARY"

_loaded: Optional[ctypes.CDLL] = None


def path() -> pathlib.Path:
    """The file of the library: that of `QKVAULT_LIBRARY`, else the one in this package."""
    given = os.environ.get(VARIABLE)
    return pathlib.Path(given) if given else pathlib.Path(__file__).with_name("libqkvault.so")


def library() -> ctypes.CDLL:
    """The library, loaded with the first call."""
    global _loaded
    if _loaded is None:
        file = path()
        try:
            found = ctypes.CDLL(str(file))
        except OSError as error:
            raise ImportError(
                f"{file} could not be loaded: {error}. It is part of the wheel for Linux on x86-64; {VARIABLE} names "
                "another file"
            ) from None
        _check(file, found)
        for name, arguments in _abi.FUNCTIONS.items():
            function = getattr(found, name)
            function.argtypes, function.restype = arguments, ctypes.c_int32
        _loaded = found
    return _loaded


def _check(file: pathlib.Path, found: ctypes.CDLL) -> None:
    """Raises if a library is not of the interface that this package is for."""
    needs = f"this package needs {_abi.ABI_MAJOR}.{_abi.ABI_MINOR}: install library and package from one wheel"
    if not hasattr(found, "qkv_version"):
        raise ImportError(f"{file} is no libqkvault, whose functions begin with qkv_; {VARIABLE} names another file")
    info = sized(_abi.qkv_version_info)
    found.qkv_version(ctypes.byref(info))
    given = f"{file} has version {info.abi_major}.{info.abi_minor} of its interface"
    if info.abi_major != _abi.ABI_MAJOR or info.abi_minor < _abi.ABI_MINOR:
        raise ImportError(f"{given}; {needs}")
    lacking = [name for name in _abi.FUNCTIONS if not hasattr(found, name)]
    if lacking:
        raise ImportError(f"{given} and lacks {', '.join(lacking[:3])}; {needs}")


def sized(struct: type, **values: Any) -> Any:
    """A struct with its size and values."""
    return struct(struct_size=ctypes.sizeof(struct), **values)


def whole(value: int, bits: int, what: str, signed: bool = False) -> int:
    """A whole number of so many bits. ctypes cuts off what is beyond, and the library would never see it."""
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not least <= value <= most:
        raise ValueError(f"{what} is {value}; give a number from {least} to {most}")
    return value


def call(function: str, *arguments: Any) -> None:
    """Calls a function, and raises its error."""
    found = library()
    status = getattr(found, function)(*arguments)
    if status == _abi.OK:
        return
    error = sized(_abi.qkv_error)
    found.qkv_last_error(ctypes.byref(error))
    raise from_status(status, decoded(error.message), decoded(error.kind), decoded(error.reasons))


def decoded(text: Optional[bytes]) -> str:
    """Text that the library keeps."""
    return (text or b"").decode()


def encoded(text: Optional[str]) -> Optional[bytes]:
    """Text for the library; None stays null."""
    return None if text is None else os.fsencode(text)


def handle(function: str, *arguments: Any) -> int:
    """Calls a function whose last parameter gets a handle."""
    place = ctypes.c_void_p()
    call(function, *arguments, ctypes.byref(place))
    return place.value or 0


def text(function: str, *arguments: Any) -> str:
    """Calls a function whose last parameter gets text, and frees that."""
    place = ctypes.c_void_p()
    call(function, *arguments, ctypes.byref(place))
    return taken(place)


def taken(place: ctypes.c_void_p) -> str:
    """The text at an address that the library gave away."""
    try:
        return ctypes.string_at(place.value).decode() if place.value else ""
    finally:
        library().qkv_string_free(place)


class Handle:
    """Something of the library, freed with the last reference to it."""

    _free: str = ""

    def __init__(self, address: int):
        self._address = address

    def __reduce__(self) -> Any:
        # A copy of the address would be freed twice.
        raise TypeError(f"{type(self).__name__} belongs to this process and cannot be copied or pickled; make another")

    def __del__(self, _call: Callable[..., None] = call) -> None:
        address, self._address = getattr(self, "_address", 0), 0
        if address and _loaded is not None:
            getattr(_loaded, self._free)(address)
