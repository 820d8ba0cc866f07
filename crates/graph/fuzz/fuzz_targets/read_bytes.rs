//! Bytes read as MessagePack, as JSON and as text of everything that is stored or sent.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qkvault_graph::arbitrary::read_bytes(data));
