//! Compiles a few attentions for a target with the cuDNN that is found, and prints the results.
//!
//! `cargo run -p qkvault-compile --example compile -- h200`

#![allow(clippy::print_stdout, reason = "an example")]
#![forbid(unsafe_code)]

use qkvault_cache::{Vault, VaultOptions};
use qkvault_compile::{Compiler, OnMiss, Planner};
use qkvault_graph::expr::{TensorSpec, library, scalar, score, tensor};
use qkvault_graph::{Attention, BackwardOptions, Band, CompileOptions, Corner, DType, Form, Profile, Tensor, validate};
use qkvault_sys::Search;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "h200".into());
    let compiler = Compiler::open_compile_only(&Search::default())?;
    let target = compiler.target(&Profile::named(&name)?);
    println!("{target}");
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), Some(compiler));
    let base = Attention::bshd(1, (32, 8), (512, 512), 128, DType::BF16);
    let decode = Attention::bshd(8, (32, 8), (1, 4096), 128, DType::BF16);
    let mla = {
        let q = Tensor::bshd(1, 128, 1, 576, DType::BF16);
        let k = Tensor::bshd(1, 1, 1024, 576, DType::BF16);
        Attention::forward(q, k, Tensor { dims: [1, 1, 1024, 512], ..k }, Tensor::bshd(1, 128, 1, 512, DType::BF16))
    };
    let mla_prefill = {
        let q = Tensor::bshd(1, 128, 512, 192, DType::BF16);
        let v = Tensor::bshd(1, 128, 512, 128, DType::BF16);
        Attention::forward(q, q, v, v).with_band(Band::CAUSAL)
    };
    let long = Attention::bshd(1, (32, 8), (512, 8192), 128, DType::F16);
    let cases = [
        base.clone(),
        base.clone().with_stats(),
        base.clone().with_band(Band::CAUSAL),
        base.clone().with_band(Band::CAUSAL).with_stats(),
        base.clone().with_band(Band::window(Corner::TopLeft, 128)),
        base.with_lengths().with_band(Band::CAUSAL),
        long.clone().with_band(Band::CAUSAL_BOTTOM_RIGHT),
        long.clone().with_band(Band::window(Corner::BottomRight, 256)),
        long.with_band(Band { corner: Corner::BottomRight, left: Some(256), right: Some(5) }),
        decode.clone(),
        decode.clone().with_band(Band::window(Corner::BottomRight, 1024)),
        decode.with_lengths(),
        mla,
        mla_prefill,
        Attention::bshd(1, (4, 4), (100, 100), 100, DType::BF16),
    ];
    let train = Attention::bshd(2, (8, 8), (512, 512), 128, DType::BF16).with_stats();
    let grouped = Attention::bshd(2, (8, 2), (512, 512), 64, DType::F16).with_stats();
    let capped = library::softcap(score(), scalar("cap")).build_score_mod()?;
    let biased = {
        let spec = TensorSpec::new(DType::BF16, [1, 8, 512, 512]).with_grad();
        (score() + tensor("bias", spec)).build_score_mod()?
    };
    let alibi = library::alibi(score(), 8).build_score_mod()?;
    let forwards = [
        train.clone(),
        train.clone().with_band(Band::CAUSAL),
        grouped.clone().with_band(Band::CAUSAL),
        grouped.with_lengths(),
        train.clone().with_score_mod(capped.clone()),
        train.clone().with_score_mod(capped).with_band(Band::CAUSAL),
        train.clone().with_score_mod(alibi).with_band(Band::CAUSAL),
        train.clone().with_score_mod(biased),
        train.clone().with_dropout(0.1),
        train.clone().with_sink().with_band(Band::CAUSAL),
        train.with_band(Band::window(Corner::TopLeft, 128)),
    ];
    let backward = |a: &Attention| {
        let d_sink = a.sink;
        a.backward(BackwardOptions { d_sink, ..BackwardOptions::default() })
    };
    let deterministic = forwards[1].backward(BackwardOptions { deterministic: true, ..BackwardOptions::default() });
    let train: Vec<Attention> = forwards.iter().flat_map(|a| [a.clone(), backward(a)]).chain([deterministic]).collect();
    let only_train = std::env::args().nth(2).is_some_and(|a| a == "train");
    let cases = if only_train { train } else { cases.into_iter().chain(train).collect() };
    for attention in cases {
        let attention = validate(attention)?;
        for form in [Form::Expanded, Form::Fused] {
            let options = CompileOptions { lab: qkvault_graph::LabOptions::form(form), ..CompileOptions::default() };
            let answer = planner.plan(&attention, &target, &options, OnMiss::Compile)?;
            match answer.outcome {
                Ok(plan) => println!(
                    "{attention} | {form:?} | {} | {} bytes, workspace {}, {} ms",
                    plan.facts.engine, plan.facts.blob_bytes, plan.facts.workspace, plan.facts.compile_ms
                ),
                Err(refusal) => println!("{attention} | {form:?} | REFUSED\n{refusal}"),
            }
        }
    }
    Ok(())
}
