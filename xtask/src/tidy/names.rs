//! Checks names: few types share one, and no function is called `of`, which says nothing about what it makes.

use std::collections::BTreeMap;

/// Most names that more than one type has.
const MOST_SHARED: usize = 60;

/// Type names with the files that define them, once for each definition.
#[derive(Default)]
pub(super) struct TypeNames(BTreeMap<String, Vec<String>>);

impl TypeNames {
    /// Reads a Rust file of the crates, the chores, the C door or `dev`. Types of tests and examples are not counted.
    pub(super) fn look(&mut self, name: &str, text: &str, found: &mut Vec<String>) {
        if !["crates/", "xtask/", "adapters/c/", "dev/"].iter().any(|folder| name.starts_with(folder)) {
            return;
        }
        for (at, line) in text.lines().enumerate() {
            if line.contains(concat!("fn ", "of(")) || line.contains(concat!("fn ", "of<")) {
                found.push(format!("{name}:{}: a function is called 'of'; say what it makes or finds", at + 1));
            }
        }
        for defined in types(text).into_iter().filter(|_| name.contains("/src/")) {
            self.0.entry(defined.to_owned()).or_default().push(name.to_owned());
        }
    }

    /// Adds a fault if too many names are shared.
    pub(super) fn check(&self, found: &mut Vec<String>) {
        let shared: Vec<_> = self.0.iter().filter(|(_, files)| files.len() > 1).collect();
        if shared.len() > MOST_SHARED {
            let list: Vec<String> =
                shared.iter().map(|(name, files)| format!("{name}: {}", files.join(", "))).collect();
            let count = shared.len();
            found
                .push(format!("{count} names have several types, {MOST_SHARED} at most:\n    {}", list.join("\n    ")));
        }
    }
}

/// The types that a file defines. Associated types have the names of their traits and are not among them.
fn types(text: &str) -> Vec<&str> {
    let (mut names, mut block) = (Vec::new(), None);
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code == "}" && block == Some(indent) {
            block = None;
        }
        let code = code.strip_prefix("pub").map_or(code, |rest| match rest.split_once(") ") {
            Some((scope, rest)) if scope.starts_with('(') => rest,
            _ => rest.trim_start(),
        });
        let Some((keyword, rest)) = code.strip_prefix("unsafe ").unwrap_or(code).split_once([' ', '<']) else {
            continue;
        };
        let is_associated = keyword == "type" && block.is_some_and(|block| indent == block + 4);
        if matches!(keyword, "struct" | "enum" | "union" | "trait" | "type") && !is_associated {
            names.extend(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty()));
        }
        if matches!(keyword, "impl" | "trait") && !line.ends_with('}') {
            block = Some(indent);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_counted_but_not_associated_ones() {
        let text = "pub struct One(u8);\npub(crate) enum Two { A }\n#[derive(Debug)]\nstruct Three<'a> {\n    a: &'a str,\n}\n\
                    impl<'a> Iterator for Three<'a> {\n    type Item = u8;\n    fn next(&mut self) {\n        type Four = u8;\n    }\n}\n\
                    pub unsafe trait Five {\n    type Six;\n}\nimpl Seven for u8 {}\nmod tests {\n    type Eight = fn(u8);\n}\n\
                    let type_name = struct_of(x);\n// struct Nine\n";
        assert_eq!(types(text), ["One", "Two", "Three", "Four", "Five", "Eight"]);
    }

    #[test]
    fn a_function_called_of_and_too_many_shared_names_are_found() {
        let (mut names, mut found) = (TypeNames::default(), Vec::new());
        let defined: String = (0..=MOST_SHARED).map(|at| format!("struct T{at};\n")).collect();
        let of = concat!("fn ", "of(x: u8) {}\nfn ofs() {}\n");
        for file in ["crates/a/src/lib.rs", "dev/b/src/lib.rs", "dev/b/tests/c.rs", "tests/src/lib.rs"] {
            names.look(file, if file.contains("/src/") { &defined } else { of }, &mut found);
        }
        assert_eq!(found, ["dev/b/tests/c.rs:1: a function is called 'of'; say what it makes or finds"]);
        names.check(&mut found);
        assert!(
            found[1].starts_with(
                "61 names have several types, 60 at most:\n    T0: crates/a/src/lib.rs, dev/b/src/lib.rs\n"
            )
        );
        let mut fewer = TypeNames::default();
        fewer.0.extend(names.0.into_iter().skip(1));
        fewer.check(&mut found);
        assert_eq!(found.len(), 2);
    }
}
