//! How text that came from elsewhere is shown to people: characters that move a terminal's cursor, begin a line, or
//! turn the direction of writing are escaped. Names, labels, refusals and paths of files, packs and remotes may have
//! them, and printed as they are they could forge lines of a report.

use std::borrow::Cow;
use std::fmt;

/// A text on one line, in which every character that is not simply drawn is escaped, also the end of a line.
///
/// ```
/// use qkvault_base::Shown;
///
/// assert_eq!(Shown("llama\n\u{1b}[2Jgood").to_string(), "llama\\n\\u{1b}[2Jgood");
/// assert_eq!(Shown("Qwen3-8B, größer").to_string(), "Qwen3-8B, größer");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown<'t>(pub &'t str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(self.0, is_hidden, escape_plain, f)
    }
}

/// Whether a character is not simply drawn where it stands: control characters (C0, DEL, C1), ends of lines and
/// paragraphs, marks and overrides of the direction of writing, and characters without a width.
#[must_use]
pub const fn is_hidden(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

/// A text on one line, as [`Shown`] writes it. It copies nothing if there is nothing to escape.
#[must_use]
pub fn on_one_line(text: &str) -> Cow<'_, str> {
    if text.contains(is_hidden) { Shown(text).to_string().into() } else { text.into() }
}

/// A text of several lines: ends of lines stay, and everything else is as in [`Shown`].
#[must_use]
pub fn on_lines(text: &str) -> Cow<'_, str> {
    let hidden = |c| c != '\n' && is_hidden(c);
    if !text.contains(hidden) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    // Infallible: a String takes everything.
    let _ = escape(text, hidden, escape_plain, &mut out);
    out.into()
}

/// JSON, or a quoted text of TOML, with the same characters escaped as both languages write them: `\u0085`. The ends of
/// lines between values stay; within a text both languages escape them already.
#[must_use]
pub fn in_quotes(written: &str) -> Cow<'_, str> {
    let hidden = |c| c != '\n' && is_hidden(c);
    if !written.contains(hidden) {
        return written.into();
    }
    let unit = |c: char, out: &mut dyn fmt::Write| {
        let mut units = [0; 2];
        c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
    };
    let mut out = String::with_capacity(written.len() + 16);
    let _ = escape(written, hidden, unit, &mut out);
    out.into()
}

fn escape_plain(c: char, out: &mut dyn fmt::Write) -> fmt::Result {
    match c {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        other => write!(out, "\\u{{{:x}}}", u32::from(other)),
    }
}

/// Writes a text in pieces: those that are drawn as they stand, and what `write` makes of the others.
fn escape(
    text: &str,
    hidden: impl Fn(char) -> bool,
    write: impl Fn(char, &mut dyn fmt::Write) -> fmt::Result,
    out: &mut dyn fmt::Write,
) -> fmt::Result {
    let mut rest = text;
    while let Some(at) = rest.find(&hidden) {
        out.write_str(&rest[..at])?;
        let mut chars = rest[at..].chars();
        chars.next().map_or(Ok(()), |c| write(c, out))?;
        rest = chars.as_str();
    }
    out.write_str(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn audit_8_what_moves_the_cursor_or_begins_a_line_is_escaped() {
        let hostile = "a\u{1b}[1A\r\nok\u{7}\u{9b}2K\u{85}\u{2028}\u{202e}\u{2066}\u{200b}\u{feff}\u{e0041}\tb";
        let shown = Shown(hostile).to_string();
        assert!(!shown.contains(is_hidden), "{shown:?}");
        assert!(shown.starts_with(r"a\u{1b}[1A\r\nok\u{7}\u{9b}2K\u{85}") && shown.ends_with(r"\tb"), "{shown}");
        assert_eq!(on_one_line(hostile), shown);
        assert_eq!(on_lines("x\ny\u{1b}"), "x\ny\\u{1b}");
        assert!(matches!(on_lines("x\ny"), Cow::Borrowed(_)) && matches!(on_one_line("größer"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn audit_8_escaped_json_reads_as_the_same_text(text in any::<String>()) {
            // What a writer of JSON leaves as it is.
            let plain: String = text.chars().filter(|c| *c >= ' ' && !matches!(c, '"' | '\\')).collect();
            let json = format!("\"{plain}\"");
            let written = in_quotes(&json);
            prop_assert!(!written.contains(is_hidden));
            let read: String = char::decode_utf16(units(&written[1..written.len() - 1])).map(|c| c.expect("a pair")).collect();
            prop_assert_eq!(read, plain);
        }

        #[test]
        fn audit_8_no_text_has_a_hidden_character_once_it_is_shown(text in any::<String>()) {
            prop_assert!(!Shown(&text).to_string().contains(is_hidden));
            prop_assert!(!on_lines(&text).contains(|c| c != '\n' && is_hidden(c)));
        }
    }

    /// The units of UTF-16 of a text in quotes, without its quotes.
    fn units(mut text: &str) -> Vec<u16> {
        let mut out = Vec::new();
        while let Some(c) = text.chars().next() {
            match text.strip_prefix("\\u") {
                Some(rest) => {
                    out.push(u16::from_str_radix(&rest[..4], 16).expect("four digits"));
                    text = &rest[4..];
                }
                None => {
                    out.extend(c.encode_utf16(&mut [0; 2]).iter());
                    text = &text[c.len_utf8()..];
                }
            }
        }
        out
    }
}
