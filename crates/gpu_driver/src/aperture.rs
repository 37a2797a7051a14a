//! A client's aperture: a memory file that shows its allocations in VRAM, and nothing else, so that another process reaches
//! them by plain loads and stores, as through a mapped BAR1.
//!
//! What an allocation had is taken out of the file before anybody else can have it. Who keeps the file has pages of its own
//! there then, as in any memory file that it might have made.

use std::sync::Arc;

use device_io::{DeviceBacking, VramOffset};
use gpu_spec::mmu::HUGE_PAGE;
use hostmem::Memfd;
use intervals::FreeRanges;
use parking_lot::Mutex;

use crate::budget::Budget;
use crate::mmio::Stuck;
use crate::vram::Run;

/// Entries of the host's memory map for each run that is shown: where VRAM is linear, itself and what follows.
const MAPS_OF_RUN: u32 = 2;

/// The file, and what of it shows nothing.
#[derive(Debug)]
pub(crate) struct Aperture {
    pub(crate) file: Arc<Memfd>,
    free: Mutex<FreeRanges>,
    budget: Arc<Budget>,
}

impl Aperture {
    /// For a client that may have `limit` bytes; `None` if there cannot be one.
    pub(crate) fn new(limit: u64, budget: &Arc<Budget>) -> Option<Aperture> {
        budget.charge_file().ok()?;
        // Twice what fits: where allocations come and go, there must be room in one piece. What is not shown takes nothing.
        let bytes = limit.checked_next_multiple_of(HUGE_PAGE).and_then(|bytes| bytes.checked_mul(2));
        match bytes.and_then(|bytes| Memfd::create("sundial-aperture", bytes).ok()) {
            Some(file) => Some(Aperture {
                free: Mutex::new(FreeRanges::new(0, file.bytes())),
                file: Arc::new(file),
                budget: Arc::clone(budget),
            }),
            None => {
                budget.refund_file();
                None
            }
        }
    }

    /// Shows runs, which are zero and nobody's yet, one behind the other; tells where in the file. `None` if they are not of a
    /// kind that can be shown, or there are no means.
    ///
    /// # Errors
    /// Nobody knows what is shown of them.
    pub(crate) fn show(&self, backing: &dyn DeviceBacking, runs: &[Run]) -> Result<Option<u64>, Stuck> {
        let whole = |run: &Run| run.offset.is_multiple_of(HUGE_PAGE) && run.bytes.is_multiple_of(HUGE_PAGE);
        let maps = map_entries(runs);
        if !runs.iter().all(whole) || self.budget.charge_spare_maps(maps).is_err() {
            return Ok(None);
        }
        let bytes = runs.iter().map(|run| run.bytes).sum();
        let taken = self.free.lock().take_lowest(bytes, HUGE_PAGE);
        let Some(offset) = taken else {
            self.budget.refund_maps(maps);
            return Ok(None);
        };
        let mut at = offset;
        for (done, run) in runs.iter().enumerate() {
            if let Err(error) = backing.lend_vram(VramOffset(run.offset), &self.file, at, run.bytes) {
                tracing::debug!(%error, "an allocation is not shown");
                take_back(backing, &runs[..done])?;
                self.free.lock().give(offset, bytes);
                self.budget.refund_maps(maps);
                return Ok(None);
            }
            at += run.bytes;
        }
        Ok(Some(offset))
    }

    /// Ends that runs are shown from `offset` on; they are zero afterwards. The device has let go of them.
    ///
    /// # Errors
    /// Some still are: they can be nobody else's.
    pub(crate) fn hide(&self, backing: &dyn DeviceBacking, runs: &[Run], offset: u64) -> Result<(), Stuck> {
        take_back(backing, runs)?;
        self.free.lock().give(offset, runs.iter().map(|run| run.bytes).sum());
        self.budget.refund_maps(map_entries(runs));
        Ok(())
    }
}

impl Drop for Aperture {
    fn drop(&mut self) {
        self.budget.refund_file();
    }
}

fn map_entries(runs: &[Run]) -> u32 {
    u32::try_from(runs.len()).unwrap_or(u32::MAX).saturating_mul(MAPS_OF_RUN)
}

fn take_back(backing: &dyn DeviceBacking, runs: &[Run]) -> Result<(), Stuck> {
    let back = |run: &Run| backing.take_back_vram(VramOffset(run.offset), run.bytes);
    runs.iter().try_for_each(back).map_err(|error| {
        log_limit::error!(%error, "VRAM stays in an aperture");
        Stuck("VRAM stays in an aperture")
    })
}
