//! The picture of a case: pictures a second, to native; a group for each resolution and number of threads, a bar for each way.

use std::path::Path;

use anyhow::{Result, bail};
use plotters::prelude::*;

use super::{Case, NATIVE, Row};
use crate::picture::{Drawn, Panel, distinct, explain};

/// Width of a bar, of the gap between groups, and of what stands beside them.
const BAR: u32 = 24;
const GAP: u32 = 40;
const BESIDE: u32 = 220;
const HEIGHT: u32 = 340;

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

fn group(row: &Row) -> String {
    format!("{}, {} threads", row.resolution, row.threads)
}

fn way(row: &Row) -> String {
    let parts = [Some(row.scheme), row.rebuild, row.trap];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn draw_on(area: &Panel<'_>, case: Case, bars: &[&Row], groups: &[String], ways: &[String]) -> Drawn {
    area.fill(&WHITE)?;
    let most = bars.iter().map(|row| row.ratio).filter(|ratio| ratio.is_finite()).fold(1.0, f64::max) * 1.1;
    let unit = ways.len() as f64 + f64::from(GAP) / f64::from(BAR);
    let mut chart = ChartBuilder::on(area)
        .caption(case.to_string(), ("sans-serif", 18))
        .margin(8)
        .margin_right(BESIDE - 60)
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
        let fill = COLOURS[place % COLOURS.len()].filled();
        let bar = |row: &&&Row| {
            let group = groups.iter().position(|name| *name == group(row)).unwrap_or(0) as f64;
            let left = group * unit + (unit - ways.len() as f64) / 2.0 + place as f64;
            Rectangle::new([(left, 0.0), (left + 0.9, row.ratio)], fill)
        };
        let series: Vec<_> = bars.iter().filter(|row| way(row) == *name).map(|row| bar(&row)).collect();
        chart.draw_series(series)?;
        let (x, y) = (area.dim_in_pixel().0 as i32 - BESIDE as i32 + 70, 40 + 18 * place as i32);
        area.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], fill))?;
        area.draw(&Text::new(name.clone(), (x + 16, y), ("sans-serif", 13)))?;
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
