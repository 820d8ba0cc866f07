"""Where the operators look for plans, and what they may do."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from typing import Any, Optional, Union

from .. import _abi
from .._context import Context
from .._errors import Error, from_status
from .._library import call, decoded, sized
from . import _background
from ._words import DOOR

#: Names what is done for plans that the vault lacks: `0` is an exception, anything else builds them.
VARIABLE = "QKVAULT_TORCH_BUILD"

_log = logging.getLogger("qkvault")
_told_once = False


@ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint32)
def _built(what: bytes, milliseconds: int) -> None:
    global _told_once
    hint = "" if _told_once else "; `qkvault warm` compiles plans ahead, and configure(build=False) makes this an error"
    _told_once = True
    _log.warning("built the plan of %s in %d ms%s", what.decode(), milliseconds, hint)


_context: Optional[Context] = None
_cpu = False


def configure(
    vault: Union[str, os.PathLike, None] = None, *, build: Optional[bool] = None, background: bool = False,
    cpu: bool = False, handles: int = 4, **options: Any,
) -> Context:  # fmt: skip
    """Chooses the vault of plans, and what the operators may do. Calls after it follow it; plans that are loaded stay.

    `build`: whether a call builds the plan that the vault lacks (0.3 to 1 second, logged under `qkvault`); otherwise it
    raises `PlanMissing`, which names the cuDNN. By default it does, unless `QKVAULT_TORCH_BUILD` is 0. `background`:
    the first eager calls of a shape raise `PlanMissing` while a thread builds its plans; inside `use()`, PyTorch's own
    attention serves meanwhile. `cpu`: whether
    attentions of tensors on the CPU are computed, by the oracle in float64, slowly: for tests. `handles`: how many
    threads launch at a time. Other options are those of `qkvault.Context`.
    """
    global _context, _cpu
    if background and build is False:
        raise ValueError("background=True builds plans, and build=False forbids it; give one of them")
    if build is None and not background:
        build = os.environ.get(VARIABLE, "1") != "0"
    context = Context(vault, build=build or background, handles=handles, **options)
    call("qkv_torch_use", ctypes.c_void_p(context._address), int(cpu), _built)
    quick = Context(vault, build=False, handles=handles, **options) if background else None
    _background.configure(None if quick is None else (quick, context))
    _context, _cpu = context, cpu
    return context


def context() -> Context:
    """The context of the operators."""
    return _context if _context is not None else configure()


def on_cpu() -> bool:
    """Whether attentions of tensors on the CPU are computed."""
    return _cpu


def translated(error: RuntimeError) -> BaseException:
    """The exception of qkvault that PyTorch threw for it; any other error as it is."""
    found = sized(_abi.qkv_error)
    call("qkv_last_error", ctypes.byref(found))
    message = decoded(found.message)
    if found.status == _abi.OK or message not in str(error):
        return error
    if found.status == _abi.ERROR_ARGUMENT:
        message = re.sub(r"\b[QKV]\b", lambda name: name[0].lower(), message)
        if "Philox" in message:
            dropout = DOOR.current.name("dropout")
            message = f"{dropout} is given on the CPU, where nothing draws it; give 0.0 in tests there"
    made: Error = from_status(found.status, message, decoded(found.kind), decoded(found.reasons))
    DOOR.current.reword(made)
    return made
