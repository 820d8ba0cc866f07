//! Changes of a stored entry, one leaf at a time: of its facts, of the description behind the plan, of its labels and
//! of its code. The leaves are found in the serialised form, so a new field of any struct in it is changed too.

use qkvault_cache::{Entry, EntryKind};
use qkvault_compile::PlanFacts;
use qkvault_cudnn::DeviceProps;
use qkvault_cudnn::op::{Constant, Fixed};
use qkvault_graph::codec;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// What is done with an entry with one change; the text says where it is, as `facts.kernels.recipe.steps[0].grid[1]`.
pub type Check<'a> = dyn FnMut(&str, Entry) + 'a;

/// Words that stand in closed lists, to change one into another.
const WORDS: [&str; 20] = [
    "full",
    "slim",
    "f16",
    "bf16",
    "f32",
    "i32",
    "q",
    "k",
    "v",
    "o",
    "first",
    "least-workspace",
    "a",
    "fallback",
    "x86-64",
    "aarch64",
    "x86_64",
    "X86_64",
    "Aarch64",
    "13.2",
];

/// Elements for lists that are empty, and values for what is absent: those of the document, and some of each type.
fn samples(whole: &Value) -> Vec<Value> {
    let fixed = Fixed { uid: 7, value: Constant::F32(7) };
    let passed = json!({"engine": "engine 9", "code": "library.plan", "words": "x"});
    let some = [json!(0), json!("x"), json!(fixed), passed, json!({"major": 13, "minor": 2})];
    let mut list: Vec<Value> = some.into_iter().chain(WORDS.map(|word| json!(word))).collect();
    fn collect(value: &Value, list: &mut Vec<Value>) {
        match value {
            Value::Array(values) => {
                list.extend(values.first().cloned());
                values.iter().for_each(|value| collect(value, list));
            }
            Value::Object(values) => values.iter().for_each(|(name, value)| {
                list.extend((name == "role").then(|| value.clone()));
                collect(value, list);
            }),
            _ => {}
        }
    }
    collect(whole, &mut list);
    list.dedup();
    list
}

/// Other values for a leaf, of which one may be of its type.
fn others(leaf: &Value, samples: &[Value]) -> Vec<Value> {
    let mut list = match leaf {
        Value::Null => [json!(1), json!([1, 1, 1]), json!([])].into_iter().chain(samples.iter().cloned()).collect(),
        Value::Bool(truth) => vec![json!(!truth)],
        Value::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => vec![json!(n + 1), json!(n.saturating_sub(1)), json!(0)],
            (_, Some(n)) => vec![json!(n + 1), json!(n - 1), json!(0)],
            _ => vec![json!(n.as_f64().unwrap_or(0.0) + 1.0)],
        },
        Value::String(text) => {
            let mut flipped = text.clone();
            let last = flipped.pop();
            flipped.push(if last == Some('0') { '1' } else { '0' });
            let words = WORDS.into_iter().map(|word| json!(word));
            [json!(format!("{text}x")), json!(flipped)].into_iter().chain(words).collect()
        }
        // Lists and maps are changed as a whole where they are empty.
        Value::Array(_) => samples.iter().map(|sample| json!([sample])).collect(),
        Value::Object(_) => vec![json!({"x": "x"}), json!({"CUDNN_X": "1"})],
    };
    list.retain(|other| other != leaf);
    list
}

/// A way to a leaf.
#[derive(Clone, Debug)]
enum Part {
    At(usize),
    Name(String),
}

fn leaves(value: &Value, path: &mut Vec<Part>, list: &mut Vec<Vec<Part>>) {
    let mut inside = |part: Part, value: &Value, list: &mut Vec<Vec<Part>>| {
        path.push(part);
        leaves(value, path, list);
        path.pop();
    };
    match value {
        Value::Array(values) if !values.is_empty() => {
            values.iter().enumerate().for_each(|(n, value)| inside(Part::At(n), value, list));
        }
        Value::Object(values) => {
            values.iter().for_each(|(name, value)| inside(Part::Name(name.clone()), value, list));
        }
        _ => list.push(path.clone()),
    }
}

fn at<'a>(value: &'a mut Value, path: &[Part]) -> &'a mut Value {
    path.iter().fold(value, |value, part| match part {
        Part::At(n) => &mut value[*n],
        Part::Name(name) => &mut value[name.as_str()],
    })
}

fn name(root: &str, path: &[Part]) -> String {
    path.iter().fold(root.to_owned(), |name, part| match part {
        Part::At(n) => format!("{name}[{n}]"),
        Part::Name(part) => format!("{name}.{part}"),
    })
}

/// The values that differ from one in a leaf, or in the length or order of a list.
fn changes(root: &str, value: &Value) -> Vec<(String, Vec<Value>)> {
    let (mut paths, samples) = (Vec::new(), samples(value));
    leaves(value, &mut Vec::new(), &mut paths);
    let of_leaf = |path: &Vec<Part>| {
        let mut whole = value.clone();
        let leaf = at(&mut whole, path).clone();
        let one = |other| {
            *at(&mut whole, path) = other;
            whole.clone()
        };
        (name(root, path), others(&leaf, &samples).into_iter().map(one).collect())
    };
    let mut all: Vec<(String, Vec<Value>)> = paths.iter().map(of_leaf).collect();
    lists(root, value, &mut Vec::new(), value, &mut all);
    all
}

