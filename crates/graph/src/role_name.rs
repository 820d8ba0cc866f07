//! Names of roles for programs: one lower-case word for each, the same in every version and language.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::role::{Role, Scaled, Varlen};
use crate::{Valid, nearest_name};

/// The error for a text that names no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no operand '{given}'{}; it has {}", did_you_mean(nearest.as_deref()), names.join(", "))]
pub struct UnknownRole {
    /// What was given.
    pub given: String,
    /// The most similar name.
    pub nearest: Option<String>,
    /// The names that there are.
    pub names: Vec<String>,
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

impl Role {
    /// Its name for programs, such as `q`, `stats`, `d_q`, `scalar.0` or `offsets.q`. It never changes, and is
    /// [parsed](Role::from_str) again.
    ///
    /// ```
    /// use qkvault_graph::{Role, Varlen};
    ///
    /// assert_eq!(Role::DQ.name(), "d_q");
    /// assert_eq!(Role::Offsets(Varlen::Stats).name(), "offsets.stats");
    /// assert_eq!("tensor.3".parse(), Ok(Role::ScoreTensor(3)));
    /// ```
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Role::Q => "q",
            Role::K => "k",
            Role::V => "v",
            Role::O => "o",
            Role::Stats => "stats",
            Role::Max => "max",
            Role::SumExp => "sum_exp",
            Role::DO => "d_o",
            Role::DQ => "d_q",
            Role::DK => "d_k",
            Role::DV => "d_v",
            Role::QT => "q_t",
            Role::KT => "k_t",
            Role::DOT => "d_o_t",
            Role::DOHalf => "d_o_half",
            Role::Scale => "scale",
            Role::QueryOrigin => "query_origin",
            Role::KeyOrigin => "key_origin",
            Role::SeqLenQ => "seq_len_q",
            Role::SeqLenKv => "seq_len_kv",
            Role::SeqLenQWhole => "seq_len_q_whole",
            Role::SeqLenKvWhole => "seq_len_kv_whole",
            Role::PageTableK => "page_table_k",
            Role::PageTableV => "page_table_v",
            Role::Sink => "sink",
            Role::DSink => "d_sink",
            Role::DropoutSeed => "dropout_seed",
            Role::DropoutOffset => "dropout_offset",
            Role::DropoutMask => "dropout_mask",
            Role::BlockMask => "block_mask",
            Role::DraftTree => "draft_tree",
            Role::SoftmaxSum => "softmax_sum",
            Role::DqAccum => "dq_accum",
            Role::DkFullHeads => "dk_full_heads",
            Role::DvFullHeads => "dv_full_heads",
            Role::Wide => "wide",
            Role::Narrow => "narrow",
            Role::NarrowScale => "narrow_scale",
            Role::NarrowDescale => "narrow_descale",
            Role::NarrowAmax => "narrow_amax",
            Role::AmaxHistory => "amax_history",
            Role::NewK => "new_k",
            Role::NewV => "new_v",
            Role::Into => "into",
            Role::Scalar(n) => return Cow::Owned(format!("scalar.{n}")),
            Role::ScoreTensor(n) => return Cow::Owned(format!("tensor.{n}")),
            Role::DScoreTensor(n) => return Cow::Owned(format!("d_tensor.{n}")),
            Role::Part(n) => return Cow::Owned(format!("part.{n}")),
            Role::PartStats(n) => return Cow::Owned(format!("part_stats.{n}")),
            Role::PartRows(n) => return Cow::Owned(format!("part_rows.{n}")),
            Role::Offsets(of) => return Cow::Owned(format!("offsets.{}", varlen(of))),
            Role::Descale(of) => return Cow::Owned(format!("descale.{}", scaled(of))),
            Role::ScaleOf(of) => return Cow::Owned(format!("scale_of.{}", scaled(of))),
            Role::Amax(of) => return Cow::Owned(format!("amax.{}", scaled(of))),
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Scalar(n) => write!(f, "scalar {n}"),
            Role::ScoreTensor(n) => write!(f, "score tensor {n}"),
            Role::DScoreTensor(n) => write!(f, "gradient of score tensor {n}"),
            Role::Part(n) => write!(f, "part {n}"),
            Role::PartStats(n) => write!(f, "Stats of part {n}"),
            Role::PartRows(n) => write!(f, "counted rows of part {n}"),
            Role::Offsets(p) => write!(f, "offsets of {p:?}"),
            Role::Descale(s) => write!(f, "descale of {s:?}"),
            Role::ScaleOf(s) => write!(f, "scale of {s:?}"),
            Role::Amax(s) => write!(f, "amax of {s:?}"),
            Role::DO => f.write_str("dO"),
            Role::DQ => f.write_str("dQ"),
            Role::DK => f.write_str("dK"),
            Role::DV => f.write_str("dV"),
            Role::QT => f.write_str("Q scaled along the sequence"),
            Role::KT => f.write_str("K scaled along the sequence"),
            Role::DOT => f.write_str("dO scaled along the sequence"),
            Role::DOHalf => f.write_str("dO in 16 bits"),
            Role::SeqLenQWhole => f.write_str("SeqLenQ for each query"),
            Role::SeqLenKvWhole => f.write_str("SeqLenKv for each query"),
            Role::Wide => f.write_str("the tensor in 16 or 32 bits"),
            Role::Narrow => f.write_str("the tensor in 8 bits"),
            Role::NarrowScale => f.write_str("scale of the tensor in 8 bits"),
            Role::NarrowDescale => f.write_str("descale of the tensor in 8 bits"),
            Role::NarrowAmax => f.write_str("amax of the tensor in 8 bits"),
            Role::AmaxHistory => f.write_str("history of amaxes"),
            Role::NewK => f.write_str("the new keys"),
            Role::NewV => f.write_str("the new values"),
            other => write!(f, "{other:?}"),
        }
    }
}

