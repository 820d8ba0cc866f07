//! Random operands for an attention, from a seed; the same on every machine.

mod added;
mod family;
mod lengths;
mod microscale;

pub use family::{Family, UnknownFamily};

use qkvault_base::random::Rng;
use qkvault_graph::{
    Attention, Band, DType, DropoutSource, Operand, Origins, Pass, Role, Scaled, Storage, Valid, operands, validate,
};

use self::lengths::DrawnLengths;
use crate::view::SeqLens;
use crate::{Buffer, Inputs, ReferenceError, View, forward, memory};

/// How to choose random operands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RandomChoice {
    /// Lengths of sequences, if the attention has lengths.
    pub lengths: LengthChoice,
    /// The content of memory outside the rows within lengths.
    pub unused: Unused,
    /// Whether varlen operands have unused room between sequences, instead of only after the last.
    pub spread: bool,
    /// What kind of numbers the operands hold.
    pub family: Family,
}

/// Lengths of sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LengthChoice {
    /// At least 1; with a bottom-right band at most as many queries as keys, so that every query sees a key.
    #[default]
    Varied,
    /// At least 0.
    Any,
    /// As long as the dims and buffers allow.
    Full,
    /// These lengths.
    Exact {
        /// Query lengths.
        q: Vec<usize>,
        /// KV lengths.
        kv: Vec<usize>,
    },
}

/// The content of padding, gaps and unused pages of Q, K, V and dO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unused {
    /// Finite numbers, for kernels that multiply masked rows by zero.
    #[default]
    Finite,
    /// NaN in pages that no sequence uses, finite numbers elsewhere. Every kernel must handle this.
    Pages,
    /// NaN everywhere outside the rows within lengths, for computations that must read nothing else.
    Poison,
}

impl Inputs {
    /// Random values for every operand of an attention: normal numbers, varied lengths and shuffled pages, with the
    /// usual softmax scale and the ALiBi slopes of the description.
    ///
    /// For a backward, O and Stats are computed by its forward. The exception is dropout by Philox, whose mask is
    /// unknown: bind the mask, then call [`Inputs::add_forward`].
    ///
    /// # Errors
    ///
    /// [`ReferenceError::Memory`] if there is no room for them; the errors of [`forward`], for a backward.
    pub fn random(attention: &Valid, seed: u64) -> Result<Inputs, ReferenceError> {
        Inputs::random_with(attention, seed, &RandomChoice::default())
    }

    /// Random values for every operand as [`Inputs::random`] makes them, with choices.
    ///
    /// # Errors
    ///
    /// The errors of [`Inputs::random`], and errors for exact lengths that do not fit.
    pub fn random_with(attention: &Valid, seed: u64, choice: &RandomChoice) -> Result<Inputs, ReferenceError> {
        let a = attention.get();
        memory::for_random(a)?;
        let mut rng = Rng::new(seed);
        let list = operands(a);
        let drawn = lengths::draw(a, &list, choice, &mut rng);
        let mut inputs = Inputs::new();
        lengths::offsets(&list, &drawn, choice, &mut rng, &mut inputs);
        for operand in list.iter().filter(|o| !o.output) {
            // Each operand has its own generator, so a new operand does not change the others.
            let mut rng =
                Rng::new(rng.clone().bits() ^ (operand.role.uid() as u64).wrapping_mul(0x2545_f491_4f6c_dd1d));
            if let Some(buffer) = fill(a, operand, &drawn, &mut rng)? {
                inputs.insert(operand.role, buffer);
            }
        }
        family::shape(a, &list, choice.family, &mut inputs)?;
        microscale::second_forms(a, &mut inputs)?;
        let unused = if choice.family == Family::Behind { Unused::Poison } else { choice.unused };
        if unused != Unused::Finite {
            poison_unused(a, &list, unused, &mut inputs)?;
        }
        let drawn_mask = a.dropout.is_some_and(|d| d.source == DropoutSource::Philox && d.probability > 0.0);
        if let Pass::Backward(_) = a.pass
            && !drawn_mask
        {
            inputs.add_forward(attention)?;
        }
        Ok(inputs)
    }

    /// Draws other origins, for another launch of the same plan over the same operands; a backward gets the O and Stats
    /// of its forward there. Without origins, nothing changes.
    ///
    /// # Errors
    ///
    /// As [`Inputs::random`].
    pub fn move_origins(&mut self, attention: &Valid, seed: u64) -> Result<(), ReferenceError> {
        let mut rng = Rng::new(seed ^ 0x6d6f_7665);
        for operand in operands(attention).iter().filter(|o| matches!(o.role, Role::QueryOrigin | Role::KeyOrigin)) {
            let origin = origin(attention, operand.role, &mut rng);
            self.insert(operand.role, Buffer::from_values(operand.tensor.dtype, [origin]));
        }
        if attention.is_backward() && attention.origins.is_some() {
            self.add_forward(attention)?;
        }
        Ok(())
    }

