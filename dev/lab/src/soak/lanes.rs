//! The lanes of a soak: each has a stream, an attention with data of its own, and what its launches must give.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault::Runtime;
use qkvault_exec::serving::{Rows, Step};
use qkvault_exec::{BatchMetadata, SavedForBackward, Training, cudarc};
use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, DType, Role, Valid, validate};
use qkvault_reference::{Buffer, Inputs, LengthChoice, RandomChoice, backward, forward};
use qkvault_serving::{Bucket, ServeLayer, StepKind};

use super::checked::CheckedOutputs;
use super::graph::Graph;
use super::operands::{SoakOperands, scalars};

/// What a lane launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LaneKind {
    /// A causal prefill with statistics.
    Prefill,
    /// A prefill with a softcap in f16.
    Softcap,
    /// One query per sequence.
    Decode,
    /// A forward and its backward.
    Training,
    /// A forward and its deterministic backward.
    SameBits,
    /// A decode over pages, whose lengths and tables change with every launch.
    Paged,
    /// Replays of a graph with other data each time, whose operands are replaced now and then.
    Graph,
}

impl LaneKind {
    pub(super) const ALL: [LaneKind; 7] = [
        LaneKind::Prefill,
        LaneKind::Softcap,
        LaneKind::Decode,
        LaneKind::Training,
        LaneKind::SameBits,
        LaneKind::Paged,
        LaneKind::Graph,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            LaneKind::Prefill => "prefill",
            LaneKind::Softcap => "softcap",
            LaneKind::Decode => "decode",
            LaneKind::Training => "training",
            LaneKind::SameBits => "deterministic training",
            LaneKind::Paged => "paged decode",
            LaneKind::Graph => "graph replay",
        }
    }

    /// The attention of a lane; for a training, its forward.
    fn attention(self) -> anyhow::Result<Attention> {
        let causal = |dtype| Attention::bshd(1, (4, 2), (128, 128), 64, dtype).with_band(Band::CAUSAL);
        Ok(match self {
            LaneKind::Prefill => {
                Attention::bshd(2, (4, 2), (128, 128), 128, DType::BF16).with_band(Band::CAUSAL).with_stats()
            }
            LaneKind::Softcap => {
                causal(DType::F16).with_score_mod(library::softcap(score(), scalar("cap")).build_score_mod()?)
            }
            LaneKind::Decode => Attention::bshd(4, (8, 2), (1, 256), 128, DType::BF16),
            LaneKind::Training => causal(DType::BF16),
            LaneKind::SameBits => Attention::bshd(1, (2, 2), (128, 128), 64, DType::BF16),
            LaneKind::Paged => {
                let bucket = Bucket { kind: StepKind::Decode, batch: 4, queries: 1, keys: 256, tokens: 4 };
                return Ok((*ServeLayer::new((8, 2), (64, 64), DType::BF16, PAGES, 16).attention(&bucket)?).clone());
            }
            LaneKind::Graph => Attention::bshd(2, (8, 2), (1, 384), 64, DType::BF16),
        })
    }

    fn training(self) -> anyhow::Result<Option<Training>> {
        let deterministic = match self {
            LaneKind::Training => false,
            LaneKind::SameBits => true,
            _ => return Ok(None),
        };
        let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
        Ok(Some(Training::for_attention(&self.attention()?, options)?))
    }

    /// Every attention whose plan a lane of this kind launches.
    pub(super) fn attentions(self) -> anyhow::Result<Vec<Valid>> {
        Ok(match self.training()? {
            Some(training) => vec![training.forward().clone(), training.backward().clone()],
            None => vec![validate(self.attention()?)?],
        })
    }

    /// A lane with random data from a seed.
    pub(super) fn lane(self, runtime: &Runtime, stream: &Arc<CudaStream>, seed: u64) -> anyhow::Result<Box<dyn Lane>> {
        let what = format!("{}, seed {seed}", self.name());
        if let Some(training) = self.training()? {
            return Ok(Box::new(Pair::new(runtime, stream, &training, seed, self == LaneKind::SameBits, &what)?));
        }
        let attention = validate(self.attention()?)?;
        Ok(match self {
            LaneKind::Paged => Box::new(Paged::new(runtime, stream, attention, seed, &what)?),
            LaneKind::Graph => Box::new(Graph::new(runtime, attention, seed, &what)?),
            // A decode is split over keys.
            _ => Box::new(PlainForward::new(stream, attention, seed, self != LaneKind::Decode, &what)?),
        })
    }
}

