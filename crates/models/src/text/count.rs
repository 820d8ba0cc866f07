//! Counts what a text in JSON or TOML is made of, before it is read. A value of two bytes takes a hundred in memory, an
//! object or a table a thousand.

use crate::codes;
use qkvault_graph::Refusal;

/// The most that a text may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// Entries of lists and of objects at all depths; in TOML also lines and parts of keys.
    pub(crate) values: usize,
    /// Objects or tables.
    pub(crate) objects: usize,
}

impl Most {
    /// Checks a text in JSON.
    ///
    /// # Errors
    ///
    /// The text has more than these.
    pub(crate) fn check_json(self, text: &str) -> Result<(), Refusal> {
        let (mut values, mut objects, mut in_string, mut escaped) = (0, 0, false, false);
        for byte in text.bytes() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                b',' | b'[' if !in_string => values += 1,
                b'{' if !in_string => (values, objects) = (values + 1, objects + 1),
                _ => {}
            }
        }
        self.check(values, objects)
    }

    /// Checks a text in TOML.
    ///
    /// # Errors
    ///
    /// The text has more than these.
    pub(crate) fn check_toml(self, text: &str) -> Result<(), Refusal> {
        let (mut values, mut objects, mut first) = (0, 0, true);
        let mut rest = text.as_bytes();
        while let [byte, after @ ..] = rest {
            rest = match byte {
                b'"' | b'\'' => behind(rest, *byte),
                b'#' => after.iter().position(|byte| *byte == b'\n').map_or(&[][..], |end| &after[end..]),
                _ => after,
            };
            match byte {
                b'{' => (values, objects) = (values + 1, objects + 1),
                // A table begins its line.
                b'[' if first => objects += 1,
                b',' | b'[' | b'=' | b'.' | b'\n' => values += 1,
                _ => {}
            }
            first = *byte == b'\n' || (first && byte.is_ascii_whitespace());
        }
        self.check(values, objects)
    }

    fn check(self, values: usize, objects: usize) -> Result<(), Refusal> {
        for (given, most, what) in [(values, self.values, "values"), (objects, self.objects, "objects of values")] {
            if given > most {
                let needed = format!("at most {most} {what}");
                return Err(codes::CONFIG_SIZE.reason(format!("{given} {what}")).with_needed(needed).into());
            }
        }
        Ok(())
    }
}

/// What is behind a text of TOML, which begins with this quote: one or three of them.
fn behind(text: &[u8], quote: u8) -> &[u8] {
    let three = [quote; 3];
    let end = if text.starts_with(&three) { &three[..] } else { &three[..1] };
    let mut at = end.len();
    while at < text.len() {
        match text[at] {
            b'\\' if quote == b'"' => at += 2,
            // A short text that does not end is an error of the reader.
            b'\n' if end.len() == 1 => return &text[at..],
            _ if text[at..].starts_with(end) => return &text[at + end.len()..],
            _ => at += 1,
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values and objects of a text.
    fn counts(check: impl Fn(Most) -> Result<(), Refusal>) -> (usize, usize) {
        let values = (0..).find(|&values| check(Most { values, objects: usize::MAX }).is_ok());
        let objects = (0..).find(|&objects| check(Most { values: usize::MAX, objects }).is_ok());
        (values.expect("some number"), objects.expect("some number"))
    }

    #[test]
    fn audit_12_what_takes_memory_is_counted_and_what_a_text_says_is_not() {
        let json = r#"{"a": [1, 2, {}], "b,[{": "\"[[[[{{,,"}"#;
        assert_eq!(counts(|most| most.check_json(json)), (6, 2));
        let toml = "a = [1, 2] # [[,,\n[[b]]\n  [c]\nd = 'x,[{'\ne = '''\n[[b]],'{\n'''\nf = \"\\\",[\"\ng = {h = 1}";
        // Three of the first line, six ends of lines, one second bracket, and `=` five times and a brace.
        assert_eq!(counts(|most| most.check_toml(toml)), (16, 3));
        assert_eq!(counts(|most| most.check_toml("a = 'never ends\n[b]\n")), (3, 1));
        assert_eq!(counts(|most| most.check_toml("a = \"\\")), (1, 0));
    }
}
