"""qkvault for JAX: attention with your own modifications of the scores, and their derivative.

    import jax, jax.numpy as jnp
    import qkvault.jax as qj

    def score_mod(score, b, h, q_idx, kv_idx):
        return 30.0 * jnp.tanh(score / 30.0) - slopes[h] * (q_idx - kv_idx)

    step = jax.jit(jax.grad(lambda q, k, v: qj.attention(q, k, v, score_mod=score_mod, is_causal=True).sum()))

Plans are found or compiled while a program is traced (`configure`). On a CPU the oracle computes: exact and slow.
"""

try:
    import jax as _jax
except ImportError as _error:
    raise ImportError(f"qkvault.jax needs JAX 0.6 or newer, for GPUs: pip install 'jax[cuda13]' ({_error})") from None
if _jax.__version_info__ < (0, 6):
    raise ImportError(f"qkvault.jax needs JAX 0.6 or newer, and this is {_jax.__version__}; upgrade it")

from ._attention import attention, explain
from ._config import configure, export_checks
from ._config import register as _register
from ._exchange import unzigzag, zigzag
from ._front import dot_product_attention
from ._packed import paged_attention, varlen_attention
from ._parallel import context_parallel_attention
from ._ranks import register as _register_ranks
from ._trace import TraceError

__all__ = [
    "TraceError", "attention", "configure", "context_parallel_attention", "dot_product_attention", "explain",
    "export_checks", "paged_attention", "unzigzag", "varlen_attention", "zigzag",
]

_register()
_register_ranks()
