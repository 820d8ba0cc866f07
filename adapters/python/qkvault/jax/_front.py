"""The front of `jax.nn.dot_product_attention`."""

from __future__ import annotations

from typing import Optional, Union

import jax
import jax.numpy as jnp

from ._attention import attention


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
) -> jax.Array:
    """As `jax.nn.dot_product_attention`, with its parameters and shapes: [B, T, N, H], or [T, N, H] without a batch.

    Rows of padded queries are zeros.
    """
    if query.ndim == 3:
        query, key, value = (x[None] for x in (query, key, value))
        found = dot_product_attention(
            query, key, value, bias, mask, scale=scale, is_causal=is_causal, query_seq_lengths=query_seq_lengths,
            key_value_seq_lengths=key_value_seq_lengths, local_window_size=local_window_size,
        )
        return jnp.squeeze(found, 0)
    return attention(
        query, key, value, bias=bias, mask=mask, scale=scale, is_causal=is_causal, window=local_window_size,
        query_seq_lengths=query_seq_lengths, key_value_seq_lengths=key_value_seq_lengths,
    )
