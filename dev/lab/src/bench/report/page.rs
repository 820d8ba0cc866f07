//! The page: a table for each record.

use std::fmt::Write as _;

use serde_json::Value;

use super::Records;

/// Rows of a table of figures: what, where the record has it, its unit, and where that is which the row is compared
/// with.
type FigureRow = (&'static str, &'static str, &'static str, &'static str);

const LAUNCH: [FigureRow; 10] = [
    ("`cudnnBackendExecute` in a loop", "launch/ways/floor_us", "us", ""),
    ("raw, bound", "launch/ways/raw_us", "us", "launch/ways/floor_us"),
    ("raw, with addresses", "launch/ways/args_raw_us", "us", "launch/ways/floor_us"),
    ("bound", "launch/ways/bound_us", "us", "launch/ways/floor_us"),
    ("with arguments, 8 sets of buffers", "launch/ways/args_safe_us", "us", "launch/ways/floor_us"),
    ("with arguments, buffers never seen", "launch/ways/args_never_seen_us", "us", "launch/ways/floor_us"),
    ("PyTorch, `scaled_dot_product_attention`", "launch/ways/torch_us", "us", "launch/ways/floor_us"),
    ("replay of a graph by cudarc", "launch/ways/replay_floor_us", "us", ""),
    ("replay of a graph", "launch/ways/replay_us", "us", "launch/ways/replay_floor_us"),
    ("ask for a plan that is loaded", "launch/ways/asked_again_us", "us", ""),
];

const COLD: [FigureRow; 8] = [
    ("process to first output, from the vault", "cold/first_output_s", "s", "cold/torch_first_output_s"),
    ("the same, plan built", "cold/first_output_built_s", "s", "cold/torch_first_output_s"),
    ("the same, PyTorch", "cold/torch_first_output_s", "s", ""),
    ("the same, FlexAttention", "cold/flex_first_output_s", "s", "cold/torch_first_output_s"),
    ("further shape: cuDNN's deserialize and finalize", "cold/further_floor_ms", "ms", ""),
    ("further shape, to the loaded plan", "cold/further_plan_ms", "ms", "cold/further_floor_ms"),
    ("further shape, to its output", "cold/further_output_ms", "ms", "cold/torch_further_ms"),
    ("further shape, to its output, PyTorch", "cold/torch_further_ms", "ms", ""),
];

const SHAPES: [FigureRow; 3] = [
    ("asked for one after the other", "shapes/seconds", "s", "shapes/torch_seconds"),
    ("the same, while all are preloaded", "shapes/preloaded_seconds", "s", "shapes/torch_seconds"),
    ("PyTorch", "shapes/torch_seconds", "s", ""),
];

const MEMORY: [FigureRow; 4] = [
    ("on the GPU", "memory/gpu_bytes_each", "bytes", ""),
    ("in the process", "memory/memory_bytes_each", "bytes", ""),
    ("in the vault", "memory/disk_bytes_each", "bytes", ""),
    ("as cuDNN serialises it", "memory/serialised_bytes_each", "bytes", ""),
];

/// How to make the page.
const COMMAND: &str = "
All of it takes five minutes on a GPU host, in a folder of `cargo xtask bundle`:

```sh
./bench.sh results             # qkvault-lab bench all; one part: ./bench.sh results launch
```
";

/// A part with rows.
struct Section {
    part: &'static str,
    title: &'static str,
    note: &'static str,
    rows: &'static [FigureRow],
}

const SECTIONS: [Section; 4] = [
    Section {
        part: "launch",
        title: "Host time of a launch",
        note: "A causal prefill of 2 x 256 tokens, 8 query heads, 2 KV heads, head dim 64. All ways take turns of 50 launches in one
run, PyTorch in a process of its own. 'With arguments' passes every operand at each launch, 'bound' passes them once.",
        rows: &LAUNCH,
    },
    Section {
        part: "cold",
        title: "Cold start",
        note: "Fresh processes in turns, timed from outside until the output is there. Further shapes are those of the next section;
cuDNN alone loads every other one, from bytes in memory, for comparison.",
        rows: &COLD,
    },
    Section {
        part: "shapes",
        title: "256 shapes in random order, each launched once",
        note: "Causal prefills, 32 query heads, 8 KV heads, head dim 128: batches of 1 and 2, 128 lengths from 8 to 2,040. Nothing is
built. Half of the time is cuDNN's load; most of the rest is the driver, which loads kernels at their first launch. A
preload (`Runtime::preload`) does both with several threads, while the requests are served.",
        rows: &SHAPES,
    },
    Section {
        part: "memory",
        title: "Bytes of a loaded plan",
        note: "Means of 256 plans of the last section, with their kernels loaded.",
        rows: &MEMORY,
    },
];

