//! Serde forms: round trips through JSON and MessagePack, and refusal of everything else.

mod expr_support;

use expr_support::any_expr;
use proptest::prelude::*;
use qkvault_graph::DType;
use qkvault_graph::expr::*;
use serde_json::{Value as Json, json};

fn softcap_with_bias() -> ScoreExpr {
    let bias = tensor("bias", TensorSpec::new(DType::BF16, [1, 8, 1, 64]).with_grad());
    let cap = scalar("cap");
    ((score() / &cap).tanh() * cap + bias).build().expect("well typed")
}

#[test]
fn the_json_form_is_fixed() {
    let written = serde_json::to_value(softcap_with_bias()).expect("plain data");
    let expected = json!({
        "nodes": [
            "score",
            { "scalar": 0 },
            { "binary": ["div", 0, 1] },
            { "unary": ["tanh", 2] },
            { "binary": ["mul", 3, 1] },
            { "tensor": 0 },
            { "binary": ["add", 4, 5] },
        ],
        "scalars": [{ "name": "cap", "ty": "float" }],
        "tensors": [{ "name": "bias", "dims": [1, 8, 1, 64], "dtype": "bf16", "grad": "needed", "alibi": null }],
    });
    assert_eq!(written, expected);
}

#[test]
fn b5_slopes_are_written_with_the_tensor_and_read_back() {
    let slopes = AlibiSlopes::for_heads(32).from_head(16).with_bias_max(16.0).expect("finite");
    let expr = library::alibi_of(score(), 16, slopes).build_score_mod().expect("well typed");
    let mut written = serde_json::to_value(&expr).expect("plain data");
    let alibi = json!({ "model_heads": 32, "first_head": 16, "bias_max": 16.0_f32.to_bits() });
    assert_eq!(written["tensors"][0]["alibi"], alibi);
    assert_eq!(serde_json::from_value::<ScoreExpr>(written.clone()).expect("valid"), expr);
    assert_eq!(expr.to_string().parse::<ScoreExpr>().expect("valid"), expr);
    // Impossible slopes are refused: heads beyond the model's last, an exponent of 0.
    for (field, value) in [("first_head", json!(17)), ("bias_max", json!(0)), ("model_heads", json!(0))] {
        let before = std::mem::replace(&mut written["tensors"][0]["alibi"][field], value);
        let problem = serde_json::from_value::<ScoreExpr>(written.clone()).expect_err(field).to_string();
        assert!(problem.contains("ALiBi slopes need"), "{problem}");
        written["tensors"][0]["alibi"][field] = before;
    }
}

#[test]
fn other_forms_are_brought_into_canonical_form() {
    let read: ScoreExpr = serde_json::from_value(json!({
        "nodes": [{ "int": 7 }, { "tensor": 0 }, { "scalar": 1 }, "score", { "binary": ["div", 3, 2] }, { "unary": ["tanh", 4] }, { "scalar": 1 },
                  { "binary": ["mul", 6, 5] }, { "binary": ["add", 1, 7] }],
        "scalars": [{ "name": "unused", "ty": "int" }, { "name": "other", "ty": "float" }],
        "tensors": [{ "name": "b", "dims": [1, 8, 1, 64], "dtype": "bf16", "grad": "needed" }],
    }))
    .expect("valid");
    assert_eq!(read, softcap_with_bias());
    assert_eq!(read.scalar_names(), ["other"]);
}

