//! Random operands: all that an attention reads, from a seed, the same on every machine.

mod lengths;
mod microscale;

use qkvault_base::random::Rng;
use qkvault_graph::{Attention, DType, DropoutSource, Operand, Pass, Role, Scaled, Storage, Valid, operands, validate};

use self::lengths::Drawn;
use crate::view::SeqLens;
use crate::{Buffer, Inputs, ReferenceError, View, forward};

/// What to choose when operands are made at random.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Lengths of sequences, where the attention has any.
    pub lengths: LengthChoice,
    /// What memory holds that no row within a length lies in.
    pub unused: Unused,
    /// Whether varlen operands have unused room between sequences, not only after the last.
    pub spread: bool,
}

/// Lengths of sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LengthChoice {
    /// Any from 1 up; with a bottom-right band, no more queries than keys, so that every query sees a key.
    #[default]
    Varied,
    /// Any from 0 up.
    Any,
    /// As long as the dims and buffers allow.
    Full,
    /// These.
    Exact {
        /// Query lengths.
        q: Vec<usize>,
        /// KV lengths.
        kv: Vec<usize>,
    },
}

/// What padding, gaps and unused pages of Q, K, V and dO hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unused {
    /// Finite numbers like everywhere: what kernels that multiply masked rows by zero need.
    #[default]
    Finite,
    /// NaN in pages that no sequence uses, finite numbers elsewhere: what any kernel must bear.
    Pages,
    /// NaN wherever no row within a length lies: what a computation that reads nothing else must bear.
    Poison,
}

impl Inputs {
    /// Everything that an attention reads, at random: normal numbers, varied lengths, shuffled pages; the usual softmax scale, and the
    /// slopes of ALiBi where the attention says which.
    ///
    /// For a backward, O and Stats are those of its forward, computed here; only where dropout is drawn by Philox are they
    /// left to the caller, since the mask is not known: bind it, then call [`Inputs::add_forward`].
    ///
    /// # Errors
    ///
    /// What [`forward`] says of a backward's forward.
    pub fn random(attention: &Valid, seed: u64) -> Result<Inputs, ReferenceError> {
        Inputs::random_with(attention, seed, &Choice::default())
    }

    /// As [`Inputs::random`], with choices.
    ///
    /// # Errors
    ///
    /// As [`Inputs::random`], and lengths given that do not fit.
    pub fn random_with(attention: &Valid, seed: u64, choice: &Choice) -> Result<Inputs, ReferenceError> {
        let a = attention.get();
        let mut rng = Rng::new(seed);
        let list = operands(a);
        let drawn = lengths::draw(a, &list, choice, &mut rng);
        let mut inputs = Inputs::new();
        lengths::offsets(&list, &drawn, choice, &mut rng, &mut inputs);
        for operand in list.iter().filter(|o| !o.output) {
            // Each operand has a generator of its own, so that adding one does not change the others.
            let mut rng =
                Rng::new(rng.clone().bits() ^ (operand.role.uid() as u64).wrapping_mul(0x2545_f491_4f6c_dd1d));
            if let Some(buffer) = fill(a, operand, &drawn, &mut rng)? {
                inputs.insert(operand.role, buffer);
            }
        }
        microscale::second_forms(a, &mut inputs)?;
        if choice.unused != Unused::Finite {
            poison_unused(a, &list, choice.unused, &mut inputs)?;
        }
        let drawn_mask = a.dropout.is_some_and(|d| d.source == DropoutSource::Philox && d.probability > 0.0);
        if let Pass::Backward(_) = a.pass
            && !drawn_mask
        {
            inputs.add_forward(attention)?;
        }
        Ok(inputs)
    }

    /// Poisons memory of Q, K, V and dO that no row within its sequence's length lies in, by the lengths, offsets and tables that
    /// are bound: for those who bind others than were drawn.
    ///
    /// # Errors
    ///
    /// Lengths, offsets and tables that do not fit.
    pub fn poison_unused(&mut self, attention: &Valid, unused: Unused) -> Result<(), ReferenceError> {
        let a = attention.get();
        match unused {
            Unused::Finite => Ok(()),
            Unused::Pages | Unused::Poison => poison_unused(a, &operands(a), unused, self),
        }
    }

    /// Poisons what lies between the elements of Q, K, V and dO: room behind heads, rows and sequences, and where the other parts of a
    /// shared buffer would be. What reads more than its operand shows it in the result.
    ///
    /// # Errors
    ///
    /// Operands that are not bound, or too short.
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

