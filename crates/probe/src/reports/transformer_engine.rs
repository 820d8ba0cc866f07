//! Guards of Transformer Engine (`fused_attn.cpp`, `dot_product_attention/utils.py`) and its reports.

use super::{CUDNN, Finding, Project, RANDOM, Report, SERVING, Sight, every, from};
use qkvault_cudnn::registry::codes::*;
use qkvault_cudnn::registry::{Gpus, Versions};

const FUSED: &str =
    "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/common/fused_attn/fused_attn.cpp";
const UTILS: &str = "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/attention/\
                     dot_product_attention/utils.py";

const ENGINE: Report =
    Report { by: Project::TransformerEngine, place: "`nvte_get_fused_attn_backend`", links: &[FUSED], ..CUDNN };
const FILTER: Report =
    Report { by: Project::TransformerEngine, place: "`get_attention_backend`", links: &[UTILS], ..CUDNN };

pub(super) static REPORTS: &[Report] = &[
    Report {
        attention: "Everything under 9.10.0, and 16 bits under 9.10.1.",
        affected: &[Versions::between((10, 0), (10, 2)).on(Gpus::ALL)],
        finding: Finding::Refused(&[&CUDNN_WITHDRAWN]),
        ..ENGINE
    },
    Report {
        attention: "Training with different head dims of at least 128 of Q and V, other than 192 with 128.",
        affected: &[Versions::from(11, 0).on(Gpus::HOPPER)],
        finding: Finding::Right {
            sight: Sight { command: "qkvault-lab selftest --file bench/latent.txt", ..RANDOM },
            says: "The guard names a bug from 9.11 on; cudnn-frontend 1.14.1 says that 9.13 mends it, and \
                   `head-dim.backward-latent` refuses what it refuses before.",
        },
        ..ENGINE
    },
    Report {
        attention: "A window that is not causal over more than 1,024 keys, under 9.14.0.",
        affected: &[Versions::between((14, 0), (14, 1)).on(Gpus::ALL)],
        links: &[FUSED, "https://github.com/NVIDIA/TransformerEngine/pull/2344"],
        finding: Finding::Refused(&[&BAND_WINDOW_WRONG]),
        ..ENGINE
    },
    Report {
        attention: "Captured backwards whose keys are no multiple of 128 and that have no lengths, before 9.15.1.",
        affected: &[Versions::before(15, 1).on(Gpus::ALL)],
        links: &[FUSED, "https://github.com/NVIDIA/TransformerEngine/pull/2344"],
        finding: Finding::Refused(&[&BACKWARD_KEYS_TAIL_OLD]),
        ..ENGINE
    },
    Report {
        attention: "More queries than keys with the diagonal bottom right.",
        finding: Finding::Refused(&[&BAND_ROWS_WITHOUT_KEYS]),
        ..ENGINE
    },
    Report {
        attention: "More queries than keys with a window.",
        finding: Finding::Right {
            sight: RANDOM,
            says: "Drawn with the diagonal top left, where rows may see no key; bottom right is refused \
                   (`band.rows-without-keys`).",
        },
        ..ENGINE
    },
    Report {
        attention: "A window with dropout or a bias.",
        finding: Finding::Right { sight: RANDOM, says: "Both are drawn, in both directions." },
        ..ENGINE
    },
    Report {
        attention: "A bias together with lengths.",
        finding: Finding::Right { sight: RANDOM, says: "Drawn in both directions, with the gradient of the bias too." },
        ..ENGINE
    },
    Report {
        attention: "The diagonal bottom right with a bias or dropout.",
        finding: Finding::Right { sight: RANDOM, says: "Drawn in both directions." },
        ..ENGINE
    },
    Report {
        attention: "Head dims of a forward with one query and a top left causal mask, above 128.",
        affected: &[Versions::from(10, 2).on(Gpus::ALL)],
        finding: Finding::Right {
            sight: RANDOM,
            says: "One query is drawn with every mask, for 192 with 128 and for 256.",
        },
        ..ENGINE
    },
    Report {
        attention: "A sink before 9.13.1.",
        affected: &[Versions::before(13, 1).on(Gpus::ALL)],
        finding: Finding::Refused(&[&SINK_OLD]),
        ..ENGINE
    },
    Report {
        attention: "The largest score of each row beside Stats, before 9.21.",
        affected: &[Versions::before(21, 0).on(Gpus::ALL)],
        finding: Finding::Refused(&[&OUTPUTS_COMBINATION]),
        ..ENGINE
    },
    Report {
        attention: "A deterministic backward on 10.x and newer before 9.18.1, or with dropout or a bias.",
        affected: &[every(from(100))],
        finding: Finding::Refused(&[
            &BACKWARD_DETERMINISTIC_ENGINE,
            &BACKWARD_DETERMINISTIC_EXPRESSION,
            &BACKWARD_DETERMINISTIC_PHILOX,
            &BACKWARD_DETERMINISTIC_TENSOR_GRADIENT,
        ]),
        ..ENGINE
    },
    Report {
        attention: "A backward with dropout and a bias on 10.x and newer.",
        affected: &[every(from(100))],
        finding: Finding::Unknown(
            "Right on an H200; on 10.x some are refused (`backward.query-tensor-gradient`), the others compile.",
        ),
        ..ENGINE
    },
    Report {
        attention: "A backward with head dims of 256 on 10.x: varlen before 9.25, a bias, dropout, a sink, a window.",
        affected: &[every(Gpus::BLACKWELL)],
        finding: Finding::Refused(&[
            &HEAD_DIM_BACKWARD,
            &BACKWARD_DETERMINISTIC_VARLEN,
            &BACKWARD_DETERMINISTIC_PHILOX,
            &BACKWARD_DETERMINISTIC_SINK,
        ]),
        ..ENGINE
    },
    Report {
        attention: "16 bits on compute capability 12.0 before 9.18.1.",
        affected: &[Versions::before(18, 1).on(Gpus::CONSUMER_BLACKWELL)],
        finding: Finding::Unknown("Varlen backwards are refused (`backward.varlen-consumer-old`); the others compile."),
        ..ENGINE
    },
    Report {
        attention: "A deterministic backward on compute capability 12.0.",
        affected: &[every(Gpus::CONSUMER_BLACKWELL)],
        finding: Finding::Refused(&[&STORAGE_VARLEN_DETERMINISTIC]),
        ..ENGINE
    },
    Report {
        attention: "Varlen Q, K and V interleaved in one tensor on compute capability 12.0.",
        affected: &[every(Gpus::CONSUMER_BLACKWELL)],
        finding: Finding::Unknown("Plans compile."),
        ..ENGINE
    },
    Report {
        attention: "Padding between varlen sequences.",
        affected: &[Versions::before(18, 0).on(Gpus::HOPPER)],
        links: &["https://github.com/NVIDIA/TransformerEngine/issues/2186"],
        finding: Finding::Refused(&[&BACKWARD_VARLEN_NO_QUERIES_OLD]),
        ..FILTER
    },
    Report {
        attention: "A varlen backward with a learned sink.",
        affected: &[Versions::before(26, 0).on(Gpus::ALL)],
        links: &[
            "https://github.com/NVIDIA/TransformerEngine/issues/3249",
            "https://github.com/NVIDIA/TransformerEngine/pull/3470",
        ],
        finding: Finding::Refused(&[&STORAGE_VARLEN_SINK]),
        ..FILTER
    },
    Report {
        attention: "A deterministic attention with a sink.",
        finding: Finding::Refused(&[&BACKWARD_DETERMINISTIC_SINK]),
        ..FILTER
    },
    Report {
        attention: "A deterministic backward with the gradient of a bias.",
        finding: Finding::Unknown(
            "The gradient of a bias is summed over what was broadcast, in an order that no document names.",
        ),
        ..FILTER
    },
    Report {
        attention: "The gradient of a bias of one sequence, one head, one query and all keys.",
        finding: Finding::Refused(&[&BACKWARD_TENSOR_GRADIENT]),
        ..FILTER
    },
    Report {
        attention: "Keys in pages on compute capability 8.9 and 12.0.",
        affected: &[every(Gpus { from: 89, to: 89 }), every(Gpus { from: 120, to: 120 })],
        finding: Finding::Unknown("Plans compile under 9.14, 9.19 and 9.27."),
        ..FILTER
    },
    Report {
        attention: "A mask that is a tensor of truth values.",
        finding: Finding::Right { sight: RANDOM, says: "Drawn as a predicate over a tensor, in both directions." },
        ..FILTER
    },
    Report {
        attention: "Keys in pages with padding between varlen queries.",
        finding: Finding::Right { sight: SERVING, says: "Room between sequences is drawn." },
        ..FILTER
    },
    Report {
        attention: "8 bits: head dims, masks and layouts beyond those that it lists by version.",
        finding: Finding::Refused(&[
            &FP8_HEAD_DIM_MULTIPLE,
            &FP8_HEAD_DIM,
            &FP8_HEAD_DIM_WIDE,
            &FP8_BACKWARD_HEAD_DIM,
            &FP8_BACKWARD_VARLEN,
            &FP8_HOPPER_BOTTOM_RIGHT,
            &FP8_BACKWARD_BAND,
        ]),
        ..ENGINE
    },
    Report {
        attention: "8 bits: a bias.",
        finding: Finding::Refused(&[&FP8_EXPRESSION, &FP8_HOPPER_EXPRESSION, &FP8_TENSOR_GRADIENT]),
        ..ENGINE
    },
    Report {
        attention: "8 bits with current scales before 10.0, or before 9.14.",
        finding: Finding::Refused(&[&FP8_OUTPUT, &FP8_GPU]),
        ..FILTER
    },
    Report {
        attention: "8 bits: a deterministic backward before 9.19.",
        affected: &[Versions::before(19, 0).on(Gpus::ALL)],
        finding: Finding::Refused(&[&FP8_BACKWARD_DETERMINISTIC, &FP8_BACKWARD_ENGINE]),
        ..FILTER
    },
    Report {
        attention: "8 bits: a sink before 10.0, or before 9.21.",
        finding: Finding::Refused(&[&FP8_SINK, &FP8_HOPPER_D_SINK]),
        ..FILTER
    },
    Report {
        attention: "8 bits on compute capability 12.0.",
        affected: &[every(Gpus { from: 120, to: 120 })],
        finding: Finding::Refused(&[&FP8_BACKWARD_GPU, &FP8_ONE_QUERY]),
        ..FILTER
    },
    Report {
        attention: "Block scales before 9.21, before 10.0, or over varlen operands.",
        finding: Finding::Refused(&[&MXFP8_VERSION, &MXFP8_GPU, &MXFP8_VARLEN]),
        ..FILTER
    },
    Report {
        attention: "Block scales under 9.23.0 and 9.23.1.",
        affected: &[Versions::between((23, 0), (23, 2)).on(Gpus::ALL)],
        links: &[UTILS, "https://github.com/NVIDIA/TransformerEngine/pull/3173"],
        finding: Finding::Refused(&[&MXFP8_NAN]),
        ..FILTER
    },
];
