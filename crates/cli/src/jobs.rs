//! Lists the attentions that models, phases and shapes need, each attention once.

mod manifest;

pub(super) use manifest::written;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::ArgGroup;
use qkvault_exec::Training;
use qkvault_graph::{
    Attention, BackwardOptions, CacheAppend, DType, GraphKey, Refusal, Valid, ValidCacheAppend, ValidCombination, text,
    validate,
};
use qkvault_models::{Model, Phase};
use qkvault_serving::{Bucket, StepKind};

use crate::codes;
use crate::model::ShardArgs;
use crate::ranks::RanksArgs;
use crate::serve::ServeArgs;
use crate::traffic::{TrafficArgs, TrafficLengths};

/// The group of options of which one at least says what is asked about.
pub const WHAT: &str = "what";

/// Options that select the attentions of a model.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Attentions")]
#[command(group(ArgGroup::new(WHAT).args(["model", "text"]).required(true).multiple(true)))]
pub struct ModelArgs {
    /// A Hugging Face config.json, a GGUF file, a folder that has one, a name in the cache of the hub, such as
    /// Qwen/Qwen3-8B, or a manifest (see `model --manifest`); may be given several times
    #[arg(long, visible_alias = "manifest", value_name = "FILE|DIR|NAME")]
    pub model: Vec<PathBuf>,
    /// An attention in the text form, beside models or instead of them (`-` is standard input); may be given several
    /// times
    #[arg(long, value_name = "FILE")]
    pub text: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) shard: ShardArgs,
    /// prefill, decode (default: both), train (a forward with Stats and its backward), serve (the plans of a serving
    /// engine); may be given several times, or with commas
    #[arg(long, value_delimiter = ',')]
    pub phase: Vec<Phase>,
    /// Sequences per launch (default: 1, 4 for prefill and train; 1, 8, 32 for decode)
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(i64).range(1..=1_048_576))]
    pub batch: Vec<i64>,
    /// Tokens of a prompt, or of the KV cache of a decode: a request runs on the plan of the next greater length
    /// (default: prefill 512, 1024, 2048, 4096, 8192; decode 1024, 4096, 8192; train 2048, 4096)
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(i64).range(1..=16_777_216))]
    pub seq: Vec<i64>,
    #[command(flatten)]
    pub(super) traffic: TrafficArgs,
    /// Element type, bf16 or f16 (default: the config's)
    #[arg(long)]
    pub dtype: Option<DType>,
    /// Also output the log-sum-exp (Stats)
    #[arg(long)]
    pub stats: bool,
    /// train: use a backward that gives the same bits on every run
    #[arg(long)]
    pub deterministic: bool,
    #[command(flatten)]
    pub(super) serve: ServeArgs,
    #[command(flatten)]
    pub(super) ranks: RanksArgs,
}

impl ModelArgs {
    /// Whether something is read from where it can be read once: standard input or a pipe.
    pub(super) fn is_read_once(&self) -> bool {
        let once = |path: &PathBuf| {
            crate::file::is_standard_input(path)
                || path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
        };
        self.model.iter().chain(&self.text).any(once)
    }
}

/// One attention to compile, and its uses.
pub struct AttentionJob {
    /// The uses of the attention: model, layers, phase, sizes.
    pub uses: Vec<Use>,
    /// The attention, or the reasons why it cannot be described.
    pub attention: Result<Valid, Refusal>,
}

/// One use of an attention.
#[derive(Clone, Debug)]
pub struct Use {
    /// The model, or the description itself.
    pub(super) model: String,
    /// The kind of layer; empty for a description.
    pub(super) layer: String,
    pub(super) layers: usize,
    pub(super) phase: Phase,
    /// Whether this is the backward of a training pair.
    pub(super) backward: bool,
    pub(super) batch: i64,
    pub(super) seq: i64,
    /// The bucket of the plan, if the plan belongs to a set.
    pub(super) bucket: Option<Bucket>,
    /// The layer's softmax scale.
    pub(super) scale: f32,
}

/// The decodes of serving sets among what is refused that mixed steps of the same set serve, as `PlanSet::pick` has it;
/// `served` are the uses of what is not refused.
pub(super) fn as_mixed<'u>(refused: &'u [Use], served: &'u [Use]) -> impl Iterator<Item = &'u Use> {
    let holds = |of: &Use, (decode, bucket): (&Use, Bucket)| {
        let same = of.model == decode.model && of.layer == decode.layer;
        same && of.bucket.is_some_and(|mixed| {
            mixed.kind == StepKind::Mixed && mixed.batch >= bucket.batch && mixed.keys >= bucket.keys
        })
    };
    refused.iter().filter(move |decode| {
        let bucket = decode.bucket.filter(|bucket| bucket.kind == StepKind::Decode);
        bucket.is_some_and(|bucket| served.iter().any(|of| holds(of, (decode, bucket))))
    })
}

