//! Graphs for which cuDNN generates source that its own compiler refuses, by engine.
//!
//! The status (4001) and the message are those of a lack of memory and of wrong flags, and cuDNN reports NVRTC's own
//! message nowhere, at no log level. So the cases that depend on the graph are listed here, with what was observed; all
//! others are errors of the moment. Graphs for which no engine has a kernel that compiles have rules
//! ([`qkvault_probe`]), and the planner asks these.

use qkvault_cudnn::op::TensorKind;
use qkvault_cudnn::registry::{Gpus, Versions};
use qkvault_cudnn::{OpGraph, Target};
use qkvault_graph::Role;

/// How often the kernel does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Often {
    /// In every observed case: it counts as a refusal.
    Always,
    /// In some configurations of the engine, which cuDNN does not distinguish: it counts as a refusal only if another
    /// kernel compiles.
    Sometimes,
}

/// One finding.
struct Row {
    versions: &'static [Versions],
    gpus: Gpus,
    engine: i64,
    often: Often,
    is: fn(&OpGraph) -> bool,
    /// The observation and its conditions.
    #[cfg_attr(not(test), expect(dead_code, reason = "the evidence, for readers of the table"))]
    seen: &'static str,
}

/// The versions for which all attentions in the tables of `tests/goldens` were compiled.
const ASKED: &[Versions] = &[Versions::between((19, 0), (20, 0)), Versions::between((27, 0), (28, 0))];

/// The rows, of which the first that matches counts.
const ROWS: [Row; 10] = [
    Row {
        versions: ASKED,
        gpus: Gpus::HOPPER,
        engine: 2,
        often: Often::Always,
        is: |graph| is_forward(graph) && has(graph, Role::SeqLenKv) && has(graph, Role::Sink),
        seen: "h200: 9.27.0, 48 forwards of 1, 64 and 256 queries, dense and varlen; as many without a sink or without lengths \
               compile; 9.19.0, 24 of them; every such row of tests/goldens/generated-*.txt and generated-serving-*.txt is of engine 1, every \
               other of more than one query of engine 2",
    },
    Row {
        versions: &[Versions::between((27, 0), (28, 0))],
        gpus: Gpus::HOPPER,
        engine: 2,
        often: Often::Always,
        is: |graph| is_forward(graph) && has(graph, Role::SeqLenKv) && puts_out_sums(graph),
        seen: "h200, 9.27.0: 8 forwards of 64 and 256 queries, dense and varlen",
    },
    Row {
        versions: &[Versions::from(13, 0)],
        gpus: Gpus::HOPPER,
        engine: 2,
        often: Often::Sometimes,
        is: |graph| is_forward(graph) && has(graph, Role::SeqLenKv) && (has(graph, Role::Sink) || puts_out_sums(graph)),
        seen: "h200: 9.14.0 and 9.23.0 compile those with a sink, 9.23.0 does not compile that with Max and Sum_exp; other versions may",
    },
    Row {
        versions: &[Versions::from(13, 0)],
        gpus: Gpus { from: 80, to: 121 },
        engine: 1,
        often: Often::Sometimes,
        is: |graph| {
            let one = queries(graph).is_some_and(|(_, rows)| rows == 1);
            let more = |role: &Role| matches!(role, Role::Sink | Role::DropoutSeed | Role::ScoreTensor(_));
            is_forward(graph) && one && graph.roles().iter().any(more)
        },
        seen: "the first of several configurations of engine 1, which divides the keys, for one query over 4096 and 8192 of them: with a sink, \
               with lengths and without (a100, l40s, h200 and rtx-pro-6000; 9.14.0, 9.19.0, 9.23.0 and 9.27.0); with ALiBi and with Philox \
               (a100 and h200; 9.19.0 and 9.27.0), where that engine is not avoided; over 192 keys it compiles",
    },
    Row {
        versions: &[Versions::between((19, 0), (20, 0)), Versions::between((27, 0), (29, 0))],
        gpus: Gpus { from: 100, to: 103 },
        engine: 3,
        often: Often::Always,
        is: |graph| {
            let one = queries(graph).is_some_and(|(_, rows)| rows == 1);
            is_forward(graph) && one && has(graph, Role::PageTableK) && !graph.excluded_engines.is_empty()
        },
        seen: "b200, 9.19.0, 9.27.0 and 9.28.1: one query over pages with an expression over the key's index (ALiBi, softcapped too); the \
               rows of tests/goldens/generated-serving-*.txt with this status; 9.28.1: pages of 64 and 128 rows, 200 and 256 keys, 1 and 8 \
               heads of keys; two queries compile",
    },
    Row {
        versions: &[Versions::between((27, 0), (29, 0))],
        gpus: Gpus { from: 100, to: 103 },
        engine: 3,
        often: Often::Always,
        is: |graph| {
            let dims = (head_dim(graph, Role::Q), head_dim(graph, Role::V));
            let more = queries(graph).is_some_and(|(_, rows)| rows > 64);
            is_forward(graph) && has(graph, Role::PageTableK) && dims == (Some(192), Some(128)) && more
        },
        seen: "b200, 9.28.1: forwards of 65, 96, 128, 129, 204 and 300 queries over pages of 16, 64 and 128 rows, dense and varlen, 2 and 8 \
               heads of keys; up to 64 queries, without pages, and head dims 184, 200 and 256 with 128 or 192 with 64, 72, 120, 136 and 192 \
               compile; 9.27.0: 204 queries do not, 64 do",
    },
    Row {
        versions: &[Versions::between((13, 0), (20, 0))],
        gpus: Gpus { from: 100, to: 103 },
        engine: 3,
        often: Often::Always,
        is: |graph| {
            wide_keys(graph)
                && head_dim(graph, Role::V) == Some(128)
                && queries(graph).is_some_and(|(_, rows)| rows > 128)
        },
        seen: "b200, 9.14.0 and 9.19.0: forwards of 129 and 192 queries, head dims of Q and K 136, 200, 208, 256, 320, 512, 520 and 576 with 128 \
               of V, with expressions, masks, lengths and without; 192 with 128, up to 128 queries, and V of 64 to 120 and from 136 on compile",
    },
    Row {
        versions: &[Versions::between((27, 0), (28, 0))],
        gpus: Gpus { from: 100, to: 103 },
        engine: 3,
        often: Often::Always,
        is: wide_keys_and_narrow_values,
        seen: "b200, 9.27.0: forwards of 65 to 192 queries, head dims of Q and K 136, 200, 208, 256 and 576 with 72 to 128 of V; up to 64 queries, \
               and V of 64 and from 136 on compile",
    },
    Row {
        versions: &[Versions::from(20, 0)],
        gpus: Gpus { from: 100, to: 103 },
        engine: 3,
        often: Often::Sometimes,
        is: wide_keys_and_narrow_values,
        seen: "b200: the two rows above; versions between and after them were not tested",
    },
    Row {
        versions: &[Versions::from(19, 0)],
        gpus: Gpus { from: 100, to: 103 },
        engine: 5,
        often: Often::Sometimes,
        is: |graph| !is_forward(graph) && queries(graph) == Some((1, 1)) && graph.engine.is_none(),
        seen: "b200, 9.19.0 and 9.27.0: backwards of one query of one sequence and several heads, which engine 7 then computes (3 of 76 rows of \
               engine 7 in tests/goldens/generated-*.txt; the others name it first)",
    },
];

