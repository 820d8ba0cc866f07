//! Compiles varlen and paged attentions for a target with the cuDNN that is found, and prints the results.
//!
//! `cargo run -p qkvault-compile --example serving -- h200`

#![allow(clippy::print_stdout, reason = "an example")]
#![forbid(unsafe_code)]

use qkvault_compile::{Compiler, Failure};
use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{
    Attention, BackwardOptions, Band, CompileOptions, Corner, DType, Form, Profile, Tensor, lower, validate,
};
use qkvault_sys::Search;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "h200".into());
    let compiler = Compiler::open(&Search::default())?;
    let target = compiler.target(&Profile::named(&name)?);
    println!("{target}");
    let dtype = DType::BF16;
    let (b, h, h_kv, d) = (8, 32, 8, 128);
    let paged = |page: i64, hnd: bool| {
        let (s, pages) = (4096, 1000);
        let t = if hnd { Tensor::paged_hnd } else { Tensor::paged_nhd };
        t(b, h_kv, s, d, pages, page, dtype)
    };
    let softcap = || library::softcap(score(), scalar("cap")).build_score_mod();
    let alibi = || library::alibi(score(), 32).build_score_mod();
    let mut cases: Vec<(String, Attention)> = Vec::new();
    let mut add = |name: &str, a: Attention| cases.push((name.to_owned(), a));
    let varlen_q = Tensor::thd(b, h, 512, d, 2000, dtype);
    let varlen_kv = Tensor::thd(b, h_kv, 512, d, 2000, dtype);
    let thd = Attention::forward(varlen_q, varlen_kv, varlen_kv, varlen_q).with_lengths();
    add("thd", thd.clone());
    add("thd causal stats", thd.clone().with_band(Band::CAUSAL).with_stats());
    add("thd causal br", thd.clone().with_band(Band::CAUSAL_BOTTOM_RIGHT));
    add("thd softcap causal", thd.clone().with_band(Band::CAUSAL).with_score_mod(softcap()?));
    add("thd sink causal", thd.clone().with_band(Band::CAUSAL).with_sink());
    let b2 = BackwardOptions::default();
    add("thd back", thd.clone().with_stats().backward(b2));
    add("thd back causal", thd.clone().with_band(Band::CAUSAL).with_stats().backward(b2));
    add("thd back br", thd.clone().with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats().backward(b2));
    add("thd back softcap", thd.clone().with_score_mod(softcap()?).with_stats().backward(b2));
    add("thd back sink", thd.with_sink().with_stats().backward(BackwardOptions { d_sink: true, ..b2 }));
    let one = Tensor::thd(b, h, 512, d, 2000, dtype);
    add("thd mha back", Attention::forward(one, one, one, one).with_lengths().with_stats().backward(b2));
    for page in [16, 32, 64, 128, 256, 512] {
        for hnd in [false, true] {
            let kv = paged(page, hnd);
            let q = Tensor::bshd(b, h, 1, d, dtype);
            let layout = if hnd { "hnd" } else { "nhd" };
            add(&format!("decode page {page} {layout}"), Attention::forward(q, kv, kv, q).with_lengths());
            let p = Attention::forward(varlen_q, kv, kv, varlen_q).with_lengths();
            add(&format!("varlen page {page} {layout} br"), p.with_band(Band::CAUSAL_BOTTOM_RIGHT));
        }
    }
    let kv = paged(64, true);
    let q = Tensor::bshd(b, h, 1, d, dtype);
    let decode = Attention::forward(q, kv, kv, q).with_lengths();
    let window = Band::window(Corner::BottomRight, 1024);
    add("decode stats", decode.clone().with_stats());
    add("decode window", decode.clone().with_band(window));
    add("decode softcap", decode.clone().with_score_mod(softcap()?));
    add("decode softcap window", decode.clone().with_score_mod(softcap()?).with_band(window));
    add("decode alibi", decode.clone().with_score_mod(alibi()?));
    add("decode sink", decode.clone().with_sink());
    let p = Attention::forward(varlen_q, kv, kv, varlen_q).with_lengths();
    let br = p.clone().with_band(Band::CAUSAL_BOTTOM_RIGHT);
    add("varlen paged full", p.clone());
    add("varlen paged br stats", br.clone().with_stats());
    add("varlen paged window", p.clone().with_band(window));
    add("varlen paged br softcap", br.clone().with_score_mod(softcap()?));
    add("varlen paged window softcap", p.clone().with_band(window).with_score_mod(softcap()?));
    add("varlen paged br alibi", br.clone().with_score_mod(alibi()?));
    add("varlen paged br sink", br.clone().with_sink());
    add("varlen paged window sink", p.with_band(window).with_sink());
    let dense = |s| Tensor::bshd(b, h, s, d, dtype);
    let chunk = Attention::forward(dense(256), kv, kv, dense(256)).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT);
    add("dense chunk paged br", chunk.clone());
    add("dense chunk paged br sink", chunk.with_sink());
    for (name, s_q) in [("mla decode", 1), ("mla varlen", 64)] {
        let k = Tensor::paged_nhd(b, 1, 4096, 576, 1000, 64, dtype);
        let v = Tensor { dims: [b, 1, 4096, 512], ..k };
        let (q, o) = if s_q == 1 {
            (Tensor::bshd(b, 16, 1, 576, dtype), Tensor::bshd(b, 16, 1, 512, dtype))
        } else {
            (Tensor::thd(b, 16, s_q, 576, 500, dtype), Tensor::thd(b, 16, s_q, 512, 500, dtype))
        };
        add(name, Attention::forward(q, k, v, o).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT));
    }
    let k = Tensor::thd(b, 16, 512, 192, 2000, dtype);
    let v = Tensor::thd(b, 16, 512, 128, 2000, dtype);
    add("mla prefill thd", Attention::forward(k, k, v, v).with_lengths().with_band(Band::CAUSAL));
    let k = Tensor::paged_nhd(b, 16, 4096, 192, 1000, 64, dtype);
    let v = Tensor::paged_nhd(b, 16, 4096, 128, 1000, 64, dtype);
    let (q, o) = (Tensor::thd(b, 16, 512, 192, 2000, dtype), Tensor::thd(b, 16, 512, 128, 2000, dtype));
    add("mla chunk paged", Attention::forward(q, k, v, o).with_lengths().with_band(Band::CAUSAL_BOTTOM_RIGHT));
    let filter = std::env::args().nth(2).unwrap_or_default();
    for (name, a) in cases.into_iter().filter(|(name, _)| name.contains(&filter)) {
        let a = validate(a)?;
        let options = CompileOptions { lab: qkvault_graph::LabOptions::form(Form::Auto), ..CompileOptions::default() };
        let graph = match lower(&a, &target, &options) {
            Ok(graph) => graph,
            Err(refusal) => {
                println!("{name} | RULE\n    {refusal}");
                continue;
            }
        };
        match compiler.compile(&graph, &target, &options) {
            Ok(plan) => println!("{name} | {} | workspace {} | {} ms", plan.engine, plan.workspace, plan.milliseconds),
            Err(Failure::Refused(refusal)) => println!("{name} | REFUSED\n    {refusal}"),
            Err(other) => println!("{name} | BROKEN {other}"),
        }
    }
    Ok(())
}
