//! Whether a plan's kernels bind the largest magnitudes that a forward puts out.
//!
//! From 9.24 on, kernels for compute capability 10.x that split the keys bind none: the plan takes the operands and
//! leaves them as they were, so that delayed scaling would read old numbers. A plan lists what its kernels bind, by
//! unique id. Backwards are not checked: helper kernels, which the list leaves out, write theirs.

use qkvault_cudnn::OpGraph;
use qkvault_cudnn::op::TensorKind;
use qkvault_graph::Role;

/// The largest magnitudes of a forward that no kernel of the plan binds. Empty if the plan does not list what its
/// kernels bind.
pub(crate) fn unbound(graph: &OpGraph, plan: &[u8]) -> Vec<Role> {
    let operands = || {
        graph.tensors.iter().filter_map(|t| match t.kind {
            TensorKind::Operand(role) => Some(role),
            TensorKind::Virtual | TensorKind::Scalar(_) | TensorKind::Constant(_) => None,
        })
    };
    if operands().any(|role| role == Role::DO) {
        return Vec::new();
    }
    let Some(kernels) = find(plan, b"\"payload\"").map(|at| &plan[at..]) else { return Vec::new() };
    let binds = |role: Role| find(kernels, format!("\"uid\":{},", role.uid()).as_bytes()).is_some();
    // A plan of any version binds Q; if that is not found, the list has another form.
    if !binds(Role::Q) {
        return Vec::new();
    }
    operands().filter(|role| matches!(role, Role::Amax(_)) && !binds(*role)).collect()
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use qkvault_cudnn::{CompileOptions, Profile, lower};
    use qkvault_graph::{CudnnVersion, LibrarySet, Scaled, text, validate};

    use super::*;

    /// A plan of 9.27 for a B200 that splits 32768 keys, shortened: it has the operands in its op graph and binds no
    /// amax.
    #[test]
    fn a_plan_that_splits_the_keys_is_told_by_what_its_kernels_bind() {
        let graph = |outputs: &str| {
            let given = format!("q: e4m3 [1,4,256,128]\nk: [1,4,32768,128]\nfp8: delayed\n{outputs}");
            let target = Profile::named("b200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
            let attention = validate(text::parse(&given).expect("reads")).expect("valid");
            lower(&attention, &target, &CompileOptions::default()).expect("lowers")
        };
        let plan = |uids: &[i64]| {
            let list: Vec<String> =
                uids.iter().map(|uid| format!("{{\"value\":0,\"uid\":{uid},\"update_as\":0}}")).collect();
            format!(
                "{{\"tensors\":[{{\"uid\":243,}},{{\"uid\":244,}}],\"payload\":{{\"offsets\":[{}]}}}}",
                list.join(",")
            )
        };
        let (s, o) = (Role::Amax(Scaled::S), Role::Amax(Scaled::O));
        let told = |outputs: &str, uids: &[i64]| unbound(&graph(outputs), plan(uids).as_bytes());
        let both = [s.uid(), o.uid()];
        assert_eq!(told("", &[1, 2, 3]), [s, o]);
        assert_eq!(told("", &[1, both[0]]), [o]);
        assert_eq!(told("", &[1, both[0], both[1]]), []);
        assert_eq!(told("outputs: no_amax", &[1, 2, 3]), []);
        assert_eq!(told("", &[]), [], "a list of another form says nothing");
    }
}
