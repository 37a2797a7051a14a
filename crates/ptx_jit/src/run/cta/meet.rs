//! Warp operations wait for the lanes that their masks name.
//!
//! The order of regions alone brings the lanes of structured code together; but a region whose threads wait for others
//! loses its turn now and then, and then lanes that are past it reach a warp operation before the rest; and lanes of one mask
//! may come to different places in the program ([`ptx::warp`]). They are held there while named lanes are elsewhere, until
//! nothing else can run. If the last of a mask come, and the others wait at other places, the operation is performed here
//! for all of them, and then their regions run without it.

use std::sync::Arc;

use ptx::launch::WARP;

use super::State;
use super::barrier::Waiting;
use crate::abi::joint::Site;
use crate::run::joint;

/// Iterates over the set bits.
fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP as usize).filter(move |lane| mask >> lane & 1 != 0)
}

impl State {
    /// Of the active lanes, at the warp operation at the head of `region`, those whose partners are elsewhere are set
    /// aside; true if any go on.
    pub(super) fn meet(&mut self, region: usize) -> bool {
        if self.ready.iter().all(|&w| w == 0) && !self.arrived {
            return true;
        }
        let code = Arc::clone(&self.code);
        let Some(meeting) = &code.regions[region].meeting else { return true };
        let (mut some, mut early) = (false, false);
        for warp in 0..self.warps {
            let here = self.active()[warp];
            let elsewhere = if here == 0 { 0 } else { self.elsewhere(warp) & !here };
            let frame = self.frame(warp);
            let named = |lane: usize| meeting.site.mask.lane(frame, lane) as u32;
            let mut held = bits(here).filter(|&l| named(l) & elsewhere != 0).fold(0, |m, l| m | 1 << l);
            if held != 0 && meeting.partners {
                let joined = self.join(warp, (region, &meeting.site), held, here | elsewhere);
                held &= !joined;
                self.active()[warp] &= !joined;
            }
            // Registers of a chunk that is split may not outlast what the other part goes on to do.
            if held != 0 && (meeting.beside || !self.splits(here, elsewhere)) {
                self.pending(region)[warp] |= held;
                self.active()[warp] &= !held;
                early = true;
            }
            some |= self.active()[warp] != 0;
        }
        if early {
            self.ready[region / 64] |= 1 << (region % 64);
            self.held[region / 64] |= 1 << (region % 64);
            self.holds = true;
        }
        // The first region runs first.
        self.released.sort_unstable_by_key(|waiting| std::cmp::Reverse(waiting.region));
        some
    }

    /// Lanes `held` of a warp wait at the operation `site` at the head of `region`. Those whose partners wait at others that
    /// agree perform it with these, which then go on, too; gives them. `alive` are all lanes that have not ended.
    fn join(&mut self, warp: usize, (region, site): (usize, &Site), held: u32, alive: u32) -> u32 {
        let code = Arc::clone(&self.code);
        let frame = self.frame(warp);
        let mut joined = 0;
        let mut rest = held;
        while rest != 0 {
            let mask = site.mask.lane(frame, rest.trailing_zeros() as usize) as u32;
            let having = |site: &Site, lanes: u32| {
                bits(lanes).filter(|&l| site.mask.lane(frame, l) as u32 == mask).fold(0_u32, |m, l| m | 1 << l)
            };
            let mut parts = vec![(region, site, having(site, rest))];
            rest &= !parts[0].2;
            let mut from = 0;
            while let Some(other) = self.next_of(from, |s, word| s.ready[word]) {
                from = other + 1;
                let lanes = if other == region { 0 } else { self.pending(other)[warp] };
                if lanes != 0
                    && let Some(meeting) = &code.regions[other].meeting
                    && ptx::warp::agree(&meeting.site.op, &site.op)
                {
                    parts.push((other, &meeting.site, having(&meeting.site, lanes)));
                }
            }
            let group = parts.iter().fold(0, |all, part| all | part.2);
            if mask & alive & !group != 0 {
                continue;
            }
            joint::across(frame, &parts.iter().map(|part| (part.1, part.2)).collect::<Vec<_>>());
            joined |= parts[0].2;
            for (at, _, lanes) in parts {
                if at != region {
                    self.pending(at)[warp] &= !lanes;
                }
                self.release(at, warp, lanes);
            }
        }
        joined
    }

    /// Lanes of a warp go on behind the operation at the head of `region`.
    fn release(&mut self, region: usize, warp: usize, lanes: u32) {
        let at = match self.released.iter().position(|waiting| waiting.region == region) {
            Some(at) => at,
            None => {
                self.released.push(Waiting { region, lanes: vec![0; self.warps] });
                self.released.len() - 1
            }
        };
        self.released[at].lanes[warp] |= lanes;
    }

    fn frame(&self, warp: usize) -> *mut u8 {
        let at = self.context.frames as usize + warp * self.code.frame_bytes as usize;
        std::ptr::with_exposed_provenance_mut(at)
    }

    /// Lanes of a warp that have not ended and are not active.
    fn elsewhere(&mut self, warp: usize) -> u32 {
        let mut bits = 0;
        let mut from = 0;
        while let Some(region) = self.next_of(from, |s, word| s.ready[word]) {
            bits |= self.pending(region)[warp];
            from = region + 1;
        }
        let waiting = self.barriers.iter().flat_map(|b| &b.waiting);
        bits | waiting.fold(0, |m, w| m | w.lanes[warp])
    }

    /// Does a chunk have lanes of both kinds, in code that counts on their coming back in order?
    fn splits(&self, here: u32, elsewhere: u32) -> bool {
        let lanes = self.code.lanes;
        let chunk = u32::MAX >> (WARP - lanes);
        let both = |at: u32| here >> at & chunk != 0 && elsewhere >> at & chunk != 0;
        !self.code.strict && (0..WARP).step_by(lanes as usize).any(both)
    }
}
