//! The picture: whole programs' ratios to native, a bar for each scheme, a panel for each number of guests.

use std::path::Path;

use anyhow::{Result, bail};
use plotters::prelude::*;

use super::{Row, SUMS, Way};
use crate::picture::{Drawn, Panel, distinct, explain};

/// Width of a program's bars with the gap between them and the next.
const GROUP: u32 = 110;
/// Height of a panel.
const HEIGHT: u32 = 300;
/// Part of a group that its bars fill.
const FILLED: f64 = 0.8;

fn colour(way: Way) -> RGBColor {
    match way {
        Way::Native => RGBColor(120, 120, 120),
        Way::Session => RGBColor(204, 121, 167),
        Way::PassThrough => RGBColor(240, 228, 66),
        Way::FvNaive => RGBColor(213, 94, 0),
        Way::Fv => RGBColor(0, 114, 178),
        Way::Hybrid => RGBColor(230, 159, 0),
        Way::FvBesideIdle => RGBColor(86, 180, 233),
        Way::Pv => RGBColor(0, 158, 115),
    }
}

pub(super) fn draw(path: &Path, rows: &[Row]) -> Result<()> {
    let bars: Vec<&Row> = rows.iter().filter(|row| row.phase == SUMS[0] && row.scheme != Way::Native).collect();
    let programs = distinct(bars.iter().map(|row| row.program));
    let guests = distinct(bars.iter().map(|row| row.guests));
    if bars.is_empty() {
        bail!("there is nothing to compare");
    }
    let size = (GROUP * u32::try_from(programs.len() + 1)?, HEIGHT * u32::try_from(guests.len())?);
    let area = SVGBackend::new(path, (size.0.max(480), size.1)).into_drawing_area();
    area.fill(&WHITE).map_err(explain)?;
    for (panel, guests) in area.split_evenly((guests.len(), 1)).iter().zip(guests) {
        let bars: Vec<&Row> = bars.iter().copied().filter(|row| row.guests == guests).collect();
        draw_panel(panel, guests, &programs, &bars).map_err(explain)?;
    }
    area.present().map_err(explain)
}

fn draw_panel(panel: &Panel<'_>, guests: u16, programs: &[&str], bars: &[&Row]) -> Drawn {
    let ratio = |row: &Row| row.ratio.unwrap_or(1.0);
    let most = bars.iter().map(|row| ratio(row)).fold(2.0, f64::max) * 1.2;
    // Names stand below the bars.
    let least = bars.iter().map(|row| ratio(row)).fold(0.8, f64::min) * 0.6;
    let ways = distinct(bars.iter().map(|row| row.scheme));
    let width = FILLED / ways.len() as f64;
    let caption = if guests == 1 { "1 guest".to_owned() } else { format!("{guests} guests") };
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(8)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..programs.len() as f64, (least..most).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .light_line_style(TRANSPARENT)
        .y_desc("time, to native")
        .draw()?;
    let name =
        |(at, name): (usize, &&str)| Text::new((*name).to_owned(), (at as f64 + 0.05, least * 1.2), ("sans-serif", 13));
    chart.draw_series(programs.iter().enumerate().map(name))?;
    for (place, way) in ways.iter().enumerate() {
        let fill = colour(*way).filled();
        let bar = |row: &&&Row| {
            let group = programs.iter().position(|program| *program == row.program).unwrap_or(0) as f64;
            let left = group + (1.0 - FILLED) / 2.0 + place as f64 * width;
            Rectangle::new([(left, 1.0), (left + width, ratio(row))], fill)
        };
        let series: Vec<_> = bars.iter().filter(|row| row.scheme == *way).map(|row| bar(&row)).collect();
        chart
            .draw_series(series)?
            .label(way.to_string())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], fill));
    }
    let one = [(0.0, 1.0), (programs.len() as f64, 1.0)];
    chart.draw_series(LineSeries::new(one, BLACK))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
}
