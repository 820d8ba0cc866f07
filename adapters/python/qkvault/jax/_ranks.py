"""The call of an attention that the ranks of a mesh axis share, and how they meet when it runs for the first time."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .. import _abi
from .._attention import Attention
from .._errors import ArgumentError, PlanMissing, Refused
from .._library import call, library
from .._ranks import ORDERS, SCHEMES, Rank
from ._config import RANKS, settings
from ._meetings import Meetings
from ._sharing import Sharing


def bound(types: list, given: list, attributes: dict[str, Any], attention: Attention, sharing: Sharing) -> list:
    """Binds the call of this rank. What cannot be shared so raises `Refused`, with codes `shard.`."""
    settings()
    _checked(attention, sharing)
    mesh = jax.sharding.get_abstract_mesh()
    axes = ", ".join(f"{name} {mesh.shape[name]}" for name in mesh.axis_names)
    attributes = {**attributes, "scalars": tuple(attributes["scalars"].tolist())}
    shown = (*attributes.items(), ("sharding", sharing.words), ("mesh", f"{sharing.axis} of {axes}"))
    return _call.bind(*given, types=tuple(types), attributes=shown)


@functools.lru_cache(maxsize=4096)
def _checked(attention: Attention, sharing: Sharing) -> None:
    own = _abi.qkv_sharding(scheme=SCHEMES[sharing.strategy], order=ORDERS[sharing.order])
    call("qkv_sharding_check", attention._address, ctypes.byref(own), sharing.ranks)


_call = Primitive("qkvault_ranks")
_call.multiple_results = True
_call.def_abstract_eval(lambda *given, types, attributes: list(types))


def _outside(*given, types, attributes):
    raise ArgumentError("ranks of a mesh compute together; call this inside of jax.jit(jax.shard_map(...))")


_call.def_impl(_outside)


def _lowered(ctx: Any, *given: Any, types: Any, attributes: Any) -> Any:
    """The custom call. Equal programs may run on several meshes, and meet there apart: it names their devices."""
    named = dict(attributes)
    try:
        devices = [device.id for device in ctx.module_context.axis_context.mesh.devices.flat]
    except (AttributeError, ValueError):
        raise ArgumentError(
            "the devices of the mesh are not known where this program is lowered; give jax.shard_map a "
            "jax.sharding.Mesh of devices, or set one with jax.set_mesh"
        ) from None
    named["mesh"] += f" on {' '.join(map(str, devices))}"
    named["scalars"] = np.array(named["scalars"], np.float64)
    # A CPU may run calls that do not depend on each other in any order: each of a program has a number.
    kept = ctx.module_context.keepalives
    named["call"] = np.int32(sum(one is _call for one in kept))
    kept.append(_call)
    return jax.ffi.ffi_lowering(RANKS, has_side_effect=True)(ctx, *given, **named)


mlir.register_lowering(_call, _lowered)


class _Meeting(ctypes.Structure):
    """`qkv_xla_meeting` of the library."""

    _fields_ = [("text", ctypes.c_char_p), ("sharding", ctypes.c_char_p), ("mesh", ctypes.c_char_p),
                ("group", ctypes.c_int32), ("rank", ctypes.c_int32), ("device", ctypes.c_int32),
                ("call", ctypes.c_int32)]


_MEET = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(_Meeting), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_size_t)


def _meet(wanted: Any, rank: Any, message: int, room: int) -> int:
    """What the handler calls, on a thread of XLA, when a device has no rank for a call yet."""
    try:
        given = wanted.contents
        text, mesh = given.text.decode(), given.mesh.decode()
        strategy, order, ranks = given.sharding.decode().split()
        key = (mesh, given.group)
        if given.device == _abi.NO_GPU:
            # Calls that a CPU runs in any order meet apart.
            key = (*key, text, strategy, order, given.call)
        gpu = None if given.device == _abi.NO_GPU else given.device
        link = _meetings.link(settings().context, key, given.rank, int(ranks), gpu)
        made = Rank(link, Attention(text), strategy, order)
        rank[0], made._address = made._address, 0
        return 0
    except Exception as error:
        said = str(error).encode()[: room - 1] + b"\0"
        ctypes.memmove(message, said, len(said))
        return _abi.ERROR_REFUSED if isinstance(error, (Refused, PlanMissing)) else _abi.ERROR_INTERNAL


_meetings = Meetings()
_meeting: Any = None


def register() -> None:
    """Tells the library how ranks meet, once in a process."""
    global _meeting
    if _meeting is None:
        _meeting = _MEET(_meet)
        library().qkv_xla_meet.argtypes = [_MEET]
        call("qkv_xla_meet", _meeting)
