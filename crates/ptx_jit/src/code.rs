//! Installed machine code: at its place in memory, with all that the scheduler of CTAs needs.

mod text;

use std::sync::Arc;

use ptx::launch::WARP;

use crate::abi::Attached;
use crate::abi::context::Context;
use crate::abi::joint::{Meeting, Site};
use crate::abi::place::Place;
use crate::image::{Facts, Loop, Machine};
use crate::run::arena::Spare;
use crate::run::barrier;
use text::Text;

/// The function of a region: context, first warp, end of warps; gives the exits taken, as bits.
pub(crate) type RegionFn = extern "C" fn(*mut Context, u64, u64) -> u64;

/// A compiled kernel.
pub(crate) struct Compiled {
    pub(crate) facts: Arc<Facts>,
    pub(crate) threads: u32,
    /// Lanes of a chunk.
    pub(crate) lanes: u32,
    /// Lanes of a chunk may run in any order.
    pub(crate) strict: bool,
    /// Bytes of a warp's frame.
    pub(crate) frame_bytes: u32,
    /// Parts of it that must be zero when a CTA starts, as offset and length.
    pub(crate) zeroed: Vec<(u32, u32)>,
    pub(crate) regions: Vec<Region>,
    /// Loops that regions lie in.
    pub(crate) loops: Vec<Loop>,
    /// What the regions' code hands to helpers, by region.
    pub(crate) attached: Vec<Attached>,
    /// Thread indices x, y, z of all threads, padded to whole warps.
    pub(crate) tids: Vec<u32>,
    /// What its CTAs have used, for the next ones.
    pub(crate) spare: Spare,
    text: Text,
    /// Where in it a tenant's memory is accessed, in order, and what for.
    places: Vec<(u32, Place)>,
}

/// A region, ready to run.
pub(crate) struct Region {
    pub(crate) function: RegionFn,
    /// Regions that its exits lead to.
    pub(crate) exits: Vec<u32>,
    /// The only one: all its lanes go there, and its function leaves them active.
    pub(crate) sole: Option<usize>,
    /// Where no other lanes are left, the one to which all go can be run at once: threads do not wait there, but at a barrier for all.
    pub(crate) straight: bool,
    /// The innermost loop that its head lies in.
    pub(crate) around: Option<u32>,
    /// Its head is a loop in which threads may wait for others.
    pub(crate) waits: bool,
    /// Line of PTX of what is at its head.
    pub(crate) line: u32,
    /// The barrier at its head.
    pub(crate) barrier: Option<Box<Site>>,
    /// The warp operation at its head, if it waits for lanes.
    pub(crate) meeting: Option<Box<Meeting>>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("kernel", &self.facts.name).field("text", &self.text).finish_non_exhaustive()
    }
}

impl Compiled {
    /// Installs checked machine code.
    pub(crate) fn install(facts: Arc<Facts>, block: [u32; 3], machine: Machine) -> std::io::Result<Compiled> {
        let text = Text::new(machine.code, &machine.relocations)?;
        let mut regions = Vec::with_capacity(machine.regions.len());
        let mut attached = Vec::with_capacity(machine.regions.len());
        for region in machine.regions {
            let function = text.address(region.begin);
            // SAFETY: the compiler has put a function with the signature that `RegionFn` states there.
            let function = unsafe { std::mem::transmute::<*const u8, RegionFn>(function) };
            let crate::image::Region { exits, sole, around, waits, line, barrier, meeting, .. } = region;
            let (barrier, meeting) = (barrier.map(Box::new), meeting.map(Box::new));
            let sole = exits.first().filter(|_| sole).map(|&to| to as usize);
            regions.push(Region { function, exits, sole, straight: false, around, waits, line, barrier, meeting });
            attached.push(region.attached);
        }
        let passes = |region: &Region| {
            !region.waits && region.barrier.as_deref().is_none_or(|site| barrier::is_for_all(&site.op))
        };
        let straight: Vec<bool> = regions.iter().map(|r| r.sole.is_some_and(|to| passes(&regions[to]))).collect();
        regions.iter_mut().zip(straight).for_each(|(region, straight)| region.straight = straight);
        Ok(Compiled {
            facts,
            threads: block.iter().product(),
            lanes: machine.lanes,
            strict: machine.strict,
            frame_bytes: machine.frame_bytes,
            zeroed: machine.zeroed,
            regions,
            loops: machine.loops,
            attached,
            tids: thread_table(block),
            spare: Spare::default(),
            text,
            places: machine.places,
        })
    }

    /// What an instruction accesses a tenant's memory for, if that is known, and its bytes and those behind it; none if it is elsewhere.
    pub(crate) fn place_of(&self, instruction: u64) -> Option<(&[u8], Option<Place>)> {
        let (at, bytes) = self.text.from(instruction)?;
        let found = self.places.binary_search_by_key(&at, |place| place.0);
        Some((bytes, found.ok().map(|found| self.places[found].1)))
    }

    /// Is all of it a region that runs once for each CTA, and finds there what it needs?
    pub(crate) fn is_one_region(&self) -> bool {
        let [region] = &self.regions[..] else { return false };
        let passes = !region.waits && region.barrier.is_none() && region.meeting.is_none();
        passes && region.exits.is_empty() && self.zeroed.is_empty() && self.facts.local_bytes == 0
    }
}

/// Thread indices x of all threads, then y, then z; each padded to whole warps.
fn thread_table(block: [u32; 3]) -> Vec<u32> {
    let threads: u32 = block.iter().product();
    let padded = threads.next_multiple_of(WARP);
    let [x, y, _] = block;
    let row = |f: &dyn Fn(u32) -> u32| (0..padded).map(f).collect::<Vec<_>>();
    [row(&|t| t % x), row(&|t| t / x % y), row(&|t| t / x / y)].concat()
}

/// Its size.
pub(crate) fn thread_table_bytes(block: [u32; 3]) -> u64 {
    u64::from(block.iter().product::<u32>().next_multiple_of(WARP)) * 12
}
