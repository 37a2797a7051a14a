//! Pictures: copies by size, copies by block, programs by mode, tenants at once. Those that there are rows for.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::report::size;
use super::{Mode, Row};
use crate::picture::{Drawn, Panel, distinct, explain};

const PANEL: (u32, u32) = (520, 340);
/// Programs, not copies.
const KINDS: [&str; 3] = ["gpu-bound", "cpu-bound", "mixed"];

fn colour(mode: Mode) -> RGBColor {
    match mode {
        Mode::Native => RGBColor(120, 120, 120),
        Mode::Baseline => RGBColor(213, 94, 0),
        Mode::Mapped => RGBColor(230, 159, 0),
        Mode::Delayed => RGBColor(0, 114, 178),
        Mode::Both => RGBColor(0, 158, 115),
    }
}

/// What is along the axis.
#[derive(Clone, Copy)]
enum Along {
    Bytes,
    Tenants,
}

pub(super) fn draw(folder: &Path, rows: &[Row]) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let of = |wanted: &[&str]| -> Vec<&Row> { rows.iter().filter(|row| wanted.contains(&row.what.as_str())).collect() };
    let names = |wanted: &[&str]| distinct(of(wanted).iter().map(|row| row.what.clone()));
    let pictures: [(&str, &[&str], Along); 4] = [
        ("copies.svg", &["h2d", "d2h"], Along::Bytes),
        ("blocks.svg", &["block-h2d", "block-d2h"], Along::Bytes),
        ("copies-at-once.svg", &["h2d-at-once"], Along::Tenants),
        ("tenants.svg", &KINDS, Along::Tenants),
    ];
    for (file, wanted, along) in pictures {
        let names = names(wanted);
        if names.is_empty() {
            continue;
        }
        let path = folder.join(file);
        let area = SVGBackend::new(&path, (PANEL.0 * u32::try_from(names.len())?, PANEL.1)).into_drawing_area();
        area.fill(&WHITE).map_err(explain)?;
        for (panel, name) in area.split_evenly((1, names.len())).iter().zip(&names) {
            lines(panel, name, &of(&[name]), along).map_err(explain)?;
        }
        area.present().map_err(explain)?;
    }
    let others =
        ["h2d", "d2h", "block-h2d", "block-d2h", "h2d-at-once", "launch", "launch-synchronize", "alloc-free-1048576"];
    let programs: Vec<&Row> =
        rows.iter().filter(|row| !others.contains(&row.what.as_str()) && !KINDS.contains(&row.what.as_str())).collect();
    if !programs.is_empty() {
        let path = folder.join("programs.svg");
        let area = SVGBackend::new(&path, (960, PANEL.1)).into_drawing_area();
        area.fill(&WHITE).map_err(explain)?;
        bars(&area, &programs).map_err(explain)?;
        area.present().map_err(explain)?;
    }
    Ok(())
}

fn lines(panel: &Panel<'_>, name: &str, rows: &[&Row], along: Along) -> Drawn {
    let at = |row: &Row| match along {
        Along::Bytes => row.bytes as f64,
        Along::Tenants => f64::from(row.tenants),
    };
    let bounds = |of: &dyn Fn(&Row) -> f64| {
        let all = || rows.iter().map(|row| of(row));
        (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max))
    };
    let ((first, last), (least, most)) = (bounds(&at), bounds(&|row| row.ms.max(1e-6)));
    let label = move |value: &f64| match along {
        Along::Bytes => size(*value as u64),
        Along::Tenants => format!("{value:.0}"),
    };
    let mut chart = ChartBuilder::on(panel)
        .caption(name, ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(60)
        .build_cartesian_2d((first..last * 1.01).log_scale().base(2.0), (least * 0.8..most * 1.25).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(match along {
            Along::Bytes => "bytes",
            Along::Tenants => "tenants at once",
        })
        .y_desc("ms")
        .x_label_formatter(&label)
        .draw()?;
    for mode in distinct(rows.iter().map(|row| row.mode)) {
        let points: Vec<(f64, f64)> =
            rows.iter().filter(|row| row.mode == mode).map(|row| (at(row), row.ms.max(1e-6))).collect();
        chart
            .draw_series(LineSeries::new(points, colour(mode).stroke_width(2)).point_size(3))?
            .label(mode.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour(mode).stroke_width(2)));
    }
    legend(&mut chart)
}

/// Programs' ratios to native.
fn bars(panel: &Panel<'_>, rows: &[&Row]) -> Drawn {
    let names = distinct(rows.iter().map(|row| row.what.as_str()));
    let modes = distinct(rows.iter().map(|row| row.mode));
    let ratio = |row: &Row| row.ratio.unwrap_or(1.0);
    let most = rows.iter().map(|row| ratio(row)).fold(1.0, f64::max) * 1.3;
    let width = 0.8 / modes.len() as f64;
    let mut chart = ChartBuilder::on(panel)
        .caption("programs, time to native", ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..names.len() as f64, 0.0..most)?;
    let name = |at: &f64| names.get(*at as usize).map_or(String::new(), |name| (*name).to_owned());
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(names.len() + 1)
        .x_label_offset(40)
        .x_label_formatter(&name)
        .draw()?;
    for (place, mode) in modes.into_iter().enumerate() {
        let bars = rows.iter().filter(|row| row.mode == mode).filter_map(|row| {
            let left = names.iter().position(|name| *name == row.what)? as f64 + 0.1 + place as f64 * width;
            Some(Rectangle::new([(left, 0.0), (left + width * 0.9, ratio(row))], colour(mode).filled()))
        });
        chart
            .draw_series(bars)?
            .label(mode.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour(mode).filled()));
    }
    legend(&mut chart)
}

fn legend<'a, X: Ranged<ValueType = f64>, Y: Ranged<ValueType = f64>>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
) -> Drawn {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
}
