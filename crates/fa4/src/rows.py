"""Rows that FlashAttention-4's sums lose in float32, and sums that keep them.

A row whose sink is far above all of its scores: the exponential of the sink relative to the largest score is infinite
from 88 on, so that O is right, 0, and the log-sum-exp is not finite. Here sums are relative to the sink then.

A row whose scores are all very low, as those of a padded query are: exponentials are of `score * log2(e)` less the
rounded product of the largest, with one rounding, so that equal scores of -1e9 are a power of two up to 86 apart from
their largest, and of -1e30 any: 0, or infinite. Here such a row is not multiplied by `log2(e)`. Steps of float32 are 16
and more there, so that only scores equal to the largest have a weight either way.
"""

import contextlib
import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from flash_attn.cute import utils
from flash_attn.cute.softmax import Softmax
from quack import layout_utils

LOG2_E = math.log2(math.e)
# From here on a score is very low: a product is off by 2^11.5 at most before, which f16 holds.
LOW = -float(1 << 27)
# A sink that is closer, as a power of two, is added as it is: its exponential is far from the largest number.
FAR = 64.0

ONLINE_SOFTMAX, FINALIZE = Softmax.online_softmax, Softmax.finalize


@cute.jit
def of_low_rows(
    self, acc_S: cute.Tensor, is_first: cutlass.Constexpr[bool] = False, check_inf: cutlass.Constexpr[bool] = True
) -> cute.Tensor:
    """Makes scores of a tile their exponentials, and gives what is left of the sums so far, for each row."""
    tile = layout_utils.reshape_acc_to_mn(acc_S)
    left = cute.make_fragment_like(self.row_max, Float32)
    for r in cutlass.range(cute.size(left), unroll_full=True):
        scores, before = tile[r, None].load(), self.row_max[r]
        known = before if cutlass.const_expr(not is_first) else None
        largest = cute.arch.warp_reduction_max(
            utils.fmax_reduce(scores, init_val=known, arch=self.arch), threads_in_group=4
        )
        self.row_max[r] = largest
        if cutlass.const_expr(check_inf):
            largest = 0.0 if largest == -Float32.inf else largest
        scale = 1.0 if largest < LOW else self.scale_log2
        weights = cute.math.exp2(scores * scale - largest * scale, fastmath=True)
        left[r] = 1.0
        known = None
        if cutlass.const_expr(not is_first):
            left[r] = cute.math.exp2((before - largest) * self.scale_log2, fastmath=True)
            known = self.row_sum[r] * left[r]
        self.row_sum[r] = utils.fadd_reduce(weights, init_val=known, arch=self.arch)
        tile[r, None].store(weights)
    return left


@cute.jit
def of_sinks(self, final_scale: Float32 = 1.0, sink_val: Float32 | cute.Tensor | None = None) -> cute.Tensor:
    """The scale of each row of O, with sums that are relative to the largest of its scores and its sink."""
    left = cute.make_fragment_like(self.row_max, Float32)
    for r in cutlass.range(cute.size(left), unroll_full=True):
        sink = LOG2_E * (sink_val[r] if cutlass.const_expr(isinstance(sink_val, cute.Tensor)) else sink_val)
        largest = self.row_max[r] * self.scale_log2
        left[r] = 1.0
        if sink - largest > FAR and self.scale_log2 > 0.0:
            left[r] = cute.math.exp2(largest - sink, fastmath=True)
            self.row_sum[r] = self.row_sum[r] * left[r]
            self.row_max[r] = sink / self.scale_log2
    scales = FINALIZE(self, final_scale, sink_val)
    for r in cutlass.range(cute.size(left), unroll_full=True):
        scales[r] = scales[r] * left[r]
    return scales


@contextlib.contextmanager
def kept(low, sink):
    """Changes how the kernels sum rows while they are compiled: where scores may be very low, and where rows have
    sinks."""
    Softmax.online_softmax = of_low_rows if low else ONLINE_SOFTMAX
    Softmax.finalize = of_sinks if sink else FINALIZE
    try:
        yield
    finally:
        Softmax.online_softmax, Softmax.finalize = ONLINE_SOFTMAX, FINALIZE
