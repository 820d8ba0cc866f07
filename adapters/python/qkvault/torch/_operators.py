"""The operators `qkvault::forward` and `qkvault::backward`: registration, gradients, and the rule of vmap."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from .._library import call, library
from . import _background, _fake, _told
from . import _native as native
from ._context import configure, translated

if not hasattr(library(), "qkv_torch_register"):
    raise ImportError("this libqkvault.so has no operators for PyTorch; install library and package from one wheel")
call("qkv_torch_register")
configure()

attend = torch.ops.qkvault.attend.default
forward = torch.ops.qkvault.forward.default
forward_only = torch.ops.qkvault.forward_only.default
backward = torch.ops.qkvault.backward.default
backward_only = torch.ops.qkvault.backward_only.default
backward_plain = torch.ops.qkvault.backward_plain.default

torch.library.register_fake("qkvault::attend", lambda *given: _fake.forward(*given)[0])
torch.library.register_fake("qkvault::forward", _fake.forward)
torch.library.register_fake("qkvault::forward_only", _fake.forward)
torch.library.register_fake("qkvault::backward", _fake.backward)
torch.library.register_fake("qkvault::backward_only", _fake.backward)
torch.library.register_fake("qkvault::backward_plain", lambda *given: _fake.backward(*given)[:3])

#: Tensors that no transform or wrapper has made.
_PLAIN = (Tensor, torch.nn.Parameter)


def fits(tensor: Tensor) -> bool:
    """Whether cuDNN takes the strides: head dim without gaps, other strides multiples of 16 bytes."""
    step = 16 // tensor.element_size()
    sizes, strides = tensor.shape, tensor.stride()
    if strides[-1] != 1:
        return False
    return all(n == 1 or (stride > 0 and stride % step == 0) for n, stride in zip(sizes[:-1], strides[:-1]))


def gradients(d_o, q, k, v, o, stats, extra, spec, numbers):
    """The gradients of Q, K, V and all further tensors; None where there is none."""
    if _fake.names_of(spec, "varlen"):
        d_o = d_o.contiguous()  # It is read at the offsets of O.
    elif torch.compiler.is_compiling() or d_o.stride() != o.stride():
        d_o = d_o if fits(d_o) else d_o.contiguous()
    if isinstance(numbers, Tensor):
        d_q, d_k, d_v, more = _told.backward(d_o, q, k, v, o, stats, extra, spec, numbers)
    elif type(d_o) not in _PLAIN and not extra and not torch.compiler.is_compiling():
        return *backward_plain(d_o, q, k, v, o, stats, extra, spec, numbers), []
    elif torch.compiler.is_compiling():
        d_q, d_k, d_v, more = backward(d_o, q, k, v, o, stats, extra, spec, numbers)
    elif torch._C._functorch.peek_interpreter_stack() is not None or torch.is_grad_enabled():
        d_q, d_k, d_v, *more = Gradients.apply(spec, numbers, d_o, q, k, v, o, stats, *extra)
    else:
        d_q, d_k, d_v, more = backward_only(d_o, q, k, v, o, stats, extra, spec, numbers)
    if not more:
        return d_q, d_k, d_v, [None] * len(extra)
    each = [None] * len(extra)
    for at, gradient in zip(_fake.with_gradient(spec), more):
        each[at] = gradient
    return d_q, d_k, d_v, each


class Gradients(torch.autograd.Function):
    """Gradients that have none themselves, and say so."""

    generate_vmap_rule = True

    @staticmethod
    def forward(spec, numbers, d_o, q, k, v, o, stats, *extra):
        d_q, d_k, d_v, more = backward_only(d_o, q, k, v, o, stats, extra, spec, numbers)
        return d_q, d_k, d_v, *more

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        _none()


def _setup(ctx, inputs, output):
    q, k, v, extra, spec, numbers = inputs
    o, stats = output
    ctx.told = isinstance(numbers, Tensor)  # Numbers of a compiled program.
    ctx.save_for_backward(q, k, v, o, stats, *([numbers] if ctx.told else []), *extra)
    ctx.mark_non_differentiable(stats)
    ctx.set_materialize_grads(False)  # Zeros for the gradient of Stats would be a kernel.
    ctx.spec, ctx.numbers = spec, None if ctx.told else numbers


def _backward(ctx, d_o, _d_stats):
    q, k, v, o, stats, *more = ctx.saved_tensors
    numbers, extra = (more[0], more[1:]) if ctx.told else (ctx.numbers, more)
    d_q, d_k, d_v, each = gradients(d_o, q, k, v, o, stats, extra, ctx.spec, numbers)
    return d_q, d_k, d_v, each, None, None


def _none(*_):
    raise NotImplementedError(
        "qkvault's attention has no second derivative; compute this part with torch's own attention "
        "(sdpa_kernel(SDPBackend.MATH)), or leave out create_graph=True"
    )


def _nothing(ctx, inputs, output):
    pass


_told.forward.register_autograd(_backward, setup_context=_setup)
_told.backward.register_autograd(_none, setup_context=_nothing)
torch.library.register_autograd("qkvault::forward", _backward, setup_context=_setup)
torch.library.register_autograd("qkvault::backward", _none, setup_context=_nothing)
torch.library.register_autograd("qkvault::backward_plain", _none, setup_context=_nothing)


class Attend(torch.autograd.Function):
    """O and its gradients in eager mode, where this costs less than registered gradients."""

    @staticmethod
    def forward(ctx, spec, numbers, q, k, v, *extra):
        o, stats = forward_only(q, k, v, extra, spec, numbers)
        ctx.save_for_backward(q, k, v, o, stats, *extra)
        ctx.spec, ctx.numbers = spec, numbers
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, o, stats, *extra = ctx.saved_tensors
        try:
            d_q, d_k, d_v, each = gradients(d_o, q, k, v, o, stats, extra, ctx.spec, ctx.numbers)
        except RuntimeError as error:
            raise translated(error) from None
        if not extra:
            native.keep(ctx.spec, ctx.numbers)
        return None, None, d_q, d_k, d_v, *each


class AttendBoth(torch.autograd.Function):
    """The same with Stats, whose gradient is refused if somebody asks for it."""

    @staticmethod
    def forward(ctx, spec, numbers, q, k, v, *extra):
        o, stats = forward_only(q, k, v, extra, spec, numbers)
        ctx.save_for_backward(q, k, v, o, stats, *extra)
        ctx.set_materialize_grads(False)  # Zeros for the gradient of Stats would be a kernel.
        ctx.spec, ctx.numbers = spec, numbers
        return o, stats

    @staticmethod
    def backward(ctx, d_o, d_stats):
        if d_stats is not None:
            raise NotImplementedError(
                "the log-sum-exp of qkvault's attention has no gradient: cuDNN's backward takes that of O alone; "
                "detach it (lse.detach()), or compute this part with flex_attention, whose lse has one"
            )
        return Attend.backward(ctx, d_o)


class Functional(torch.autograd.Function):
    """The same for torch.func, which cannot differentiate operators that take lists of tensors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(spec, numbers, q, k, v, *extra):
        return forward_only(q, k, v, extra, spec, numbers)

    @staticmethod
    def setup_context(ctx, inputs, output):
        spec, numbers, q, k, v, *extra = inputs
        o, stats = output
        ctx.save_for_backward(q, k, v, o, stats, *extra)
        ctx.mark_non_differentiable(stats)
        ctx.set_materialize_grads(False)
        ctx.spec, ctx.numbers = spec, numbers

    @staticmethod
    def backward(ctx, d_o, _d_stats):
        q, k, v, o, stats, *extra = ctx.saved_tensors
        d_q, d_k, d_v, each = gradients(d_o, q, k, v, o, stats, extra, ctx.spec, ctx.numbers)
        return None, None, d_q, d_k, d_v, *each


