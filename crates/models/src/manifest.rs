//! A manifest: attentions to compile, as a TOML or JSON file that programs write and people edit.
//!
//! ```toml
//! qkvault-manifest = 1
//!
//! [[attention]]
//! model = "llama-3.1-8b"
//! layer = "full"
//! layers = 32
//! phase = "prefill"
//! scale = 0.08838834764831845
//! batch = [1, 4]
//! seq = [512, 4096]
//! text = '''
//! q: bf16 [$batch,32,$seq,128]
//! k: bf16 [$batch,8,$seq,128]
//! mask: causal
//! '''
//! ```
//!
//! `text` is an attention in its text form ([`qkvault_graph::text`]), once for each pair of `batch` and `seq`, whose
//! numbers take the places of `$batch` and `$seq`. Without these names it is one attention as it stands. Of the other
//! fields only `text` is required. `notes = ["..."]` above the attentions are remarks that commands repeat.
//!
//! Programs write one too: `qkvault model --manifest`, a runtime's recorder, and `adapters/python/qkvault_record.py`
//! for programs with PyTorch.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::codes;
use qkvault_base::{in_quotes, is_hidden};
use qkvault_graph::{Attention, Refusal, text};

use super::Phase;
use super::text::{LARGEST_CONFIG, Most, too_large};

/// The version of manifests that this program reads and writes.
pub const MANIFEST_VERSION: u32 = 1;

/// The key of the version, which tells a manifest from a config.
const VERSION_KEY: &str = "qkvault-manifest";

/// Most attentions of a manifest: more than any grid of sizes that is meant.
const MOST: usize = 1 << 15;

/// Most bytes of the texts of all attentions together, with their numbers in place, besides what the file itself has: a
/// few hundred bytes can stand for as many attentions as there may be.
const MOST_TEXT: usize = 4 << 20;

/// Most values and most tables of a manifest, each of which takes a kilobyte while it is read.
const MOST_PARTS: Most = Most { values: 1 << 18, objects: 1 << 14 };

/// Most characters of a line of an error: readers of TOML quote the line that is wrong.
const LONGEST_LINE: usize = 200;

/// A list of attentions to compile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format.
    #[serde(rename = "qkvault-manifest")]
    pub version: u32,
    /// Remarks of the program that wrote it: above all, what a recorded program computes and has no entry for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The attentions.
    #[serde(default)]
    pub attention: Vec<AttentionEntry>,
}

/// One attention, or one for each pair of sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionEntry {
    /// The model that needs it.
    #[serde(default)]
    pub model: String,
    /// The layers' label in the model.
    #[serde(default)]
    pub layer: String,
    /// The number of layers; in a manifest of a recorded program, the number of calls.
    #[serde(default = "one")]
    pub layers: usize,
    /// What the attention is for. `train` is a forward, whose backward is compiled too.
    #[serde(default = "prefill")]
    pub phase: Phase,
    /// The softmax scale of a launch; without it, 1 / sqrt(head dim).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// The numbers for `$batch`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch: Vec<i64>,
    /// The numbers for `$seq`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seq: Vec<i64>,
    /// The attention in its text form.
    pub text: String,
}

const fn one() -> usize {
    1
}

const fn prefill() -> Phase {
    Phase::Prefill
}

/// One attention of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedAttention {
    /// The place of its entry in the manifest.
    pub entry: usize,
    /// Sequences, and keys of each.
    pub sizes: (i64, i64),
    /// The attention.
    pub attention: Attention,
}

impl Manifest {
    /// A manifest of this version.
    #[must_use]
    pub const fn new(attention: Vec<AttentionEntry>) -> Manifest {
        Manifest { version: MANIFEST_VERSION, notes: Vec::new(), attention }
    }

