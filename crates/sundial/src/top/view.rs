//! Drawing it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::board::{Board, HISTORY, Row};
use crate::size::Size;
use crate::usage::GpuSnapshot;

/// Lines beside those of tenants: what all is about, keys, a head; and of each GPU what it is, how it is used, its memory.
pub(super) fn around(board: &Board) -> usize {
    3 + 3 * board.now.gpus.len()
}

/// Columns in front of the map.
const LABEL: &str = "memory ";

const COLOURS: [Color; 6] = [Color::Cyan, Color::Green, Color::Yellow, Color::Magenta, Color::Blue, Color::Red];

pub(super) fn draw(frame: &mut Frame<'_>, board: &Board) {
    let lines = u16::try_from(3 * board.now.gpus.len()).unwrap_or(u16::MAX);
    let [gpus, keys, table] =
        Layout::vertical([Constraint::Length(lines), Constraint::Length(2), Constraint::Min(0)]).areas(frame.area());
    let rows = board.rows();
    let of = |gpu| [header(board, gpu), utilization(board, gpu), memory_map(board, gpu, &rows, gpus)];
    let text: Vec<Line<'_>> = (0..board.now.gpus.len()).flat_map(of).collect();
    frame.render_widget(Paragraph::new(text), gpus);
    frame.render_widget(help(board), keys);
    frame.render_widget(tenants(board, &rows), table);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn header(board: &Board, gpu: usize) -> Line<'_> {
    let now = &board.now;
    let GpuSnapshot { name, memory_bytes, device_deaths, .. } = &now.gpus[gpu];
    let number = if now.gpus.len() > 1 { format!("{gpu}: ") } else { String::new() };
    let uptime = now.at_seconds as u64;
    let (hours, minutes, seconds) = (uptime / 3600, uptime / 60 % 60, uptime % 60);
    let deaths = if *device_deaths > 0 { format!("  device died {device_deaths} times") } else { String::new() };
    let daemon = format!("  scheduler {}  up {hours}:{minutes:02}:{seconds:02}", now.scheduler);
    let daemon = if gpu == 0 { daemon } else { String::new() };
    Line::from(vec![
        Span::styled(format!("{number}{name}"), bold()),
        Span::raw(format!("  {}{daemon}{deaths}", Size(*memory_bytes))),
    ])
}

fn utilization(board: &Board, gpu: usize) -> Line<'static> {
    let time = board.times.get(gpu).copied().unwrap_or_default();
    let wall = time.wall_ns.max(1) as f64;
    let percent = |ns: u64| 100.0 * ns as f64 / wall;
    let (idle, overhead) = (percent(time.idle_ns), percent(time.overhead_ns));
    let busy = if time.wall_ns == 0 { 0.0 } else { (100.0 - idle - overhead).max(0.0) };
    Line::raw(format!("tenants {busy:.0}%  overhead {overhead:.0}%  idle {idle:.0}%"))
}

/// A letter for each row on a GPU, as often as its part of the memory.
fn memory_map(board: &Board, gpu: usize, rows: &[&Row], area: Rect) -> Line<'static> {
    let memory_bytes = board.now.gpus[gpu].memory_bytes;
    let total = memory_bytes.max(1) as f64;
    let tail = format!(" {} of {}", Size(board.now.memory_used(gpu)), Size(memory_bytes));
    let room = usize::from(area.width).saturating_sub(LABEL.len() + 2 + tail.len());
    let mut spans = vec![Span::raw(format!("{LABEL}["))];
    let (mut sum, mut drawn) = (0.0, 0);
    for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.gpu == gpu) {
        sum += row.present.memory_used as f64;
        let end = ((sum / total * room as f64).round() as usize).min(room);
        let style = Style::new().fg(COLOURS[index % COLOURS.len()]);
        spans.push(Span::styled(letter(index).to_string().repeat(end.saturating_sub(drawn)), style));
        drawn = drawn.max(end);
    }
    spans.push(Span::raw(format!("{}]{tail}", ".".repeat(room - drawn))));
    Line::from(spans)
}

