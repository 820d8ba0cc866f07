"""Evaluates expressions as requests have them in the words of `words.py`, with a stand-in for the compiler's numbers: reals
that round as float32, integers that wrap as int32, and tensors that are lists.

Usage: python host.py COMPILER WORDS < PROGRAMS
COMPILER is `compiler.py`, whose `straight` and `Point` are used. PROGRAMS is JSON: steps with the numbers, tensors and points of each.
Prints one value a line.
"""

import ctypes
import importlib.util
import json
import math
import sys
import types


class Truth:
    def __init__(self, value):
        self.value = bool(getattr(value, "value", value))

    def ir_value(self):
        return self

    def two(self, other, operation):
        return Truth(operation(self.value, other.value)) if isinstance(other, Truth) else NotImplemented

    def __and__(self, other):
        return self.two(other, lambda a, b: a and b)

    def __or__(self, other):
        return self.two(other, lambda a, b: a or b)

    def __xor__(self, other):
        return self.two(other, lambda a, b: a != b)

    __ne__ = __xor__


class Number:
    def __init__(self, value):
        self.value = self.rounded(getattr(value, "value", value))

    def ir_value(self):
        return self

    def two(self, other, operation):
        if not isinstance(other, Number):
            return NotImplemented
        assert type(other) is type(self), (self, other)
        return type(self)(operation(self.value, other.value))

    def __add__(self, other):
        return self.two(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self.two(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self.two(other, lambda a, b: a * b)

    def compared(self, other, operation):
        if not isinstance(other, Number):
            return NotImplemented
        assert type(other) is type(self), (self, other)
        return Truth(operation(self.value, other.value))

    def __eq__(self, other):
        return self.compared(other, lambda a, b: a == b)

    def __ne__(self, other):
        return self.compared(other, lambda a, b: a != b)

    def __lt__(self, other):
        return self.compared(other, lambda a, b: a < b)

    def __le__(self, other):
        return self.compared(other, lambda a, b: a <= b)

    def __gt__(self, other):
        return self.compared(other, lambda a, b: a > b)

    def __ge__(self, other):
        return self.compared(other, lambda a, b: a >= b)


def quotient(a, b):
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


class Real(Number):
    @staticmethod
    def rounded(value):
        return ctypes.c_float(value).value

    def __neg__(self):
        return Real(-self.value)

    def __truediv__(self, other):
        return self.two(other, quotient)


class Whole(Number):
    @staticmethod
    def rounded(value):
        return ctypes.c_int32(value).value

    def __floordiv__(self, other):
        return self.two(other, lambda a, b: a // b)

    def __xor__(self, other):
        return self.two(other, lambda a, b: a ^ b)

    def __and__(self, other):
        return self.two(other, lambda a, b: a & b)

    def __rshift__(self, other):
        return self.two(other, lambda a, b: a >> b)


def power(a, b):
    """The power of a logarithm: an expression must not rely on more."""
    if a == 0:
        return math.nan if b == 0 else math.inf if b < 0 else b if b != b else 0.0
    return 2.0 ** (b * math.log2(a))


def function(of):
    def word(*operands, **options):
        if isinstance(operands[0], Whole):
            return Whole(of(*(x.value for x in operands)))
        try:
            return Real(of(*(x.value for x in operands)))
        except OverflowError:
            return Real(math.inf)
        except (ValueError, ZeroDivisionError):
            return Real(math.nan)

    return word


FUNCTIONS = {
    "rcp": lambda x: quotient(1.0, x),
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": lambda x: -math.inf if x == 0 else math.log(x),
    "sqrt": math.sqrt,
    "rsqrt": lambda x: math.inf if x == 0 else 1 / math.sqrt(x),
    "floor": lambda x: float(math.floor(x)) if math.isfinite(x) else x,
    "ceil": lambda x: float(math.ceil(x)) if math.isfinite(x) else x,
    "abs": abs,
    "pow": power,
    "rem": math.fmod,
    "min": lambda a, b: a if b != b or a <= b else b,
    "max": lambda a, b: a if b != b or a >= b else b,
}
FUNCTIONS.update({name: getattr(math, name) for name in "sin cos tan erf expm1 log1p atan2".split()})


class Pointer:
    """A place among elements of a type."""

    def __init__(self, number, elements, at=0):
        self.number, self.elements, self.at = number, elements, at

    def __add__(self, by):
        return Pointer(self.number, self.elements, self.at + by.value)


class Address(list):
    """Elements in the place of their address."""


def module(name, **values):
    made = types.ModuleType(name)
    vars(made).update(values)
    sys.modules[name] = made
    return made


def loaded(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


cute = module(
    "cutlass.cute",
    math=types.SimpleNamespace(**{name: function(of) for name, of in FUNCTIONS.items()}),
    make_ptr=lambda number, address, space, assumed_align: Pointer(number, address),
    make_tensor=lambda pointer, layout: [pointer.number(pointer.elements[pointer.at])],
    AddressSpace=types.SimpleNamespace(gmem=1),
    make_layout=lambda extent: extent,
)
NUMBERS = {name: Real for name in ("Float16", "BFloat16", "Float32")}
NUMBERS |= {name: Whole for name in ("Int32", "Int64", "Uint8")} | {"Boolean": Truth}
cutlass = module("cutlass", cute=cute, **NUMBERS)


arith = types.SimpleNamespace(
    select=lambda keep, yes, no: yes if keep.value else no,
    remsi=lambda a, b: Whole(int(math.fmod(a.value, b.value))),
)
module("cutlass._mlir")
module("cutlass._mlir.dialects", arith=arith)
compiler, words = (loaded(name, path) for name, path in zip(("compiler", "words"), sys.argv[1:3]))
compiler.cutlass = cutlass

for program in json.load(sys.stdin):
    modified, group = compiler.straight(program["code"], words), program["group"]
    kinds = {int: Whole, float: Real, list: Address}
    numbers = [kinds[type(n)](n) for n in program["numbers"]]
    # As the kernels call them: some points of one sequence and head at a time.
    points, lanes = program["points"], program["lanes"]
    for first in range(0, len(points), lanes):
        batch, head, query, key, queries, keys, score, upstream = zip(*points[first : first + lanes])
        lengths = types.SimpleNamespace(
            seqlen_q=words.Lanes(map(Whole, queries)), seqlen_k=words.Lanes(map(Whole, keys))
        )
        # As the kernels count rows of a group.
        given = [batch, [h * group + q % group for h, q in zip(head, query)], [q // group for q in query], key]
        given = [words.Lanes(map(Whole, list)) for list in given]
        point = compiler.Point(*given, lengths, numbers, group)
        point = point.of(words.Lanes(Real(float(x)) for x in score), words.Lanes(map(Real, upstream)))
        found = modified(point)
        for i in range(len(query)):
            print(repr(float(words.lane(found, i).value)))
