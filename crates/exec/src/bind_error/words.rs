//! Words in errors of binding: what is needed, where memory is, and how to fix it.

use qkvault_graph::{DType, Role};

use crate::driver::MemoryKind;

/// The advice for a buffer that is too small.
pub(super) fn larger(role: Role, needed: u64, given: u64) -> &'static str {
    match role {
        Role::ScoreTensor(_) | Role::DropoutMask if needed.saturating_sub(given) < 4 => {
            "kernels read its 16-bit elements two at a time: give its buffer an even number of elements"
        }
        Role::Descale(_) if needed > 4 => {
            "block scales are one e8m0 for 32 elements, in tiles of 128 × 4 (F8_128x4), padded to whole tiles"
        }
        _ => "bind the whole tensor",
    }
}

/// What there is instead of a name that there is not.
pub(super) fn others(described: bool, nearest: Option<&str>, names: &[String]) -> String {
    match (described, nearest) {
        (false, _) => {
            ": the plan was loaded without its description, so give roles; plans of Session::prepare have names"
                .to_owned()
        }
        (_, Some(nearest)) => format!(": did you mean '{nearest}'?"),
        (_, None) if names.is_empty() => ": the description has none".to_owned(),
        (_, None) => format!(": there are {}", names.join(", ")),
    }
}

pub(super) fn needs(scalar: bool, dtype: DType, bytes: u64) -> String {
    if scalar {
        format!("one {dtype} on the host, given with `scalar`")
    } else {
        format!("{bytes} bytes of {dtype} on the GPU")
    }
}

pub(super) fn list(roles: &[Role]) -> String {
    roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn kind(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::PinnedHost => "page-locked host memory",
        MemoryKind::Unregistered => "host memory or memory that CUDA does not know",
        MemoryKind::Device(_) => "memory of a GPU",
        MemoryKind::Managed => "managed memory",
        MemoryKind::Unknown => "memory of an unknown kind",
    }
}

pub(super) fn range((from, to): (u64, u64)) -> String {
    format!("{from:#x}..{to:#x}")
}
