//! What has been used, kept.
//!
//! A thread asks the device process every [`Tuning::interval`], and soon after a session has ended; what came since the last time is
//! added to the present hour's rows, and those to the database. Nobody waits for that but who asks for usage. If the device
//! process dies, what was used since it was last asked is lost; if this process is killed, what was not written yet: one interval
//! each, at most.
//!
//! ```text
//!   device process ── what came ──► pending rows, by hour ──► database
//!                                       ▲                        │ it cannot be written
//!                                       └────────────────────────┘ tried again next time
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tenancy::metering::{GpuTime, Meters};

use super::rights::View;
use super::{Control, Seat};
use crate::link::ToDevice;
use crate::metrics::{self, Listener};
use crate::quiet::Quiet;
use crate::quota::Accounts;
use crate::quota::Spender;
use crate::threads;
use crate::usage::store::{HOUR, Key, Rows, Store, StoreError, hour_now};
use crate::usage::{GpuSnapshot, MeteredRow, Present, Report, Snapshot, TenantSnapshot};

/// Longest wait for the device process's answer.
const ANSWER_BOUND: Duration = Duration::from_secs(2);
/// Least time between two writings, however many sessions end.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// What is not older is fresh enough for who looks again and again.
const FRESH: Duration = Duration::from_millis(100);
/// How long a tenant that has left is shown to those who look now and then, and how many such at most.
const LEFT_SHOWN: Duration = Duration::from_secs(300);
const MOST_LEFT: usize = 256;
/// Tenants in an hour that have rows of their own: whoever makes up names fills neither memory nor disk.
const MOST_IN_AN_HOUR: usize = 1000;
/// Rows that wait for a database that cannot be written.
const MOST_PENDING: usize = 10_000;
/// The row of those who have none of their own. No tenant can be called that.
const OTHERS: &str = "(others)";

/// Where usage is kept, and how.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    /// `None`: it is not.
    pub(crate) folder: Option<PathBuf>,
    /// What is older is forgotten.
    pub(crate) days: u64,
    /// Between two writings.
    pub(crate) interval: Duration,
}

/// What the device process says of use, from report to report, and its way into the database.
pub(super) struct Usage {
    tuning: Tuning,
    start: (Instant, SystemTime),
    /// Tells this daemon from those before it.
    daemon: u64,
    state: Mutex<State>,
    /// Something was heard, or is to be written soon.
    changed: Condvar,
    /// Locked before `state`, where both are.
    kept: Mutex<Kept>,
    /// Whether the last writing came to pass; for who may not wait for the next.
    is_kept: AtomicBool,
    merged: AtomicU64,
    quiet: Quiet,
    /// For quotas. Locked last.
    pub(super) accounts: Mutex<Accounts>,
}

#[derive(Default)]
struct State {
    /// GPU time that is not in the accounts yet, ns.
    spent: BTreeMap<Spender, u64>,
    pending: Rows,
    /// Since the daemon started, by name, user, and number of the GPU.
    tenants: BTreeMap<(String, u32, usize), Known>,
    gpus: Vec<Asked>,
    /// Tenants of the present hour.
    hour: u64,
    named: BTreeSet<(String, u32)>,
    /// A session has ended.
    soon: bool,
}

/// A GPU, as its device processes have told of it.
#[derive(Clone, Default)]
struct Asked {
    /// Since the daemon started.
    time: GpuTime,
    /// The last question that was asked.
    number: u64,
    /// One that is not answered yet: its number, and when it was asked.
    open: Option<(u64, Instant)>,
    /// When that question was asked which was answered last, and when its answer came.
    fresh: Option<Instant>,
    at: Option<Instant>,
}

#[derive(Default)]
struct Known {
    meters: Meters,
    present: Option<Present>,
    left: Option<Instant>,
}

#[derive(Default)]
struct Kept {
    store: Option<Store>,
    /// Why it could not be written the last time.
    failed: Option<String>,
    forgotten_before: u64,
    /// What it knows of quotas is in the accounts.
    has_accounts: bool,
    /// The number of what was added last, and of what may have been.
    number: u64,
    unsure: Option<(u64, Rows)>,
    /// When that was heard which was written last.
    until: Option<Instant>,
}

