//! Golden vectors of canonical bytes, in hexadecimal: the input of keys. They change only together with `KEY_FORMAT`,
//! or with a new field of the description. Together they contain every field and every variant of canonical bytes.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use qkvault_graph::expr::{Axis, Binary, Compare, Logic, Node, ScalarTy, ScoreExpr, Side, Unary};
use qkvault_graph::{
    Attention, Band, DType, Dropout, Gradients, Mask, Outputs, Pass, Storage, Tensor, canonical_bytes, text, validate,
};

use super::{finish, folder, settle};

#[test]
fn canonical_bytes_equal_the_goldens() {
    let mut stale = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(folder().join("bytes")).expect("the goldens are checked in") {
        let path = entry.expect("an entry").path();
        let given = std::fs::read_to_string(&path).expect("a golden file");
        let input = given.split("\n---").next().unwrap_or_default();
        let attention = text::parse(input).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let valid = validate(attention).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut found = format!("{}\n\n--- canonical bytes", input.trim_end());
        for (i, byte) in canonical_bytes(&valid).iter().enumerate() {
            let separator = if i % 48 == 0 { "\n" } else { "" };
            write!(found, "{separator}{byte:02x}").expect("writing to a string does not fail");
        }
        writeln!(found, "\n\n--- graph key\n{}", valid.key()).expect("writing to a string does not fail");
        settle(&path, &given, &found, &mut stale);
        attention_has(valid.get(), &mut seen);
    }
    let missing: Vec<String> = everything().into_iter().filter(|part| !seen.contains(part)).collect();
    assert!(missing.is_empty(), "in no golden: {missing:?}");
    finish(&stale);
}

/// Fails at a field that [`attention_has`] does not know: other crates cannot destructure these structs completely.
fn no_field_is_left_out(a: &Attention) {
    let json = serde_json::to_value(a).expect("writes");
    let known = [
        ("", "block_mask dropout fp8 k mask o outputs padded_rows pass q qkvault score_mod sink v"),
        ("/mask", "band lengths mask_mod"),
        ("/outputs", "max stats sum_exp"),
        ("/dropout", "probability source"),
    ];
    for (place, names) in known {
        if let Some(map) = json.pointer(place).and_then(serde_json::Value::as_object) {
            let found: BTreeSet<&str> = map.keys().map(String::as_str).collect();
            assert_eq!(found, names.split(' ').collect(), "{place}");
        }
    }
}

/// Names of the fields and variants in an attention.
fn attention_has(a: &Attention, seen: &mut BTreeSet<String>) {
    no_field_is_left_out(a);
    let Attention { q, k, v, o, mask, score_mod, sink, dropout, block_mask, outputs, padded_rows, fp8, pass, .. } = a;
    let mut tensors = vec![q, k, v, o];
    let Mask { band, lengths, mask_mod, .. } = mask;
    seen.insert(format!("{lengths:?}"));
    if let Some(Band { corner, left, right }) = band {
        seen.insert(format!("{corner:?} left {} right {}", left.is_some(), right.is_some()));
    }
    for (name, e) in [("score_mod", score_mod), ("mask_mod", mask_mod)] {
        if let Some(e) = e {
            seen.insert(name.into());
            expression_has(e, seen);
        }
    }
    let Outputs { stats, max, sum_exp, .. } = *outputs;
    let flags = [("sink", *sink), ("block_mask", *block_mask), ("stats", stats), ("max", max), ("sum_exp", sum_exp)];
    seen.extend(flags.iter().map(|(name, on)| format!("{name} {on}")));
    if let Some(Dropout { source, .. }) = dropout {
        seen.insert(format!("dropout {source:?}"));
    }
    seen.insert(format!("padded rows {padded_rows:?}"));
    seen.insert(format!("fp8 {fp8:?}"));
    match pass {
        Pass::Forward => {
            seen.insert("forward".into());
        }
        Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic }) => {
            seen.insert(format!("d_sink {d_sink}"));
            seen.insert(format!("deterministic {deterministic}"));
            seen.insert(format!("d_o_half {}", d_o_half.is_some()));
            tensors.extend([d_o, d_q, d_k, d_v].into_iter().chain(d_o_half));
        }
    }
    for Tensor { dims: _, strides: _, dtype, storage } in tensors {
        seen.insert(format!("operand {dtype}"));
        seen.insert(match storage {
            Storage::Dense => "dense".into(),
            Storage::Varlen { tokens: _ } => "varlen".into(),
            Storage::Paged { pages: _, page_size: _ } => "paged".into(),
        });
    }
}

fn expression_has(e: &ScoreExpr, seen: &mut BTreeSet<String>) {
    for node in e.nodes() {
        seen.insert(match node {
            Node::Unary(op, _) => format!("unary {op}"),
            Node::Binary(op, ..) => format!("binary {op}"),
            Node::Compare(op, ..) => format!("compare {op}"),
            Node::Logic(op, ..) => format!("logic {op}"),
            Node::Index(axis) => format!("index {axis:?}"),
            Node::Length(side) => format!("length {side:?}"),
            other => format!("node {}", other.code()),
        });
    }
    seen.extend(e.scalars().iter().map(|scalar| format!("scalar {:?}", scalar.ty)));
    seen.extend(e.tensors().iter().map(|t| format!("tensor {} {:?}", t.dtype, t.grad)));
}

/// All that canonical bytes can contain.
fn everything() -> Vec<String> {
    let mut all: Vec<String> = [
        "Full",
        "PerSequence",
        "score_mod",
        "mask_mod",
        "dropout Philox",
        "dropout Mask",
        "padded rows Undefined",
        "padded rows Zero",
        "fp8 None",
        "fp8 Some(Delayed)",
        "fp8 Some(Current)",
        "fp8 Some(Block)",
        "forward",
        "dense",
        "varlen",
        "paged",
    ]
    .map(String::from)
    .into();
    for corner in ["TopLeft", "BottomRight"] {
        all.extend([(true, true), (true, false), (false, true)].map(|(l, r)| format!("{corner} left {l} right {r}")));
    }
    let flags = ["sink", "block_mask", "stats", "max", "sum_exp", "d_sink", "deterministic", "d_o_half"];
    all.extend(flags.iter().flat_map(|flag| [format!("{flag} false"), format!("{flag} true")]));
    all.extend([DType::F16, DType::BF16, DType::E4M3, DType::E5M2].map(|d| format!("operand {d}")));
    all.extend(Unary::ALL.iter().map(|op| format!("unary {op}")));
    all.extend(Binary::ALL.iter().map(|op| format!("binary {op}")));
    // The canonical form writes every comparison as "less".
    all.extend([Compare::Eq, Compare::Ne, Compare::Lt, Compare::Le].map(|op| format!("compare {op}")));
    all.extend(Logic::ALL.iter().map(|op| format!("logic {op}")));
    all.extend(Axis::ALL.map(|axis| format!("index {axis:?}")));
    all.extend(Side::ALL.map(|side| format!("length {side:?}")));
    all.extend([ScalarTy::Float, ScalarTy::Int].map(|ty| format!("scalar {ty:?}")));
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        all.extend(["None", "Needed"].map(|grad| format!("tensor {dtype} {grad}")));
    }
    all.push("tensor i32 None".into());
    // Score, float, int, bool, scalar, tensor, conversion, negation and selection; no description contains the upstream
    // gradient.
    all.extend([1, 5, 6, 7, 8, 9, 10, 14, 16].map(|code| format!("node {code}")));
    all
}
