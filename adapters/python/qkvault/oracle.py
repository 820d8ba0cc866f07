"""The oracle: an attention computed on the CPU in float64, to compare GPUs and frameworks with.

    oracle = Oracle(attention).random(seed=1)
    oracle.run()
    exact = oracle["o"]                         # float64, shaped like the operand
    assert oracle.compare("o", bytes_of_a_launch).good
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Optional

from . import _abi
from ._attention import Attention, Operand
from ._errors import ArgumentError
from ._library import Handle, call, handle, sized

_CODES = {"f": _abi.F32, "d": _abi.F64, "i": _abi.I32, "l": _abi.I64, "q": _abi.I64, "B": _abi.U8, "?": _abi.BOOL}
_CODES["e"] = _abi.F16


@dataclass(frozen=True)
class Comparison:
    """How a result differs from the exact numbers. It is true if the result is good."""

    #: Whether it is within the bounds of its element type, wholly written, and finite where it must be.
    good: bool
    #: Elements compared.
    elements: int
    #: Norm of the difference, divided by the norm of the exact numbers.
    relative: float
    #: Largest difference of one element.
    largest: float
    #: Elements that are not finite although the exact number is, or the reverse.
    non_finite: int
    #: Elements that were not written.
    unwritten: int
    #: Elements outside the tensor that were written.
    touched: int

    def __bool__(self) -> bool:
        return self.good


class Oracle(Handle):
    """An attention on the CPU with its inputs and, after `run`, its outputs.

    Arrays are NumPy's, or any buffer that is contiguous: C-ordered over an operand's dims, or one-dimensional in its
    memory order. They may be of the operand's element type, or of float32 or float64, which are rounded once. The
    softmax scale is the usual one until it is set.
    """

    _free = "qkv_oracle_free"

    def __init__(self, attention: Attention):
        super().__init__(handle("qkv_oracle_new", attention._address))
        self.attention = attention
        if self._operand("scale") is not None:
            self.set("scale", attention.default_scale)

    def __repr__(self) -> str:
        return f"<qkvault.oracle.Oracle {self.attention}>"

    def random(self, seed: int = 0) -> "Oracle":
        """Sets every input to random numbers that fit each other; the same for the same seed."""
        call("qkv_oracle_random", self._address, seed)
        return self

    def set(self, name: str, values: Any) -> "Oracle":
        """Sets an input by its role or name; a number for a scalar."""
        dtype, data = _buffer(values, self._operand(name))
        call("qkv_oracle_set", self._address, name.encode(), dtype, data, len(data))
        return self

    def __setitem__(self, name: str, values: Any) -> None:
        self.set(name, values)

    def add_forward(self) -> "Oracle":
        """Computes the `o` and `stats` that a backward reads."""
        call("qkv_oracle_add_forward", self._address)
        return self

    def run(self) -> "Oracle":
        """Computes the outputs."""
        call("qkv_oracle_run", self._address)
        return self

    def input(self, name: str) -> bytes:
        """The bytes of an input, as a GPU would hold them."""
        return self._bytes("qkv_oracle_input", name)

    def output(self, name: str) -> bytes:
        """The bytes of an output, as a GPU would hold them, rounded once."""
        return self._bytes("qkv_oracle_output", name, 0)

    def __getitem__(self, name: str) -> Any:
        """An output in float64: an array of NumPy with the operand's dims, or a flat memoryview without NumPy."""
        operand = self._operand(name)
        return _shaped(self._bytes("qkv_oracle_output", name, _abi.F64), "d", operand)

    def compare(self, name: str, data: Any) -> Comparison:
        """Compares the bytes that a launch wrote with an output. Set all bits of them before the launch."""
        data = bytes(memoryview(data).cast("B")) if not isinstance(data, bytes) else data
        found = sized(_abi.qkv_comparison)
        call("qkv_oracle_compare", self._address, name.encode(), data, len(data), ctypes.byref(found))
        return Comparison(
            bool(found.good), found.elements, found.relative, found.largest, found.non_finite, found.unwritten,
            found.touched,
        )

    def _operand(self, name: str) -> Optional[Operand]:
        return next((o for o in self.attention.operands if name in (o.role, o.name)), None)

    def _bytes(self, function: str, name: str, *dtype: int) -> bytes:
        size = ctypes.c_size_t()
        call(function, self._address, name.encode(), *dtype, None, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        call(function, self._address, name.encode(), *dtype, data, ctypes.byref(size))
        return data.raw


def _buffer(values: Any, operand: Optional[Operand]) -> tuple[int, bytes]:
    """The dtype and the bytes of an array, in the memory order of its operand."""
    if isinstance(values, (int, float)):
        return _abi.F64, bytes(ctypes.c_double(values))
    view = memoryview(values)
    if view.format not in _CODES:
        raise ArgumentError(f"an array of format {view.format!r} has no place here; give float32 or float64")
    flat = view.ndim <= 1 or operand is None or _ordered(operand)
    if not view.c_contiguous or not flat:
        return _CODES[view.format], _strided(values, operand)
    return _CODES[view.format], bytes(view.cast("B"))


def _ordered(operand: Operand) -> bool:
    """Whether the memory order of an operand is that of its dims, without gaps."""
    step = 1
    for extent, stride in zip(reversed(operand.dims), reversed(operand.strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _strided(values: Any, operand: Optional[Operand]) -> bytes:
    """The elements of an array over the operand's dims, in its memory order."""
    import numpy as np

    array = np.asarray(values)
    if operand is None or array.ndim != 4:
        return np.ascontiguousarray(array).tobytes()
    if array.shape != operand.dims:
        raise ArgumentError(f"{operand.role} has the dims {list(operand.dims)}; the array has {list(array.shape)}")
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(operand.dims, operand.strides))
    flat = np.zeros(size, array.dtype)
    strides = [stride * array.itemsize for stride in operand.strides]
    np.lib.stride_tricks.as_strided(flat, operand.dims, strides)[...] = array
    return flat.tobytes()


def _shaped(data: bytes, code: str, operand: Optional[Operand]) -> Any:
    try:
        import numpy as np
    except ImportError:
        return memoryview(data).cast(code)
    flat = np.frombuffer(data, code)
    if operand is None:
        return flat
    strides = [stride * flat.itemsize for stride in operand.strides]
    return np.lib.stride_tricks.as_strided(flat, operand.dims, strides).copy()
