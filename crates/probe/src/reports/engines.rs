//! Wrong results that this project found first, which another form avoids, and those of other engines.

use super::{CUDNN, Finding, Library, Project, Report, every};
use qkvault_cudnn::registry::{Gpus, Standing};

const FA4: Report = Report { library: Library::Fa4, affected: &[every(Gpus::HOPPER)], ..CUDNN };

pub(super) static REPORTS: &[Report] = &[
    Report {
        attention: "A backward with a score expression whose queries or keys are no multiple of 64.",
        affected: &[every(Gpus::HOPPER)],
        finding: Finding::Form {
            standing: Standing::seen("an H200", "cuDNN 9.19", "qkvault-lab selftest --without hide-tails"),
            shows: "NaN in dQ, dK and dV: the expression reads scores that do not exist.",
            says: "Rows and keys beyond the last are hidden from the probabilities and the derivative.",
        },
        ..CUDNN
    },
    Report {
        attention: "A backward with the caller's dropout mask.",
        finding: Finding::Form {
            standing: Standing::seen("an H200", "cuDNN 9.19", "qkvault-lab selftest --without scaled-dropout"),
            shows: "dQ and dK are off by 2 to 21 % in 39 of 39: the factor 1-p of the row sums is left out.",
            says: "The factor 1/(1-p) stands at the gradient of the probabilities, together with the mask.",
        },
        ..CUDNN
    },
    Report {
        attention: "A tensor with one number for all queries, in an expression of a backward (in a forward: one number per \
                    head, or a length).",
        finding: Finding::Form {
            standing: Standing::seen(
                "an H200",
                "cuDNN 9.14, 9.19 and 9.27",
                "qkvault-lab selftest --without whole-queries --isolate 4",
            ),
            shows: "Relative errors of 0.03 to 3, and misaligned reads.",
            says: "The tensor is declared with all queries and a stride of 0.",
        },
        ..CUDNN
    },
    Report {
        attention: "One query over more than 256 keys or pages with Philox, or with an expression of the key's index; with \
                    shared heads, of the head's index.",
        finding: Finding::Form {
            standing: Standing::seen(
                "an H200",
                "cuDNN 9.19",
                "qkvault-lab selftest --without avoid-engines --isolate 4",
            ),
            shows: "O is off by 0.1 to 1.5, and Philox reads an illegal address, from engine 1.",
            says: "Engine 1 is excluded; where no other engine takes it, `engine.wrong` refuses it.",
        },
        ..CUDNN
    },
    Report {
        attention: "A power in an expression, of a base below 0 (by a constant: `score^3`) or by 0.",
        finding: Finding::Form {
            standing: Standing::seen("an H100", "cuDNN 9.19", "qkvault-lab selftest --file CASES"),
            shows: "NaN in O, dQ, dK and dV: the power is one of a logarithm.",
            says: "Whole constants become products; for other exponents the sign of the base is written out.",
        },
        ..CUDNN
    },
    Report {
        attention: "A floored remainder of integers by a constant below 0.",
        finding: Finding::Form {
            standing: Standing::seen("an H100", "cuDNN 9.19", "qkvault-lab selftest --file CASES"),
            shows: "O, dQ, dK and dV are wrong in every row: an integer constant loses its sign where f32 is computed.",
            says: "The constant is one of f32.",
        },
        ..CUDNN
    },
    Report {
        attention: "A forward of whole rows of a bias that hold the lowest float, in FlashAttention-4.",
        finding: Finding::Form {
            standing: Standing::seen(
                "an H100",
                "FlashAttention-4 4.0.0b36",
                "qkvault-lab selftest --engine fa4 --file CASES",
            ),
            shows: "NaN in O.",
            says: "The score modification makes scores near the lowest float larger, in their order.",
        },
        ..FA4
    },
    Report {
        attention: "A backward of whole rows of a bias that is below -131072, where dO is not zero, in FlashAttention-4. \
                    Where a constant makes the row, `fa4.lowest-row` refuses it.",
        finding: Finding::Open {
            standing: Standing::seen(
                "an H100",
                "FlashAttention-4 4.0.0b36",
                "qkvault-lab selftest --engine fa4 --file CASES",
            ),
            shows: "Gradients of the row's keys are wrong; NaN in dK and dV where Stats hold the lowest float.",
            says: "Hide keys by lengths, a predicate, a mask of booleans or a bias of minus infinity.",
        },
        ..FA4
    },
    Report {
        attention: "Lengths, where rows of padding hold NaN or infinity: behind the lengths of dense operands, between varlen \
                    sequences, or behind the last row of a page in use.",
        finding: Finding::Open {
            standing: Standing::seen(
                "an H100 and an H200",
                "cuDNN 9.14 and 9.19",
                "qkvault-lab selftest --serving --tails",
            ),
            shows: "NaN in O, dQ, dK and dV of the sequence: rows of padding are multiplied by probabilities of zero.",
            says: "Fill padding with numbers, or use own kernels, which read no padding. Unused pages are not read.",
        },
        ..CUDNN
    },
    Report {
        attention: "A forward of rows whose scores are all below -1e9 (in f16 below -1e8), as a constant or a bias of \
                    -1e30 makes those of padded queries, in FlashAttention-4.",
        finding: Finding::Form {
            standing: Standing::seen(
                "an H200",
                "FlashAttention-4 4.0.0b36",
                "qkvault-lab selftest --engine fa4 --file bench/low-rows.txt",
            ),
            shows: "NaN in O and Stats: the rounding of the largest product is an exponent, 0 or infinite for the row.",
            says: "Such a row is not multiplied by log2(e): only its largest scores have a weight.",
        },
        ..FA4
    },
    Report {
        attention: "Stats of rows with a sink, all of whose scores are more than 88 below the sink, in \
                    FlashAttention-4.",
        finding: Finding::Form {
            standing: Standing::seen(
                "an H200",
                "FlashAttention-4 4.0.0b36",
                "qkvault-lab selftest --engine fa4 --family below",
            ),
            shows: "Stats are not finite, in 4 of 4: the exponential of the sink is relative to the largest score.",
            says: "Sums are relative to the sink where it is 44 or more above all scores.",
        },
        ..FA4
    },
];

const _: () = assert!(matches!(CUDNN.by, Project::Here));
