//! What there is on a machine, and what it costs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hostmem::{Mapping, Memfd, PAGE};

#[cfg(target_arch = "x86_64")]
use crate::{Decode, Written};
use crate::{Fault, Kind, Tracker, Why, WriteTrap};

/// Pages of the mapping with which it is tried.
const PAGES: u64 = 32;
/// Trials, of which the median counts.
const ROUNDS: usize = 5;

/// What a kind costs on this machine, nanoseconds: medians of a few trials, which other work on the machine disturbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// A store that is noticed: of [`Kind::Decode`] each, else the first to a page.
    pub trap_ns: u64,
    /// Protecting a page alone.
    pub protect_ns: u64,
    /// Protecting a page in a run of neighbours.
    pub protect_in_run_ns: u64,
    /// Asking about a run of pages when none was written.
    pub take_ns: u64,
    /// What a page more costs that was written.
    pub take_written_ns: u64,
}

/// Whether this process can have a kind: tries it.
///
/// # Errors
/// Why not.
pub fn available(kind: Kind) -> Result<(), Why> {
    let mut trial = Trial::new(kind)?;
    trial.protect(0..1)?;
    trial.store(0);
    if trial.take()? == 0 {
        return Err(Why::Unnoticed);
    }
    Ok(())
}

/// Measures a kind, in a few milliseconds.
///
/// # Errors
/// Why this process cannot have it.
pub fn measure(kind: Kind) -> Result<Cost, Why> {
    let mut trial = Trial::new(kind)?;
    // The first round only touches everything.
    let (mut rounds, _) = (Vec::with_capacity(ROUNDS), trial.round()?);
    for _ in 0..ROUNDS {
        rounds.push(trial.round()?);
    }
    let median = |of: fn(&Cost) -> u64| {
        let mut values: Vec<u64> = rounds.iter().map(of).collect();
        values.sort_unstable();
        values[ROUNDS / 2]
    };
    Ok(Cost {
        trap_ns: median(|cost| cost.trap_ns),
        protect_ns: median(|cost| cost.protect_ns),
        protect_in_run_ns: median(|cost| cost.protect_in_run_ns),
        take_ns: median(|cost| cost.take_ns),
        take_written_ns: median(|cost| cost.take_written_ns),
    })
}

/// A mapping of its own.
struct Trial {
    mapping: Arc<Mapping>,
    trap: Box<dyn WriteTrap>,
}

impl Trial {
    fn new(kind: Kind) -> Result<Trial, Why> {
        let file = Memfd::create("sundial-trial", PAGES * PAGE).map_err(Why::Trial)?;
        let mapping = Arc::new(file.map().map_err(Why::Trial)?);
        mapping.fill(0, mapping.len(), 1);
        let trap: Box<dyn WriteTrap> = match kind {
            #[cfg(target_arch = "x86_64")]
            Kind::Decode => {
                let (written, alias) = (Written::create(PAGES), file.map());
                let (written, _) = written.map_err(Why::Trial)?;
                Box::new(Decode::new(&mapping, alias.map_err(Why::Trial)?, Arc::new(written)).map_err(Why::Trial)?)
            }
            #[cfg(not(target_arch = "x86_64"))]
            Kind::Decode => return Err(Why::Processor),
            Kind::Fault => Box::new(Fault::new(&mapping)?),
            Kind::Tracker => Box::new(Tracker::new(&mapping)?),
        };
        Ok(Trial { mapping, trap })
    }

    fn protect(&mut self, pages: std::ops::Range<u64>) -> Result<(), Why> {
        self.trap.protect(&pages.collect::<Vec<_>>()).map_err(Why::Trial)
    }

    fn store(&self, page: u64) {
        self.mapping.u64_at((page * PAGE) as usize).store(page, Ordering::Relaxed);
    }

    /// How much was noticed.
    fn take(&mut self) -> Result<u64, Why> {
        let mut noticed = Vec::new();
        self.trap.take_written(&mut noticed).map_err(Why::Trial)?;
        self.trap.take_stores(&mut |word| noticed.push(word));
        Ok(noticed.len() as u64)
    }

    /// Measures everything once.
    fn round(&mut self) -> Result<Cost, Why> {
        let all: Vec<u64> = (0..PAGES).collect();
        self.trap.release(&all).map_err(Why::Trial)?;
        self.take()?;
        let (_, alone) = timed(|| (0..PAGES).try_for_each(|page| self.protect(page..page + 1)))?;
        let (_, in_run) = timed(|| self.protect(0..PAGES))?;
        let (_, nothing) = timed(|| self.take())?;
        let ((), traps) = timed(|| {
            (0..PAGES).for_each(|page| self.store(page));
            Ok(())
        })?;
        let (noticed, everything) = timed(|| self.take())?;
        if noticed < PAGES {
            return Err(Why::Unnoticed);
        }
        let per_page = |time: Duration| time.as_nanos() as u64 / PAGES;
        Ok(Cost {
            trap_ns: per_page(traps),
            protect_ns: per_page(alone),
            protect_in_run_ns: per_page(in_run),
            take_ns: nothing.as_nanos() as u64,
            take_written_ns: per_page(everything.saturating_sub(nothing)),
        })
    }
}

fn timed<R>(f: impl FnOnce() -> Result<R, Why>) -> Result<(R, Duration), Why> {
    let start = Instant::now();
    let result = f()?;
    Ok((result, start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_can_be_measured() {
        for kind in Kind::ALL {
            match available(kind) {
                Ok(()) => {
                    let cost = measure(kind).unwrap();
                    eprintln!("{kind:?}: {cost:?}");
                    assert!(cost.trap_ns > 0 && cost.protect_ns > 0);
                }
                Err(why @ (Why::Trial(_) | Why::Unnoticed)) => panic!("{kind:?} does not work: {why:?}"),
                Err(why) => eprintln!("SKIPPED: {kind:?}: {why}: {:?}", std::error::Error::source(&why)),
            }
        }
    }
}
