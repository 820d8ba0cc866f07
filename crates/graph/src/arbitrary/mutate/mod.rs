//! Changes of one field of an attention at a time, each with its effect on the key. Every struct is destructured
//! without `..`, so that a new field does not compile until it has changes here.

mod operands;

use crate::expr::{ScoreExpr, key, query, score};
use crate::{
    Attention, BackwardOptions, Band, Corner, Dropout, DropoutSource, Fp8, Gradients, Lengths, Mask, Origins, Outputs,
    PaddedRows, Pass, Tensor,
};

/// The effect of a change on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Another computation or another memory layout: another key.
    Changes,
    /// The same computation: the same key.
    Nothing,
    /// Either, as the canonical form decides.
    Depends,
}

/// An attention with one field changed. It may be invalid, for instance if operands must agree in the field.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// The changed field.
    pub field: String,
    /// The changed attention.
    pub attention: Attention,
    /// The effect on the key.
    pub effect: Effect,
}

/// Every change of one field of a valid attention. Sizes and types that operands share are changed in all of them.
#[must_use]
pub fn mutations(a: &Attention) -> Vec<Mutation> {
    let mut list = List { base: a, found: Vec::new() };
    let Attention {
        q,
        k,
        v,
        o,
        mask,
        score_mod,
        score_mod_bprop,
        origins,
        sink,
        dropout,
        block_mask,
        outputs,
        padded_rows,
        invariant,
        draft_tree,
        fp8,
        pass,
    } = a;
    for (name, t, get) in
        [("q", q, (|a| &mut a.q) as Get), ("k", k, |a| &mut a.k), ("v", v, |a| &mut a.v), ("o", o, |a| &mut a.o)]
    {
        list.tensor(name, t, get);
    }
    list.sizes();
    list.types();
    list.mask(mask);
    list.score(score_mod.as_ref());
    if let (Some(_), Some(_), Pass::Backward(_)) = (score_mod, score_mod_bprop, pass) {
        let other = (score() * 3.0 + key().to_float()).build_score_mod().expect("a sum of floats is a number");
        list.change("score_mod_bprop", Effect::Changes, |a| {
            a.score_mod_bprop = Some(crate::ScoreModBprop::trusted(other))
        });
    }
    for other in [None, Some(Origins::Any), Some(Origins::EveryQuerySeesAKey)] {
        if other != *origins {
            list.change("origins", Effect::Depends, |a| a.origins = other);
        }
    }
    list.change("sink", Effect::Changes, |a| a.sink = !sink);
    list.dropout(*dropout);
    list.change("block_mask", Effect::Changes, |a| a.block_mask = !block_mask);
    list.outputs(*outputs);
    let padded = if mask.lengths == Lengths::Full { Effect::Nothing } else { Effect::Changes };
    list.change("padded_rows", padded, |a| {
        a.padded_rows = match padded_rows {
            PaddedRows::Undefined => PaddedRows::Zero,
            PaddedRows::Zero => PaddedRows::Undefined,
        };
    });
    list.change("invariant", Effect::Changes, |a| a.invariant = !invariant);
    list.change("draft_tree", Effect::Changes, |a| a.draft_tree = !draft_tree);
    list.change("fp8", Effect::Changes, |a| {
        a.fp8 = match fp8 {
            None => Some(Fp8::Current),
            Some(Fp8::Delayed | Fp8::Block | Fp8::Cache) => Some(Fp8::Current),
            Some(Fp8::Current) => Some(Fp8::Block),
        };
    });
    list.pass(pass);
    list.found
}

/// The same attention with other display names in its expressions, in another alphabetical order.
#[must_use]
pub fn renamed(a: &Attention) -> Attention {
    let rename = |e: &ScoreExpr| {
        let mut form = serde_json::to_value(e).expect("expressions always serialise");
        for table in ["scalars", "tensors"] {
            for (i, entry) in form[table].as_array_mut().into_iter().flatten().enumerate() {
                entry["name"] = format!("{table}_{}", char::from(b'z' - (i % 26) as u8)).into();
            }
        }
        serde_json::from_value(form).expect("names do not matter, and these differ as long as there are at most 26")
    };
    let mut a = a.clone();
    let before = a.score_mod.clone();
    a.score_mod = a.score_mod.as_ref().map(rename);
    a.mask.mask_mod = a.mask.mask_mod.as_ref().map(rename);
    // It names the operands of the modification, and must still name the same ones.
    if let (Some(own), Some(old), Some(new)) = (&mut a.score_mod_bprop, &before, &a.score_mod) {
        let mut form = serde_json::to_value(&own.derivative).expect("expressions always serialise");
        for (table, old, new) in
            [("scalars", old.scalar_names(), new.scalar_names()), ("tensors", old.tensor_names(), new.tensor_names())]
        {
            for entry in form[table].as_array_mut().into_iter().flatten() {
                let at = old.iter().position(|name| entry["name"] == **name).expect("an operand of the modification");
                entry["name"] = new[at].clone().into();
            }
        }
        own.derivative = serde_json::from_value(form).expect("names do not matter");
    }
    a
}

type Get = fn(&mut Attention) -> &mut Tensor;

struct List<'a> {
    base: &'a Attention,
    found: Vec<Mutation>,
}

