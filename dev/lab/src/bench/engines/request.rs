//! What peers are asked for: an attention as data that no library of theirs has a word for. It follows from the
//! attention, so that every row has one.

use anyhow::bail;
use qkvault_cli::turns::{DOCUMENT, Full, SCALAR, full, is_latent};
use qkvault_compile::times::Direction;
use qkvault_graph::expr::{self, library};
use qkvault_graph::{Attention, Corner, Lengths, Pass, ScoreExpr, Storage, Tensor, Valid, validate};
use serde_json::{Value, json};

/// A request for a case: sizes and features, as `cases.py` reads them.
///
/// # Errors
///
/// The attention has something that requests have no word for.
pub(super) fn request(a: &Valid) -> anyhow::Result<Value> {
    let (queries, keys) = a.seq();
    let each = |n: i64| vec![n; usize::try_from(a.batch()).unwrap_or(0)];
    let wide = |list: Vec<i32>| list.into_iter().map(i64::from).collect();
    let (queries, keys): (Vec<i64>, Vec<i64>) = match full(a) {
        Some(Full { queries, keys, .. }) => (wide(queries), wide(keys)),
        None => (each(queries), each(keys)),
    };
    let Attention { mask, score_mod, pass, .. } = a.get();
    let (softcap, alibi) = match score_mod {
        None => (None, false),
        Some(_) if modified(a, library::softcap(expr::score(), expr::scalar("cap")).build_score_mod()?)? => {
            (Some(SCALAR), false)
        }
        Some(_) if modified(a, library::alibi(expr::score(), a.q.heads()).build_score_mod()?)? => (None, true),
        Some(other) => bail!("peers know no score modification {other}"),
    };
    if a.dropout.is_some() || a.fp8.is_some() || a.origins.is_some() {
        bail!("peers are asked for no dropout, no 8-bit numbers and no origins");
    }
    let (backward, deterministic, d_sink) = match pass {
        Pass::Backward(gradients) => (true, gradients.deterministic, gradients.d_sink),
        _ => (false, false, false),
    };
    let direction = if backward { Direction::Backward } else { Direction::Forward };
    let (d, dv) = a.head_dims();
    let (page, pages) = match a.k.storage {
        Storage::Paged { page_size, pages } => (page_size, pages),
        Storage::Dense | Storage::Varlen { .. } => (0, 0),
    };
    let packed = |tensor: &Tensor| matches!(tensor.storage, Storage::Varlen { .. });
    let band = mask.band;
    Ok(json!({
        "do": "case", "direction": direction.name(), "b": a.batch(), "h": a.q.heads(), "hk": a.k.heads(), "d": d,
        "dv": dv, "queries": queries, "keys": keys, "left": band.and_then(|band| band.left),
        "right": band.and_then(|band| band.right),
        "bottom_right": band.is_some_and(|band| band.corner == Corner::BottomRight),
        "softcap": softcap, "alibi": alibi, "sink": a.sink, "d_sink": d_sink,
        "lengths": mask.lengths == Lengths::PerSequence, "mask": operand_mask(a)?,
        "document": DOCUMENT, "page": page, "pages": pages, "packed_q": packed(&a.q), "packed_k": packed(&a.k),
        "latent": is_latent(a), "deterministic": deterministic,
    }))
}

/// The mask that operands tell.
fn operand_mask(a: &Valid) -> anyhow::Result<Option<&'static str>> {
    let (queries, keys) = a.seq();
    if a.draft_tree {
        return Ok(Some("tree"));
    }
    let Some(predicate) = &a.mask.mask_mod else {
        return Ok(a.block_mask.then_some("blocks"));
    };
    if a.block_mask {
        bail!("peers are asked for one mask of operands");
    }
    let documents = library::document_mask("q_ids", "k_ids", a.batch(), queries, keys).build_mask_mod()?;
    if masked(a, documents)? {
        return Ok(Some("documents"));
    }
    if let [spec] = predicate.tensors()
        && spec.dims[2] > 1
        && spec.dims[3] > 1
        && masked(a, expr::tensor("mask", *spec).ne(0).build_mask_mod()?)?
    {
        return Ok(Some("tensor"));
    }
    bail!("peers know no mask {predicate}")
}

/// Whether an attention has this score modification, in canonical form.
fn modified(a: &Valid, by: ScoreExpr) -> anyhow::Result<bool> {
    Ok(validate(a.get().clone().with_score_mod(by))?.score_mod == a.score_mod)
}

/// Whether an attention has this predicate, in canonical form.
fn masked(a: &Valid, by: ScoreExpr) -> anyhow::Result<bool> {
    Ok(validate(a.get().clone().with_mask_mod(by))?.mask.mask_mod == a.mask.mask_mod)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use qkvault_graph::{Band, DType};
    use qkvault_skip::{Need, skip};

    use super::*;
    use crate::bench::engines::cases;

    /// Canonical strides of the one head of a latent cache differ: its values were taken for a pool of their own.
    #[test]
    fn an_attention_is_told_by_its_features_and_not_by_its_name() {
        let of = |a: Attention| request(&validate(a).expect("valid")).expect("a request");
        let capped = library::softcap(expr::score(), expr::scalar("c")).build_score_mod().expect("builds");
        let prompt = Attention::bshd(2, (4, 2), (64, 64), 64, DType::BF16).causal().with_score_mod(capped);
        let told = of(prompt.clone());
        assert_eq!((&told["softcap"], &told["right"], &told["queries"]), (&json!(50.0), &json!(0), &json!([64, 64])));
        assert_eq!((&told["page"], &told["alibi"], &told["direction"]), (&json!(0), &json!(false), &json!("forward")));
        let told = of(cases::latent(2, 16, 1, 1024).with_band(Band::CAUSAL_BOTTOM_RIGHT));
        assert_eq!((&told["latent"], &told["page"], &told["dv"]), (&json!(true), &json!(64), &json!(512)));
        let other = (expr::score() * expr::constant(2.0)).build_score_mod().expect("builds");
        let error = request(&validate(prompt.with_score_mod(other)).expect("valid")).expect_err("no word");
        assert!(error.to_string().starts_with("peers know no score modification"), "{error}");
    }

    /// The tests of the program of peers, with the requests of all rows.
    #[test]
    fn the_program_of_peers_computes_what_it_is_asked_for_on_a_cpu() {
        let all = cases::list().expect("valid");
        let requests: Vec<Value> = all.iter().map(|case| request(&case.attention).expect(&case.name)).collect();
        let folder = qkvault_base::cache_dir().join("torch-tests");
        let python = folder.join("bin/python");
        // Written when all packages are there.
        if !folder.join("installed.txt").exists() {
            return skip(Need::Torch, "cargo xtask torch-tests has installed no PyTorch");
        }
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("requests.json");
        std::fs::write(&file, Value::from(requests).to_string()).expect("writes");
        let mut tests = Command::new(python);
        tests.args(["-m", "unittest", "test_peer"]).env("QKVAULT_PEER_REQUESTS", file);
        tests.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/peer")).env("PYTHONDONTWRITEBYTECODE", "1");
        let done = tests.output().expect("starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}