    /// Adds what the forward leaves for a backward: O and Stats, computed from the other inputs.
    ///
    /// # Errors
    ///
    /// What [`forward`] says of the backward's forward.
    pub fn add_forward(&mut self, backward: &Valid) -> Result<(), ReferenceError> {
        let mut plain = backward.as_forward();
        plain.outputs.stats = true;
        // In 8 bits the backward has no scale of O; its descale says what O was stored with.
        let descale = self.get(Role::Descale(Scaled::O)).map(|buffer| buffer.get(0));
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

fn fill(a: &Attention, operand: &Operand, drawn: &Drawn, rng: &mut Rng) -> Result<Option<Buffer>, ReferenceError> {
    let (len, dtype) = (crate::inputs::elements(operand)?, operand.tensor.dtype);
    let lens = |list: &[usize]| Buffer::of(DType::I32, list.iter().map(|&n| n as f64));
    let one = |x: f64| Buffer::of(dtype, [x]);
    if let Some(slopes) = crate::alibi_slopes(a, operand.role) {
        return Ok(Some(slopes));
    }
    Ok(Some(match operand.role {
        Role::Q | Role::K | Role::V | Role::DO | Role::Sink => normal(dtype, len, rng),
        Role::ScoreTensor(_) if dtype.is_float() => normal(dtype, len, rng),
        // Small numbers repeat, as document ids do.
        Role::ScoreTensor(_) => Buffer::of(dtype, (0..len).map(|_| rng.within(0, 3) as f64)),
        Role::Scale => one(f64::from(a.default_scale())),
        Role::Scalar(_) if dtype.is_float() => one(0.5 + 3.5 * rng.unit()),
        Role::Scalar(_) => one(rng.within(1, (a.k.dims[2] as usize / 2).max(1)) as f64),
        Role::SeqLenQ => lens(&drawn.q),
        Role::SeqLenKv => lens(&drawn.kv),
        Role::PageTableK => return Ok(lengths::page_table(&a.k, drawn, rng)),
        Role::PageTableV => return Ok(lengths::page_table(&a.v, drawn, rng)),
        Role::DropoutSeed => one((rng.bits() >> 33) as f64),
        Role::DropoutOffset => one(rng.within(0, 1000) as f64 * 4.0),
        Role::DropoutMask => {
            let keep = 1.0 - a.dropout.map_or(0.0, |d| f64::from(d.probability));
            Buffer::of(dtype, (0..len).map(|_| f64::from(u8::from(rng.unit() < keep))))
        }
        Role::BlockMask => Buffer::of(dtype, (0..len).map(|_| (rng.bits() >> 56 | 1) as f64)),
        // Block scales: powers of two around that of 8-bit numbers, so that what they stand for is about normal.
        Role::Descale(_) if dtype == DType::E8M0 => {
            Buffer::of(dtype, (0..len).map(|_| 2f64.powi(rng.within(0, 2) as i32 - 6)))
        }
        Role::Descale(which) => one(f64::from((1.0 / scale_of(which)) as f32)),
        Role::ScaleOf(which) => one(scale_of(which)),
        _ => return Ok(None),
    }))
}

/// Scales under which normal numbers and their attention fill the range of e4m3 and stay inside it.
fn scale_of(which: Scaled) -> f64 {
    match which {
        Scaled::S => 256.0,
        Scaled::DP | Scaled::DQ | Scaled::DK => 64.0,
        Scaled::Q | Scaled::K | Scaled::V | Scaled::O | Scaled::DO | Scaled::DV => 32.0,
        // These have a scale per block instead.
        Scaled::QT | Scaled::KT | Scaled::DOT => 1.0,
    }
}

/// Numbers that are made together, from a generator of their own: so that many can be made at a time.
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

/// Whether a launch reads the operand row by row, those of padding too.
const fn is_read_by_rows(role: Role) -> bool {
    use Role::{DO, DOHalf, DOT, K, KT, Q, QT, V};
    matches!(role, Q | K | V | DO | QT | KT | DOT | DOHalf)
}

/// Poisons what no row within its sequence's length lies in, of Q, K, V and dO; or only pages that hold no such row.
fn poison_unused(a: &Attention, list: &[Operand], unused: Unused, inputs: &mut Inputs) -> Result<(), ReferenceError> {
    let lens = SeqLens::of(a, inputs)?;
    for operand in list.iter().filter(|o| is_read_by_rows(o.role)) {
        let page_size = match operand.tensor.storage {
            Storage::Paged { page_size, .. } if unused == Unused::Pages => page_size as usize,
            _ if unused == Unused::Pages => continue,
            _ => 1,
        };
        let view = View::of(operand, inputs, &lens)?;
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
