//! Shrinks a difference: applies one simplification after another, and keeps each that leaves the difference the same.

use std::collections::BTreeMap;
use std::path::PathBuf;

use qkvault_graph::{Attention, BackwardOptions, Order, Outputs, Pass, Storage, Tensor, validate};

use super::RuleCase;
use super::compare::{RuleDifference, RuleVerdict, judge};
use crate::workers::Worker;

/// Most questions to the library for one difference.
const TRIES: usize = 40;

/// Simplifications, the largest first.
const STEPS: &[fn(&mut Attention)] = &[
    |a| a.pass = Pass::Forward,
    |a| (a.score_mod, a.score_mod_bprop) = (None, None),
    |a| a.origins = None,
    |a| a.mask.mask_mod = None,
    |a| a.mask.band = None,
    |a| a.mask.lengths = qkvault_graph::Lengths::Full,
    |a| a.dropout = None,
    |a| a.sink = false,
    |a| a.outputs = Outputs::new(a.is_backward(), false, false),
    |a| {
        rewrite(a, |t| {
            if t.storage == Storage::Dense {
                *t = Tensor::dense(Order::Bshd, t.dims, t.dtype)
            }
        })
    },
    |a| each(a, 0, 1),
    |a| heads(a),
    |a| {
        each_q(a, 2, 128);
        each_kv(a, 2, 128);
    },
    |a| {
        each(a, 3, 64);
    },
    |a| {
        if let Pass::Backward(g) = &mut a.pass {
            (g.deterministic, g.d_sink) = (false, false);
        }
    },
];

/// The difference in its smallest form.
pub(super) fn smallest(
    case: &RuleCase,
    difference: &RuleDifference,
    workers: &mut BTreeMap<PathBuf, Worker>,
) -> anyhow::Result<RuleDifference> {
    let (mut best, signature) = (difference.clone(), difference.signature());
    let mut tries = 0;
    loop {
        let before = tries;
        let mut smaller = false;
        for step in STEPS {
            let mut a = best.case.attention.clone().into_inner();
            step(&mut a);
            let Ok(a) = validate(a) else { continue };
            if a == best.case.attention {
                continue;
            }
            tries += 1;
            if let RuleVerdict::Differed(found) = judge(&case.with(a), workers)?
                && found.signature() == signature
            {
                (best, smaller) = (*found, true);
            }
            if tries >= TRIES {
                return Ok(best);
            }
        }
        if !smaller || tries == before {
            return Ok(best);
        }
    }
}

/// Changes Q, K, V and O, and derives the backward again.
fn rewrite(a: &mut Attention, change: impl Fn(&mut Tensor)) {
    for t in [&mut a.q, &mut a.k, &mut a.v, &mut a.o] {
        change(t);
    }
    if let Pass::Backward(g) = a.pass {
        let options =
            BackwardOptions { d_sink: g.d_sink, deterministic: g.deterministic, ..BackwardOptions::default() };
        *a = a.backward(options);
    }
}

fn set(t: &mut Tensor, axis: usize, n: i64) {
    if t.storage == Storage::Dense {
        t.dims[axis] = n;
        *t = Tensor::dense(Order::Bshd, t.dims, t.dtype);
    }
}

fn each(a: &mut Attention, axis: usize, n: i64) {
    rewrite(a, |t| set(t, axis, n));
}

fn each_q(a: &mut Attention, axis: usize, n: i64) {
    set(&mut a.q, axis, n);
    set(&mut a.o, axis, n);
    rewrite(a, |_| ());
}

fn each_kv(a: &mut Attention, axis: usize, n: i64) {
    set(&mut a.k, axis, n);
    set(&mut a.v, axis, n);
    rewrite(a, |_| ());
}

fn heads(a: &mut Attention) {
    each(a, 1, 1);
}
