//! Specifications: a description in text form less its tensors, which a call completes from those that it is given.
//!
//! It has the fields of the text form but for `pass`, `q`, `k`, `v`, `o` and the gradients, and four of its own:
//!
//! * `extra: bias sink`: the names of the further tensors, in the order of the call;
//! * `numbers: scale cap`: the names of the numbers;
//! * `varlen: 4 512 512`: sequences, most queries and most keys of one, for tensors of (token, head, head dim);
//! * `paged: 4096`: most keys of a sequence, for K and V of (page, head, row of a page, head dim).
//!
//! A tensor of an expression may have words in the place of extents: `tensor @bias: f16[1, head, query, key]` is as
//! large as the scores of each call.

use qkvault::graph::{DType, Valid, text, validate};
use smallvec::SmallVec;

use crate::status::CallFailure;

/// Between the fields. A specification is one line: PyTorch's Inductor writes arguments into comments of its programs.
const BETWEEN: &str = " :: ";

/// Characters that are in no specification: in the programs that Inductor writes it is a comment and a text in quotes.
fn breaks_a_line(char: char) -> bool {
    !char.is_ascii() || char.is_ascii_control() || matches!(char, '"' | '\'' | '\\')
}

/// Extents or strides.
pub(super) type Few = SmallVec<[i64; 4]>;

/// A tensor of a call: element type, extents and strides in PyTorch's order.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenTensor<'a> {
    pub(super) dtype: DType,
    pub(super) dims: &'a [i64],
    pub(super) strides: &'a [i64],
}

/// What a call of an attention gives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    O,
    /// O and Stats.
    Stats,
    /// The gradients, from that of O.
    Gradients(GivenTensor<'a>),
}

/// A specification, read.
#[derive(Debug)]
pub(super) struct Spec<'a> {
    pub(super) extra: Vec<&'a str>,
    pub(super) numbers: Vec<&'a str>,
    varlen: Option<[i64; 3]>,
    paged: Option<i64>,
    fields: Vec<&'a str>,
    /// The fields that only a backward has.
    choices: Vec<&'a str>,
}

impl<'a> Spec<'a> {
    pub(super) fn read(given: &'a str) -> Result<Spec<'a>, CallFailure> {
        if let Some(char) = given.chars().find(|char| breaks_a_line(*char)) {
            let text = format!("the specification has the character {char:?}; give one line of ASCII without quotes");
            return Err(CallFailure::argument(text));
        }
        let mut spec = Spec {
            extra: Vec::new(),
            numbers: Vec::new(),
            varlen: None,
            paged: None,
            fields: Vec::new(),
            choices: Vec::new(),
        };
        for line in given.split(BETWEEN) {
            match line.split_once(": ") {
                Some(("extra", names)) => spec.extra = names.split_whitespace().collect(),
                Some(("numbers", names)) => spec.numbers = names.split_whitespace().collect(),
                Some(("varlen", sizes)) => spec.varlen = Some(three(sizes)?),
                Some(("paged", keys)) => {
                    let wrong = |_| CallFailure::argument(format!("'paged: {keys}': give the most keys of a sequence"));
                    spec.paged = Some(keys.parse().map_err(wrong)?);
                }
                Some(("d_sink" | "deterministic", _)) => spec.choices.push(line),
                _ => spec.fields.push(line),
            }
        }
        Ok(spec)
    }

    /// The attention of tensors.
    pub(super) fn attention(&self, [q, k, v]: [GivenTensor<'_>; 3], wanted: Wanted<'_>) -> Result<Valid, CallFailure> {
        let batch = self.varlen.map(|[batch, ..]| batch);
        let [rows, keys] = self.varlen.map_or([0, 0], |[_, rows, keys]| [rows, keys]);
        let width = v.dims.last().copied().unwrap_or_default();
        let mut lines = vec![
            format!("q: {}", tensor("Q", q, batch, rows)?),
            format!("k: {}", self.keys("K", k, q, batch, keys)?),
            format!("v: {}", self.keys("V", v, q, batch, keys)?),
            format!("o: {}", like(q, width, batch, rows)?),
        ];
        if !matches!(wanted, Wanted::O) {
            lines.push("outputs: stats".to_owned());
        }
        let extent = |given: GivenTensor<'_>, at: usize| given.dims.get(at).copied().unwrap_or_default();
        let most = self.paged.unwrap_or_else(|| extent(k, 2));
        let extents = match self.varlen {
            Some([batch, rows, keys]) => [batch, extent(q, 1), rows, keys],
            None => [extent(q, 0), extent(q, 1), extent(q, 2), most],
        };
        lines.extend(self.fields.iter().map(|line| sized(line, extents)));
        if let Wanted::Gradients(d_o) = wanted {
            lines.push("pass: backward".to_owned());
            lines.push(format!("d_o: {}", tensor("the gradient of O", d_o, batch, rows)?));
            for (name, of, most) in [("d_q", q, rows), ("d_k", k, keys), ("d_v", v, keys)] {
                lines.push(format!("{name}: {}", like(of, of.dims.last().copied().unwrap_or_default(), batch, most)?));
            }
            lines.extend(self.choices.iter().map(|line| (*line).to_owned()));
        }
        let attention = text::parse(&lines.join("\n"))?;
        Ok(validate(attention)?)
    }
}

impl Spec<'_> {
    /// K or V, which may be a pool of pages.
    fn keys(
        &self,
        name: &str,
        given: GivenTensor<'_>,
        q: GivenTensor<'_>,
        batch: Option<i64>,
        most: i64,
    ) -> Result<String, CallFailure> {
        match (self.paged, given, q.dims.first()) {
            (None, ..) => tensor(name, given, batch, most),
            (Some(most), GivenTensor { dtype, dims: &[pages, h, rows, d], strides: &[sp, sh, sr, sd] }, Some(b)) => {
                whole(name, given, &["page", "head", "row of a page", "element"])?;
                Ok(format!("{dtype} [{b},{h},{most},{d}] paged {pages} x {rows} strides [{sp},{sh},{sr},{sd}]"))
            }
            (Some(_), GivenTensor { dims, .. }, _) => Err(CallFailure::argument(format!(
                "{name} has dims {dims:?}; give (page, head, row of a page, head dim)"
            ))),
        }
    }
}

/// A field whose tensors have their extents: those of a compiled program that serves all sizes are words.
fn sized(field: &str, extents: [i64; 4]) -> String {
    let word = |dim: &str| match ["batch", "head", "query", "key"].iter().position(|axis| *axis == dim) {
        Some(at) => extents[at].to_string(),
        None => dim.to_owned(),
    };
    let mut parts = field.split('[');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (dims, rest) = part.split_once(']').unwrap_or((part, ""));
        let dims: Vec<String> = dims.split(", ").map(word).collect();
        whole.push_str(&format!("[{}]{rest}", dims.join(", ")));
    }
    whole
}