/// A thread's work on one stream.
pub(super) trait Lane {
    /// One launch, or a few, with a check of what they wrote. The plan is asked for each time: it may be evicted.
    fn turn(&mut self, runtime: &Runtime) -> anyhow::Result<()>;
}

/// A forward with arguments.
struct PlainForward {
    stream: Arc<CudaStream>,
    attention: Valid,
    operands: SoakOperands,
    checked: CheckedOutputs,
}

impl PlainForward {
    fn new(
        stream: &Arc<CudaStream>,
        attention: Valid,
        seed: u64,
        same_bits: bool,
        what: &str,
    ) -> anyhow::Result<PlainForward> {
        let inputs = Inputs::random(&attention, seed)?;
        let checked = CheckedOutputs::new(what, vec![forward(&attention, &inputs)?], same_bits);
        let operands = SoakOperands::new(stream, &attention, inputs, &[])?;
        Ok(PlainForward { stream: Arc::clone(stream), attention, operands, checked })
    }
}

impl Lane for PlainForward {
    fn turn(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        let PlainForward { stream, attention, operands, checked } = self;
        operands.poison(stream)?;
        runtime.plan(attention)?.launch(stream, operands.args(attention)?)?;
        checked.check(stream, || operands.download(stream))
    }
}

/// A forward, and the backward that takes what it saved.
struct Pair {
    stream: Arc<CudaStream>,
    training: Training,
    /// Q, K, V, dO and the gradients.
    operands: SoakOperands,
    /// O alone.
    forward: SoakOperands,
    saved: SavedForBackward,
    checked: CheckedOutputs,
}

impl Pair {
    fn new(
        runtime: &Runtime,
        stream: &Arc<CudaStream>,
        training: &Training,
        seed: u64,
        same_bits: bool,
        what: &str,
    ) -> anyhow::Result<Pair> {
        let pass = training.backward();
        let mut inputs = Inputs::random(pass, seed)?;
        inputs.add_forward(pass)?;
        let expected = vec![forward(training.forward(), &inputs)?, backward(pass, &inputs)?];
        let checked = CheckedOutputs::new(what, expected, same_bits);
        let (saved_roles, all) = ([Role::O, Role::Stats], [Role::Q, Role::K, Role::V]);
        let forward = SoakOperands::new(stream, training.forward(), inputs.clone(), &all)?;
        let operands = SoakOperands::new(stream, pass, inputs, &saved_roles)?;
        let saved = runtime.training(training)?.saved(stream)?;
        Ok(Pair { stream: Arc::clone(stream), training: training.clone(), operands, forward, saved, checked })
    }
}

impl Lane for Pair {
    fn turn(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        let Pair { stream, training, operands, forward, saved, checked } = self;
        forward.poison(stream)?;
        operands.poison(stream)?;
        let pair = runtime.training(training)?;
        let numbers = scalars(training.forward(), &operands.inputs)?;
        pair.forward(saved, forward.output(Role::O, operands.read(numbers, Role::DO))?, stream)?;
        let o = forward.written(Role::O)?;
        pair.backward(saved, operands.without_scalars().saved_o(o), stream)?;
        checked.check(stream, || {
            let mut found = forward.download(stream)?;
            found.retain(|(role, _)| *role == Role::O);
            found.extend(operands.download(stream)?);
            Ok(found)
        })
    }
}

/// Pages of a lane's pool.
const PAGES: i64 = 60;

/// Keys of each sequence in two steps that take turns.
const KEYS: [[i32; 4]; 2] = [[256, 17, 100, 1], [33, 200, 64, 130]];

