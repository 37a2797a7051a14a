//! What is to be shown.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::str::FromStr;

use tenancy::metering::{GpuTime, Meters};

use crate::usage::{GpuSnapshot, Present, Snapshot};

/// How many looks the history of a share goes back.
pub(super) const HISTORY: usize = 12;

/// What comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sort {
    Share,
    Memory,
    Wait,
    Kernels,
    Name,
}

const SORTS: [(Sort, &str); 5] = [
    (Sort::Share, "share"),
    (Sort::Memory, "memory"),
    (Sort::Wait, "wait"),
    (Sort::Kernels, "kernels"),
    (Sort::Name, "name"),
];

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Sort, String> {
        let found = SORTS.iter().find(|(_, name)| *name == text);
        found.map(|(sort, _)| *sort).ok_or_else(|| format!("`{text}` is none of share, memory, wait, kernels, name"))
    }
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        SORTS.iter().find(|(sort, _)| *sort == self).map_or("", |(_, name)| name)
    }

    fn next(self) -> Sort {
        let at = SORTS.iter().position(|(sort, _)| *sort == self).unwrap_or(0);
        SORTS[(at + 1) % SORTS.len()].0
    }
}

/// A key of the keyboard, as far as the board tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    Enter,
    Escape,
    Backspace,
    Quit,
}

/// A tenant's line.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    pub(super) tenant: String,
    pub(super) user: u32,
    pub(super) gpu: usize,
    pub(super) present: Present,
    /// In the last interval.
    pub(super) kernels_per_second: f64,
    /// Of the last interval; of all, if nothing began in it.
    pub(super) wait_p99_us: f64,
    /// Received shares, the oldest first, percent.
    pub(super) history: Vec<f64>,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) now: Snapshot,
    /// Of each GPU, in the last interval.
    pub(super) times: Vec<GpuTime>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// The filter is being written.
    pub(super) typing: bool,
    /// Rows that are above what is shown.
    pub(super) skipped: usize,
    /// Why nothing new comes.
    pub(super) missing: Option<String>,
    rows: Vec<Row>,
    history: HashMap<(String, u32, usize), VecDeque<f64>>,
}

impl Board {
    pub(super) fn new(sort: Sort, filter: String) -> Board {
        Board {
            now: Snapshot::default(),
            times: Vec::new(),
            sort,
            filter,
            typing: false,
            skipped: 0,
            missing: None,
            rows: Vec::new(),
            history: HashMap::new(),
        }
    }

    /// A look.
    pub(super) fn see(&mut self, now: Snapshot) {
        let before = std::mem::replace(&mut self.now, now);
        let now = &self.now;
        // Another daemon has begun anew.
        let restarted = now.at_seconds < before.at_seconds;
        let seconds = (now.at_seconds - before.at_seconds).max(1e-3);
        let known: HashMap<(&str, u32, usize), &Meters> = before
            .tenants
            .iter()
            .filter(|_| !restarted)
            .map(|tenant| ((tenant.tenant.as_str(), tenant.user, tenant.gpu), &tenant.meters))
            .collect();
        let mut rows = Vec::new();
        let mut history = HashMap::new();
        for tenant in &now.tenants {
            let Some(present) = &tenant.present else { continue };
            let key = (tenant.tenant.clone(), tenant.user, tenant.gpu);
            let mut shares = self.history.remove(&key).unwrap_or_default();
            shares.push_back(present.share_received);
            if shares.len() > HISTORY {
                shares.pop_front();
            }
            let since = known.get(&(tenant.tenant.as_str(), tenant.user, tenant.gpu));
            let more = since.map_or_else(Meters::default, |before| tenant.meters.since(before));
            let waits = if more.waits.count() > 0 { more.waits } else { tenant.meters.waits };
            rows.push(Row {
                tenant: tenant.tenant.clone(),
                user: tenant.user,
                gpu: tenant.gpu,
                present: present.clone(),
                kernels_per_second: more.kernels as f64 / seconds,
                wait_p99_us: waits.quantile_us(0.99),
                history: shares.iter().copied().collect(),
            });
            history.insert(key, shares);
        }
        let less = |now: u64, before: u64| if restarted { now } else { now.saturating_sub(before) };
        let since = |(number, gpu): (usize, &GpuSnapshot)| {
            let (now, before) = (gpu.time, before.gpus.get(number).map_or_else(GpuTime::default, |gpu| gpu.time));
            GpuTime {
                idle_ns: less(now.idle_ns, before.idle_ns),
                overhead_ns: less(now.overhead_ns, before.overhead_ns),
                wall_ns: less(now.wall_ns, before.wall_ns),
            }
        };
        self.times = now.gpus.iter().enumerate().map(since).collect();
        (self.rows, self.history, self.missing) = (rows, history, None);
    }

