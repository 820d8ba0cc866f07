//! Budgets of device memory, and the source of their figures.

use std::fmt;

use qkvault_cudnn::Target;

/// A budget of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes that a launch may use.
    pub bytes: u64,
    /// The source of the figure.
    pub basis: Basis,
}

/// The source of the figure of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Basis {
    /// The caller gave it.
    Given,
    /// The driver reports it as free on the GPU now.
    Free {
        /// All of the GPU's memory, in bytes.
        total: u64,
    },
    /// All memory of the target: the part that is free is unknown.
    Total,
}

impl Budget {
    /// A budget of this many bytes, which the caller gives.
    #[must_use]
    pub const fn given(bytes: u64) -> Budget {
        Budget { bytes, basis: Basis::Given }
    }

    /// The free memory of a GPU now, and its total (`Device::memory` of `qkvault-exec`).
    #[must_use]
    pub const fn free(free: u64, total: u64) -> Budget {
        Budget { bytes: free, basis: Basis::Free { total } }
    }
}

impl From<u64> for Budget {
    fn from(bytes: u64) -> Budget {
        Budget::given(bytes)
    }
}

impl Basis {
    /// Its name: `given`, `free` or `total`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Basis::Given => "given",
            Basis::Free { .. } => "free",
            Basis::Total => "total",
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Budget { bytes, basis } = self;
        match basis {
            Basis::Given => write!(f, "{bytes} bytes, the given budget"),
            Basis::Free { total } => write!(f, "{bytes} bytes, which are free on the GPU now, of {total}"),
            Basis::Total => {
                let gigabytes = *bytes as f64 / 1e9;
                write!(f, "{gigabytes:.1} GB, all memory of the target, of which others may use some")
            }
        }
    }
}

/// All memory of a target's device, including memory that others use: for callers that cannot query the free memory.
#[must_use]
pub fn on_device(target: &Target) -> Budget {
    Budget { bytes: target.device.total_global_mem.unsigned_abs(), basis: Basis::Total }
}
