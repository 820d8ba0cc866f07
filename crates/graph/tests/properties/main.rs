//! Properties of every attention, tested on random ones: validation, canonical form, keys, lowering, reading.

mod bounds;
mod declared;
mod fingerprints;
mod forms;
mod keys;
mod layouts;
mod lowering;
mod mutation;
mod named;
mod offsets;
mod origins;
mod process;
mod quirks;
mod reading;
mod soundness;
mod stored;
mod type_level;
mod validation;
mod variants;
mod written;
