//! Reading outside data is total: arbitrary bytes, broken encodings and broken op graphs are refused without a panic.

use proptest::prelude::*;
use qkvault_cudnn::{CompileOptions, OpGraph, Profile, lower, op};
use qkvault_graph::arbitrary::{self, Space};
use qkvault_graph::{Attention, CudnnVersion, LibrarySet, Refusal, codec, validate};

/// Bytes with some of them changed, cut or doubled.
fn damage(mut bytes: Vec<u8>, at: usize, what: u8, with: u8) -> Vec<u8> {
    let at = at % (bytes.len() + 1);
    match what % 4 {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, with),
        2 => bytes.extend_from_within(at..),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = byte.wrapping_add(with | 1);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        qkvault_cudnn::arbitrary::read_bytes(&bytes);
    }

    #[test]
    fn damaged_attentions_are_read_or_refused(
        a in arbitrary::attention(Space::SMALL), at in any::<usize>(), what in any::<u8>(), with in any::<u8>(),
    ) {
        qkvault_cudnn::arbitrary::read_bytes(&damage(codec::encode(&a), at, what, with));
        qkvault_cudnn::arbitrary::read_bytes(&damage(serde_json::to_vec(&a).expect("writes"), at, what, with));
    }

    #[test]
    fn damaged_refusals_are_read_or_refused(
        (a, _) in arbitrary::invalid(Space::SMALL), at in any::<usize>(), what in any::<u8>(), with in any::<u8>(),
    ) {
        let refusal = validate(a).expect_err("it has a fault");
        let read: Refusal = codec::decode(&codec::encode(&refusal)).expect("reads");
        prop_assert_eq!(&read, &refusal);
        qkvault_cudnn::arbitrary::read_bytes(&damage(codec::encode(&refusal), at, what, with));
        qkvault_cudnn::arbitrary::read_bytes(&damage(serde_json::to_vec(&refusal).expect("writes"), at, what, with));
    }

    #[test]
    fn random_op_graphs_are_checked_printed_and_hashed(
        graph in qkvault_cudnn::arbitrary::op_graph(), at in any::<usize>(), what in any::<u8>(), with in any::<u8>(),
    ) {
        let _ = (op::check(&graph), graph.roles(), graph.to_string());
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
        let _ = qkvault_cudnn::plan_key(&graph, &target, &CompileOptions::default());
        let bytes = codec::encode(&graph);
        prop_assert_eq!(codec::decode::<OpGraph>(&bytes).expect("reads"), graph);
        qkvault_cudnn::arbitrary::read_bytes(&damage(bytes, at, what, with));
    }
}

#[test]
fn damaged_profiles_and_op_graphs_of_real_attentions_are_read_or_refused() {
    let profile = Profile::named("h200").expect("built in");
    let target = profile.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
    let a = Attention::bshd(1, (4, 2), (8, 8), 16, qkvault_graph::DType::F16).with_stats();
    let graph = lower(&validate(a).expect("sound"), &target, &CompileOptions::default()).expect("dense forwards lower");
    let encodings = [
        serde_json::to_vec(&profile).expect("writes"),
        codec::encode(&profile),
        serde_json::to_vec(&graph).expect("writes"),
        codec::encode(&graph),
    ];
    for bytes in encodings {
        for at in (0..bytes.len()).step_by(3) {
            for what in 0..4 {
                qkvault_cudnn::arbitrary::read_bytes(&damage(bytes.clone(), at, what, b'9'));
            }
        }
    }
}
