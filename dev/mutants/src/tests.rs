//! Compiles and runs a small program with its mutants. Its output changes for every mutant that is on, and only then.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::constants::{self, Constants};
use super::mutant::{Mutant, Mutants};
use super::{rewrite, scratch};

/// A program with every kind of mutant. Its output shows each one.
const SAMPLE: &str = r#"
mod mutant_switch;

const HALF: i64 = 2;
const LIMIT: i64 = HALF + HALF;

#[derive(Clone, Copy, PartialEq)]
enum Corner { TopLeft, BottomRight }

fn within(n: i64) -> bool { n < LIMIT }

fn corner(bottom: bool) -> Corner {
    if bottom { Corner::BottomRight } else { Corner::TopLeft }
}

fn collected(list: &[i64], more: Option<i64>) -> Vec<i64> {
    let mut found = Vec::new();
    for n in list {
        if *n != 2 && !n.is_negative() || *n == -5 {
            found.push(n * 3 + 1);
        }
    }
    if let Some(n) = more {
        found.push(n.max(7));
    }
    match more {
        Some(9) => found.push(-9),
        Some(n) if n > 20 => found.push(20),
        _ => found.push(0),
    }
    found
}

const SIZE: usize = size();

const fn size() -> usize { 2 }

const fn half(n: i64) -> i64 { n / 2 }

fn fixed() -> [i64; SIZE] { [half(5); SIZE] }

fn main() {
    let corners = [true, false].map(|b| corner(b) == Corner::TopLeft);
    let within = [3, 4, 5].map(within);
    let collected = [Some(9), Some(21), Some(20), Some(3), None].map(|more| collected(&[-5, -2, 1, 2, 3], more));
    print!("{corners:?} {within:?} {collected:?} {:?}", fixed());
}

#[cfg(test)]
mod tests {
    fn no_mutant_is_here(a: i64) -> bool { a < 1 }
}
"#;

fn rewritten(left_out: BTreeSet<String>) -> (String, Vec<Mutant>) {
    let (mut constants, mut mutants) = (Constants::default(), Mutants::without(left_out));
    constants.find("sample.rs", "crate", SAMPLE).expect("parses");
    constants.fixed.read(SAMPLE, true);
    constants.fixed.settle();
    let text = rewrite::rewrite("sample.rs", SAMPLE, &constants, &mut mutants, &mut Vec::new()).expect("parses");
    (text, mutants.list)
}

