//! A guest's VRAM, in blocks of 2 MiB: which of them it has, and where the device has them.
//!
//! ```text
//!   the guest's offsets   0 ── has ── hole ── has ── most     a hole: given back, or never given
//!   its file              the same offsets: what BAR1 shows, where it may be mapped
//!   the device's          wherever there was room: runs of the lease
//! ```
//!
//! A block is zero whenever it becomes the guest's, and scrubbed when it goes. In the file a block that went is a hole as well:
//! a guest that keeps it mapped finds zeros there, and what it writes afterwards is in pages of its own file, which the device
//! knows nothing of ([`Partition::reclaim`] takes them away again).

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use device_io::VramOffset;
use gpu_driver::{Lease, VramRange};
use gpu_spec::balloon::BLOCK_BYTES;
use hostmem::Memfd;
use intervals::{Cut, IntervalMap};
use rustix::fs::fstat;

/// Why a guest does not get VRAM.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoBlocks {
    #[error("the device has no VRAM left for it")]
    Vram,
    #[error("it takes more of the host's memory map than the guest may have")]
    Maps,
    #[error("VRAM cannot be lent")]
    Lend(#[from] io::Error),
    /// It may go on showing its place in the guest's file: nothing else may be shown there.
    #[error("some of its VRAM is given up for good, because the device may still use it")]
    GivenUp,
}

/// The VRAM of one guest.
#[derive(Debug)]
pub(crate) struct Partition {
    lease: Arc<Lease>,
    /// The device's offset by the guest's; parts that follow each other in both are one.
    parts: IntervalMap<u64>,
    most: u64,
    /// What BAR1 shows. Each part of the partition is lent as the same part of it.
    file: Option<Arc<Memfd>>,
    /// Entries of the host's memory map that are charged.
    maps: u32,
}

impl Partition {
    /// VRAM of `bytes`, from 0 on, of which there may be `most`. If it is to be `mapped` and can be lent, it is a file.
    pub(crate) fn new(lease: Arc<Lease>, most: u64, bytes: u64, mapped: bool) -> Result<Partition, NoBlocks> {
        let mut partition = Partition { lease, parts: IntervalMap::new(), most, file: None, maps: 0 };
        if mapped {
            partition.file = new_file(most);
            match partition.fill(0..bytes) {
                Err(NoBlocks::Lend(error)) => {
                    log_limit::warn!(%error, "VRAM cannot be lent: accesses to BAR1 are trapped");
                    partition.file = None;
                }
                done => return done.map(|()| partition),
            }
        }
        partition.fill(0..bytes)?;
        Ok(partition)
    }

    /// What the guest has around an offset, and where the device has the beginning of that.
    pub(crate) fn get(&self, at: u64) -> Option<(Range<u64>, u64)> {
        self.parts.get(at).map(|(range, host)| (range, *host))
    }

    /// Bytes that the guest has.
    pub(crate) fn held(&self) -> u64 {
        self.parts.iter().map(|(range, _)| range.end - range.start).sum()
    }

    /// All that the guest has, by the device's offsets.
    pub(crate) fn runs(&self) -> impl Iterator<Item = VramRange> {
        self.parts.iter().map(|(range, host)| VramRange { offset: *host, bytes: range.end - range.start })
    }

    /// How many bytes from `at` on the guest has without a hole.
    pub(crate) fn has_from(&self, at: u64) -> u64 {
        self.parts.gaps(at..self.most).next().map_or(self.most.saturating_sub(at), |gap| gap.start - at)
    }

    /// How many bytes from `at` on the guest has none of.
    pub(crate) fn lacks_from(&self, at: u64) -> u64 {
        self.parts.gaps(at..self.most).next().filter(|gap| gap.start == at).map_or(0, |gap| gap.end - at)
    }