impl Usage {
    pub(super) fn new(tuning: Tuning, gpus: usize) -> Usage {
        let (begin, date) = (Instant::now(), SystemTime::now());
        let since = date.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let daemon = u64::try_from(since).unwrap_or(u64::MAX) ^ (u64::from(std::process::id()) << 40);
        Usage {
            tuning,
            start: (begin, date),
            daemon,
            state: Mutex::new(State { gpus: vec![Asked::default(); gpus], ..State::default() }),
            changed: Condvar::new(),
            kept: Mutex::default(),
            is_kept: AtomicBool::new(false),
            merged: AtomicU64::new(0),
            quiet: Quiet::new(),
            accounts: Mutex::default(),
        }
    }

    /// What the device process of a GPU says; with the number of the question in the last part of its answer.
    pub(super) fn hear(&self, gpu: usize, number: Option<u64>, rows: Vec<MeteredRow>, time: GpuTime) {
        self.hear_at(hour_now(), gpu, number, rows, time);
    }

    fn hear_at(&self, hour: u64, gpu: usize, number: Option<u64>, rows: Vec<MeteredRow>, time: GpuTime) {
        let mut state = self.state.lock();
        if state.hour != hour {
            state.hour = hour;
            state.named.clear();
        }
        for MeteredRow { tenant, spender, meters, present } in rows {
            let user = spender.user;
            if meters != Meters::default() {
                let key = state.row(hour, &tenant, user);
                self.merged.fetch_add(u64::from(key.2 == OTHERS), Ordering::Relaxed);
                state.pending.add(key, &meters);
                *state.spent.entry(spender).or_default() += meters.gpu_ns;
            }
            let known = state.tenants.entry((tenant, user, gpu)).or_default();
            known.meters = known.meters.plus(&meters);
            known.left = if present.is_some() { None } else { Some(Instant::now()) };
            known.present = present;
        }
        if time != GpuTime::default() {
            state.pending.add_time(hour, &time);
            state.gpus[gpu].time = state.gpus[gpu].time.plus(&time);
        }
        if let Some(number) = number {
            let known = &mut state.gpus[gpu];
            known.at = Some(Instant::now());
            if let Some((_, asked)) = known.open.take_if(|open| open.0 <= number) {
                known.fresh = Some(asked);
            }
            state.forget_left();
            self.changed.notify_all();
        }
    }

    /// GPU time that was used since this was asked last, ns.
    pub(super) fn take_spent(&self) -> BTreeMap<Spender, u64> {
        std::mem::take(&mut self.state.lock().spent)
    }