/// The page of the records that there are.
pub(super) fn page(records: &Records) -> String {
    let mut page = String::from("# Launches, cold start, kernels\n");
    let machine = ["launch", "cold", "shapes", "kernels"].iter().find_map(|part| records.part(part));
    if let Some(record) = machine {
        let (of, peer) = (&record["machine"], &record["peer"]);
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(page, "\n{}, cuDNN {}, driver {}", text(&of["device"]), text(&of["cudnn"]), of["driver"]);
        if peer["torch"].is_string() {
            let _ = write!(page, "; PyTorch {} with cuDNN {}", text(&peer["torch"]), peer["torch_cudnn"]);
        }
        page.push_str(". Medians; in brackets the middle half.\n");
        let _ =
            writeln!(page, "At the start: {} (clock, clock of memory, degrees, power, reasons).", text(&of["clocks"]));
    }
    headline(&mut page, records);
    page.push_str(COMMAND);
    for Section { part, title, note, rows } in &SECTIONS {
        if records.part(part).is_some() {
            let _ = writeln!(page, "\n## {title}\n\n{note}\n");
            table(&mut page, records, rows);
        }
    }
    kernels(&mut page, records);
    page
}

/// The figures that users feel, beside PyTorch's: what, unit, ours, theirs.
const HEADLINE: [FigureRow; 5] = [
    ("host time of a launch, bound", "launch/ways/bound_us", "us", "launch/ways/torch_us"),
    ("host time of a launch, with arguments", "launch/ways/args_safe_us", "us", "launch/ways/torch_us"),
    ("a further shape, to its output", "cold/further_output_ms", "ms", "cold/torch_further_ms"),
    ("process start to first output", "cold/first_output_s", "s", "cold/torch_first_output_s"),
    ("256 shapes in random order, while preloaded", "shapes/preloaded_seconds", "s", "shapes/torch_seconds"),
];

fn headline(page: &mut String, records: &Records) {
    let mut rows = String::new();
    for (what, ours, unit, theirs) in HEADLINE {
        if let (Some(ours), Some(theirs)) = (records.number(ours), records.number(theirs)) {
            let (a, b) = (figure(ours), figure(theirs));
            let _ = writeln!(rows, "| {what} | {a} {unit} | {b} {unit} | {:.1} |", theirs / ours);
        }
    }
    if !rows.is_empty() {
        page.push_str("\n| what users wait for | qkvault | PyTorch | times as fast |\n| --- | ---: | ---: | ---: |\n");
        page.push_str(&rows);
    }
}

fn table(page: &mut String, records: &Records, rows: &[FigureRow]) {
    page.push_str("| what | median | ratio |\n| --- | ---: | ---: |\n");
    for (what, path, unit, of) in rows {
        let Some(median) = records.number(path) else { continue };
        let ratio = records.number(of).map_or_else(String::new, |of| ratio(median, of));
        let spread = match (records.number(&format!("{path}/low")), records.number(&format!("{path}/high"))) {
            (Some(low), Some(high)) => format!(" ({} to {})", figure(low), figure(high)),
            _ => String::new(),
        };
        let _ = writeln!(page, "| {what} | {} {unit}{spread} | {ratio} |", figure(median));
    }
}

/// A ratio as readers take it: how many times as long, or how many times as fast.
fn ratio(value: f64, of: f64) -> String {
    if value * 2.0 < of { format!("{:.1} times as fast", of / value) } else { format!("{:.2}", value / of) }
}

/// Three digits that count.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn kernels(page: &mut String, records: &Records) {
    let Some(record) = records.part("kernels") else { return };
    page.push_str("\n## NVIDIA's table of an H200: 64 query heads, 8 KV heads, bf16\n\n");
    page.push_str(
        "TFLOP/s; causal counts as half, a window as the pairs that it keeps. qkvault and PyTorch take turns, in\n",
    );
    page.push_str("11 rounds. NVIDIA's own figures are of another H200. A GPU at its power limit, as\n");
    page.push_str(
        "here, has lower clocks. PyTorch's cuDNN backend has no windows. Both launch the same kernels with the same\n",
    );
    page.push_str("grids (seen by `ncu` and PyTorch's profiler), so what differs from 1 is the power that data and ");
    page.push_str("turns leave.\n\n");
    page.push_str(
        "| mask | batch | tokens | head dim | pass | qkvault | PyTorch's cuDNN | qkvault / PyTorch | NVIDIA |\n",
    );
    page.push_str("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |\n");
    for row in record["rows"].as_array().into_iter().flatten().filter(|row| row["direction"].is_string()) {
        let number = |field: &str, digits: usize| {
            row[field].as_f64().map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let text = |field: &str| row[field].as_str().unwrap_or("-").to_owned();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            text("mask"),
            row["batch"],
            row["seq"],
            row["head_dim"],
            text("direction"),
            number("tflops", 0),
            number("torch_tflops", 0),
            number("times_as_fast", 2),
            number("published_tflops", 0),
        );
    }
}
