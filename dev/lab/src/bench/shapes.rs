//! `bench shapes`: 256 shapes in random order, each asked for and launched once in a process that has launched none of
//! them; and the shapes that other parts draw from.

use std::time::Instant;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use qkvault::exec::Args;
use qkvault_base::random::Rng;
use qkvault_cli::Globals;
use qkvault_exec::cudarc;
use qkvault_graph::{Attention, Band, DType, Valid, validate};
use serde_json::{Value, json};

use super::ground::{Ground, GroundOptions};
use super::peer::{Peer, numbers};
use super::summary::FigureSummary;

/// A causal prefill in bf16 with 32 query heads, 8 KV heads and head dim 128, those of Llama-3.1-8B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefillShape {
    batch: i64,
    seq: i64,
}

const HEADS: (i64, i64) = (32, 8);
const HEAD_DIM: i64 = 128;

/// The shape of the first output of a process, which is not one of [`list`].
pub(super) const FIRST: PrefillShape = PrefillShape { batch: 1, seq: 1024 };

/// 256 shapes: batches of 1 and 2, and 128 lengths.
pub(super) fn list() -> Vec<PrefillShape> {
    let shape = |i: i64| PrefillShape { batch: 1 + i / 128, seq: 8 + 16 * (i % 128) };
    (0..256).map(shape).collect()
}

/// The list in an order of chance.
pub(super) fn shuffled(seed: u64) -> Vec<PrefillShape> {
    let mut list = list();
    Rng::new(seed).shuffle(&mut list);
    list
}

/// Processes of the peer, and runtimes of ours.
const RUNS: u64 = 3;

/// The attentions of all shapes.
pub(super) fn all() -> anyhow::Result<Vec<Valid>> {
    list().iter().chain([&FIRST]).map(PrefillShape::attention).collect()
}

impl PrefillShape {
    pub(super) fn attention(&self) -> anyhow::Result<Valid> {
        let seq = (self.seq, self.seq);
        let attention = Attention::bshd(self.batch, HEADS, seq, HEAD_DIM, DType::BF16).with_band(Band::CAUSAL);
        Ok(validate(attention)?)
    }

    /// The shape as the peer reads it.
    pub(super) fn json(&self) -> Value {
        json!({ "b": self.batch, "h": HEADS.0, "hk": HEADS.1, "s": self.seq, "d": HEAD_DIM, "causal": true })
    }
}

/// Device memory for operands of every shape.
pub(super) struct Data {
    inputs: CudaSlice<bf16>,
    output: CudaSlice<bf16>,
}

impl Data {
    /// Uploads random numbers for the inputs and poison for the output.
    pub(super) fn upload(stream: &std::sync::Arc<CudaStream>, shapes: &[PrefillShape]) -> anyhow::Result<Data> {
        let most = shapes.iter().map(|s| s.batch * s.seq).max().unwrap_or(0) * HEADS.0 * HEAD_DIM;
        let most = usize::try_from(most)?;
        let mut rng = Rng::new(3);
        // Between -1 and 1, with 13 random bits each: a process should not spend its time on better noise.
        let noise: Vec<bf16> = (0..most).map(|_| bf16::from_bits((rng.bits() as u16 & 0xbfff) & 0xbf7f)).collect();
        let poison = vec![bf16::NAN; most];
        Ok(Data { inputs: stream.clone_htod(&noise)?, output: stream.clone_htod(&poison)? })
    }

    /// The operands of one shape.
    pub(super) fn launch(
        &mut self,
        plan: &qkvault_exec::LoadedPlan,
        stream: &std::sync::Arc<CudaStream>,
        shape: &PrefillShape,
    ) -> anyhow::Result<()> {
        let count = |heads: i64| (shape.batch * shape.seq * heads * HEAD_DIM) as usize;
        let (q, kv) = (self.inputs.slice(..count(HEADS.0)), self.inputs.slice(..count(HEADS.1)));
        let mut o = self.output.slice_mut(..count(HEADS.0));
        plan.launch(stream, Args::new().q(&q).k(&kv).v(&kv).o(&mut o))?;
        stream.synchronize()?;
        Ok(())
    }

