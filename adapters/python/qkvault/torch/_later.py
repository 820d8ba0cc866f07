"""Modifications of compiled programs that are traced when the program runs: those of sizes and integers that are
symbols of it, and of numbers that Python computes with.

The program has an operator that is given the code of the modifications and what they capture. At a launch they are
traced as in eager mode, once for each size and for each value that is no number of a launch.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer

from qkvault_record import Untraceable

from . import _compiled, _fake, _lse
from ._spec import Parts


def _source(graph: torch.fx.GraphModule) -> Optional[tuple[str, str, list[str]]]:
    """Imports, code and names of captured arguments of a graph; None if it has more than these. Floats of Python that
    Dynamo wraps are floats again."""
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph.graph, {}))
    for node in list(copy.nodes):
        if node.op in ("get_attr", "call_module"):
            return None
        if node.op == "call_method" and node.target == "item" and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[0])
            copy.erase_node(node)
    code = copy.python_code("self")
    names = [str(node.target) for node in copy.nodes if node.op == "placeholder"]
    return _format_import_block(code.globals, sys_importer), code.src, names


@functools.lru_cache(maxsize=256)
def _read(text: str) -> dict:
    """What a text of the operator says."""
    said = json.loads(zlib.decompress(base64.b64decode(text)))
    functions: list[Optional[tuple]] = []
    for given in said["functions"]:
        if given is None:
            functions.append(None)
            continue
        imports, source, names = given
        space: dict[str, Any] = {}
        exec(compile(imports + "\n" + source, "<a compiled modification>", "exec"), space)  # The program's own code.
        functions.append((space["forward"], names))
    said["functions"] = functions
    return said


def _written(said: dict) -> str:
    """One line of plain characters: Inductor writes it into its programs."""
    return base64.b64encode(zlib.compress(json.dumps(said).encode())).decode()


def run(
    q: Tensor, k: Tensor, v: Tensor, functions: tuple, parts: Parts, dims: tuple, origins: bool, both: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Calls the operator where a compiler traces it. `functions` are partial calls of graphs with what they capture."""
    tensors: list[Tensor] = []
    integers: list[Any] = []
    floats: list[Any] = list(parts.values)
    sources: list[Any] = []
    kinds = []
    for function in functions:
        if function is None:
            sources.append(None)
            continue
        graph, captured = function.args
        source = _source(graph)
        if source is None:
            raise Untraceable("a modification that has modules or constants of its own, of sizes that change")
        sources.append(source)
        for value in captured:
            if _compiled.is_float(value):
                floats.append(value)
                kinds.append("float")
            elif not isinstance(value, Tensor):
                whole = isinstance(value, (int, torch.SymInt, torch.SymBool))
                (integers if whole else floats).append(value)
                kinds.append("truth" if isinstance(value, (bool, torch.SymBool)) else "int" if whole else "float")
            else:
                tensors.append(value)
                kinds.append("gradient" if value.requires_grad and torch.is_grad_enabled() else "tensor")
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *parts.tensors, *tensors))
    text = _written({
        "functions": sources, "kinds": kinds, "origins": origins, "stats": training or both, "numbers": parts.numbers,
    })  # fmt: skip
    zero = torch.zeros((), dtype=torch.float64, device="cpu")
    numbers = torch.stack([zero + value for value in floats])
    head = _fake.BETWEEN.join([f"extra: {' '.join(parts.extra)}", *parts.lines])
    return forward(q, k, v, parts.tensors, tensors, numbers, [*dims, *integers], head, text)


def _asked(text: str, captured: list[Tensor]) -> list[int]:
    """The places among the captured tensors of those that have a gradient."""
    kinds = [kind for kind in _read(text)["kinds"] if kind in ("tensor", "gradient")]
    return [at for at, kind in enumerate(kinds) if kind == "gradient"]


def _parts(
    q: Tensor, extra: list[Tensor], captured: list[Tensor], numbers: Tensor, integers: list[int], head: str, text: str
) -> Parts:  # fmt: skip
    """The specification of a launch, with the tensors of its expressions."""
    said, values = _read(text), numbers.tolist()
    made = Parts(values[0])
    made.extra, made.tensors = _fake.names_of(head, "extra"), list(extra)
    made.numbers, made.values = list(said["numbers"]), values[: len(said["numbers"])]
    made.lines = head.split(_fake.BETWEEN)[1:]
    if said["origins"]:
        at = made.numbers.index("query_origin")
        made.origins = (int(made.values[at]), int(made.values[at + 1]))
    dims, whole = tuple(integers[:4]), iter(integers[4:])
    floats, tensors = iter(values[len(made.numbers) :]), iter(captured)
    of_kind: dict[str, Callable] = {
        "int": lambda: next(whole), "truth": lambda: bool(next(whole)), "float": lambda: next(floats),
    }  # fmt: skip
    kinds = iter(said["kinds"])
    functions: list[Optional[Callable]] = []
    for function in said["functions"]:
        if function is None:
            functions.append(None)
            continue
        call, names = function
        # Before what is captured: the score, which a predicate has not, and four indices.
        captures = names[4 if functions else 5 :]
        given = {name: of_kind.get(next(kinds), lambda: next(tensors))() for name in captures}
        functions.append(functools.partial(call, None, **given))
    lines, made.lines = made.lines, []
    score_mod, mask_mod = functions
    made.functions(score_mod, mask_mod, dims, q)
    made.lines += lines
    return made