    /// The device process of a GPU has died, and nobody is there.
    pub(super) fn device_ended(&self, gpu: usize) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.gpus[gpu].open = None;
        for (_, known) in state.tenants.iter_mut().filter(|((.., on), _)| *on == gpu) {
            known.present = None;
            known.left.get_or_insert(now);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until what each GPU's device process said answers a question that was asked after `since`; `ask` sends one to that of
    /// a GPU, and says whether it could be sent. There is one question at a time for each, however many wait.
    fn refresh(&self, since: Instant, deadline: Instant, ask: impl Fn(usize, u64) -> bool) {
        let mut state = self.state.lock();
        let mut missing: Vec<usize> = (0..state.gpus.len()).collect();
        loop {
            let now = Instant::now();
            missing.retain(|gpu| state.gpus[*gpu].fresh.is_none_or(|fresh| fresh < since));
            if missing.is_empty() || now >= deadline {
                return;
            }
            let unasked = |known: &Asked| known.open.is_none_or(|(_, at)| now.duration_since(at) >= ANSWER_BOUND);
            let Some(&gpu) = missing.iter().find(|gpu| unasked(&state.gpus[**gpu])) else {
                self.changed.wait_until(&mut state, deadline);
                continue;
            };
            state.gpus[gpu].number += 1;
            let number = state.gpus[gpu].number;
            state.gpus[gpu].open = Some((number, now));
            if !MutexGuard::unlocked(&mut state, || ask(gpu, number)) {
                state.gpus[gpu].open = None;
                missing.retain(|other| *other != gpu);
                // Who took it for asked waits for an answer that does not come.
                self.changed.notify_all();
            }
        }
    }

    /// A session has ended: what it had is written soon.
    pub(super) fn soon(&self) {
        self.state.lock().soon = true;
        self.changed.notify_all();
    }

    /// Waits for the next time to write.
    fn wait(&self) {
        let since = Instant::now();
        let mut state = self.state.lock();
        loop {
            let pause = if state.soon { LEAST_PAUSE } else { self.tuning.interval };
            let left = pause.saturating_sub(since.elapsed());
            if left.is_zero() {
                break;
            }
            // However long that is: a time can be too far away to be told.
            self.changed.wait_for(&mut state, left.min(Duration::from_secs(HOUR)));
        }
        state.soon = false;
    }

    /// Writes what is pending; what cannot be written stays pending.
    fn write(&self) {
        let Some(folder) = &self.tuning.folder else { return self.state.lock().bound(&self.merged) };
        let mut kept = self.kept.lock();
        let (rows, heard) = {
            let mut state = self.state.lock();
            // As of the one that has been silent for longest.
            (std::mem::take(&mut state.pending), state.gpus.iter().filter_map(|known| known.at).min())
        };
        if rows.is_empty() && kept.failed.is_none() {
            return;
        }
        let kept = &mut *kept;
        kept.number += 1;
        let added = self.add(folder, kept, &rows);
        self.is_kept.store(added.is_ok(), Ordering::Relaxed);
        match added {
            Ok(()) => {
                if kept.failed.take().is_some_and(|reason| !reason.is_empty()) {
                    tracing::info!(folder = %folder.display(), "usage is kept again, with what was used meanwhile");
                }
                kept.until = heard.or(kept.until);
            }
            Err(error) => {
                let reason = error.to_string();
                if kept.failed.as_ref() != Some(&reason) && self.quiet.may() {
                    tracing::warn!(reason, folder = %folder.display(), "usage is not kept over restarts for now; everything else goes on");
                }
                kept.failed = Some(reason);
                // After a failed write the database is not to be trusted with another: it is opened again.
                let mut state = self.state.lock();
                if kept.unsure.is_none() {
                    // Nobody knows whether it came to pass: it is added again as the same.
                    kept.unsure = Some((kept.number, rows));
                } else {
                    state.pending.merge(&rows);
                }
                state.bound(&self.merged);
            }
        }
    }

    /// Adds what could not be added before, and what has come since. A database that turns out to be damaged is put aside.
    fn add(&self, folder: &Path, kept: &mut Kept, rows: &Rows) -> Result<(), StoreError> {
        let told = |damage| tracing::error!(damage, "the database of usage was damaged; another is begun");
        let store = match kept.store.take() {
            Some(store) => store,
            None => {
                let (store, damage) = Store::open(folder)?;
                damage.into_iter().for_each(told);
                store
            }
        };
        let store = match self.add_to(&store, kept, rows) {
            Ok(()) => store,
            Err(StoreError::Damaged(reason)) => {
                drop(store);
                let (store, damage) = Store::begin_anew(folder, &reason)?;
                told(damage);
                self.add_to(&store, kept, rows)?;
                store
            }
            Err(error) => return Err(error),
        };
        kept.store = Some(store);
        Ok(())
    }

    fn add_to(&self, store: &Store, kept: &mut Kept, rows: &Rows) -> Result<(), StoreError> {
        if let Some((number, before)) = &kept.unsure {
            store.add((self.daemon, *number), before, None)?;
            kept.unsure = None;
        }
        let forget = self.forget_before(hour_now()).filter(|before| *before > kept.forgotten_before);
        store.add((self.daemon, kept.number), rows, forget)?;
        self.keep_accounts(store, kept)?;
        kept.forgotten_before = forget.unwrap_or(kept.forgotten_before);
        Ok(())
    }

    /// Adds what was kept of quotas when that can be read for the first time, and keeps what is known.
    fn keep_accounts(&self, store: &Store, kept: &mut Kept) -> Result<(), StoreError> {
        if !kept.has_accounts {
            let before = store.accounts()?.map(|text| serde_json::from_str(&text)).transpose();
            match before {
                Ok(before) => self.accounts.lock().merge(before.unwrap_or_default()),
                Err(error) => tracing::error!(%error, "what was kept of quotas cannot be read: they begin anew"),
            }
            kept.has_accounts = true;
        }
        let accounts = self.accounts.lock().clone();
        let text = serde_json::to_string(&accounts).map_err(|error| StoreError::Other(error.to_string()))?;
        store.keep_accounts(&text)
    }

    /// Before which hour everything is forgotten; nothing, while the wall clock has jumped since the daemon started: by a wrong
    /// date all would be old.
    fn forget_before(&self, hour: u64) -> Option<u64> {
        let (begin, date) = self.start;
        let by_wall = SystemTime::now().duration_since(date).ok()?;
        let agrees = by_wall.abs_diff(begin.elapsed()) < Duration::from_secs(HOUR);
        // An hour is a time in which a date that was wrong at the start has been set right.
        let calm = begin.elapsed() >= Duration::from_secs(HOUR);
        (agrees && calm).then(|| hour.saturating_sub(self.tuning.days.saturating_mul(24)))
    }

    /// What a database has, and the number of what this daemon has added last.
    fn read(&self, store: &Store, hour: u64) -> Result<(Rows, Option<u64>), StoreError> {
        Ok((store.read(hour)?, store.last(self.daemon)?))
    }

    /// Everything from an hour on, that of this moment included.
    fn rows(&self, hour: u64) -> (Rows, Result<(), Option<String>>) {
        let kept = self.kept.lock();
        let read = match (&kept.store, &self.tuning.folder) {
            (Some(store), _) => self.read(store, hour).map(Some),
            // It cannot be written now; what is there may be read all the same.
            (None, Some(folder)) => {
                Store::existing(folder).and_then(|store| store.map(|store| self.read(&store, hour)).transpose())
            }
            (None, None) => Ok(None),
        };
        let read = read.map(|read| read.unwrap_or_default());
        let (kept_rows, unread) = match read {
            Ok(read) => (read, None),
            Err(error) => ((Rows::default(), None), Some(format!("what was kept before cannot be read now: {error}"))),
        };
        let (mut rows, last) = kept_rows;
        if let Some((number, unsure)) = &kept.unsure
            && last < Some(*number)
        {
            rows.merge(&unsure.since(hour));
        }
        rows.merge(&self.state.lock().pending.since(hour));
        let reasons: Vec<String> = kept.failed.iter().cloned().chain(unread).collect();
        let told = match reasons[..] {
            [] if kept.store.is_some() => Ok(()),
            [] => Err(None),
            _ => Err(Some(reasons.join("; "))),
        };
        (rows, told)
    }
}

impl State {
    /// The row to which a tenant's use is added.
    fn row(&mut self, hour: u64, tenant: &str, user: u32) -> Key {
        let name = (tenant.to_owned(), user);
        let named = self.named.contains(&name) || (self.named.len() < MOST_IN_AN_HOUR && self.named.insert(name));
        (hour, user, if named { tenant.to_owned() } else { OTHERS.to_owned() })
    }

