"""Modifications of scores and masks, as people write them for FlexAttention: what the tracer is tried with.

They are the kinds of PyTorch's attention-gym, of the FlexAttention documentation and of published models, written
anew, and ones that try integers, floats and truth values where PyTorch converts between them. `EXPRESSIBLE` are
functions that make a pair (score_mod, mask_mod); `REFUSED` are those that the language cannot express, with a part of
the reason.
"""

import functools
import math

import torch
import torch.nn.functional as F

BATCH, HEADS, TOKENS = 2, 4, 48
SIZES = (BATCH, HEADS, TOKENS, TOKENS)

EXPRESSIBLE, REFUSED = {}, {}


def case(sizes=SIZES):
    """Registers a function that makes (score_mod, mask_mod), for scores of these sizes."""

    def register(function):
        EXPRESSIBLE[function.__name__] = (function, sizes)
        return function

    return register


def refused(reason):
    """Registers a modification that has no expression, with a part of the reason."""

    def register(function):
        REFUSED[function.__name__] = (function, reason)
        return function

    return register


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def whole_numbers(low, high, *shape, seed=0):
    return torch.randint(low, high, shape, generator=random(seed))


def causal_mask(b, h, q, k):
    return q >= k


def document_ids(lengths=(11, 20, 17)):
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def offsets_of(lengths=(11, 20, 17)):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)])


# Masks.


@case()
def noop():
    return (lambda score, b, h, q, k: score), (lambda b, h, q, k: q.new_ones((), dtype=torch.bool))


@case()
def causal():
    return None, causal_mask


@case((1, 2, 16, 48))
def causal_from_the_end():
    return None, lambda b, h, q, k: q + (48 - 16) >= k


@case((1, 2, 16, 48))
def causal_at_a_place_in_a_cache():
    place = torch.tensor(20)
    return None, lambda b, h, q, k: q + place >= k


@case()
def sliding_window():
    window = 7

    def near(b, h, q, k):
        return q - k <= window

    return None, lambda b, h, q, k: near(b, h, q, k) & causal_mask(b, h, q, k)


@case()
def symmetric_window():
    return None, lambda b, h, q, k: (q - k).abs() < 5


@case()
def dilated_sliding_window():
    def mask(b, h, q, k):
        distance = torch.abs(q - k)
        return (distance <= 12) & (distance % 3 == 0)

    return None, mask


@case()
def global_sliding_window():
    is_global = whole_numbers(0, 5, TOKENS) == 0
    return None, lambda b, h, q, k: ((q - k).abs() <= 4) | is_global[q] | is_global[k]


@case()
def prefix_lm():
    return None, lambda b, h, q, k: (k < 9) | (q >= k)


@case()
def prefix_lm_of_each_sample():
    prefix = torch.tensor([5, 17], dtype=torch.int32)
    return None, lambda b, h, q, k: (k < prefix[b]) | (q >= k)


@case()
def documents():
    ids, offsets = document_ids(), offsets_of()

    def mask(b, h, q, k):
        same = ids[q] == ids[k]
        return same & causal_mask(b, h, q - offsets[ids[q]], k - offsets[ids[k]])

    return None, mask


@case()
def documents_of_each_sample():
    ids = whole_numbers(0, 3, BATCH, TOKENS).sort(-1).values
    return None, lambda b, h, q, k: (ids[b, q] == ids[b, k]) & (q >= k)


@case()
def packed_causal_documents():
    ids, offsets = document_ids(), offsets_of()
    return None, lambda b, h, q, k: (k >= offsets[ids[q]]) & (q >= k)


