//! Building expressions: types, promotion, sharing, the canonical form, and every problem with its place.

use qkvault_graph::DType;
use qkvault_graph::expr::*;

#[test]
fn numbers_of_rust_join_expressions_on_either_side() {
    let e = (2.0 * score() + 1).max(0.0) - query() + (1 - key());
    assert_eq!(e.build().expect("well typed").root_ty(), Ty::Float);
}

#[test]
fn p1_the_order_of_writing_does_not_matter() {
    let a = (query().ge(key()) & key().lt(key_len())) & query().lt(query_len());
    let b = query_len().gt(query()) & (key_len().gt(key()) & key().le(query()));
    assert_eq!(a.build().expect("a"), b.build().expect("b"));
    let x = slot("x") * score() + slot("y");
    let y = slot("a") + score() * slot("b");
    assert_eq!(x.build().expect("x"), y.build().expect("y"));
    assert_ne!(x.build().expect("x"), (score() + slot("x") * slot("y")).build().expect("z"));
    let t = tensor("t", TensorSpec::new(DType::F32, [1, 8, 1, 1]));
    assert_ne!(x.build().expect("x"), (&t * score() + slot("y")).build().expect("z"));
}

#[test]
fn p1_exchangeable_operands_do_not_depend_on_names() {
    let e = |a: &str, b: &str| (slot(a) + slot(b)) * slot(a) + score();
    assert_eq!(e("a", "b").build().expect("1"), e("z", "b").build().expect("2"));
    let many = |names: &[String]| names.iter().fold(score(), |sum, n| sum.max(slot(n)));
    let names: Vec<String> = (0..32).map(|i| format!("s{i}")).collect();
    let other: Vec<String> = names.iter().rev().cloned().collect();
    assert_eq!(many(&names).build().expect("1"), many(&other).build().expect("2"));
}
