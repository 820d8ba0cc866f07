"""Families of data for programs that compare a door with exact numbers, as `qkvault-lab selftest` has them.

Random numbers are normal: no log-sum-exp is far below 0, no row is constant, no key has all of a row's weight. Faults of
kernels that show in such rows alone stay hidden. `shaped` changes normal operands to those of a family; it works on
NumPy's arrays and on PyTorch's tensors, which it leaves as they are.
"""

FAMILIES = ("normal", "below", "above", "constant", "dominant", "zero", "tiny", "large")

# How small the other dims are where one dim decides the scores.
REST = 0.125


def family(number):
    """The family of a case: one after the other."""
    return FAMILIES[number % len(FAMILIES)]


def shaped(family, q, k, v, scale, keys_axis):
    """Q, K and V of a family; `keys_axis` is the axis of K's rows. Q and K have their head dim last."""
    q, k, v = q * 1, k * 1, v * 1
    level = {"below": -120.0, "above": 120.0, "dominant": 40.0}.get(family)
    if level is not None:
        q, k = q * REST, k * REST
        q[..., 0], k[..., 0] = 1.0, level / scale
        if family == "dominant":
            rows = [slice(None)] * k.ndim
            rows[keys_axis], rows[-1] = slice(1, None), 0
            k[tuple(rows)] = 0.0
    elif family == "constant":
        first = [slice(None)] * k.ndim
        first[keys_axis] = slice(0, 1)
        k = k * 0 + k[tuple(first)]
    elif family == "zero":
        q, k = q * 0, k * 0
    elif family == "tiny":
        q, k = q * 1e-7, k * 1e-7
    elif family == "large":
        v = v * 1024.0
    return q, k, v


def roundings(weights, d_scores, o, d_o, q, k, scale, bits):
    """How far the gradients of Q and K may be off as a whole, by what kernels round: norms for a number format of so
    many bits behind the point.

    All are (batch, head, row, ...), with heads of queries: `weights` are probabilities, `d_scores` gradients of
    scaled products. Kernels round these and the O that row sums are taken from; where keys have a large dim in common,
    gradients cancel and these roundings do not.
    """
    step, norm = 4 * 2.0 ** -(bits + 1), lambda x: float((x * x).sum()) ** 0.5
    of_sum = ((d_o * o) ** 2).sum(-1)[..., None] ** 0.5
    alone = (d_scores**2 @ k**2) ** 0.5
    of_rows = of_sum * (weights @ k)
    keys = ((d_scores**2 + (weights * of_sum) ** 2).swapaxes(-1, -2) @ q**2) ** 0.5
    return step * scale * (norm(alone) + norm(of_rows)), step * scale * norm(keys)