    /// Forgets those who have left some time ago, and the first of too many.
    fn forget_left(&mut self) {
        let mut left: Vec<(Instant, (String, u32, usize))> =
            self.tenants.iter().filter_map(|(key, known)| Some((known.left?, key.clone()))).collect();
        left.sort_unstable();
        let many = left.len().saturating_sub(MOST_LEFT);
        for (index, (at, key)) in left.into_iter().enumerate() {
            if index < many || at.elapsed() > LEFT_SHOWN {
                self.tenants.remove(&key);
            }
        }
    }

    /// Keeps what is pending within bounds: rows of tenants become one of each hour and user, and nothing is lost of the sums.
    fn bound(&mut self, merged: &AtomicU64) {
        if self.pending.tenants.len() <= MOST_PENDING {
            return;
        }
        let all = std::mem::take(&mut self.pending.tenants);
        merged.fetch_add(all.len() as u64, Ordering::Relaxed);
        for ((hour, user, _), meters) in all {
            self.pending.add((hour, user, OTHERS.to_owned()), &meters);
        }
    }
}

impl Control {
    /// Starts the thread that writes.
    pub(super) fn keep_usage(self: &Arc<Control>) -> std::io::Result<()> {
        // Nobody is let in before it is known who has used his quota; else nobody waits for what was kept.
        let at_once = self.settings().have_quotas();
        if at_once {
            self.usage.open();
        }
        let control = Arc::clone(self);
        threads::essential("usage", move || {
            if !at_once {
                control.usage.open();
            }
            loop {
                control.usage.wait();
                control.refresh_usage(Duration::ZERO);
                control.account_quotas();
                control.usage.write();
            }
        })
    }

