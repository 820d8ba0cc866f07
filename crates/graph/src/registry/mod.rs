//! The registry: every reason for a refusal and all known facts about it.
//!
//! An [`Entry`] holds a code and its origin, the affected versions and GPUs, the cause, what is needed instead, the
//! fix, and the source and evidence of these facts. Every reason is made from an entry ([`Code::reason`]). Here are
//! those of descriptions; each engine, and everything else that refuses, has its own beside its code, and the macro
//! [`entries!`](crate::entries) declares them. `docs/reasons.md` is written from all of them.
//!
//! To add a reason of validation, write its entry with `Entry::description()`, report it in `valid`, and add a fault
//! that causes it to `arbitrary/fault.rs`. The crate's README lists the files, tests and pages of such a change.

mod affected;
mod code;
pub mod codes;
mod entry;
mod standing;

pub use affected::{Affected, Gpus, Versions};
pub use code::Code;
pub use entry::{Applies, Entry};
pub use standing::{Sight, Standing};

/// The entries by theme.
const THEMES: [&[&Entry]; 7] = [
    codes::tensors::ENTRIES,
    codes::features::ENTRIES,
    codes::documents::ENTRIES,
    codes::offsets::ENTRIES,
    codes::combination::ENTRIES,
    codes::append::ENTRIES,
    codes::conversion::ENTRIES,
];

/// Every entry of descriptions.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    THEMES.iter().copied().flatten().copied()
}