const fn varlen(of: Varlen) -> &'static str {
    match of {
        Varlen::Q => "q",
        Varlen::K => "k",
        Varlen::V => "v",
        Varlen::O => "o",
        Varlen::Stats => "stats",
        Varlen::DO => "d_o",
        Varlen::DQ => "d_q",
        Varlen::DK => "d_k",
        Varlen::DV => "d_v",
        Varlen::DOHalf => "d_o_half",
        Varlen::NewK => "new_k",
        Varlen::NewV => "new_v",
    }
}

const fn scaled(of: Scaled) -> &'static str {
    match of {
        Scaled::Q => "q",
        Scaled::K => "k",
        Scaled::V => "v",
        Scaled::S => "s",
        Scaled::O => "o",
        Scaled::DO => "d_o",
        Scaled::DP => "d_p",
        Scaled::DQ => "d_q",
        Scaled::DK => "d_k",
        Scaled::DV => "d_v",
        Scaled::QT => "q_t",
        Scaled::KT => "k_t",
        Scaled::DOT => "d_o_t",
    }
}

/// Unique ids of the roles that are not numbered.
const WORDS: std::ops::Range<i64> = 1..1_000;

impl FromStr for Role {
    type Err = UnknownRole;

    /// Parses [a name](Role::name).
    fn from_str(text: &str) -> Result<Role, UnknownRole> {
        let number = |rest: &str| rest.parse::<u16>().ok().filter(|n| *n < 1_000 && rest == n.to_string());
        let numbered = match text.split_once('.') {
            Some(("scalar", rest)) => number(rest).map(Role::Scalar),
            Some(("tensor", rest)) => number(rest).map(Role::ScoreTensor),
            Some(("d_tensor", rest)) => number(rest).map(Role::DScoreTensor),
            Some(("part", rest)) => number(rest).map(Role::Part),
            Some(("part_stats", rest)) => number(rest).map(Role::PartStats),
            Some(("part_rows", rest)) => number(rest).map(Role::PartRows),
            _ => None,
        };
        let words = || WORDS.filter_map(Role::from_uid);
        numbered.or_else(|| words().find(|role| role.name() == text)).ok_or_else(|| {
            let names: Vec<String> = words().map(|role| role.name().into_owned()).collect();
            let nearest = nearest_name(text, names.iter().map(String::as_str)).map(str::to_owned);
            UnknownRole { given: text.to_owned(), nearest, names }
        })
    }
}