    /// Poisons the memory of Q, K, V and dO outside the rows within lengths, according to the bound lengths, offsets
    /// and tables. Use it after binding other lengths than those drawn.
    ///
    /// # Errors
    ///
    /// An error for lengths, offsets or tables that do not fit.
    pub fn poison_unused(&mut self, attention: &Valid, unused: Unused) -> Result<(), ReferenceError> {
        let a = attention.get();
        match unused {
            Unused::Finite => Ok(()),
            Unused::Pages | Unused::Poison => poison_unused(a, &operands(a), unused, self),
        }
    }

    /// Poisons the memory between the elements of Q, K, V and dO: the room behind heads, rows and sequences, and the
    /// other parts of a shared buffer. A computation that reads beyond its operand then has a wrong result.
    ///
    /// # Errors
    ///
    /// An error for operands that are not bound or too short.
    pub fn poison_between(&mut self, attention: &Valid) -> Result<(), ReferenceError> {
        for operand in operands(attention.get()).iter().filter(|o| is_read_by_rows(o.role)) {
            let full = self.checked(operand)?;
            let [batch, heads, rows, d] = operand.tensor.extents().map(|n| n as usize);
            let [sb, sh, ss, _] = operand.tensor.strides.map(|n| n as usize);
            if batch * heads * rows * d == full.len() {
                continue;
            }
            let mut kept = Buffer::poisoned(full.dtype(), full.len());
            for b in 0..batch {
                for (h, s) in (0..heads).flat_map(|h| (0..rows).map(move |s| (h, s))) {
                    let start = b * sb + h * sh + s * ss;
                    (start..start + d).for_each(|at| kept.copy(at, full));
                }
            }
            self.insert(operand.role, kept);
        }
        Ok(())
    }

    /// Computes the O and Stats that a backward reads, from the other inputs, and binds them.
    ///
    /// # Errors
    ///
    /// The errors of [`forward`] for the backward's forward.
    pub fn add_forward(&mut self, backward: &Valid) -> Result<(), ReferenceError> {
        let mut plain = backward.as_forward();
        plain.outputs.stats = true;
        // In 8 bits the backward has no scale of O; the descale is the inverse of the scale that O was stored with.
        let descale = self.get(Role::Descale(Scaled::O)).map(|buffer| buffer.get(0));
        memory::for_copy(self)?;
        let mut bound = self.clone();
        microscale::forward_values(backward.get(), &plain, &mut bound)?;
        if let Some(descale) = descale {
            bound.set_f32(Role::ScaleOf(Scaled::O), (1.0 / descale) as f32);
        }
        let outputs = forward(&validate(plain).map_err(ReferenceError::Forward)?, &bound)?;
        for role in [Role::O, Role::Stats] {
            if let Some(buffer) = outputs.buffer(role) {
                self.insert(role, buffer);
            }
        }
        Ok(())
    }
}

fn fill(
    a: &Attention,
    operand: &Operand,
    drawn: &DrawnLengths,
    rng: &mut Rng,
) -> Result<Option<Buffer>, ReferenceError> {
    let (len, dtype) = (crate::inputs::elements(operand)?, operand.tensor.dtype);
    let lens = |list: &[usize]| Buffer::from_values(DType::I32, list.iter().map(|&n| n as f64));
    let one = |x: f64| Buffer::from_values(dtype, [x]);
    if let Some(slopes) = crate::alibi_slopes(a, operand.role) {
        return Ok(Some(slopes));
    }
    Ok(Some(match operand.role {
        Role::Q | Role::K | Role::V | Role::DO | Role::Sink => normal(dtype, len, rng),
        Role::ScoreTensor(_) if dtype.is_float() => normal(dtype, len, rng),
        // A few small numbers that repeat, like document ids.
        Role::ScoreTensor(_) => Buffer::from_values(dtype, (0..len).map(|_| rng.within(0, 3) as f64)),
        Role::Scale => one(f64::from(a.default_scale())),
        Role::Scalar(_) if dtype.is_float() => one(0.5 + 3.5 * rng.unit()),
        Role::Scalar(_) => one(rng.within(1, (a.k.dims[2] as usize / 2).max(1)) as f64),
        Role::QueryOrigin | Role::KeyOrigin => one(origin(a, operand.role, rng)),
        Role::SeqLenQ => lens(&drawn.q),
        Role::SeqLenKv => lens(&drawn.kv),
        Role::PageTableK => return Ok(lengths::page_table(&a.k, drawn, rng)),
        Role::PageTableV => return Ok(lengths::page_table(&a.v, drawn, rng)),
        Role::DropoutSeed => one((rng.bits() >> 33) as f64),
        Role::DropoutOffset => one(rng.within(0, 1000) as f64 * 4.0),
        Role::DropoutMask => {
            let keep = 1.0 - a.dropout.map_or(0.0, |d| f64::from(d.probability));
            Buffer::from_values(dtype, (0..len).map(|_| f64::from(u8::from(rng.unit() < keep))))
        }
        Role::BlockMask => Buffer::from_values(dtype, (0..len).map(|_| (rng.bits() >> 56 | 1) as f64)),
        Role::DraftTree => Buffer::from_values(dtype, (0..len).map(|_| f64::from((rng.bits() >> 32) as u32 as i32))),
        // Block scales: powers of two near the scale of 8-bit numbers, so that the products are about normal.
        Role::Descale(_) if dtype == DType::E8M0 => {
            Buffer::from_values(dtype, (0..len).map(|_| 2f64.powi(rng.within(0, 2) as i32 - 6)))
        }
        Role::Descale(which) => one(f64::from((1.0 / scale_of(which)) as f32)),
        Role::ScaleOf(which) => one(scale_of(which)),
        _ => return Ok(None),
    }))
}