def _outside():
    """What a modification computes ahead of a launch is computed, and differentiated, as outside of operators: autograd
    and vmap are shut out of those."""
    keys = torch._C.DispatchKey
    included = torch._C.DispatchKeySet(keys.BackendSelect) | torch._C.DispatchKeySet(keys.ADInplaceOrView)
    excluded = torch._C.DispatchKeySet(keys.AutocastCPU) | torch._C.DispatchKeySet(keys.AutocastCUDA)
    return torch._C._ForceDispatchKeyGuard(included, excluded)


@torch.library.custom_op("qkvault::forward_later", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, extra: list[Tensor], captured: list[Tensor], numbers: Tensor,
    integers: list[int], head: str, text: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """O, and Stats if they are asked for."""
    from . import _operators

    with _outside():
        made = _parts(q, extra, captured, numbers, integers, head, text)
    given = (q, k, v, made.tensors, made.spec(), made.values)
    if not _read(text)["stats"]:
        return _operators.attend_now(*given), q.new_empty((0,), dtype=torch.float32)
    o, stats = _operators.forward_only(*given)
    return o, stats


@torch.library.custom_op("qkvault::backward_later", mutates_args=())
def backward(
    d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, stats: Tensor, extra: list[Tensor],
    captured: list[Tensor], numbers: Tensor, integers: list[int], head: str, text: str,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """The gradients of Q, K, V, of further tensors and of captured ones, as far as they have one."""
    from . import _operators

    asked = _asked(text, captured)
    with _outside(), torch.enable_grad():
        leaves = [t.detach().requires_grad_(at in asked) for at, t in enumerate(captured)]
        made = _parts(q, extra, leaves, numbers, integers, head, text)
    spec, plain = made.spec(), [t.detach() for t in made.tensors]
    d_q, d_k, d_v, more = _operators.backward_only(d_o, q, k, v, o, stats, plain, spec, made.values)
    places = _fake.with_gradient(spec)
    of_extra = [gradient for at, gradient in zip(places, more) if at < len(extra)]
    read = [(made.tensors[at], gradient) for at, gradient in zip(places, more) if at >= len(extra)]
    of_captured: list[Tensor] = []
    if asked:
        wanted = [leaves[at] for at in asked]
        made_of = [(tensor, gradient) for tensor, gradient in read if tensor.requires_grad]
        found = torch.autograd.grad(
            [tensor for tensor, _ in made_of], wanted, [gradient for _, gradient in made_of], allow_unused=True
        ) if made_of else [None] * len(wanted)  # fmt: skip
        of_captured = [torch.zeros_like(t) if g is None else g.contiguous() for t, g in zip(wanted, found)]
    return d_q, d_k, d_v, of_extra, of_captured


@forward.register_fake
def _fake_forward(q, k, v, extra, captured, numbers, integers, head, text):
    o, stats = _fake.forward(q, k, v, extra, head, [])
    return o, stats if _read(text)["stats"] else q.new_empty((0,), dtype=torch.float32)


@backward.register_fake
def _fake_backward(d_o, q, k, v, o, stats, extra, captured, numbers, integers, head, text):
    d_q, d_k, d_v, more = _fake.backward(d_o, q, k, v, o, stats, extra, head, [])
    return d_q, d_k, d_v, more, [torch.empty_like(captured[at]).contiguous() for at in _asked(text, captured)]


def _setup(ctx, inputs, output):
    q, k, v, extra, captured, numbers, integers, head, text = inputs
    o, stats = output
    ctx.save_for_backward(q, k, v, o, stats, numbers, *extra, *captured)
    ctx.set_materialize_grads(False)
    ctx.count, ctx.given = len(extra), (integers, head, text)


def _backward(ctx, d_o, d_stats):
    q, k, v, o, stats, numbers, *more = ctx.saved_tensors
    extra, captured = more[: ctx.count], more[ctx.count :]
    d_q, d_k, d_v, each = _lse.added(_gradients, d_o, d_stats, q, k, v, o, stats, extra, captured, numbers, *ctx.given)
    return d_q, d_k, d_v, each[: len(extra)], each[len(extra) :], None, None, None, None


def _gradients(d_o, q, k, v, o, stats, extra, captured, numbers, integers, head, text) -> tuple:
    """The gradients of Q, K, V, and of further and captured tensors, where they have one."""
    from . import _operators

    d_o = d_o if _operators.fits(d_o) else d_o.contiguous()
    d_q, d_k, d_v, of_extra, of_captured = backward(
        d_o, q, k, v, o, stats, extra, captured, numbers, integers, head, text
    )
    each: list[Optional[Tensor]] = [None] * (len(extra) + len(captured))
    for at, gradient in zip(_fake.with_gradient(head), of_extra):
        each[at] = gradient
    for at, gradient in zip(_asked(text, captured), of_captured):
        each[len(extra) + at] = gradient
    return d_q, d_k, d_v, each


forward.register_autograd(_backward, setup_context=_setup)
