//! Properties of every attention, tested on random ones: validation, canonical form, offsets.

mod fingerprints;
mod mutation;
mod offsets;
mod process;
mod soundness;
mod validation;
