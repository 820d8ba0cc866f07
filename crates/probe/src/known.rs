//! What is known to be computed wrongly, and by whom: one value for people who do not know this project, written as
//! `docs/known-wrong.md` and `docs/known-wrong.json`.

mod page;

use crate::reports::{Finding, Library, Project, Report, reports};
use qkvault_cudnn::QUIRKS;
use qkvault_cudnn::registry::{Affected, Standing};
use qkvault_graph::Code;
use serde::Serialize;

pub use page::page;

/// The number of [`Known`]'s form; another form has another number.
const FORMAT: u32 = 1;

/// What is computed wrongly, and the guards of other projects.
#[derive(Clone, Debug, Serialize)]
pub struct Known {
    /// The number of this form.
    pub format: u32,
    /// Wrong results.
    pub wrong: Vec<Wrong>,
    /// Guards and reports of other projects, and what is known of each.
    pub guards: Vec<Guard>,
}

/// A wrong result.
#[derive(Clone, Debug, Serialize)]
pub struct Wrong {
    /// The code that refuses it, if one does: `docs/reasons.md` has it.
    pub code: Option<&'static str>,
    /// What computes it wrongly.
    pub engine: &'static str,
    /// The attention, or the cause.
    pub attention: &'static str,
    /// The versions of cuDNN and the GPUs.
    pub affected: Vec<KnownRange>,
    /// How it shows.
    pub shows: &'static str,
    /// Addresses of reports and of guards of other projects.
    pub reports: Vec<&'static str>,
    /// Who saw it.
    pub seen: Seen,
    /// `refused` before a launch, avoided by another `form`, or `open`.
    pub answer: &'static str,
    /// What to do.
    pub to_do: &'static str,
}

/// A guard or a report of another project.
#[derive(Clone, Debug, Serialize)]
pub struct Guard {
    /// The project.
    pub project: &'static str,
    /// The attention that it keeps from cuDNN, or reports.
    pub attention: &'static str,
    /// The versions of cuDNN and the GPUs.
    pub affected: Vec<KnownRange>,
    /// The function that has the guard; empty for a thread.
    pub place: &'static str,
    /// Addresses of the source or the thread.
    pub links: &'static [&'static str],
    /// `refused`, `form`, `not-confirmed`, `never-written` or `open`; `unknown` where no reason is given and none ran.
    pub finding: &'static str,
    /// The codes that refuse it.
    pub codes: Vec<&'static str>,
    /// Who saw it; of what codes refuse, the codes tell.
    pub seen: Option<Seen>,
    /// What is done, or what a user can do.
    pub says: &'static str,
}

/// Versions of cuDNN on GPUs.
#[derive(Clone, Debug, Serialize)]
pub struct KnownRange {
    /// The first version; none for every one.
    pub from: Option<String>,
    /// The first version behind the last; none if no version mends it.
    pub before: Option<String>,
    /// The lowest compute capability, 90 for 9.0.
    pub sm_from: u32,
    /// The highest; none for no bound.
    pub sm_to: Option<u32>,
    /// The same in words.
    pub text: String,
    /// The same in few words; empty for all.
    #[serde(skip)]
    pub short: String,
}

/// Who saw it.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// `seen` here, `reported` by others and not run here, or `not-confirmed`: it ran right here.
    pub standing: &'static str,
    /// The GPU of the run.
    pub gpu: Option<&'static str>,
    /// What ran on it.
    pub versions: Option<&'static str>,
    /// The command that shows it.
    pub command: Option<&'static str>,
}

impl Seen {
    fn from_standing(standing: Standing) -> Seen {
        let sight = standing.sight();
        Seen {
            standing: standing.name(),
            gpu: sight.map(|sight| sight.gpu),
            versions: sight.map(|sight| sight.versions),
            command: sight.map(|sight| sight.command),
        }
    }
}

impl KnownRange {
    fn all(library: Library, affected: &[Affected]) -> Vec<KnownRange> {
        let range = |one: &Affected| KnownRange {
            from: one.versions.from.map(|version| version.to_string()),
            before: one.versions.before.map(|version| version.to_string()),
            sm_from: one.gpus.from,
            sm_to: (one.gpus.to != u32::MAX).then_some(one.gpus.to),
            text: if library == Library::Cudnn { one.to_string() } else { one.gpus.to_string() },
            short: one.short(),
        };
        affected.iter().map(range).collect()
    }
}

/// Everything that is known to be computed wrongly.
#[must_use]
pub fn known_wrong() -> Known {
    let mut quirks = QUIRKS.to_vec();
    quirks.sort_by_key(|quirk| quirk.code);
    let refused = quirks.into_iter().filter_map(|quirk| {
        Some(Wrong {
            code: Some(quirk.code),
            engine: Library::Cudnn.title(),
            attention: quirk.cause,
            affected: KnownRange::all(Library::Cudnn, quirk.affected),
            shows: quirk.evidence,
            reports: quirk.reports.to_vec(),
            seen: Seen::from_standing(quirk.standing?),
            answer: "refused",
            to_do: quirk.fix,
        })
    });
    let others = reports().filter_map(|report| {
        let (standing, shows, says) = match report.finding {
            Finding::Form { standing, shows, says } | Finding::Open { standing, shows, says } => {
                (standing, shows, says)
            }
            Finding::Refused(_) | Finding::Right { .. } | Finding::Never(_) | Finding::Unknown(_) => return None,
        };
        Some(Wrong {
            code: None,
            engine: report.library.title(),
            attention: report.attention,
            affected: KnownRange::all(report.library, report.affected),
            shows,
            reports: report.links.to_vec(),
            seen: Seen::from_standing(standing),
            answer: report.finding.name(),
            to_do: says,
        })
    });
    let mut wrong: Vec<Wrong> = refused.collect();
    for row in others {
        // Two projects may guard against one fault.
        match wrong.iter_mut().find(|known| (known.shows, known.to_do) == (row.shows, row.to_do)) {
            Some(known) => known.reports.extend(row.reports),
            None => wrong.push(row),
        }
    }
    let guards = reports().filter(|report| report.by != Project::Here).map(guard);
    Known { format: FORMAT, wrong, guards: guards.collect() }
}

fn guard(report: &'static Report) -> Guard {
    let (codes, standing, says): (Vec<&'static str>, _, _) = match report.finding {
        Finding::Refused(codes) => (codes.iter().filter_map(|code| Some(code.entry()?.code)).collect(), None, ""),
        Finding::Form { standing, says, .. } | Finding::Open { standing, says, .. } => {
            (Vec::new(), Some(standing), says)
        }
        Finding::Right { sight, says } => (Vec::new(), Some(Standing::NotConfirmed(sight)), says),
        Finding::Never(says) | Finding::Unknown(says) => (Vec::new(), None, says),
    };
    Guard {
        project: report.by.title(),
        attention: report.attention,
        affected: KnownRange::all(report.library, report.affected),
        place: report.place,
        links: report.links,
        finding: report.finding.name(),
        codes,
        seen: standing.map(Seen::from_standing),
        says,
    }
}

/// Where a refusal for a wrong result is known from, as a line for people: who saw it, and the first report. `None` for
/// a code that is not about a wrong result.
#[must_use]
pub fn known_from(code: &Code) -> Option<String> {
    let entry = code.entry()?;
    let standing = entry.standing?;
    Some(match entry.reports.first() {
        Some(report) => format!("{standing} ({report})"),
        None => standing.to_string(),
    })
}