    /// The file that shows the guest's VRAM and nothing else, if it may be mapped.
    pub(crate) fn file(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::new(self.file.as_ref()?.try_clone().ok()?.into_fd()))
    }

    /// Gives the guest a range (whole blocks, none of which it has), in as few runs as there are.
    ///
    /// # Errors
    /// Why it has none of it.
    pub(crate) fn fill(&mut self, range: Range<u64>) -> Result<(), NoBlocks> {
        let (mut at, mut most) = (range.start, range.end - range.start);
        while at < range.end {
            most = most.min(range.end - at);
            let done = match self.lease.take_vram(most, BLOCK_BYTES) {
                Some(run) => self.add(at, run).inspect_err(|_| self.lease.put_vram(run)).map(|()| at += run.bytes),
                None if most > BLOCK_BYTES => {
                    most = (most / 2).next_multiple_of(BLOCK_BYTES);
                    Ok(())
                }
                None => Err(NoBlocks::Vram),
            };
            if let Err(error) = done {
                let runs = self.cut(range.start..at);
                return self.give(&runs, true).and(Err(error));
            }
        }
        Ok(())
    }

    /// Adds a run of the lease at an offset of the guest's.
    fn add(&mut self, at: u64, run: VramRange) -> Result<(), NoBlocks> {
        if !self.book(self.parts.len() + 1) {
            return Err(NoBlocks::Maps);
        }
        if let Some(file) = &self.file {
            self.lease.backing().lend_vram(VramOffset(run.offset), file, at, run.bytes)?;
        }
        let follows = |host: &u64, bytes: u64, next: &u64| host + bytes == *next;
        let added = self.parts.insert_joined(at..at + run.bytes, run.offset, follows);
        debug_assert!(added.is_ok(), "the guest has it already");
        self.book(self.parts.len());
        Ok(())
    }

    /// Whether a range can be cut out: a hole in the middle takes an entry of the host's memory map.
    pub(crate) fn may_cut(&mut self, range: Range<u64>) -> bool {
        self.book(self.parts.len() + usize::from(self.parts.splits(range)))
    }

    /// Takes a range from the guest; gives what the device has of it. Nothing may lead there when it is
    /// [given back](Partition::give).
    pub(crate) fn cut(&mut self, range: Range<u64>) -> Vec<VramRange> {
        let cut = self.parts.cut_with(range, |host, skip| host + skip);
        let run = |Cut { whole, part, value }: Cut<u64>| VramRange {
            offset: value + (part.start - whole.start),
            bytes: part.end - part.start,
        };
        cut.into_iter().map(run).collect()
    }

    /// Gives runs back to whom they came from; `let_go`: the device is known not to use them.
    ///
    /// # Errors
    /// [`NoBlocks::GivenUp`].
    pub(crate) fn give(&mut self, runs: &[VramRange], let_go: bool) -> Result<(), NoBlocks> {
        let mut given = Ok(());
        for run in runs {
            if let_go && self.take_back(*run) {
                self.put(*run);
            } else {
                self.lease.quarantine_vram(*run);
                given = Err(NoBlocks::GivenUp);
            }
        }
        self.book(self.parts.len());
        given
    }

    /// Makes a run that is plain VRAM free for others; not if something that has not stopped may still use it.
    fn put(&self, run: VramRange) {
        if self.lease.is_stuck() { self.lease.quarantine_vram(run) } else { self.lease.put_vram(run) }
    }

    /// Makes a run plain VRAM again, all zero; false if that cannot be.
    fn take_back(&self, run: VramRange) -> bool {
        if self.file.is_none() {
            return true;
        }
        let taken = self.lease.backing().take_back_vram(VramOffset(run.offset), run.bytes);
        taken.inspect_err(|error| tracing::error!(%error, "lent VRAM is not given back")).is_ok()
    }

    /// As new, for the next driver: `bytes` from 0 on, all zero, or as many as there are; with `leave`, in another file, since
    /// the last guest may have kept the old one. Nothing leads there.
    ///
    /// # Errors
    /// There is not all of it; or (`Lend`, `GivenUp`) nobody knows what there is, and nobody may use it.
    pub(crate) fn renew(&mut self, bytes: u64, leave: bool) -> Result<(), NoBlocks> {
        let whole = self.has_from(0) == bytes && self.held() == bytes;
        if whole && !leave {
            self.runs().for_each(|run| self.scrub(run));
            return Ok(());
        }
        let runs = self.cut(0..self.most);
        let (taken, lost): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| self.take_back(*run));
        lost.iter().for_each(|run| self.lease.quarantine_vram(*run));
        if !lost.is_empty() && !leave {
            taken.into_iter().for_each(|run| self.put(run));
            return Err(NoBlocks::GivenUp);
        }
        if leave && self.file.is_some() {
            self.file = new_file(self.most);
        }
        let mut at = 0;
        let mut renewed = Ok(());
        for run in taken {
            let most = if renewed.is_ok() { bytes - at } else { 0 };
            let mut kept = VramRange { bytes: run.bytes.min(most), ..run };
            if kept.bytes > 0 {
                self.scrub(kept);
                renewed = self.add(at, kept);
                if renewed.is_err() {
                    kept.bytes = 0;
                }
                at += kept.bytes;
            }
            if kept.bytes < run.bytes {
                self.put(VramRange { offset: run.offset + kept.bytes, bytes: run.bytes - kept.bytes });
            }
        }
        self.book(self.parts.len());
        renewed?;
        if at < bytes { self.fill(at..bytes) } else { Ok(()) }
    }

    fn scrub(&self, VramRange { offset, bytes }: VramRange) {
        let backing = self.lease.backing();
        if backing.discard_vram(VramOffset(offset), bytes).is_err() {
            backing.fill_vram(VramOffset(offset), bytes as usize, 0);
        }
    }

    /// Whether there are holes, of which a guest that may map its VRAM can make memory of the host's.
    pub(crate) fn has_holes(&self) -> bool {
        self.file.is_some() && self.held() < self.most
    }

    /// Takes away what somebody has written where the guest has no VRAM: it is memory of the host's that nobody counts. True
    /// if there was something.
    pub(crate) fn reclaim(&self) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| self.has_holes()) else { return false };
        let taken = fstat(file.as_fd()).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
        if taken <= self.held() {
            return false;
        }
        let punched = self.parts.gaps(0..self.most).try_for_each(|gap| file.punch(gap.start, gap.end - gap.start));
        punched.is_ok()
    }

    /// Has entries of the host's memory map for so many parts: one, and one for what follows. False if that is too much.
    fn book(&mut self, parts: usize) -> bool {
        let maps = if self.file.is_some() { u32::try_from(2 * parts).unwrap_or(u32::MAX) } else { 0 };
        let booked = self.lease.change_maps(self.maps, maps);
        if booked {
            self.maps = maps;
        }
        booked
    }
}

/// A file for all that there may be.
fn new_file(most: u64) -> Option<Arc<Memfd>> {
    let file = Memfd::create(vfio_user::WATCHED_MEMORY, most);
    let file = file.inspect_err(|error| tracing::warn!(%error, "no file for VRAM: accesses to BAR1 are trapped"));
    file.ok().map(Arc::new)
}

impl Drop for Partition {
    fn drop(&mut self) {
        // The rest goes with the lease, which knows whether everything has stopped.
        let runs: Vec<VramRange> = self.runs().collect();
        let lost = runs.into_iter().filter(|run| !self.take_back(*run));
        lost.for_each(|run| self.lease.quarantine_vram(run));
        let _ = self.lease.change_maps(self.maps, 0);
    }
}