# Without the check for tensors of transforms that are over, which costs as much as the call. Transforms are not here.
_attend = super(torch.autograd.Function, Attend).apply


def run(
    q: Tensor, k: Tensor, v: Tensor, extra: list[Tensor], spec: str, numbers: list[float], both: bool = False
) -> tuple[Tensor, Optional[Tensor]]:
    """O, differentiable, and Stats, at least if both are asked for; in the way that costs least."""
    training = torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or any(t.requires_grad for t in extra)
    )
    if torch.compiler.is_compiling() or type(q) not in _PLAIN:
        _shards.check(q, extra, spec)
        if torch.compiler.is_compiling() and not hasattr(q, "placements"):
            numbers = _told.told(numbers, spec)
            if isinstance(numbers, Tensor):
                return _told.forward(q, k, v, extra, spec, numbers)
        if training or both:
            return forward(q, k, v, extra, spec, numbers)
        return attend(q, k, v, extra, spec, numbers), None
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return Functional.apply(spec, numbers, q, k, v, *extra)
    if _background.active() and not (_fake.names_of(spec, "varlen") or _fake.names_of(spec, "paged")):
        _background.await_plan(q, k, v, spec, training, both)
    try:
        if not training:
            if both:
                return forward_only(q, k, v, extra, spec, numbers)
            return attend(q, k, v, extra, spec, numbers), None
        if both:
            return AttendBoth.apply(spec, numbers, q, k, v, *extra)
        kept = None if extra else native.kept(spec, numbers)
        if kept is not None:
            return native.forward(q, k, v, None, kept)[0], None
        return _attend(spec, numbers, q, k, v, *extra), None
    except RuntimeError as error:
        raise translated(error) from None


from . import _flops, _shards, _vmap  # noqa: E402, F401

_flops.register()