impl List<'_> {
    fn change(&mut self, field: impl Into<String>, effect: Effect, with: impl FnOnce(&mut Attention)) {
        let mut attention = self.base.clone();
        with(&mut attention);
        self.found.push(Mutation { field: field.into(), attention, effect });
    }

    fn mask(&mut self, mask: &Mask) {
        let Mask { band, lengths, mask_mod } = mask;
        let bands = match *band {
            None => vec![Band::CAUSAL, Band::window(Corner::BottomRight, 2)],
            Some(Band { corner, left, right }) => {
                let flipped = match corner {
                    Corner::TopLeft => Corner::BottomRight,
                    Corner::BottomRight => Corner::TopLeft,
                };
                vec![
                    Band { corner: flipped, left, right },
                    Band { corner, left: left.map_or(Some(1), |l| Some(l + 1)), right },
                    Band { corner, left, right: right.map_or(Some(0), |r| Some(r + 1)) },
                ]
            }
        };
        for band in bands {
            self.change("mask.band", Effect::Depends, |a| a.mask.band = Some(band));
        }
        if band.is_some() {
            self.change("mask.band", Effect::Depends, |a| a.mask.band = None);
        }
        self.change("mask.lengths", Effect::Changes, |a| {
            a.mask.lengths = match lengths {
                Lengths::Full => Lengths::PerSequence,
                Lengths::PerSequence => Lengths::Full,
            };
        });
        let further = match mask_mod {
            None => query().le(key()),
            Some(_) => query().lt(key()) | query().eq(7),
        };
        let further = further.build_mask_mod().expect("a comparison of integers is a predicate");
        self.change("mask.mask_mod", Effect::Depends, |a| a.mask.mask_mod = Some(further));
    }

    fn score(&mut self, now: Option<&ScoreExpr>) {
        let other = (score() * 3.0 + query().to_float()).build_score_mod().expect("a sum of floats is a score");
        let effect = if now == Some(&other) { Effect::Nothing } else { Effect::Changes };
        self.change("score_mod", effect, |a| a.score_mod = Some(other));
        let identity = score().build_score_mod().expect("the score is a score");
        self.change("score_mod", if now.is_none() { Effect::Nothing } else { Effect::Depends }, |a| {
            a.score_mod = Some(identity);
        });
    }

    fn dropout(&mut self, now: Option<Dropout>) {
        let Some(Dropout { source, probability }) = now else {
            let dropout = |probability| Some(Dropout { source: DropoutSource::Philox, probability });
            self.change("dropout", Effect::Changes, |a| a.dropout = dropout(0.5));
            self.change("dropout of nothing", Effect::Nothing, |a| a.dropout = dropout(0.0));
            return;
        };
        let drawn = source == DropoutSource::Philox;
        let none = drawn && probability == 0.0;
        self.change("dropout", if none { Effect::Nothing } else { Effect::Changes }, |a| a.dropout = None);
        let other = if drawn { DropoutSource::Mask } else { DropoutSource::Philox };
        self.change("dropout.source", Effect::Changes, |a| a.dropout = Some(Dropout { source: other, probability }));
        let value = if none { Effect::Changes } else { Effect::Nothing };
        self.change("dropout.probability", value, |a| {
            a.dropout = Some(Dropout { source, probability: probability / 2.0 + 0.3 });
        });
    }

    fn outputs(&mut self, Outputs { stats, max, sum_exp, amax }: Outputs) {
        self.change("outputs.stats", Effect::Changes, |a| a.outputs.stats = !stats);
        let effect = if self.base.is_backward() { Effect::Nothing } else { Effect::Changes };
        self.change("outputs.max", effect, |a| a.outputs.max = !max);
        self.change("outputs.sum_exp", effect, |a| a.outputs.sum_exp = !sum_exp);
        let effect = if self.base.has_narrow_products() { Effect::Changes } else { Effect::Nothing };
        self.change("outputs.amax", effect, |a| a.outputs.amax = !amax);
    }

    fn pass(&mut self, pass: &Pass) {
        let Pass::Backward(gradients) = pass else {
            self.change("pass", Effect::Changes, |a| {
                a.outputs.stats = true;
                *a = a.backward(BackwardOptions::default());
            });
            return;
        };
        let Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic } = gradients;
        let list: [(&str, &Tensor, Get); 4] = [
            ("d_o", d_o, |a| &mut gradients_of(a).d_o),
            ("d_q", d_q, |a| &mut gradients_of(a).d_q),
            ("d_k", d_k, |a| &mut gradients_of(a).d_k),
            ("d_v", d_v, |a| &mut gradients_of(a).d_v),
        ];
        for (name, t, get) in list {
            self.tensor(name, t, get);
        }
        if let Some(t) = d_o_half {
            self.tensor("d_o_half", t, |a| gradients_of(a).d_o_half.as_mut().expect("a backward that has one"));
            self.change("pass.d_o_half", Effect::Changes, |a| gradients_of(a).d_o_half = None);
        }
        self.change("pass", Effect::Changes, |a| a.pass = Pass::Forward);
        self.change("pass.d_sink", Effect::Changes, |a| gradients_of(a).d_sink = !d_sink);
        self.change("pass.deterministic", Effect::Changes, |a| gradients_of(a).deterministic = !deterministic);
    }
}

fn gradients_of(a: &mut Attention) -> &mut Gradients {
    match &mut a.pass {
        Pass::Backward(gradients) => gradients,
        Pass::Forward => unreachable!("only backwards have changes of gradients"),
    }
}
