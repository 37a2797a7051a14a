//! Warp operations wait for the lanes that their masks name.
//!
//! The order of regions alone brings the lanes of structured code together; but a region whose threads wait for others
//! loses its turn now and then, and then lanes that are past it reach a warp operation before the rest. They are held
//! there while named lanes are elsewhere, until nothing else can run.

use ptx::launch::WARP;

use super::{State, barrier::Barrier};
use crate::run::joint::Slot;

/// What a warp operation at the head of a region waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meeting {
    /// The lanes that take part.
    pub(crate) mask: Slot,
    /// A warp barrier, which lanes may meet at different places.
    pub(crate) barrier: bool,
}

impl State {
    /// Of the active lanes, at the warp operation at the head of `region`, those whose partners are elsewhere are set
    /// aside; true if any go on.
    pub(super) fn meet(&mut self, region: usize, meeting: Meeting) -> bool {
        if self.ready.iter().all(|&w| w == 0) && !self.barriers.iter().any(Barrier::is_used) {
            return true;
        }
        let (mut some, mut early) = (false, false);
        for warp in 0..self.warps {
            let here = self.active()[warp];
            let elsewhere = if here == 0 { 0 } else { self.elsewhere(warp, meeting) & !here };
            // Registers of a chunk that is split may not outlast what the other part goes on to do.
            if elsewhere != 0 && !self.splits(here, elsewhere) {
                let at = self.context.frames as usize + warp * self.code.plan.frame_bytes as usize;
                let frame = std::ptr::with_exposed_provenance(at);
                let waits =
                    |&l: &u32| here >> l & 1 != 0 && meeting.mask.lane(frame, l as usize) as u32 & elsewhere != 0;
                let held = (0..WARP).filter(waits).fold(0, |m, l| m | 1 << l);
                self.pending(region)[warp] |= held;
                self.active()[warp] &= !held;
                early |= held != 0;
            }
            some |= self.active()[warp] != 0;
        }
        if early {
            self.ready[region / 64] |= 1 << (region % 64);
            self.held[region / 64] |= 1 << (region % 64);
        }
        some
    }

    /// Lanes of a warp that have not ended and are not active, but for those at a meeting that is as good.
    fn elsewhere(&mut self, warp: usize, meeting: Meeting) -> u32 {
        let mut bits = 0;
        let mut from = 0;
        while let Some(region) = self.next_of(from, |s, word| s.ready[word]) {
            let other = self.code.meetings[region];
            if !(meeting.barrier && other.is_some_and(|m| m.barrier)) {
                bits |= self.pending(region)[warp];
            }
            from = region + 1;
        }
        let waiting = self.barriers.iter().flat_map(|b| &b.waiting);
        bits | waiting.fold(0, |m, w| m | w.lanes[warp])
    }

    /// Does a chunk have lanes of both kinds, in code that counts on their coming back in order?
    fn splits(&self, here: u32, elsewhere: u32) -> bool {
        let lanes = self.code.plan.lanes();
        let chunk = u32::MAX >> (WARP - lanes);
        let both = |at: u32| here >> at & chunk != 0 && elsewhere >> at & chunk != 0;
        !self.code.plan.strict && (0..WARP).step_by(lanes as usize).any(both)
    }
}
