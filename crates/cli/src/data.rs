//! Input data for attentions that are too large for the oracle's generator: repeating noise, and meaningful values for
//! masks and expressions.

use std::borrow::Cow;

use qkvault_base::random::Rng;
use qkvault_graph::expr::ScoreExpr;
use qkvault_graph::{
    CuSeqlens, DType, Fp8, MAX_ORIGIN, Operand, Role, Scaled, Storage, Valid, operands, ragged_offsets,
};
use qkvault_reference::{Buffer, Inputs, alibi_slopes};

/// Elements after which the noise repeats. It is a prime, so that rows and heads differ.
const PERIOD: usize = 1_000_003;

/// The values that random noise cannot replace, and the seed of the noise.
#[derive(Clone, Debug)]
pub struct DataRecipe {
    /// Values of scalars, by name.
    pub scalars: Vec<(String, f64)>,
    /// Whether scalars without a value here get a random one.
    pub draw_others: bool,
    /// Documents of a sequence, for integer tensors that an expression reads by position.
    pub documents: Split,
    /// Lengths of the sequences of varlen operands.
    pub varlen: Vec<i32>,
    /// Seed of all random values.
    pub seed: u64,
}

/// How a sequence is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// This many parts, equal up to rounding.
    Equal(u64),
    /// Parts of these lengths.
    Lengths(Vec<u64>),
}

impl Split {
    /// Lengths of the parts of a sequence with `positions` positions.
    pub fn lengths(&self, positions: u64) -> Vec<u64> {
        match self {
            Split::Equal(n) => {
                (0..*n).map(|i| ((i + 1) * positions).div_ceil(*n) - (i * positions).div_ceil(*n)).collect()
            }
            Split::Lengths(list) => list.clone(),
        }
    }

    /// The number of the part that contains each position.
    pub fn parts(&self, positions: u64) -> Vec<u64> {
        let of = |(n, length): (usize, u64)| std::iter::repeat_n(n as u64, length as usize);
        self.lengths(positions).into_iter().enumerate().flat_map(of).collect()
    }

    /// The number of parts.
    pub fn count(&self) -> u64 {
        match self {
            Split::Equal(n) => *n,
            Split::Lengths(list) => list.len() as u64,
        }
    }
}

/// Every input of an attention, without O and Stats of a backward: the forward computes those.
///
/// # Errors
///
/// A scalar has no value.
pub fn inputs(attention: &Valid, recipe: &DataRecipe) -> Result<Inputs, String> {
    let mut inputs = Inputs::new();
    let from_forward = |role| attention.is_backward() && [Role::O, Role::Stats].contains(&role);
    for operand in operands(attention).iter().filter(|o| !o.output && !from_forward(o.role)) {
        inputs.insert(operand.role, fill(attention, operand, recipe)?);
    }
    if matches!(attention.q.storage, Storage::Varlen { .. }) {
        pack(attention, &recipe.varlen, &mut inputs).map_err(|refusal| refusal.to_string())?;
    }
    Ok(inputs)
}

/// Binds the scales of an attention in 8 bits: a forward reads some that its backward does not, and others suit it.
pub fn set_scales(attention: &Valid, inputs: &mut Inputs) {
    for operand in operands(attention).iter().filter(|o| !o.output) {
        if let Some(scale) = scale(attention, operand.role) {
            inputs.set_f32(operand.role, scale as f32);
        }
    }
}

/// The inputs for the oracle: in 8 bits without its roundings between products. A kernel rounds exponentials before
/// their sum divides them, and the oracle rounds probabilities, which over many keys are too small for their scale.
#[must_use]
pub fn exact<'i>(a: &Valid, inputs: &'i Inputs) -> Cow<'i, Inputs> {
    if a.fp8.is_none() { Cow::Borrowed(inputs) } else { Cow::Owned(inputs.clone().unrounded()) }
}

