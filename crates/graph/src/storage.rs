//! The layout of operands by role: the tensor of a role, and the offsets of a varlen one.

use crate::{Attention, DType, Gradients, Pass, Role, Storage, Tensor, Varlen};

/// Token counts of the launcher's own buffers are rounded up to a multiple of this, as NVIDIA's front end does for
/// varlen backwards (cudnn-frontend 1.23, `max_total_seq_len`, in its tests).
const TOKEN_GRAIN: i64 = 64;

impl Role {
    /// The offsets of this operand's sequences, if it can be varlen. Stats, Max and Sum_exp share theirs, and the
    /// launcher's buffers use those of the operand that has their shape.
    #[must_use]
    pub const fn offsets(self) -> Option<Varlen> {
        match self {
            Role::Q => Some(Varlen::Q),
            Role::K => Some(Varlen::K),
            Role::V => Some(Varlen::V),
            Role::O => Some(Varlen::O),
            Role::Stats | Role::Max | Role::SumExp | Role::SoftmaxSum => Some(Varlen::Stats),
            Role::DO => Some(Varlen::DO),
            Role::DQ | Role::DqAccum => Some(Varlen::DQ),
            Role::DK => Some(Varlen::DK),
            Role::DV => Some(Varlen::DV),
            // The second 8-bit form of an operand has the layout of the first.
            Role::QT => Some(Varlen::Q),
            Role::KT => Some(Varlen::K),
            Role::DOT => Some(Varlen::DO),
            Role::DOHalf => Some(Varlen::DOHalf),
            Role::NewK => Some(Varlen::NewK),
            Role::NewV => Some(Varlen::NewV),
            _ => None,
        }
    }
}

impl Attention {
    /// The tensor of a role whose rows can be varlen or paged; `None` for other roles, and for roles that this
    /// attention does not have.
    #[must_use]
    pub fn stored(&self, role: Role) -> Option<Tensor> {
        let gradients = match &self.pass {
            Pass::Forward => None,
            Pass::Backward(gradients) => Some(gradients),
        };
        let of = |pick: fn(&Gradients) -> Tensor| gradients.map(pick);
        // The second 8-bit forms of a microscaled backward.
        let second = gradients.filter(|g| g.d_o_half.is_some());
        match role {
            Role::Q => Some(self.q),
            Role::K => Some(self.k),
            Role::V => Some(self.v),
            Role::O => Some(self.o),
            Role::Stats | Role::Max | Role::SumExp => Some(self.row_tensor()),
            Role::DO => of(|g| g.d_o),
            Role::DQ => of(|g| g.d_q),
            Role::DK => of(|g| g.d_k),
            Role::DV => of(|g| g.d_v),
            Role::QT => second.map(|_| self.q),
            Role::KT => second.map(|_| self.k),
            Role::DOT => second.map(|g| g.d_o),
            Role::DOHalf => gradients.and_then(|g| g.d_o_half),
            Role::SoftmaxSum => gradients.map(|_| rounded(self.row_tensor())),
            Role::DqAccum => gradients.map(|g| rounded(accumulator(&g.d_q))),
            _ => None,
        }
    }
}

/// The f32 sums of dQ: with the layout of dQ if that is varlen, because its offsets apply; otherwise contiguous.
#[must_use]
pub fn accumulator(d_q: &Tensor) -> Tensor {
    match d_q.storage {
        Storage::Varlen { .. } => Tensor { dtype: DType::F32, ..*d_q },
        Storage::Dense | Storage::Paged { .. } => Tensor::dense(crate::Order::Bhsd, d_q.dims, DType::F32),
    }
}

fn rounded(t: Tensor) -> Tensor {
    match t.storage {
        Storage::Varlen { tokens } => {
            let room = tokens.max(1).saturating_add(TOKEN_GRAIN - 1) / TOKEN_GRAIN * TOKEN_GRAIN;
            Tensor { storage: Storage::Varlen { tokens: room }, ..t }
        }
        Storage::Dense | Storage::Paged { .. } => t,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BackwardOptions;

    #[test]
    fn buffers_of_a_varlen_backward_have_room_for_its_tokens_only() {
        let q = Tensor::thd(64, 8, 4096, 64, 1000, DType::BF16);
        let a = Attention::forward(q, q, q, q).with_lengths().with_stats().backward(BackwardOptions::default());
        let sums = a.stored(Role::DqAccum).expect("a backward has it");
        assert_eq!(sums.bytes(), Some(1024 * 8 * 64 * 4));
        assert_eq!(a.stored(Role::SoftmaxSum).and_then(|t| t.bytes()), Some(1024 * 8 * 4));
        assert_eq!((Role::DqAccum.offsets(), Role::SoftmaxSum.offsets()), (Some(Varlen::DQ), Some(Varlen::Stats)));
        assert_eq!(a.stored(Role::Scale), None);
    }
}
