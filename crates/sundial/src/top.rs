//! `sundial top`: who has the GPU now, in a terminal.
//!
//! [`board`] knows what is to be shown (pure: snapshots and keys in, rows out), [`view`] draws it.

mod board;
mod view;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::admin::{self, AdminRequest};
use crate::runtime_directory::RuntimeDirectory;
use crate::usage::Snapshot;
use board::{Board, Key, Sort};

/// Least time between two questions to the daemon.
const LEAST: f64 = 0.1;

/// What `sundial top` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print what there is, once, as text; rates are those of one interval.
    #[arg(long)]
    once: bool,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// What comes first: share, memory, wait, kernels, name.
    #[arg(long, default_value = "share")]
    sort: Sort,
    /// Only tenants whose name has this in it.
    #[arg(long, default_value = "")]
    filter: String,
    /// Columns of --once.
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(60..=500))]
    width: u16,
}

fn look(directory: &RuntimeDirectory) -> Result<Snapshot> {
    let socket = admin::connect(directory)
        .with_context(|| format!("no Sundial daemon is running in {}", directory.path().display()))?;
    admin::fetch(&socket, &AdminRequest::Snapshot)
}

pub(crate) fn main(args: &Args) -> Result<()> {
    let directory = RuntimeDirectory::find()?;
    let Ok(interval) = Duration::try_from_secs_f64(args.interval.max(LEAST)) else { bail!("--interval is too long") };
    let mut board = Board::new(args.sort, args.filter.clone());
    board.see(look(&directory)?);
    if args.once {
        std::thread::sleep(interval);
        board.see(look(&directory)?);
        return Ok(io::stdout().lock().write_all(text(&board, args.width)?.as_bytes())?);
    }
    // Restores it at a panic as well.
    let mut terminal = ratatui::try_init().context("no terminal; see --once")?;
    let result = watch(&mut board, interval, &directory, |board| {
        terminal.draw(|frame| view::draw(frame, board))?;
        Ok(())
    });
    ratatui::restore();
    result
}

/// Shows the board until somebody has seen enough.
fn watch(
    board: &mut Board,
    interval: Duration,
    directory: &RuntimeDirectory,
    mut draw: impl FnMut(&Board) -> io::Result<()>,
) -> Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        draw(board)?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if let Some(key) = key(&event::read()?)
                && board.press(key)
            {
                return Ok(());
            }
        } else {
            match look(directory) {
                Ok(snapshot) => board.see(snapshot),
                Err(error) => board.miss(format!("{error:#}")),
            }
            next = Instant::now() + interval;
        }
    }
}

fn key(event: &Event) -> Option<Key> {
    let Event::Key(pressed) = event else { return None };
    if pressed.kind == KeyEventKind::Release {
        return None;
    }
    Some(match pressed.code {
        KeyCode::Char('c') if pressed.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

/// The board as lines of text.
fn text(board: &Board, width: u16) -> Result<String> {
    let height = u16::try_from(board.rows().len() + view::around(board)).unwrap_or(u16::MAX).clamp(10, 1000);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(|error| anyhow::anyhow!("{error}"))?;
    terminal.draw(|frame| view::draw(frame, board)).map_err(|error| anyhow::anyhow!("{error}"))?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text.trim_end().to_owned() + "\n")
}

#[cfg(test)]
mod tests {
    use tenancy::metering::{GpuTime, Meters};

    use super::*;
    use crate::usage::{GpuSnapshot, Present, TenantSnapshot};

    fn snapshot(at: f64, gpus: usize) -> Snapshot {
        let tenant = |(name, gpu): (&str, usize), memory: u64, received: f64, kernels: u64| {
            let mut meters = Meters { kernels: (kernels as f64 * at) as u64, ..Meters::default() };
            meters.waits.counts[9] = meters.kernels;
            let present = Present {
                sessions: 1,
                memory_used: memory << 20,
                memory_limit: 1 << 30,
                share_entitled: 33.3,
                share_received: received,
                running: true,
                ..Present::default()
            };
            TenantSnapshot { tenant: name.into(), user: 1000, gpu, meters, present: Some(present) }
        };
        let seconds = |part: f64| (part * at * 1e9) as u64;
        let gpu = |part: f64| GpuSnapshot {
            name: "Sundial Software GPU".into(),
            memory_bytes: 4 << 30,
            time: GpuTime { idle_ns: seconds(part), overhead_ns: seconds(0.02), wall_ns: seconds(1.0) },
            device_deaths: 0,
        };
        let mut tenants = vec![tenant(("matrixMul-4711", 0), 512, 60.5, 1_234_567)];
        if gpus > 1 {
            tenants.push(tenant(("matrixMul-4711", 1), 2048, 12.5, 77));
        }
        Snapshot {
            gpus: [gpu(0.1), gpu(0.7)][..gpus].to_vec(),
            at_seconds: at,
            tenants: vec![
                tenants.remove(0),
                tenant(("a-tenant-whose-name-is-as-long-as-names-may-be-which-is-64-letters", 0), 1024, 30.0, 12),
                TenantSnapshot { tenant: "gone".into(), ..TenantSnapshot::default() },
            ]
            .into_iter()
            .chain(tenants)
            .collect(),
            scheduler: "default".into(),
            ..Snapshot::default()
        }
    }

    fn board(gpus: usize) -> Board {
        let mut board = Board::new(Sort::Share, String::new());
        for second in 0..30 {
            board.see(snapshot(f64::from(second), gpus));
        }
        board
    }

    #[test]
    fn each_of_several_gpus_has_its_lines() {
        let text = text(&board(2), 80).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for word in
            ["0: Sundial", "1: Sundial", "idle 10%", "idle 70%", "GPU   USER", "1.5 GiB of 4 GiB", "2 GiB of 4 GiB"]
        {
            assert!(text.contains(word), "{word}\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.contains("matrixMul-4711")).count(), 2, "{text}");
    }

    #[test]
    fn eighty_columns_show_all_there_is() {
        let text = text(&board(1), 80).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for word in
            ["matrixMul-4711", "60.5", "33.3", "1.2M", "512M/1G", "TENANT", "P99", "idle 10%", "overhead 2%", "▅▅▅"]
        {
            assert!(text.contains(word), "{word}\n{text}");
        }
        assert!(!text.contains("gone"), "{text}");
        // The map: an eighth of the bar is the first tenant's, a quarter the other's.
        let map = text.lines().find(|line| line.contains("aaa")).unwrap();
        let count = |letter| map.chars().skip(8).filter(|c| *c == letter).count();
        assert!(count('b') >= 2 * count('a') - 1 && count('.') > count('b'), "{map}");
    }

    #[test]
    fn small_and_large_terminals_are_drawn_on() {
        for (width, height) in [(1, 1), (10, 3), (79, 5), (80, 24), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| view::draw(frame, &board(1))).unwrap();
        }
    }

    #[test]
    fn keys_of_a_terminal_are_ours() {
        use ratatui::crossterm::event::KeyEvent;
        let pressed = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert_eq!(key(&pressed(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(Key::Quit));
        assert_eq!(key(&pressed(KeyCode::Char('c'), KeyModifiers::NONE)), Some(Key::Char('c')));
        assert_eq!(key(&Event::FocusLost), None);
    }
}
