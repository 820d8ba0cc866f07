//! `--phase serve`: the set of plans for any step of a serving engine, for each layer of a model.

use qkvault_graph::{Fp8, MAX_DRAFTS, Refusal, Valid};
use qkvault_models::{LayerKind, Model, Phase};
use qkvault_serving::{Buckets, Growth, PageLayout, ServePolicy};

use crate::jobs::Use;

/// Tokens of a page, and pages of a pool, where none are named.
const PAGE_SIZE: i64 = 64;
const PAGES: i64 = 8192;

/// Limits of a serving engine's steps, and its page pool.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sizes of --phase serve")]
pub(super) struct ServeArgs {
    /// Most sequences in a step
    #[arg(long, value_name = "N", default_value_t = ServePolicy::default().batch)]
    max_batch: i64,
    /// Most new tokens of one sequence in a step (the chunk size)
    #[arg(long, value_name = "N", default_value_t = ServePolicy::default().queries)]
    max_new: i64,
    /// Most new tokens in a step, all sequences together (default: --max-new or --max-batch, whichever is larger)
    #[arg(long, value_name = "N")]
    max_tokens: Option<i64>,
    /// Most keys of a sequence; a model's own limit applies if it is smaller
    #[arg(long, value_name = "N", default_value_t = ServePolicy::default().keys)]
    max_keys: i64,
    /// Tokens per page
    #[arg(long, value_name = "N", default_value_t = PAGE_SIZE)]
    page_size: i64,
    /// Pages in the pool of one layer's keys, and as many for its values
    #[arg(long, value_name = "N", default_value_t = PAGES)]
    pages: i64,
    /// nhd (page, token, head, head dim) or hnd (page, head, token, head dim)
    #[arg(long, value_name = "ORDER", default_value = "nhd", value_parser = layout)]
    page_layout: PageLayout,
    /// Keys and values in 8 bits: fp8 (queries and O in 16 bits, by qkvault's own kernels on compute capability 9.0),
    /// fp8-delayed (all in 8 bits; decodes have room for two queries), or fp8-current (O in 16 bits, on compute
    /// capability 10.x)
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    kv: Option<Fp8>,
    /// Growth from one plan to the next in sequences, new tokens and keys; 0 means one plan for all sizes (default for
    /// sequences: 2 in decodes up to 32 sequences, 8 beyond, 16 in mixed steps; for new tokens: 8; for keys: 16)
    #[arg(long, value_name = "N,N,N", value_parser = growth)]
    growth: Option<Growth>,
    /// The same bits for a sequence alone and in any batch, by qkvault's own kernels
    #[arg(long)]
    invariant: bool,
    /// Steps that are no decodes verify trees of at most so many drafts of a sequence (2 to 64), by qkvault's own
    /// kernels
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(2..=MAX_DRAFTS), conflicts_with = "max_new")]
    drafts: Option<i64>,
}

fn layout(text: &str) -> Result<PageLayout, String> {
    match text {
        "nhd" => Ok(PageLayout::Nhd),
        "hnd" => Ok(PageLayout::Hnd),
        other => Err(format!("'{other}' is not a page layout; use nhd or hnd")),
    }
}

fn format(text: &str) -> Result<Fp8, String> {
    match text {
        "fp8" => Ok(Fp8::Cache),
        "fp8-delayed" => Ok(Fp8::Delayed),
        "fp8-current" => Ok(Fp8::Current),
        other => Err(format!("'{other}' is not a format of keys and values; use fp8, fp8-delayed or fp8-current")),
    }
}

fn growth(text: &str) -> Result<Growth, String> {
    let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
    let some = |n: u32| (n > 0).then_some(n);
    match numbers.as_deref() {
        Ok(&[batch, queries, keys]) => Ok(Growth::even(some(batch), some(queries), some(keys))),
        _ => Err(format!("'{text}' is not three numbers, for sequences, new tokens and keys, such as 4,4,0")),
    }
}

