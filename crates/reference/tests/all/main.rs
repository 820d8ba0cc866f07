//! The tests of the oracle, in one program: each alone would be built with all of the oracle, optimised.

mod any_graph;
mod append;
mod common;
mod conversion;
mod documents;
mod eight_bits;
mod gradients;
mod invariants;
mod layouts;
mod lowering;
mod memory;
mod microscaled;
mod naive;
mod operations;
mod origins;
mod positions;
mod remainder;
mod serving;
mod varlen;
