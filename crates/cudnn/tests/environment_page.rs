//! The table of compiler variables in `docs/environment.md` equals the list in the code.

use std::fmt::Write as _;

use qkvault_cudnn::compiler_env::{COMPILER_VARIABLES, EnvEffect};

const BEGIN: &str = "<!-- begin: compiler variables -->\n";
const END: &str = "<!-- end: compiler variables -->";

/// Effects of which no test has more to say than their word.
const LISTED: [EnvEffect; 4] = [EnvEffect::Suspected, EnvEffect::NoEffectSeen, EnvEffect::LogOnly, EnvEffect::NotRead];

fn table() -> String {
    let mut text = String::from("\n| variable | effect | read by cuDNN | what was seen |\n| --- | --- | --- | --- |\n");
    for row in COMPILER_VARIABLES.iter().filter(|row| !LISTED.contains(&row.effect)) {
        let versions = if row.versions.is_empty() { "none" } else { row.versions };
        writeln!(text, "| `{}` | {} | {versions} | {} |", row.name, row.effect.word(), row.seen)
            .expect("a string grows");
    }
    text.push('\n');
    for effect in LISTED {
        let rows = COMPILER_VARIABLES.iter().filter(|row| row.effect == effect);
        let names: Vec<String> = rows.map(|row| format!("`{}`", row.name)).collect();
        writeln!(text, "* {}: {}", effect.word(), names.join(", ")).expect("a string grows");
    }
    text.push('\n');
    text
}

#[test]
fn b2_the_page_has_the_same_facts_about_every_variable_as_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
    let page = std::fs::read_to_string(path).expect("the page is checked in");
    let (before, rest) = page.split_once(BEGIN).expect("it has the place for the table");
    let (_, after) = rest.split_once(END).expect("the place has an end");
    let wanted = format!("{before}{BEGIN}{}{END}{after}", table());
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        std::fs::write(path, wanted).expect("the page can be written");
        return;
    }
    assert!(page == wanted, "docs/environment.md is stale: UPDATE_GOLDENS=1 writes it anew");
    assert!(!page.contains("none reaches a key"), "that was never true");
}