    /// Tells those who come to `listener` what tenants use.
    pub(crate) fn tell_metrics(self: &Arc<Control>, listener: Listener) -> std::io::Result<()> {
        let (control, is_public) = (Arc::clone(self), listener.is_public());
        let told = move || {
            let snapshot = control.snapshot();
            // Of who comes by way of a port nobody knows who it is; of a unix socket, its mode has decided.
            let strangers = control.is_system() && is_public;
            let view = strangers.then(|| View::of_strangers(&control.tenants.lock()));
            metrics::render(view.map_or_else(|| snapshot.clone(), |view| view.snapshot(snapshot.clone())))
        };
        threads::essential("metrics", move || listener.serve(told))
    }

    /// Writes what there is, at the daemon's end.
    pub(crate) fn close_usage(&self) {
        self.refresh_usage(Duration::ZERO);
        self.account_quotas();
        self.usage.write();
    }

    /// What the device process says, asked for at most `age` ago: waits for its answer, for a while.
    fn refresh_usage(&self, age: Duration) {
        let now = Instant::now();
        let ask = |gpu: usize, number| self.gpus[gpu].device.send(ToDevice::Meter { number }, Vec::new()).is_ok();
        self.usage.refresh(now.checked_sub(age).unwrap_or(now), now + ANSWER_BOUND, ask);
    }

    /// Who has had how much since a moment, seconds since 1970.
    pub(super) fn report_usage(&self, since: Option<u64>, view: &View) -> Report {
        self.refresh_usage(Duration::ZERO);
        let (rows, kept) = self.usage.rows(since.unwrap_or(0) / HOUR);
        let rows = view.rows(rows);
        let until = self.usage.kept.lock().until;
        let unwritten_seconds = until.map(|until| until.elapsed().as_secs_f64());
        Report { unwritten_seconds, ..Report::of(&rows, since, kept, self.usage.merged.load(Ordering::Relaxed)) }
    }

    /// All that is known now.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.refresh_usage(FRESH);
        let scheduler = self.tenants.lock().scheduler().to_string();
        let kept = self.usage.is_kept.load(Ordering::Relaxed);
        let state = self.usage.state.lock();
        let tenant = |((tenant, user, gpu), known): (&(String, u32, usize), &Known)| TenantSnapshot {
            tenant: tenant.clone(),
            user: *user,
            gpu: *gpu,
            meters: known.meters,
            present: known.present.clone(),
        };
        let gpu = |(seat, known): (&Seat, &Asked)| {
            let (name, memory_bytes) = seat.device.facts().unwrap_or_default();
            GpuSnapshot { name, memory_bytes, time: known.time, device_deaths: seat.device.deaths() }
        };
        Snapshot {
            gpus: self.gpus.iter().zip(&state.gpus).map(gpu).collect(),
            at_seconds: self.usage.start.0.elapsed().as_secs_f64(),
            tenants: state.tenants.iter().map(tenant).collect(),
            scheduler,
            rows_merged: self.usage.merged.load(Ordering::Relaxed),
            kept,
        }
    }
}