/// The factor of a tensor in 8 bits, with which normal numbers and what follows from them use the range of e4m3: the
/// descale is its inverse. Probabilities are about the inverse of the number of keys, and so are their gradients.
fn scale(a: &Valid, role: Role) -> Option<f64> {
    a.fp8?;
    let keys = a.seq().1 as f64;
    let of = |scaled| match scaled {
        Scaled::S if a.is_backward() => 4.0 * keys,
        Scaled::S => 256.0,
        Scaled::O => 32.0,
        Scaled::DP => 16.0 * keys,
        Scaled::DQ | Scaled::DK | Scaled::DV => 16.0 * keys.sqrt(),
        // Normal numbers are stored as they are.
        _ => 1.0,
    };
    // Block scales are no numbers of their tensor.
    if a.fp8 == Some(Fp8::Block) {
        return None;
    }
    match role {
        Role::ScaleOf(scaled) => Some(of(scaled)),
        Role::Descale(scaled) => Some(1.0 / of(scaled)),
        _ => None,
    }
}

/// Adds the lengths and offsets of varlen sequences.
fn pack(a: &Valid, lengths: &[i32], inputs: &mut Inputs) -> Result<(), qkvault_graph::Refusal> {
    let cumulative = CuSeqlens::from_lengths(lengths)?;
    for (operand, offsets) in ragged_offsets(a, &cumulative, &cumulative)? {
        let entries = offsets.elements().iter().flat_map(|n| n.to_ne_bytes()).collect();
        inputs.insert(Role::Offsets(operand), Buffer::new(DType::I64, entries).expect("whole numbers"));
    }
    [Role::SeqLenQ, Role::SeqLenKv].into_iter().for_each(|role| inputs.set_i32(role, lengths));
    Ok(())
}

fn fill(a: &Valid, operand: &Operand, recipe: &DataRecipe) -> Result<Buffer, String> {
    let (role, dtype) = (operand.role, operand.tensor.dtype);
    let len = operand.elements().ok_or_else(|| format!("{role} is too large"))?;
    let mut rng = Rng::new(recipe.seed ^ role.uid().unsigned_abs().wrapping_mul(0x2545_f491_4f6c_dd1d));
    // Queries and keys use the same random fractions: a sequence whose full length has no more queries than keys keeps
    // that property.
    let lengths = |most: i64| {
        let mut rng = Rng::new(recipe.seed ^ 0x6c65_6e67_7468);
        let one = |_| ((0.5 + 0.5 * rng.unit()) * most as f64).ceil();
        Buffer::from_values(DType::I32, (0..len).map(one).collect::<Vec<_>>())
    };
    if let Some(slopes) = alibi_slopes(a, role) {
        return Ok(slopes);
    }
    if let (Some(scale), DType::F32) = (scale(a, role), dtype) {
        return Ok(Buffer::from_values(dtype, [scale]));
    }
    Ok(match role {
        Role::Scale => Buffer::from_values(dtype, [f64::from(a.default_scale())]),
        // The last chunk of its keys: every query sees one.
        Role::QueryOrigin => Buffer::from_values(dtype, [(a.seq().1 - a.seq().0).clamp(0, MAX_ORIGIN.into()) as f64]),
        Role::KeyOrigin => Buffer::from_values(dtype, [0.0]),
        Role::Scalar(n) => Buffer::from_values(dtype, [scalar(a, n, dtype, recipe, &mut rng)?]),
        Role::ScoreTensor(_) if !dtype.is_float() => documents(operand, &recipe.documents),
        Role::SeqLenQ => lengths(a.seq().0),
        Role::SeqLenKv => lengths(a.seq().1),
        Role::DropoutSeed | Role::DropoutOffset => Buffer::from_values(dtype, [(recipe.seed % 1_000) as f64]),
        Role::DropoutMask => {
            let drop = a.dropout.map_or(0.0, |d| f64::from(d.probability));
            let keep = |rng: &mut Rng| f64::from(u8::from(rng.unit() >= drop));
            repeated(dtype, len, &mut rng, keep)
        }
        _ => repeated(dtype, len, &mut rng, |rng| rng.normals()[0]),
    })
}

/// A buffer of generated elements that repeat after `PERIOD`.
fn repeated(dtype: DType, len: usize, rng: &mut Rng, mut one: impl FnMut(&mut Rng) -> f64) -> Buffer {
    let block = Buffer::from_values(dtype, (0..len.min(PERIOD)).map(|_| one(rng)).collect::<Vec<_>>());
    let bytes: Vec<u8> = block.bytes().iter().copied().cycle().take(len * dtype.size()).collect();
    Buffer::new(dtype, bytes).expect("whole elements")
}