/// An origin: of the queries up to twice as many as there are keys, of the keys up to half of them. With the promise
/// that every query sees a key, the one with which the diagonal ends where the keys do, and with which a window does
/// not begin behind them.
fn origin(a: &Attention, role: Role, rng: &mut Rng) -> f64 {
    let (s_q, s_kv) = a.seq();
    if a.origins != Some(Origins::EveryQuerySeesAKey) {
        return rng.within(0, if role == Role::QueryOrigin { 2 * s_kv as usize } else { s_kv as usize / 2 }) as f64;
    }
    // The distance `query_origin - key_origin` is within what the two bounds allow.
    let Some(Band { corner: _, left, right }) = a.mask.band else { return 0.0 };
    let least = right.map_or(i64::MIN, |right| -right).max(-16);
    let most = left.map_or(i64::MAX, |left| left - (s_q - s_kv + 1)).min(least.max(0) + 2 * s_kv);
    let distance = if least > most { least } else { (least + most) / 2 };
    (if role == Role::QueryOrigin { distance.max(0) } else { (-distance).max(0) }) as f64
}

/// Scales with which normal numbers and the results of their attention use the range of e4m3 without leaving it.
fn scale_of(which: Scaled) -> f64 {
    match which {
        Scaled::S => 256.0,
        Scaled::DP | Scaled::DQ | Scaled::DK => 64.0,
        Scaled::Q | Scaled::K | Scaled::V | Scaled::O | Scaled::DO | Scaled::DV => 32.0,
        // These tensors have a scale per block instead.
        Scaled::QT | Scaled::KT | Scaled::DOT => 1.0,
    }
}

/// Number of elements that share one generator, so that several threads can fill a buffer.
const CHUNK: usize = 1 << 12;

fn normal(dtype: DType, len: usize, rng: &mut Rng) -> Buffer {
    let factor = if dtype.is_fp8() { 32.0 } else { 1.0 };
    let seed = rng.bits();
    Buffer::filled(dtype, len, CHUNK, |chunk, numbers| {
        let mut rng = Rng::new(seed ^ (chunk as u64).wrapping_mul(0xd134_2543_de82_ef95));
        for pair in numbers.chunks_mut(2) {
            pair.iter_mut().zip(rng.normals()).for_each(|(x, normal)| *x = normal * factor);
        }
    })
}

/// Whether a launch reads the operand row by row, including rows of padding.
const fn is_read_by_rows(role: Role) -> bool {
    use Role::{DO, DOHalf, DOT, K, KT, Q, QT, V};
    matches!(role, Q | K | V | DO | QT | KT | DOT | DOHalf)
}

/// Poisons Q, K, V and dO outside the rows within lengths, or only the pages without such rows.
fn poison_unused(a: &Attention, list: &[Operand], unused: Unused, inputs: &mut Inputs) -> Result<(), ReferenceError> {
    let lens = SeqLens::for_attention(a, inputs)?;
    for operand in list.iter().filter(|o| is_read_by_rows(o.role)) {
        let page_size = match operand.tensor.storage {
            Storage::Paged { page_size, .. } if unused == Unused::Pages => page_size as usize,
            _ if unused == Unused::Pages => continue,
            _ => 1,
        };
        let view = View::for_operand(operand, inputs, &lens)?;
        let full = inputs.checked(operand)?;
        let mut kept = Buffer::poisoned(full.dtype(), full.len());
        let [_, heads, _, d] = view.dims;
        for (b, &len) in lens.side(operand.role).iter().enumerate() {
            for h in 0..heads {
                for s in 0..len.next_multiple_of(page_size) {
                    let start = view.row(b, h, s);
                    (start..start + d).for_each(|at| kept.copy(at, full));
                }
            }
        }
        inputs.insert(operand.role, kept);
    }
    Ok(())
}
