//! Unique ids of roles: cuDNN's ids of tensors follow from roles and stay internal.

use crate::role::{Role, Scaled, Varlen};

impl Role {
    /// The unique id of this role in every plan. Ids below 10,000 are roles; virtual tensors and constants have higher
    /// ids.
    #[must_use]
    pub const fn uid(self) -> i64 {
        match self {
            Role::Q => 1,
            Role::K => 2,
            Role::V => 3,
            Role::O => 4,
            Role::Stats => 5,
            Role::Max => 6,
            Role::SumExp => 7,
            Role::DO => 8,
            Role::DQ => 9,
            Role::DK => 10,
            Role::DV => 11,
            Role::Scale => 12,
            Role::SeqLenQ => 13,
            Role::SeqLenKv => 14,
            Role::PageTableK => 15,
            Role::PageTableV => 16,
            Role::Sink => 17,
            Role::DSink => 18,
            Role::DropoutSeed => 19,
            Role::DropoutOffset => 20,
            Role::DropoutMask => 21,
            Role::BlockMask => 22,
            Role::SoftmaxSum => 23,
            Role::DqAccum => 24,
            Role::DkFullHeads => 25,
            Role::DvFullHeads => 26,
            Role::QT => 27,
            Role::KT => 28,
            Role::DOT => 29,
            Role::DOHalf => 30,
            Role::SeqLenQWhole => 31,
            Role::SeqLenKvWhole => 32,
            Role::Wide => 33,
            Role::Narrow => 34,
            Role::NarrowScale => 35,
            Role::NarrowDescale => 36,
            Role::NarrowAmax => 37,
            Role::QueryOrigin => 38,
            Role::KeyOrigin => 39,
            Role::Into => 40,
            Role::DraftTree => 41,
            Role::AmaxHistory => 42,
            Role::NewK => 43,
            Role::NewV => 44,
            Role::Offsets(p) => 100 + p as i64,
            Role::Descale(s) => 200 + s as i64,
            Role::ScaleOf(s) => 220 + s as i64,
            Role::Amax(s) => 240 + s as i64,
            Role::Scalar(n) => 1_000 + (n % 1_000) as i64,
            Role::ScoreTensor(n) => 2_000 + (n % 1_000) as i64,
            Role::DScoreTensor(n) => 3_000 + (n % 1_000) as i64,
            Role::Part(n) => 4_000 + (n % 1_000) as i64,
            Role::PartStats(n) => 5_000 + (n % 1_000) as i64,
            Role::PartRows(n) => 6_000 + (n % 1_000) as i64,
        }
    }

    /// The role with a unique id.
    #[must_use]
    pub fn from_uid(uid: i64) -> Option<Role> {
        let fixed = [
            Role::Q,
            Role::K,
            Role::V,
            Role::O,
            Role::Stats,
            Role::Max,
            Role::SumExp,
            Role::DO,
            Role::DQ,
            Role::DK,
            Role::DV,
            Role::Scale,
            Role::SeqLenQ,
            Role::SeqLenKv,
            Role::PageTableK,
            Role::PageTableV,
            Role::Sink,
            Role::DSink,
            Role::DropoutSeed,
            Role::DropoutOffset,
            Role::DropoutMask,
            Role::BlockMask,
            Role::SoftmaxSum,
            Role::DqAccum,
            Role::DkFullHeads,
            Role::DvFullHeads,
            Role::QT,
            Role::KT,
            Role::DOT,
            Role::DOHalf,
            Role::SeqLenQWhole,
            Role::SeqLenKvWhole,
            Role::Wide,
            Role::Narrow,
            Role::NarrowScale,
            Role::NarrowDescale,
            Role::NarrowAmax,
            Role::QueryOrigin,
            Role::KeyOrigin,
            Role::Into,
            Role::DraftTree,
            Role::AmaxHistory,
            Role::NewK,
            Role::NewV,
        ];
        let at = |base: i64| usize::try_from(uid - base).ok();
        let number = || u16::try_from(uid % 1_000).ok();
        match uid {
            1..=44 => at(1).and_then(|i| fixed.get(i).copied()),
            100..200 => at(100).and_then(|i| Varlen::ALL.get(i).copied()).map(Role::Offsets),
            200..220 => at(200).and_then(|i| Scaled::ALL.get(i).copied()).map(Role::Descale),
            220..240 => at(220).and_then(|i| Scaled::ALL.get(i).copied()).map(Role::ScaleOf),
            240..260 => at(240).and_then(|i| Scaled::ALL.get(i).copied()).map(Role::Amax),
            1_000..2_000 => number().map(Role::Scalar),
            2_000..3_000 => number().map(Role::ScoreTensor),
            3_000..4_000 => number().map(Role::DScoreTensor),
            4_000..5_000 => number().map(Role::Part),
            5_000..6_000 => number().map(Role::PartStats),
            6_000..7_000 => number().map(Role::PartRows),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_ids_and_roles_are_one_to_one() {
        let mut seen = std::collections::BTreeMap::new();
        for uid in 0..10_000 {
            if let Some(role) = Role::from_uid(uid) {
                assert_eq!(role.uid(), uid, "{role}");
                assert!(seen.insert(role, uid).is_none(), "{role} has two ids");
            }
        }
        assert!(seen.contains_key(&Role::DvFullHeads) && seen.contains_key(&Role::Amax(Scaled::DV)));
        assert_eq!(seen.len(), 44 + 12 + 39 + 6_000);
    }
}
