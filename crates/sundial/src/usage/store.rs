//! What was used, kept over restarts: an embedded database (`redb`), of the control process alone.
//!
//! What each tenant of each user had in each hour, and what became of the GPU's time in it. Hours are of the wall
//! clock, in whole hours since 1970, and are labels only: how much it is was measured with a clock that never jumps. Rows only
//! grow.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use tenancy::metering::{GpuTime, Meters, WAIT_RANGES, Waits};

/// Seconds of an hour.
pub(crate) const HOUR: u64 = 3600;
/// The database's file, in the folder of usage.
const FILE: &str = "usage.redb";
/// Its name while it is being made.
const NEW_FILE: &str = "usage.redb.new";
/// Memory that the database may keep of its file.
const CACHE_BYTES: usize = 4 << 20;

/// The hour, the user, and the tenant's name.
pub(crate) type Key = (u64, u32, String);
type Value = (u64, u64, u128, u128, u64, u64, u64, u64, u64, [u64; WAIT_RANGES]);

const TENANTS: TableDefinition<'_, (u64, u32, &str), Value> = TableDefinition::new("tenants");
/// Idle, overhead, wall.
const TIME: TableDefinition<'_, u64, (u64, u64, u64)> = TableDefinition::new("gpu");

/// What was added last, by which daemon: its start and a number. Whoever does not know whether that came to pass asks again.
const LAST: TableDefinition<'_, u64, u64> = TableDefinition::new("last");

/// What users have used of their quotas, as text.
const ACCOUNTS: TableDefinition<'_, (), &str> = TableDefinition::new("quotas");

/// A daemon's start, and a number that grows: rows of a number are added once, however often.
pub(crate) type Batch = (u64, u64);

/// Rows that are to be added.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rows {
    pub(crate) tenants: BTreeMap<Key, Meters>,
    pub(crate) time: BTreeMap<u64, GpuTime>,
}

/// What is not kept, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{path}: {reason}")]
    Place { path: String, reason: io::Error },
    /// A file that is no database, or of which something is lost.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// Another process has it.
    #[error("another process uses the database")]
    Taken,
    #[error("the database: {0}")]
    Other(String),
}

/// The database, open: one process has it at a time.
#[derive(Debug)]
pub(crate) struct Store {
    /// There until it is closed.
    database: Option<Database>,
}

impl Drop for Store {
    fn drop(&mut self) {
        let database = self.database.take();
        // A damaged one, in which something panicked before, panics again when it is closed.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
    }
}

impl Rows {
    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty() && self.time.is_empty()
    }

    /// Adds what somebody had.
    pub(crate) fn add(&mut self, key: Key, meters: &Meters) {
        let row = self.tenants.entry(key).or_default();
        *row = row.plus(meters);
    }

    pub(crate) fn add_time(&mut self, hour: u64, time: &GpuTime) {
        let row = self.time.entry(hour).or_default();
        *row = row.plus(time);
    }

    /// Adds all of another's.
    pub(crate) fn merge(&mut self, other: &Rows) {
        for (key, meters) in &other.tenants {
            self.add(key.clone(), meters);
        }
        for (hour, time) in &other.time {
            self.add_time(*hour, time);
        }
    }

    /// Those from an hour on.
    pub(crate) fn since(&self, hour: u64) -> Rows {
        Rows {
            tenants: self
                .tenants
                .iter()
                .filter(|(key, _)| key.0 >= hour)
                .map(|(key, row)| (key.clone(), *row))
                .collect(),
            time: self.time.range(hour..).map(|(hour, time)| (*hour, *time)).collect(),
        }
    }

    /// Of each tenant and user, whatever the hour; and of the GPU.
    pub(crate) fn sums(&self) -> (BTreeMap<(String, u32), Meters>, GpuTime) {
        let mut tenants = BTreeMap::<(String, u32), Meters>::new();
        for ((_, user, tenant), meters) in &self.tenants {
            let sum = tenants.entry((tenant.clone(), *user)).or_default();
            *sum = sum.plus(meters);
        }
        (tenants, self.time.values().fold(GpuTime::default(), |sum, time| sum.plus(time)))
    }
}

