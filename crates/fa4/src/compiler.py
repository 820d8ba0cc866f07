"""Compiles kernels of FlashAttention-4 on a machine with no GPU, no driver and no PyTorch.

Usage: python -I -S -B compiler.py SITE SECONDS MEGABYTES < REQUEST
SITE is the folder of the fetched packages. REQUEST is one line of JSON: a list of kernels, each with its kind and what
decides its code (`fa4::request` in Rust), all of it data. `answer.json` is written beside this file: for each kernel its
machine code, and what the compiler prints about its launch. Nothing is written elsewhere.

This process ends, and its folder with it, when whoever holds the other end of its standard input is gone.
"""

import base64
import importlib.util
import json
import operator
import os
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import threading
import types
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))


def bounded(seconds, megabytes):
    """Limits of this process: time of a core, memory, sizes of files; no core is dumped."""
    memory = megabytes << 20
    for limit, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, memory),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))


def request_while_wanted():
    """The request. From then on, when the standard input ends, so does this process, with its folder and children."""
    # By the descriptor: the interpreter's own buffer is locked while a thread waits in it, also at the end.
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 20)
        if not part:
            raise EOFError("the request is cut off")
        line += part

    def watch():
        while os.read(0, 1 << 10):
            pass
        shutil.rmtree(HERE, ignore_errors=True)
        # It leads a group of its own (`child.rs`).
        os.killpg(os.getpgrp(), signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return json.loads(line)


class Name:
    """Stands for anything that a module without PyTorch has a name for."""


class Names(types.ModuleType):
    """A module with names only. FlashAttention-4 imports PyTorch for its front end, which is not used here."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Name,), {})
        setattr(self, name, value)
        return value


def without_torch():
    for name in ("torch", "torch.cuda", "torch.version", "torch._subclasses", "torch._subclasses.fake_tensor"):
        module = Names(name)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    sys.modules["torch.cuda"].is_available = lambda: False
    sys.modules["torch.version"].cuda = None


def without_front_end(name):
    """Makes a package importable without running its `__init__`, which imports what needs PyTorch."""
    spec = importlib.util.find_spec(name.partition(".")[0])
    base = list(spec.submodule_search_locations)[0]
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(base, *name.split(".")[1:])]
    sys.modules[name] = module


class Tensors:
    """Tensors of unknown extents, as the kernels of one request share them."""

    def __init__(self, kernel):
        self.dtype = number(kernel["dtype"])

    def of(self, dtype, rank, align=16):
        width = dtype.width // 8
        step = max(align // width, 1)
        shape = tuple(cute.sym_int() for _ in range(rank))
        stride = tuple(1 if i == rank - 1 else cute.sym_int64(divisibility=step) for i in range(rank))
        return cute.runtime.make_fake_tensor(dtype, shape, stride=stride, assumed_align=align)

    def half(self, there=True, rank=4):
        return self.of(self.dtype, rank) if there else None

    def stats(self, packed, there=True):
        """A number for each row: by sequence, head and row; of packed sequences by head and row, heads together."""
        if not there or not packed:
            return self.floats(3, there)
        stride = (1, cute.sym_int64())
        shape = (cute.sym_int(), cute.sym_int())
        return cute.runtime.make_fake_tensor(cutlass.Float32, shape, stride=stride, assumed_align=4)

    def floats(self, rank, there=True, align=4):
        return self.of(cutlass.Float32, rank, align) if there else None

    def ints(self, rank, there=True):
        return self.of(cutlass.Int32, rank, 4) if there else None


def number(name):
    names = {"f16": "Float16", "bf16": "BFloat16", "f32": "Float32", "i32": "Int32", "i64": "Int64"}
    return getattr(cutlass, names[name])


def module(name, path):
    """The module in a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


WORDS_OF_REQUESTS = frozenset(
    "select negate rem_whole floor_rem_whole rem floor_rem minimum maximum power atan2 sqrt rsqrt log sin cos tan erf "
    "floor ceil absolute reciprocal bit absolute_whole exp tanh sigmoid relu elu gelu gelu_tanh softplus swish "
    "to_real".split()
)
OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "and": operator.and_,
    "or": operator.or_,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
POINT = frozenset("score upstream batch head query key queries keys".split())


def straight(steps, words):
    """A straight-line function (`fa4::code` in Rust) of a point: each step is data, and its word one of those above."""

    def of_number(point, at):
        return None if at is None else point.numbers[at]

    def value(kind, given, point, values):
        if kind == "point" and given in POINT:
            return getattr(point, given)
        if kind == "number":
            return point.numbers[given]
        if kind == "real":
            return words.real(struct.unpack("f", struct.pack("I", given))[0])
        if kind == "whole":
            return words.whole(given)
        if kind == "truth":
            return words.truth(given is True)
        if kind == "quotient":
            return words.floor_div(values[given[0]], int(given[1]))
        if kind == "element":
            dims = [(values[at], of_number(point, last), of_number(point, step)) for at, last, step in given["dims"]]
            return words.element(point.numbers[given["address"]], given["dtype"], dims)
        if kind == "word":
            name, operands = given[0], [values[at] for at in given[1]]
            if name in OPERATORS:
                return OPERATORS[name](*operands)
            if name in WORDS_OF_REQUESTS:
                return getattr(words, name)(*operands)
        raise ValueError(f"no step of an expression is {kind} {given}")

    def function(point):
        values = []
        for step in steps:
            ((kind, given),) = step.items()
            values.append(value(kind, given, point, values))
        return values[-1]

    return function


class Point:
    """The places of some scores, and the numbers of the launch. In a backward of grouped heads the kernels take the
    index of a query for one that counts rows of all heads of a group, and divide: `group` undoes that."""

    def __init__(self, batch, head, query, key, lengths, numbers, group=1):
        if group > 1:
            first = head // cutlass.Int32(group)
            query = query * cutlass.Int32(group) + (head - first * cutlass.Int32(group))
            head = first
        self.batch, self.head, self.query, self.key = batch, head, query, key
        self.queries, self.keys, self.numbers = lengths.seqlen_q, lengths.seqlen_k, numbers

    def of(self, score, upstream=None):
        self.score, self.upstream = score, upstream
        return self


def lanes(*vectors):
    """The numbers of vectors."""
    return [WORDS.Lanes(vector[i] for i in range(cute.size(vector.shape))) for vector in vectors]


def vector(numbers, shape):
    """A vector of numbers."""
    made = cute.make_rmem_tensor(shape, cutlass.Float32)
    for i in range(cute.size(shape)):
        made[i] = WORDS.lane(numbers, i)
    return made.load()


def score_mod(steps, group=1):
    """A score modification as the kernels call it: with vectors of scores and of their places."""
    if steps is None:
        return None
    modified = straight(steps, WORDS)

    def modification(score, batch, head, q_idx, kv_idx, seqlen_info, aux_tensors, aux_scalars=()):
        at = Point(*lanes(batch, head, q_idx, kv_idx), seqlen_info, aux_scalars, group)
        return vector(modified(at.of(*lanes(score))), score.shape)

    return modification


def score_mod_bwd(steps, group):
    """The backward of a score modification: the gradient of the score from that of the modified one."""
    if steps is None:
        return None
    gradient = straight(steps, WORDS)

    def derivative(grad, score, batch, head, q_idx, kv_idx, seqlen_info, aux_tensors, aux_scalars=()):
        at = Point(*lanes(batch, head, q_idx, kv_idx), seqlen_info, aux_scalars, group)
        return vector(gradient(at.of(*lanes(score, grad))), score.shape)

    return derivative


def mask_mod(steps):
    """A predicate as the kernels call it: with vectors of one place."""
    if steps is None:
        return None
    seen = straight(steps, WORDS)

    def predicate(batch, head, q_idx, kv_idx, seqlen_info, aux_tensors, aux_scalars=()):
        return [seen(Point(batch[0], head[0], q_idx[0], kv_idx[0], seqlen_info, aux_scalars))]

    return predicate


def aux(kernel):
    """The numbers of a launch that expressions read: scalars, and the addresses of tensors."""
    from flash_attn.cute.utils import AuxData

    return AuxData(None, tuple(number(dtype)(0) for dtype in kernel["scalars"]) or None)


def lists(kernel, tensors):
    """Block lists: counts and indices of the blocks that a mask cuts, and of those that it leaves whole."""
    from flash_attn.cute.block_sparsity import BlockSparseTensors

    if kernel["mask_mod"] is None:
        return None
    return BlockSparseTensors(tensors.ints(3), tensors.ints(4), tensors.ints(3), tensors.ints(4))


def window(kernel, side):
    return cutlass.Int32(0) if kernel[side] else None


def forward(kernel):
    from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90

    t = Tensors(kernel)
    packed, paged = kernel["packed"], kernel["page"]
    program = FlashAttentionForwardSm90(
        t.dtype,
        kernel["head_dim"],
        kernel["head_dim_v"],
        kernel["group"],
        is_causal=kernel["causal"],
        is_local=kernel["local"],
        pack_gqa=kernel["pack_gqa"],
        tile_m=kernel["tile_m"],
        tile_n=kernel["tile_n"],
        num_stages=2,
        num_threads=384,
        Q_in_regs=False,
        intra_wg_overlap=True,
        mma_pv_is_rs=kernel["p_in_registers"],
        score_mod=score_mod(kernel["score_mod"]),
        mask_mod=mask_mod(kernel["mask_mod"]),
        q_subtile_factor=1,
        paged_kv_non_tma=paged is not None and paged != kernel["tile_n"],
    )
    rank_q, rank_k = (3 if packed else 4), (3 if packed and paged is None else 4)
    q, k, v, o = t.half(rank=rank_q), t.half(rank=rank_k), t.half(rank=rank_k), t.half(rank=rank_q)
    return [
        program,
        q,
        k,
        v,
        o,
        t.stats(packed, kernel["stats"]),
        cutlass.Float32(1.0),
        t.ints(1, packed),
        t.ints(1, packed and paged is None),
        t.ints(1, kernel["used_q"]),
        t.ints(1, kernel["used_k"]),
        t.ints(2, paged is not None),
        window(kernel, "left"),
        window(kernel, "right"),
        t.of(cutlass.Float32, 1, 4) if kernel["sink"] else None,
        lists(kernel, t),
        aux(kernel),
        None,
        None,
    ]


def preprocess(kernel):
    from flash_attn.cute.flash_bwd_preprocess import FlashAttentionBackwardPreprocess

    t = Tensors(kernel)
    packed = kernel["packed"]
    program = FlashAttentionBackwardPreprocess(
        t.dtype,
        kernel["head_dim"],
        kernel["head_dim_v"],
        kernel["tile_m"],
        hdim_multiple_of=kernel["round"],
    )
    half, rank = (3 if packed else 4), (2 if packed else 3)
    return [
        program,
        t.half(rank=half),
        t.half(rank=half),
        t.floats(rank, align=16),
        t.stats(packed),
        t.floats(rank, align=16),
        t.floats(rank, align=16),
        t.ints(1, packed),
        t.ints(1, kernel["used_q"]),
        None,
        None,
        None,
        cutlass.Float32(1.0),
        None,
        None,
    ]


def backward(kernel):
    from flash_attn.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90

    t = Tensors(kernel)
    packed, deterministic, grouped = kernel["packed"], kernel["deterministic"], kernel["group"] > 1
    program = FlashAttentionBackwardSm90(
        t.dtype,
        kernel["head_dim"],
        kernel["head_dim_v"],
        kernel["group"],
        kernel["causal"],
        is_local=kernel["local"],
        deterministic=deterministic,
        tile_m=kernel["tile_m"],
        tile_n=kernel["tile_n"],
        Q_stage=kernel["stages_q"],
        dO_stage=kernel["stages_do"],
        PdS_stage=kernel["stages_pds"],
        SdP_swapAB=kernel["swap_sdp"],
        dKV_swapAB=kernel["swap_dkv"],
        dQ_swapAB=kernel["swap_dq"],
        AtomLayoutMSdP=kernel["atoms_sdp"],
        AtomLayoutNdKV=kernel["atoms_dkv"],
        AtomLayoutMdQ=kernel["atoms_dq"],
        num_threads=kernel["threads"],
        V_in_regs=False,
        score_mod=score_mod(kernel["score_mod"], kernel["group"]),
        score_mod_bwd=score_mod_bwd(kernel["score_mod_bwd"], kernel["group"]),
        mask_mod=mask_mod(kernel["mask_mod"]),
        q_subtile_factor=1,
        dQ_single_wg=kernel["dq_one_group"],
    )
    half, rank = (3 if packed else 4), (2 if packed else 3)
    gradient = (lambda: t.floats(rank, align=16)) if grouped else (lambda: t.half(rank=half))
    return [
        program,
        t.half(rank=half),
        t.half(rank=half),
        t.half(rank=half),
        t.half(rank=half),
        t.floats(rank, align=16),
        t.floats(rank, align=16),
        t.floats(rank, align=16),
        gradient(),
        gradient(),
        cutlass.Float32(1.0),
        t.ints(1, packed),
        t.ints(1, packed),
        t.ints(1, kernel["used_q"]),
        t.ints(1, kernel["used_k"]),
        window(kernel, "left"),
        window(kernel, "right"),
        t.ints(4, deterministic),
        t.ints(4, deterministic and grouped),
        t.ints(4, deterministic and grouped),
        aux(kernel),
        lists(kernel, t),
        None,
    ]


def postprocess(kernel):
    from flash_attn.cute.flash_bwd_postprocess import FlashAttentionBackwardPostprocess, LearnableSinkBwdTensors

    t = Tensors(kernel)
    packed = kernel["packed"]
    program = FlashAttentionBackwardPostprocess(
        t.dtype,
        kernel["head_dim"],
        90,
        kernel["tile_m"],
        kernel["threads"],
        kernel["atoms"],
        kernel["swap"],
        use_2cta_instrs=False,
        cluster_size=1,
        hdim_multiple_of=kernel["round"],
        accum_order=None,
    )
    half, rank = (3 if packed else 4), (2 if packed else 3)
    sink = None
    if kernel["sink"]:
        sink = LearnableSinkBwdTensors(t.floats(rank, align=16), t.stats(packed), t.floats(1), t.floats(1))
    return [
        program,
        t.floats(rank, align=16),
        t.half(rank=half),
        cutlass.Float32(0.0),
        t.ints(1, packed),
        t.ints(1, kernel["used"]),
        sink,
        None,
    ]


KINDS = {"forward": forward, "preprocess": preprocess, "backward": backward, "postprocess": postprocess}


def launch(lowered, clean):
    """What the compiler prints about a launch: the types of the kernel's parameters, the block, the shared memory, the
    attributes, and how each tensor map is cut into boxes."""
    host = re.search(r"(?ms)^  llvm\.func @cutlass_.*?^  }$", lowered).group(0)
    constants = dict(re.findall(r"(%\w+) = llvm\.mlir\.constant\((-?\w+) : i\d+\)", host))
    config = "struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"
    places = re.findall(
        r"(%\w+) = llvm\.getelementptr %\w+\[0, ([\d, ]+)\] [^\n]*" + re.escape(config) + r"\n    llvm\.store (%\w+), \1 ",
        host,
    )
    stored = {place: constants.get(value) for _, place, value in places}
    call = host.rfind("llvm.call @_cudaLaunchKernelEx")
    begin = host.rfind("llvm.alloca %", 0, host.rfind("x !llvm.ptr : (i32)", 0, call))
    params = re.findall(r"llvm\.alloca %\w+ x (.+?)(?: \{alignment = \d+ : i64\})? : \(i32\) -> !llvm\.ptr", host[begin:call])
    made = re.findall(
        r"(%\w+), %\w+ = cute_nvgpu\.atom\.make_non_exec_tiled_tma_(\w+)\(.*?\)(?: <\{.*?\}>)? : \((.*)\) -> \((.*)\)", clean
    )
    maps = []
    order = re.search(r"cuda\.launch_ex [^\n]*?<%\w+> \(([^\n]*?)\) \{", clean).group(1).split(", ")
    for name, kind, given, result in made:
        basis = re.search(r'tma_gbasis = <"(.*?)">', result).group(1)
        swizzle = re.search(r"S<(\d+),(\d+),(\d+)>", given)
        maps.append(
            {
                "at": order.index(name),
                "kind": kind,
                "basis": basis,
                "swizzle": [int(n) for n in swizzle.groups()] if swizzle else [0, 4, 3],
            }
        )
    maps.sort(key=lambda one: one.pop("at"))
    attributes = re.findall(r"cuda\.launch_cfg\.(\w+)\[%\w+\] (\S+) :", clean)
    flag = lambda value: int(re.search(r"%c(-?\d+)_i32", value).group(1))
    return {
        "block": [int(stored[f"1, {i}"]) for i in range(3)],
        "shared": int(stored["2"]),
        "attributes": {name: flag(value) for name, value in attributes},
        "params": params[1:],
        "maps": maps,
        "host": host,
    }


def compiled(kernel):
    stream = cute.runtime.make_fake_stream()
    packed = kernel["kind"] in ("forward", "backward") and kernel["packed"]
    low, sink = (kernel["kind"] == "forward" and kernel[name] for name in ("low", "sink"))
    with PACKED.sequences(packed), ROWS.kept(low, sink):
        made = cute.compile(*KINDS[kernel["kind"]](kernel), stream, options=f"--keep-cubin --dump-dir={SCRATCH}")
    lowered = re.sub(r'(@kernels_binary\()"(?:[^"\\]|\\.)*"', r"\1", str(made.ir_module))
    printed = launch(lowered, made.artifacts.MLIR)
    return {"cubin": base64.b64encode(made.artifacts.CUBIN).decode(), **printed}


def versions():
    from importlib.metadata import version

    names = {"flash_attn": "flash-attn-4", "cutlass_dsl": "nvidia-cutlass-dsl", "quack": "quack-kernels"}
    return {key: version(name) for key, name in names.items()}


if __name__ == "__main__":
    site = sys.argv[1]
    bounded(*map(int, sys.argv[2:4]))
    kernels = request_while_wanted()
    SCRATCH = tempfile.mkdtemp(dir=HERE)
    sys.path[:0] = [site, os.path.join(site, "nvidia_cutlass_dsl", "dsl_packages")]
    os.environ.update(CUTE_DSL_ARCH="sm_90a", CUTE_DSL_KEEP="ir-debug", CUTE_DSL_DUMP_DIR=SCRATCH)
    os.environ.update(FLASH_ATTENTION_ARCH="sm_90", CUTE_DSL_DISABLE_FILE_CACHING="1")
    warnings.simplefilter("ignore")
    without_torch()
    import cutlass
    import cutlass.cute as cute

    without_front_end("flash_attn.cute")
    without_front_end("quack")
    import quack.dsl  # noqa: F401  It gives tensors the indexing that the kernels use.

    beside = lambda name: module(name, os.path.join(HERE, f"{name}.py"))
    WORDS, PACKED, ROWS = beside("words"), beside("packed"), beside("rows")

    result = {"versions": versions(), "kernels": [compiled(kernel) for kernel in kernels]}
    with open(os.path.join(HERE, "answer.json"), "w") as file:
        json.dump(result, file)