    /// Whether the last launch of a shape wrote a finite number everywhere.
    pub(super) fn written(&self, stream: &std::sync::Arc<CudaStream>, shape: &PrefillShape) -> anyhow::Result<bool> {
        let count = (shape.batch * shape.seq * HEADS.0 * HEAD_DIM) as usize;
        Ok(stream.clone_dtoh(&self.output.slice(..count))?.iter().all(|x| x.is_finite()))
    }
}

/// Measures.
pub(super) fn run(globals: &Globals, options: &GroundOptions) -> anyhow::Result<Value> {
    let [mut asked, mut preloaded, mut theirs, mut each, mut further] = [const { Vec::new() }; 5];
    let (mut machine, mut why, mut builds) = (Value::Null, None, 0);
    for seed in 1..=RUNS {
        let order = shuffled(seed);
        for (preload, seconds) in [(false, &mut asked), (true, &mut preloaded)] {
            let ground = options.open(globals)?;
            let (took, times) = serve(&ground, &order, preload)?;
            seconds.push(took);
            if !preload {
                each.extend(times);
            }
            builds += ground.builds();
            machine = ground.machine()?;
        }
        match options.peer() {
            Err(error) => why = Some(error),
            Ok(mut peer) => {
                let (seconds, times) = by_peer(&mut peer, &order)?;
                theirs.extend(seconds);
                further.extend(times);
            }
        }
    }
    let [asked, preloaded, theirs] = [asked, preloaded, theirs].map(FigureSummary::from_values);
    let faster = |ours: Option<FigureSummary>| theirs.zip(ours).map(|(t, o)| t.median / o.median);
    Ok(json!({
        "machine": machine, "shapes": list().len(), "builds": builds, "no_peer": why,
        "seconds": asked, "preloaded_seconds": preloaded, "torch_seconds": theirs,
        "each_ms": FigureSummary::from_values(each), "torch_each_ms": FigureSummary::from_values(further),
        "times_as_fast": faster(asked), "preloaded_times_as_fast": faster(preloaded),
    }))
}

/// The peer's attentions of these shapes: the seconds of all, and the milliseconds of each.
pub(super) fn by_peer(peer: &mut Peer, shapes: &[PrefillShape]) -> anyhow::Result<(Option<f64>, Vec<f64>)> {
    let shapes: Vec<Value> = shapes.iter().map(PrefillShape::json).collect();
    let answer = peer.ask(&json!({ "do": "shapes", "shapes": shapes }))?;
    Ok((answer["seconds"].as_f64(), numbers(&answer["ms"]).collect()))
}

/// Asks for every shape, launches it and waits for its output. With `preload` all plans are preloaded at the same time,
/// in the order of the list. Returns the seconds of all, and the milliseconds of each.
fn serve(ground: &Ground, order: &[PrefillShape], preload: bool) -> anyhow::Result<(f64, Vec<f64>)> {
    let mut data = Data::upload(&ground.stream, order)?;
    let attentions: Vec<Valid> = order.iter().map(PrefillShape::attention).collect::<Result<_, _>>()?;
    let listed: Vec<Valid> = list().iter().map(PrefillShape::attention).collect::<Result<_, _>>()?;
    // cuDNN loads its libraries for the first plan of a process.
    ground.runtime.plan(&FIRST.attention()?)?;
    ground.stream.synchronize()?;
    let mut each = Vec::new();
    let begun = Instant::now();
    let preloading = preload.then(|| ground.runtime.preload(listed));
    for (shape, attention) in order.iter().zip(&attentions) {
        let started = Instant::now();
        let plan = ground.runtime.plan(attention)?;
        data.launch(&plan, &ground.stream, shape)?;
        each.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let seconds = begun.elapsed().as_secs_f64();
    anyhow::ensure!(data.written(&ground.stream, &order[order.len() - 1])?, "an output was not written");
    if let Some(preloading) = preloading {
        anyhow::ensure!(preloading.wait().is_empty(), "a plan was not loaded");
    }
    Ok((seconds, each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_256_different_ones_without_the_first() {
        let list = list();
        let keys: std::collections::BTreeSet<String> =
            list.iter().map(|s| s.attention().expect("valid").key().to_string()).collect();
        assert_eq!((list.len(), keys.len()), (256, 256));
        assert!(!list.contains(&FIRST));
        assert_ne!(shuffled(1), shuffled(2));
    }
}
