//! Versions and GPUs that are refused whatever is described.

use super::FE_FORWARD;
use crate::{Facts, Kind, Rule, Versions};

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "cudnn.major",
        kind: Kind::NotBuilt,
        versions: Versions::ALL,
        field: "target.cudnn",
        needed: "cuDNN 9",
        fix: "use a cuDNN 9; `qkvault doctor` says which are here",
        source: "nothing of this project was tried with another",
        given: |f| (f.version().major != 9).then(|| format!("cuDNN {}", f.version())),
    },
    Rule {
        code: "cudnn.too-old",
        kind: Kind::Unsupported,
        versions: Versions::before(8, 0),
        field: "target.cudnn",
        needed: "cuDNN 9.8.0 or newer, the first that compiles for a GPU that is described and not here",
        fix: "use a newer cuDNN",
        source: "graph header of cuDNN 9.8: device-properties descriptor",
        given: |f| (f.version().major == 9).then(|| format!("cuDNN {}", f.version())),
    },
    Rule {
        code: "cudnn.withdrawn",
        kind: Kind::Wrong,
        versions: Versions::between((10, 0), (10, 2)),
        field: "target.cudnn",
        needed: "another version: attention of 9.10.0 and 9.10.1 is blocked by NVIDIA's own front end",
        fix: "use cuDNN 9.10.2 or newer",
        source: FE_FORWARD,
        given: |f| Some(format!("cuDNN {}", f.version())),
    },
    Rule {
        code: "gpu.old",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "target.device",
        needed: "compute capability 8.0 or newer",
        fix: "the CPU reference computes it",
        source: FE_FORWARD,
        given: |f: &Facts<'_>| (f.sm() < 80).then(|| format!("compute capability {}.{}", f.sm() / 10, f.sm() % 10)),
    },
    Rule {
        code: "gpu.unknown",
        kind: Kind::NotBuilt,
        versions: Versions::ALL,
        field: "target.device",
        needed: "an architecture that was tried: 8.x, 9.0, 10.x or 12.x",
        fix: "ask the library itself, which may know it",
        source: "profiles of this project",
        given: |f| {
            // What is older than 8.0 is known, and refused as `gpu.old`.
            let known = matches!(f.sm(), 0..=90 | 100..=109 | 120..=129);
            (!known).then(|| format!("compute capability {}.{}", f.sm() / 10, f.sm() % 10))
        },
    },
];
