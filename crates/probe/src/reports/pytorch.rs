//! Guards of PyTorch (`sdp_utils.cpp`, `MHA.cpp`) and its reports.

use super::{CUDNN, Finding, LOWEST, Project, RANDOM, Report, SERVING, every, from};
use qkvault_cudnn::registry::codes::*;
use qkvault_cudnn::registry::{Affected, Gpus, Sight, Standing, Versions};

const UTILS: &str = "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp";
const MHA: &str = "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cudnn/MHA.cpp";

const PYTORCH: Report = Report { by: Project::PyTorch, links: &[UTILS], ..CUDNN };

/// GPUs that PyTorch gives cuDNN by default.
const DATA_CENTER: Gpus = Gpus { from: 90, to: 109 };

pub(super) static REPORTS: &[Report] = &[
    Report {
        attention: "More than 65,535 sequences or heads.",
        place: "`check_cudnn_tensor_shapes`",
        links: &[
            UTILS,
            "https://github.com/pytorch/pytorch/issues/181235",
            "https://github.com/pytorch/pytorch/issues/180718",
        ],
        finding: Finding::Refused(&[&SIZE_GRID]),
        ..PYTORCH
    },
    Report {
        attention: "One query per sequence, in every pass, also varlen.",
        affected: &[
            Versions::between((19, 0), (24, 1)).on(Gpus { from: 100, to: 119 }),
            Versions::between((24, 2), (25, 1)).on(Gpus { from: 100, to: 119 }),
        ],
        place: "`is_cudnn_attention_decode_disabled`, `check_cudnn_sdpa_decode`",
        links: &[
            MHA,
            "https://github.com/pytorch/pytorch/issues/193893",
            "https://github.com/pytorch/pytorch/pull/194927",
        ],
        finding: Finding::Refused(&[&QUERIES_ONE_WRONG]),
        ..PYTORCH
    },
    Report {
        attention: "A mask tensor or no mask in a backward of 64 mod 128 keys, rows whose log-sum-exp is below -88.",
        affected: &[Versions::before(26, 0).on(Gpus::HOPPER)],
        links: &[
            "https://github.com/pytorch/pytorch/issues/196678",
            "https://github.com/pytorch/pytorch/pull/196861",
            "https://github.com/NVIDIA/cudnn-frontend/pull/628",
        ],
        finding: Finding::Form {
            standing: Standing::seen(
                "an H100",
                "cuDNN 9.19",
                "qkvault-lab selftest --family below --without hide-tails",
            ),
            shows: "NaN in dQ.",
            says: "Scores beyond the last key are hidden in the graph (a comparison of indices and a selection); lengths \
                   that equal the extents do the same.",
        },
        ..PYTORCH
    },
    Report {
        attention: "Dropout with a probability that is not a multiple of 1/16.",
        place: "`check_cudnn_dropout`",
        links: &[UTILS, "https://github.com/pytorch/pytorch/pull/174245"],
        finding: Finding::Right {
            sight: Sight { command: "qkvault-lab selftest --file bench/dropout.txt --family normal", ..RANDOM },
            says: "The share that masks keep is counted: it is that of the probability, for 0.05 to 0.5. Reported are \
                   kernels that round it to sixteenths and scale by the exact one; other GPUs did not run.",
        },
        ..PYTORCH
    },
    Report {
        attention: "Dropout under 9.11 to 9.13.",
        affected: &[Versions::between((11, 0), (14, 0)).on(Gpus::ALL)],
        place: "`can_use_cudnn_attention`",
        links: &[UTILS, "https://github.com/pytorch/pytorch/pull/163903"],
        finding: Finding::Refused(&[&DROPOUT_PHILOX_OLD]),
        ..PYTORCH
    },
    Report {
        attention: "Dropout with one query.",
        place: "`check_cudnn_tensor_shapes`",
        finding: Finding::Right {
            sight: RANDOM,
            says: "Right with a mask as an operand, and with Philox in the engine that lowering leaves; what is not is \
                   refused by `dropout.mask-odd`, `engine.wrong` and `head-dim.philox-one-query`.",
        },
        ..PYTORCH
    },
    Report {
        attention: "One key.",
        place: "`check_cudnn_tensor_shapes`",
        finding: Finding::Right {
            sight: RANDOM,
            says: "One key is among the lengths that are drawn, in both directions.",
        },
        ..PYTORCH
    },
    Report {
        attention: "Head dims above 128 in a forward (above 256 from 9.22.1 on, on 9.0 and 10.x).",
        place: "`check_cudnn_tensor_shapes`",
        finding: Finding::Right {
            sight: RANDOM,
            says: "Right for 192 with 128 and for 256; larger ones compile from 9.10.2 on and were not drawn \
                   (`head-dim.forward-old` has the limits before).",
        },
        ..PYTORCH
    },
    Report {
        attention: "Head dims above 128 in a backward, other than 192 with 128 and 256.",
        affected: &[every(from(80))],
        place: "`check_cudnn_d256_bprop_head_dim`",
        finding: Finding::Refused(&[&HEAD_DIM_BACKWARD, &HEAD_DIM_BACKWARD_LATENT]),
        ..PYTORCH
    },
    Report {
        attention: "Head dims above 128, other than 192 with 128, on compute capability 10.7.",
        affected: &[Versions::before(25, 1).on(Gpus { from: 107, to: 107 })],
        place: "`check_cudnn_tensor_shapes`, `check_cudnn_d256_bprop_head_dim`",
        finding: Finding::Refused(&[&HEAD_DIM_RUBIN_OLD]),
        ..PYTORCH
    },
    Report {
        attention: "Head dims that are not multiples of 8.",
        place: "`check_cudnn_tensor_shapes`",
        finding: Finding::Refused(&[&HEAD_DIM_MULTIPLE_OF_8]),
        ..PYTORCH
    },
    Report {
        attention: "A last dim whose stride is not 1.",
        place: "`check_last_dim_stride_equals_1_dense`",
        finding: Finding::Refused(&[&TENSOR_HEAD_DIM_STRIDE]),
        ..PYTORCH
    },
    Report {
        attention: "Sequences of no queries or no keys, dense.",
        place: "`check_nonzero_sequence_lengths_dense`",
        finding: Finding::Refused(&[&TENSOR_DIMS]),
        ..PYTORCH
    },
    Report {
        attention: "Deterministic algorithms: every attention is kept from cuDNN.",
        place: "`check_cudnn_deterministic`",
        finding: Finding::Right {
            sight: Sight { command: "qkvault-lab selftest --repeat 10", ..RANDOM },
            says: "A backward that is described as deterministic gives the same bits; the gradient of a sink does not, and \
                   is refused (`backward.deterministic-sink`).",
        },
        ..PYTORCH
    },
    Report {
        attention: "Nested (varlen) operands of at most 128 queries per sequence.",
        affected: &[every(DATA_CENTER)],
        place: "`check_cudnn_query_seq_len_nested`",
        finding: Finding::Right { sight: SERVING, says: "Sequences of 0 to 512 queries are drawn." },
        ..PYTORCH
    },
    Report {
        attention: "Nested (varlen) operands on GPUs other than 9.0 and 10.x.",
        place: "`check_for_nested_inputs`",
        finding: Finding::Refused(&[&STORAGE_VARLEN_SM, &STORAGE_VARLEN_STATS, &BACKWARD_VARLEN_CONSUMER_OLD]),
        ..PYTORCH
    },
    Report {
        attention: "Causal varlen queries over a cache, with the diagonal bottom right, before 9.24.",
        affected: &[Versions::before(24, 0).on(Gpus::ALL)],
        place: "`run_cudnn_SDP_fprop_nestedtensor`",
        links: &[MHA],
        finding: Finding::Right { sight: SERVING, says: "Such steps are drawn over pages and over dense caches." },
        ..PYTORCH
    },
    Report {
        attention: "Varlen strides or addresses that are not multiples of 16 bytes.",
        place: "`has_aligned_varlen_layout`",
        links: &[MHA],
        finding: Finding::Refused(&[&TENSOR_STRIDE_ALIGNMENT]),
        ..PYTORCH
    },
    Report {
        attention: "Seed and offset of dropout in 32 bits.",
        affected: &[every(Gpus { from: 100, to: 100 })],
        place: "`run_cudnn_SDP_fprop`",
        links: &[MHA, "https://github.com/pytorch/pytorch/pull/146734"],
        finding: Finding::Never("Seed and offset always have 64 bits."),
        ..PYTORCH
    },
    Report {
        attention: "cuDNN is not the default before 9.15.1: backwards whose keys are no multiple of 128.",
        affected: &[Versions::before(15, 1).on(Gpus::ALL)],
        place: "`check_prefer_cudnn_attention`",
        links: &[
            UTILS,
            "https://github.com/pytorch/pytorch/issues/169849",
            "https://github.com/pytorch/pytorch/issues/166211",
        ],
        finding: Finding::Refused(&[&BACKWARD_KEYS_TAIL_OLD]),
        ..PYTORCH
    },
    Report {
        attention: "GPUs outside of compute capability 8.0 to 12.1.",
        place: "`check_cudnn_hardware_support`",
        affected: Affected::ALL,
        finding: Finding::Refused(&[&GPU_OLD, &GPU_UNKNOWN]),
        ..PYTORCH
    },
    Report {
        attention: "A forward of whole rows of a bias or a mask tensor that hold the lowest float.",
        links: &["https://github.com/pytorch/pytorch/issues/109517"],
        finding: LOWEST,
        ..PYTORCH
    },
    Report {
        attention: "A backward of whole rows of a bias that is below -131072, such as -1e9 or the lowest float, where dO is \
                    not zero. Where a constant makes the row, `backward.lowest-row` refuses it.",
        links: &["https://github.com/pytorch/pytorch/issues/109517"],
        finding: Finding::Open {
            standing: Standing::seen("an H100", "cuDNN 9.19", "qkvault-lab selftest --file CASES"),
            shows: "dV is too large by the number of keys: Stats in float32 do not hold its logarithm.",
            says: "Hide keys by lengths, a predicate, a mask of booleans or a bias of minus infinity.",
        },
        ..PYTORCH
    },
];
