//! What other projects keep from cuDNN or report of it, and what of that is true here.
//!
//! Each [`Report`] is a guard in another project's source or a public report of a wrong result, in 16 and in 8 bits,
//! for cuDNN 9.8 and newer. Its [`Finding`] says what this project does: a code refuses it, another form computes it,
//! it runs right, it is never written, it is open, or nothing is known. `docs/known-wrong.md` is written from these and
//! from the quirks.

mod cudnn_frontend;
mod engines;
mod jax;
mod pytorch;
mod threads;
mod transformer_engine;

use qkvault_cudnn::registry::{Affected, Gpus, Sight, Standing, Versions};
use qkvault_graph::Code;

/// Whose source or thread it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Project {
    /// pytorch/pytorch.
    PyTorch,
    /// NVIDIA/TransformerEngine.
    TransformerEngine,
    /// NVIDIA/cudnn-frontend.
    CudnnFrontend,
    /// jax-ml/jax.
    Jax,
    /// This project, which found it first or in another engine.
    Here,
}

/// The library that computes it wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// cuDNN.
    Cudnn,
    /// The kernels of FlashAttention-4 that this project launches.
    Fa4,
    /// This project's own kernels.
    Kernels,
}

/// Every library, in the order of tables.
pub const LIBRARIES: [Library; 3] = [Library::Cudnn, Library::Fa4, Library::Kernels];

/// A guard or a report, and what is known of it here.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Whose it is.
    pub by: Project,
    /// What computes it wrongly, or what it is kept from.
    pub library: Library,
    /// The attention, in words that need no knowledge of this project.
    pub attention: &'static str,
    /// The versions of cuDNN, and the GPUs.
    pub affected: &'static [Affected],
    /// The file and function that has the guard; empty for a thread.
    pub place: &'static str,
    /// Addresses of the source or the thread.
    pub links: &'static [&'static str],
    /// What is known here.
    pub finding: Finding,
}

/// What this project knows of a report, and does.
#[derive(Clone, Copy, Debug)]
pub enum Finding {
    /// These codes refuse it before a launch.
    Refused(&'static [&'static Code]),
    /// cuDNN computes it wrongly in the form that others write; the form that is written here is right.
    Form {
        /// Who saw it.
        standing: Standing,
        /// How it shows.
        shows: &'static str,
        /// What is written instead.
        says: &'static str,
    },
    /// It ran here, and every result was right.
    Right {
        /// The run.
        sight: Sight,
        /// What ran, and what of the guard did not.
        says: &'static str,
    },
    /// No description can ask for it, or it is never written.
    Never(&'static str),
    /// The guard gives no reason, and it did not run here, for want of such a GPU or version.
    Unknown(&'static str),
    /// It is neither refused nor avoided.
    Open {
        /// Who saw it.
        standing: Standing,
        /// How it shows.
        shows: &'static str,
        /// What a user can do.
        says: &'static str,
    },
}

impl Project {
    /// The name that people know.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Project::PyTorch => "PyTorch",
            Project::TransformerEngine => "Transformer Engine",
            Project::CudnnFrontend => "cudnn-frontend",
            Project::Jax => "JAX",
            Project::Here => "qkvault",
        }
    }
}

impl Library {
    /// The name that people know.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Library::Cudnn => "cuDNN",
            Library::Fa4 => "FlashAttention-4",
            Library::Kernels => "qkvault's own kernels",
        }
    }
}

impl Finding {
    /// The name in documents.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Finding::Refused(_) => "refused",
            Finding::Form { .. } => "form",
            Finding::Right { .. } => "not-confirmed",
            Finding::Never(_) => "never-written",
            Finding::Unknown(_) => "unknown",
            Finding::Open { .. } => "open",
        }
    }
}

/// Every guard and report, in the order of projects.
pub fn reports() -> impl Iterator<Item = &'static Report> {
    [
        pytorch::REPORTS,
        transformer_engine::REPORTS,
        cudnn_frontend::REPORTS,
        threads::REPORTS,
        jax::REPORTS,
        engines::REPORTS,
    ]
    .into_iter()
    .flatten()
}

/// A report of cuDNN by this project.
const CUDNN: Report = Report {
    by: Project::Here,
    library: Library::Cudnn,
    attention: "",
    affected: Affected::ALL,
    place: "",
    links: &[],
    finding: Finding::Never(""),
};

/// Random attentions on an H200, in 16 bits: 16,500 cases, of which no launch was wrong.
const RANDOM: Sight = Sight { gpu: "an H200", versions: "cuDNN 9.14, 9.19 and 9.27", command: "qkvault-lab selftest" };

/// Random batches of a serving step on an H200.
const SERVING: Sight =
    Sight { gpu: "an H200", versions: "cuDNN 9.14, 9.19 and 9.27", command: "qkvault-lab selftest --serving" };

/// Rows of a bias that hold the lowest float, as others mask them.
const LOWEST: Finding = Finding::Form {
    standing: Standing::seen("an H100", "cuDNN 9.19", "qkvault-lab selftest --without compress-lowest --file CASES"),
    shows: "O is 0 in place of the mean of V.",
    says: "A forward makes scores near the lowest float larger, in their order, so that their products with log2(e) are \
           floats. A backward cannot: see whole rows of a bias below -131072.",
};

/// GPUs from this compute capability on.
const fn from(sm: u32) -> Gpus {
    Gpus { from: sm, to: u32::MAX }
}

/// Every version that this project compiles for, on these GPUs.
const fn every(gpus: Gpus) -> Affected {
    Versions::ALL.on(gpus)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_report_has_its_source_and_says_what_is_known() {
        let mut seen = BTreeSet::new();
        for report in reports() {
            let Report { by, library: _, attention, affected, place, links, finding } = report;
            assert!(seen.insert((*by, *attention)), "twice: {attention}");
            assert!(attention.ends_with('.') && !affected.is_empty(), "{attention}");
            assert!(links.iter().all(|link| link.starts_with("https://")), "{attention}");
            assert_eq!(*by == Project::Here, links.is_empty(), "{attention}: its source");
            assert!(!place.contains("//"), "{attention}");
            match finding {
                Finding::Refused(codes) => assert!(!codes.is_empty(), "{attention}"),
                Finding::Form { shows, says, .. } | Finding::Open { shows, says, .. } => {
                    assert!(shows.ends_with('.') && says.ends_with('.'), "{attention}");
                }
                Finding::Right { says, .. } | Finding::Never(says) | Finding::Unknown(says) => {
                    assert!(says.ends_with('.'), "{attention}")
                }
            }
        }
        assert!(seen.len() > 60, "{}", seen.len());
    }

    /// A guard that runs right here is no quirk, and a quirk that others guard names their reports.
    #[test]
    fn what_is_found_by_a_code_is_an_entry_of_the_registry() {
        for report in reports() {
            if let Finding::Refused(codes) = report.finding {
                assert!(codes.iter().all(|code| code.entry().is_some()), "{}", report.attention);
            }
        }
    }
}
