"""What JAX's door says in errors, whose sentences are in `_sentences.py`."""

from __future__ import annotations

from .._words import Door

DOOR = Door(
    "qkvault.jax",
    {
        "cast": "{q}.astype(jnp.bfloat16)",
        "clamp": "jnp.clip(x, 0, 4194303)",
        "configure": "qkvault.Context, and that to qkvault.jax.configure(context=...)",
        "constant": "give it as jax.lax.stop_gradient(...)",
        "copy": "a copy, such as jnp.array({who})",
        "detached": "jax.lax.stop_gradient of it",
        "elsewhere": "jax.nn.dot_product_attention(..., implementation='xla')",
        "forward": "take no gradient of it",
        "gather": "{k}[{pages}].reshape(...), and {v} likewise",
        "newer": "a newer cuDNN (pip install -U nvidia-cudnn-cu13)",
        "no_sink": "give jax.lax.stop_gradient({sinks})",
        "pad": "jnp.pad",
        "repeat": "jnp.repeat",
        "tensor": "an array",
        "whole": "jnp.array",
    },
)
