//! The table of cases that every door runs, `adapters/cases.json`: its keys and numbers are those of the Rust packages.
//!
//! `UPDATE_GOLDENS=1 cargo test -p qkvault-c --test cases` writes both anew. The other doors read the table:
//! `adapters/python/tests/test_package.py` through the C interface, `test_torch.py` and `test_jax.py` through calls of
//! their frameworks with the arguments `call`.

mod kit;

use qkvault::exec::Training;
use qkvault::graph::{BackwardOptions, Valid, text, validate};
use qkvault::reference::{ExactOutputs, Inputs, backward, forward};
use serde_json::{Map, Value, json};

/// The table, relative to the package.
const TABLE: &str = "../cases.json";

/// The seed of every case.
const SEED: u64 = 7;

/// A description with the sum of magnitudes of each output on random inputs.
fn answer(attention: &Valid) -> (String, Value) {
    let inputs = Inputs::random(attention, SEED).expect("random inputs");
    let computed: ExactOutputs =
        if attention.is_backward() { backward(attention, &inputs) } else { forward(attention, &inputs) }
            .expect("numbers");
    let sums: Map<String, Value> = computed
        .iter()
        .map(|output| {
            let [b, h, s, d] = output.operand().tensor.dims;
            let mut sum = 0.0;
            for at in 0..b * h * s * d {
                let [i, j, k, l] = [at / (h * s * d), at / (s * d) % h, at / d % s, at % d].map(|n| n as usize);
                sum += output.at(i, j, k, l).abs();
            }
            (output.role().name().to_string(), json!(sum))
        })
        .collect();
    (attention.key().to_string(), Value::Object(sums))
}

/// A case as the table should have it.
fn filled(case: &Map<String, Value>) -> Map<String, Value> {
    let described = text::parse(case["text"].as_str().expect("text")).expect("it reads");
    let attention = validate(described.clone()).expect("it is valid");
    let training = Training::for_attention(&described, BackwardOptions::default()).expect("it has a backward");
    let mut case = case.clone();
    for (pass, attention) in
        [("forward", &attention), ("training", training.forward()), ("backward", training.backward())]
    {
        let (key, sums) = answer(attention);
        case.insert(pass.to_owned(), json!({ "key": key, "sums": sums }));
    }
    case
}

fn close(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            (a - b).abs() <= 1e-10 * a.abs()
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| close(value, other)))
        }
        (a, b) => a == b,
    }
}

#[test]
fn every_case_has_the_keys_and_numbers_of_the_rust_packages() {
    let path = kit::package().join(TABLE);
    let table: Vec<Map<String, Value>> =
        serde_json::from_str(&std::fs::read_to_string(&path).expect("it is there")).expect("a table");
    assert!(table.len() > 9);
    let wanted: Vec<Map<String, Value>> = table.iter().map(filled).collect();
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        let lines: Vec<String> = wanted.iter().map(|case| format!("  {}", json!(case))).collect();
        std::fs::write(&path, format!("[\n{}\n]\n", lines.join(",\n"))).expect("it is written");
        return;
    }
    for (case, wanted) in table.iter().zip(&wanted) {
        let same = close(&json!(case), &json!(wanted));
        assert!(same, "{}: the table has {}, and it should have {}", case["name"], json!(case), json!(wanted));
    }
}
