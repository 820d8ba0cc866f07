//! What the programs and the tests share: plain attention of burn's tensors, and random cases.

pub mod case;
pub mod dice;
pub mod plain;
pub mod tensors;