/// The values in which a list has lost its last element, or its first two have changed places.
fn lists(root: &str, whole: &Value, path: &mut Vec<Part>, value: &Value, all: &mut Vec<(String, Vec<Value>)>) {
    if let Value::Array(values) = value {
        let place = name(root, path);
        let mut with = |what: &str, values: Vec<Value>| {
            let mut changed = whole.clone();
            *at(&mut changed, path) = Value::Array(values);
            all.push((format!("{place} {what}"), vec![changed]));
        };
        if let Some((_, shorter)) = values.split_last() {
            with("without its last", shorter.to_vec());
            with("with its last twice", values.iter().chain(values.last()).cloned().collect());
        }
        if values.len() > 1 && values[0] != values[1] {
            let mut swapped = values.clone();
            swapped.swap(0, 1);
            with("with the first two swapped", swapped);
        }
    }
    let parts: Vec<(Part, &Value)> = match value {
        Value::Array(values) => values.iter().enumerate().map(|(n, value)| (Part::At(n), value)).collect(),
        Value::Object(values) => values.iter().map(|(name, value)| (Part::Name(name.clone()), value)).collect(),
        _ => Vec::new(),
    };
    for (part, value) in parts {
        path.push(part);
        lists(root, whole, path, value, all);
        path.pop();
    }
}

/// Hands on entries with one fact changed, for every leaf of the facts that can be changed within its type. Returns the
/// places of those that cannot.
///
/// # Panics
///
/// The entry is no plan.
pub fn facts(entry: &Entry, check: &mut Check<'_>) -> Vec<String> {
    let facts: PlanFacts = codec::decode(&entry.meta).expect("facts");
    let value = serde_json::to_value(&facts).expect("plain data");
    let mut closed = Vec::new();
    for (place, values) in changes("facts", &value) {
        let read = values.into_iter().find_map(|value| serde_json::from_value::<PlanFacts>(value).ok());
        match read.filter(|read| *read != facts) {
            Some(read) => check(&place, Entry { meta: codec::encode(&read), ..entry.clone() }),
            // An array has one length, and no other.
            None if place.contains(" with") => {}
            None => closed.push(place),
        }
    }
    closed
}

/// A value whose floats have 32 bits, as all in descriptions have, and a GPU's properties their order.
struct Exact<'a>(&'a Value);

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Number(n) if n.is_f64() => to.serialize_f32(n.as_f64().unwrap_or(f64::NAN) as f32),
            Value::Array(values) => to.collect_seq(values.iter().map(Exact)),
            Value::Object(values) if values.contains_key("maxGridSize") => {
                match serde_json::from_value::<DeviceProps>(self.0.clone()) {
                    Ok(properties) => properties.serialize(to),
                    Err(_) => values.serialize(to),
                }
            }
            Value::Object(values) => to.collect_map(values.iter().map(|(name, value)| (name, Exact(value)))),
            other => other.serialize(to),
        }
    }
}

/// Hands on entries with one leaf of what follows the plan's bytes changed. Structs are lists here, so names are
/// numbers.
///
/// # Panics
///
/// The bytes are no description.
pub fn description(entry: &Entry, blob: usize, check: &mut Check<'_>) {
    let value: Value = rmp_serde::from_slice(&entry.payload[blob..]).expect("a description");
    let written = |value: &Value| rmp_serde::to_vec(&Exact(value)).expect("plain data");
    assert!(written(&value) == entry.payload[blob..], "a change is the only difference");
    for (place, values) in changes("description", &value) {
        for value in values {
            let tail = written(&value);
            let payload = [&entry.payload[..blob], &tail].concat();
            check(&place, Entry { payload, ..entry.clone() });
        }
    }
}

/// Hands on entries with another header, and with other bytes in code and description.
pub fn rest(entry: &Entry, blob: usize, check: &mut Check<'_>) {
    let Entry { kind: _, target, what, library, meta: _, payload } = entry.clone();
    let mut of = |place: &str, entry| check(place, entry);
    of("target", Entry { target: format!("{target}x"), ..entry.clone() });
    of("what", Entry { what: format!("{what}x"), ..entry.clone() });
    of("library", Entry { library: format!("{library}x"), ..entry.clone() });
    of("kind refusal", Entry { kind: EntryKind::Refusal, ..entry.clone() });
    of("payload cut", Entry { payload: payload[..payload.len() - 1].to_vec(), ..entry.clone() });
    of("payload without description", Entry { payload: payload[..blob].to_vec(), ..entry.clone() });
    // As entries of FlashAttention-4 once were: a request that holds a program, which a check ran.
    let program = ("open('ran', 'w')\ndef score_mod(w, p): return p.score", ["--create-pch=ran"]);
    let program = [&payload[..blob], &rmp_serde::to_vec(&program).expect("plain data")].concat();
    of("a program in the place of the description", Entry { payload: program, ..entry.clone() });
    of("payload longer", Entry { payload: [&payload[..], &[0xc0]].concat(), ..entry.clone() });
    of("metadata longer", Entry { meta: [&entry.meta[..], &[0xc0]].concat(), ..entry.clone() });
    // The first bytes, and bytes of code in the middle.
    for place in [0, 4, blob / 3, blob / 2] {
        let mut payload = payload.clone();
        payload[place] ^= 1;
        of(&format!("code at {place}"), Entry { payload, ..entry.clone() });
    }
    let mut random = payload.clone();
    let mut state = 7_u64;
    for byte in &mut random[4..blob] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 33) as u8;
    }
    of("random bytes behind the magic", Entry { payload: random, ..entry.clone() });
}
