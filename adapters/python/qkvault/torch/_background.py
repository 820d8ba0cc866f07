"""Plans that are built in the background, while PyTorch's own attention serves (`configure(background=True)`)."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Callable, Optional

import torch
from torch import Tensor

from .._attention import Attention
from .._context import Context
from .._errors import Error, PlanMissing
from ._spec import described

_log = logging.getLogger("qkvault")
_lock = threading.Lock()
_state: dict = {}
#: What finds plans without building them, and what builds them; None if nothing is built in the background.
_contexts: Optional[tuple[Context, Context]] = None


def configure(contexts: Optional[tuple[Context, Context]]) -> None:
    """Begins anew with these contexts."""
    global _contexts
    with _lock:
        _state.clear()
        _contexts = contexts


def active() -> bool:
    """Whether plans are built in the background."""
    return _contexts is not None


def await_plan(q: Tensor, k: Tensor, v: Tensor, spec: str, training: bool, stats: bool) -> None:
    """Returns if the plans of a call are loaded; else has them built and raises `PlanMissing`."""
    key = (spec, training, stats, q.device, q.dtype, *((t.shape, t.stride()) for t in (q, k, v)))
    found = _state.get(key)
    if found is True:
        return
    if isinstance(found, Error):
        raise found
    if found is None and _contexts is not None:
        quick, building = _contexts
        choices = ("d_sink: yes" in spec, "deterministic: yes" in spec)
        text, device = described(spec, q, k, v, training or stats), q.device.index or 0
        stream = torch.cuda.current_stream(q.device).cuda_stream if q.device.type == "cuda" else 0
        try:
            _load(quick, text, training, *choices, device, stream)
            _state[key] = True
            return
        except PlanMissing:
            pass
        with _lock:
            if key not in _state:
                _state[key] = "building"
                work = functools.partial(_load, building, text, training, *choices, device)
                threading.Thread(target=_build, args=(key, work), daemon=True, name="qkvault-build").start()
    raise PlanMissing(
        f"the plan for q {list(q.shape)} is being built in the background; until it is there, use PyTorch's own "
        "attention, as `with qkvault.torch.use()` does"
    )


def _load(context, text, training, d_sink, deterministic, device, stream=0):
    forward = Attention(text)
    context.prepare(forward, device, stream=stream)
    if training:
        context.prepare(forward.backward(deterministic=deterministic, d_sink=d_sink), device, stream=stream)


def _build(key: tuple, work: Callable[[], None]) -> None:
    try:
        work()
        _state[key] = True
    except Error as error:
        _state[key] = error
        _log.warning("a plan was not built in the background: %s", error)