impl Valid {
    /// The roles of this attention's operands that a text names: [a role's name](Role::name), the name of a scalar or
    /// tensor in the description's expressions, or `d_` and the name of a tensor for its gradient. Two roles where
    /// score modification and mask both use the name; a role's own name wins.
    ///
    /// ```
    /// use qkvault_graph::expr::{library, scalar, score};
    /// use qkvault_graph::{Attention, DType, Role};
    ///
    /// let capped = library::softcap(score(), scalar("cap")).build_score_mod()?;
    /// let attention = Attention::bshd(1, (8, 8), (512, 512), 64, DType::F16).with_score_mod(capped).validate()?;
    /// assert_eq!(attention.named_roles("cap")?, [Role::Scalar(0)]);
    /// assert_eq!(attention.named_roles("q")?, [Role::Q]);
    /// assert_eq!(attention.named_roles("capp").unwrap_err().nearest.as_deref(), Some("cap"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UnknownRole`] with every name of this attention's operands, and the most similar one.
    pub fn named_roles(&self, text: &str) -> Result<Vec<Role>, UnknownRole> {
        let facts = self.operand_facts();
        let has = |role: &Role| facts.iter().any(|fact| fact.role == *role);
        if let Some(role) = text.parse::<Role>().ok().filter(has) {
            return Ok(vec![role]);
        }
        let mut roles: Vec<Role> = self.scalar_roles(text).chain(self.tensor_roles(text)).collect();
        let gradient = || text.strip_prefix("d_").and_then(|name| self.gradient_role(name));
        if roles.is_empty() {
            roles.extend(gradient());
        }
        if !roles.is_empty() {
            return Ok(roles);
        }
        let spoken = |fact: &crate::OperandFact<'_>| match (fact.name, fact.role) {
            (Some(name), Role::DScoreTensor(_)) => format!("d_{name}"),
            (Some(name), _) => name.to_owned(),
            (None, role) => role.name().into_owned(),
        };
        let names: Vec<String> = facts.iter().map(spoken).collect();
        let nearest = nearest_name(text, names.iter().map(String::as_str)).map(str::to_owned);
        Err(UnknownRole { given: text.to_owned(), nearest, names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::{TensorSpec, library, scalar, score, tensor};
    use crate::{Attention, BackwardOptions, DType, validate};

    #[test]
    fn every_role_has_a_name_of_its_own_that_parses_to_it() {
        let mut seen = std::collections::BTreeSet::new();
        for role in (0..10_000).filter_map(Role::from_uid) {
            let name = role.name();
            assert_eq!(name.parse(), Ok(role), "{role}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'.'));
            assert!(seen.insert(name.into_owned()), "{role} shares its name");
        }
    }

    #[test]
    fn texts_that_name_no_role_are_told_with_the_nearest() {
        for text in ["", "Q", "scalar.", "scalar.01", "scalar.1000", "scalar.65536", "offsets", "offsets.s", "q\0"] {
            assert!(text.parse::<Role>().is_err(), "{text}");
        }
        let error = "page_tabel_k".parse::<Role>().expect_err("misspelt");
        assert_eq!(error.nearest.as_deref(), Some("page_table_k"));
        assert!(error.to_string().contains("did you mean 'page_table_k'?"), "{error}");
    }

    #[test]
    fn operands_of_expressions_go_by_their_names_and_gradients_by_theirs() {
        let spec = TensorSpec::new(DType::BF16, [1, 4, 8, 8]).with_grad();
        let modified =
            library::softcap(score() + tensor("bias", spec), scalar("cap")).build_score_mod().expect("sound");
        let forward = Attention::bshd(1, (4, 4), (8, 8), 16, DType::BF16).with_score_mod(modified).with_stats();
        let backward = validate(forward.backward(BackwardOptions::default())).expect("sound");
        let of = |text| backward.named_roles(text).expect("there").remove(0);
        assert_eq!([of("cap"), of("scalar.0"), of("bias")], [Role::Scalar(0), Role::Scalar(0), Role::ScoreTensor(0)]);
        assert_eq!([of("d_bias"), of("d_q")], [Role::DScoreTensor(0), Role::DQ]);
        let error = backward.named_roles("d_bais").expect_err("misspelt");
        assert_eq!(error.nearest.as_deref(), Some("d_bias"));
        // A forward has no gradient, and no operand that its description lacks.
        let forward = validate(forward).expect("sound");
        assert!(forward.named_roles("d_bias").is_err() && forward.named_roles("page_table_k").is_err());
    }

    #[test]
    fn the_name_of_a_role_wins_over_a_scalar_of_that_name() {
        let modified = library::softcap(score(), scalar("q")).build_score_mod().expect("sound");
        let attention = Attention::bshd(1, (4, 4), (8, 8), 16, DType::BF16).with_score_mod(modified);
        let attention = validate(attention).expect("sound");
        assert_eq!(attention.named_roles("q").expect("there"), [Role::Q]);
        assert_eq!(attention.named_roles("scalar.0").expect("there"), [Role::Scalar(0)]);
    }
}
