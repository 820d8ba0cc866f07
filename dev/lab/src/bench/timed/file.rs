//! The file of cases: attentions in their text form, each with a name, values for its scalars, and notes for
//! comparisons.

use qkvault_exec::Training;
use qkvault_graph::expr::ScoreExpr;
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, Documents, Pass, Refusal, Valid, text, validate};

use qkvault_cli::data::{DataRecipe, Split};

/// One case.
#[derive(Clone, Debug)]
pub(in crate::bench) struct TimedCase {
    pub(in crate::bench) name: String,
    /// The forward as the file describes it.
    pub(in crate::bench) described: Valid,
    /// The forward to run: that of the described attention, or of its varlen equivalent. Alone (`alone: yes`) it has
    /// the outputs of the description, otherwise those that its backward reads.
    forward: Valid,
    backward: Option<Valid>,
    /// Whether the documents run as varlen sequences.
    pub(in crate::bench) varlen: bool,
    pub(in crate::bench) recipe: DataRecipe,
    /// Lines `note: KEY WORDS`, copied to the output.
    pub(in crate::bench) notes: Vec<(String, String)>,
}

/// Reads a file of cases.
///
/// A case begins with a line `case: NAME`. Lines `scalar: NAME VALUE`, `documents: N` (or the length of each), `varlen:
/// yes`, `alone: yes` and `note: KEY WORDS` belong to the case; all other lines describe the attention ([`text`]). A
/// `pass: backward` sets the formats of the gradients, and `deterministic`.
///
/// # Errors
///
/// A line cannot be read, or a description is refused. The error has the number of the line, or the name of the case.
pub(in crate::bench) fn read(text: &str, seed: u64) -> anyhow::Result<Vec<TimedCase>> {
    let lines: Vec<&str> = text.lines().collect();
    let begins: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].starts_with("case:")).collect();
    if let Some(at) = lines[..begins.first().copied().unwrap_or(lines.len())].iter().position(|l| !is_blank(l)) {
        anyhow::bail!("line {}: '{}' is before the first line `case: NAME`", at + 1, lines[at]);
    }
    let mut cases = Vec::new();
    for (i, &from) in begins.iter().enumerate() {
        let to = begins.get(i + 1).copied().unwrap_or(lines.len());
        cases.push(case(&lines[..to], from, seed)?);
    }
    Ok(cases)
}

fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// Reads the case that begins at line `from`. `lines` begins at the top of the file, so that errors have the right line
/// numbers.
fn case(lines: &[&str], from: usize, seed: u64) -> anyhow::Result<TimedCase> {
    let (scalars, documents) = (Vec::new(), Split::Equal(1));
    let mut recipe = DataRecipe { scalars, draw_others: false, documents, varlen: Vec::new(), seed };
    let (mut name, mut notes) = (String::new(), Vec::new());
    let (mut varlen, mut alone) = (false, false);
    let mut attention = "\n".repeat(from);
    for (i, line) in lines.iter().enumerate().skip(from) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let mut words = value.split_whitespace();
        let wrong = |needed: &str| anyhow::anyhow!("line {}: '{line}' must be {needed}", i + 1);
        match field {
            "case" => name = value.trim().to_owned(),
            "scalar" => {
                let pair = words.next().zip(words.next().and_then(|v| v.parse().ok()));
                let (scalar, value): (&str, f64) = pair.ok_or_else(|| wrong("`scalar: NAME VALUE`"))?;
                recipe.scalars.push((scalar.to_owned(), value));
            }
            "documents" => {
                let list: Option<Vec<u64>> = words.map(|n| n.parse().ok().filter(|n| *n > 0)).collect();
                recipe.documents = match list.as_deref() {
                    None | Some([]) => return Err(wrong("`documents: N`, at least 1, or the length of each")),
                    Some([n]) => Split::Equal(*n),
                    Some(lengths) => Split::Lengths(lengths.to_vec()),
                };
            }
            "varlen" | "alone" => {
                if words.next() != Some("yes") {
                    return Err(wrong(&format!("`{field}: yes`")));
                }
                *(if field == "varlen" { &mut varlen } else { &mut alone }) = true;
            }
            "note" => {
                let key = words.next().ok_or_else(|| wrong("`note: KEY WORDS`"))?;
                notes.push((key.to_owned(), words.collect::<Vec<_>>().join(" ")));
            }
            _ => attention.push_str(line),
        }
        attention.push('\n');
    }
    let refused = |why: &dyn std::fmt::Display| anyhow::anyhow!("case '{name}': {why}");
    let attention = text::parse(&attention).map_err(|e| refused(&e))?;
    let (forward, options) = passes(&attention);
    let described = validate(forward.clone()).map_err(|e| refused(&e))?;
    let s = described.seq().0.unsigned_abs();
    let lengths = recipe.documents.lengths(s);
    if lengths.iter().sum::<u64>() != s {
        return Err(refused(&format!(
            "the documents have {lengths:?} tokens, which do not add up to a sequence of {s}"
        )));
    }
    let training = if varlen {
        let rows = (0..described.batch()).flat_map(|_| &lengths);
        recipe.varlen = rows.map(|&n| i32::try_from(n)).collect::<Result<_, _>>().map_err(|e| refused(&e))?;
        pack(&described, &recipe.varlen, options)
    } else {
        Training::for_attention(&forward, options)
    };
    let training = training.map_err(|e| refused(&e))?;
    let (forward, backward) = match (alone, varlen) {
        (false, _) => (training.forward().clone(), Some(training.backward().clone())),
        (true, false) => (described.clone(), None),
        (true, true) => (described.varlen_documents(sequences(&recipe.varlen)).map_err(|e| refused(&e))?, None),
    };
    Ok(TimedCase { name, described, forward, backward, varlen, recipe, notes })
}

/// The greatest length and the number of the documents.
fn sequences(lengths: &[i32]) -> Documents {
    Documents { longest: lengths.iter().max().copied().unwrap_or(0).into(), most: lengths.len() as i64 }
}

/// The training passes over varlen documents.
fn pack(described: &Valid, lengths: &[i32], options: BackwardOptions) -> Result<Training, Refusal> {
    let documents = sequences(lengths);
    // The gradients' formats become varlen together with the backward that contains them.
    let backward = validate(described.get().clone().with_stats().backward(options))?.varlen_documents(documents)?;
    let (forward, options) = passes(&backward);
    Training::for_attention(&forward, options)
}

/// The forward, and the options of the backward if the attention is one.
pub(super) fn passes(attention: &Attention) -> (Attention, BackwardOptions) {
    let Pass::Backward(g) = attention.pass else { return (attention.clone(), BackwardOptions::default()) };
    let options = BackwardOptions {
        d_o: Some(g.d_o),
        d_q: Some(g.d_q),
        d_k: Some(g.d_k),
        d_v: Some(g.d_v),
        d_o_half: g.d_o_half,
        d_sink: g.d_sink,
        deterministic: g.deterministic,
    };
    (attention.as_forward(), options)
}

impl TimedCase {
    /// A case of an attention by itself: with its backward if it is one, otherwise a forward alone.
    pub(super) fn for_attention(name: String, attention: &Valid, seed: u64) -> Result<TimedCase, Refusal> {
        let recipe =
            DataRecipe { scalars: Vec::new(), draw_others: true, documents: Split::Equal(1), varlen: Vec::new(), seed };
        let described = validate(attention.as_forward())?;
        let (forward, backward) = if attention.is_backward() {
            let (forward, options) = passes(attention);
            let training = Training::for_attention(&forward, options)?;
            (training.forward().clone(), Some(training.backward().clone()))
        } else {
            (attention.clone(), None)
        };
        Ok(TimedCase { name, described, forward, backward, varlen: false, recipe, notes: Vec::new() })
    }

    /// The forward to run.
    pub(in crate::bench) fn forward(&self) -> &Valid {
        &self.forward
    }

