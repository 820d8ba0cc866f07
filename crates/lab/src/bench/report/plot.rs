//! Plots as SVG: bars of host time and of cold start, and speed over the length of the sequence.

use plotters::prelude::*;
use serde_json::Value;

use super::Records;
use super::page::figure;

/// Colours of qkvault, of a floor, and of peers.
const OURS: RGBColor = RGBColor(0, 114, 178);
const FLOOR: RGBColor = RGBColor(130, 130, 130);
const PEER: RGBColor = RGBColor(213, 94, 0);

/// A bar: its label, its value, its colour.
type Bar = (&'static str, &'static str, RGBColor);

const LAUNCH: [Bar; 8] = [
    ("cudnnBackendExecute", "launch/ways/floor_us", FLOOR),
    ("raw, bound", "launch/ways/raw_us", OURS),
    ("raw, with addresses", "launch/ways/args_raw_us", OURS),
    ("bound", "launch/ways/bound_us", OURS),
    ("with arguments", "launch/ways/args_safe_us", OURS),
    ("PyTorch", "launch/ways/torch_us", PEER),
    ("graph replay, cudarc", "launch/ways/replay_floor_us", FLOOR),
    ("graph replay", "launch/ways/replay_us", OURS),
];

const COLD: [Bar; 4] = [
    ("from the vault", "cold/first_output_s", OURS),
    ("plan built", "cold/first_output_built_s", OURS),
    ("PyTorch", "cold/torch_first_output_s", PEER),
    ("FlexAttention", "cold/flex_first_output_s", PEER),
];

const FURTHER: [Bar; 4] = [
    ("cuDNN's deserialize and finalize", "cold/further_floor_ms", FLOOR),
    ("to the loaded plan", "cold/further_plan_ms", OURS),
    ("to its output", "cold/further_output_ms", OURS),
    ("to its output, PyTorch", "cold/torch_further_ms", PEER),
];

/// Every plot that the records suffice for, with its file name.
pub(super) fn all(records: &Records) -> anyhow::Result<Vec<(String, String)>> {
    let mut plots = Vec::new();
    for (name, title, bars) in [
        ("launch.svg", "Host time of a launch, microseconds", &LAUNCH[..]),
        ("first-output.svg", "Process start to first output, seconds", &COLD[..]),
        ("further-shape.svg", "A further shape, milliseconds", &FURTHER[..]),
    ] {
        let values: Vec<(&str, f64, RGBColor)> =
            bars.iter().filter_map(|(label, path, colour)| Some((*label, records.number(path)?, *colour))).collect();
        if !values.is_empty() {
            plots.push((name.to_owned(), bar_plot(title, &values)?));
        }
    }
    if let Some(record) = records.part("kernels") {
        for direction in ["forward", "backward"] {
            plots.push((format!("kernels-{direction}.svg"), kernels(record, direction)?));
        }
    }
    Ok(plots)
}

/// Horizontal bars, each with its value.
fn bar_plot(title: &str, values: &[(&str, f64, RGBColor)]) -> anyhow::Result<String> {
    let (width, left, step) = (760, 250, 30);
    let height = 50 + step * values.len() as i32;
    let most = values.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        area.draw(&Text::new(title.to_owned(), (12, 10), ("sans-serif", 17)))?;
        for (i, (label, value, colour)) in values.iter().enumerate() {
            let top = 42 + step * i as i32;
            let length = ((width - left - 90) as f64 * value / most).max(1.0) as i32;
            area.draw(&Text::new((*label).to_owned(), (12, top + 4), ("sans-serif", 14)))?;
            area.draw(&Rectangle::new([(left, top), (left + length, top + step - 9)], colour.filled()))?;
            area.draw(&Text::new(figure(*value), (left + length + 8, top + 4), ("sans-serif", 14)))?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// TFLOP/s over tokens: a line for each mask, thin for PyTorch, points for what NVIDIA publishes.
fn kernels(record: &Value, direction: &str) -> anyhow::Result<String> {
    let rows: Vec<&Value> =
        record["rows"].as_array().into_iter().flatten().filter(|row| row["direction"] == direction).collect();
    let mut masks: Vec<&str> = rows.iter().filter_map(|row| row["mask"].as_str()).collect();
    masks.dedup();
    let line = |mask: &str, field: &str| -> Vec<(f64, f64)> {
        let of = rows.iter().filter(|row| row["mask"] == mask);
        of.filter_map(|row| Some((row["seq"].as_f64()?.log2(), row[field].as_f64()?))).collect()
    };
    let most = 1.15 * rows.iter().filter_map(|row| row["published_tflops"].as_f64()).fold(0.0, f64::max);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (760, 440)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(format!("bf16 {direction}, TFLOP/s over tokens"), ("sans-serif", 17))
            .margin(12)
            .x_label_area_size(32)
            .y_label_area_size(46)
            .build_cartesian_2d(10.8..15.2, 0.0..most)?;
        let ticks = |log: &f64| format!("{:.0}", log.exp2());
        let rates = |rate: &f64| format!("{rate:.0}");
        let mut mesh = chart.configure_mesh();
        mesh.x_labels(6).x_label_formatter(&ticks).y_label_formatter(&rates).max_light_lines(0).draw()?;
        for (i, mask) in masks.iter().enumerate() {
            let colour = [OURS, PEER, RGBColor(0, 158, 115)][i % 3];
            let ours = LineSeries::new(line(mask, "tflops"), colour.stroke_width(3));
            chart
                .draw_series(ours)?
                .label(format!("{mask}: qkvault"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
            let theirs = line(mask, "torch_tflops");
            if !theirs.is_empty() {
                let dashed = DashedLineSeries::new(theirs, 5, 4, colour.stroke_width(1));
                chart
                    .draw_series(dashed)?
                    .label(format!("{mask}: PyTorch's cuDNN"))
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(1)));
            }
            let published = line(mask, "published_tflops").into_iter().map(move |at| Circle::new(at, 4, colour));
            chart
                .draw_series(published)?
                .label(format!("{mask}: published by NVIDIA"))
                .legend(move |(x, y)| Circle::new((x + 11, y), 4, colour));
        }
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::LowerRight).background_style(WHITE).border_style(FLOOR);
        labels.label_font(("sans-serif", 12)).draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_their_labels_and_values() {
        let svg = bar_plot("Time", &[("ours", 2.0, OURS), ("theirs", 10.0, PEER)]).expect("drawn");
        for text in ["Time", "ours", "2.00", "theirs", "10.0"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }
}