fn printed(program: &Path, id: u32) -> Option<String> {
    let output = Command::new(program).env("QKVAULT_MUTANT", id.to_string()).output().expect("runs");
    output.status.success().then(|| String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn every_mutant_changes_the_output_only_while_it_is_on() {
    let (text, mutants) = rewritten(BTreeSet::new());
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("sample.rs"), folder.path().join("sample"));
    std::fs::write(&source, &text).expect("written");
    let switch = scratch::switch(mutants.len(), "");
    std::fs::write(folder.path().join("mutant_switch.rs"), switch).expect("written");
    let compiled =
        Command::new("rustc").args(["--edition", "2024", "-Awarnings", "-o"]).arg(&program).arg(&source).status();
    assert!(compiled.expect("rustc starts").success(), "{text}");

    let usual = printed(&program, 0).expect("ends well");
    let expected = "[false, true] [true, false, false] [[-14, 4, 10, 9, -9], [-14, 4, 10, 21, 20], [-14, 4, 10, 20, 0], \
                    [-14, 4, 10, 7, 0], [-14, 4, 10, 0]] [2, 2]";
    assert_eq!(usual, expected);
    let without_effect: Vec<String> = mutants
        .iter()
        .filter(|m| m.within != "main" && printed(&program, m.id).as_ref() == Some(&usual))
        .map(|m| format!("{}: {} to {}", m.within, m.from, m.to))
        .collect();
    assert_eq!(without_effect, Vec::<String>::new());
    let has = |within: &str, from: &str, to: &str| {
        mutants.iter().any(|m| (m.within.as_str(), m.from.as_str(), m.to.as_str()) == (within, from, to))
    };
    for (within, from, to) in [
        ("within", "n < LIMIT", "n <= LIMIT"),
        ("within", "n < LIMIT", "!(n < LIMIT)"),
        ("within", "the function", "return true;"),
        ("HALF", "2", "2 + 1"),
        ("corner", "mRight } else { Corner::TopLeft }", "mRight } else { Corner::BottomRight }"),
        ("collected", "*n != 2", "true"),
        ("collected", "n * 3 + 1", "n * 3 - 1"),
        ("collected", "n.max(7)", "n.min(7)"),
        ("collected", "Some(9)", "no such arm"),
        ("collected", "n > 20", "false"),
        ("collected", "let Some(n) = more", "false"),
        ("collected", "found.push(n * 3 + 1);", "nothing"),
        ("collected", "the function", "return Vec::new();"),
        ("half", "n / 2", "n * 2"),
    ] {
        assert!(has(within, from, to), "{within}: {from} to {to}");
    }
    assert!(mutants.iter().all(|m| m.within != "size" && !m.within.contains("tests")));
}

#[test]
fn leaving_out_a_mutant_changes_no_other_and_keys_do_not_depend_on_lines() {
    let (_, all) = rewritten(BTreeSet::new());
    let keys: BTreeSet<&String> = all.iter().map(|m| &m.key).collect();
    assert_eq!(keys.len(), all.len());
    let (text, rest) = rewritten([all[3].key.clone()].into());
    assert_eq!(rest.len() + 1, all.len());
    assert!(rest.iter().all(|m| keys.contains(&m.key) && m.key != all[3].key));
    assert_eq!(rest.iter().map(|m| m.id).collect::<Vec<_>>(), (1..=rest.len() as u32).collect::<Vec<_>>());
    assert!(!text.contains(&format!("on({})", all.len())));
}

/// The function that returns the mutants of entries did not compile where an entry names a constant of another module.
#[test]
fn an_entry_that_names_a_constant_of_another_module_has_mutants_that_compile() {
    const ENTRIES: &str = r#"
use super::GPU;
use crate::CudnnVersion;
use crate::lower::{FIRST_NAMED, lacks_engine};
use crate::registry::entry::entries;
use crate::registry::{Applies, Entry, Gpus, Versions};

const NINE: CudnnVersion = CudnnVersion { major: 9 };
const TEN: CudnnVersion = CudnnVersion { major: 10 };

entries![
    A = Entry {
        code: "a.b",
        affected: &[Versions::older_than(FIRST_NAMED).on(Gpus { from: 100, to: 103 })],
        applies: Applies::Lowering(|f| lacks_engine(f)),
        ..Entry::rule()
    },
    B = Entry { code: "a.c", affected: &[Versions::older_than(TEN).from(NINE).on(Gpus::ALL)], ..Entry::rule() },
];
"#;
    let (mut mutants, mut rows) = (Mutants::without(BTreeSet::new()), Vec::new());
    let mut known = Constants::default();
    known.find("entries.rs", "crate", ENTRIES).expect("parses");
    rewrite::rewrite("entries.rs", ENTRIES, &known, &mut mutants, &mut rows).expect("parses");
    let text = constants::affected(&rows);
    assert_eq!(text.matches("{ use crate::lower::FIRST_NAMED; const MUTANT").count(), 2, "{text}");
    assert!(!text.contains("lacks_engine") && text.contains("to: (103 + 1)"), "{text}");
    // A constant of the file: its mutants are those of the entry.
    let of_ten = "Versions::older_than((CudnnVersion { major: (10 + 1) })).from((CudnnVersion { major: 9 }))";
    assert!(text.contains(of_ten) && text.contains("use crate::CudnnVersion; const MUTANT"), "{text}");
}

/// Functions that only the body or the arguments of a macro call in a constant lost their `const`.
#[test]
fn functions_that_a_macro_calls_in_a_constant_stay_const() {
    const SOURCE: &str = r#"
macro_rules! entries {
    [$($name:ident = $entry:expr),+] => { $(pub static $name: Code = { Code::known($entry) };)+ };
}
entries![A = Entry { affected: Versions::from(1), ..Entry::rule() }];
const fn known(n: i64) -> i64 { n }
const fn rule() -> i64 { inner() }
const fn inner() -> i64 { 1 }
const fn from(n: i64) -> i64 { n }
const fn as_str() -> i64 { 1 }
"#;
    let mut fixed = super::fixed::ConstFunctions::default();
    fixed.read(SOURCE, true);
    fixed.settle();
    let found = ["known", "rule", "inner", "from", "as_str"]
        .map(|name| fixed.calls(&proc_macro2::Ident::new(name, proc_macro2::Span::call_site())));
    assert_eq!(found, [true, true, true, true, false]);
}
