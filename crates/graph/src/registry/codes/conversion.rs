//! Conversions between 16 or 32 bits and 8 bits.

use crate::entries;
use crate::registry::Entry;

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
    CONVERSION_SCALES = Entry {
        code: "conversion.scales",
        cause: "An update of scales has no tensors, one twice, the probabilities, one without 8 bits or with a wrong \
                history or margin.",
        needed: "tensors in e4m3 or e5m2 besides S, each once, with 1 to 65536 steps, and a margin of at most 100",
        fix: "call `Runtime::fp8_training`",
        ..Entry::description()
    },
];