    /// A look in vain.
    pub(super) fn miss(&mut self, reason: String) {
        self.missing = Some(reason);
    }

    /// The rows to be shown, in order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.tenant.contains(&self.filter)).collect();
        let value = |row: &Row| match self.sort {
            Sort::Share => row.present.share_received,
            Sort::Memory => row.present.memory_used as f64,
            Sort::Wait => row.wait_p99_us,
            Sort::Kernels => row.kernels_per_second,
            Sort::Name => 0.0,
        };
        let names = |a: &Row, b: &Row| -> Ordering { (&a.tenant, a.user, a.gpu).cmp(&(&b.tenant, b.user, b.gpu)) };
        rows.sort_by(|a, b| value(b).total_cmp(&value(a)).then_with(|| names(a, b)));
        rows
    }

    /// A key; true if it is the end.
    pub(super) fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Quit => return true,
            Key::Char('q') if !self.typing => return true,
            Key::Escape if self.typing || !self.filter.is_empty() => {
                self.filter.clear();
                self.typing = false;
            }
            Key::Escape => return true,
            Key::Enter => self.typing = false,
            Key::Backspace if self.typing => drop(self.filter.pop()),
            Key::Char(c) if self.typing => {
                if self.filter.len() < 64 {
                    self.filter.push(c);
                }
            }
            Key::Char('/') => self.typing = true,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Up | Key::Char('k') => self.skipped = self.skipped.saturating_sub(1),
            Key::Down | Key::Char('j') => self.skipped += 1,
            Key::Char(_) | Key::Backspace => {}
        }
        self.skipped = self.skipped.min(self.rows().len().saturating_sub(1));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::TenantSnapshot;

    fn snapshot(at: f64, tenants: &[(&str, u64, f64)]) -> Snapshot {
        let tenant = |&(name, kernels, received): &(&str, u64, f64)| TenantSnapshot {
            tenant: name.into(),
            user: 1,
            gpu: 0,
            meters: Meters { kernels, ..Meters::default() },
            present: Some(Present { share_received: received, ..Present::default() }),
        };
        Snapshot { at_seconds: at, tenants: tenants.iter().map(tenant).collect(), ..Snapshot::default() }
    }

    fn names(board: &Board) -> Vec<&str> {
        board.rows().into_iter().map(|row| row.tenant.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_and_filtered_by_keys() {
        let mut board = Board::new(Sort::Share, String::new());
        board.see(snapshot(1.0, &[("a", 0, 10.0), ("b", 0, 70.0), ("ab", 0, 20.0)]));
        assert_eq!(names(&board), ["b", "ab", "a"]);
        board.see(snapshot(3.0, &[("a", 100, 10.0), ("b", 2, 70.0), ("ab", 10, 20.0)]));
        assert_eq!(board.rows()[0].history, [70.0, 70.0]);
        for _ in 0..3 {
            assert!(!board.press(Key::Char('s')));
        }
        assert_eq!((board.sort, names(&board)), (Sort::Kernels, vec!["a", "ab", "b"]));
        assert_eq!(board.rows()[0].kernels_per_second, 50.0);
        board.press(Key::Char('s'));
        assert_eq!(names(&board), ["a", "ab", "b"]);
        for key in [Key::Char('/'), Key::Char('b'), Key::Char('q')] {
            assert!(!board.press(key), "typed");
        }
        assert!(names(&board).is_empty());
        board.press(Key::Backspace);
        board.press(Key::Enter);
        assert_eq!(names(&board), ["ab", "b"]);
        for _ in 0..5 {
            board.press(Key::Down);
        }
        assert_eq!(board.skipped, 1, "the last stays");
        assert!(!board.press(Key::Escape));
        assert_eq!((names(&board).len(), board.press(Key::Escape)), (3, true));
        assert!("speed".parse::<Sort>().is_err() && SORTS.iter().all(|(sort, name)| name.parse() == Ok(*sort)));
    }

    #[test]
    fn another_daemon_begins_anew() {
        let mut board = Board::new(Sort::Share, String::new());
        board.see(snapshot(100.0, &[("a", 1000, 10.0)]));
        board.miss("gone".into());
        assert!(board.missing.is_some());
        board.see(snapshot(2.0, &[("a", 30, 10.0)]));
        assert_eq!((board.rows()[0].kernels_per_second, &board.missing), (0.0, &None));
        board.see(snapshot(3.0, &[("a", 40, 10.0)]));
        assert_eq!(board.rows()[0].kernels_per_second, 10.0);
        for second in 4..40 {
            board.see(snapshot(f64::from(second), &[("a", 40, 10.0)]));
        }
        assert_eq!(board.rows()[0].history.len(), HISTORY);
    }
}
