//! Compositions: which sequences a launch has, how far each has come, and how many of its tokens are new.

use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use qkvault_base::random::Rng;
use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{Args, BatchMetadata, LoadedPlan, cudarc};
use qkvault_graph::{Attention, Band, DType, Role, Tensor, Valid, validate};

use super::ComparedGround;
use super::pools::{HEAD_DIM, HEADS, MOST, PAGES, Pool, PooledWorld, QUERY, TAIL};

/// The forms of launches: sequences, new tokens of one at most, and of all together; one new token is a decode.
const FORMS: [(usize, usize, usize); 5] = [(1, 1, 1), (8, 1, 8), (32, 1, 32), (4, 600, 800), (24, 40, 400)];

/// A sequence of a launch: which, how many keys, how many of them are new.
#[derive(Clone, Copy)]
struct ComposedPart {
    sequence: usize,
    keys: usize,
    new: usize,
}

pub(super) struct Composition {
    form: usize,
    pool: usize,
    parts: Vec<ComposedPart>,
}

impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (batch, ..) = FORMS[self.form];
        write!(f, "{} of {batch} sequences, pages of {}", self.parts.len(), PAGES[self.pool])
    }
}

impl Composition {
    pub(super) fn random(rng: &mut Rng, world: &PooledWorld) -> Composition {
        let form = rng.within(0, FORMS.len() - 1);
        let (batch, most, mut room) = FORMS[form];
        let mut parts = Vec::new();
        for _ in 0..rng.within(1, batch) {
            let sequence = rng.within(0, world.lengths.len() - 1);
            let length = world.lengths[sequence];
            let tail = length.min(TAIL);
            let new = rng.within(1, most.min(tail).min(room));
            parts.push(ComposedPart { sequence, keys: rng.within(length - tail + new, length), new });
            room -= new;
            if room == 0 {
                break;
            }
        }
        Composition { form, pool: rng.within(0, PAGES.len() - 1), parts }
    }
}

/// The plans and the memory of each form over each pool.
pub(super) struct Steps(Vec<Vec<FormStep>>);

struct FormStep {
    plan: LoadedPlan,
    batch: BatchMetadata,
    q: CudaSlice<u8>,
    o: CudaSlice<u8>,
}

fn attention((batch, most, tokens): (usize, usize, usize), pool: &Pool) -> anyhow::Result<Valid> {
    let n = |x: usize| i64::try_from(x);
    let (b, heads, d) = (n(batch)?, (n(HEADS.0)?, n(HEADS.1)?), n(HEAD_DIM)?);
    let mut a = Attention::bshd(b, heads, (n(most)?, n(MOST)?), d, DType::BF16).with_lengths().invariant();
    a.k = Tensor::paged_nhd(b, heads.1, n(MOST)?, d, n(pool.pages)?, n(pool.page)?, DType::BF16);
    a.v = a.k;
    if most > 1 {
        a.q = Tensor::thd(b, heads.0, n(most)?, d, n(tokens)?, DType::BF16);
        a.o = a.q;
    }
    Ok(validate(a.with_band(Band::CAUSAL_BOTTOM_RIGHT))?)
}

impl Steps {
    pub(super) fn prepare(
        ground: &ComparedGround,
        world: &PooledWorld,
        stream: &Arc<CudaStream>,
    ) -> anyhow::Result<Steps> {
        let of = |form: &(usize, usize, usize), pool: &Pool| -> anyhow::Result<FormStep> {
            let attention = attention(*form, pool)?;
            let plan = ground.plan(&attention)?;
            let batch = BatchMetadata::new(&plan, &attention, stream)?;
            let bytes = form.2.max(form.0) * QUERY * 2;
            Ok(FormStep { plan, batch, q: stream.alloc_zeros(bytes)?, o: stream.alloc_zeros(bytes)? })
        };
        let all = FORMS.iter().map(|form| world.pools.iter().map(|pool| of(form, pool)).collect());
        Ok(Steps(all.collect::<anyhow::Result<_>>()?))
    }

    /// The bits of every query of a composition, as a hash, by sequence and position.
    pub(super) fn rows(
        &mut self,
        composition: &Composition,
        world: &PooledWorld,
        stream: &Arc<CudaStream>,
    ) -> anyhow::Result<Vec<((usize, i32), u64)>> {
        let Composition { form, pool, parts } = composition;
        let ((room, ..), of, step) = (FORMS[*form], &world.pools[*pool], &mut self.0[*form][*pool]);
        let (mut lengths, mut tables) = ([vec![0_i32; room], vec![0_i32; room]], vec![Vec::new(); room]);
        let mut queries: Vec<u8> = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            (lengths[0][at], lengths[1][at]) = (i32::try_from(part.new)?, i32::try_from(part.keys)?);
            tables[at].clone_from(&of.tables[part.sequence]);
            let rows = world.queries(part.sequence, part.keys, part.new);
            queries.extend(rows.iter().flat_map(|x| x.to_ne_bytes()));
        }
        step.batch.update(&Step::paged(Rows::Lengths(&lengths[0]), Rows::Lengths(&lengths[1]), &tables), stream)?;
        stream.memcpy_htod(&queries, &mut step.q.slice_mut(..queries.len()))?;
        // What is not written is no number.
        stream.memcpy_htod(&vec![0xff; step.o.len()], &mut step.o)?;
        let scale = (HEAD_DIM as f32).powf(-0.5);
        let args = Args::new()
            .scale(scale)
            .tensor(Role::Q, &step.q)
            .tensor(Role::K, &of.keys)
            .tensor(Role::V, &of.values)
            .tensor_mut(Role::O, &mut step.o)
            .batch(&step.batch);
        step.plan.bind(args, stream)?.launch(stream)?;
        let o = stream.clone_dtoh(&step.o)?;
        let mut rows = o.chunks_exact(QUERY * 2);
        let mut found = Vec::new();
        for part in parts {
            for (row, position) in rows.by_ref().take(part.new).zip(part.keys - part.new..) {
                found.push(((part.sequence, i32::try_from(position)?), bits(row)));
            }
        }
        Ok(found)
    }
}

/// A hash of a row's bytes, for comparisons within a run.
fn bits(row: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(row);
    hasher.finish()
}