/// A decode over pages.
struct Paged {
    stream: Arc<CudaStream>,
    attention: Valid,
    operands: SoakOperands,
    batch: BatchMetadata,
    steps: Vec<(Vec<Vec<i32>>, CheckedOutputs)>,
    turns: usize,
}

impl Paged {
    fn new(
        runtime: &Runtime,
        stream: &Arc<CudaStream>,
        attention: Valid,
        seed: u64,
        what: &str,
    ) -> anyhow::Result<Paged> {
        let lengths = LengthChoice::Exact { q: vec![1; 4], kv: KEYS[0].map(|n| n as usize).to_vec() };
        let choice = RandomChoice { lengths, ..RandomChoice::default() };
        let mut inputs = Inputs::random_with(&attention, seed, &choice)?;
        let width = attention.k.pages_per_sequence().unwrap_or(0);
        let mut steps = Vec::new();
        for (number, keys) in KEYS.iter().enumerate() {
            let page = |sequence: usize, at: i64| (sequence as i64 * 13 + at * 7 + number as i64 * 3) % PAGES;
            let of = |sequence: usize| (0..width).map(|at| page(sequence, at) as i32).collect::<Vec<i32>>();
            let tables: Vec<Vec<i32>> = (0..4).map(of).collect();
            inputs.set_i32(Role::SeqLenKv, keys);
            let entries = || tables.iter().flatten().map(|page| f64::from(*page));
            for role in [Role::PageTableK, Role::PageTableV] {
                inputs.insert(role, Buffer::from_values(DType::I32, entries()));
            }
            let checked = CheckedOutputs::new(what, vec![forward(&attention, &inputs)?], false);
            steps.push((tables, checked));
        }
        let operands = SoakOperands::new(stream, &attention, inputs, &[])?;
        let batch = BatchMetadata::new(&*runtime.plan(&attention)?, &attention, stream)?;
        Ok(Paged { stream: Arc::clone(stream), attention, operands, batch, steps, turns: 0 })
    }
}

impl Lane for Paged {
    fn turn(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        let Paged { stream, attention, operands, batch, steps, turns } = self;
        let number = *turns % steps.len();
        let (tables, checked) = &mut steps[number];
        *turns += 1;
        operands.poison(stream)?;
        batch.update(&Step::paged(Rows::One(4), Rows::Lengths(&KEYS[number]), tables.as_slice()), stream)?;
        runtime.plan(attention)?.launch(stream, operands.args(attention)?.batch(batch))?;
        checked.check(stream, || operands.download(stream))
    }
}

#[cfg(test)]
mod tests {
    use qkvault_compile::{Compiler, OnMiss, Planner};
    use qkvault_cudnn::{CompileOptions, Profile};
    use qkvault_skip::{Need, skip};
    use qkvault_sys::Search;

    use super::*;

    #[test]
    fn every_plan_compiles_for_an_h200() {
        let compiler = match Compiler::open_compile_only(&Search::default()) {
            Ok(compiler) => compiler,
            Err(error) => return skip(Need::Cudnn, &error.to_string()),
        };
        let target = compiler.target(&Profile::named("h200").expect("built in"));
        let vault = qkvault_cache::Vault::in_memory(qkvault_cache::VaultOptions::new());
        let planner = Planner::new(vault, Some(compiler));
        for attention in LaneKind::ALL.iter().flat_map(|kind| kind.attentions().expect("valid")) {
            let answer = planner.plan(&attention, &target, &CompileOptions::cudnn(), OnMiss::Compile);
            let outcome = answer.expect("it can be asked").outcome;
            assert!(outcome.is_ok(), "{attention}: {:?}", outcome.err());
        }
    }

    #[test]
    fn every_kind_has_plans_of_its_own() {
        let all: Vec<Valid> = LaneKind::ALL.iter().flat_map(|kind| kind.attentions().expect("valid")).collect();
        assert_eq!(all.len(), 9);
        let keys: std::collections::BTreeSet<_> = all.iter().map(|attention| attention.key()).collect();
        assert_eq!(keys.len(), all.len());
    }
}
