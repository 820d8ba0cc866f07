//! `--ranks`: several GPUs share each attention, so what is compiled and asked for are the parts of its schedule.

use std::collections::BTreeSet;

use qkvault_graph::{Refusal, Valid};
use qkvault_parallel::{GpuCluster, Schedule, Scheme, Sharding, choose, schedule};

use crate::jobs::{AttentionJob, Jobs};

/// Options for attentions that several GPUs share.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Several GPUs")]
pub(super) struct RanksArgs {
    /// So many GPUs share each attention (context parallelism): the plans are those of its parts, the same on all ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Option<u32>,
    /// What moves between them: gather, gather:GROUPS, heads, ring or decode:RUN (default: the fastest by estimate)
    #[arg(long, value_name = "SCHEME", requires = "ranks", value_parser = scheme)]
    scheme: Option<Scheme>,
    /// The GPUs and links of the estimate: h200-nvlink, h800-nvlink or h200-nic
    #[arg(long, value_name = "NAME", requires = "ranks", default_value = "h200-nvlink", value_parser = machine)]
    machine: String,
}

fn machine(name: &str) -> Result<String, String> {
    let known = || GpuCluster::all().into_iter().map(|machine| machine.name).collect::<Vec<_>>().join(", ");
    GpuCluster::named(name).map(|machine| machine.name).ok_or_else(|| format!("it is one of {}", known()))
}

fn scheme(text: &str) -> Result<Scheme, String> {
    let (name, number) = text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number)));
    let number = |default: u32| match number {
        None => Ok(default),
        Some(number) => number.parse::<u32>().map_err(|_| format!("'{number}' is no number")),
    };
    match name {
        "gather" => Ok(Scheme::Gather { groups: number(1)? }),
        "heads" => Ok(Scheme::Heads),
        "ring" => Ok(Scheme::Ring),
        "decode" => Ok(Scheme::Decode { run: number(64)? }),
        _ => Err("it is one of gather, gather:GROUPS, heads, ring, decode:RUN".to_owned()),
    }
}

impl RanksArgs {
    /// The jobs of all parts, each once, with a note for each attention that is shared: what every rank moves and
    /// keeps, what bounds the speed, and why the scheme was chosen.
    pub(super) fn share(&self, Jobs { jobs, mut combinations, appends, mut notes }: Jobs) -> Jobs {
        let Some(ranks) = self.ranks else { return Jobs { jobs, combinations, appends, notes } };
        let Some(machine) = GpuCluster::named(&self.machine) else {
            return Jobs { jobs, combinations, appends, notes };
        };
        let mut shared: Vec<AttentionJob> = Vec::new();
        for AttentionJob { uses, attention } in jobs {
            let made = attention.and_then(|a| self.schedule(&a, ranks, &machine));
            let (made, why) = match made {
                Ok(made) => made,
                Err(refusal) => {
                    shared.push(AttentionJob { uses, attention: Err(refusal) });
                    continue;
                }
            };
            let label = uses.first().map_or_else(String::new, |usage| usage.label());
            notes.push(format!("{label}: {}", costs(&made)));
            notes.extend(why.lines().map(|line| format!("{label}: {}", line.trim())));
            match made.combinations() {
                Ok(list) => combinations.extend(list),
                Err(refusal) => shared.push(AttentionJob { uses: uses.clone(), attention: Err(refusal) }),
            }
            for plan in made.plans {
                match shared.iter_mut().find(|job| job.attention.as_ref().is_ok_and(|a| a.key() == plan.key())) {
                    Some(job) => job.uses.extend(uses.iter().cloned()),
                    None => shared.push(AttentionJob { uses: uses.clone(), attention: Ok(plan) }),
                }
            }
        }
        // Layers of one model often share their schedule, and so the notes.
        let mut told = BTreeSet::new();
        notes.retain(|note| told.insert(note.clone()));
        let mut keys = BTreeSet::new();
        combinations.retain(|of| keys.insert(*of.key().bytes()));
        Jobs { jobs: shared, combinations, appends, notes }
    }

    fn schedule(&self, attention: &Valid, ranks: u32, machine: &GpuCluster) -> Result<(Schedule, String), Refusal> {
        match self.scheme {
            Some(scheme) => {
                let made = schedule(attention, &Sharding::new(ranks, scheme))?;
                let estimate = made.estimate(machine);
                let text = format!("{}: {estimate} on {}", made.sharding, machine.name);
                Ok((made, text))
            }
            None => {
                let choice = choose(attention, ranks, machine)?;
                let text = choice.explain();
                Ok((choice.schedule, text))
            }
        }
    }
}

/// What the ranks of a schedule move and keep, at most.
fn costs(made: &Schedule) -> String {
    let all = (0..made.sharding.ranks).map(|rank| made.costs(rank));
    let most = all.reduce(|a, b| qkvault_parallel::Costs {
        sent: a.sent.max(b.sent),
        received: a.received.max(b.received),
        messages: a.messages.max(b.messages),
        scratch: a.scratch.max(b.scratch),
        touched: a.touched.max(b.touched),
        launches: a.launches.max(b.launches),
        flops: a.flops.max(b.flops),
    });
    let Some(most) = most else { return String::new() };
    format!(
        "{} parts; a rank sends {} and receives {} bytes in {} messages, and keeps {} bytes besides its operands",
        made.plans.len(),
        most.sent,
        most.received,
        most.messages,
        most.scratch
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_read() {
        assert_eq!(scheme("gather:4"), Ok(Scheme::Gather { groups: 4 }));
        assert_eq!(scheme("decode"), Ok(Scheme::Decode { run: 64 }));
        assert!(scheme("gather:x").is_err() && scheme("star").is_err() && machine("abacus").is_err());
    }
}
