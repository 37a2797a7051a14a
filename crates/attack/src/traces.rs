//! What a daemon's processes have: to see what attacks leave behind.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What a process holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Traces {
    pub(crate) descriptors: i64,
    pub(crate) maps: i64,
    pub(crate) threads: i64,
    pub(crate) memory_kib: i64,
}

/// More of something than before is left behind if it is more than this: caches of bounded size are no traces.
pub(crate) const TOLERANCE: Traces = Traces { descriptors: 16, maps: 600, threads: 4, memory_kib: 192 << 10 };

impl Traces {
    /// Of a process.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn of(pid: u32) -> Result<Traces> {
        let path = |name: &str| format!("/proc/{pid}/{name}");
        let count =
            |name: &str| -> Result<i64> { Ok(fs::read_dir(path(name)).with_context(|| path(name))?.count() as i64) };
        let maps = fs::read_to_string(path("maps")).with_context(|| path("maps"))?;
        let status = fs::read_to_string(path("status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
        let memory_kib = resident.split_whitespace().next().unwrap_or("0").parse().unwrap_or(0);
        Ok(Traces { descriptors: count("fd")?, maps: maps.lines().count() as i64, threads: count("task")?, memory_kib })
    }

    /// Waits until nothing but memory changes any more; not for ever: some work is always under way.
    ///
    /// # Errors
    /// The process is gone.
    pub(crate) fn settle(pid: u32) -> Result<()> {
        let mut last = Traces::of(pid)?;
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(300));
            let now = Traces::of(pid)?;
            if (Traces { memory_kib: last.memory_kib, ..now }) == last {
                break;
            }
            last = now;
        }
        Ok(())
    }

    /// What there is more of than there was `before`.
    pub(crate) fn since(self, before: Traces) -> Traces {
        Traces {
            descriptors: self.descriptors - before.descriptors,
            maps: self.maps - before.maps,
            threads: self.threads - before.threads,
            memory_kib: self.memory_kib - before.memory_kib,
        }
    }

    /// No more than [`TOLERANCE`].
    pub(crate) fn is_little(self) -> bool {
        self.descriptors <= TOLERANCE.descriptors
            && self.maps <= TOLERANCE.maps
            && self.threads <= TOLERANCE.threads
            && self.memory_kib <= TOLERANCE.memory_kib
    }

    pub(crate) fn json(self) -> Value {
        json!({
            "descriptors": self.descriptors,
            "maps": self.maps,
            "threads": self.threads,
            "memory_kib": self.memory_kib,
        })
    }
}

/// The daemon's device process: its child that was started as `device`.
pub(crate) fn device_of(daemon: u32) -> Option<u32> {
    descendants(daemon).into_iter().find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"device")
    })
}

/// Memory of its own that a process and all below it have, KiB: what is shared with tenants does not count.
pub(crate) fn own_memory_kib(of: u32) -> i64 {
    let own = |pid: u32| -> Option<i64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    descendants(of).into_iter().chain([of]).filter_map(own).sum()
}

/// Looks at the memory of a daemon's processes until it is dropped.
pub(crate) struct Peak {
    stop: Arc<AtomicBool>,
    most_kib: Arc<AtomicI64>,
    before_kib: i64,
}

impl Peak {
    pub(crate) fn watch(daemon: u32) -> Peak {
        let (stop, most_kib) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
        let (stopped, most) = (Arc::clone(&stop), Arc::clone(&most_kib));
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                most.fetch_max(own_memory_kib(daemon), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Peak { stop, most_kib, before_kib: own_memory_kib(daemon) }
    }

    /// The most that there was more of than at the beginning, KiB.
    pub(crate) fn growth_kib(&self) -> i64 {
        self.most_kib.load(Ordering::Relaxed) - self.before_kib
    }
}

impl Drop for Peak {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// All processes below one.
pub(crate) fn descendants(of: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut work = vec![of];
    while let Some(pid) = work.pop() {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children: Vec<u32> = children.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            found.extend(&children);
            work.extend(children);
        }
    }
    found
}
