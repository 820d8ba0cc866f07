"""Exceptions, one class for each kind of error."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Optional

from . import _abi


@dataclass(frozen=True)
class Reason:
    """Why an attention is refused."""

    #: The stable code, as in docs/reasons.md, such as `head-dim.multiple-of-8`.
    code: str
    #: Which rule or part says so.
    origin: Optional[str] = None
    #: The field of the description.
    field: Optional[str] = None
    #: What came.
    given: Optional[str] = None
    #: What is needed instead.
    needed: Optional[str] = None
    #: What helps.
    fix: Optional[str] = None
    #: The first version of cuDNN without it.
    since: Optional[str] = None

    @classmethod
    def _of(cls, row: dict) -> "Reason":
        known = {name: row.get(name) for name in cls.__dataclass_fields__}
        return cls(**{name: None if value is None else str(value) for name, value in known.items()})


class Error(Exception):
    """Anything that qkvault refuses or cannot do. The text tells what came, what was expected, and what helps."""

    #: The name of the status, such as `refused`.
    kind: str = "error"
    #: The reasons of a refusal; empty for other errors.
    reasons: tuple[Reason, ...] = ()
    #: Whether its text names the arguments of the function that was called already.
    own: bool = False


class ArgumentError(Error, ValueError):
    """An argument is wrong: too small, unknown, missing."""


class ParseError(Error, ValueError):
    """A text is no description."""


class Refused(Error, ValueError):
    """The attention contradicts itself or cannot run there: `reasons` has every reason with its code."""


class PlanMissing(Error, LookupError):
    """The vault lacks the plan, and building it is not allowed."""


class DeviceError(Error, RuntimeError):
    """There is no driver or no such GPU, or it cannot be used."""


class LibraryError(Error, RuntimeError):
    """There is no cuDNN that can be used."""


class VaultError(Error, OSError):
    """The vault or a pack cannot be opened or read."""


class BuildError(Error, RuntimeError):
    """A plan could not be built."""


class LoadError(Error, RuntimeError):
    """A stored plan does not load on this machine."""


class GpuMemoryError(Error, MemoryError):
    """There is too little memory on the GPU, or no room for another plan."""


class LaunchError(Error, RuntimeError):
    """cuDNN or the driver refused a launch; nothing was queued."""


class CapturedError(Error, RuntimeError):
    """The plan is not loaded, and the stream is being captured: prepare it before."""


class InternalError(Error, RuntimeError):
    """The library has a fault: report it with the message."""


def own(error: Error) -> Error:
    """An error whose text names the arguments of the function that was called, as it is."""
    error.own = True
    return error


_CLASSES = {
    _abi.ERROR_ARGUMENT: ArgumentError, _abi.ERROR_PARSE: ParseError, _abi.ERROR_REFUSED: Refused,
    _abi.ERROR_MISSING: PlanMissing, _abi.ERROR_DEVICE: DeviceError, _abi.ERROR_LIBRARY: LibraryError,
    _abi.ERROR_VAULT: VaultError, _abi.ERROR_BUILD: BuildError, _abi.ERROR_LOAD: LoadError,
    _abi.ERROR_MEMORY: GpuMemoryError, _abi.ERROR_LAUNCH: LaunchError, _abi.ERROR_CAPTURED: CapturedError,
    _abi.ERROR_INTERNAL: InternalError,
}


def from_status(status: int, message: str, kind: str, reasons: str) -> Error:
    """The exception of a status."""
    error = _CLASSES.get(status, InternalError)(message)
    error.kind = kind
    error.reasons = tuple(Reason._of(row) for row in json.loads(reasons or "[]"))
    return error
