//! The pictures of a case: pictures a second, to native, a group for each resolution and number of threads, a bar for each way;
//! pictures a second by threads, a line for each way; and what traps are for, a bar for each group.

use std::path::Path;

use anyhow::{Result, bail};
use plotters::prelude::*;

use super::ways::name;
use super::{Case, NATIVE, Row};
use crate::picture::{Drawn, Panel, distinct, explain};

/// Width of a bar, of the gap between groups, and of what stands beside them.
const BAR: u32 = 24;
const GAP: u32 = 40;
const BESIDE: u32 = 220;
const HEIGHT: u32 = 340;
/// Width of a picture of lines.
const LINES: u32 = 700;
/// What traps are for, in the order of [`Row::reasons`].
const REASONS: [&str; 3] = ["stores into page tables", "stores into directories", "all else"];

/// Told apart by who cannot see all colours (Okabe and Ito's), and used again behind the last.
const COLOURS: [RGBColor; 8] = [
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(240, 228, 66),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(120, 120, 120),
];

pub(super) fn draw(path: &Path, case: Case, rows: &[Row]) -> Result<()> {
    let bars: Vec<&Row> = rows.iter().filter(|row| row.case == case && row.scheme != NATIVE).collect();
    let groups = distinct(bars.iter().map(|row| group(row)));
    let ways = distinct(bars.iter().map(|row| way(row)));
    if bars.is_empty() {
        bail!("there is nothing to compare");
    }
    let width = u32::try_from(groups.len())? * (BAR * u32::try_from(ways.len())? + GAP) + BESIDE;
    let area = SVGBackend::new(path, (width, HEIGHT)).into_drawing_area();
    draw_on(&area, case, &bars, &groups, &ways).map_err(explain)?;
    area.present().map_err(explain)
}

/// Pictures a second of all threads, by their number.
pub(super) fn draw_by_threads(path: &Path, case: Case, rows: &[Row]) -> Result<()> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.case == case).collect();
    let resolutions = distinct(rows.iter().map(|row| &row.resolution));
    if resolutions.is_empty() {
        bail!("there is nothing to draw");
    }
    let size = (LINES + BESIDE, HEIGHT * u32::try_from(resolutions.len())?);
    let area = SVGBackend::new(path, size).into_drawing_area();
    let panels = area.split_evenly((resolutions.len(), 1));
    let drawn = area.fill(&WHITE).and_then(|()| {
        panels.iter().zip(&resolutions).try_for_each(|(panel, resolution)| {
            let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.resolution == **resolution).collect();
            draw_lines(panel, &format!("{case}, {resolution}"), &rows)
        })
    });
    drawn.and_then(|()| area.present()).map_err(explain)
}

fn draw_lines(panel: &Panel<'_>, caption: &str, rows: &[&Row]) -> Drawn {
    let most_threads = rows.iter().map(|row| row.threads).max().unwrap_or(1);
    let most = rows.iter().map(|row| row.fps).filter(|fps| fps.is_finite()).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, ("sans-serif", 18))
        .margin(8)
        .margin_right(BESIDE)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..f64::from(most_threads) * 1.02, 0.0..most)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("threads").y_desc("pictures a second").draw()?;
    for (place, name) in distinct(rows.iter().map(|row| way(row))).iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let points: Vec<(f64, f64)> =
            rows.iter().filter(|row| way(row) == *name).map(|row| (row.threads.into(), row.fps)).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        legend(panel, place, name, colour)?;
    }
    Ok(())
}

/// What a virtual GPU's traps are for, in one way: stores into page tables, into directories, and all else.
pub(super) fn draw_traps(path: &Path, case: Case, rows: &[Row], of: &str) -> Result<()> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.case == case && way(row) == of).collect();
    if rows.is_empty() {
        bail!("there is nothing to draw");
    }
    let bar = 3 * BAR;
    let width = u32::try_from(rows.len())? * (bar + GAP) + BESIDE;
    let area = SVGBackend::new(path, (width, HEIGHT)).into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| draw_reasons(&area, &format!("{case}, {of}"), &rows));
    drawn.and_then(|()| area.present()).map_err(explain)
}

