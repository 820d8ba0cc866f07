//! Limits of 8-bit forwards of one query, which have engines and kernels of their own.

use super::{FP8_COMPILED, fp8_limits};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Versions};
use crate::{CudnnVersion, Storage};

/// What was given, in a forward of one query in 8 bits with one scale per tensor.
fn given(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    fp8_limits::given(f, is && f.s_q == 1 && !f.backward(), what)
}

/// Whether cuDNN takes its kernel for decodes on compute capability 10.x, for one query in 8 bits.
///
/// A sink makes it take another one, and so does dropout over dense keys, or with 9.14 over pages too. 9.27 has another
/// one for shared heads of at most 64 columns (versions between 9.19 and 9.27 were not tried).
fn decode_kernel(f: &Facts<'_>) -> bool {
    let old = f.version() < CudnnVersion::v9(15, 0);
    let dropout = f.dropout() && (old || !f.a.k.is_paged());
    let (q, k, v) = (f.a.q.heads(), f.a.k.heads(), f.a.v.heads());
    let narrow = f.version() >= CudnnVersion::v9(20, 0) && f.d_qk <= 64 && f.d_v <= 64 && (q != k || q != v);
    !f.a.sink && !dropout && !narrow
}

declare![
    FP8_ONE_QUERY = Entry {
        code: "fp8.one-query",
        cause: "The engine for one query has no 8-bit kernel on this GPU.",
        affected: &[Versions::ALL.on(Gpus::HOPPER), Versions::ALL.on(Gpus::CONSUMER_BLACKWELL)],
        field: "q.dims[2]",
        needed: "on compute capability 9.0 and 12.x, at least two queries of room",
        fix: "describe a decode as two queries with per-sequence lengths, and give a query length of 1",
        source: FP8_COMPILED,
        evidence: "cuDNN answers `s_q=1 on Hopper should go into sm80`, and that engine has no 8-bit kernel.",
        // With dropout another engine is taken, which has a kernel (9.14, 9.19 and 9.27).
        applies: Applies::Rules(|f| given(f, !f.dropout(), "one query")),
        ..Entry::rule()
    },
    FP8_ONE_QUERY_STATS = Entry {
        code: "fp8.one-query-stats",
        cause: "For one query without Stats, cuDNN generates an 8-bit kernel that does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "outputs.stats",
        needed: "on compute capability 10.x, Stats as an output of an 8-bit attention of one query without a sink",
        fix: "add Stats to the outputs",
        source: FP8_COMPILED,
        evidence: "9.14 to 9.27 give status 4001 without Stats and compile with them. They compile with a sink, with \
                   dropout over dense keys, and 9.27 with shared heads of at most 64 columns.",
        applies: Applies::Rules(|f| given(f, decode_kernel(f) && !f.a.outputs.stats, "one query without Stats")),
        ..Entry::rule()
    },
    FP8_ONE_QUERY_DROPOUT = Entry {
        code: "fp8.one-query-dropout",
        cause: "The 8-bit kernel for decodes over pages has no dropout.",
        affected: &[Versions::from(15, 0).on(Gpus::BLACKWELL)],
        field: "dropout",
        needed: "on compute capability 10.x, no dropout for one query over pages in 8 bits, or cuDNN 9.14",
        fix: "leave dropout out, as inference does, or use dense keys",
        source: FP8_COMPILED,
        evidence: "9.19 and 9.27 answer `FMHA decode does not support dropout`; 9.14 compiles it. 9.15 to 9.18 were \
                   not tried.",
        applies: Applies::Rules(|f| {
            given(f, decode_kernel(f) && f.a.k.is_paged() && f.dropout(), "one query over pages with dropout")
        }),
        ..Entry::rule()
    },
    FP8_ONE_QUERY_VARLEN = Entry {
        code: "fp8.one-query-varlen",
        cause: "For one query of each varlen sequence, cuDNN generates an 8-bit kernel that does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.storage",
        needed: "on compute capability 10.x, dense queries, or at least two queries of room, in 8 bits",
        fix: "use dense queries: with one query per sequence they lie in memory as varlen ones do",
        source: FP8_COMPILED,
        evidence: "9.14, 9.19 and 9.27 give status 4001 for 16 to 128 columns, with either scaling; two queries of \
                   room compile.",
        applies: Applies::Rules(|f| {
            let varlen = matches!(f.a.q.storage, Storage::Varlen { .. });
            given(f, decode_kernel(f) && varlen, "one query per varlen sequence")
        }),
        ..Entry::rule()
    },
];