impl Use {
    /// The use of a description alone, with the usual scale of the softmax.
    fn described(attention: &Attention) -> Use {
        let (queries, seq) = attention.seq();
        let phase = match (attention.is_backward(), queries) {
            (true, _) => Phase::Train,
            (false, 1) => Phase::Decode,
            (false, _) => Phase::Prefill,
        };
        Use {
            model: attention.to_string(),
            layer: String::new(),
            layers: 1,
            phase,
            backward: attention.is_backward(),
            batch: attention.batch(),
            seq,
            bucket: None,
            scale: (attention.q.head_dim() as f32).sqrt().recip(),
        }
    }

    /// Model, layers, phase and sizes in one line.
    pub fn label(&self) -> String {
        let Use { model, layer, layers, phase, backward, batch, seq, bucket, scale: _ } = self;
        if layer.is_empty() {
            return model.clone();
        }
        let pass = if *backward { " backward" } else { "" };
        let queries = match bucket {
            None => String::new(),
            Some(Bucket { kind: StepKind::Decode, .. }) => " decode".to_owned(),
            Some(Bucket { kind: StepKind::Mixed, queries, .. }) => format!(" mixed q{queries}"),
        };
        format!("{model} [{layer} x{layers}] {phase}{pass}{queries} b{batch} s{seq}")
    }
}

/// The jobs of the given models, and notes for the user.
pub struct Jobs {
    /// The attentions.
    pub jobs: Vec<AttentionJob>,
    /// The merges, sums, copies and fills of ranks that share them.
    pub combinations: Vec<ValidCombination>,
    /// The appends of new keys and values to caches in 8 bits, before the attentions of a serving engine's steps.
    pub appends: Vec<ValidCacheAppend>,
    /// What was left out or assumed, for the user.
    pub notes: Vec<String>,
}

const PREFILL_BATCHES: [i64; 2] = [1, 4];
const PREFILL_LENGTHS: [i64; 5] = [512, 1024, 2048, 4096, 8192];
const TRAIN_LENGTHS: [i64; 2] = [2048, 4096];
const DECODE_BATCHES: [i64; 3] = [1, 8, 32];
const DECODE_LENGTHS: [i64; 3] = [1024, 4096, 8192];

fn or<'a>(given: &'a [i64], default: &'a [i64]) -> &'a [i64] {
    if given.is_empty() { default } else { given }
}

/// The batches and lengths of a phase: those that the options name, else those of the traffic, else the usual ones.
fn sizes<'a>(args: &'a ModelArgs, traffic: &'a TrafficLengths, phase: Phase) -> (&'a [i64], &'a [i64]) {
    let (batches, lengths): (&[i64], &[i64]) = match phase {
        Phase::Prefill => (&PREFILL_BATCHES, &PREFILL_LENGTHS),
        Phase::Train => (&PREFILL_BATCHES, &TRAIN_LENGTHS),
        Phase::Decode | Phase::Serve => (&DECODE_BATCHES, &DECODE_LENGTHS),
    };
    (or(&args.batch, batches), or(&args.seq, or(traffic.for_phase(phase), lengths)))
}

/// Reads the models and lists their attentions. Equal attentions become one job with several uses.
///
/// # Errors
///
/// A file cannot be read, or describes no attention.
pub fn plan(args: &ModelArgs) -> anyhow::Result<Jobs> {
    let mut jobs: Vec<AttentionJob> = Vec::new();
    let mut known: BTreeMap<GraphKey, usize> = BTreeMap::new();
    args.serve.only_with(&args.phase)?;
    let traffic = args.traffic.lengths()?;
    let mut notes = traffic.notes.clone();
    let mut add = |attention: Result<Valid, Refusal>, usage: Use| {
        let seen = attention.as_ref().ok().and_then(|a| known.get(&a.key()).copied());
        match seen {
            Some(at) => jobs[at].uses.push(usage),
            None => {
                if let Ok(a) = &attention {
                    known.insert(a.key(), jobs.len());
                }
                jobs.push(AttentionJob { uses: vec![usage], attention });
            }
        }
    };
    for path in &args.text {
        let given = crate::file::text(path)?;
        let attention =
            text::parse(&given).with_context(|| format!("{} is not a description", crate::file::name(path)))?;
        let usage = Use::described(&attention);
        add(validate(attention), usage);
    }
    for path in &args.model {
        if let Some((name, manifest)) = manifest::read(path)? {
            if args.shard.is_set() {
                notes.push(format!("{name}: a manifest has the heads of one GPU, so --tensor-parallel does not count"));
            }
            notes.extend(manifest.notes.iter().map(|note| format!("{name}: {note}")));
            manifest::attentions(args, &traffic, &name, &manifest)?.into_iter().for_each(|(a, usage)| add(a, usage));
            continue;
        }
        let (name, mut model) = args.shard.model(path)?;
        if let Some(dtype) = args.dtype {
            model.layers.iter_mut().for_each(|kind| kind.dtype = dtype);
            model.notes.retain(|note| !note.contains("bf16 is assumed"));
        }
        notes.extend(model.notes.iter().map(|n| format!("{name}: {n}")));
        let skipped = model.skipped.iter().map(|s| format!("{name}: {} x{} not planned: {}", s.what, s.count, s.why));
        notes.extend(skipped);
        attentions(args, &traffic, &name, &model, &mut notes).into_iter().for_each(|(a, usage)| add(a, usage));
    }
    let appends = if args.serve.has_narrow_pages() { appends(&jobs) } else { Vec::new() };
    Ok(args.ranks.share(Jobs { jobs, combinations: Vec::new(), appends, notes }))
}