@case()
def batchify():
    size = 12

    def mask(b, h, q, k):
        return (q // size == k // size) & causal_mask(b, h, q % size, k % size)

    return None, mask


@case()
def shared_prefix():
    ids, offsets = document_ids((10, 19, 19)), offsets_of((10, 19, 19))
    prefix_of = torch.tensor([0, 0, 0])

    def mask(b, h, q, k):
        document = ids[q]
        prefix = prefix_of[document]
        own = (k >= offsets[document]) & (q >= k)
        before = (document != prefix) & (k >= offsets[prefix]) & (k < offsets[prefix + 1])
        return own | before

    return None, mask


@case((1, 2, 48, 24))
def flamingo():
    intervals = torch.tensor([[0, 20], [20, 48]])
    image_of = torch.repeat_interleave(torch.arange(2), 12)

    def mask(b, h, q, k):
        interval = intervals[image_of[k]]
        return (q >= interval[0]) & (q < interval[1])

    return None, mask


def neighbourhood(place, width, height, kernel):
    def mask(b, h, q, k):
        (qx, qy), (kx, ky) = place(q), place(k)
        half = kernel // 2
        cx, cy = qx.clamp(half, width - 1 - half), qy.clamp(half, height - 1 - half)
        return ((cx - kx).abs() <= half) & ((cy - ky).abs() <= half)

    return mask


@case()
def natten():
    return None, neighbourhood(lambda i: (i // 8, i % 8), 6, 8, 3)


@case()
def tiled_natten():
    def place(i):
        tile, rest = i // 4, i % 4
        return tile % 4 * 2 + rest % 2, tile // 4 * 2 + rest // 2

    return None, neighbourhood(place, 8, 6, 3)


@case((1, 1, 64, 64))
def morton_natten():
    def compact(code):
        code = code & 0x55555555
        code = (code | (code >> 1)) & 0x33333333
        code = (code | (code >> 2)) & 0x0F0F0F0F
        return (code | (code >> 4)) & 0x00FF00FF

    return None, neighbourhood(lambda i: (compact(i), compact(i >> 1)), 8, 8, 3)


def tiles(canvas, kernel, tile, text):
    count = math.prod(tile)
    grid = [c // t for c, t in zip(canvas, tile)]
    reach = [c // t for c, t in zip(kernel, tile)]
    vision = math.prod(canvas)

    def place(i):
        number, out = i // count, []
        for n in reversed(grid):
            out.append(number % n)
            number = number // n
        return out[::-1]

    def mask(b, h, q, k):
        near = (q < vision) & (k < vision)
        for at_q, at_k, n, r in zip(place(q), place(k), grid, reach):
            left, right = r // 2, r // 2 + r % 2 - 1
            centre = at_q.clamp(left, n - 1 - right)
            near = near & (at_k >= centre - left) & (at_k <= centre + right)
        to_text = (q < vision) & (k >= vision) & (k < vision + text)
        return near | to_text | ((q >= vision) & (k < vision + text))

    return mask


@case((1, 2, 40, 40))
def sliding_tiles_2d():
    return None, tiles((6, 6), (6, 2), (2, 2), 4)


@case((1, 2, 56, 56))
def sliding_tiles_3d():
    return None, tiles((4, 3, 4), (2, 3, 4), (2, 1, 2), 5)


@case()
def sparse_video_spatial():
    prompt, frame = 6, 14
    width = math.floor(2 * frame / 4) * 4
    return None, lambda b, h, q, k: (k < prompt + frame) | (q < prompt) | (torch.abs(q - k) < width)


@case()
def sparse_video_temporal():
    prompt, frame = 6, 14

    def mask(b, h, q, k):
        distance = torch.abs((q - prompt) % frame - (k - prompt) % frame)
        return (q < prompt) | (k < prompt) | (distance < 3)

    return None, mask


@case()
def block_diffusion():
    length, block = 24, 6

    def mask(b, h, q, k):
        q_noised, k_noised = q < length, k < length
        q_block, k_block = q % length // block, k % length // block
        diagonal = (q_block == k_block) & (q_noised == k_noised)
        earlier = (q_block > k_block) & q_noised & ~k_noised
        clean = (q_block >= k_block) & ~q_noised & ~k_noised
        return diagonal | earlier | clean

    return None, mask


@case((1, 2, 12, 30))
def tree_of_drafts():
    prefix, nodes = 18, 12
    ancestors = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        ancestors[node] |= ancestors[(node - 1) // 2]

    def mask(b, h, q, k):
        at = (k - prefix).clamp(min=0, max=nodes - 1)
        inside = (k >= prefix) & (k < prefix + nodes)
        return (k < prefix) | (inside & ancestors[q, at])

    return None, mask


@case((1, 2, 24, 34))
def blocks_of_drafts():
    prefix, size = 10, 6

    def mask(b, h, q, k):
        at = k - prefix
        own = (k >= prefix) & (q // size == at // size) & (at % size <= q % size)
        return (k < prefix) | own

    return None, mask


@case()
def chosen_tiles():
    chosen = torch.stack([torch.randperm(6, generator=random(i))[:2] for i in range(BATCH * HEADS * 6)])
    chosen = chosen.view(BATCH, HEADS, 6, 2)
    real = torch.tensor([8, 8, 3, 8, 8, 5])

    def mask(b, h, q, k):
        tile = k // 8
        return (chosen[b, h, q // 8] == tile.unsqueeze(-1)).any(dim=-1) & (k % 8 < real[tile])

    return None, mask


@case()
def map_of_blocks():
    blocks = whole_numbers(0, 2, BATCH, HEADS, 6, 6).bool()
    return None, lambda b, h, q, k: blocks[b, h, q // 8, k // 8]


@case()
def padding_of_keys():
    lengths = torch.tensor([20, 48])
    return None, lambda b, h, q, k: k < lengths[b]


@case()
def causal_heads_and_others():
    return None, lambda b, h, q, k: (h >= 2) | (q >= k)


@case()
def exclusive_or_and_negation():
    return None, lambda b, h, q, k: ~((q > k) ^ (h == 1)) | torch.logical_xor(b == 0, k < 3)


# Score modifications.


@case()
def softcap():
    cap = 20
    return (lambda score, b, h, q, k: cap * torch.tanh(score / cap)), causal_mask


@case()
def softcap_by_a_function():
    class Approximate(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return torch.tanh(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (1 - ctx.saved_tensors[0] ** 2)

    return (lambda score, b, h, q, k: 30.0 * Approximate.apply(score * (1 / 30.0))), None


@case()
def alibi():
    def mod(score, b, h, q, k):
        return score + (k - q) * torch.exp2(-((h + 1) * 8.0 / HEADS))

    return mod, causal_mask


@case((1, 6, 16, 16))
def alibi_of_six_heads():
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
    return (lambda score, b, h, q, k: score - slopes[h] * (q - k).abs()), None


@case()
def learned_slopes():
    slopes = torch.rand(HEADS, generator=random())
    return (lambda score, b, h, q, k: score + slopes[h] * (k - q)), None


@case()
def slopes_in_16_bits():
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.75], dtype=torch.bfloat16)
    return (lambda score, b, h, q, k: score + slopes[h].float() * (k - q)), None


@case()
def sandwich():
    rates = 1.0 / 10000 ** (2 * torch.arange(8) / 16)
    distances = torch.arange(2 * TOKENS - 1, dtype=torch.float32) - (TOKENS - 1)
    table = torch.cos(distances.abs()[:, None] * rates).sum(-1)
    by_head = HEADS / (8.0 * torch.arange(1, HEADS + 1))
    return (lambda score, b, h, q, k: score + table[q - k + TOKENS - 1] * by_head[h]), None


@case()
def graph_distances():
    bias = torch.randn(HEADS, 7, generator=random())
    distances = whole_numbers(0, 7, BATCH, TOKENS, TOKENS)
    return (lambda score, b, h, q, k: score + bias[h, distances[b, q, k]]), None


@case((1, 2, 12, 12))
def graph_edges():
    tables = list(torch.randn(3, 2, 5, generator=random()))
    kinds = whole_numbers(0, 5, 1, 12, 12, 3)
    lengths = whole_numbers(0, 4, 1, 12, 12)

    def mod(score, b, h, q, k):
        length, total = lengths[b, q, k], 0.0
        for at, table in enumerate(tables):
            total = total + torch.where(length > at, table[h, kinds[b, q, k, at]], 0.0)
        return score + total / torch.clamp(length, min=1)

    return mod, None


@case((1, 4, 16, 16))
def latent_rotary():
    q_rotary, k_rotary = torch.randn(1, 4, 16, 8, generator=random()), torch.randn(1, 1, 16, 8, generator=random(1))
    return (lambda score, b, h, q, k: score + 0.5 * torch.dot(q_rotary[b, h, q], k_rotary[b, h // 4, k])), None


@case()
def gelu_in_place_of_softmax():
    return (lambda score, b, h, q, k: torch.log(F.gelu(score) + 1.0)), None


@case()
def relu_in_place_of_softmax():
    return (lambda score, b, h, q, k: torch.log(F.relu(score) + 1.0)), None


@case()
def sigmoid_in_place_of_softmax():
    return (lambda score, b, h, q, k: torch.log(torch.sigmoid(score) + 1.0)), None


@case()
def relative_position_buckets():
    weight = torch.randn(8, HEADS, generator=random())

    def bucket(distance):
        near = distance.abs()
        far = 2 + (torch.log(near.float().clamp(min=1) / 2) / math.log(16 / 2) * 2).to(torch.int64)
        return (distance > 0).long() * 4 + torch.where(near < 2, near, far.clamp(min=2, max=3))

    return (lambda score, b, h, q, k: score + weight[bucket(k - q), h]), None


@case()
def learned_relative_bias():
    bias = torch.randn(HEADS, TOKENS, TOKENS, generator=random()).requires_grad_()
    return (lambda score, b, h, q, k: score + bias[h, q, k]), None


@case()
def causal_as_minus_infinity():
    return (lambda score, b, h, q, k: torch.where(q >= k, score * 0.5, -float("inf"))), None


@case()
def documents_as_minus_infinity():
    ids = document_ids()

    def mod(score, b, h, q, k):
        score = score + torch.where(ids[q] == ids[k], 0.0, float("-inf"))
        return score.masked_fill(k == 5, float("-inf"))

    return mod, causal_mask


@case()
def penalty_of_a_large_number():
    return (lambda score, b, h, q, k: torch.where(q - k < 9, score, torch.finfo(torch.float32).min)), None


@case()
def temperature_of_each_head():
    temperature = torch.nn.Parameter(torch.tensor([0.5, 1.5, 2.0, 0.25]))
    return (lambda score, b, h, q, k: score * temperature[h]), None


@case()
def temperature_by_position():
    return (lambda score, b, h, q, k: score * (torch.log(torch.floor((q + 1.0) / 8) + 1) * 0.1 + 1)), causal_mask


@case()
def captured_number():
    factor, shift = 1.75, 0.125

    def mod(score, b, h, q, k, factor=factor):
        return score * factor + shift

    return mod, None


@case()
def partial_arguments():
    def mod(score, b, h, q, k, *, strength, table):
        return score + strength * table[q]

    return functools.partial(mod, strength=0.3, table=torch.randn(TOKENS, generator=random())), None


@case()
def table_longer_than_the_tokens():
    table = torch.randn(100, generator=random())
    return (lambda score, b, h, q, k: score + table[k]), None


@case()
def module_with_a_table():
    class Bias(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("by_key", torch.randn(BATCH, TOKENS, generator=random()))

        def forward(self, score, b, h, q, k):
            return score + self.by_key[b, k]

    return Bias(), None


# Numbers as PyTorch converts them.


@case()
def true_division_of_integers():
    return (lambda score, b, h, q, k: score + (q - k) / 3 + q / (k + 1)), None


@case()
def floored_division_and_remainder_of_negatives():
    return (lambda score, b, h, q, k: score + (q - k) // 5 + (q - k) % 7 + (k - q) % -3), None


@case()
def truncated_division_and_remainder():
    def mod(score, b, h, q, k):
        return score + torch.div(q - k, 5, rounding_mode="trunc") + torch.fmod(q - k, 4)

    return mod, None


@case()
def division_of_floats_rounded():
    def mod(score, b, h, q, k):
        return torch.div(score, 0.3, rounding_mode="floor") + score // 0.7 + torch.remainder(score, 1.3)

    return mod, None


@case()
def truth_values_as_numbers():
    return (lambda score, b, h, q, k: score * (q >= k) + (h == 2) * 3 + (k > q).float()), None


@case()
def integers_with_floats():
    return (lambda score, b, h, q, k: torch.maximum(score, (q - k) * 0.25) + (q > 7.5) + torch.sign(q - k)), None


@case()
def powers():
    return (lambda score, b, h, q, k: score**2 * 0.1 + (q - k) ** 2 * 0.01 + score.abs() ** 0.5 + 2.0 ** (-h)), None


@case()
def in_place():
    def mod(score, b, h, q, k):
        score *= 2
        score += q
        return score.clamp_(max=30.0)

    return mod, None


@case()
def functions_of_a_number():
    def mod(score, b, h, q, k):
        x = score * 0.1
        y = torch.sin(x) + torch.cos(x) + torch.erf(x) + torch.exp(-x * x) + torch.atan2(x, x * x + 1)
        z = F.softplus(x) + F.silu(x) + F.elu(x) + F.gelu(x, approximate="tanh") + F.leaky_relu(x, 0.2)
        return (
            y + z + torch.log1p(x * x) + torch.expm1(x) + torch.exp2(x) + torch.rsqrt(x * x + 1) + torch.log2(x * x + 2)
        )

    return mod, None


@case()
def functions_of_functions():
    return (
        lambda score, b, h, q, k: F.hardsigmoid(score) + F.mish(score * 0.1) + torch.lerp(score, score * 2, 0.25)
    ), None


@case()
def minimum_and_maximum():
    return (lambda score, b, h, q, k: torch.minimum(score, q * 0.5).clamp(min=-4.0) + torch.clamp(q - k, -3, 3)), None


@case()
def rounded_table():
    return (lambda score, b, h, q, k: score + torch.round((q - k) / 3)), None


@case()
def wide_integers():
    return (lambda score, b, h, q, k: score + ((q + 1) * 2_000_000_000 + k) % 7), None


# What has no expression.


@case()
def integers_that_wrap():
    def mod(score, b, h, q, k):
        product = q.to(torch.int8) * 10
        return score + 0.01 * ((q - k) * 20).to(torch.int8) - 0.01 * (q - k).to(torch.uint8) + 0.01 * product

    return mod, None


@case()
def integers_of_64_bits():
    documents = torch.arange(TOKENS) // 5 * 2**32
    return None, lambda b, h, q, k: documents[q] == documents[k]


@case()
def numbers_that_round():
    slopes = torch.tensor([0.3, 0.7, 1.1, 1.9], dtype=torch.bfloat16)
    return lambda score, b, h, q, k: score + 0.01 * (q * 37 + k).to(torch.bfloat16) - slopes[h] * slopes[h], None


@case()
def powers_of_either_sign():
    def mod(score, b, h, q, k):
        return score + 1e-3 * score**3 - 0.01 * score**2.0 + 1e-5 * score**5 + score**0 + 0.01 * score ** (k % 3)

    return mod, None


@case()
def extremes_of_what_is_not_a_number():
    def mod(score, b, h, q, k):
        curve = torch.maximum(torch.log(score), torch.tensor(-1.0)) + torch.clamp(torch.sqrt(score), 0.5, 2.0)
        return torch.where(curve == curve, curve, score)

    return mod, None


@refused("asks for a value")
def branch_on_an_index(score, b, h, q, k):
    return score if q > k else -score


@refused("asks for a value")
def index_as_a_number(score, b, h, q, k):
    return score + int(q)


@refused("random")
def noise(score, b, h, q, k):
    return score + torch.rand_like(score)


@refused("round")
def rounded_score(score, b, h, q, k):
    return torch.round(score)


@refused("reads the score")
def read_at_a_score(score, b, h, q, k):
    return score + torch.arange(10.0)[score.clamp(0, 9).long()]


@refused("does not depend on the score")
def no_score(score, b, h, q, k):
    return q * 0.5


@refused("infinity")
def product_with_infinity(score, b, h, q, k):
    return score * torch.where(q >= k, 1.0, float("-inf"))


@refused("NameError")
def broken(score, b, h, q, k):
    return score + missing  # noqa: F821
