"""The words in which expressions are written for FlashAttention-4's kernels: functions of numbers in registers.

The text of an expression calls nothing else, so a test can evaluate the same text with words of its own
(`expression/host.py`). Numbers are Float32, Int32 and Boolean of the DSL, or several of them (`Lanes`).
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass._mlir.dialects import arith

TYPES = {
    "f16": (cutlass.Float16, 2),
    "bf16": (cutlass.BFloat16, 2),
    "f32": (cutlass.Float32, 4),
    "i32": (cutlass.Int32, 4),
    "u8": (cutlass.Uint8, 1),
}

LOG2_E = 1.4426950408889634


class Lanes:
    """The numbers of several scores, of which a word may compute something once for all."""

    def __init__(self, values):
        self.values = list(values)

    def __getitem__(self, i):
        return self.values[i]

    def __len__(self):
        return len(self.values)


def lane(x, i):
    return x[i] if isinstance(x, Lanes) else x


def each(function):
    """The word that applies a function to every lane."""

    def word(*operands):
        lengths = [len(x) for x in operands if isinstance(x, Lanes)]
        if not lengths:
            return function(*operands)
        return Lanes(function(*(lane(x, i) for x in operands)) for i in range(lengths[0]))

    return word


for name in "add sub mul truediv floordiv and or xor".split():
    function = getattr(operator, name if name not in ("and", "or") else f"{name}_")
    setattr(Lanes, f"__{name}__", lambda a, b, function=function: each(function)(a, b))
    setattr(Lanes, f"__r{name}__", lambda b, a, function=function: each(function)(a, b))
for name in "eq ne lt le gt ge".split():
    setattr(Lanes, f"__{name}__", lambda a, b, function=getattr(operator, name): each(function)(a, b))
Lanes.__neg__ = lambda x: each(operator.neg)(x)

real, whole, truth, to_real = Float32, Int32, Boolean, each(Float32)


def element(address, dtype, parts):
    """An element of a tensor: for each dim its index, the last one that there is, and the step in elements."""
    number, size = TYPES[dtype]

    @each
    def at(*indices):
        pointer = cute.make_ptr(number, address, cute.AddressSpace.gmem, assumed_align=size)
        for index, (_, last, step) in zip(indices, parts):
            index = index if last is None else cute.math.min(index, last)
            pointer = pointer + (index if step is None else Int64(index) * step)
        value = cute.make_tensor(pointer, cute.make_layout(1))[0]
        return Int32(value) if dtype in ("i32", "u8") else Float32(value)

    return at(*(index for index, _, _ in parts))


@each
def select(keep, yes, no):
    return type(yes)(arith.select(keep.ir_value(), yes.ir_value(), no.ir_value()))


def negate(keep):
    return keep ^ Boolean(True)


@each
def rem_whole(a, b):
    # A remainder by 0 is undefined in hardware, and so is that of the smallest number by -1: both are 0 here.
    safe = select((b == Int32(0)) | (b == Int32(-1)), Int32(1), b)
    return Int32(arith.remsi(a.ir_value(), safe.ir_value()))


@each
def floor_rem_whole(a, b):
    rest = rem_whole(a, b)
    return select((rest != Int32(0)) & ((rest ^ b) < Int32(0)), rest + b, rest)


def floor_div(a, b):
    return Int32(0) - a if b == -1 else a // Int32(b)


rem = each(cute.math.rem)


@each
def floor_rem(a, b):
    rest = cute.math.rem(a, b)
    return select((rest != Float32(0.0)) & ((rest < Float32(0.0)) != (b < Float32(0.0))), rest + b, rest)


minimum, maximum, atan2 = (each(getattr(cute.math, name)) for name in "min max atan2".split())
sqrt, rsqrt, log, sin, cos, tan, erf, floor, ceil, absolute, reciprocal = (
    each(getattr(cute.math, name)) for name in "sqrt rsqrt log sin cos tan erf floor ceil abs rcp".split()
)


@each
def power(a, b):
    # Also where the compiler's power is that of a logarithm, which is NaN for a negative base.
    size = cute.math.pow(cute.math.abs(a), b)
    half, below = b * Float32(0.5), a < Float32(0.0)
    signed = select(below & (cute.math.floor(half) != half), -size, size)
    found = select(below & (cute.math.floor(b) != b), Float32(float("nan")), signed)
    return select(b == Float32(0.0), Float32(1.0), found)


@each
def bit(byte, at):
    return (byte >> at) & Int32(1) != Int32(0)


@each
def absolute_whole(x):
    return select(x < Int32(0), Int32(0) - x, x)


@each
def exp(x):
    return cute.math.exp(x, fastmath=True)


def inverses(numbers):
    """Reciprocals of numbers from 1 to 2^30, from one of the product of up to four: products cost less."""
    if len(numbers) == 1:
        return [cute.math.rcp(numbers[0], approx=True, ftz=True)]
    if len(numbers) > 4:
        return inverses(numbers[:4]) + inverses(numbers[4:])
    half = len(numbers) // 2
    lower, upper = numbers[:half], numbers[half:]
    products = [functools.reduce(operator.mul, part) for part in (lower, upper)]
    whole = cute.math.rcp(products[0] * products[1], approx=True, ftz=True)
    return parts(lower, whole * products[1]) + parts(upper, whole * products[0])


def parts(numbers, inverse):
    """Reciprocals of up to two numbers from that of their product."""
    return [inverse] if len(numbers) == 1 else [inverse * numbers[1], inverse * numbers[0]]


def one_and_power(x, factor):
    """1 + e^(x * factor / log2(e)), at most 2^30 + 1."""
    return Float32(1.0) + cute.math.exp2(cute.math.min(x * Float32(factor), Float32(30.0)), fastmath=True)


def tanh(x):
    """1 - 2 / (1 + e^2x), off by at most 3e-7: the instruction for it is off by 2^-11 of the result."""
    lanes = x.values if isinstance(x, Lanes) else [x]
    found = [Float32(1.0) - Float32(2.0) * r for r in inverses([one_and_power(v, 2 * LOG2_E) for v in lanes])]
    # A number wins over NaN in the power's minimum: NaN must not reach the product of several lanes.
    found = [select(v == v, r, v) for v, r in zip(lanes, found)]
    return Lanes(found) if isinstance(x, Lanes) else found[0]


def sigmoid(x):
    """e / (1 + e) of a negative number and 1 / (1 + e) of another, with e = e^-|x|: exact far below 0 too."""
    lanes = x.values if isinstance(x, Lanes) else [x]
    tails = [cute.math.exp2(cute.math.abs(v) * Float32(-LOG2_E), fastmath=True) for v in lanes]
    shares = inverses([Float32(1.0) + cute.math.min(tail, Float32(1.0)) for tail in tails])
    found = [select(v >= Float32(0.0), Float32(1.0), tail) * r for v, tail, r in zip(lanes, tails, shares)]
    return Lanes(found) if isinstance(x, Lanes) else found[0]


@each
def relu(x):
    return select(x < Float32(0.0), Float32(0.0), x)


def elu(x):
    return select(x > Float32(0.0), x, each(cute.math.expm1)(x))


def gelu(x):
    return Float32(0.5) * x * (Float32(1.0) + erf(x * Float32(0.7071067811865475)))


def gelu_tanh(x):
    inner = x + Float32(0.044715) * x * x * x
    return Float32(0.5) * x * (Float32(1.0) + tanh(Float32(0.7978845608028654) * inner))


def softplus(x):
    return relu(x) + each(cute.math.log1p)(exp(-absolute(x)))


def swish(x):
    return x * sigmoid(x)
