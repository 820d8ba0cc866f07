//! Conversions between 16 or 32 bits and 8 bits.

use crate::registry::Entry;
use crate::registry::entry::entries;

entries![
    CONVERSION_STORAGE = Entry {
        code: "conversion.storage",
        cause: "A conversion reads or writes a tensor that is not dense.",
        needed: "a dense tensor",
        fix: "describe the whole buffer: (1, heads, tokens, head dim) of a varlen one, (pages, heads, rows, head dim) \
              of a pool",
        ..Entry::description()
    },
    CONVERSION_WIDE = Entry {
        code: "conversion.wide",
        cause: "The wider tensor of a conversion has neither 16 nor 32 bits.",
        needed: "f16, bf16 or f32",
        fix: "give the tensor in 8 bits as narrow, and the other one as wide",
        ..Entry::description()
    },
    CONVERSION_NARROW = Entry {
        code: "conversion.narrow",
        cause: "The narrower tensor of a conversion does not have 8 bits.",
        needed: "e4m3 or e5m2",
        fix: "give the tensor in 8 bits as narrow, and the other one as wide",
        ..Entry::description()
    },
    CONVERSION_DIMS = Entry {
        code: "conversion.dims",
        cause: "The two tensors of a conversion have different dims.",
        needed: "the same dims for both",
        fix: "give both as (batch, heads, sequence, head dim), whatever the order in memory",
        ..Entry::description()
    },
    CONVERSION_GPU = Entry {
        code: "conversion.gpu",
        cause: "The GPU has no instruction that rounds to 8 bits.",
        field: "target",
        needed: "compute capability 8.9 or newer",
        fix: "convert on a newer GPU, or keep 16 bits",
        source: "the PTX manual, cvt.rn.satfinite.e4m3x2.f32: sm_89 and higher",
        ..Entry::not_built()
    },
];