    /// The backward to run after it, unless the forward runs alone.
    pub(in crate::bench) fn backward(&self) -> Option<&Valid> {
        self.backward.as_ref()
    }

    /// The share of the score matrix that counts as work.
    ///
    /// A causal mask counts as one half, which is the usual convention. Windows and documents count the pairs that they
    /// keep. Everything else counts as one, even if a predicate hides pairs.
    pub(in crate::bench) fn share(&self) -> f64 {
        let a = &self.described;
        let (s_q, s_kv) = a.seq();
        let by_documents = a.mask.mask_mod.as_ref().is_some_and(has_documents) && self.recipe.documents.count() > 1;
        match a.mask.band {
            Some(Band { left: None, right: Some(0), corner: _ }) if !by_documents && s_q == s_kv => return 0.5,
            None if !by_documents => return 1.0,
            _ => {}
        }
        let documents = if by_documents { self.recipe.documents.clone() } else { Split::Equal(1) };
        // The first key of each document, and the end of the last one.
        let ends = documents.lengths(s_kv.unsigned_abs()).into_iter().scan(0, |end, n| {
            *end += n.cast_signed();
            Some(*end)
        });
        let starts: Vec<i64> = std::iter::once(0).chain(ends).collect();
        let kept = (0_i64..).zip(documents.parts(s_q.unsigned_abs())).map(|(row, document)| {
            let (mut first, mut last) = (starts[document as usize], starts[document as usize + 1] - 1);
            if let Some(Band { corner, left, right }) = a.mask.band {
                let at = if corner == Corner::TopLeft { row } else { row + s_kv - s_q };
                last = right.map_or(last, |r| last.min(at.saturating_add(r)));
                first = left.map_or(first, |l| first.max(at.saturating_add(1).saturating_sub(l)));
            }
            (last - first + 1).max(0) as f64
        });
        kept.sum::<f64>() / (s_q as f64 * s_kv as f64)
    }

    /// Floating-point operations of the forward or the backward. For one head dim d these are 4 b h s_q s_kv d, and 2.5
    /// times as many.
    pub(in crate::bench) fn flops(&self, backward: bool) -> f64 {
        let a = &self.described;
        let ((s_q, s_kv), (d_qk, d_v)) = (a.seq(), a.head_dims());
        let pairs = (a.batch() * a.q.heads()) as f64 * s_q as f64 * s_kv as f64 * self.share();
        let per_pair = if backward { 3 * d_qk + 2 * d_v } else { d_qk + d_v };
        2.0 * pairs * per_pair as f64
    }
}

