//! Support checks of cudnn-frontend (`sdpa_support_surface.h`, `scaled_dot_product_flash_attention.h`,
//! `sdpa_fp8_bwd.h`).

use super::{CUDNN, Finding, Project, RANDOM, Report, every};
use qkvault_cudnn::registry::codes::*;
use qkvault_cudnn::registry::{Gpus, Versions};

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
        finding: Finding::Refused(&[&QUERIES_ONE_SINK, &STORAGE_PAGED_ONE_QUERY_SINK]),
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
        finding: Finding::Never("qkvault does not write the unified operation."),
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
        finding: Finding::Unknown("The check names no version that mends it; dense operands with lengths do without."),
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
];
