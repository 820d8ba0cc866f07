//! What no schedule is made for, with every reason at once.

use crate::codes;
use qkvault_graph::{
    Attention, Corner, DropoutSource, Lengths, Outputs, PaddedRows, Reason, Refusal, Role, Storage, Tensor, operands,
};

use crate::maker::flat;
use crate::tile::{TileBlock, tile};
use crate::{Scheme, Sharding};

/// Refuses what the schedules do not take.
pub(crate) fn check(a: &Attention, sharding: &Sharding) -> Result<(), Refusal> {
    if !(1..=64).contains(&sharding.ranks) {
        return Err(codes::SHARD_RANKS.reason(format!("{} ranks", sharding.ranks)).into());
    }
    let mut reasons = Vec::new();
    if let Some(origins) = a.origins {
        reasons.push(codes::SHARD_ORIGINS.reason(format!("{origins:?}")));
    }
    storage(a, sharding, &mut reasons);
    if reasons.is_empty() {
        sequence(a, sharding, &mut reasons);
    }
    heads(a, sharding, &mut reasons);
    features(a, sharding, &mut reasons);
    lengths(a, sharding, &mut reasons);
    gradients(a, sharding, &mut reasons);
    match Refusal::from_reasons(reasons) {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

/// Refuses rows that no launch computes if they have a sink: their Stats would be the sink's logit.
pub(crate) fn no_empty_rows_with_sink(a: &Attention) -> Result<(), Refusal> {
    if a.sink {
        return Err(codes::SHARD_SINK.reason("a mask that hides every key of some queries").into());
    }
    Ok(())
}

fn storage(a: &Attention, sharding: &Sharding, reasons: &mut Vec<Reason>) {
    let dense = |t: &Tensor| t.storage == Storage::Dense;
    let varlen = |t: &Tensor| matches!(t.storage, Storage::Varlen { .. });
    let all = |is: &dyn Fn(&Tensor) -> bool| [&a.q, &a.k, &a.v, &a.o].into_iter().all(is);
    let taken = match sharding.scheme {
        Scheme::Gather { .. } | Scheme::Heads | Scheme::Ring => all(&dense) || all(&varlen),
        Scheme::Decode { .. } => dense(&a.q) && dense(&a.o) && !varlen(&a.k) && !varlen(&a.v),
    };
    if !taken {
        let given = format!("{:?} queries and {:?} keys with {sharding}", a.q.storage, a.k.storage);
        reasons.push(codes::SHARD_STORAGE.reason(given).at("q.storage"));
    }
    let by_position = |role: Role, dims: [i64; 4]| {
        matches!(role, Role::DropoutMask) || matches!(role, Role::ScoreTensor(_)) && (dims[2] != 1 || dims[3] != 1)
    };
    if varlen(&a.q) && matches!(sharding.scheme, Scheme::Gather { .. } | Scheme::Ring) {
        for o in operands(a).iter().filter(|o| by_position(o.role, o.tensor.dims)) {
            let given = format!("{} of extents {:?} beside packed sequences", o.role, o.tensor.dims);
            reasons.push(codes::SHARD_STORAGE.reason(given).at("score_mod"));
        }
        if a.dropout.is_some_and(|dropout| dropout.source == DropoutSource::Places) {
            reasons.push(codes::SHARD_STORAGE.reason("dropout by places beside packed sequences").at("dropout.source"));
        }
    }
}

fn sequence(a: &Attention, sharding: &Sharding, reasons: &mut Vec<Reason>) {
    if matches!(sharding.scheme, Scheme::Decode { .. }) {
        return;
    }
    let chunks = sharding.chunks();
    for (field, t) in [("q.dims[2]", &a.q), ("k.dims[2]", &a.k)] {
        let length = flat(t).dims[2];
        if length % chunks != 0 {
            let padded = (length + chunks - 1) / chunks * chunks;
            reasons.push(
                codes::SHARD_SEQUENCE
                    .reason(format!("{length} tokens for {chunks} parts"))
                    .at(field)
                    .with_needed(format!("a multiple of {chunks}: {padded}")),
            );
        }
    }
}

fn heads(a: &Attention, sharding: &Sharding, reasons: &mut Vec<Reason>) {
    let (h_q, h_k, h_v) = a.heads();
    match sharding.scheme {
        Scheme::Gather { groups } => {
            let groups = i64::from(groups);
            if groups < 1 || h_k % groups != 0 || h_v % groups != 0 {
                let given = format!("{groups} groups of {h_k} key heads and {h_v} value heads");
                reasons.push(codes::SHARD_HEADS.reason(given).with_needed("groups that divide both"));
            }
        }
        Scheme::Heads => {
            let ranks = i64::from(sharding.ranks);
            let mine = h_q / ranks;
            // The query heads of a rank use whole key heads, or all of them the same one.
            let shared = |h: i64| {
                let group = h_q / h;
                mine > 0 && (mine % group == 0 || group % mine == 0)
            };
            if h_q % ranks != 0 || !shared(h_k) || !shared(h_v) {
                let given = format!("{h_q} query heads and {h_k} key heads over {ranks} ranks");
                let needed = "ranks that divide the query heads, and divide the key heads or are a multiple of them";
                reasons.push(codes::SHARD_HEADS.reason(given).with_needed(needed));
            }
        }
        Scheme::Ring => {}
        Scheme::Decode { run } => {
            let page = match a.k.storage {
                Storage::Paged { page_size, .. } => page_size,
                Storage::Dense | Storage::Varlen { .. } => 1,
            };
            let of_values = match a.v.storage {
                Storage::Paged { page_size, .. } => page_size,
                Storage::Dense | Storage::Varlen { .. } => 1,
            };
            if run == 0 || i64::from(run) % page != 0 || i64::from(run) % of_values != 0 {
                let needed = format!("a multiple of {}", page.max(of_values));
                reasons.push(codes::SHARD_RUN.reason(format!("runs of {run} keys")).with_needed(needed));
            }
        }
    }
}

fn features(a: &Attention, sharding: &Sharding, reasons: &mut Vec<Reason>) {
    let decode = matches!(sharding.scheme, Scheme::Decode { .. });
    if let Some(dropout) = a.dropout
        && (dropout.source == DropoutSource::Philox || decode)
    {
        reasons.push(codes::SHARD_DROPOUT.reason(format!("{:?} with {sharding}", dropout.source)));
    }
    if a.block_mask {
        reasons.push(codes::SHARD_BLOCK_MASK.reason("a block mask"));
    }
    if a.draft_tree {
        reasons.push(codes::SHARD_DRAFT_TREE.reason("a tree of drafts"));
    }
    if let Some(fp8) = a.fp8 {
        reasons.push(codes::SHARD_FP8.reason(format!("{fp8:?}")));
    }
    let Outputs { max, sum_exp, .. } = a.outputs;
    if (max || sum_exp) && (decode || sharding.scheme == Scheme::Ring) {
        reasons.push(codes::SHARD_OUTPUTS.reason(format!("Max {max}, Sum_exp {sum_exp} with {sharding}")));
    }
    // A merge adds the sink to every row, also to padding, whose Stats would have to be minus infinity.
    let merged = decode || sharding.scheme == Scheme::Ring && !own_keys_are_seen(a, sharding);
    if a.sink && merged && a.padded_rows == PaddedRows::Zero {
        reasons.push(codes::SHARD_SINK.reason(format!("a sink and zeros in padded rows with {sharding}")));
    }
    if decode && a.is_backward() {
        reasons.push(codes::SHARD_PASS.reason("a backward"));
    }
}

fn lengths(a: &Attention, sharding: &Sharding, reasons: &mut Vec<Reason>) {
    let (Lengths::PerSequence, Some(band)) = (a.mask.lengths, a.mask.band) else { return };
    let packed = matches!(a.q.storage, Storage::Varlen { .. });
    let moves = match sharding.scheme {
        Scheme::Gather { .. } => band.right == Some(0) || !packed && band.corner == Corner::TopLeft,
        // Packed documents are square under a band; a launch compares.
        Scheme::Ring => packed || band.corner == Corner::TopLeft,
        Scheme::Heads | Scheme::Decode { .. } => true,
    };
    if !moves {
        reasons.push(codes::SHARD_LENGTHS.reason(format!("{band:?} with {sharding}")));
    }
}

fn gradients(a: &Attention, sharding: &Sharding, reasons: &mut Vec<Reason>) {
    let scores = [a.batch(), a.q.dims[1], a.q.dims[2], a.k.dims[2]];
    for o in operands(a) {
        if !matches!(o.role, Role::DScoreTensor(_)) {
            continue;
        }
        let shared = |dim: usize| o.tensor.dims[dim] == 1 && scores[dim] != 1;
        let summed = match sharding.scheme {
            Scheme::Gather { groups } => shared(2) || shared(1) && groups > 1,
            Scheme::Ring => shared(2) || shared(3),
            Scheme::Heads => shared(1),
            Scheme::Decode { .. } => false,
        };
        if sharding.ranks > 1 && summed {
            let given = format!("{} of extents {:?} with {sharding}", o.role, o.tensor.dims);
            reasons.push(codes::SHARD_TENSOR_GRADIENT.reason(given).at("score_mod"));
        }
    }
    if sharding.scheme == Scheme::Ring
        && operands(a).iter().any(|o| o.role == Role::DSink)
        && reasons.is_empty()
        && !own_keys_are_seen(a, sharding)
    {
        reasons
            .push(codes::SHARD_SINK.reason(format!("{:?}, {:?} lengths with {sharding}", a.mask.band, a.mask.lengths)));
    }
}

/// Whether each query sees keys of the chunk of its own number. Lengths may leave a chunk without keys; a packed
/// document that is square has in each chunk the keys of its queries there.
pub(crate) fn own_keys_are_seen(a: &Attention, sharding: &Sharding) -> bool {
    let (q, k) = (flat(&a.q).dims[2] / sharding.chunks(), flat(&a.k).dims[2] / sharding.chunks());
    let packed = matches!(a.q.storage, Storage::Varlen { .. });
    if packed {
        return a.mask.band.is_some() && q == k;
    }
    if a.mask.lengths == Lengths::PerSequence {
        return false;
    }
    (0..sharding.chunks()).all(|c| {
        let rows = (c * q, (c + 1) * q);
        tile(a, TileBlock { rows, keys: (c * k, (c + 1) * k) }).is_some_and(|tile| tile.block.rows == rows)
    })
}