/// The present hour, as a label.
pub(crate) fn hour_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / HOUR)
}

impl Store {
    /// Opens the database in `folder`, which is made if need be; what is damaged is put aside and begun anew, and the second
    /// answer says so.
    pub(crate) fn open(folder: &Path) -> Result<(Store, Option<String>), StoreError> {
        let place = |reason| StoreError::Place { path: folder.display().to_string(), reason };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(place)?;
        if !folder.join(FILE).exists() {
            return Ok((Store::create(folder)?, None));
        }
        match Store::open_file(&folder.join(FILE)).and_then(Store::with_tables) {
            Err(StoreError::Damaged(reason)) => {
                Store::begin_anew(folder, &reason).map(|(store, damage)| (store, Some(damage)))
            }
            opened => Ok((opened?, None)),
        }
    }

    /// Puts the file aside that is damaged, and begins another; says where the old one is.
    pub(crate) fn begin_anew(folder: &Path, reason: &str) -> Result<(Store, String), StoreError> {
        let aside = put_aside(&folder.join(FILE))
            .map_err(|reason| StoreError::Place { path: folder.display().to_string(), reason })?;
        Ok((Store::create(folder)?, format!("{reason}; it is kept as {}", aside.display())))
    }

    /// Makes one where none is. Until it is whole it has another name: what a full disk leaves of it is not taken for damaged.
    fn create(folder: &Path) -> Result<Store, StoreError> {
        let new = folder.join(NEW_FILE);
        let whole = Store::open_file(&new).and_then(Store::with_tables);
        if whole.as_ref().is_err_and(|error| !matches!(error, StoreError::Taken)) {
            let _ = std::fs::remove_file(&new);
        }
        let store = whole?;
        // Who makes one has the new file to itself. If another one was made before that, it is not replaced.
        if folder.join(FILE).exists() {
            let _ = std::fs::remove_file(&new);
            return Err(StoreError::Taken);
        }
        std::fs::rename(&new, folder.join(FILE))
            .map_err(|reason| StoreError::Place { path: folder.display().to_string(), reason })?;
        Ok(store)
    }

