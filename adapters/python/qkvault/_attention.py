"""Descriptions: what an attention computes, as a value."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional, Union

from . import _abi
from ._errors import Reason
from ._library import Handle, call, decoded, encoded, handle, sized, taken, text

DTYPES = {
    _abi.F16: "f16", _abi.BF16: "bf16", _abi.F32: "f32", _abi.E4M3: "e4m3", _abi.E5M2: "e5m2", _abi.E8M0: "e8m0",
    _abi.I32: "i32", _abi.I64: "i64", _abi.U8: "u8", _abi.BOOL: "bool",
}


@dataclass(frozen=True)
class Operand:
    """A tensor or a scalar that a launch reads or writes."""

    #: The name of its role, such as `q`, `stats`, `d_q`, `scalar.0`.
    role: str
    #: Its name in the description's expressions, or None.
    name: Optional[str]
    #: The number of its role, the same in every version.
    role_id: int
    #: Element type, such as `bf16`.
    dtype: str
    #: Extents over (batch, head, sequence, head dim); over (batch, head, query, key) for operands of expressions.
    dims: tuple[int, int, int, int]
    #: Elements between neighbours along each dim.
    strides: tuple[int, int, int, int]
    #: Bytes of its buffer.
    bytes: int
    #: Alignment of its address in bytes.
    alignment: int
    #: Whether a launch writes it.
    output: bool
    #: Whether it is one number on the host instead of memory on the GPU.
    scalar: bool
    #: Whether its values follow from the description, so that a launch does not take it.
    constant: bool
    #: Whether kernels follow its numbers to other memory: lengths, offsets, page tables.
    followed: bool

    @classmethod
    def _of(cls, raw: _abi.qkv_operand) -> "Operand":
        return cls(
            role=decoded(raw.role), name=decoded(raw.name) or None, role_id=raw.role_id,
            dtype=DTYPES.get(raw.dtype, str(raw.dtype)), dims=tuple(raw.dims), strides=tuple(raw.strides),
            bytes=raw.bytes, alignment=raw.alignment, output=bool(raw.output), scalar=bool(raw.scalar),
            constant=bool(raw.constant), followed=bool(raw.followed),
        )


def operand(function: str, owner: int, place: int) -> Operand:
    """An operand by its place."""
    raw = sized(_abi.qkv_operand)
    call(function, owner, place, ctypes.byref(raw))
    return Operand._of(raw)


@dataclass(frozen=True, repr=False)
class Explanation:
    """What the rules say of an attention on a GPU. It is true if the attention is supported."""

    #: Whether it is supported.
    supported: bool
    #: Every reason why cuDNN does not take it, or the one engine that the context allows.
    reasons: tuple[Reason, ...]
    #: Everything as the command `qkvault probe --json` writes it: also `engine`, whose plan is looked for first and
    #: why, `nearest`, `allowed` and `memory`.
    facts: dict
    #: The same in words.
    text: str

    def __bool__(self) -> bool:
        return self.supported

    def __repr__(self) -> str:
        codes = ", ".join(reason.code for reason in self.reasons)
        return f"<qkvault.Explanation {'supported' if self.supported else f'not supported: {codes}'}>"

    def __str__(self) -> str:
        return self.text


class Attention(Handle):
    """A valid description of one attention. It never changes; equal descriptions compute the same.

    `Attention("q: bf16 [1,32,4096,128]\\nk: bf16 [1,8,4096,128]\\nmask: causal")` reads the text form, of which only Q is
    needed. `Attention(q="bf16 [1,32,4096,128]", mask="causal")` gives the same fields by name.

    Raises `ParseError` with line and column, and `Refused` with everything in which a description contradicts itself.
    """

    _free = "qkv_attention_free"

    def __init__(self, description: Optional[str] = None, **fields: Union[str, bool, int]):
        if (description is None) == (not fields):
            raise TypeError("give the text form of a description, or its fields by name")
        if description is None:
            words = {True: "yes", False: "no"}
            description = "".join(f"{name}: {words.get(value, value)}\n" for name, value in fields.items())
        given = description.encode()
        super().__init__(handle("qkv_attention_parse", given, len(given)))

    @classmethod
    def _at(cls, address: int) -> "Attention":
        new = cls.__new__(cls)
        Handle.__init__(new, address)
        return new

    @classmethod
    def from_json(cls, description: Union[str, dict]) -> "Attention":
        """Reads a description from JSON, as `json` writes it."""
        given = (description if isinstance(description, str) else json.dumps(description)).encode()
        return cls._at(handle("qkv_attention_from_json", given, len(given)))

    @cached_property
    def text(self) -> str:
        """The complete text form."""
        return text("qkv_attention_text", self._address)

    @cached_property
    def json(self) -> str:
        """The description as JSON."""
        return text("qkv_attention_json", self._address)

    @cached_property
    def key(self) -> str:
        """The key in hexadecimal digits: equal exactly for attentions that compute the same, on every machine."""
        key = (ctypes.c_uint8 * 32)()
        call("qkv_attention_key", self._address, key)
        return bytes(key).hex()

    @cached_property
    def default_scale(self) -> float:
        """One over the square root of the head dim."""
        scale = ctypes.c_float()
        call("qkv_attention_default_scale", self._address, ctypes.byref(scale))
        return scale.value

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """Tensors and scalars that a launch reads and writes. No plan and no GPU is needed."""
        count = ctypes.c_size_t()
        call("qkv_attention_operand_count", self._address, ctypes.byref(count))
        return tuple(operand("qkv_attention_operand", self._address, place) for place in range(count.value))

    def backward(self, *, deterministic: bool = False, d_sink: bool = False) -> "Attention":
        """The backward of this forward, whose inputs are those of the forward, `o`, `stats` and `d_o`."""
        return self._at(handle("qkv_attention_backward", self._address, int(deterministic), int(d_sink)))

    def training(self, *, deterministic: bool = False, d_sink: bool = False) -> tuple["Attention", "Attention"]:
        """The forward that writes `stats`, and its backward."""
        forward, backward = ctypes.c_void_p(), ctypes.c_void_p()
        call(
            "qkv_training", self._address, int(deterministic), int(d_sink), ctypes.byref(forward),
            ctypes.byref(backward),
        )
        return self._at(forward.value or 0), self._at(backward.value or 0)

    def explain(self, gpu: str = "h200", cudnn: Optional[str] = None, *, context: Any = None) -> Explanation:
        """Asks the rules whether a GPU and a cuDNN support it. It takes microseconds and needs neither.

        `gpu` is a name such as `h200` or the text of a profile; `cudnn` a version such as `9.19.0`, or None for the
        newest that the rules cover. Not being supported is an answer, no exception.
        """
        from ._context import default_context

        place, words = ctypes.c_void_p(), ctypes.c_void_p()
        call(
            "qkv_explain", (context or default_context())._address, self._address, gpu.encode(), encoded(cudnn),
            ctypes.byref(place), ctypes.byref(words),
        )
        facts, said = json.loads(taken(place)), taken(words)
        reasons = tuple(Reason._of(row) for row in facts["reasons"])
        return Explanation(facts["supported"], reasons, facts, said)

    def __str__(self) -> str:
        return text("qkv_attention_summary", self._address)

    def __repr__(self) -> str:
        return f"<qkvault.Attention {self}>"

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Attention) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple:
        return Attention, (self.text,)
