"""qkvault: attention, compiled ahead of time: cuDNN, FlashAttention-4, own kernels.

    import qkvault

    attention = qkvault.Attention(q="bf16 [1,32,4096,128]", k="bf16 [1,8,4096,128]", mask="causal")
    print(attention.explain("h200"))            # what would run there, or every reason why not
    qkvault.Context("vault").warm(attention, "h200")   # compiles the plan; no GPU is needed

`qkvault.oracle` computes an attention on the CPU in float64. Nothing here imports PyTorch, JAX or NumPy.
"""

from ._attention import Attention, Explanation, Operand
from ._context import Context, default_context, set_default_context
from ._errors import (
    ArgumentError, BuildError, CapturedError, DeviceError, Error, GpuMemoryError, InternalError, LaunchError,
    LibraryError, LoadError, ParseError, PlanMissing, Reason, Refused, VaultError,
)
from ._plan import Plan

__all__ = [
    "ArgumentError", "Attention", "BuildError", "CapturedError", "Context", "DeviceError", "Error", "Explanation",
    "GpuMemoryError", "InternalError", "LaunchError", "LibraryError", "LoadError", "Operand", "ParseError", "Plan",
    "PlanMissing", "Reason", "Refused", "VaultError", "default_context", "set_default_context", "version",
]


def version() -> str:
    """The version of the library, such as `0.1.0`."""
    import ctypes

    from . import _abi
    from ._library import call, decoded, sized

    info = sized(_abi.qkv_version_info)
    call("qkv_version", ctypes.byref(info))
    return decoded(info.version)


def __getattr__(name: str) -> str:
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
