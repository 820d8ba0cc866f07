//! How much device memory a launch may take, and whose figure that is.

use std::fmt;

use qkvault_graph::Target;

/// A budget of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes that may be taken.
    pub bytes: u64,
    /// Where the figure comes from.
    pub basis: Basis,
}

/// Where the figure of a budget comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Basis {
    /// The caller says so.
    Given,
    /// What the driver says is free on the GPU now.
    Free {
        /// All of the GPU's memory, in bytes.
        total: u64,
    },
    /// All memory of the target: what is free there is not known here.
    Total,
}

impl Budget {
    /// So many bytes, because the caller says so.
    #[must_use]
    pub const fn given(bytes: u64) -> Budget {
        Budget { bytes, basis: Basis::Given }
    }

    /// What is free on a GPU now, of so much in all (`Device::memory` of `qkvault-exec`).
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
    /// A word for it: `given`, `free` or `total`.
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
            Basis::Given => write!(f, "{bytes} bytes, as given"),
            Basis::Free { total } => write!(f, "{bytes} bytes, which are free on the GPU now, of {total}"),
            Basis::Total => {
                write!(f, "{bytes} bytes, all that the target has: what others use of it is not known here")
            }
        }
    }
}

/// All memory of a target's device, whoever uses it: for who cannot ask what is free.
#[must_use]
pub fn on_device(target: &Target) -> Budget {
    Budget { bytes: target.device.total_global_mem.unsigned_abs(), basis: Basis::Total }
}
