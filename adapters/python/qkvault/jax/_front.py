"""The front of `jax.nn.dot_product_attention`."""

from __future__ import annotations

from typing import Any, Optional, Union

import jax
import jax.numpy as jnp

from .._errors import ArgumentError
from ._attention import attention
from ._words import DOOR


@DOOR.worded()
def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: Optional[jax.Array] = None,
    mask: Optional[jax.Array] = None,
    *,
    scale: Optional[float] = None,
    is_causal: bool = False,
    query_seq_lengths: Optional[jax.Array] = None,
    key_value_seq_lengths: Optional[jax.Array] = None,
    local_window_size: Union[int, tuple[int, int], None] = None,
    implementation: Optional[str] = None,
    return_residual: bool = False,
) -> Any:
    """As `jax.nn.dot_product_attention`, with its parameters and shapes: [B, T, N, H], or [T, N, H] without a batch.

    Rows of padded queries are zeros. `implementation` may be None or `"cudnn"`. With `return_residual`, also the
    natural log-sum-exp of rows, [B, T, N] in float32, without gradient.
    """
    if implementation not in (None, "cudnn"):
        raise ArgumentError(f"implementation is {implementation!r}; qkvault has cudnn alone, call jax.nn for another")
    if getattr(query, "ndim", None) == getattr(key, "ndim", None) == getattr(value, "ndim", None) == 3:
        query, key, value = (x[None] for x in (query, key, value))
        found = dot_product_attention(
            query, key, value, bias, mask, scale=scale, is_causal=is_causal, query_seq_lengths=query_seq_lengths,
            key_value_seq_lengths=key_value_seq_lengths, local_window_size=local_window_size,
            return_residual=return_residual,
        )
        return jax.tree.map(lambda x: jnp.squeeze(x, 0), found)
    options: dict[str, Any] = {
        "bias": bias, "mask": mask, "scale": scale, "is_causal": is_causal, "window": local_window_size,
        "query_seq_lengths": query_seq_lengths, "key_value_seq_lengths": key_value_seq_lengths,
    }
    if return_residual:
        return attention(query, key, value, return_lse=True, **options)
    return attention(query, key, value, **options)
