//! Time to build and differentiate a realistic expression: the target is under 50 microseconds for softcap + ALiBi +
//! window.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use qkvault_graph::DType;
use qkvault_graph::expr::{Expr, ScoreExpr, TensorSpec, Vjp, key, query, scalar, score, tensor, vjp};

fn window() -> Expr {
    query().ge(key()) & (query() - key()).lt(1024)
}

fn modified() -> Expr {
    let cap = scalar("softcap");
    let slopes = tensor("alibi_slopes", TensorSpec::new(DType::F32, [1, 16, 1, 1]));
    let capped = (score() / &cap).tanh() * &cap;
    window().select(capped + slopes * (key() - query()), -1e9)
}

fn built_and_derived() -> (ScoreExpr, Vjp) {
    let expr = modified().build_score_mod().expect("well typed");
    let backward = vjp(&expr).expect("the score enters by arithmetic");
    (expr, backward)
}

fn bench(c: &mut Criterion) {
    c.bench_function("write softcap + ALiBi + window", |b| b.iter(|| black_box(modified())));
    let handles = modified();
    c.bench_function("build softcap + ALiBi + window", |b| b.iter(|| black_box(handles.build_score_mod())));
    let expr = handles.build_score_mod().expect("well typed");
    c.bench_function("differentiate softcap + ALiBi + window", |b| b.iter(|| black_box(vjp(&expr))));
    c.bench_function("write, build and differentiate softcap + ALiBi + window", |b| {
        b.iter(|| black_box(built_and_derived()))
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
