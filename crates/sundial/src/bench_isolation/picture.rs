//! The picture: for each scheduler and each kind of tenants, what part of the GPU each tenant used over time.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use plotters::prelude::*;

use super::{Course, Sample, TENANTS};
use crate::picture::{Drawn, Panel, explain};

/// Size of a panel. Those of a kind stand one below the other.
const WIDTH: u32 = 720;
const HEIGHT: u32 = 240;
/// Each point is the utilisation of this time.
const SPAN: Duration = Duration::from_millis(250);
const COLOURS: [RGBColor; TENANTS.len()] = [RGBColor(0, 114, 178), RGBColor(0, 158, 115), RGBColor(213, 94, 0)];

pub(super) fn draw(path: &Path, courses: &[Course]) -> Result<()> {
    let columns: Vec<&[Course]> = courses.chunk_by(|one, next| one.kind == next.kind).collect();
    let lines = columns.iter().map(|column| column.len()).max().unwrap_or(0);
    let size = (WIDTH * u32::try_from(columns.len())?, HEIGHT * u32::try_from(lines)?);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE).map_err(explain)?;
    for (column, courses) in area.split_evenly((1, columns.len())).iter().zip(columns) {
        for (panel, course) in column.split_evenly((lines, 1)).iter().zip(courses) {
            draw_course(panel, course).map_err(explain)?;
        }
    }
    area.present().map_err(explain)
}

fn draw_course(panel: &Panel<'_>, course: &Course) -> Drawn {
    let length = course.samples.last().map_or(1.0, |last| last.at.as_secs_f64());
    let name = format!("{}, {}", course.scheduler.to_string().to_uppercase(), course.kind);
    let mut chart = ChartBuilder::on(panel)
        .caption(name, ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(46)
        .build_cartesian_2d(0.0..length, 0.0..100.0)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("seconds").y_desc("% of the GPU").draw()?;
    for (index, ((name, times), colour)) in TENANTS.iter().zip(COLOURS).enumerate() {
        let points = utilisation(&course.samples, index);
        let label = format!("{name}: kernels of {times}");
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
}

/// Percent of the time that goes by, at the end of each span.
fn utilisation(samples: &[Sample], tenant: usize) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut from = 0;
    for (index, to) in samples.iter().enumerate() {
        let span = to.at - samples[from].at;
        if span >= SPAN {
            let used = to.used[tenant].saturating_sub(samples[from].used[tenant]);
            points.push((to.at.as_secs_f64(), 100.0 * used as f64 / span.as_nanos() as f64));
            from = index;
        }
    }
    points
}
