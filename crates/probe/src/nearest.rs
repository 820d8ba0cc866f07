//! Accepted alternatives to a refused request: single changes, the smallest first.

use qkvault_cudnn::Target;
use qkvault_graph::expr::parse_expr;
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, CudnnVersion, DType, Lengths, Order, Outputs, Pass, ScoreExpr, Storage,
    Tensor, Valid, validate,
};

use crate::{Request, check};

/// A single change that the rules accept.
#[derive(Clone, Debug)]
pub struct Near {
    /// The change in words.
    pub change: String,
    /// The description after it.
    pub attention: Valid,
    /// The target after it.
    pub target: Target,
}

/// A change of the description, and its name.
type DescriptionChange = (&'static str, fn(&mut Attention));

/// Changes of the description, from the cheapest to those that give up most.
const CHANGES: &[DescriptionChange] = &[
    ("head dims padded with zeros to multiples of 8", |a| head_dim(a, |d| (d + 7) / 8 * 8)),
    ("head dims padded with zeros to multiples of 16", |a| head_dim(a, |d| (d + 15) / 16 * 16)),
    ("head dims padded with zeros to the larger of the two", |a| {
        let most = a.q.dims[3].max(a.v.dims[3]);
        head_dim(a, |_| most);
    }),
    ("dO and gradients that lie as O, Q, K and V do", |a| {
        if let Pass::Backward(_) = a.pass {
            *a = derived(a);
        }
    }),
    ("contiguous operands in the order BSHD", |a| {
        reshape(a, |t| {
            if t.storage == Storage::Dense {
                *t = Tensor::dense(Order::Bshd, t.dims, t.dtype);
            }
        });
    }),
    ("Stats as the only output besides O", |a| {
        a.outputs = Outputs::STATS;
    }),
    ("padded rows left undefined", |a| a.padded_rows = qkvault_graph::PaddedRows::Undefined),
    ("tensors whose gradient is computed in the element type of Q", |a| {
        // A backward that the caller gives is of the expression as it is.
        if a.score_mod_bprop.is_none()
            && let Some(score_mod) = a.score_mod.as_ref().and_then(|expr| with_gradients_in(expr, a.q.dtype))
        {
            a.score_mod = Some(score_mod);
        }
    }),
    ("sums of gradients in any order (deterministic: no)", |a| {
        if let Pass::Backward(g) = &mut a.pass {
            g.deterministic = false;
        }
    }),
    ("sums of gradients in one order (deterministic: yes)", |a| {
        if let Pass::Backward(g) = &mut a.pass {
            g.deterministic = true;
        }
    }),
    ("per-sequence lengths given at launch", |a| a.mask.lengths = Lengths::PerSequence),
    ("a diagonal that starts top left", |a| corner(a, Corner::TopLeft)),
    ("a diagonal that ends bottom right", |a| corner(a, Corner::BottomRight)),
    ("a causal mask without a window", |a| {
        a.mask.band = a.mask.band.map(|band| Band { left: None, right: Some(0), ..band });
    }),
    ("dense operands with lengths instead of varlen ones", |a| {
        reshape(a, |t| {
            if let Storage::Varlen { .. } = t.storage {
                *t = Tensor::dense(Order::Bshd, t.dims, t.dtype);
            }
        });
    }),
    ("gathered keys and values instead of paged ones", |a| {
        reshape(a, |t| {
            if let Storage::Paged { .. } = t.storage {
                *t = Tensor::dense(Order::Bshd, t.dims, t.dtype);
            }
        });
    }),
    ("no gradient of the sink", |a| {
        if let Pass::Backward(g) = &mut a.pass {
            g.d_sink = false;
        }
    }),
    ("no block mask", |a| a.block_mask = false),
    ("no tree of drafts", |a| a.draft_tree = false),
    ("no dropout", |a| a.dropout = None),
    ("no sink", |a| {
        a.sink = false;
        if let Pass::Backward(g) = &mut a.pass {
            g.d_sink = false;
        }
    }),
    ("no keep predicate", |a| a.mask.mask_mod = None),
    ("no score expression", |a| (a.score_mod, a.score_mod_bprop) = (None, None)),
    ("no diagonal band", |a| a.mask.band = None),
    ("16-bit operands", |a| {
        a.fp8 = None;
        reshape(a, |t| t.dtype = DType::BF16);
    }),
    ("the forward alone", |a| a.pass = Pass::Forward),
];

/// Single changes that the rules accept, the smallest first; empty if the request is accepted as it is.
///
/// `versions` are the other usable versions of cuDNN. `Planner::confirm` checks whether cuDNN itself accepts a change.
#[must_use]
pub fn nearest(request: &Request<'_>, versions: &[CudnnVersion]) -> Vec<Near> {
    if check(request).supported() { Vec::new() } else { changes(request, versions) }
}

/// Like [`nearest`], also for a request that the rules accept: for refusals that only cuDNN makes.
#[must_use]
pub fn changes(request: &Request<'_>, versions: &[CudnnVersion]) -> Vec<Near> {
    let accepts =
        |attention: &Valid, target: &Target| check(&Request { attention, target, ..request.clone() }).supported();
    let mut list = Vec::new();
    for (change, apply) in CHANGES {
        let mut a = request.attention.get().clone();
        apply(&mut a);
        let Ok(attention) = validate(a) else { continue };
        if &attention != request.attention && accepts(&attention, request.target) {
            list.push(Near { change: (*change).to_owned(), attention, target: request.target.clone() });
        }
    }
    // Another cuDNN computes the same, but must be deployed: it comes after changes that keep the meaning.
    // A newer one first: an older one may be right only because it lacks what is wrong now.
    let (newer, older): (Vec<CudnnVersion>, Vec<CudnnVersion>) =
        versions.iter().filter(|&&v| v != request.target.cudnn).partition(|&&v| v > request.target.cudnn);
    for cudnn in newer.into_iter().chain(older) {
        let toolchain = request.target.toolchain.under(cudnn);
        let target = Target { cudnn, toolchain, ..request.target.clone() };
        if accepts(request.attention, &target) {
            list.push(Near { change: format!("cuDNN {cudnn}"), attention: request.attention.clone(), target });
        }
    }
    list
}

/// Changes every operand, and derives the backward again if there is one and an operand changed.
fn reshape(a: &mut Attention, change: impl Fn(&mut Tensor)) {
    let before = [a.q, a.k, a.v, a.o];
    for t in [&mut a.q, &mut a.k, &mut a.v, &mut a.o] {
        change(t);
    }
    if before != [a.q, a.k, a.v, a.o] && matches!(a.pass, Pass::Backward(_)) {
        *a = derived(a);
    }
}

/// The backward that follows from the operands of the forward.
fn derived(a: &Attention) -> Attention {
    let Pass::Backward(g) = &a.pass else { return a.clone() };
    let options = BackwardOptions { d_sink: g.d_sink, deterministic: g.deterministic, ..BackwardOptions::default() };
    a.backward(options)
}

/// The expression with every tensor whose gradient is computed in another element type, by its text form; `None` if it
/// has no such tensor.
fn with_gradients_in(expr: &ScoreExpr, to: DType) -> Option<ScoreExpr> {
    let text = expr.to_string();
    let retyped = text.split(';').map(|part| {
        let declared = part.trim().starts_with("tensor ") && part.trim().ends_with(" grad");
        match part.split_once(": ").filter(|_| declared) {
            Some((name, rest)) => {
                let extents = rest.find('[').map_or("", |at| &rest[at..]);
                format!("{name}: {to}{extents}")
            }
            None => part.to_owned(),
        }
    });
    let retyped = retyped.collect::<Vec<_>>().join(";");
    if retyped == text { None } else { parse_expr(&retyped).ok() }
}

fn head_dim(a: &mut Attention, to: impl Fn(i64) -> i64) {
    reshape(a, |t| {
        let d = to(t.dims[3]);
        if d != t.dims[3] && t.storage == Storage::Dense {
            t.dims[3] = d;
            *t = Tensor::dense(Order::Bshd, t.dims, t.dtype);
        }
    });
}

fn corner(a: &mut Attention, corner: Corner) {
    a.mask.band = a.mask.band.map(|band| Band { corner, ..band });
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_cudnn::Profile;
    use qkvault_graph::{DType, LibrarySet, text};

    fn target(cudnn: CudnnVersion) -> Target {
        Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim)
    }

    #[test]
    fn d3_the_smallest_accepted_change_comes_first() {
        let target = target(CudnnVersion::v9(27, 0));
        let odd = validate(Attention::bshd(1, (8, 8), (512, 512), 100, DType::F16)).expect("sound");
        let near = nearest(&Request::new(&odd, &target), &[]);
        assert_eq!(near[0].change, "head dims padded with zeros to multiples of 8");
        assert_eq!(near[0].attention.head_dims(), (104, 104));
        let fine = validate(Attention::bshd(1, (8, 8), (512, 512), 104, DType::F16)).expect("sound");
        assert!(nearest(&Request::new(&fine, &target), &[]).is_empty());
    }

    #[test]
    fn another_version_is_a_change_too() {
        let old = target(CudnnVersion::v9(10, 1));
        let plain = validate(Attention::bshd(1, (8, 8), (512, 512), 64, DType::F16)).expect("sound");
        let versions = [CudnnVersion::v9(10, 1), CudnnVersion::v9(19, 0)];
        let near = nearest(&Request::new(&plain, &old), &versions);
        assert_eq!(near.iter().map(|n| n.change.as_str()).collect::<Vec<_>>(), ["cuDNN 9.19.0"]);
        assert_eq!(near[0].target.cudnn, CudnnVersion::v9(19, 0));
    }

    /// A decode that 9.19 computes wrongly on a B200 was said to be nearest to 9.14, which is older.
    #[test]
    fn a_newer_version_is_nearer_than_an_older_one() {
        let decode = text::parse("q: bf16 [4,8,1,128]\nk: [4,2,300,128]").expect("a description");
        let decode = validate(decode).expect("sound");
        let b200 = Profile::named("b200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let versions = [CudnnVersion::v9(14, 0), CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0)];
        let near = nearest(&Request::new(&decode, &b200), &versions);
        let names: Vec<&str> = near.iter().map(|n| n.change.as_str()).filter(|n| n.starts_with("cuDNN")).collect();
        assert_eq!(names, ["cuDNN 9.27.0", "cuDNN 9.14.0"]);
    }
}
