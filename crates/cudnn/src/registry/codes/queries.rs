//! One query per sequence.

use super::FE_FORWARD;
use crate::registry::declare;
use crate::registry::{Applies, Entry, Gpus, Standing, Versions};

/// The GPUs on which PyTorch keeps one query from cuDNN.
const DECODES_WRONG: Gpus = Gpus { from: 100, to: 119 };

declare![
    QUERIES_ONE_WRONG = Entry {
        code: "queries.one-wrong",
        cause: "The kernels for one query per sequence count scores of 0 beyond the last key among the row's greatest, so \
                rows whose scores are all far below zero come out wrong.",
        affected: &[
            Versions::between((19, 0), (24, 1)).on(DECODES_WRONG),
            Versions::between((24, 2), (25, 1)).on(DECODES_WRONG)
        ],
        field: "q.dims[2]",
        needed: "cuDNN 9.24.1, 9.25.1 or newer, or 9.18 or older, for one query per sequence on compute capability 10.x",
        fix: "use cuDNN 9.24.1, or 9.25.1 or newer; or describe room for two queries per sequence, with per-sequence \
              lengths of which the query's is 1",
        source: "PyTorch issue 193893 and pull request 194927 (`check_cudnn_sdpa_decode` in its \
                 aten/src/ATen/native/cudnn/MHA.cpp), and the cause in NVIDIA/cudnn-frontend pull request 743",
        evidence: "Reported for a B200 under 9.19 and 9.20: greedy decodes of models with fewer than 8 key heads get \
                   words wrong without an error. PyTorch keeps every number of heads and the backward from these \
                   versions, on 10.x and 11.x, and so does this. Not tried here, for want of such a GPU.",
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/pytorch/pytorch/issues/193893",
            "https://github.com/pytorch/pytorch/pull/194927",
            "https://github.com/NVIDIA/cudnn-frontend/pull/743"
        ],
        applies: Applies::Rules(|f| {
            (f.s_q == 1 && !f.eight_bits()).then(|| format!("one query per sequence, for cuDNN {}", f.version()))
        }),
        ..Entry::quirk(41)
    },
    QUERIES_ONE_SINK = Entry {
        code: "queries.one-sink",
        cause: "A row of one query per sequence is no number if all of its scores are more than 88 below its sink.",
        field: "sink",
        needed: "room for two queries per sequence, or no sink",
        fix: "take qkvault's own kernels (engine: auto); or describe room for two queries per sequence, with \
              per-sequence lengths of which the query's is 1",
        source: FE_FORWARD,
        evidence: "NaN in O and Stats of every such row under 9.14 and 9.19, because the exponential of the sink is \
                   relative to the largest score; right is an O of 0. Scores closer to the sink came out right. \
                   NVIDIA's front end takes one query with a sink in no version.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.14 and 9.19",
            "qkvault-lab selftest --family far-below --allow queries.one-sink"
        )),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h"
        ],
        applies: Applies::Rules(|f| {
            // Over pages there is more to it (`storage.paged-one-query-sink`).
            let here = !f.backward() && f.s_q == 1 && f.a.sink && !f.a.k.is_paged();
            here.then(|| "a sink, with one query per sequence".to_owned())
        }),
        ..Entry::quirk(45)
    },
    QUERIES_ONE_OLD = Entry {
        code: "queries.one-old",
        cause: "These versions do not support one query with a right bound, nor one query with head dims over 128 on \
                compute capability 10.x.",
        affected: &[Versions::before(9, 1).on(Gpus::ALL)],
        field: "q.dims[2]",
        needed: "more than one query with a right bound, or with head dims over 128 on compute capability 10.x",
        fix: "use cuDNN 9.10.2 or newer, or leave the causal mask out: one query at the end sees every key",
        source: FE_FORWARD,
        applies: Applies::Rules(|f| {
            let bound = f.a.mask.band.is_some_and(|band| band.right.is_some());
            let wide = f.is_blackwell() && f.d_qk.max(f.d_v) > 128;
            (!f.backward() && f.s_q == 1 && (bound || wide)).then(|| "one query".to_owned())
        }),
        ..Entry::rule()
    },
];
