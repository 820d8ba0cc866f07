"""The part `forms` of card_jax_two.py: dropout, sequences behind each other, lengths, segments, pages, log-sum-exp."""

import jax
import jax.numpy as jnp
import numpy as np

import qkvault.jax as qj


def forms(card):
    """Each form beside attention from its definition in float32, forward and gradients."""
    check, on_gpu, make, off = card.Checks(), card.ON_GPU, card.make, card.off
    if on_gpu:
        dropout(card, check)
    packed(card, check)
    lengths(card, check)
    origins(card, check)
    paged(card, check)
    q, k, v = card.qkv()
    ids = jnp.asarray(np.sort(np.random.default_rng(1).integers(0, 3, q.shape[:2]), 1))
    same = lambda s, b, h, i, j: jnp.where(ids[b, i] == ids[b, j], s, -jnp.inf)  # noqa: E731
    ours = lambda *a: qj.attention(*a, segment_ids=ids)  # noqa: E731
    both(card, check, "segments", ours, lambda *a: card.plain(*a, same), (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bqhk", q.astype(jnp.float32),
                        jnp.repeat(k, q.shape[2] // k.shape[2], 2).astype(jnp.float32)) * q.shape[-1] ** -0.5
    exact = jax.nn.logsumexp(scores, -1)
    check("log-sum-exp", lambda: off(jax.jit(lambda *a: qj.attention(*a, return_lse=True))(q, k, v)[1], exact))
    odd = make(1, 1, 33, 33, dtype=jnp.float32, seed=9)
    few = [x[:, :33] for x in (q, k, v)] if on_gpu else None
    if few:
        given = lambda q, k, v, b: qj.attention(q, k, v, bias=b)  # noqa: E731
        exact = lambda q, k, v, b: card.plain(q, k, v, lambda s, _, h, i, j: s + b[0, 0, i, j])  # noqa: E731
        both(card, check, "a bias of an odd size", given, exact, (*few, odd))
    return {**check.found, "wrong": check.wrong}


def both(card, check, name, ours, theirs, args, bound=3e-2):
    count = len(args)
    check(name, lambda: card.off(jax.jit(ours)(*args), card.on_cpu(theirs, *args)), bound)
    moved = lambda: card.on_cpu(jax.grad(card.squares(theirs), tuple(range(count))), *args)  # noqa: E731
    check(f"{name}: gradients", lambda: card.off(card.gradients(ours, count)(*args), moved()), bound)


def dropout(card, check):
    """The mask that a key draws is read from a launch whose values are the unit matrix; then all follows from it."""
    b, s, h, d, rate = 2, 64, 4, 64, 0.25
    q, k, v = (card.make(b, s, h, d, seed=n) for n in range(3))
    run = lambda q, k, v, key: qj.attention(q, k, v, dropout_rate=rate, dropout_rng=key)  # noqa: E731
    jitted, key = jax.jit(run), jax.random.key(5)
    unit = jnp.broadcast_to(jnp.eye(s, d, dtype=q.dtype)[None, :, None], v.shape)
    weights = np.asarray(jitted(q, k, unit, key), np.float32)
    keep = jnp.asarray(np.moveaxis(weights, 1, 2) > 0)  # over (batch, head, query, key)
    check.found["dropout: kept of 0.75"] = round(float(keep.mean()), 4)
    check("dropout: about as many are kept", lambda: abs(float(keep.mean()) - (1 - rate)), 0.02)

    def theirs(q, k, v):
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * d**-0.5
        weights = jnp.where(card.jnp.asarray(np.asarray(keep)), jax.nn.softmax(scores, -1) / (1 - rate), 0.0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    both(card, check, "dropout", lambda *a: run(*a, key), theirs, (q, k, v))
    check("dropout: the same key drops the same", lambda: card.off(jitted(q, k, v, key), jitted(q, k, v, key)), 1e-9)
    other = jitted(q, k, v, jax.random.key(6))
    check("dropout: another key drops others", lambda: card.off(other, jitted(q, k, v, key)) > 0.05)
    check("dropout: keys trace nothing again", lambda: jitted._cache_size() == 1)
    step = card.gradients(lambda *a: jax.checkpoint(lambda *a: run(*a, key))(*a), 3)
    moved = card.on_cpu(jax.grad(card.squares(theirs), (0, 1, 2)), q, k, v)
    check("dropout: gradients under remat", lambda: card.off(step(q, k, v), moved))


def packed(card, check):
    rows, h, kv, d = (640, 8, 4, 64) if card.ON_GPU else (40, 4, 2, 16)
    q, k, v = (card.make(rows, n, d, seed=n) for n in (h, kv, kv))
    cases = {"three": [0, rows // 4, rows // 4 + 1, rows - 10], "one": [0, rows, rows, rows]}
    mod = lambda s, b, h, i, j: 8.0 * jnp.tanh(s / 8.0)  # noqa: E731
    run = lambda q, k, v, ends: qj.varlen_attention(q, k, v, ends, is_causal=True, score_mod=mod)  # noqa: E731

    def theirs(ends):
        own = jnp.asarray(np.repeat([0, 1, 2, -1], np.diff([*ends, rows])))

        def exact(q, k, v):
            keep = (own[:, None] == own[None]) & jnp.tril(jnp.ones((rows, rows), bool))
            masked = lambda s, b, h, i, j: jnp.where(keep[i, j], mod(s, b, h, i, j), -jnp.inf)  # noqa: E731
            found = card.plain(q[None], k[None], v[None], masked)[0]
            return jnp.where((own >= 0)[:, None, None], found, 0)

        return exact

    for name, ends in cases.items():
        given = jnp.asarray(ends)
        both(card, check, f"varlen, {name}", lambda *a: run(*a, given), theirs(ends), (q, k, v))
    jitted = jax.jit(run)
    turns = [(ends, card.on_cpu(theirs(ends), q, k, v)) for ends in cases.values()]

    def changing():
        return max(card.off(jitted(q, k, v, jnp.asarray(ends)), exact) for _ in range(4) for ends, exact in turns)

    check("varlen: lengths change in one program", changing)
    check("varlen: nothing is traced again", lambda: jitted._cache_size() == 1)
    wild = jax.block_until_ready(jitted(q, k, v, jnp.asarray([5, 10**6, -7, 2**31 - 1])))
    check("varlen: wrong offsets stay inside", lambda: wild.shape == q.shape)
    check("varlen: right afterwards", changing)


def lengths(card, check):
    q, k, v = card.qkv()
    s = q.shape[1]
    few = jnp.asarray([s, s // 3])
    run = lambda q, k, v: qj.attention(q, k, v, query_seq_lengths=few, key_value_seq_lengths=few)  # noqa: E731

    def theirs(q, k, v):
        masked = lambda x, b, h, i, j: jnp.where(j < few[b], x, -jnp.inf)  # noqa: E731
        found = card.plain(q, k, v, masked)
        return jnp.where(jnp.arange(s)[None, :, None, None] < few[:, None, None, None], found, 0)

    both(card, check, "lengths", run, theirs, (q, k, v))
    if card.ON_GPU:
        nn = jax.nn.dot_product_attention
        options = {"query_seq_lengths": few, "key_value_seq_lengths": few, "is_causal": True}
        kept = jnp.arange(s)[None, :, None, None] < few[:, None, None, None]
        found = jax.jit(lambda *a: qj.dot_product_attention(*a, **options))(q, k, v)
        other = jax.jit(lambda *a: nn(*a, implementation="cudnn", **options))(q, k, v)
        check("lengths: as jax.nn", lambda: card.off(found, jnp.where(kept, other, 0)), 1e-2)


def origins(card, check):
    """Chunks of queries at positions that are numbers or arrays, over keys from a position on, in both directions."""
    q, k, v = card.qkv()
    s, h = q.shape[1], q.shape[2]
    slopes, size = 2.0 ** -(1 + jnp.arange(h) / 2.0), s // 4
    alibi = lambda x, b, h, i, j: x - slopes[h] * (i - j)  # noqa: E731
    table = jnp.asarray(np.random.default_rng(5).standard_normal(s), jnp.float32)
    lookup = lambda x, b, h, i, j: x + table[jnp.abs(i - j)]  # noqa: E731
    cases = (
        ("causal", {"is_causal": True}, None, 0), ("window", {"is_causal": True, "window": s // 5}, None, 0),
        ("both sides", {"window": (s // 3, s // 9)}, None, 0), ("alibi", {"is_causal": True}, alibi, 0),
        ("a table", {"is_causal": True}, lookup, 0), ("keys later", {"is_causal": True}, alibi, s // 4),
    )
    for name, options, mod, start in cases:
        left, right = (options.get("window"), 0) if options.get("is_causal") else options["window"]
        for first in (s // 3, s - size):
            def theirs(q, k, v, first=first, start=start, mod=mod, left=left, right=right):
                def masked(x, b, h, i, j):
                    i, j = i + first, j + start
                    x = x if mod is None else mod(x, b, h, i, j)
                    seen = j <= i + right
                    return jnp.where(seen if left is None else seen & (i - j <= left), x, -jnp.inf)

                return card.plain(q[:, first : first + size], k[:, start:], v[:, start:], masked)

            for kind, position in (("number", first), ("array", jnp.int32(first)))[: 1 + (first == s // 3)]:
                def ours(q, k, v, first=first, start=start, mod=mod, options=options, position=position):
                    return qj.attention(q[:, first : first + size], k[:, start:], v[:, start:], score_mod=mod,
                                        query_origin=position, key_origin=start, **options)

                both(card, check, f"origin {first}, {kind}: {name}", ours, theirs, (q, k, v))


def paged(card, check):
    pages, size, h, kv, d = (64, 16, 8, 2, 64) if card.ON_GPU else (12, 4, 4, 2, 16)
    each = 16 if card.ON_GPU else 5
    k, v = card.make(pages, size, kv, d, seed=1), card.make(pages, size, kv, d, seed=2)
    table = jnp.asarray(np.random.default_rng(3).permutation(pages)[: 2 * each].reshape(2, each))
    few = jnp.asarray([each * size - 3, size + 1])
    for rows in (1, 4):
        q = card.make(2, rows, h, d, seed=3)

        def exact(q, rows=rows):
            whole = [pool[table].reshape(2, each * size, kv, d) for pool in (k, v)]
            masked = lambda s, b, h, i, j: jnp.where(j <= few[b] - rows + i, s, -jnp.inf)  # noqa: E731
            return card.plain(q, *whole, masked)

        run = jax.jit(lambda q, k, v, few: qj.paged_attention(q, k, v, table, few))
        found = card.on_cpu(exact, q)
        check(f"pages, {rows} rows", lambda: card.off(run(q, k, v, few), found))
        turned = [jnp.swapaxes(x, 1, 2) for x in (q, k, v)]
        other = jax.jit(lambda *a: qj.paged_attention(*a, table, few, layout="bhsd"))
        check(f"pages, {rows} rows, heads before rows", lambda: card.off(jnp.swapaxes(other(*turned), 1, 2), found))
        check(f"pages, {rows} rows, replays", lambda: max(card.off(run(q, k, v, few), found) for _ in range(8)))
        wild = qj.paged_attention(q, k, v, table * 1000 - 9, few * 1000)
        check(f"pages, {rows} rows, wrong ones stay inside", lambda: jax.block_until_ready(wild).shape == q.shape)
        if card.ON_GPU:
            check.found[f"us of a decode of {rows} rows"] = card.timed(run, (q, k, v, few), 50)