fn draw_reasons(area: &Panel<'_>, caption: &str, rows: &[&Row]) -> Drawn {
    let each = |row: &Row| row.reasons().map(|count| count as f64 / row.pictures());
    let most = rows.iter().map(|row| each(row).iter().sum()).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(8)
        .margin_right(BESIDE)
        .x_label_area_size(24)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..rows.len() as f64, 0.0..most)?;
    let name = |at: &f64| {
        let row = rows.get(*at as usize).filter(|_| at.fract() == 0.5);
        row.map_or_else(String::new, |row| format!("{} x {}", row.threads, row.resolution))
    };
    let labels = 2 * rows.len() + 1;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(labels)
        .x_label_formatter(&name)
        .light_line_style(TRANSPARENT)
        .y_desc("traps for a picture")
        .draw()?;
    for (place, reason) in REASONS.iter().enumerate() {
        let colour = COLOURS[place + 1];
        let parts = rows.iter().enumerate().map(|(at, row)| {
            let counts = each(row);
            let below: f64 = counts[..place].iter().sum();
            let left = at as f64 + 0.2;
            Rectangle::new([(left, below), (left + 0.6, below + counts[place])], colour.filled())
        });
        chart.draw_series(parts)?;
        legend(area, place, reason, colour)?;
    }
    Ok(())
}

/// A name beside the picture.
fn legend(area: &Panel<'_>, place: usize, name: &str, colour: RGBColor) -> Drawn {
    let (x, y) = (area.dim_in_pixel().0 as i32 - BESIDE as i32 + 10, 40 + 18 * place as i32);
    area.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], colour.filled()))?;
    area.draw(&Text::new(name.to_owned(), (x + 16, y), ("sans-serif", 13)))
}

fn group(row: &Row) -> String {
    format!("{}, {} threads", row.resolution, row.threads)
}

fn way(row: &Row) -> String {
    name((row.scheme, row.rebuild, row.trap))
}

fn draw_on(area: &Panel<'_>, case: Case, bars: &[&Row], groups: &[String], ways: &[String]) -> Drawn {
    area.fill(&WHITE)?;
    let most = bars.iter().map(|row| row.ratio).filter(|ratio| ratio.is_finite()).fold(1.0, f64::max) * 1.1;
    let unit = ways.len() as f64 + f64::from(GAP) / f64::from(BAR);
    let mut chart = ChartBuilder::on(area)
        .caption(case.to_string(), ("sans-serif", 18))
        .margin(8)
        .margin_right(BESIDE)
        .x_label_area_size(24)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..unit * groups.len() as f64, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .light_line_style(TRANSPARENT)
        .y_desc("pictures a second, to native")
        .draw()?;
    for (place, name) in ways.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let fill = colour.filled();
        let bar = |row: &&&Row| {
            let group = groups.iter().position(|name| *name == group(row)).unwrap_or(0) as f64;
            let left = group * unit + (unit - ways.len() as f64) / 2.0 + place as f64;
            Rectangle::new([(left, 0.0), (left + 0.9, row.ratio)], fill)
        };
        let series: Vec<_> = bars.iter().filter(|row| way(row) == *name).map(|row| bar(&row)).collect();
        chart.draw_series(series)?;
        legend(area, place, name, colour)?;
    }
    let one = [(0.0, 1.0), (unit * groups.len() as f64, 1.0)];
    chart.draw_series(LineSeries::new(one, BLACK))?;
    let (shown, _) = chart.plotting_area().get_pixel_range();
    let width = f64::from(shown.end - shown.start) / groups.len() as f64;
    for (at, name) in groups.iter().enumerate() {
        let x = shown.start + (width * (at as f64 + 0.5)) as i32 - 3 * name.len() as i32;
        area.draw(&Text::new(name.clone(), (x, HEIGHT as i32 - 24), ("sans-serif", 13)))?;
    }
    Ok(())
}
