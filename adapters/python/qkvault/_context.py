"""Contexts: a vault, a cuDNN and the GPUs that plans run on."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from typing import Callable, Iterable, Optional, Union

from . import _abi
from ._attention import Attention
from ._errors import ArgumentError
from ._library import Handle, call, decoded, encoded, handle, sized, whole
from ._plan import Plan

_MODES = {
    None: _abi.VAULT_DEFAULT, "read-write": _abi.VAULT_READ_WRITE, "read-only": _abi.VAULT_READ_ONLY,
    "off": _abi.VAULT_OFF,
}


class Context(Handle):
    """A vault, a cuDNN and the GPUs that plans run on. Opening it opens the vault and nothing else.

    `vault` is its folder, `cudnn` a libcudnn.so.9, its folder or a prefix above it; None is what the environment says.
    With `build`, plans that the vault lacks are built when they are asked for, which takes 0.3 to 1 second; without, they
    raise `PlanMissing`. Import PyTorch or JAX first: the cuDNN that the process has loaded is used. `engine` says whose
    plans are taken: `cudnn`, `kernels`, `fa4`, or by measured times (`auto`, the default).
    """

    _free = "qkv_close"

    def __init__(
        self,
        vault: Union[str, os.PathLike, None] = None,
        *,
        cudnn: Union[str, os.PathLike, None] = None,
        build: bool = False,
        mode: Optional[str] = None,
        remote: Optional[str] = None,
        allow: Iterable[str] = (),
        workspace_limit: int = 0,
        handles: int = 0,
        engine: Optional[str] = None,
    ):
        if mode not in _MODES:
            raise ValueError(f"mode is {mode!r}; it is one of {', '.join(map(repr, _MODES))}")
        options = sized(
            _abi.qkv_options, vault=_path(vault), cudnn=_path(cudnn), remote=encoded(remote),
            on_miss=_abi.ON_MISS_BUILD if build else _abi.ON_MISS_FAIL, vault_mode=_MODES[mode],
            workspace_limit=whole(workspace_limit, 64, "workspace_limit"), handles=whole(handles, 32, "handles"),
            allow=encoded(",".join(allow) or None),
            engine=encoded(engine),
        )
        try:
            super().__init__(handle("qkv_open", ctypes.byref(options)))
        except ArgumentError as error:  # In the words of C.
            error.args = (str(error).replace("qkv_options.", "").replace("or null", "or None"),)
            raise
        self.build = build
        self._vault = vault

    @property
    def cudnn(self) -> str:
        """The version of its cuDNN, which the first call loads."""
        return decoded(self._library().version)

    @property
    def cudnn_path(self) -> str:
        """The file of its cuDNN."""
        return decoded(self._library().path)

    def __repr__(self) -> str:
        vault = "of the environment" if self._vault is None else repr(os.fspath(self._vault))
        return f"<qkvault.Context vault {vault}, {'builds plans' if self.build else 'builds no plans'}>"

    def _library(self) -> _abi.qkv_library_info:
        info = sized(_abi.qkv_library_info)
        call("qkv_library", self._address, ctypes.byref(info))
        return info

    def warm(
        self,
        attentions: Union[Attention, Iterable[Attention]],
        gpu: str = "h200",
        *,
        progress: Union[Callable[[int, int, Plan], object], bool, None] = None,
    ) -> list[Plan]:
        """Compiles plans for a GPU that need not be present, into the vault, and returns them.

        A plan takes 0.3 to 1 second, and nothing if the vault has it. `progress` is called with each plan: how many are
        done, how many there are, and the plan. With None, a terminal gets a line that counts; with False, nothing.
        """
        wanted = [attentions] if isinstance(attentions, Attention) else list(attentions)
        if progress is None:
            progress = len(wanted) > 1 and sys.stderr.isatty()
        told = _Counted() if progress is True else progress
        plans = []
        for attention in wanted:
            plans.append(Plan(handle("qkv_warm", self._address, attention._address, gpu.encode())))
            if told:
                told(len(plans), len(wanted), plans[-1])
        return plans

    def look(self, attention: Attention, gpu: str = "h200") -> Plan:
        """The plan for a GPU that need not be present, if the vault has it; else raises `PlanMissing`."""
        return Plan(handle("qkv_look", self._address, attention._address, gpu.encode()))

    def prepare(self, attention: Attention, device: int = 0, *, stream: int = 0) -> Plan:
        """The plan of an attention, loaded on a GPU: from the process, the vault, or built if the context may."""
        return Plan(handle("qkv_prepare", self._address, attention._address, device, stream))

    def reserve_handles(self, count: int, device: int = 0) -> None:
        """Creates handles of cuDNN ahead: one for each thread that launches at a time, before captures."""
        call("qkv_reserve_handles", self._address, whole(device, 32, "device", signed=True), whole(count, 32, "count"))

    def unpack(self, pack: Union[str, os.PathLike], *, seal: Union[str, os.PathLike, None] = None) -> int:
        """Stores the plans of a pack in the vault, and returns how many it did not have."""
        stored = ctypes.c_uint64()
        call("qkv_unpack", self._address, _path(pack), _path(seal), ctypes.byref(stored))
        return stored.value


class _Counted:
    """A line on a terminal that counts plans."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, done: int, count: int, plan: Plan) -> None:
        end = "\n" if done == count else ""
        seconds = time.monotonic() - self.started
        print(f"\rqkvault: {done} of {count} plans, {seconds:.1f} s", end=end, file=sys.stderr, flush=True)


def _path(path: Union[str, os.PathLike, None]) -> Optional[bytes]:
    return None if path is None else os.fsencode(path)


_default: Optional[Context] = None
_lock = threading.Lock()


def default_context() -> Context:
    """The context of functions that are given none. It is opened with the first use, and builds no plans."""
    global _default
    with _lock:
        if _default is None:
            _default = Context()
        return _default


def set_default_context(context: Optional[Context]) -> None:
    """Makes a context that of functions that are given none; None opens a new one with the next use."""
    global _default
    with _lock:
        _default = context
