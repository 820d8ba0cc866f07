//! What qkvault's own kernels do not take. An attention that has such a reason is left to cuDNN.

use qkvault_graph::entries;
use qkvault_graph::registry::Entry;

const KERNELS: Entry =
    Entry { fix: "leave it to cuDNN", source: "the kernels' sources in crates/kernels", ..Entry::not_built() };

entries![
    pub;
    KERNELS_GPU = Entry {
        code: "kernels.gpu",
        cause: "The kernels are written for another GPU.",
        field: "target",
        needed: "a GPU of compute capability 9.0",
        ..KERNELS
    },
    KERNELS_BACKWARD = Entry {
        code: "kernels.backward",
        cause: "The kernels compute forwards only.",
        field: "pass",
        needed: "a forward",
        ..KERNELS
    },
    KERNELS_TYPE = Entry {
        code: "kernels.type",
        cause: "The kernels compute with 16-bit elements only.",
        field: "q",
        needed: "f16 or bf16",
        ..KERNELS
    },
    KERNELS_HEAD_DIM = Entry {
        code: "kernels.head-dim",
        cause: "The kernels multiply 16 columns at a time and hold those of a latent cache.",
        needed: "a multiple of 16, at most 576 of queries and keys and 512 of values",
        ..KERNELS
    },
    KERNELS_CACHE = Entry {
        code: "kernels.cache",
        cause: "The kernels for latent caches read 16 bits.",
        field: "fp8",
        needed: "head dims of at most 256 with a cache in 8 bits, of 128 if it is invariant",
        ..KERNELS
    },
    KERNELS_HEADS = Entry {
        code: "kernels.heads",
        cause: "The kernels bring keys and values of a head together.",
        field: "v",
        needed: "as many heads of values as of keys",
        ..KERNELS
    },
    KERNELS_DROPOUT = Entry {
        code: "kernels.dropout",
        cause: "The kernels have no dropout.",
        field: "dropout",
        needed: "none",
        ..KERNELS
    },
    KERNELS_BLOCK_MASK = Entry {
        code: "kernels.block-mask",
        cause: "The kernels read no block mask.",
        field: "block_mask",
        needed: "a band or an expression",
        fix: "write the mask as an expression, or take FlashAttention-4",
        ..KERNELS
    },
    KERNELS_OUTPUTS = Entry {
        code: "kernels.outputs",
        cause: "The kernels write O and Stats only.",
        field: "outputs",
        needed: "O, or O and Stats",
        ..KERNELS
    },
    KERNELS_INVARIANT = Entry {
        code: "kernels.invariant",
        cause: "The kernels keep the sums of an invariant attention's spans beside its tiles, and divide keys by their \
                places in memory.",
        field: "invariant",
        needed: "head dims of at most 256, no origins, no tree of drafts, and at most 4 GiB of sums",
        fix: "take such sizes (of sums: fewer keys, or at most 32 rows of queries and heads that share keys), or an \
              attention without invariant",
        ..KERNELS
    },
    KERNELS_STORAGE = Entry {
        code: "kernels.storage",
        cause: "The kernels read keys and values that are both dense, both varlen, or both in pages of one size.",
        needed: "keys and values that are stored alike",
        ..KERNELS
    },
    KERNELS_SIZE = Entry {
        code: "kernels.size",
        cause: "The kernels count sequences, heads, rows and keys in 32 bits.",
        field: "q.dims",
        needed: "at most 2^30 sequences, heads, keys, and queries times the heads that share keys, and fewer than 2^38 \
                 tiles of 16 rows by 32 keys",
        ..KERNELS
    },
    KERNELS_STRIDES = Entry {
        code: "kernels.strides",
        cause: "The kernels copy 16 bytes at a time.",
        needed: "strides of multiples of 16 bytes, below 2^39 elements",
        ..KERNELS
    },
    APPEND_SIZE = Entry {
        code: "append.size",
        cause: "The kernel counts what a token has in 32 bits, and pages in steps of 16 bytes.",
        needed: "at most 2^30 sequences and elements of a token, and pages of at most 2^32 elements whose stride is a \
                 multiple of 16 bytes below 2^40",
        fix: "append fewer heads at a time, or leave room behind pages",
        source: "the kernel's source in crates/kernels",
        ..Entry::not_built()
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
