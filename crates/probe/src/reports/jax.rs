//! Guards of JAX's cuDNN path (`fused_attention_stablehlo.py`).

use super::{CUDNN, Finding, LOWEST, Project, RANDOM, Report, every, from};
use qkvault_cudnn::registry::codes::*;
use qkvault_cudnn::registry::{Gpus, Standing, Versions};

const FILE: &str = "https://github.com/jax-ml/jax/blob/main/jax/_src/cudnn/fused_attention_stablehlo.py";

const JAX: Report = Report { by: Project::Jax, place: "`check_is_flash_attention`", links: &[FILE], ..CUDNN };

pub(super) static REPORTS: &[Report] = &[
    Report {
        attention: "Compute capability 10.3 before 9.11.",
        affected: &[Versions::before(11, 0).on(Gpus { from: 103, to: 103 })],
        finding: Finding::Unknown("JAX says that cuDNN supports it from 9.11 on; cuDNN itself answers."),
        ..JAX
    },
    Report {
        attention: "Head dims above 128 (above 256 on 9.0), or no multiple of 8.",
        links: &[FILE, "https://github.com/jax-ml/jax/pull/26344"],
        finding: Finding::Refused(&[&HEAD_DIM_BACKWARD, &HEAD_DIM_FORWARD_OLD, &HEAD_DIM_MULTIPLE_OF_8]),
        ..JAX
    },
    Report {
        attention: "Training with a bias and an odd number of queries or keys.",
        finding: Finding::Form {
            standing: Standing::seen(
                "an H200",
                "cuDNN 9.19",
                "compute-sanitizer qkvault-lab selftest --file bench/odd-tensors.txt",
            ),
            shows: "A forward reads 2 bytes past a 16-bit bias of an odd number of elements (none under 9.27); numbers are \
                    right.",
            says: "A plan asks for room for the pair of the last element, and a launch with less is refused.",
        },
        ..JAX
    },
    Report {
        attention: "The gradient of a bias that has other than one sequence and all heads.",
        place: "`should_export_dbias`",
        finding: Finding::Right {
            sight: RANDOM,
            says: "Sequences and heads may be broadcast. Broadcast queries or keys are wrong and refused \
                   (`backward.tensor-gradient`).",
        },
        ..JAX
    },
    Report {
        attention: "Differences of two large negative numbers: masks hold -2^41, not the lowest float.",
        place: "`get_large_negative_number`",
        finding: LOWEST,
        ..JAX
    },
    Report {
        attention: "A backward with a bias of 2^31 elements or more and its gradient.",
        place: "XLA's custom call",
        links: &["https://github.com/openxla/xla/issues/36454"],
        finding: Finding::Open {
            standing: Standing::Reported,
            shows: "An illegal address: 33,280 queries and keys of two sequences under 9.13.1.",
            says: "Split the batch, so that the bias of a launch has fewer elements.",
        },
        ..JAX
    },
    Report {
        attention: "Packed sequences before 9.0, and pages before 9.5.",
        affected: &[every(from(80))],
        finding: Finding::Refused(&[&STORAGE_VARLEN_SM, &STORAGE_PAGED_OLD]),
        ..JAX
    },
    Report {
        attention: "Different head dims of Q and V before 9.0, or before 9.10.",
        finding: Finding::Right {
            sight: RANDOM,
            says: "128 with 64 and 192 with 128 are drawn on 9.0; other GPUs compile them and did not run them.",
        },
        ..JAX
    },
    Report {
        attention: "8 bits: training with head dims other than 128 or lengths that are no multiples of 128.",
        finding: Finding::Refused(&[&FP8_BACKWARD_HEAD_DIM, &FP8_HOPPER_QUERIES, &FP8_HOPPER_KEYS_TAIL]),
        ..JAX
    },
];
