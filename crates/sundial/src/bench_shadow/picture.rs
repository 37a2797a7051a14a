//! The pictures: what each policy takes, a panel for each format; and where and when a trace stores.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use gmmu::{MOST_TABLES, Trace, TraceEvent};
use plotters::prelude::*;

use super::{Row, name};
use crate::picture::{Drawn, Panel, explain};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 340;
/// By the cost of a trap.
const COLOURS: [RGBColor; 5] = [
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
];
/// Seconds of a trace that are drawn large.
const SHORT: f64 = 0.2;

/// Draws into a file of a folder, in so many panels, one below the other.
fn draw(folder: &Path, file: &str, panels: usize, paint: impl FnOnce(&[Panel<'_>]) -> Drawn) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(file);
    let area = SVGBackend::new(&path, (WIDTH, HEIGHT * u32::try_from(panels)?)).into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| paint(&area.split_evenly((panels, 1)))).and_then(|()| area.present());
    drawn.map_err(explain).with_context(|| format!("cannot draw {}", path.display()))
}

/// The time of each policy, by the cost of a trap.
pub(super) fn draw_policies(folder: &Path, rows: &[Row]) -> Result<()> {
    let formats: Vec<&[Row]> = rows.chunk_by(|one, next| one.format == next.format).collect();
    draw(folder, "policies.svg", formats.len(), |panels| {
        panels.iter().zip(&formats).try_for_each(|(panel, rows)| draw_format(panel, rows))
    })
}

fn draw_format(panel: &Panel<'_>, rows: &[Row]) -> Drawn {
    let by_cost: Vec<&[Row]> = rows.chunk_by(|one, next| one.trap_cost_us == next.trap_cost_us).collect();
    let policies = by_cost.first().map_or(0, |rows| rows.len());
    let most = rows.iter().map(|row| row.ms).fold(1.0, f64::max) * 3.0;
    let least = rows.iter().map(|row| row.ms).fold(most, f64::min) / 2.0;
    let format = rows.first().map_or("", |row| row.format);
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("following {format} page tables, ms"), ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..policies as f64, (least..most).log_scale())?;
    let label = |at: &f64| {
        let row = by_cost.first().and_then(|rows| rows.get(*at as usize));
        row.filter(|_| at.fract() == 0.5).map_or_else(String::new, |row| match row.rebuild.as_str() {
            "-" => name(row.scheme).to_owned(),
            rebuild => format!("{} {rebuild}", if name(row.scheme) == "hybrid" { "hy." } else { "" }),
        })
    };
    chart.configure_mesh().disable_x_mesh().x_labels(policies * 2 + 1).x_label_formatter(&label).draw()?;
    let width = 0.8 / by_cost.len() as f64;
    for (index, (rows, colour)) in by_cost.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let left = |policy: usize| policy as f64 + 0.1 + index as f64 * width;
        let bars = rows.iter().enumerate().map(|(policy, row)| {
            Rectangle::new([(left(policy), least), (left(policy) + width, row.ms)], colour.filled())
        });
        let cost = rows.first().map_or(0.0, |row| row.trap_cost_us);
        chart
            .draw_series(bars)?
            .label(format!("a trap costs {cost} us"))
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
}

/// Stores by table, over all of the time, and over a short part of it.
pub(super) fn draw_trace(folder: &Path, trace: &Trace) -> Result<()> {
    let stores: Vec<(f64, u32)> = trace
        .events
        .iter()
        .filter_map(|event| match *event {
            TraceEvent::Update { time_us, table, .. } => Some((time_us as f64 / 1e6, table)),
            TraceEvent::Submit { .. } => None,
        })
        .collect();
    let format = trace.format.name();
    draw(folder, &format!("updates-by-table-{format}.svg"), 1, |panels| {
        panels.iter().try_for_each(|panel| draw_tables(panel, format, &stores))
    })?;
    let end = stores.last().map_or(1.0, |(time, _)| *time).max(SHORT);
    let middle = end / 2.0;
    draw(folder, &format!("updates-over-time-{format}.svg"), 2, |panels| {
        let spans = [0.0..end, middle..middle + SHORT];
        panels.iter().zip(spans).try_for_each(|(panel, span)| draw_time(panel, span, &stores))
    })
}

fn draw_tables(panel: &Panel<'_>, format: &str, stores: &[(f64, u32)]) -> Drawn {
    let mut by_table = vec![0u32; MOST_TABLES as usize];
    stores.iter().for_each(|(_, table)| by_table[*table as usize] += 1);
    let most = f64::from(by_table.iter().copied().max().unwrap_or(1)) * 1.1;
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("stores into each {format} page table"), ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..f64::from(MOST_TABLES), 0.0..most)?;
    chart.configure_mesh().disable_x_mesh().x_desc("page table").draw()?;
    let bars = by_table.iter().enumerate().filter(|(_, stores)| **stores > 0);
    chart.draw_series(bars.map(|(table, stores)| {
        Rectangle::new([(table as f64, 0.0), (table as f64 + 1.0, f64::from(*stores))], COLOURS[1].filled())
    }))?;
    Ok(())
}

fn draw_time(panel: &Panel<'_>, span: std::ops::Range<f64>, stores: &[(f64, u32)]) -> Drawn {
    /// More points than that cannot be told apart.
    const MOST_POINTS: usize = 6000;
    let mut seen: Vec<(f64, u32)> = stores.iter().copied().filter(|(time, _)| span.contains(time)).collect();
    // A run on one table is one point in a picture of all of it.
    seen.dedup_by(|one, other| one.1 == other.1 && one.0 - other.0 < (span.end - span.start) / 2000.0);
    let every = seen.len().div_ceil(MOST_POINTS).max(1);
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("stores within {:.1} seconds", span.end - span.start), ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(56)
        .build_cartesian_2d(span, 0.0..f64::from(MOST_TABLES))?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("seconds").y_desc("page table").draw()?;
    let points =
        seen.iter().step_by(every).map(|(time, table)| Circle::new((*time, f64::from(*table)), 1, COLOURS[1].filled()));
    chart.draw_series(points)?;
    Ok(())
}
