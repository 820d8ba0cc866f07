//! Versions and GPUs that are refused for every description.

use super::{FE_FORWARD, FUZZED};
use crate::CudnnVersion;
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};

/// The first version of cuDNN 9, the only supported major version, and the first version after it.
const NINE: CudnnVersion = CudnnVersion::v9(0, 0);
const TEN: CudnnVersion = CudnnVersion { major: 10, minor: 0, patch: 0 };

fn version(f: &Facts<'_>) -> Option<String> {
    Some(format!("cuDNN {}", f.version()))
}

fn gpu(f: &Facts<'_>) -> Option<String> {
    Some(format!("compute capability {}.{}", f.sm() / 10, f.sm() % 10))
}

declare![
    CUDNN_MAJOR = Entry {
        code: "cudnn.major",
        cause: "The major version of cuDNN is not 9, and qkvault writes op graphs only for cuDNN 9.",
        affected: &[Versions::older_than(NINE).on(Gpus::ALL), Versions { from: Some(TEN), before: None }.on(Gpus::ALL)],
        field: "target.cudnn",
        needed: "cuDNN 9",
        fix: "use cuDNN 9; `qkvault doctor` lists the versions that are here",
        source: "this project was tested with no other major version",
        applies: Applies::Rules(version),
        ..Entry::not_built()
    },
    CUDNN_TOO_OLD = Entry {
        code: "cudnn.too-old",
        cause: "This cuDNN cannot compile for a GPU that is described by its properties and is not in the machine.",
        affected: &[Versions::between((0, 0), (8, 0)).on(Gpus::ALL)],
        field: "target.cudnn",
        needed: "cuDNN 9.8.0 or newer, the first that compiles for a GPU that is described and not in the machine",
        fix: "use a newer cuDNN",
        source: "graph header of cuDNN 9.8: device-properties descriptor",
        applies: Applies::Rules(version),
        ..Entry::rule()
    },
    CUDNN_WITHDRAWN = Entry {
        code: "cudnn.withdrawn",
        cause: "NVIDIA's own front end blocks attention on cuDNN 9.10.0 and 9.10.1.",
        affected: &[Versions::between((10, 0), (10, 2)).on(Gpus::ALL)],
        field: "target.cudnn",
        needed: "another version: NVIDIA's own front end blocks attention on 9.10.0 and 9.10.1",
        fix: "use cuDNN 9.10.2 or newer",
        source: FE_FORWARD,
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h",
            "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/common/fused_attn/fused_attn.cpp"
        ],
        applies: Applies::Rules(version),
        ..Entry::quirk(9)
    },
    GPU_OLD = Entry {
        code: "gpu.old",
        cause: "cuDNN has no attention for GPUs before compute capability 8.0.",
        affected: &[Versions::ALL.on(Gpus::BEFORE_AMPERE)],
        field: "target.device",
        needed: "compute capability 8.0 or newer",
        fix: "use the CPU reference, which computes it",
        source: FE_FORWARD,
        applies: Applies::Rules(gpu),
        ..Entry::rule()
    },
    GPU_UNKNOWN = Entry {
        code: "gpu.unknown",
        cause: "No GPU of this compute capability was tested, so no rule covers it.",
        affected: &[
            Versions::ALL.on(Gpus { from: 91, to: 99 }),
            Versions::ALL.on(Gpus { from: 110, to: 119 }),
            Versions::ALL.on(Gpus { from: 130, to: u32::MAX })
        ],
        field: "target.device",
        needed: "an architecture that was tested: 8.x, 9.0, 10.x or 12.x",
        fix: "ask cuDNN itself, which may support it",
        source: FUZZED,
        applies: Applies::Rules(gpu),
        ..Entry::not_built()
    },
];
