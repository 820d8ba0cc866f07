//! One whole answer about an attention on a target, to be read by people and by programs: what the rules say, what is
//! nearest to it, and the memory of a launch.

use std::fmt;

use qkvault_graph::{CudnnVersion, Reason, text};
use serde::Serialize;

use crate::{Footprint, Request, check, nearest, on_device};

/// The newest cuDNN version that the rules cover.
pub const NEWEST: CudnnVersion = CudnnVersion::v9(28, 1);

/// Versions that the rules were tested with.
pub const TRIED: [CudnnVersion; 4] =
    [CudnnVersion::v9(14, 0), CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0), NEWEST];

/// What the rules say of an attention on a target. Its JSON has these fields under their names; fields may be added.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Short description of the attention.
    pub what: String,
    /// The key of the attention, in hexadecimal digits.
    pub key: String,
    /// The target in one line.
    pub target: String,
    /// The version of its cuDNN.
    pub cudnn: String,
    /// Whether some engine takes it; of the rules alone, whether there is no reason against it.
    pub supported: bool,
    /// Every reason why cuDNN, or the one engine that is allowed, does not take it, each with its stable code.
    pub reasons: Vec<Reason>,
    /// Whose plan is looked for first, and why, if all engines were asked.
    pub engine: Option<Chosen>,
    /// Quirks that apply and were allowed.
    pub allowed: Vec<Reason>,
    /// Single changes that the rules accept, from the cheapest to those that give up most; empty if it is supported.
    pub nearest: Vec<Proposal>,
    /// The memory of a launch; `None` if no op graph can be written.
    pub memory: Option<Memory>,
}

/// The engine that is chosen for an attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chosen {
    /// Its name, as in options.
    pub engine: String,
    /// Why.
    pub why: String,
    /// The engines that do not compute it, each with the reason.
    pub passed: Vec<NotChosen>,
}

/// An engine that does not compute an attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotChosen {
    /// Its name, as in options.
    pub engine: String,
    /// Why not.
    pub why: String,
}

/// A change with which an attention is supported.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Proposal {
    /// The change in words.
    pub change: String,
    /// The description after it, in its text form.
    pub attention: String,
    /// The cuDNN version after it.
    pub cudnn: String,
}

/// Bytes of device memory of a launch: see [`Footprint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Memory {
    /// Bytes of all operands.
    pub operands: u64,
    /// Bytes of other memory, at least.
    pub scratch: u64,
    /// Whether cuDNN keeps a gradient of every score.
    pub quadratic: bool,
}

impl Explanation {
    /// What the rules say of a request. The memory of the target's GPU is the budget.
    #[must_use]
    pub fn for_request(request: &Request<'_>) -> Explanation {
        let Request { attention, target, policy, allowed: _ } = request;
        let mut verdict = check(request);
        let footprint = Footprint::for_attention(attention, target, policy);
        verdict.reasons.extend(footprint.and_then(|f| f.over(on_device(target))));
        let proposal = |near: crate::Near| Proposal {
            change: near.change,
            attention: text::print(&near.attention),
            cudnn: near.target.cudnn.to_string(),
        };
        let memory = |Footprint { operands, scratch, quadratic, exact: _ }| Memory { operands, scratch, quadratic };
        Explanation {
            what: attention.to_string(),
            key: attention.key().to_string(),
            target: target.label(),
            cudnn: target.cudnn.to_string(),
            supported: verdict.supported(),
            reasons: verdict.reasons,
            engine: None,
            allowed: verdict.allowed,
            nearest: nearest(request, &TRIED).into_iter().map(proposal).collect(),
            memory: footprint.map(memory),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = if self.supported { "supported" } else { "refused" };
        write!(f, "{answer} on {}: {}", self.target, self.what)?;
        self.reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))?;
        if let Some(chosen) = &self.engine {
            write!(f, "\n  engine: {}", chosen.why.replace('\n', "\n  "))?;
        }
        match self.nearest.first() {
            Some(near) => write!(f, "\n  nearest supported: {}", near.change),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use qkvault_cudnn::Profile;
    use qkvault_graph::{Attention, DType, LibrarySet, validate};

    use super::*;

    fn explained(attention: Attention, cudnn: CudnnVersion) -> Explanation {
        let attention = validate(attention).expect("sound");
        let target = Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim);
        Explanation::for_request(&Request::new(&attention, &target))
    }

    #[test]
    fn a_refusal_has_codes_a_proposal_that_parses_and_reads_as_text() {
        let odd = explained(Attention::bshd(1, (8, 8), (512, 512), 100, DType::F16), NEWEST);
        assert!(!odd.supported && odd.reasons.iter().any(|r| r.code.as_str() == "head-dim.multiple-of-8"));
        let near = odd.nearest.first().expect("padding");
        let changed = validate(text::parse(&near.attention).expect("a text")).expect("sound");
        assert_eq!(changed.q.dims[3], 104);
        let told = odd.to_string();
        assert!(told.starts_with("refused on sm_90") && told.contains("nearest supported: "), "{told}");
        let json = serde_json::to_value(&odd).expect("writes");
        assert_eq!(json["reasons"][0]["code"], "head-dim.multiple-of-8");
        assert_eq!((json["supported"].as_bool(), json["cudnn"].as_str()), (Some(false), Some("9.28.1")));
    }

    #[test]
    fn what_is_supported_has_no_proposals_and_its_memory() {
        let plain = explained(Attention::bshd(1, (8, 8), (512, 512), 128, DType::F16), CudnnVersion::v9(19, 0));
        let operands = 4 * 8 * 512 * 128 * 2;
        assert!(plain.supported && plain.reasons.is_empty() && plain.nearest.is_empty());
        assert_eq!(plain.memory.map(|m| (m.operands, m.quadratic)), Some((operands, false)));
        assert!(plain.to_string().starts_with("supported on "));
    }

    #[test]
    fn what_does_not_fit_the_gpu_is_refused_with_the_figure() {
        let huge = explained(Attention::bshd(64, (128, 128), (65_536, 65_536), 128, DType::F16), NEWEST);
        assert!(huge.reasons.iter().any(|r| r.code.as_str() == "memory.budget"), "{huge}");
    }
}