/// The expressions, in the order that numbers their operands.
fn expressions(a: &Valid) -> impl Iterator<Item = &ScoreExpr> {
    [a.score_mod.as_ref(), a.mask.mask_mod.as_ref()].into_iter().flatten()
}

fn scalar(a: &Valid, n: u16, dtype: DType, recipe: &DataRecipe, rng: &mut Rng) -> Result<f64, String> {
    let name = expressions(a).flat_map(|e| e.scalar_names()).nth(n.into()).map_or("", String::as_str);
    let known = recipe.scalars.iter().find(|(known, _)| known == name);
    let drawn = || if dtype.is_float() { 0.5 + 3.5 * rng.unit() } else { rng.within(1, 100) as f64 };
    known
        .map(|(_, value)| *value)
        .or_else(|| recipe.draw_others.then(drawn))
        .ok_or_else(|| format!("the scalar '{name}' has no value; add a line `scalar: {name} 50`"))
}

/// The document number of each position. A tensor with one position holds the length of a prefix instead: the number of
/// documents.
fn documents(operand: &Operand, documents: &Split) -> Buffer {
    let [_, _, q, k] = operand.tensor.dims;
    let positions = q.max(k).unsigned_abs();
    let parts = if positions > 1 { documents.parts(positions) } else { vec![documents.count()] };
    let all = operand.tensor.dims.iter().product::<i64>().unsigned_abs() as usize;
    Buffer::from_values(operand.tensor.dtype, parts.iter().cycle().take(all).map(|&part| part as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::{BackwardOptions, Documents, Varlen, text, validate};

    fn attention(expressions: &str) -> Valid {
        let text = format!("q: bf16 [2,2,64,16]\noutputs: stats\n{expressions}");
        let attention = text::parse(&text).expect("it reads").backward(BackwardOptions::default());
        validate(attention).expect("it is sound")
    }

    fn recipe() -> DataRecipe {
        DataRecipe {
            scalars: vec![("cap".into(), 50.0)],
            draw_others: false,
            documents: Split::Equal(4),
            varlen: Vec::new(),
            seed: 3,
        }
    }

    #[test]
    fn a_backward_gets_every_input_but_o_and_stats_of_its_forward() {
        let a = attention(
            "score_mod: scalar $cap: float; tensor @alibi_slopes: f32[1, 2, 1, 1] alibi 2; tanh(score / $cap) * $cap + @alibi_slopes * float(key - query)\nlengths: per-sequence",
        );
        let inputs = inputs(&a, &recipe()).expect("every scalar has a value");
        let roles: Vec<Role> = operands(&a).iter().filter(|o| !o.output).map(|o| o.role).collect();
        let missing: Vec<&Role> = roles.iter().filter(|role| inputs.get(**role).is_none()).collect();
        assert_eq!(missing, [&Role::O, &Role::Stats]);
        assert_eq!(inputs.get(Role::Scalar(0)).map(|b| b.get(0)), Some(50.0));
        assert_eq!(inputs.get(Role::ScoreTensor(0)).map(|b| b.get(1)), Some(0.003_906_25));
        let lengths = inputs.get(Role::SeqLenKv).expect("there");
        assert!((0..2).all(|i| (32..=64).contains(&lengths.int(i))), "{lengths:?}");
        let q = inputs.get(Role::Q).expect("there");
        let mean = (0..q.len()).map(|i| q.get(i)).sum::<f64>() / q.len() as f64;
        let square = (0..q.len()).map(|i| q.get(i).powi(2)).sum::<f64>() / q.len() as f64;
        assert!(mean.abs() < 0.1 && (square - 1.0).abs() < 0.1, "{mean} {square}");
    }

    /// Once every scale was a random number, some of them negative.
    #[test]
    fn scales_of_8_bit_attention_suit_the_pass() {
        let text = "q: e4m3 [1,2,512,128]\nfp8: delayed\noutputs: stats";
        let forward = text::parse(text).expect("it reads");
        let backward = validate(forward.clone().backward(BackwardOptions::default())).expect("it is sound");
        let forward = validate(forward).expect("it is sound");
        let mut given = inputs(&backward, &recipe()).expect("every operand has a value");
        let number = |given: &Inputs, role| given.get(role).map(|buffer| buffer.get(0));
        assert_eq!(number(&given, Role::ScaleOf(Scaled::S)), Some(2048.0));
        assert_eq!(number(&given, Role::ScaleOf(Scaled::O)), None);
        set_scales(&forward, &mut given);
        assert_eq!(number(&given, Role::ScaleOf(Scaled::S)), Some(256.0));
        assert_eq!(number(&given, Role::ScaleOf(Scaled::O)), Some(32.0));
        assert_eq!(number(&given, Role::Descale(Scaled::O)), Some(1.0 / 32.0));
        // Probabilities of many keys, which the oracle would round to nothing with this scale.
        given.set_f32(Role::ScaleOf(Scaled::S), 1e-3);
        given.set_f32(Role::Descale(Scaled::S), 1e3);
        let o =
            |inputs: &Inputs| qkvault_reference::forward_rows(&forward, inputs, &[(0, 0, 7)]).expect("a row")[0].o[3];
        assert!(o(&given) == 0.0 && o(&exact(&forward, &given)) != 0.0);
    }

    #[test]
    fn a_scalar_without_a_value_is_named() {
        let a = attention("score_mod: scalar $other: float; score * $other");
        assert!(inputs(&a, &recipe()).expect_err("no value").contains("other"));
    }

    #[test]
    fn documents_are_of_equal_length_and_follow_the_position() {
        let keep = "mask_mod: tensor @q_ids: i32[2, 1, 64, 1]; tensor @k_ids: i32[2, 1, 1, 64]; @q_ids == @k_ids";
        let inputs = inputs(&attention(keep), &recipe()).expect("no scalars");
        let ids = inputs.get(Role::ScoreTensor(0)).expect("there");
        let found: Vec<i64> = [0, 15, 16, 63, 64, 127].iter().map(|&at| ids.int(at)).collect();
        assert_eq!(found, [0, 0, 1, 3, 0, 3]);
    }

    #[test]
    fn varlen_documents_lie_where_those_of_a_mask_do() {
        let keep = "mask_mod: tensor @q_ids: i32[2, 1, 64, 1]; tensor @k_ids: i32[2, 1, 1, 64]; @q_ids == @k_ids";
        let dense = attention(keep);
        let split = Split::Lengths(vec![30, 10, 24]);
        let recipe = DataRecipe { documents: split.clone(), varlen: vec![30, 10, 24, 30, 10, 24], ..recipe() };
        let masked = inputs(&dense, &recipe).expect("no scalars");
        let ids = masked.get(Role::ScoreTensor(0)).expect("there");
        assert_eq!([29, 30, 39, 40, 63, 64].map(|at| ids.int(at)), [0, 1, 1, 2, 2, 0]);
        let varlen = dense.varlen_documents(Documents { longest: 30, most: 6 }).expect("an equivalent");
        let varlen = inputs(&varlen, &recipe).expect("no scalars");
        for role in [Role::Q, Role::K, Role::V, Role::DO] {
            assert_eq!(varlen.get(role), masked.get(role), "{role}");
        }
        let starts = varlen.get(Role::Offsets(Varlen::Q)).expect("there");
        assert_eq!((0..7).map(|i| starts.int(i) / 32).collect::<Vec<_>>(), [0, 30, 40, 64, 94, 104, 128]);
        assert_eq!(varlen.get(Role::SeqLenKv).map(|b| b.int(1)), Some(10));
        assert_eq!(Split::Equal(3).lengths(10), [4, 3, 3]);
        // Both forms give the same numbers for the last token of the second row. `bench` compares rows in this way.
        let sequences = dense.varlen_documents(Documents { longest: 30, most: 6 }).expect("an equivalent");
        let row = |a: &Valid, inputs: &Inputs, at| {
            qkvault_reference::forward_rows(a, inputs, &[at]).expect("computes").remove(0)
        };
        let (x, y) = (row(&dense, &masked, (1, 1, 63)), row(&sequences, &varlen, (5, 1, 23)));
        assert_eq!((x.o, x.stats), (y.o, y.stats));
    }
}
