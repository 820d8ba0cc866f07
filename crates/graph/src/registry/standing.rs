//! Who saw that an attention is computed wrongly: this project on a GPU, or only others.

use std::fmt;

/// A run of this project on a GPU: which GPU, which versions, and the command that shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The GPU by its name, such as `H100`.
    pub gpu: &'static str,
    /// The versions that ran on it, such as `9.14 and 9.19`.
    pub versions: &'static str,
    /// The command, without the words that choose a cuDNN or the number of cases.
    pub command: &'static str,
}

/// Who saw a wrong result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A GPU showed it here.
    Seen(Sight),
    /// Others report it, or keep the attention from cuDNN. It was not run here, for want of such a GPU or version.
    Reported,
    /// Others report it, or keep the attention from cuDNN. It ran here, and every result was right.
    NotConfirmed(Sight),
}

impl Standing {
    /// Seen on a GPU.
    #[must_use]
    pub const fn seen(gpu: &'static str, versions: &'static str, command: &'static str) -> Standing {
        Standing::Seen(Sight { gpu, versions, command })
    }

    /// Ran right on a GPU.
    #[must_use]
    pub const fn right(gpu: &'static str, versions: &'static str, command: &'static str) -> Standing {
        Standing::NotConfirmed(Sight { gpu, versions, command })
    }

    /// The name in documents: `seen`, `reported` or `not-confirmed`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Standing::Seen(_) => "seen",
            Standing::Reported => "reported",
            Standing::NotConfirmed(_) => "not-confirmed",
        }
    }

    /// The run that it rests on.
    #[must_use]
    pub const fn sight(self) -> Option<Sight> {
        match self {
            Standing::Seen(sight) | Standing::NotConfirmed(sight) => Some(sight),
            Standing::Reported => None,
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Seen(sight) => write!(f, "seen on {sight}"),
            Standing::Reported => f.write_str("reported, not run here"),
            Standing::NotConfirmed(sight) => write!(f, "not confirmed: right on {sight}"),
        }
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sight { gpu, versions, command } = self;
        write!(f, "{gpu}, {versions}, `{command}`")
    }
}