    /// Whether a text is meant as a manifest: it has its version.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        let mut lines = text.lines().map(str::trim_start);
        let json = text.trim_start().starts_with('{');
        let key = |line: &str| line.trim_start_matches(['{', ' ', '"']).starts_with(VERSION_KEY);
        if json { text.contains(&format!("\"{VERSION_KEY}\"")) } else { lines.any(key) }
    }

    /// Reads a manifest, TOML or JSON.
    ///
    /// # Errors
    ///
    /// Text that is neither, another version, a field that is unknown, missing or of the wrong type; with its place.
    pub fn parse(text: &str) -> Result<Manifest, Refusal> {
        #[derive(Deserialize)]
        struct Version {
            #[serde(rename = "qkvault-manifest")]
            version: Option<i64>,
        }
        if text.len() as u64 > LARGEST_CONFIG {
            return Err(too_large(text.len() as u64));
        }
        let refused = |given: String| -> Refusal { codes::MANIFEST_PARSE.reason(given).into() };
        // The version comes first: newer files may have fields that this program does not know.
        let json = text.trim_start().starts_with('{');
        if json {
            MOST_PARTS.check_json(text)?
        } else {
            MOST_PARTS.check_toml(text)?
        }
        let version: Result<Version, String> = if json {
            serde_json::from_str(text).map_err(|error| error.to_string())
        } else {
            toml::from_str(text).map_err(|error| one_line(&error.to_string()))
        };
        let version = version.map_err(refused)?.version;
        if version != Some(i64::from(MANIFEST_VERSION)) {
            let given = version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"));
            let needed = format!("version {MANIFEST_VERSION}");
            let fix = match version {
                Some(newer) if newer > i64::from(MANIFEST_VERSION) => "update qkvault, or write the manifest again",
                _ => "begin the file with `qkvault-manifest = 1`",
            };
            return Err(codes::MANIFEST_VERSION.reason(given).with_needed(needed).with_fix(fix).into());
        }
        let read = if json {
            serde_json::from_str(text).map_err(|error| error.to_string())
        } else {
            toml::from_str(text).map_err(|error| one_line(&error.to_string()))
        };
        read.map_err(refused)
    }

    /// The manifest as TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let Manifest { version, notes, attention } = self;
        let mut out = format!("{VERSION_KEY} = {version}\n");
        if !notes.is_empty() {
            let lines: String = notes.iter().map(|note| format!("    {},\n", quoted(note))).collect();
            // Infallible: a String takes everything.
            let _ = write!(out, "notes = [\n{lines}]\n");
        }
        for entry in attention {
            let AttentionEntry { model, layer, layers, phase, scale, batch, seq, text } = entry;
            let _ = write!(out, "\n[[attention]]\nmodel = {}\nlayer = {}\n", quoted(model), quoted(layer));
            let _ = write!(out, "layers = {layers}\nphase = \"{phase}\"\n");
            if let Some(scale) = scale {
                let _ = writeln!(out, "scale = {scale:?}");
            }
            for (name, sizes) in [("batch", batch), ("seq", seq)].into_iter().filter(|(_, sizes)| !sizes.is_empty()) {
                let _ = writeln!(out, "{name} = {sizes:?}");
            }
            let _ = writeln!(out, "text = {}", block(text));
        }
        out
    }

    /// Every attention.
    ///
    /// # Errors
    ///
    /// Every entry whose text is no attention, or whose sizes and names do not go together; with its place.
    pub fn attentions(&self) -> Result<Vec<ListedAttention>, Refusal> {
        let (mut list, mut reasons, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
        let most = MOST_TEXT + self.attention.iter().map(|entry| entry.text.len()).sum::<usize>();
        for (place, entry) in self.attention.iter().enumerate() {
            let field = |name: &str| format!("attention[{place}].{name}");
            for (name, sizes) in [("batch", &entry.batch), ("seq", &entry.seq)] {
                let named = entry.text.contains(&format!("${name}"));
                if named == sizes.is_empty() {
                    let given = if named { "no numbers" } else { "numbers, and the text has no place for them" };
                    let needed = format!("a list of numbers if the text has ${name}, and none if it has not");
                    reasons.push(codes::MANIFEST_FIELD.reason(given).at(field(name)).with_needed(needed));
                }
                let bad = sizes.iter().find(|size| !(1..=1 << 30).contains(*size));
                reasons.extend(bad.map(|size| {
                    let needed = "numbers from 1 to 1073741824";
                    codes::MANIFEST_FIELD.reason(size.to_string()).at(field(name)).with_needed(needed)
                }));
            }
            let scale = entry.scale.filter(|scale| !(scale.is_finite() && *scale > 0.0));
            reasons.extend(scale.map(|scale| {
                codes::MANIFEST_FIELD.reason(scale.to_string()).at(field("scale")).with_needed("a positive number")
            }));
            let numbers = |sizes: &[i64]| if sizes.is_empty() { vec![0] } else { sizes.to_vec() };
            for seq in numbers(&entry.seq) {
                for batch in numbers(&entry.batch) {
                    if list.len() == MOST {
                        let reason = codes::MANIFEST_FIELD.reason(format!("more than {MOST} attentions"));
                        reasons.push(reason.at(field("seq")).with_needed(format!("at most {MOST} attentions")));
                        return Err(refusal(reasons));
                    }
                    let text = entry.text.replace("$batch", &batch.to_string()).replace("$seq", &seq.to_string());
                    bytes += text.len();
                    if bytes > most {
                        let reason = codes::MANIFEST_FIELD.reason(format!("{bytes} bytes of texts up to here"));
                        let needed = format!("at most {most} bytes in all, with the numbers in place");
                        reasons.push(reason.at(field("text")).with_needed(needed));
                        return Err(refusal(reasons));
                    }
                    match text::parse(&text) {
                        Ok(attention) => {
                            let sizes = (attention.batch(), attention.seq().1);
                            list.push(ListedAttention { entry: place, sizes, attention });
                        }
                        Err(error) => {
                            let reason = codes::MANIFEST_FIELD.reason(one_line(&error.to_string()));
                            let reason = reason.at(field("text")).with_needed("an attention in its text form");
                            if !reasons.contains(&reason) {
                                reasons.push(reason);
                            }
                        }
                    }
                }
            }
        }
        if reasons.is_empty() { Ok(list) } else { Err(refusal(reasons)) }
    }
}

fn refusal(reasons: Vec<qkvault_graph::Reason>) -> Refusal {
    Refusal::from_reasons(reasons).unwrap_or_else(|| codes::MANIFEST_PARSE.reason("nothing").into())
}

/// An error of several lines as one, without the rest of a long line that it quotes.
fn one_line(text: &str) -> String {
    let cut = |line: &str| match line.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(cut).collect();
    lines.join(" ")
}

/// A text in quotes, as TOML writes it.
fn quoted(text: &str) -> String {
    in_quotes(&toml::Value::String(text.to_owned()).to_string()).into_owned()
}

/// A text of several lines as it stands, if TOML has a way to write it so.
fn block(text: &str) -> String {
    let plain = !text.contains("'''") && !text.contains(|c: char| is_hidden(c) && c != '\n');
    if plain { format!("'''\n{}\n'''", text.trim_end()) } else { quoted(text) }
}

#[cfg(test)]
mod tests;
