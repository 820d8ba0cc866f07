"""Plans: what cuDNN compiled for one attention and one GPU, and their launches."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Mapping, Union

from . import _abi
from ._attention import Operand, operand
from ._library import Handle, call, decoded, sized, whole

#: Where a plan came from.
SOURCES = {
    _abi.SOURCE_LOADED: "loaded", _abi.SOURCE_MEMORY: "memory", _abi.SOURCE_DISK: "disk", _abi.SOURCE_LAYER: "layer",
    _abi.SOURCE_REMOTE: "remote", _abi.SOURCE_BUILT: "built", _abi.SOURCE_WAITED: "waited",
}


class Plan(Handle):
    """A plan of one attention: loaded on a GPU, or compiled ahead, with facts and without a GPU."""

    _free = "qkv_plan_free"

    @cached_property
    def _info(self) -> _abi.qkv_plan_info:
        info = sized(_abi.qkv_plan_info)
        call("qkv_plan_facts", self._address, ctypes.byref(info))
        return info

    @property
    def key(self) -> str:
        """The plan's key: attention, target and options."""
        return bytes(self._info.key).hex()

    @property
    def attention_key(self) -> str:
        """The key of its attention."""
        return bytes(self._info.attention_key).hex()

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory that a launch needs, at a multiple of `workspace_alignment`."""
        return self._info.workspace

    @property
    def workspace_alignment(self) -> int:
        """Alignment in bytes of the scratch memory's address."""
        return self._info.workspace_alignment

    @property
    def device(self) -> int:
        """CUDA's ordinal of the GPU on which it is loaded; -1 if it is compiled ahead."""
        return self._info.device

    @property
    def deterministic(self) -> bool:
        """Whether two launches on the same input agree bit for bit."""
        return bool(self._info.deterministic)

    @property
    def source(self) -> str:
        """Where it came from: `loaded`, `memory`, `disk`, `layer`, `remote`, `built` or `waited`."""
        return SOURCES.get(self._info.source, str(self._info.source))

    @property
    def cudnn(self) -> str:
        """The version of the cuDNN that compiled it and that alone loads it; empty for a plan that needs none."""
        return decoded(self._info.cudnn)

    @property
    def engine(self) -> str:
        """Engine and knobs of cuDNN, or whose kernels it has."""
        return decoded(self._info.engine)

    @property
    def why(self) -> str:
        """Whose plan it is, why, and why not those of other engines; empty if the process had loaded it before."""
        return decoded(self._info.why) if self._info.why else ""

    @property
    def times(self) -> dict[str, float]:
        """Microseconds of the call that loaded it, in all (`prepare`) and by part; zeros if another call had.

        `vault` is its key and its entry. `load` has the parts `checks` of its facts, `code` (cuDNN reads its plan, or
        the driver loads cubins that no other plan had loaded), `kernels` (they are found and brought) and `attributes`.
        """
        parts = ("prepare", "vault", "load", "checks", "code", "kernels", "attributes")
        return {part: getattr(self._info, f"{part}_us") for part in parts}

    @property
    def compile_ms(self) -> int:
        """Milliseconds that compiling took."""
        return self._info.compile_ms

    @property
    def plan_bytes(self) -> int:
        """Bytes of cuDNN's serialised plan."""
        return self._info.plan_bytes

    @cached_property
    def tensors(self) -> tuple[Operand, ...]:
        """Tensors that a launch takes, in its order."""
        return tuple(operand("qkv_plan_tensor", self._address, i) for i in range(self._info.tensor_count))

    @cached_property
    def scalars(self) -> tuple[Operand, ...]:
        """Scalars that a launch takes, in its order."""
        return tuple(operand("qkv_plan_scalar", self._address, i) for i in range(self._info.scalar_count))

    def load_kernels(self) -> None:
        """Loads its kernels now, so that the first launch takes no longer than later ones."""
        call("qkv_plan_load_kernels", self._address)

    def launch(
        self,
        tensors: Mapping[str, tuple[int, int]],
        scalars: Mapping[str, Union[int, float]] = {},
        *,
        workspace: tuple[int, int] = (0, 0),
        stream: int = 0,
    ) -> None:
        """Queues a launch on a CUDA stream, with (address, bytes) for each tensor by name.

        Memory must stay valid until the launch is finished on the stream, and no other launch may use the workspace
        meanwhile. Frameworks have functions above this one.
        """
        call("qkv_launch_named", self._address, ctypes.byref(self._arguments(tensors, scalars, workspace, stream)))

    def check(
        self,
        tensors: Mapping[str, tuple[int, int]],
        scalars: Mapping[str, Union[int, float]] = {},
        *,
        workspace: tuple[int, int] = (0, 0),
    ) -> None:
        """Raises what is wrong in the arguments of a launch, without a launch and without a GPU."""
        call("qkv_check_named", self._address, ctypes.byref(self._arguments(tensors, scalars, workspace, 0)))

    def _arguments(self, tensors, scalars, workspace, stream) -> _abi.qkv_launch_named_args:
        buffers = (_abi.qkv_named_buffer * len(tensors))()
        for row, (name, (address, size)) in zip(buffers, tensors.items()):
            row.name, row.buffer = name.encode(), buffer(name, address, size)
        numbers = (_abi.qkv_named_number * len(scalars))()
        kinds = {at: o.dtype for o in self.scalars for at in (o.role, o.name)}
        for row, (name, value) in zip(numbers, scalars.items()):
            row.name, row.number = name.encode(), number(kinds.get(name, "f32"), value)
        return sized(
            _abi.qkv_launch_named_args, tensors=buffers, tensor_count=len(buffers), scalars=numbers,
            scalar_count=len(numbers), workspace=buffer("the workspace", *workspace), stream=stream,
        )

    def __repr__(self) -> str:
        where = f"on GPU {self.device}" if self.device >= 0 else "compiled ahead"
        by = f", cuDNN {self.cudnn}" if self.cudnn else ""
        return f"<qkvault.Plan {decoded(self._info.what)}, {where}{by}>"


def buffer(name: str, address: int, size: int) -> _abi.qkv_buffer:
    """Memory for a launch."""
    return _abi.qkv_buffer(whole(address, 64, f"the address of {name}"), whole(size, 64, f"the size of {name}"))


def number(dtype: str, value: Union[int, float]) -> _abi.qkv_number:
    """A number for a launch."""
    kind = {"f32": _abi.F32, "i32": _abi.I32, "i64": _abi.I64}[dtype]
    if dtype == "f32":
        return _abi.qkv_number(dtype=kind, value=_abi.qkv_value(f32=float(value)))
    own = whole(int(value), int(dtype[1:]), "a scalar", signed=True)
    return _abi.qkv_number(dtype=kind, value=_abi.qkv_value(**{dtype: own}))