/// Describes how much larger a plan can be than its step.
fn padded(growth: &Growth) -> String {
    let Growth { few, many, mixed, queries, keys } = *growth;
    let times = |growth: Option<u32>| growth.map_or("any number of".to_owned(), |n| format!("{n}"));
    let (few, many, mixed, queries, keys) = (times(few), times(many), times(mixed), times(queries), times(keys));
    format!(
        "a plan is larger than a step that needs it by less than {few} times in the sequences of small decodes, {many} of large ones, \
         {mixed} of mixed steps, {queries} in new tokens and {keys} in keys"
    )
}

impl ServeArgs {
    /// Refuses limits of steps where no serving engine's plans are asked for, which would ignore them.
    pub(super) fn only_with(&self, phases: &[Phase]) -> anyhow::Result<()> {
        let ServeArgs {
            max_batch,
            max_new,
            max_tokens,
            max_keys,
            page_size,
            pages,
            page_layout,
            kv,
            growth,
            invariant,
            drafts,
        } = self;
        let usual = ServePolicy::default();
        let given = [
            ("--max-batch", *max_batch != usual.batch),
            ("--max-new", *max_new != usual.queries),
            ("--max-tokens", max_tokens.is_some()),
            ("--max-keys", *max_keys != usual.keys),
            ("--page-size", *page_size != PAGE_SIZE),
            ("--pages", *pages != PAGES),
            ("--page-layout", *page_layout != PageLayout::Nhd),
            ("--kv", kv.is_some()),
            ("--growth", growth.is_some()),
            ("--invariant", *invariant),
            ("--drafts", drafts.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) if !phases.contains(&Phase::Serve) => anyhow::bail!(
                "{name} is a limit of a serving engine's steps, and the phase is not serve; add --phase serve, or give \
                 the sizes of launches with --batch and --seq"
            ),
            _ => Ok(()),
        }
    }

    /// Whether pages are in 8 bits.
    pub(super) const fn has_narrow_pages(&self) -> bool {
        self.kv.is_some()
    }

    /// The policy for a model.
    pub(super) fn policy(&self, model: &Model) -> ServePolicy {
        let keys = self.max_keys.min(model.max_positions.unwrap_or(i64::MAX));
        let queries = self.drafts.unwrap_or(self.max_new).min(keys);
        let usual = ServePolicy::default();
        let least_queries = usual.least_queries.min(queries);
        let growth = self.growth.unwrap_or(usual.growth);
        let all_drafts = self.drafts.map(|_| self.max_batch.saturating_mul(queries));
        let tokens = self.max_tokens.or(all_drafts).unwrap_or(queries).max(self.max_batch).max(queries);
        ServePolicy { batch: self.max_batch, queries, keys, tokens, least_queries, growth, ..usual }
    }

    /// All attentions of a layer's set of plans.
    pub(super) fn attentions(
        &self,
        stats: bool,
        name: &str,
        model: &Model,
        kind: &LayerKind,
        notes: &mut Vec<String>,
    ) -> Vec<(Result<Valid, Refusal>, Use)> {
        let usage = |batch, seq, bucket| Use {
            model: name.to_owned(),
            layer: kind.label.clone(),
            layers: kind.count,
            phase: Phase::Serve,
            backward: false,
            batch,
            seq,
            bucket,
            scale: kind.scale as f32,
        };
        let layer = kind.serving(self.pages, self.page_size, self.page_layout);
        let set = layer.and_then(|mut layer| {
            layer.stats = stats;
            layer.invariant = self.invariant;
            layer.draft_tree = self.drafts.is_some();
            if let Some(scaling) = self.kv {
                layer = layer.in_8_bits(scaling);
            }
            let policy = self.policy(model).for_heads(layer.kv_heads);
            Ok((layer, Buckets::new(&policy)?))
        });
        match set {
            Err(refusal) => vec![(Err(refusal), usage(self.max_batch, self.max_keys, None))],
            Ok((layer, buckets)) => {
                let padding = padded(&buckets.policy().growth);
                notes.push(format!("{name} [{}]: {} plans; {padding}", kind.label, buckets.len()));
                let attention = |bucket| (layer.attention(&bucket), usage(bucket.batch, bucket.keys, Some(bucket)));
                buckets.iter().map(attention).collect()
            }
        }
    }
}