#[test]
fn invalid_forms_are_refused_with_the_reason() {
    let refused = |nodes: Json, reason: &str| {
        let scalars = json!([{ "name": "s", "ty": "float" }]);
        let tensors = json!([{ "name": "t", "dims": [1, 1, 1, 1], "dtype": "f32", "grad": "none" }]);
        let form = json!({ "nodes": nodes, "scalars": scalars, "tensors": tensors });
        let problem = serde_json::from_value::<ScoreExpr>(form).expect_err(reason).to_string();
        assert!(problem.contains(reason), "{problem}");
    };
    refused(json!([]), "there are no nodes");
    refused(json!([{ "unary": ["exp", 0] }]), "node 0: it refers to itself or to a later node");
    refused(json!(["score", { "unary": ["exp", 2] }, "score"]), "node 1: it refers to itself or to a later node");
    refused(json!(["score", { "unary": ["exp", 4294967295_u32] }]), "refers to itself or to a later node");
    refused(json!([{ "scalar": 1 }]), "a scalar that is not in the table");
    refused(json!([{ "tensor": 9 }]), "a tensor that is not in the table");
    refused(json!(["upstream"]), "belongs to derivatives only");
    refused(json!(["score", { "not": 0 }]), "the only operand of '!' is float, but bool is needed");
    refused(
        json!(["score", { "int": 1 }, { "binary": ["add", 0, 1] }]),
        "right operand of 'add' is int, but float is needed",
    );
    refused(json!(["score", { "to_float": 0 }]), "is float, but int is needed");
    refused(json!([{ "int": 1 }, { "int": 0 }, { "binary": ["rem", 0, 1] }]), "'rem' by the constant 0");
    refused(json!([{ "float": 2143289344 }]), "NaN cannot be a constant");
    refused(json!([{ "float": 2139095040 }]), "inf cannot be a constant");
    refused(json!([{ "unary": ["explode", 0] }]), "unknown variant");
    refused(json!(vec!["score"; MAX_NODES + 1]), "4097 nodes, and at most 4096 are allowed");
    let with = |scalars: Json, tensors: Json, reason: &str| {
        let form = json!({ "nodes": ["score"], "scalars": scalars, "tensors": tensors });
        let problem = serde_json::from_value::<ScoreExpr>(form).expect_err(reason).to_string();
        assert!(problem.contains(reason), "{problem}");
    };
    with(json!([{ "name": "a b", "ty": "float" }]), json!([]), "the name 'a b' is refused");
    with(
        json!([{ "name": "a", "ty": "float" }, { "name": "a", "ty": "int" }]),
        json!([]),
        "'a' is a scalar (float) and also a scalar (int)",
    );
    with(
        json!([]),
        json!([{ "name": "t", "dims": [1, 0, 1, 1], "dtype": "f32", "grad": "none" }]),
        "extent 0 over head",
    );
    with(
        json!([]),
        json!([{ "name": "t", "dims": [1, 1, 1, 1], "dtype": "u8", "grad": "none" }]),
        "the tensor 't' is u8",
    );
    with(
        json!([]),
        json!([{ "name": "t", "dims": [1, 1, 1, 1], "dtype": "i32", "grad": "needed" }]),
        "only float tensors have one",
    );
    with(json!([{ "name": "a", "ty": "float", "value": 1 }]), json!([]), "unknown field `value`");
}

#[test]
fn minus_zero_is_zero_in_every_form() {
    assert_eq!(constant(-0.0).build(), constant(0.0).build());
    let read: ScoreExpr =
        serde_json::from_value(json!({ "nodes": [{ "float": 1_u32 << 31 }], "scalars": [], "tensors": [] }))
            .expect("valid");
    assert_eq!(read, constant(0.0).build().expect("well typed"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn expressions_survive_json_and_messagepack(expr in any_expr(5)) {
        let expr = expr.0.build().expect("well typed");
        let json: ScoreExpr = serde_json::from_str(&serde_json::to_string(&expr).expect("plain data")).expect("valid");
        let varlen: ScoreExpr = rmp_serde::from_slice(&rmp_serde::to_vec(&expr).expect("plain data")).expect("valid");
        let named: ScoreExpr = rmp_serde::from_slice(&rmp_serde::to_vec_named(&expr).expect("plain data")).expect("valid");
        for read in [json, varlen, named] {
            prop_assert_eq!(&read, &expr);
            prop_assert_eq!(read.scalar_names(), expr.scalar_names());
            prop_assert_eq!(read.tensor_names(), expr.tensor_names());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = rmp_serde::from_slice::<ScoreExpr>(&bytes);
        let _ = serde_json::from_slice::<ScoreExpr>(&bytes);
    }

    #[test]
    fn damaged_bytes_give_an_error_or_a_sound_expression(
        expr in any_expr(4), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>(),
    ) {
        let expr = expr.0.build().expect("well typed");
        for mut bytes in [rmp_serde::to_vec(&expr).expect("plain data"), serde_json::to_vec(&expr).expect("plain data")] {
            let json = bytes[0] == b'{';
            for (at, value) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                let read: Option<ScoreExpr> =
                    if json { serde_json::from_slice(bytes).ok() } else { rmp_serde::from_slice(bytes).ok() };
                let Some(read) = read else { continue };
                prop_assert_eq!(read.nodes().len() - 1, read.root().at());
                for (at, node) in read.nodes().iter().enumerate() {
                    prop_assert!(node.operands().all(|id| id.at() < at));
                }
                let _ = (read.to_string(), read.as_band(), simplified(&read), vjp(&read));
            }
        }
    }
}
