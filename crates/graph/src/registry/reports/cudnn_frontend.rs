//! Support checks of cudnn-frontend (`sdpa_support_surface.h`, `scaled_dot_product_flash_attention.h`,
//! `sdpa_fp8_bwd.h`) and its threads.

use super::super::codes::*;
use super::{CUDNN, Finding, Project, RANDOM, Report, every};
use crate::registry::{Gpus, Standing, Versions};

const SURFACE: &str =
    "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h";
const BACKWARD: &str = "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/\
                        scaled_dot_product_flash_attention.h";
const FP8_BACKWARD: &str =
    "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_fp8_bwd.h";

const FORWARD_CHECK: Report = Report {
    by: Project::CudnnFrontend,
    place: "`verify_sdpa_support_surface_for_implementation` and what it calls",
    links: &[SURFACE],
    ..CUDNN
};
const BACKWARD_CHECK: Report = Report {
    by: Project::CudnnFrontend,
    place: "`CompositeSDPABackwardNode::pre_validate_node`",
    links: &[BACKWARD],
    ..CUDNN
};
const THREAD: Report = Report { by: Project::CudnnFrontend, ..CUDNN };

pub(super) static REPORTS: &[Report] = &[
    Report {
        attention: "Forwards under 9.10.0 and 9.10.1.",
        affected: &[Versions::between((10, 0), (10, 2)).on(Gpus::ALL)],
        finding: Finding::Refused(&[&CUDNN_WITHDRAWN]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "A window without a right bound over more than 1,024 keys, under 9.14.0.",
        affected: &[Versions::between((14, 0), (14, 1)).on(Gpus::ALL)],
        finding: Finding::Refused(&[&BAND_WINDOW_WRONG]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "The diagonal bottom right with a bias, ALiBi or dropout.",
        finding: Finding::Right { sight: RANDOM, says: "Drawn in both directions." },
        ..FORWARD_CHECK
    },
    Report {
        attention: "The diagonal bottom right with more queries than keys and no lengths.",
        finding: Finding::Refused(&[&BAND_ROWS_WITHOUT_KEYS]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "A window with more queries than keys and no lengths.",
        finding: Finding::Right { sight: RANDOM, says: "Drawn with the diagonal top left." },
        ..FORWARD_CHECK
    },
    Report {
        attention: "ALiBi without a causal mask.",
        finding: Finding::Right { sight: RANDOM, says: "ALiBi is an expression here, drawn with every mask." },
        ..FORWARD_CHECK
    },
    Report {
        attention: "An expression of the caller's together with a band, lengths or ALiBi.",
        finding: Finding::Right { sight: RANDOM, says: "Drawn together in both directions." },
        ..FORWARD_CHECK
    },
    Report {
        attention: "One query with a sink.",
        finding: Finding::Right {
            sight: RANDOM,
            says: "Right over dense keys. Over pages O is wrong, and `storage.paged-one-query-sink` refuses it.",
        },
        ..FORWARD_CHECK
    },
    Report {
        attention: "One query with a right bound, or with head dims over 128 on 10.x, up to 9.9.",
        affected: &[Versions::before(9, 1).on(Gpus::ALL)],
        finding: Finding::Refused(&[&QUERIES_ONE_OLD]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "Head dims over 128 (over 256 on 9.0), up to 9.9.",
        affected: &[Versions::before(9, 1).on(Gpus::ALL)],
        finding: Finding::Refused(&[&HEAD_DIM_FORWARD_OLD, &STORAGE_PAGED_HEAD_DIM]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "A window without a right bound, or with dropout or a bias, before 9.10.2.",
        affected: &[Versions::before(10, 2).on(Gpus::ALL)],
        finding: Finding::Refused(&[&BAND_WINDOW_OLD]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "A bottom right window over as many queries as keys, up to 9.9 on 9.0.",
        affected: &[Versions::before(9, 1).on(Gpus::HOPPER)],
        finding: Finding::Refused(&[&BAND_WINDOW_CORNER_OLD]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "Page tables of packed sequences before 9.10.2.",
        affected: &[Versions::before(10, 2).on(Gpus::ALL)],
        finding: Finding::Never("Every sequence has a row of the page table."),
        ..FORWARD_CHECK
    },
    Report {
        attention: "Varlen operands before 9.0, up to 9.18.",
        affected: &[Versions::before(18, 1).on(Gpus::BEFORE_HOPPER)],
        finding: Finding::Refused(&[&STORAGE_VARLEN_SM]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "What the unified operation does not take, by version.",
        finding: Finding::Refused(&[
            &FORM_UNIFIED,
            &FORM_UNIFIED_LENGTHS,
            &FORM_UNIFIED_OUTPUTS,
            &FORM_UNIFIED_BAND,
            &FORM_UNIFIED_SINK,
            &FORM_UNIFIED_DROPOUT,
            &FORM_UNIFIED_PAGED,
        ]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "8 bits in a forward: head dims, biases, bottom right before 10.0, varlen on 12.x, outputs in 16 bits.",
        finding: Finding::Refused(&[
            &FP8_GPU,
            &FP8_HEAD_DIM,
            &FP8_HEAD_DIM_WIDE,
            &FP8_EXPRESSION,
            &FP8_HOPPER_EXPRESSION,
            &FP8_HOPPER_BOTTOM_RIGHT,
            &FP8_OUTPUT,
        ]),
        ..FORWARD_CHECK
    },
    Report {
        attention: "A backward of one query and one key.",
        finding: Finding::Right {
            sight: RANDOM,
            says: "Drawn with several heads or sequences; one of each is refused from 9.26 on (`backward.single-row`).",
        },
        ..BACKWARD_CHECK
    },
    Report {
        attention: "Backwards under 9.10.0 and 9.10.1.",
        affected: &[Versions::between((10, 0), (10, 2)).on(Gpus::ALL)],
        finding: Finding::Refused(&[&CUDNN_WITHDRAWN]),
        ..BACKWARD_CHECK
    },
    Report {
        attention: "A backward whose keys are no multiple of 128, without lengths, before 9.15.1: lengths are added.",
        affected: &[Versions::before(15, 1).on(Gpus::ALL)],
        links: &[BACKWARD, "https://github.com/NVIDIA/cudnn-frontend/issues/160"],
        finding: Finding::Refused(&[&BACKWARD_KEYS_TAIL_OLD]),
        ..BACKWARD_CHECK
    },
    Report {
        attention: "Head dims of a backward.",
        finding: Finding::Refused(&[&HEAD_DIM_BACKWARD, &HEAD_DIM_BACKWARD_LATENT]),
        ..BACKWARD_CHECK
    },
    Report {
        attention: "A deterministic backward on 10.x before 9.18, or with dropout, ALiBi or the gradient of a bias.",
        affected: &[every(Gpus::BLACKWELL)],
        finding: Finding::Refused(&[
            &BACKWARD_DETERMINISTIC_ENGINE,
            &BACKWARD_DETERMINISTIC_EXPRESSION,
            &BACKWARD_DETERMINISTIC_PHILOX,
            &BACKWARD_DETERMINISTIC_TENSOR_GRADIENT,
        ]),
        ..BACKWARD_CHECK
    },
    Report {
        attention: "A deterministic varlen backward, or varlen Stats, on 8.x and 12.x.",
        affected: &[Versions::from(18, 1).on(Gpus::BEFORE_HOPPER), Versions::from(18, 1).on(Gpus::CONSUMER_BLACKWELL)],
        finding: Finding::Refused(&[&STORAGE_VARLEN_DETERMINISTIC, &STORAGE_VARLEN_STATS]),
        ..BACKWARD_CHECK
    },
    Report {
        attention: "The gradient of a bias over varlen operands on 10.x.",
        affected: &[every(Gpus::BLACKWELL)],
        finding: Finding::Open {
            standing: Standing::Reported,
            shows: "The check gives no reason, and no version that mends it.",
            says: "Use dense operands with lengths.",
        },
        ..BACKWARD_CHECK
    },
    Report {
        attention: "8 bits in a backward: bottom right with other lengths, deterministic before 9.19, dropout, 16-bit \
                    gradients.",
        place: "`SDPAFP8BackwardNode::pre_validate_node`",
        links: &[FP8_BACKWARD],
        finding: Finding::Refused(&[
            &FP8_BACKWARD_BAND,
            &FP8_BACKWARD_DETERMINISTIC,
            &FP8_BACKWARD_ENGINE,
            &FP8_DROPOUT_FORM,
            &FP8_BACKWARD_EXTRAS,
        ]),
        ..BACKWARD_CHECK
    },
    Report {
        attention: "Stats that are not packed (sequence, head, query) in a backward, before 9.26, on 8.x, and on 10.x with \
                    the gradient of a bias.",
        affected: &[Versions::before(26, 0).on(Gpus::BEFORE_HOPPER), Versions::before(26, 0).on(Gpus::BLACKWELL)],
        links: &[
            "https://github.com/NVIDIA/cudnn-frontend/pull/304",
            "https://github.com/NVIDIA/cudnn-frontend/pull/1023",
        ],
        finding: Finding::Never("Dense Stats are always packed so."),
        ..THREAD
    },
    Report {
        attention: "A backward of one query, rows whose log-sum-exp is below -88.",
        affected: &[every(Gpus::HOPPER)],
        links: &["https://github.com/NVIDIA/cudnn-frontend/issues/1072"],
        finding: Finding::Form {
            standing: Standing::seen(
                "an H100",
                "cuDNN 9.19",
                "qkvault-lab selftest --family below --without hide-tails",
            ),
            shows: "NaN in dK and dV.",
            says: "Scores beyond the only query are hidden in the graph; lengths that equal the extents do the same.",
        },
        ..THREAD
    },
    Report {
        attention: "A backward of one sequence, one head and one query.",
        affected: &[Versions::from(26, 0).on(Gpus::ALL)],
        links: &["https://github.com/NVIDIA/cudnn-frontend/issues/1071"],
        finding: Finding::Refused(&[&BACKWARD_SINGLE_ROW]),
        ..THREAD
    },
    Report {
        attention: "Varlen Stats of one query per sequence with shared heads.",
        affected: &[Versions::from(26, 0).on(Gpus::ALL)],
        links: &["https://github.com/NVIDIA/cudnn-frontend/issues/1083"],
        finding: Finding::Refused(&[&STORAGE_VARLEN_ONE_QUERY_STATS]),
        ..THREAD
    },
    Report {
        attention: "One query over varlen keys that are no whole tiles: the first engine does not compile.",
        affected: &[Versions::from(27, 0).on(Gpus::BLACKWELL)],
        links: &["https://github.com/NVIDIA/cudnn-frontend/issues/1084"],
        finding: Finding::Never(
            "An engine that does not compile is passed over for the next, and the plan's facts say so.",
        ),
        ..THREAD
    },
    Report {
        attention: "Varlen sequences without keys, before 9.25.",
        affected: &[Versions::before(25, 0).on(Gpus::ALL)],
        links: &[
            "https://github.com/NVIDIA/cudnn-frontend/issues/943",
            "https://github.com/NVIDIA/cudnn-frontend/pull/944",
        ],
        finding: Finding::Open {
            standing: Standing::Reported,
            shows: "NaN in the rows of O of such a sequence, and in gradients (an H200 under 9.22).",
            says: "Leave the sequence out of the batch, give it a key, or use cuDNN 9.25 or newer.",
        },
        ..THREAD
    },
    Report {
        attention: "8 bits and block scales: few queries over 4,096 keys or more with bf16 outputs, under 9.24.",
        affected: &[Versions::between((24, 0), (25, 0)).on(Gpus::BLACKWELL)],
        links: &["https://github.com/NVIDIA/cudnn-frontend/pull/414"],
        finding: Finding::Refused(&[&FP8_SPLIT_ZEROS]),
        ..THREAD
    },
    Report {
        attention: "8 bits in a forward with head dims of 256.",
        affected: &[every(Gpus::BLACKWELL)],
        links: &["https://github.com/NVIDIA/cudnn-frontend/issues/981"],
        finding: Finding::Refused(&[&FP8_HEAD_DIM_WIDE]),
        ..THREAD
    },
    Report {
        attention: "8 bits in a forward in which a tile of queries sees no key.",
        affected: &[every(Gpus::HOPPER)],
        links: &[
            "https://github.com/NVIDIA/cudnn-frontend/issues/1069",
            "https://github.com/NVIDIA/cudnn-frontend/issues/1009",
        ],
        finding: Finding::Refused(&[&FP8_HOPPER_EMPTY_TILE]),
        ..THREAD
    },
    Report {
        attention: "8 bits and block scales: rows whose scores are all near -200 to -490.",
        affected: &[every(Gpus::BLACKWELL)],
        links: &["https://github.com/NVIDIA/cudnn-frontend/issues/745"],
        finding: Finding::Open {
            standing: Standing::Reported,
            shows: "O is out of the bounds in 1 of 256 forwards, gradients in 3 of 128 backwards, on a B200.",
            says: "Use 16 bits where scores are that far below zero.",
        },
        ..THREAD
    },
    Report {
        attention: "A backward in 16 bits, rows whose scores are all near -200 to -490.",
        affected: &[every(Gpus::BLACKWELL)],
        links: &[
            "https://github.com/NVIDIA/cudnn-frontend/issues/744",
            "https://github.com/NVIDIA/cudnn-frontend/pull/743",
        ],
        finding: Finding::Open {
            standing: Standing::Reported,
            shows: "dQ and dK are off by 7 %; the thread is closed, with the kernel within 0.04 % of a model of its \
                    roundings.",
            says: "Expect that loss where scores are that far below zero: differences of rounded numbers cancel.",
        },
        ..THREAD
    },
];
