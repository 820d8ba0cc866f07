"""Where plans come from, and for which GPU programs are traced."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
from dataclasses import dataclass
from typing import Optional, Union

import jax
import jax.export

from .._attention import Attention
from .._context import Context
from .._errors import PlanMissing, Refused
from .._library import call, library
from .._plan import Plan

#: The names of the custom calls in programs: of one GPU, and of the ranks of a mesh axis.
TARGET, RANKS = "qkvault.attention", "qkvault.ranks"


#: Tells of every plan that was compiled while a program was traced.
_log = logging.getLogger("qkvault")


@dataclass(frozen=True)
class Settings:
    """Where plans come from."""

    context: Context
    target: Optional[str] = None


_settings: Optional[Settings] = None
_lock = threading.RLock()
_registered = False


def configure(
    *,
    vault: Union[str, os.PathLike, None] = None,
    build: bool = True,
    target: Optional[str] = None,
    cudnn: Union[str, os.PathLike, None] = None,
    context: Optional[Context] = None,
    cpu: Optional[bool] = None,
) -> None:
    """Says where plans come from, for programs that are traced from now on and for every call.

    `vault` is the folder of plans (None: that of the environment, else the user's). With `build`, plans that it lacks
    are compiled while a program is traced (among several devices while it is lowered: then it is known how arrays are
    divided), 0.3 to 1 second each; without, they raise `PlanMissing`. `target` is the GPU
    that programs are traced for, such as `"h200"`, on machines without one and for `jax.export`; None is the GPU of
    this process. `cudnn` names another cuDNN than the one that JAX has loaded. `context` stands for vault, build and
    cudnn. `cpu` says whether arrays on the CPU are computed by the oracle, for tests, slowly, or are an error; None
    allows it in processes without a GPU.
    """
    global _settings
    with _lock:
        # JAX loads its cuDNN with its first use, and that one is to be found.
        backend = jax.default_backend()
        _settings = Settings(context or Context(vault, cudnn=cudnn, build=build), target)
        library().qkv_xla_use.argtypes = [ctypes.c_void_p]
        call("qkv_xla_use", _settings.context._address)
        call("qkv_xla_cpu", int(backend not in ("gpu", "cuda") if cpu is None else cpu))
        workspace.cache_clear()


def settings() -> Settings:
    """What `configure` said, else the defaults."""
    with _lock:
        if _settings is None:
            configure()
        assert _settings is not None
        return _settings


def register() -> None:
    """Registers the handlers, once in a process; a program that another process exported needs no more than that."""
    global _registered
    with _lock:
        if _registered:
            return
        found, capsule = library(), jax.ffi.pycapsule
        stages = {"initialize": capsule(found.qkv_xla_initialize), "execute": capsule(found.qkv_xla_execute)}
        jax.ffi.register_ffi_target(TARGET, stages, platform="CUDA")
        jax.ffi.register_ffi_target(TARGET, capsule(found.qkv_xla_reference), platform="cpu")
        jax.ffi.register_ffi_target(RANKS, capsule(found.qkv_xla_ranks), platform="CUDA")
        jax.ffi.register_ffi_target(RANKS, capsule(found.qkv_xla_ranks_reference), platform="cpu")
        _registered = True


@functools.lru_cache(maxsize=4096)
def workspace(attention: Attention) -> int:
    """Bytes of scratch memory for a call: those of its plan, which is built here if it may be. None on a CPU."""
    given = settings()
    on_gpu = given.target is None and jax.default_backend() in ("gpu", "cuda")
    if given.target is None and not on_gpu:
        return 0
    try:
        if on_gpu:
            return _told(given.context.prepare(attention, jax.local_devices()[0].local_hardware_id or 0))
        assert given.target is not None
        if given.context.build:
            return _told(given.context.warm(attention, given.target)[0])
        return given.context.look(attention, given.target).workspace
    except (PlanMissing, Refused) as error:
        # The rules say what helps, where cuDNN says that it does not; and what cannot be built is told as such.
        answer = attention.explain(gpu(), given.context.cudnn, context=given.context)
        if answer:
            raise
        own = error.reasons if isinstance(error, Refused) else ()
        refused = Refused("\n".join([answer.text, *([str(error)] if own else [])]))
        refused.kind, refused.reasons = "refused", (*answer.reasons, *own)
        raise refused from None


def gpu() -> str:
    """The name of the GPU that programs are traced for, as rules know it; `h200` if there is none."""
    target = settings().target
    if target is not None:
        return target
    kind = jax.devices()[0].device_kind.lower() if jax.default_backend() in ("gpu", "cuda") else ""
    return next((name for name in ("h200", "h100", "a100", "l40s", "b200") if name in kind), "h200")


def _told(plan: Plan) -> int:
    if plan.source == "built":
        _log.info("compiled %r in %d ms", plan, plan.compile_ms)
    return plan.workspace


def export_checks() -> list:
    """What `jax.export.export(..., disabled_checks=...)` needs, to let programs keep qkvault's calls."""
    return [jax.export.DisabledSafetyCheck.custom_call(target) for target in (TARGET, RANKS)]