/// How often the engine's kernel of a graph is known not to compile.
pub(crate) fn known(graph: &OpGraph, target: &Target, engine: i64) -> Option<Often> {
    let holds = |row: &&Row| {
        row.versions.iter().any(|v| v.has(target.cudnn))
            && row.gpus.has(target.sm())
            && row.engine == engine
            && (row.is)(graph)
    };
    ROWS.iter().find(holds).map(|row| row.often)
}

fn has(graph: &OpGraph, role: Role) -> bool {
    graph.roles().contains(&role)
}

/// Whether the graph outputs the maximum and the sum of exponentials of each row.
fn puts_out_sums(graph: &OpGraph) -> bool {
    has(graph, Role::Max) || has(graph, Role::SumExp)
}

fn is_forward(graph: &OpGraph) -> bool {
    !has(graph, Role::DO)
}

/// Whether it is a forward with a head dim of Q and K over 128 other than 192, which has separate kernels.
fn wide_keys(graph: &OpGraph) -> bool {
    is_forward(graph) && head_dim(graph, Role::Q).is_some_and(|d| d > 128 && d != 192)
}

/// Whether also the head dim of V is from 65 to 128, and there are more than 64 queries.
fn wide_keys_and_narrow_values(graph: &OpGraph) -> bool {
    let narrow = head_dim(graph, Role::V).is_some_and(|d| (65..=128).contains(&d));
    wide_keys(graph) && narrow && queries(graph).is_some_and(|(_, rows)| rows > 64)
}

fn head_dim(graph: &OpGraph, role: Role) -> Option<i64> {
    graph.tensors.iter().find(|t| t.kind == TensorKind::Operand(role)).map(|t| t.dims[3])
}

