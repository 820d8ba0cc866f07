"""A program as a user writes it, which `mypy --strict` takes: `cargo xtask jax-tests` checks it, and runs it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import qkvault
import qkvault.jax as qj
from qkvault.oracle import Oracle

SLOPES = 2.0 ** -jnp.arange(1.0, 5.0)


def score_mod(score: jax.Array, b: jax.Array, h: jax.Array, q_idx: jax.Array, kv_idx: jax.Array) -> jax.Array:
    return 30.0 * jnp.tanh(score / 30.0) - SLOPES[h] * (q_idx - kv_idx)


def mask_mod(b: jax.Array, h: jax.Array, q_idx: jax.Array, kv_idx: jax.Array) -> jax.Array:
    return kv_idx <= q_idx


def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    o: jax.Array = qj.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, window=(8, 0))
    return (o.astype(jnp.float32) ** 2).sum()


def main() -> None:
    q = k = v = jnp.ones((1, 16, 4, 16), jnp.bfloat16)
    gradients: tuple[jax.Array, jax.Array, jax.Array] = jax.grad(loss, (0, 1, 2))(q, k, v)
    assert all(bool(jnp.isfinite(x).all()) for x in gradients)
    o, lse = qj.attention(q, k, v, is_causal=True, return_lse=True, scale=0.5, softcap=jnp.float32(30.0))
    assert o.shape == q.shape and lse.shape == (1, 16, 4)
    packed: jax.Array = qj.varlen_attention(q[0], k[0], v[0], jnp.asarray([0, 4, 16]), max_seqlen_q=12)
    pages = jnp.ones((8, 4, 4, 16), jnp.bfloat16)
    table, lengths = jnp.zeros((1, 4), jnp.int32), jnp.asarray([13])
    paged: jax.Array = qj.paged_attention(q[:, :1], pages, pages, table, lengths)
    same: jax.Array = qj.dot_product_attention(q, k, v, is_causal=True, key_value_seq_lengths=lengths)
    assert packed.shape == q[0].shape and paged.shape == q[:, :1].shape and same.shape == q.shape
    answer: qkvault.Explanation = qj.explain(q, k, v, gpu="h200", backward=True, is_causal=True)
    print(answer.text, [reason.code for reason in answer.reasons], bool(answer))

    attention = qkvault.Attention(q="bf16 [1,4,16,16]", mask="causal")
    forward, backward = attention.training(deterministic=True)
    outputs: list[str] = [operand.role for operand in backward.operands if operand.output]
    key: str = forward.key
    exact = Oracle(attention).random(7).run()
    good: bool = exact.compare("o", exact.output("o")).good
    try:
        qkvault.Attention("q: bf16 [1,4,16,60]\nwhat: 1")
    except qkvault.ParseError as error:
        kind: str = error.kind
    print(outputs, key, good, kind, attention)


def warmed(context: qkvault.Context, attentions: list[qkvault.Attention]) -> list[int]:
    def told(done: int, count: int, plan: qkvault.Plan) -> None:
        print(done, count, plan.compile_ms)

    plans: list[qkvault.Plan] = context.warm(attentions, "h200", progress=told)
    return [plan.workspace for plan in plans]


if __name__ == "__main__":
    main()