/// Whether a predicate compares the documents of two positions.
fn has_documents(keep: &ScoreExpr) -> bool {
    let by = |axis: usize| keep.tensors().iter().any(|t| !t.dtype.is_float() && t.dims[axis] > 1);
    by(2) && by(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(text: &str) -> Vec<f64> {
        read(text, 1).expect("it reads").iter().map(TimedCase::share).collect()
    }

    const DOCUMENTS: &str =
        "mask_mod: tensor @q_ids: i32[1, 1, 64, 1]; tensor @k_ids: i32[1, 1, 1, 64]; @q_ids == @k_ids\n";

    #[test]
    fn cases_read_with_their_scalars_and_notes() {
        let text = "# two\ncase: a\nscalar: cap 50\nnote: peer flex softcap\nq: bf16 [1,2,64,16]\nmask: causal\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap\ncase: b\nq: bf16 [1,2,64,16]\npass: backward\ndeterministic: yes\n";
        let cases = read(text, 1).expect("it reads");
        assert_eq!(cases.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(cases[0].recipe.scalars, [("cap".to_owned(), 50.0)]);
        assert_eq!(cases[0].notes, [("peer".to_owned(), "flex softcap".to_owned())]);
        let Pass::Backward(g) = cases[1].backward().expect("a backward").pass else { panic!("a backward") };
        assert!(g.deterministic && !cases[1].forward().is_backward());
        assert_eq!(cases[0].flops(true), 2.5 * cases[0].flops(false));
        assert_eq!(cases[1].flops(false), 4.0 * 2.0 * 64.0 * 64.0 * 16.0);
    }

    #[test]
    fn a_forward_that_runs_alone_has_the_outputs_of_its_description() {
        for (lines, varlen) in [(String::new(), false), (format!("documents: 4\nvarlen: yes\n{DOCUMENTS}"), true)] {
            let both = read(&format!("case: x\nq: bf16 [1,2,64,16]\n{lines}"), 1).expect("it reads").remove(0);
            let alone =
                read(&format!("case: x\nalone: yes\nq: bf16 [1,2,64,16]\n{lines}"), 1).expect("it reads").remove(0);
            assert!(both.forward().outputs.stats && both.backward().is_some_and(|b| b.is_backward()));
            assert!(!alone.forward().outputs.stats && alone.backward().is_none());
            assert_eq!(alone.forward().q.dims, if varlen { [4, 2, 128, 16] } else { [1, 2, 64, 16] });
            assert_eq!(alone.forward().q.storage, both.forward().q.storage);
        }
    }

    #[test]
    fn errors_have_line_numbers() {
        for (text, expected) in [
            ("q: bf16 [1,2,64,16]", "line 1"),
            ("case: a\nscalar: cap\nq: bf16 [1,2,64,16]", "line 2"),
            ("case: a\nq: bf16 [1,2,64,16]\nmask: no", "3"),
            ("case: a\ndocuments: 0\nq: bf16 [1,2,64,16]", "line 2"),
            ("case: a\ndocuments: 60 3\nq: bf16 [1,2,64,16]", "[60, 3]"),
            ("case: a\nvarlen: no\nq: bf16 [1,2,64,16]", "line 2"),
            ("case: a\nalone: no\nq: bf16 [1,2,64,16]", "`alone: yes`"),
            ("case: a\nvarlen: yes\nq: bf16 [1,2,64,16]", "documents.mask"),
            ("case: a\nq: bf16 [1,3,64,16]\nk: bf16 [1,2,64,16]", "'a'"),
        ] {
            let error = read(text, 1).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn only_pairs_that_masks_keep_count_as_work() {
        let case = |mask: &str| format!("case: x\nq: bf16 [1,2,64,16]\n{mask}\n");
        assert_eq!(shares(&case("")), [1.0]);
        assert_eq!(shares(&case("mask: causal")), [0.5]);
        // Of 64 rows, the first 16 see 1 to 16 keys and the others 16.
        let window = (136.0 + 48.0 * 16.0) / 4096.0;
        assert_eq!(shares(&case("mask: causal window 16")), [window]);
        let documents = format!("documents: 4\n{DOCUMENTS}");
        assert_eq!(shares(&case(&documents)), [0.25]);
        assert_eq!(shares(&case(&format!("mask: causal\n{documents}"))), [4.0 * 136.0 / 4096.0]);
        assert_eq!(shares(&case(&format!("mask: causal\n{DOCUMENTS}"))), [0.5]);
        // Varlen documents count the same work as masked ones.
        for varlen in ["", "varlen: yes\n"] {
            let uneven = format!("documents: 32 16 8 8\n{varlen}{DOCUMENTS}");
            assert_eq!(shares(&case(&uneven)), [(1024.0 + 256.0 + 128.0) / 4096.0]);
        }
    }

    #[test]
    fn varlen_documents_are_the_sequences_of_every_row() {
        let text = format!("case: x\nq: bf16 [2,2,64,16]\ndocuments: 40 24\nvarlen: yes\n{DOCUMENTS}")
            .replace("i32[1,", "i32[2,");
        let case = read(&text, 1).expect("it reads").remove(0);
        assert_eq!((case.forward().q.dims, &case.recipe.varlen[..]), ([4, 2, 128, 16], &[40, 24, 40, 24][..]));
        assert!(
            case.varlen
                && case.backward().expect("a backward").mask.mask_mod.is_none()
                && case.described.mask.mask_mod.is_some()
        );
    }
}
