//! A guest that announces nothing of what it stores into its page tables: what it submits is done with the tables that it has then,
//! whatever notices its stores, and whatever the policy is, which changes meanwhile.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

#[expect(dead_code, reason = "other suites make guests in other ways")]
mod guest;

use std::time::{Duration, Instant};

use gmmu::{AddressSpace, PhysMem, Policy, Rebuild, Shadowing};
use gpu_spec::host::GpEntry;
use gpu_spec::mmu::{PhysAddr, Rights};
use hostmem::Memfd;
use rogue::work::{classes, copy};
use rogue::{Channel, Dice, FREE_VA, Port, Rogue, VRAM_VA};
use vfio_user::pci;
use vgpu::{Scheme, Trap};
use write_trap::Kind;

use crate::guest::{Host, host, watch};

const MIB: u64 = 1 << 20;
/// Frames that pages are mapped to, each with its own number in it; and pages, in several tables.
const FRAMES: u64 = 8;
const PAGES: u64 = 24;
/// Pages that one submission reads.
const READ: u64 = 6;

const POLICIES: [Policy; 7] = [
    Policy { shadowing: Shadowing::Hybrid, rebuild: Rebuild::Segmented },
    Policy { shadowing: Shadowing::Relaxed, rebuild: Rebuild::Full },
    Policy { shadowing: Shadowing::Strict, rebuild: Rebuild::Segmented },
    Policy { shadowing: Shadowing::Relaxed, rebuild: Rebuild::Segmented },
    Policy { shadowing: Shadowing::Hybrid, rebuild: Rebuild::Dynamic },
    Policy { shadowing: Shadowing::Relaxed, rebuild: Rebuild::Static(2) },
    Policy { shadowing: Shadowing::Relaxed, rebuild: Rebuild::Dynamic },
];

fn va(page: u64) -> u64 {
    FREE_VA + page * 2 * MIB + page * 4096
}

/// A guest with two address spaces that have their tables in common, but for the first.
struct Tables {
    space: AddressSpace,
    channels: [Channel; 2],
    frames: PhysAddr,
    /// Which frame each page shows.
    shown: Vec<u64>,
    to: PhysAddr,
}

impl Tables {
    fn new(rogue: &mut Rogue) -> Tables {
        let mut space = rogue.space();
        let frames = rogue.take(FRAMES * 4096, 4096);
        for frame in 0..FRAMES {
            rogue.put(frames.offset(frame * 4096), &(frame as u32 + 100).to_le_bytes());
        }
        // Tables stay: a page beside each is never unmapped.
        for page in 0..PAGES {
            space.map(rogue, va(page), 8192, frames, Rights::default()).unwrap();
        }
        let one = rogue.channel(&mut space, 3);
        let to = rogue.take(4096, 4096);
        let other_root = rogue.take(4096, 4096);
        let channels = [one, rogue.channel(&mut space, 4)];
        let mut root = [0; 4096];
        PhysMem::read(rogue, space.root(), &mut root).unwrap();
        rogue.put(other_root, &root);
        rogue.rebind(channels[1], |block| block.set_page_directory(other_root));
        rogue.list(&[(1, &channels[..1]), (2, &channels[1..])]);
        Tables { space, channels, frames, shown: vec![0; PAGES as usize], to }
    }

    /// Stores into some entries.
    fn change(&mut self, rogue: &mut Rogue, dice: &mut Dice) {
        for _ in 0..dice.pick(&[0, 1, 1, 3, 30]) {
            let (page, frame) = (dice.below(PAGES), dice.below(FRAMES));
            self.space.unmap(rogue, va(page), 4096).unwrap();
            let at = self.frames.offset(frame * 4096);
            self.space.map(rogue, va(page), 4096, at, Rights::default()).unwrap();
            self.shown[page as usize] = frame;
        }
    }

    /// Reads some pages through one of the spaces.
    fn read(&mut self, rogue: &mut Rogue, dice: &mut Dice) {
        let which = dice.below(2) as usize;
        let pages: Vec<u64> = (0..READ).map(|_| dice.below(PAGES)).collect();
        rogue.put(self.to, &[0; 16 * READ as usize]);
        let copies =
            pages.iter().zip(0..).map(|(page, slot)| copy(VRAM_VA + self.to.address + 16 * slot, va(*page), 16));
        let work = std::iter::once(classes()).chain(copies).collect::<Vec<_>>().concat();
        rogue.submit(&mut self.channels[which], &work);
        for (page, slot) in pages.into_iter().zip(0..) {
            let want = self.shown[page as usize] as u32 + 100;
            let since = Instant::now();
            loop {
                let found = rogue.word(self.to.address + 16 * slot);
                if found == want {
                    break;
                }
                assert_eq!(found, 0, "page {page} through space {which} shows what it did before");
                assert!(!rogue.has_failed(3 + which as u32), "page {page} through space {which} is not there");
                assert!(since.elapsed() < Duration::from_secs(20), "nothing comes");
                std::thread::yield_now();
            }
        }
    }
}

fn follows(trap: Trap) {
    let driver = host(256 * MIB, true);
    let mut behind = Host::trapped(&driver, (Scheme::Fv, trap), 32 * MIB);
    let mut rogue = Rogue::new(Port::over(behind.connect()).unwrap());
    let servant = match trap {
        Trap::Watched(kind) => {
            let (file, _) = rogue.port.client.region(pci::BAR1).unwrap().file.unwrap();
            let alias = Memfd::from_fd(file).unwrap().map_part(0, rogue.port.vram_bytes()).unwrap();
            watch(&rogue.port.client, kind, rogue.port.vram().unwrap(), alias)
        }
        _ => None,
    };
    let mut dice = Dice(7);
    let mut tables = Tables::new(&mut rogue);
    for round in 0..700 {
        if round % 50 == 49 {
            behind.vgpu.set_policy(dice.pick(&POLICIES));
        }
        // What this is for is done while tables change, and what comes with the next one is not to be done with it.
        if dice.below(2) == 0 {
            for channel in &mut tables.channels {
                rogue.submit_entry(channel, GpEntry::default());
            }
        }
        tables.change(&mut rogue, &mut dice);
        tables.read(&mut rogue, &mut dice);
    }
    let counts = behind.vgpu.counts();
    assert_eq!(counts.trap, Some(trap), "it has worked to the end");
    assert!(counts.tracked.strict > 0 || trap == Trap::Snapshot, "{counts:?}");
    drop((rogue, servant));
}

#[test]
fn a_tracker_names_what_was_written() {
    follows(Trap::Watched(Kind::Tracker));
}

#[test]
fn a_fault_names_what_was_written() {
    follows(Trap::Watched(Kind::Fault));
}

#[test]
fn a_decode_names_each_store() {
    follows(Trap::Watched(Kind::Decode));
}

#[test]
fn a_message_for_each_store() {
    follows(Trap::Bar);
}

#[test]
fn comparing_finds_what_was_written() {
    follows(Trap::Snapshot);
}
