"""qkvault for PyTorch: attention with the arguments of SDPA and FlexAttention, on plans that are compiled ahead.

    import torch
    import qkvault.torch as qt

    def score_mod(score, b, h, q_idx, kv_idx):
        return 30.0 * torch.tanh(score / 30.0)

    o = qt.attention(q, k, v, score_mod=score_mod, is_causal=True)   # q, k, v: (batch, head, sequence, head dim)
    o.sum().backward()

A plan that the vault lacks is built by the first call of its shape, which takes 0.3 to 1 second and is logged;
`configure(build=False)` makes it an exception. What cuDNN cannot compute is an exception with the reasons, never a
slower kernel in silence. Needs PyTorch 2.10 or newer.
"""

from ._ahead import explain, prepare
from ._attention import attention
from ._context import configure
from ._exchange import context_parallel_shard, context_parallel_unshard
from ._paged import paged_attention
from ._parallel import context_parallel_attention
from ._redirect import scaled_dot_product_attention, use
from ._spec import Untraceable
from ._transformers import attention_interface, register_transformers
from ._varlen import varlen_attention

__all__ = [
    "Untraceable", "attention", "attention_interface", "configure", "context_parallel_attention",
    "context_parallel_shard", "context_parallel_unshard", "explain",
    "paged_attention", "prepare", "register_transformers", "scaled_dot_product_attention", "use", "varlen_attention",
]
