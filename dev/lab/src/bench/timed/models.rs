//! The attentions of models and manifests as cases: each once, with the backward if it is trained.

use std::collections::BTreeSet;

use qkvault_cli::jobs::{self, AttentionJob, Jobs, ModelArgs};
use qkvault_cli::out;
use qkvault_graph::{Storage, Valid};

use super::file::TimedCase;

/// The cases of all models, named by model, layer, phase and sizes.
///
/// # Errors
///
/// A model cannot be read, or nothing of it can be timed.
pub(super) fn cases(args: &ModelArgs, seed: u64) -> anyhow::Result<Vec<TimedCase>> {
    let Jobs { jobs, notes, .. } = jobs::plan(args)?;
    notes.iter().for_each(|note| out::note(&format!("note: {note}")));
    let cases = from_jobs(&jobs, seed)?;
    anyhow::ensure!(!cases.is_empty(), "nothing of the models can be timed; the notes say why");
    Ok(cases)
}

fn from_jobs(jobs: &[AttentionJob], seed: u64) -> anyhow::Result<Vec<TimedCase>> {
    let mut list = Vec::new();
    for job in jobs {
        let name = job.uses[0].label().replace(' ', "_");
        let described = job.attention.clone();
        match described.map_err(|refusal| refusal.to_string()).and_then(|a| timed(&a).map(|()| a)) {
            Err(why) => out::note(&format!("not timed: {name}: {why}")),
            Ok(attention) => list.push(TimedCase::for_attention(name, &attention, seed)?),
        }
    }
    // The forward of a trained attention is timed with its backward.
    let trained: BTreeSet<_> = list.iter().filter(|c| c.backward().is_some()).map(|c| c.forward().key()).collect();
    list.retain(|case| case.backward().is_some() || !trained.contains(&case.forward().key()));
    Ok(list)
}

/// Attentions over pages need a serving engine's tables.
fn timed(attention: &Valid) -> Result<(), String> {
    match attention.k.storage {
        Storage::Paged { .. } => Err("`qkvault-lab bench engines` times attentions over pages".to_owned()),
        Storage::Dense => Ok(()),
        Storage::Varlen { .. } => Err("`--cases` times packed sequences: it has their lengths".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    /// The options as the command reads them.
    #[derive(Debug, clap::Parser)]
    struct ModelOptions {
        #[command(flatten)]
        args: super::super::TimedArgs,
    }

    fn names(manifest: &str, more: &[&str]) -> Vec<(String, bool)> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("manifest.toml");
        std::fs::write(&path, manifest).expect("it is written");
        let words = ["bench", "--manifest", path.to_str().expect("text")].into_iter().chain(more.iter().copied());
        let args = ModelOptions::try_parse_from(words).expect("the words are read").args;
        args.cases().expect("cases").iter().map(|c| (c.name.clone(), c.backward().is_some())).collect()
    }

    const MANIFEST: &str = "
        qkvault-manifest = 1
        [[attention]]
        model = 'm'
        layer = 'full'
        layers = 3
        phase = 'prefill'
        batch = [1, 2]
        seq = [64]
        text = '''
        q: bf16 [$batch,8,$seq,64]
        k: bf16 [$batch,2,$seq,64]
        mask: causal
        '''
        [[attention]]
        model = 'm'
        layer = 'full'
        phase = 'train'
        text = '''
        q: bf16 [1,8,64,64]
        mask: causal
        '''
    ";

    #[test]
    fn a_manifest_is_timed_each_attention_once_and_a_pair_as_one_case() {
        let all = names(MANIFEST, &[]);
        let named = |name: &str, backward: bool| (name.to_owned(), backward);
        assert_eq!(
            all,
            [
                named("m_[full_x3]_prefill_b1_s64", false),
                named("m_[full_x3]_prefill_b2_s64", false),
                named("m_[full_x1]_train_backward_b1_s64", true),
            ]
        );
        assert_eq!(names(MANIFEST, &["--phase", "train"]).len(), 1);
        assert_eq!(
            names(MANIFEST, &["--batch", "4", "--phase", "prefill"]),
            [named("m_[full_x3]_prefill_b4_s64", false)]
        );
    }

    #[test]
    fn cases_and_models_exclude_each_other_and_one_is_needed() {
        for (words, needle) in [
            (&["bench"][..], "--cases <FILE>"),
            (&["bench", "--cases", "a", "--model", "b"][..], "cannot be used with"),
        ] {
            let error = ModelOptions::try_parse_from(words).expect_err("wrong usage").to_string();
            assert!(error.contains(needle), "{error}");
        }
    }
}
