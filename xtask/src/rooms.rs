//! Checks which modules of its crate a module may use, so that layers stay separate and no circle returns.

use std::collections::BTreeSet;
use std::path::Path;

/// A folder or a file of a crate, and the modules that it may use.
struct Room {
    /// The path from the root of the repository. A folder includes everything below it.
    path: &'static str,
    /// Modules, with everything in them, or items of the crate's root.
    may_use: &'static [&'static str],
}

const ROOMS: &[Room] = &[
    // The raw layer uses neither the look-up order of plans nor cudarc's slices.
    Room {
        path: "crates/exec/src/raw",
        may_use: &[
            "bind_error",
            "bindings",
            "check",
            "clear",
            "constants",
            "driver",
            "origins",
            "properties",
            "raw",
            "scratch",
        ],
    },
    Room { path: "crates/exec/src/find.rs", may_use: &["raw"] },
    Room { path: "crates/exec/src/serving", may_use: &["serving"] },
    Room { path: "crates/exec/src/training", may_use: &["bindings", "codes", "training"] },
    Room { path: "crates/exec/src/safe/list.rs", may_use: &[] },
    Room { path: "crates/exec/src/safe/element.rs", may_use: &[] },
    Room { path: "crates/exec/src/safe/arena_memory.rs", may_use: &["safe::order"] },
    Room {
        path: "crates/exec/src/safe/arena.rs",
        may_use: &["Launches", "driver", "safe::arena_memory", "safe::element", "safe::order"],
    },
    Room { path: "crates/exec/src/safe/operands.rs", may_use: &["safe::arena", "safe::arena_memory", "safe::element"] },
    Room { path: "crates/exec/src/safe/staging.rs", may_use: &[] },
    Room { path: "crates/exec/src/safe/order.rs", may_use: &["driver", "raw"] },
    Room { path: "crates/exec/src/safe/workspace.rs", may_use: &["driver", "raw", "safe::order"] },
    Room {
        path: "crates/exec/src/safe/tracked.rs",
        may_use: &["raw", "safe::arena_memory", "safe::operands", "safe::order", "safe::workspace"],
    },
    Room {
        path: "crates/exec/src/safe/args.rs",
        may_use: &["bindings", "safe::list", "safe::operands", "safe::tracked", "safe::workspace"],
    },
    Room { path: "crates/exec/src/safe/constants.rs", may_use: &["constants", "raw"] },
    Room { path: "crates/exec/src/safe/plan.rs", may_use: &["raw", "safe::constants", "safe::device"] },
    Room {
        path: "crates/exec/src/safe/bound.rs",
        may_use: &[
            "bind_error",
            "bindings",
            "driver",
            "raw",
            "safe::args",
            "safe::device",
            "safe::element",
            "safe::operands",
            "safe::order",
            "safe::plan",
            "safe::tracked",
            "safe::workspace",
        ],
    },
    // The file format and the choice of entries to evict are pure: they use no folder, no clock and no vault.
    Room { path: "crates/cache/src/format", may_use: &["Entry", "EntryKind", "Key", "Rejection", "format"] },
    Room { path: "crates/cache/src/evict.rs", may_use: &["DiskLimits", "Key"] },
    Room { path: "crates/cache/src/limits.rs", may_use: &[] },
    Room { path: "crates/cache/src/auto_gc.rs", may_use: &[] },
];

/// Adds a line for every module that a file uses and may not use.
pub(crate) fn check(name: &str, text: &str, found: &mut Vec<String>) {
    let is_in = |room: &&Room| Path::new(name).starts_with(room.path);
    for room in ROOMS.iter().filter(is_in).filter(|_| !name.ends_with("tests.rs")) {
        // The tests at the end of a file may use any module.
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
        // A path with `super` is another way to write the same name.
        let depth = if room.path.ends_with(".rs") { "super::" } else { "super::super::" };
        let text = text.replace(depth, "crate::");
        for used in uses(&text) {
            let within =
                |may: &str| used.strip_prefix(may).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
            if !room.may_use.iter().any(|may| within(may)) {
                found.push(format!(
                    "{name} uses crate::{used}, but {} may use only [{}]: move the shared code to a module that both may use",
                    room.path,
                    room.may_use.join(", ")
                ));
            }
        }
    }
}

/// Everything that code uses through `crate::`: the module of an item, or the item itself if it is in the crate's root.
fn uses(text: &str) -> BTreeSet<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut found = BTreeSet::new();
    for (at, head) in code.match_indices("crate::") {
        let continues = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if !continues {
            expand(&code[at + head.len()..], "", &mut found);
        }
    }
    found
}

/// Reads a path or a group of paths after `prefix`, and returns the rest of the text.
fn expand<'t>(text: &'t str, prefix: &str, found: &mut BTreeSet<String>) -> &'t str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            match rest.strip_prefix('}') {
                Some(rest) => return rest,
                None if rest.is_empty() => return rest,
                None => {}
            }
            let after = expand(rest, prefix, found);
            // Skips `as name` and other text up to the next path.
            rest = after.trim_start_matches(|c| !matches!(c, ',' | '}'));
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = match prefix {
        "" => name.to_owned(),
        prefix => format!("{prefix}::{name}"),
    };
    let is_module = name.starts_with(|c: char| c.is_lowercase());
    match rest.strip_prefix("::") {
        Some(rest) if is_module && name != "self" => expand(rest, &path, found),
        _ if is_module && name != "self" || prefix.is_empty() => {
            found.insert(path);
            rest
        }
        _ => {
            found.insert(prefix.to_owned());
            rest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_read_in_every_notation() {
        let text = "//! [`crate::doc`]\nuse crate::find::{self, Prepared};\nuse crate::{safe::{bound::Bound, device}, Key as K};\n\
                    fn f() { crate::check::check(1); let x: crate::Number; other_crate::no(); }\npub(crate) mod m;";
        let expected = ["Key", "Number", "check::check", "find", "safe::bound", "safe::device"];
        assert_eq!(uses(text).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_raw_module_that_uses_the_look_up_or_the_safe_layer_is_found() {
        let raw = |text: &str| {
            let mut found = Vec::new();
            check("crates/exec/src/raw/load.rs", text, &mut found);
            found.len()
        };
        assert_eq!(raw("use crate::raw::session::RawSession;\nuse crate::check::check_bindings;"), 0);
        assert_eq!(raw("use crate::find::prepare;"), 1);
        assert_eq!(raw("use crate::prepare;"), 1, "the same by the root's name");
        assert_eq!(raw("fn f() { super::super::safe::bound::ready() }"), 1);
        assert_eq!(raw("use super::session::RawSession;"), 0);
    }

    #[test]
    fn the_repository_keeps_the_rules_of_its_rooms() {
        let root = crate::cargo::root();
        let mut found = Vec::new();
        for room in ROOMS {
            let mut left = vec![root.join(room.path)];
            while let Some(path) = left.pop() {
                if let Ok(folder) = std::fs::read_dir(&path) {
                    left.extend(folder.map(|entry| entry.expect("it is listed").path()));
                    continue;
                }
                if path.extension().is_none_or(|end| end != "rs") {
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{} is gone", room.path));
                let name = path.strip_prefix(&root).expect("it is below the root").to_string_lossy();
                check(&name, &text, &mut found);
            }
        }
        assert_eq!(found, [""; 0]);
    }
}