/// Sequences and queries per sequence, as Q is declared.
fn queries(graph: &OpGraph) -> Option<(i64, i64)> {
    let q = graph.tensors.iter().find(|t| t.kind == TensorKind::Operand(Role::Q))?;
    Some((q.dims[0], q.dims[2]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_cudnn::{CompileOptions, Profile, lower};
    use qkvault_graph::{CudnnVersion, LibrarySet, text, validate};

    fn often(gpu: &str, minor: u16, engine: i64, given: &str) -> Option<Often> {
        let target = Profile::named(gpu).expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
        let attention = validate(text::parse(given).expect("written right")).expect("valid");
        known(&lower(&attention, &target, &CompileOptions::default()).expect("lowers"), &target, engine)
    }

    const SINK: &str = "q: bf16 [2,4,64,64]\nk: [2,2,192,64]\nlengths: per-sequence\nsink: yes";

    #[test]
    fn a_row_holds_only_for_its_engine_gpu_versions_and_graphs() {
        assert_eq!(often("h200", 27, 2, SINK), Some(Often::Always));
        assert_eq!(often("h200", 27, 2, &SINK.replace("sink: yes", "outputs: max sum_exp")), Some(Often::Always));
        assert_eq!(often("h200", 27, 1, SINK), None);
        assert_eq!(often("b200", 27, 2, SINK), None);
        assert_eq!(often("h200", 28, 2, SINK), Some(Often::Sometimes), "not tested");
        assert_eq!(often("h200", 19, 2, SINK), Some(Often::Always));
        assert_eq!(often("h200", 19, 2, &SINK.replace("sink: yes", "outputs: max sum_exp")), Some(Often::Sometimes));
        assert_eq!(often("h200", 27, 2, &SINK.replace("sink: yes", "")), None);
        assert_eq!(often("h200", 27, 2, &SINK.replace("lengths: per-sequence", "")), None);
        let decode = "q: bf16 [2,4,1,64]\nk: [2,2,4096,64]\nsink: yes";
        assert_eq!(often("h200", 27, 1, decode), Some(Often::Sometimes));
        assert_eq!(often("h200", 27, 1, &decode.replace("sink: yes", "")), None);
    }

    #[test]
    fn wide_heads_of_queries_with_narrow_ones_of_values_have_no_kernel_of_engine_3_on_a_b200() {
        let often = |minor, rows: i64, d_qk: i64, d_v: i64| {
            let k = format!("q: f16 [2,2,{rows},{d_qk}]\nk: [2,2,192,{d_qk}]\nv: [2,2,192,{d_v}]");
            often("b200", minor, 3, &k)
        };
        for (rows, d_qk, d_v, old, new) in [
            (129, 136, 128, true, true),
            (129, 576, 128, true, true),
            (128, 136, 128, false, true),
            (65, 136, 128, false, true),
            (64, 136, 128, false, false),
            (129, 256, 120, false, true),
            (129, 256, 64, false, false),
            (129, 256, 136, false, false),
            (129, 192, 128, false, false),
            (129, 128, 128, false, false),
        ] {
            let always = |is: bool| is.then_some(Often::Always);
            assert_eq!(often(19, rows, d_qk, d_v), always(old), "9.19: {rows} queries, {d_qk} and {d_v}");
            assert_eq!(often(27, rows, d_qk, d_v), always(new), "9.27: {rows} queries, {d_qk} and {d_v}");
            assert_eq!(often(23, rows, d_qk, d_v), new.then_some(Often::Sometimes), "9.23: {rows} queries");
        }
    }

    /// Found by fuzzing 9.28.1: heads of 192 and 128 over pages were an error of the moment, as was ALiBi over pages.
    #[test]
    fn heads_of_192_and_128_over_pages_have_no_kernel_of_engine_3_for_more_than_64_queries() {
        let paged = |gpu, minor, rows: i64, d_v: i64, pages: &str| {
            let k = format!(
                "q: bf16 [5,8,{rows},192]\nk: [5,2,640,192]{pages}\nv: [5,2,640,{d_v}]{pages}\nlengths: per-sequence"
            );
            often(gpu, minor, 3, &k)
        };
        const PAGES: &str = " paged 207 x 16";
        for minor in [27, 28] {
            assert_eq!(paged("b200", minor, 65, 128, PAGES), Some(Often::Always));
            assert_eq!(paged("b200", minor, 64, 128, PAGES), None);
            assert_eq!(paged("b200", minor, 65, 120, PAGES), None);
            assert_eq!(paged("b200", minor, 65, 128, ""), None);
            assert_eq!(paged("h200", minor, 65, 128, PAGES), None);
        }
        assert_eq!(paged("b200", 29, 65, 128, PAGES), None, "not tested");
        let alibi = "q: bf16 [3,8,1,128]\nk: [3,1,200,128] paged 14 x 64\nv: [3,1,200,128] paged 14 x 64\nmask: none\n\
                     lengths: per-sequence\nscore_mod: tensor @s: f32[1, 8, 1, 1] alibi 8; score + float(key - position) * @s";
        for minor in [19, 27, 28] {
            assert_eq!(often("b200", minor, 3, alibi), Some(Often::Always), "9.{minor}");
        }
    }

    #[test]
    fn each_row_has_an_observation() {
        assert!(ROWS.iter().all(|row| row.seen.contains("200")));
    }
}
