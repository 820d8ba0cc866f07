#![doc = include_str!("page.md")]
//!
//! # In Rust
//!
//! ```
//! use qkvault_graph::{Attention, Band, DType, text};
//!
//! let read = text::parse("q: bf16 [1,32,512,128]\nk: [1,8,512,128]   # grouped heads\nmask: causal\noutputs: stats")?;
//! let built = Attention::bshd(1, (32, 8), (512, 512), 128, DType::BF16).with_band(Band::CAUSAL).with_stats();
//! assert_eq!(read, built);
//! assert_eq!(text::parse(&text::print(&built))?, built);
//! # Ok::<(), text::ParseError>(())
//! ```

mod cursor;
mod error;
mod field;
mod layout;
mod parse;
mod print;
mod value;

/// The page on the text form, as `qkvault help text` prints it.
pub const PAGE: &str = include_str!("page.md");

pub use error::ParseError;
pub use parse::parse;
pub use print::print;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::{Binary, Unary};
    use crate::validate;

    /// What stands between signs of code in a part of the page.
    fn snippets(part: &str) -> impl Iterator<Item = String> {
        let part = part.replace("\\|", "|");
        let all: Vec<String> = part.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        all.into_iter()
    }

    fn parts() -> [&'static str; 4] {
        let mut parts = PAGE.split("\n# ");
        std::array::from_fn(|_| parts.next().expect("an introduction, fields, expressions, examples"))
    }

    #[test]
    fn every_example_of_the_page_is_an_attention() {
        let [first, .., examples] = parts();
        let whole = first.split("```").nth(1).and_then(|text| text.strip_prefix("text")).expect("an example");
        validate(parse(whole).expect("it parses")).expect("it is valid");
        let (table, _) = examples.split_once("\n\nA predicate").expect("text behind the table");
        let all: Vec<String> = snippets(table).collect();
        assert!(all.len() >= 10, "{all:?}");
        for line in all {
            let read = parse(&format!("q: bf16 [2,16,512,128]\n{line}")).unwrap_or_else(|e| panic!("{line}: {e}"));
            validate(read).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }

    #[test]
    fn the_page_names_every_field_and_operation() {
        let [_, fields, expressions, _] = parts();
        let named = |part: &str, word: &str| {
            snippets(part).any(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word))
        };
        assert!(field::NAMES.iter().all(|name| named(fields, name) || *name == "q"));
        let words = Unary::ALL.iter().map(|op| op.name()).chain(Binary::ALL.iter().map(|op| op.name()));
        let missing: Vec<&str> = words.chain(["float", "select"]).filter(|word| !named(expressions, word)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// What a new user typed, and the answer that names what to write.
    #[test]
    fn a_name_without_a_declaration_is_told_with_the_line_that_declares_it() {
        let told = |score_mod: &str| {
            parse(&format!("q: bf16 [1,16,512,128]\nscore_mod: {score_mod}")).expect_err(score_mod).to_string()
        };
        for (text, column, words) in [
            ("tanh(score / $cap) * $cap", 25, "begin with `scalar $cap: float;`"),
            ("score + @docs", 20, "begin with `tensor @docs: f32[1, 1, 1, 512];`"),
            ("softcap(score, 2.0)", 12, "`tanh(score / $cap) * $cap`"),
            ("score + alibi", 20, "tensor @slopes: f32[1, 32, 1, 1] alibi 32;"),
            ("sinh(score)", 12, "an operation: neg, abs, exp, "),
            ("score + bias", 20, "score, batch, head, query, key, position"),
            ("tensor @d: i32[1,1,512,1]; score + float(@d[query])", 55, "a tensor is read at the place of the score"),
        ] {
            let told = told(text);
            assert!(told.contains(words) && told.contains(&format!("column {column}:")), "{text}: {told}");
        }
    }
}