impl Usage {
    /// Opens the database, if usage is to be kept.
    fn open(&self) {
        let mut kept = self.kept.lock();
        // As if something had failed before: it is opened, and it is said if that cannot be.
        kept.failed = self.tuning.folder.is_some().then(String::new);
        drop(kept);
        self.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(folder: Option<PathBuf>) -> Usage {
        Usage::new(Tuning { folder, days: 90, interval: Duration::from_secs(10) }, 2)
    }

    fn row(tenant: &str, kernels: u64) -> MeteredRow {
        let meters = Meters { kernels, ..Meters::default() };
        MeteredRow {
            tenant: tenant.into(),
            spender: Spender { user: 7, profile: None },
            meters,
            present: Some(Present::default()),
        }
    }

    fn kernels(rows: &Rows) -> u64 {
        rows.tenants.values().map(|meters| meters.kernels).sum()
    }

    const TIME: GpuTime = GpuTime { idle_ns: 3, overhead_ns: 2, wall_ns: 10 };

    #[test]
    fn a_place_that_cannot_be_written_loses_nothing_and_is_tried_again() {
        let base = std::env::temp_dir().join(format!("sundial-control-usage-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        std::fs::create_dir_all(&base).unwrap();
        let folder = base.join("state/sundial");
        // A file is where the folder would be.
        std::fs::write(base.join("state"), "").unwrap();
        let books = usage(Some(folder));
        books.open();
        for round in 1..=3 {
            books.hear_at(100, 0, Some(round), vec![row("a", 5)], TIME);
            books.write();
            let (rows, told) = books.rows(0);
            assert_eq!((kernels(&rows), rows.time[&100].wall_ns), (5 * round, 10 * round));
            assert!(matches!(told, Err(Some(_))), "{told:?}");
        }
        std::fs::remove_file(base.join("state")).unwrap();
        books.write();
        let (rows, told) = books.rows(0);
        assert_eq!((kernels(&rows), told), (15, Ok(())), "with what was used meanwhile");
        books.hear_at(100, 0, Some(4), vec![row("a", 1)], TIME);
        books.write();
        books.write();
        // Written, and the answer lost.
        let mut lost = Rows::default();
        lost.add((100, 7, "a".into()), &Meters { kernels: 1, ..Meters::default() });
        {
            let mut kept = books.kept.lock();
            (kept.unsure, kept.store) = (Some((kept.number, lost)), None);
        }
        assert_eq!(kernels(&books.rows(0).0), 16, "not shown twice");
        books.hear_at(100, 0, Some(5), vec![row("b", 2)], TIME);
        books.write();
        assert_eq!(kernels(&books.rows(0).0), 18, "and not written twice");
        drop(books.kept.lock().store.take());
        let again = usage(books.tuning.folder.clone());
        again.open();
        assert_eq!(kernels(&again.rows(0).0), 18, "and nothing twice");
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn there_is_one_question_at_a_time_however_many_wait() {
        let books = usage(None);
        let asked = AtomicU64::new(0);
        let bound = Instant::now() + Duration::from_secs(60);
        let refresh = |since| {
            // The other GPU's process is being started anew.
            books.refresh(since, bound, |gpu, _| {
                asked.fetch_add(u64::from(gpu == 0), Ordering::SeqCst);
                gpu == 0
            });
        };
        let answer = |number| books.hear_at(1, 0, Some(number), vec![], TIME);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..8).map(|_| scope.spawn(|| refresh(begun))).collect();
            while books.state.lock().gpus[0].open.is_none() {
                std::thread::yield_now();
            }
            answer(1);
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            assert_eq!(asked.load(Ordering::SeqCst), 1);
            // Who wants to know what is later asks again, after a question that was asked before.
            books.state.lock().gpus[0].open = Some((7, Instant::now()));
            std::thread::sleep(Duration::from_millis(1));
            let later = Instant::now();
            let waiter = scope.spawn({
                let refresh = &refresh;
                move || refresh(later)
            });
            answer(7);
            while books.state.lock().gpus[0].open.is_none() {
                std::thread::yield_now();
            }
            let number = books.state.lock().gpus[0].number;
            answer(number);
            waiter.join().unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), 2);
        });
        // Nobody waits for a device process that is not there.
        books.refresh(Instant::now(), bound, |_, _| false);
        books.state.lock().gpus[0].open = Some((9, Instant::now()));
        books.device_ended(0);
        books.refresh(Instant::now(), bound, |_, _| false);
    }

    #[test]
    fn who_waits_for_a_question_that_could_not_be_sent_asks_another() {
        let books = usage(None);
        let (since, deadline) = (Instant::now(), Instant::now() + Duration::from_secs(20));
        let (asked, released) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                books.refresh(since, deadline, |gpu, _| {
                    while gpu == 0 && !released.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    false
                });
            });
            while books.state.lock().gpus[0].open.is_none() {
                std::thread::yield_now();
            }
            let second = scope.spawn(|| {
                books.refresh(since, deadline, |gpu, _| {
                    asked.fetch_add(u64::from(gpu == 0), Ordering::SeqCst);
                    false
                });
            });
            std::thread::sleep(Duration::from_millis(20));
            released.store(true, Ordering::SeqCst);
            [first, second].into_iter().for_each(|waiter| waiter.join().unwrap());
        });
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_damaged_database_is_put_aside_whenever_that_is_found_and_loses_nothing_new() {
        let folder = std::env::temp_dir().join(format!("sundial-control-damage-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let books = usage(Some(folder.clone()));
        books.open();
        for n in 0..2000 {
            books.hear_at(n / 10, 0, Some(n), vec![row(&format!("tenant {n}"), 1)], TIME);
        }
        books.write();
        drop(books.kept.lock().store.take());
        // Pages that nobody reads at its opening.
        let file = folder.join("usage.redb");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[16384..].fill(0xa5);
        std::fs::write(&file, bytes).unwrap();
        books.hear_at(1, 0, Some(3000), vec![row("a", 5)], TIME);
        books.write();
        let (rows, told) = books.rows(0);
        assert_eq!((kernels(&rows), told), (5, Ok(())));
        let files = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(files, 2, "one that is used, one that was damaged");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_date_that_jumps_changes_labels_and_no_sums() {
        let books = usage(None);
        for (number, hour) in [500, 501, 499, 0, 1_000_000, 501].into_iter().enumerate() {
            books.hear_at(hour, 0, Some(number as u64), vec![row("a", 1)], TIME);
        }
        let (rows, told) = books.rows(0);
        assert_eq!((kernels(&rows), told), (6, Err(None)));
        assert_eq!(rows.sums().1.wall_ns, 60);
        assert_eq!(rows.tenants[&(501, 7, "a".into())].kernels, 2);
        assert_eq!(books.forget_before(1_000_000), None, "a daemon that has just started forgets nothing");
    }

    #[test]
    fn whoever_makes_up_names_fills_nothing() {
        let books = usage(None);
        let many = MOST_IN_AN_HOUR + 500;
        for n in 0..many {
            books.hear_at(9, 0, Some(n as u64), vec![row(&format!("t{n}"), 1)], GpuTime::default());
        }
        let rows = books.rows(0).0;
        assert_eq!((rows.tenants.len(), kernels(&rows)), (MOST_IN_AN_HOUR + 1, many as u64));
        assert_eq!(rows.tenants[&(9, 7, OTHERS.into())].kernels, 500);
        for hour in 10..30 {
            for n in 0..MOST_IN_AN_HOUR {
                books.hear_at(hour, 0, Some(0), vec![row(&format!("t{n}"), 1)], GpuTime::default());
            }
            books.write();
        }
        let rows = books.rows(0).0;
        assert!(rows.tenants.len() <= MOST_PENDING);
        assert_eq!(kernels(&rows), (many + 20 * MOST_IN_AN_HOUR) as u64);
        // Those who have left are shown for a while, if they are not too many.
        let gone: Vec<MeteredRow> =
            (0..many).map(|n| MeteredRow { present: None, ..row(&format!("t{n}"), 0) }).collect();
        books.hear_at(30, 0, Some(1), gone, GpuTime::default());
        assert_eq!(books.state.lock().tenants.len(), MOST_LEFT);
    }

    #[test]
    fn each_gpu_is_asked_and_heard_and_their_sums_are_kept() {
        let books = usage(None);
        let bound = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for gpu in [1, 0] {
                    while books.state.lock().gpus[gpu].open.is_none() {
                        std::thread::yield_now();
                    }
                    books.hear_at(1, gpu, Some(1), vec![row("a", 2)], TIME);
                }
            });
            books.refresh(Instant::now(), bound, |_, _| true);
        });
        assert!(books.state.lock().gpus.iter().all(|known| known.fresh.is_some()));
        let rows = books.rows(0).0;
        assert_eq!((kernels(&rows), rows.tenants.len(), rows.time[&1].wall_ns), (4, 1, 20));
        books.device_ended(1);
        let there = |gpu: usize| books.state.lock().tenants[&("a".to_owned(), 7, gpu)].present.is_some();
        assert!(there(0) && !there(1));
    }

    #[test]
    fn who_is_gone_with_the_device_process_is_not_there_any_more() {
        let books = usage(None);
        books.hear_at(1, 0, Some(1), vec![row("a", 1)], TIME);
        books.device_ended(0);
        assert!(books.state.lock().tenants.values().all(|known| known.present.is_none() && known.left.is_some()));
        books.hear_at(1, 0, Some(2), vec![row("a", 1)], TIME);
        assert!(books.state.lock().tenants.values().all(|known| known.present.is_some() && known.meters.kernels == 2));
    }
}