/// The append of each step of a serving engine, once. Caches that no append describes have none: where values are
/// columns of keys, a program writes them itself.
fn appends(jobs: &[AttentionJob]) -> Vec<ValidCacheAppend> {
    let served = jobs.iter().filter(|job| job.uses.iter().any(|usage| usage.phase == Phase::Serve));
    let mut known = BTreeSet::new();
    let of = |a: &Valid| {
        let half = [a.q.dtype, a.o.dtype].into_iter().find(|dtype| dtype.is_half());
        CacheAppend::before(a, half.unwrap_or(DType::BF16)).validate().ok()
    };
    let all = served.filter_map(|job| of(job.attention.as_ref().ok()?));
    all.filter(|append| known.insert(*append.key().bytes())).collect()
}

fn attentions(
    args: &ModelArgs,
    traffic: &TrafficLengths,
    name: &str,
    model: &Model,
    notes: &mut Vec<String>,
) -> Vec<(Result<Valid, Refusal>, Use)> {
    let mut list = Vec::new();
    let asked = !args.phase.is_empty();
    let phases: &[Phase] = if asked { &args.phase } else { &Phase::INFERENCE };
    for kind in &model.layers {
        for &phase in phases {
            if phase == Phase::Decode && !kind.decodes() && !asked {
                let text = format!("{name} [{}]: no decode phase, its tokens all see each other", kind.label);
                if !notes.contains(&text) {
                    notes.push(text);
                }
                continue;
            }
            if phase == Phase::Serve {
                list.extend(args.serve.attentions(args.stats, name, model, kind, notes));
                continue;
            }
            let (batches, lengths) = sizes(args, traffic, phase);
            for &seq in lengths {
                if let Some(most) = model.max_positions.filter(|&most| seq > most) {
                    let text =
                        format!("{name}: {phase} of {seq} left out, the model is made for at most {most} positions");
                    if !notes.contains(&text) {
                        notes.push(text);
                    }
                    continue;
                }
                for &batch in batches {
                    let usage = Use {
                        model: name.to_owned(),
                        layer: kind.label.clone(),
                        layers: kind.count,
                        phase,
                        backward: false,
                        batch,
                        seq,
                        bucket: None,
                        scale: kind.scale as f32,
                    };
                    let described = kind.attention(phase, batch, seq);
                    if phase == Phase::Train {
                        list.extend(pair(args, described, usage));
                        continue;
                    }
                    let attention = described.and_then(|mut a| {
                        a.outputs.stats |= args.stats;
                        validate(a)
                    });
                    list.push((attention, usage));
                }
            }
        }
    }
    list
}

/// A forward with Stats and the backward that is derived from it.
fn pair(args: &ModelArgs, described: Result<Attention, Refusal>, usage: Use) -> [(Result<Valid, Refusal>, Use); 2] {
    let options = BackwardOptions { deterministic: args.deterministic, ..BackwardOptions::default() };
    let training = described.and_then(|a| Training::for_attention(&a, options));
    let pass = |which: fn(&Training) -> &Valid| training.as_ref().map(|t| which(t).clone()).map_err(Clone::clone);
    let backward = Use { backward: true, ..usage.clone() };
    [(pass(Training::forward), usage), (pass(Training::backward), backward)]
}

/// The refusal for a command that has no attention to compile.
pub(super) fn nothing() -> Refusal {
    codes::WARM_NOTHING.reason("no attention is left to compile").into()
}