fn three(sizes: &str) -> Result<[i64; 3], CallFailure> {
    let read: Option<Vec<i64>> = sizes.split_whitespace().map(|size| size.parse().ok()).collect();
    let wrong = || CallFailure::argument(format!("'varlen: {sizes}': give sequences, most queries and most keys"));
    read.and_then(|read| read.try_into().ok()).ok_or_else(wrong)
}

/// What a tensor of PyTorch may be and an operand may not, in PyTorch's words: those of the description name neither
/// the call that made it nor the one that mends it.
fn whole(name: &str, given: GivenTensor<'_>, axes: &[&str]) -> Result<(), CallFailure> {
    let GivenTensor { dims, strides, .. } = given;
    if dims.contains(&0) {
        let text = format!("{name} has the shape {dims:?}, which is empty: there is nothing to compute; skip the call");
        return Err(CallFailure::argument(text));
    }
    let expanded = dims.iter().zip(strides).zip(axes).find(|((n, stride), _)| **n > 1 && **stride == 0);
    if let Some(((n, _), axis)) = expanded {
        return Err(CallFailure::argument(format!(
            "{name} repeats one {axis} {n} times (stride 0, as expand() makes it), and no engine reads a tensor that is \
             expanded; give it as it was before expand() where that is allowed (one key and value head serves a whole \
             group of query heads), or a copy: tensor.contiguous(), or attention(..., copy=True)"
        )));
    }
    Ok(())
}

/// A tensor in text form.
fn tensor(name: &str, given: GivenTensor<'_>, batch: Option<i64>, most: i64) -> Result<String, CallFailure> {
    let GivenTensor { dtype, dims, strides } = given;
    match (dims, strides, batch) {
        (&[b, h, s, d], &[sb, sh, ss, sd], None) => {
            whole(name, given, &["sequence of the batch", "head", "row", "element"])?;
            // An extent of 1 is never stepped over, and PyTorch may give it any stride.
            let free = dense(dims);
            let one = |n: i64, stride: i64, at: usize| if n == 1 && stride == 0 { free[at] } else { stride };
            let (sb, sh, ss, sd) = (one(b, sb, 0), one(h, sh, 1), one(s, ss, 2), one(d, sd, 3));
            Ok(format!("{dtype} [{b},{h},{s},{d}] strides [{sb},{sh},{ss},{sd}]"))
        }
        (&[tokens, h, d], &[st, sh, sd], Some(b)) => {
            whole(name, given, &["token", "head", "element"])?;
            let all = st.saturating_mul(most);
            Ok(format!("{dtype} [{b},{h},{most},{d}] varlen tokens {tokens} strides [{all},{sh},{st},{sd}]"))
        }
        (_, _, batch) => {
            let wanted = if batch.is_some() { "(token, head, head dim)" } else { "(batch, head, sequence, head dim)" };
            Err(CallFailure::argument(format!("{name} has dims {dims:?}; give a tensor of {wanted}")))
        }
    }
}