    /// Itself, with all of its tables: they can be opened, and are what they should be.
    fn with_tables(self) -> Result<Store, StoreError> {
        self.attempt(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(TENANTS)?;
            transaction.open_table(TIME)?;
            transaction.open_table(LAST)?;
            transaction.commit()?;
            Ok(())
        })?;
        Ok(self)
    }

    /// Opens one that is there, to read it: `None` if there is none.
    pub(crate) fn existing(folder: &Path) -> Result<Option<Store>, StoreError> {
        let file = folder.join(FILE);
        if file.exists() { Store::open_file(&file).map(Some) } else { Ok(None) }
    }

    fn open_file(file: &Path) -> Result<Store, StoreError> {
        let open = || -> Result<Store, redb::Error> {
            let mut builder = Database::builder();
            let mut database = builder.set_cache_size(CACHE_BYTES).create(file)?;
            // Sums over all pages: where somebody has written into the file, it may panic while another panic is under way, which nothing
            // catches.
            database.check_integrity()?;
            Ok(Store { database: Some(database) })
        };
        catch_unwind(AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(redb::Error::Corrupted("it could not be read".into())))
            .map_err(StoreError::from)
    }

    /// Does something with it; a panic is damage.
    fn attempt<T>(&self, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let database = self.database.as_ref().ok_or_else(|| StoreError::Other("it is closed".into()))?;
        catch_unwind(AssertUnwindSafe(|| work(database)))
            .unwrap_or_else(|_| Err(redb::Error::Corrupted("it could not be worked with".into())))
            .map_err(StoreError::from)
    }

    /// Adds rows, all or none, unless those of this number were added before; and forgets the hours before one, if that is said.
    pub(crate) fn add(&self, batch: Batch, rows: &Rows, forget_before: Option<u64>) -> Result<(), StoreError> {
        self.attempt(|database| {
            let transaction = database.begin_write()?;
            let (daemon, number) = batch;
            {
                let mut last = transaction.open_table(LAST)?;
                if last.get(daemon)?.is_some_and(|last| last.value() >= number) {
                    return Ok(());
                }
                // Nobody asks for what a daemon did that is gone.
                last.retain(|other, _| other == daemon)?;
                last.insert(daemon, number)?;
                let mut tenants = transaction.open_table(TENANTS)?;
                for ((hour, user, tenant), more) in &rows.tenants {
                    let key = (*hour, *user, tenant.as_str());
                    let before = tenants.get(key)?.map(|value| from_value(&value.value())).unwrap_or_default();
                    tenants.insert(key, to_value(&before.plus(more)))?;
                }
                let mut times = transaction.open_table(TIME)?;
                for (hour, more) in &rows.time {
                    let before = times.get(*hour)?.map(|value| from_times(value.value())).unwrap_or_default();
                    let GpuTime { idle_ns, overhead_ns, wall_ns } = before.plus(more);
                    times.insert(*hour, (idle_ns, overhead_ns, wall_ns))?;
                }
                if let Some(before) = forget_before {
                    tenants.retain_in(..(before, 0, ""), |_, _| false)?;
                    times.retain_in(..before, |_, _| false)?;
                }
            }
            transaction.commit()?;
            Ok(())
        })
    }

    /// The number of what a daemon has added last.
    pub(crate) fn last(&self, daemon: u64) -> Result<Option<u64>, StoreError> {
        self.attempt(|database| match database.begin_read()?.open_table(LAST) {
            Ok(last) => Ok(last.get(daemon)?.map(|number| number.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// Keeps what users have used of their quotas.
    pub(crate) fn keep_accounts(&self, text: &str) -> Result<(), StoreError> {
        self.attempt(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(ACCOUNTS)?.insert((), text)?;
            transaction.commit()?;
            Ok(())
        })
    }

    /// What was kept of that.
    pub(crate) fn accounts(&self) -> Result<Option<String>, StoreError> {
        self.attempt(|database| match database.begin_read()?.open_table(ACCOUNTS) {
            Ok(accounts) => Ok(accounts.get(())?.map(|text| text.value().to_owned())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// What was added from an hour on.
    pub(crate) fn read(&self, hour: u64) -> Result<Rows, StoreError> {
        self.attempt(|database| {
            let transaction = database.begin_read()?;
            let mut rows = Rows::default();
            match transaction.open_table(TENANTS) {
                Ok(tenants) => {
                    for entry in tenants.range((hour, 0, "")..)? {
                        let (key, value) = entry?;
                        let (hour, user, tenant) = key.value();
                        rows.add((hour, user, tenant.to_owned()), &from_value(&value.value()));
                    }
                }
                Err(TableError::TableDoesNotExist(_)) => {}
                Err(error) => return Err(error.into()),
            }
            match transaction.open_table(TIME) {
                Ok(times) => {
                    for entry in times.range(hour..)? {
                        let (hour, time) = entry?;
                        rows.add_time(hour.value(), &from_times(time.value()));
                    }
                }
                Err(TableError::TableDoesNotExist(_)) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(rows)
        })
    }
}

fn put_aside(file: &Path) -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let aside = file.with_extension(format!("redb.damaged-{now}"));
    std::fs::rename(file, &aside)?;
    Ok(aside)
}

fn to_value(meters: &Meters) -> Value {
    let Meters { gpu_ns, compile_ns, memory_byte_ns, reserved_byte_ns, bytes_in, bytes_out, kernels, copies, waits } =
        *meters;
    let Waits { counts, sum_ns } = waits;
    (gpu_ns, compile_ns, memory_byte_ns, reserved_byte_ns, bytes_in, bytes_out, kernels, copies, sum_ns, counts)
}

fn from_value(value: &Value) -> Meters {
    let (gpu_ns, compile_ns, memory_byte_ns, reserved_byte_ns, bytes_in, bytes_out, kernels, copies, sum_ns, counts) =
        *value;
    let waits = Waits { counts, sum_ns };
    Meters { gpu_ns, compile_ns, memory_byte_ns, reserved_byte_ns, bytes_in, bytes_out, kernels, copies, waits }
}

fn from_times((idle_ns, overhead_ns, wall_ns): (u64, u64, u64)) -> GpuTime {
    GpuTime { idle_ns, overhead_ns, wall_ns }
}

impl From<redb::Error> for StoreError {
    fn from(error: redb::Error) -> StoreError {
        match error {
            redb::Error::Corrupted(reason) => StoreError::Damaged(reason),
            redb::Error::UpgradeRequired(_) | redb::Error::TableTypeMismatch { .. } => {
                StoreError::Damaged(error.to_string())
            }
            redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                StoreError::Damaged(error.to_string())
            }
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => StoreError::Taken,
            other => StoreError::Other(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A folder of a test's own; it goes with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("sundial-usage-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn meters(n: u64) -> Meters {
        let mut waits = Waits { sum_ns: n, ..Waits::default() };
        waits.counts[n as usize % WAIT_RANGES] = n;
        Meters { gpu_ns: n, memory_byte_ns: u128::from(n) << 70, kernels: n / 2, waits, ..Meters::default() }
    }

    fn rows(of: &[(u64, u32, &str, u64)]) -> Rows {
        let mut rows = Rows::default();
        for &(hour, user, tenant, n) in of {
            rows.add((hour, user, tenant.into()), &meters(n));
            rows.add_time(hour, &GpuTime { idle_ns: n, overhead_ns: 1, wall_ns: 2 * n + 1 });
        }
        rows
    }

    #[test]
    fn what_is_added_is_found_after_it_was_closed_and_only_once() {
        let folder = Folder::new("kept");
        let first = rows(&[(7, 1000, "a", 5), (7, 1001, "a", 6), (8, 1000, "b", 9)]);
        let second = rows(&[(8, 1000, "b", 1), (9, 0, "c", 3)]);
        for (number, rows) in [&first, &second].into_iter().enumerate() {
            let (store, damage) = Store::open(&folder.0).unwrap();
            assert_eq!(damage, None);
            let batch = (99, number as u64);
            store.add(batch, rows, None).unwrap();
            assert_eq!(store.last(99).unwrap(), Some(batch.1));
            // Whoever does not know that it was added may add it again.
            store.add(batch, rows, None).unwrap();
        }
        let mut all = first.clone();
        all.merge(&second);
        let store = Store::existing(&folder.0).unwrap().unwrap();
        assert_eq!(store.read(0).unwrap(), all);
        assert_eq!(store.read(8).unwrap(), all.since(8));
        assert_eq!(all.sums().0[&("b".into(), 1000)], meters(9).plus(&meters(1)));
        assert!(matches!(Store::existing(&folder.0), Err(StoreError::Taken)));
        store.add((100, 0), &Rows::default(), Some(8)).unwrap();
        assert_eq!(store.last(99).unwrap(), None);
        assert_eq!(store.read(0).unwrap(), all.since(8), "the past is forgotten when it is to be");
    }

    #[test]
    fn what_is_damaged_is_put_aside_and_not_lost() {
        let folder = Folder::new("damaged");
        assert!(Store::existing(&folder.0).unwrap().is_none());
        std::fs::create_dir_all(&folder.0).unwrap();
        std::fs::write(folder.0.join(FILE), b"this is no database, whatever its name says".repeat(1000)).unwrap();
        let (store, damage) = Store::open(&folder.0).unwrap();
        assert!(damage.is_some_and(|text| text.contains("damaged-")));
        store.add((1, 1), &rows(&[(1, 2, "a", 3)]), None).unwrap();
        let names: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn a_database_of_other_tables_is_put_aside_as_damaged() {
        let folder = Folder::new("other");
        std::fs::create_dir_all(&folder.0).unwrap();
        let other = Database::create(folder.0.join(FILE)).unwrap();
        let transaction = other.begin_write().unwrap();
        transaction.open_table(TableDefinition::<u64, u64>::new("tenants")).unwrap().insert(1, 2).unwrap();
        transaction.commit().unwrap();
        drop(other);
        let (store, damage) = Store::open(&folder.0).unwrap();
        assert!(damage.is_some_and(|text| text.contains("damaged-")));
        store.add((1, 1), &rows(&[(1, 2, "a", 3)]), None).unwrap();
    }

    #[test]
    fn where_nothing_can_be_written_that_is_said() {
        let folder = Folder::new("file");
        std::fs::write(&folder.0, b"a file").unwrap();
        assert!(matches!(Store::open(&folder.0), Err(StoreError::Place { .. })));
        std::fs::remove_file(&folder.0).unwrap();
        // A disk that is full, as far as this can be had without one: nothing is left, and once there is room it can be made.
        std::fs::create_dir_all(&folder.0).unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.0.join(NEW_FILE)).unwrap();
        assert!(Store::open(&folder.0).is_err());
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
        let (store, damage) = Store::open(&folder.0).unwrap();
        assert_eq!(damage, None);
        store.add((1, 1), &rows(&[(1, 2, "a", 3)]), None).unwrap();
    }

    #[test]
    fn one_that_somebody_else_is_making_is_left_alone() {
        let folder = Folder::new("making");
        std::fs::create_dir_all(&folder.0).unwrap();
        let making = Database::create(folder.0.join(NEW_FILE)).unwrap();
        assert!(Store::open(&folder.0).is_err_and(|error| matches!(error, StoreError::Taken)));
        assert!(folder.0.join(NEW_FILE).exists() && !folder.0.join(FILE).exists());
        drop(making);
        // Who made it has ended before it was done.
        assert_eq!(Store::open(&folder.0).unwrap().1, None);
    }

    #[test]
    fn one_that_somebody_else_has_made_meanwhile_is_not_replaced() {
        let folder = Folder::new("made");
        let (store, _) = Store::open(&folder.0).unwrap();
        let all = rows(&[(1, 2, "a", 3)]);
        // As by another process that found none a moment ago.
        assert!(Store::create(&folder.0).is_err_and(|error| matches!(error, StoreError::Taken)));
        assert!(!folder.0.join(NEW_FILE).exists());
        store.add((1, 1), &all, None).unwrap();
        drop(store);
        assert_eq!(Store::open(&folder.0).unwrap().0.read(0).unwrap(), all);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn bytes_that_change_in_the_file_never_panic(at in 0usize..100_000, with in any::<u8>(), more in 0u64..4) {
            let folder = Folder::new(&format!("flipped-{at}-{with}"));
            {
                let (store, _) = Store::open(&folder.0).unwrap();
                for n in 0..=more {
                    store.add((1, n), &rows(&[(n, 1, "a", n), (n, 2, "b", 1)]), None).unwrap();
                }
            }
            let file = folder.0.join(FILE);
            let mut bytes = std::fs::read(&file).unwrap();
            // Most of the file is zeros that mean nothing.
            let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
            bytes[written[at % written.len()]] = with;
            std::fs::write(&file, bytes).unwrap();
            if let Ok((store, _)) = Store::open(&folder.0) {
                let _ = store.read(0);
                let _ = store.add((2, 1), &rows(&[(1, 1, "a", 1)]), None);
            }
        }
    }
}
