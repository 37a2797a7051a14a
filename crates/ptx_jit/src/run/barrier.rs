//! The barriers of a CTA.

use ptx::ir::{BarKind, BarRed, Op, Operand};
use ptx::launch::{Exception, WARP};

use super::joint::write_lane;
use crate::abi::joint::Site;

/// Barriers of a CTA, as PTX numbers them.
pub(crate) const BARRIERS: usize = 16;

/// Threads that wait at a barrier, at one place in the program.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) region: usize,
    /// Lanes by warp.
    pub(crate) lanes: Vec<u32>,
}

/// One barrier between two releases.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    pub(crate) waiting: Vec<Waiting>,
    /// Lanes that have arrived, by warp, whether they wait or not.
    arrived: Vec<u32>,
    count: Option<u32>,
    voters: u32,
    ayes: u32,
}

/// The frames of a CTA's warps.
pub(crate) struct Threads {
    pub(crate) frames: *mut u8,
    pub(crate) frame_bytes: usize,
}

impl Threads {
    fn frame(&self, warp: usize) -> *mut u8 {
        // SAFETY: there is a frame for every warp.
        unsafe { self.frames.add(warp * self.frame_bytes) }
    }
}

/// Is this a barrier at which all threads arrive, and one that there is?
pub(crate) fn is_for_all(op: &Op) -> bool {
    matches!(op, Op::Bar { kind: BarKind::Sync, count: None, id: Operand::Imm(id), .. } if *id < BARRIERS as u64)
}

/// Lanes `lanes` (by warp) arrive at the barrier operation of `site`, at the head of `region`. True if they go on at once.
pub(crate) fn arrive(
    barriers: &mut [Barrier],
    site: &Site,
    region: usize,
    lanes: &[u32],
    threads: &Threads,
) -> Result<bool, Exception> {
    let Op::Bar { kind, count, .. } = &site.op else { return Err(Exception::Illegal) };
    for (warp, &bits) in lanes.iter().enumerate() {
        for lane in (0..WARP as usize).filter(|l| bits >> l & 1 != 0) {
            let frame = threads.frame(warp);
            let id = site.a.lane(frame, lane) as usize;
            let barrier = barriers.get_mut(id).ok_or(Exception::Illegal)?;
            barrier.arrived.resize(lanes.len(), 0);
            barrier.arrived[warp] |= 1 << lane;
            barrier.count = count.map(|_| site.b.lane(frame, lane) as u32);
            if let BarKind::Red(_) = kind {
                barrier.voters += 1;
                barrier.ayes += u32::from((site.c.lane(frame, lane) != 0) != site.negate);
            }
            if *kind == BarKind::Arrive {
                continue;
            }
            let at = match barrier.waiting.iter().position(|w| w.region == region) {
                Some(at) => at,
                None => {
                    barrier.waiting.push(Waiting { region, lanes: vec![0; lanes.len()] });
                    barrier.waiting.len() - 1
                }
            };
            barrier.waiting[at].lanes[warp] |= 1 << lane;
        }
    }
    Ok(*kind == BarKind::Arrive)
}

impl Barrier {
    pub(crate) fn is_used(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Have all come that it waits for?
    pub(crate) fn is_complete(&self, live: &[u32]) -> bool {
        match self.count {
            None => self.arrived.iter().zip(live).all(|(a, l)| l & !a == 0),
            Some(count) => {
                // Counts are in whole warps: one that has come as far as it can counts fully.
                let counted = |(a, l): (&u32, &u32)| match a.count_ones() {
                    0 => 0,
                    _ if l & !a == 0 => WARP,
                    some => some,
                };
                self.arrived.iter().zip(live).map(counted).sum::<u32>() >= count
            }
        }
    }

    /// Empties the barrier, writes reductions, and gives those who waited.
    pub(crate) fn release(
        &mut self,
        site_of: impl Fn(usize) -> Option<*const Site>,
        threads: &Threads,
    ) -> Vec<Waiting> {
        let Barrier { waiting, voters, ayes, .. } = std::mem::take(self);
        for w in &waiting {
            let Some(site) = site_of(w.region) else { continue };
            // SAFETY: sites live as long as the code, which outlives the CTA.
            let site = unsafe { &*site };
            let Op::Bar { kind: BarKind::Red(red), .. } = site.op else { continue };
            let result = match red {
                BarRed::Popc => ayes,
                BarRed::And => u32::from(ayes == voters),
                BarRed::Or => u32::from(ayes != 0),
            };
            for (warp, &bits) in w.lanes.iter().enumerate() {
                for lane in (0..WARP as usize).filter(|l| bits >> l & 1 != 0) {
                    write_lane(threads.frame(warp), site.dst, lane, result.into());
                }
            }
        }
        waiting
    }
}
