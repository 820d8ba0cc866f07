//! Threads of cudnn-frontend: pull requests, and reports of NVIDIA and of users.

use super::{CUDNN, Finding, Project, RANDOM, Report, every};
use qkvault_cudnn::registry::codes::*;
use qkvault_cudnn::registry::{Gpus, Standing, Versions};

const THREAD: Report = Report { by: Project::CudnnFrontend, ..CUDNN };

pub(super) static REPORTS: &[Report] = &[
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
        attention: "A varlen backward with head-major Stats and a largest total of queries: dQ, dK and dV are zeros.",
        affected: &[Versions::from(22, 0).on(Gpus::ALL)],
        links: &["https://github.com/NVIDIA/cudnn-frontend/pull/462"],
        finding: Finding::Never("The front end sizes its workspace wrongly; here varlen Stats are token-major."),
        ..THREAD
    },
    Report {
        attention: "One query with a causal mask and shared heads; a backward of one key (known issues of 9.18.1).",
        affected: &[Versions::before(19, 0).on(Gpus::ALL)],
        place: "NVIDIA's release notes",
        links: &["https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html"],
        finding: Finding::Right { sight: RANDOM, says: "Drawn under 9.14, 9.19 and 9.27; 9.18.1 itself did not run." },
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
        affected: &[Versions::ALL.on(Gpus::ALL)],
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
