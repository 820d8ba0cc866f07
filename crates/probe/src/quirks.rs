//! What the library accepts and computes wrongly, as rows: which engines are passed over for which graphs, and the evidence.
//!
//! An engine that is passed over costs nothing when the next one of the heuristics is right; when none is left, the refusal
//! names the row.

use qkvault_graph::op::{Op, Pointwise, TensorKind};
use qkvault_graph::{CudnnVersion, Layer, OpGraph, Reason, Role, Target};

/// One row.
pub struct Quirk {
    /// Stable name, the code of its reason.
    pub id: &'static str,
    /// First version that it was seen in.
    pub since: CudnnVersion,
    /// Compute capabilities that it was seen on or is assumed for: lowest and highest.
    pub sms: (u32, u32),
    /// What goes wrong.
    pub effect: &'static str,
    /// Where it was seen.
    pub evidence: &'static str,
    applies: fn(&OpGraph) -> bool,
    avoids: fn(Choice) -> bool,
}

/// What the heuristics chose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) engine: Option<i64>,
    pub(crate) workspace: u64,
}

/// Every row.
pub const QUIRKS: &[Quirk] = &[Quirk {
    id: "quirk.split-decode-index",
    since: CudnnVersion::v9(14, 0),
    sms: (80, 129),
    effect: "engine 1 divides the keys of a one-query attention among blocks and then takes the wrong key index, except for \
             padding by lengths: ALiBi and other expressions of the index give wrong output, or kernels that do not compile",
    evidence: "H200, cuDNN 9.19: relative errors of 0.8 and 1.5 with ALiBi at 300 keys; 9.27: status 4001 at 1024 keys",
    applies: reads_key_index,
    avoids: |choice| choice.engine == Some(1) && choice.workspace > 256,
}];

/// The reason to pass a choice over, if a row says so.
pub(crate) fn against(graph: &OpGraph, target: &Target, choice: Choice) -> Option<Reason> {
    let sm = target.sm();
    let row = QUIRKS.iter().find(|q| {
        target.cudnn >= q.since && (q.sms.0..=q.sms.1).contains(&sm) && (q.avoids)(choice) && (q.applies)(graph)
    })?;
    let given = format!("engine {:?} with {} bytes of workspace", choice.engine.unwrap_or(-1), choice.workspace);
    Some(Reason::new(Layer::Quirk, row.id, "engine", given, row.effect, "use another shape, or more than one query"))
}

/// Whether a graph over one query reads the key's index for anything but a comparison with KV lengths.
fn reads_key_index(graph: &OpGraph) -> bool {
    let lengths = |id| graph.tensor(id).kind == TensorKind::Operand(Role::SeqLenKv);
    let indices = graph.ops.iter().filter_map(|op| match *op {
        Op::Pointwise { mode: Pointwise::GenIndex, y, axis: Some(3), .. } if graph.tensor(y).dims[2] == 1 => Some(y),
        _ => None,
    });
    indices.into_iter().any(|index| {
        graph.ops.iter().any(|op| {
            let padding = matches!(*op, Op::Pointwise { mode: Pointwise::CmpLt, b: Some(b), .. } if lengths(b));
            op.inputs().contains(&index) && !padding
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::expr::{library, score};
    use qkvault_graph::{Attention, DType, LibrarySet, Policy, Profile, lower, validate};

    fn decode(attention: Attention) -> (OpGraph, Target) {
        let profile = Profile::named("h200").expect("built in");
        let target = profile.target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let valid = validate(attention).expect("sound");
        (lower(&valid, &target, &Policy::default()).expect("lowered"), target)
    }

    #[test]
    fn a_split_decode_took_the_wrong_key_index_for_alibi() {
        let plain = Attention::bshd(1, (3, 3), (1, 300), 128, DType::BF16);
        let alibi = library::alibi(score(), 3).build_score().expect("well typed");
        let split = Choice { engine: Some(1), workspace: 100_000 };
        let whole = Choice { engine: Some(1), workspace: 0 };
        let other = Choice { engine: Some(2), workspace: 100_000 };
        let (graph, target) = decode(plain.clone().with_score(alibi.clone()));
        assert!(against(&graph, &target, split).is_some_and(|r| r.code == "quirk.split-decode-index"));
        assert!(against(&graph, &target, whole).is_none() && against(&graph, &target, other).is_none());
        let (graph, target) = decode(plain.clone().with_lengths());
        assert!(against(&graph, &target, split).is_none(), "padding is right");
        let (graph, target) = decode(plain);
        assert!(against(&graph, &target, split).is_none(), "nothing reads the index");
        let (graph, target) = decode(Attention::bshd(1, (3, 3), (2, 300), 128, DType::BF16).with_score(alibi));
        assert!(against(&graph, &target, split).is_none(), "more than one query is right");
    }
}