fn letter(index: usize) -> char {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
    char::from(LETTERS[index % LETTERS.len()])
}

fn help(board: &Board) -> Paragraph<'_> {
    let text = match (&board.missing, board.typing) {
        (Some(reason), _) => Line::styled(reason.as_str(), Style::new().fg(Color::Red)),
        (None, true) => Line::raw(format!("/{}_", board.filter)),
        (None, false) => {
            let filter = if board.filter.is_empty() { String::new() } else { format!("  only: {}", board.filter) };
            let style = Style::new().add_modifier(Modifier::DIM);
            Line::styled(format!("by {} (s)  filter (/)  quit (q){filter}", board.sort.name()), style)
        }
    };
    Paragraph::new(text)
}

fn tenants<'a>(board: &Board, rows: &[&'a Row]) -> Table<'a> {
    // Nothing, where there is one.
    let gpu = if board.now.gpus.len() > 1 { 3 } else { 0 };
    let widths = [
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(gpu),
        Constraint::Length(6),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(HISTORY as u16),
        Constraint::Length(11),
        Constraint::Length(6),
        Constraint::Length(8),
    ];
    let right = |text: String| Cell::from(Line::raw(text).right_aligned());
    let names = ["", "TENANT", "GPU", "USER", "DUE%", "GOT%", "HISTORY", "MEM/LIMIT", "KERN/s", "WAIT P99"];
    let aligned = |(index, name): (usize, &'static str)| {
        if index == 1 || index == 6 { Cell::from(name) } else { right(name.into()) }
    };
    let header = TableRow::new(names.into_iter().enumerate().map(aligned)).style(bold());
    let line = |(index, row): (usize, &&'a Row)| {
        let present = &row.present;
        let style = Style::new().fg(COLOURS[index % COLOURS.len()]);
        let idle = if present.running { Style::new() } else { Style::new().add_modifier(Modifier::DIM) };
        TableRow::new([
            Cell::from(letter(index).to_string()).style(style),
            Cell::from(row.tenant.as_str()),
            right(row.gpu.to_string()),
            right(row.user.to_string()),
            right(format!("{:.1}", present.share_entitled)),
            right(format!("{:.1}", present.share_received)),
            Cell::from(sparkline(&row.history)),
            right(format!("{}/{}", short(present.memory_used), short(present.memory_limit))),
            right(count(row.kernels_per_second)),
            right(wait(row.wait_p99_us)),
        ])
        .style(idle)
    };
    let lines = rows.iter().enumerate().skip(board.skipped).map(line);
    Table::new(lines, widths).header(header).column_spacing(1)
}

/// A size in at most five letters.
fn short(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["", "K", "M", "G"] {
        if value < 1000.0 {
            let fraction = if value < 10.0 && value.fract() >= 0.05 { 1 } else { 0 };
            return format!("{value:.fraction$}{unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1}T")
}

fn count(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

fn wait(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.1} s", us / 1e6),
        us if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        us => format!("{us:.0} us"),
    }
}

/// Shares, percent.
fn sparkline(history: &[f64]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |share: &f64| BARS[((share / 100.0 * 8.0).ceil().clamp(0.0, 8.0)) as usize];
    let bars: String = history.iter().map(bar).collect();
    format!("{bars:>HISTORY$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([count(0.4), count(9999.0), count(12_345.0), count(1.25e6)], ["0", "9999", "12k", "1.2M"]);
        assert_eq!([wait(12.3), wait(1234.0), wait(2.5e6)], ["12 us", "1.2 ms", "2.5 s"]);
        assert_eq!([short(1536 << 20), short(1 << 30), short((1023 << 20) + (1 << 19))], ["1.5G", "1G", "1.0G"]);
        assert_eq!(sparkline(&[0.0, 1.0, 50.0, 100.0, 300.0]), format!("{:>HISTORY$}", " ▁▄██"));
    }
}
