//! Reads bytes as MessagePack, JSON and text of every stored or sent type.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qkvault_graph::arbitrary::read_bytes(data));