/// A new tensor beside a given one: its dims but for the last, without gaps.
fn like(given: GivenTensor<'_>, width: i64, batch: Option<i64>, most: i64) -> Result<String, CallFailure> {
    let GivenTensor { dtype, dims, strides } = given;
    let (dims, strides) = beside(dims, strides, width);
    tensor("Q", GivenTensor { dtype, dims: &dims, strides: &strides }, batch, most)
}

/// Extents and strides of a new tensor beside a given one: its dims but for the last, without gaps. Heads lie outside
/// the sequence if they do in the given one, else inside. `qkvault/torch/_fake.py` has the same rule.
pub(super) fn beside(dims: &[i64], strides: &[i64], width: i64) -> (Few, Few) {
    let mut new = Few::from_slice(dims);
    if let Some(last) = new.last_mut() {
        *last = width;
    }
    let strides = match (&new[..], strides) {
        (&[_, h, s, d], &[_, heads, rows, _]) if heads <= rows => Few::from_slice(&[s * h * d, d, h * d, 1]),
        _ => dense(&new),
    };
    (new, strides)
}

/// The strides of a tensor without gaps, the last dim innermost, as PyTorch has them.
pub(super) fn dense(dims: &[i64]) -> Few {
    let mut strides = Few::from_elem(1, dims.len());
    for at in (1..dims.len()).rev() {
        strides[at - 1] = strides[at] * dims[at].max(1);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault::graph::Role;

    const BHSD: GivenTensor<'_> =
        GivenTensor { dtype: DType::BF16, dims: &[2, 4, 16, 8], strides: &[4 * 16 * 8, 16 * 8, 8, 1] };
    const BSHD: GivenTensor<'_> =
        GivenTensor { dtype: DType::BF16, dims: &[2, 4, 16, 8], strides: &[4 * 16 * 8, 8, 4 * 8, 1] };

    #[test]
    fn a_specification_is_completed_from_tensors_with_their_own_strides() {
        let spec = Spec::read("numbers: scale :: mask: causal").expect("it reads");
        assert_eq!((&spec.extra[..], &spec.numbers[..]), (&[][..], &["scale"][..]));
        let keys = GivenTensor { dims: &[2, 2, 16, 8], strides: &[2 * 16 * 8, 8, 2 * 8, 1], ..BSHD };
        let valid = spec.attention([BSHD, keys, keys], Wanted::Stats).expect("sound");
        assert_eq!(valid.to_string(), "fwd bf16 b2 h4/2 q16 kv16 d8 causal stats");
        assert_eq!(valid.get().q.strides, [512, 8, 32, 1]);
        assert_eq!(valid.get().o.strides, [512, 8, 32, 1], "O lies as Q does");
        let other = spec.attention([BHSD; 3], Wanted::Stats).expect("sound");
        assert_eq!(other.get().o.strides, [512, 128, 8, 1], "O lies as Q does");
        assert_ne!(valid.key(), other.key());
        let alone = spec.attention([BSHD, keys, keys], Wanted::O).expect("sound");
        assert_eq!(alone.to_string(), "fwd bf16 b2 h4/2 q16 kv16 d8 causal", "as a recorder writes it for inference");
    }

    #[test]
    fn a_specification_with_a_line_break_or_quotes_is_refused_because_it_breaks_programs_of_inductor() {
        for char in ["\n", "\r", "\t", "\"", "'", "\\", "\u{e4}", "\u{2028}"] {
            let error = Spec::read(&format!("numbers: scale{char} :: mask: causal")).expect_err("not one plain line");
            assert!(error.message().contains("one line of ASCII"), "{}", error.message());
        }
    }

    /// pytorch #191937 (stride 0), cudnn-frontend #101 and pytorch PR 195812 (batch 0): the words were those of the
    /// description, such as "cuDNN broadcasts by a dim of 1".
    #[test]
    fn an_expanded_and_an_empty_tensor_are_refused_in_the_words_of_pytorch() {
        let spec = Spec::read("numbers: scale").expect("it reads");
        let said = |given: [GivenTensor<'_>; 3]| {
            let error = spec.attention(given, Wanted::Stats).expect_err("unusable");
            error.message().to_owned()
        };
        let expanded = GivenTensor { strides: &[16 * 8, 0, 8, 1], ..BHSD };
        let text = said([BHSD, expanded, BHSD]);
        for words in ["K repeats one head 4 times", "stride 0", "expand()", ".contiguous()", "copy=True"] {
            assert!(text.contains(words), "'{words}' is not in: {text}");
        }
        assert!(
            said([BHSD, BHSD, GivenTensor { strides: &[0, 128, 8, 1], ..BHSD }]).contains("V repeats one sequence")
        );
        let one = GivenTensor { dims: &[2, 1, 16, 8], strides: &[16 * 8, 0, 8, 1], ..BHSD };
        assert!(spec.attention([BHSD, one, one], Wanted::Stats).is_ok(), "one head repeats nothing");
        for dims in [[0, 4, 16, 8], [2, 4, 0, 8]] {
            let text = said([GivenTensor { dims: &dims, ..BHSD }; 3]);
            assert!(text.contains("which is empty") && text.contains("skip the call"), "{text}");
        }
        let packed = GivenTensor { dtype: DType::F16, dims: &[0, 4, 8], strides: &[32, 8, 1] };
        let spec = Spec::read("varlen: 3 16 16 :: lengths: per-sequence").expect("it reads");
        let text = spec.attention([packed; 3], Wanted::O).expect_err("no token").message().to_owned();
        assert!(text.contains("[0, 4, 8], which is empty"), "{text}");
    }

    #[test]
    fn fields_of_a_backward_are_no_part_of_the_forward() {
        let with = "extra: sink :: numbers: scale :: sink: yes :: d_sink: yes :: deterministic: yes";
        let without = "extra: sink :: numbers: scale :: sink: yes";
        let forward =
            |text| Spec::read(text).expect("it reads").attention([BSHD; 3], Wanted::Stats).expect("sound").key();
        assert_eq!(forward(with), forward(without));
        let backward =
            Spec::read(with).expect("it reads").attention([BSHD; 3], Wanted::Gradients(BHSD)).expect("sound");
        assert!(backward.operand_facts().iter().any(|fact| fact.role == Role::DSink));
    }

    #[test]
    fn a_tensor_of_an_expression_is_as_large_as_the_scores_of_a_call() {
        let key = |text: &str| {
            let text = format!("extra: bias :: numbers: scale :: {text}");
            let spec = Spec::read(&text).expect("it reads");
            spec.attention([BHSD; 3], Wanted::Stats).expect("sound").key()
        };
        let words = "score_mod: tensor @bias: f16[1, head, query, key] grad; score + @bias";
        assert_eq!(key(words), key("score_mod: tensor @bias: f16[1, 4, 16, 16] grad; score + @bias"));
        let words = "mask_mod: tensor @mask: i32[batch, 1, 1, key]; @mask != 0 & query >= key";
        assert_eq!(key(words), key("mask_mod: tensor @mask: i32[2, 1, 1, 16]; @mask != 0 & query >= key"));
    }

    #[test]
    fn varlen_tensors_are_tokens_by_heads() {
        let spec = Spec::read("varlen: 3 16 16 :: lengths: per-sequence :: mask: causal").expect("it reads");
        let packed = GivenTensor { dtype: DType::F16, dims: &[20, 4, 8], strides: &[32, 8, 1] };
        let valid = spec.attention([packed; 3], Wanted::Stats).expect("sound");
        assert!(valid.operand_facts().iter().any(|fact| fact.role.name() == "offsets.q"));
    }

    #[test]
    fn keys_and_values_in_pages_have_the_batch_of_the_queries() {
        let spec = Spec::read("paged: 64 :: lengths: per-sequence").expect("it reads");
        let pool = GivenTensor { dtype: DType::BF16, dims: &[10, 2, 16, 8], strides: &[256, 8, 16, 1] };
        let valid = spec.attention([BSHD, pool, pool], Wanted::O).expect("sound");
        assert_eq!(valid.to_string(), "fwd bf16 b2 h4/2 q16 kv64 d8 k:paged10x16 v:paged10x16 lengths");
        let error = spec.attention([BSHD, pool, pool], Wanted::Gradients(BSHD)).expect_err("no backward");
        assert!(error.message().contains("gather the pages first"), "{}", error.message());
        let flat = GivenTensor { dims: &[160, 2, 8], strides: &[16, 8, 1], ..pool };
        let error = spec.attention([BSHD, flat, pool], Wanted::O).expect_err("three dims");
        assert!(error.message().contains("K has dims [160, 2, 8]; give (page, head"), "{}", error.message());
        assert!(Spec::read("paged: many").is_err());
    }

    #[test]
    fn tensors_of_the_wrong_rank_are_named() {
        let spec = Spec::read("mask: causal").expect("it reads");
        let flat = GivenTensor { dims: &[16, 8], strides: &[8, 1], ..BSHD };
        let error = spec.attention([BSHD, flat, BSHD], Wanted::Stats).expect_err("two dims");
        assert!(error.message().contains("K has dims [16, 8]"), "{}", error.message());
    }
}
