//! A guest that does whatever comes to its mind, and whose other thread writes its tables meanwhile.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gmmu::AddressSpace;
use gpu_spec::host::{GpEntry, Header, SUBCHANNEL_COMPUTE, SUBCHANNEL_COPY};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::pv::{self, Call};
use gpu_spec::regs::{self, vf};
use gpu_spec::runlist::RunlistEntry;
use hostmem::{Mapping, Memfd};
use rustix::fs::MemfdFlags;
use vfio_user::pci;
use zerocopy::IntoBytes;

use crate::dice::Dice;
use crate::driver::{Channel, Had, LO, Rogue, VRAM_VA, WINDOW};
use crate::work;

/// Its groups are those below.
const GROUPS: u32 = 4;
/// How long it waits for what it has submitted, when it does.
const AWHILE: Duration = Duration::from_millis(30);
/// Steps after which its other thread begins, or stops, to spoil tables.
const SPELL: u64 = 48;

/// The guest.
#[derive(Debug)]
pub struct Storm {
    rogue: Rogue,
    dice: Dice,
    space: AddressSpace,
    channels: Vec<Channel>,
    maps: Vec<(u64, u64)>,
    program: u64,
    entered: bool,
    steps: u64,
    meant: u64,
    had: Had,
    spoiler: Option<Spoiler>,
}

/// The other thread.
#[derive(Debug)]
struct Spoiler {
    state: Arc<SpoilerState>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct SpoilerState {
    stop: AtomicBool,
    at_work: AtomicBool,
}

impl Storm {
    /// One that repeats itself with the same seed, as far as threads do.
    #[must_use]
    pub fn new(mut rogue: Rogue, seed: u64) -> Storm {
        let space = rogue.space();
        let program = rogue.load(work::TOUCH, "touch");
        let entered = rogue.has_hypercalls();
        let spoiler = rogue.port.vram().cloned().map(|vram| {
            let state = Arc::new(SpoilerState::default());
            let (shared, dice, root) = (Arc::clone(&state), Dice(seed ^ 0x5555), space.root().address);
            Spoiler { state, thread: std::thread::spawn(move || spoil(&vram, dice, root, &shared)) }
        });
        Storm {
            rogue,
            dice: Dice(seed),
            space,
            channels: Vec::new(),
            maps: Vec::new(),
            program,
            entered,
            steps: 0,
            meant: 0,
            had: Had::default(),
            spoiler,
        }
    }

    /// Goes on for so many steps.
    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step();
        }
    }

    /// Grids and copies in what it has submitted unspoiled.
    #[must_use]
    pub fn meant(&self) -> u64 {
        self.meant
    }

    /// What the device says that it did for this guest.
    #[must_use]
    pub fn had(&self) -> Had {
        let mut had = self.had;
        had += self.rogue.had(0..GROUPS);
        had
    }

    fn step(&mut self) {
        self.steps += 1;
        if let Some(spoiler) = &self.spoiler {
            spoiler.state.at_work.store(self.steps / SPELL % 3 == 2, Ordering::Relaxed);
        }
        let Storm { rogue, dice, .. } = self;
        let vram = rogue.port.vram_bytes();
        match dice.below(24) {
            0 | 1 => {
                let id = dice.pick(&[0, 1, 2, 3, 9, 127, 4095]);
                self.make_channel(id);
            }
            2..12 => self.commands(),
            12 => self.runlist(),
            13 => {
                // Its instance blocks, while they are in use; and any as one.
                let words = dice.words(128);
                if let Some(channel) = self.channels.first() {
                    rogue.put(channel.instance.offset(dice.below(60) * 64), words.as_bytes());
                    rogue.bind_block(dice.below(20) as u32, channel.instance);
                }
                rogue.bind_block(dice.below(20) as u32, PhysAddr::vram(dice.below(2 * vram)));
            }
            14 => (0..4096).step_by(dice.pick(&[7, 64, 512])).for_each(|id| rogue.ring(id)),
            15 => {
                let id = dice.pick(&[0, 1, 2, 9, 4095]);
                rogue.port.write32(regs::PREEMPT, regs::PREEMPT_ID.of(id) | (dice.any() as u32 & 0x300_0000));
                rogue.port.write32(regs::RUNLIST_PREEMPT, dice.any() as u32);
                rogue.port.write32(regs::SCHED_DISABLE, dice.any() as u32);
            }
            16 if dice.once_in(12) => self.reset(),
            16 | 17 => {
                let root = self.space.root();
                let (va, bytes) = dice.pick(&[(LO, WINDOW), (VRAM_VA, 4096), (0, u64::MAX), (dice.0, 1 << 44)]);
                rogue.invalidate(dice.pick(&[root, root, PhysAddr::system(dice.0)]), va, bytes);
            }
            18 => {
                let calls: Vec<Call> = (0..dice.below(40)).map(|_| call(dice, vram)).collect();
                rogue.call(&calls);
            }
            19 => {
                let value = dice.pick(&[dice.0 as u32, u32::MAX, 0, 1 << 31 | 2]);
                for register in [vf::FAULT_BUFFER_LO, vf::FAULT_BUFFER_HI, vf::FAULT_BUFFER_SIZE, vf::FAULT_BUFFER_GET]
                {
                    rogue.vf(register, value);
                }
                rogue.vf(vf::INTR_TOP_EN_SET, u32::MAX);
                (0..8).for_each(|leaf| rogue.vf(vf::INTR_LEAF_EN_SET + leaf * 4, dice.any() as u32));
            }
            20 => self.map(),
            21 => {
                if !self.maps.is_empty() {
                    let (at, bytes) = self.maps.swap_remove(dice.below(self.maps.len() as u64) as usize);
                    let _ = rogue.port.client.unmap_dma(at, bytes);
                }
            }
            _ => access(rogue, dice),
        }
    }

    fn reset(&mut self) {
        self.had += self.rogue.had(0..GROUPS);
        let _ = self.rogue.port.client.reset();
        self.channels.clear();
        self.space = self.rogue.space();
        self.program = self.rogue.load(work::TOUCH, "touch");
    }

    /// Binds a channel to memory of its own, and lists it.
    fn make_channel(&mut self, id: u32) {
        let Storm { rogue, dice, .. } = self;
        self.channels.retain(|other| other.id != id);
        let made = if self.entered && dice.once_in(2) {
            // The space that the number had before goes first.
            let root = u64::from(id % 64 + 1) << 12;
            rogue.unbind(id);
            rogue.call(&[Call { code: pv::DESTROY, root, ..Call::default() }]);
            rogue.entered_channel(root, id)
        } else {
            if dice.once_in(2) {
                self.space = rogue.space();
            }
            Some(rogue.channel(&mut self.space, id))
        };
        let Some(channel) = made else { return };
        self.channels.push(channel);
        let groups: Vec<(u32, Vec<Channel>)> = (1..GROUPS)
            .map(|group| (group, self.channels.iter().filter(|c| 1 + c.id % 3 == group).copied().collect()))
            .collect();
        let groups: Vec<(u32, &[Channel])> = groups.iter().map(|(group, members)| (*group, &members[..])).collect();
        rogue.list(&groups);
    }

    /// A runlist of garbage, the same channels in many groups, numbers of others'.
    fn runlist(&mut self) {
        let Storm { rogue, dice, .. } = self;
        let vram = rogue.port.vram_bytes();
        let mut entries = Vec::new();
        for _ in 0..dice.below(64) {
            let id = dice.below(12) as u32;
            entries.push(match dice.below(4) {
                0 => RunlistEntry { words: [dice.any() as u32, dice.any() as u32, dice.any() as u32, 0] },
                1 => RunlistEntry::tsg(id, dice.below(9) as u32, dice.any() >> 40),
                _ => RunlistEntry::channel(id, PhysAddr::vram(dice.any()), PhysAddr::vram(dice.any())),
            });
        }
        let at = rogue.take(4096, 4096);
        rogue.put(at, entries.as_bytes());
        let at = dice.pick(&[at, at, at, PhysAddr::vram(vram - 4096), PhysAddr::system(1 << 45)]);
        rogue.submit_runlist(at, dice.any() as u32 & 0xffff);
    }

    /// Commands that are commands, some that were before they were changed, and some that never were.
    fn commands(&mut self) {
        if self.channels.is_empty() {
            return self.make_channel(1);
        }
        let which = self.dice.below(self.channels.len() as u64) as usize;
        let mut channel = self.channels[which];
        if self.rogue.has_failed(channel.id) {
            self.make_channel(channel.id);
            match self.channels.iter().find(|made| made.id == channel.id) {
                Some(made) => channel = *made,
                None => return,
            }
        }
        match self.dice.below(10) {
            0 => {
                let entry = GpEntry { e0: self.dice.any() as u32, e1: self.dice.any() as u32 };
                let long = GpEntry::segment(VRAM_VA, (1 << 21) - 1);
                let entry = self.dice.pick(&[entry, long, GpEntry::segment(LO + WINDOW, 4096)]);
                self.rogue.submit_entry(&mut channel, entry);
            }
            1 => {
                let words = self.noise();
                self.rogue.submit(&mut channel, &words);
            }
            2..5 => {
                let (mut words, _) = self.work();
                self.dice.mutate(&mut words);
                self.rogue.submit(&mut channel, &words);
            }
            _ => {
                let (words, units) = self.work();
                self.meant += units;
                self.rogue.submit(&mut channel, &words);
                if self.dice.once_in(4) {
                    // Some of it is left alone until it is done, or has waited for long enough.
                    let status =
                        |rogue: &Rogue| regs::CHANNEL_STATUS.get(rogue.port.read32(regs::pccsr_channel(channel.id)));
                    self.rogue.wait(AWHILE, |rogue| status(rogue) == regs::CHANNEL_STATUS_IDLE);
                }
            }
        }
        if let Some(known) = self.channels.iter_mut().find(|known| known.id == channel.id) {
            *known = channel;
        }
    }

    /// Work as an honest driver would give it, in the upper half of VRAM; and how many grids and copies it is.
    fn work(&mut self) -> (Vec<u32>, u64) {
        let Storm { rogue, dice, .. } = self;
        let half = rogue.port.vram_bytes().min(64 << 20) / 2;
        let mut words = work::classes();
        let mut units = 0;
        for _ in 0..=dice.below(8) {
            let mut place = || VRAM_VA + half + (dice.below(half - (1 << 20)) & !0xff);
            let (to, from) = (place(), place());
            match dice.below(6) {
                0 | 1 => words.extend(work::copy(to, from, 1 + dice.below(1 << 16) as u32)),
                2 => words.extend(work::fill(to, dice.any() as u32, 1 + dice.below(1 << 12) as u32)),
                3 => {
                    words.extend(work::release(to, dice.any()));
                    continue;
                }
                4 => {
                    let count = 1 + dice.below(16);
                    words.extend(work::inline(to, &dice.words(count)));
                    continue;
                }
                _ => {
                    let times = 1 + dice.below(2000);
                    let (grid, block) = (1 + dice.below(4) as u32, 32 << dice.below(3));
                    let descriptor = rogue.describe(self.program, grid, block, &[to, times]);
                    words.extend(work::launch(descriptor));
                }
            }
            units += 1;
        }
        (words, units)
    }

    fn noise(&mut self) -> Vec<u32> {
        let dice = &mut self.dice;
        let mut words = work::classes();
        for _ in 0..dice.below(200) {
            let (to, from) = (VRAM_VA + dice.below(1 << 26), VRAM_VA + dice.below(1 << 26));
            match dice.below(6) {
                0 => words.push(dice.any() as u32),
                1 | 2 => words.extend(work::copy(to, from, dice.below(1 << 20) as u32)),
                3 => words.extend(work::copy(dice.any(), from, dice.any() as u32)),
                _ => {
                    let method = dice.pick(&[0u32, 0x100, 0x300, 0x2000, 0x3ffc]) + dice.below(64) as u32 * 4;
                    let op = dice.pick(&[Header::OP_INC, Header::OP_NON_INC, Header::OP_ONE_INC, Header::OP_IMMEDIATE]);
                    let subchannel = dice.pick(&[SUBCHANNEL_COPY, SUBCHANNEL_COMPUTE, 0, 7]);
                    let count = dice.below(8);
                    let data = dice.words(count);
                    words.push(Header::new(op, subchannel, method, data.len() as u32).0);
                    words.extend(data);
                }
            }
        }
        words
    }

    /// DMA maps of every kind of file, at any place.
    fn map(&mut self) {
        let Storm { rogue, dice, .. } = self;
        let file = |flags| rustix::fs::memfd_create("rogue", MemfdFlags::CLOEXEC | flags);
        let file = match dice.below(6) {
            0 => file(MemfdFlags::ALLOW_SEALING),
            1 => file(MemfdFlags::empty()),
            2 => file(MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING),
            3 => rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()),
            _ => match Memfd::create("rogue", dice.pick(&[4096, 1 << 20, 1 << 44])) {
                Ok(file) => Ok(file.into_fd()),
                Err(_) => return,
            },
        };
        let Ok(file) = file else { return };
        let at = dice.pick(&[1 << 33, 1 << 34, dice.0 & !0xfff, u64::MAX - 4095, 0]);
        let bytes = dice.pick(&[4096, 1 << 20, 1 << 44, 4095, 0, u64::MAX]);
        let rights = (true, !dice.once_in(4));
        let offset = dice.pick(&[0, 0, 4096, 1, u64::MAX]);
        if rogue.port.client.map_dma(at, bytes, rights, Some((file.as_fd(), offset))).is_ok() {
            self.maps.push((at, bytes));
        }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        // Its other thread goes on while it leaves.
        self.rogue.port.client.shutdown();
        if let Some(Spoiler { state, thread }) = self.spoiler.take() {
            std::thread::sleep(Duration::from_micros(self.dice.below(400)));
            state.stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
    }
}

fn call(dice: &mut Dice, vram: u64) -> Call {
    let place = [0, 4096, 1 << 20, vram - 4096, vram];
    let bytes = [4096, 2 << 20, WINDOW, 0, 1, u64::MAX, 1 << 40];
    Call {
        code: dice.below(6) as u32,
        flags: dice.below(8) as u32,
        root: dice.pick(&place),
        va: dice.pick(&[LO, VRAM_VA, LO + WINDOW, u64::MAX - 4095, dice.0]),
        bytes: dice.pick(&bytes),
        at: dice.pick(&[0, 1 << 33, vram, u64::MAX - 4095, dice.0 & !0xfff]),
    }
}

/// A read or a write of any width, anywhere.
pub(crate) fn access(rogue: &Rogue, dice: &mut Dice) {
    let client = &rogue.port.client;
    let (region, bytes) = dice.pick(&[
        (pci::BAR0, 16 << 20),
        (pci::BAR1, rogue.port.vram_bytes()),
        (pci::BAR4, 8192),
        (pci::CONFIG, 256),
    ]);
    for _ in 0..dice.pick(&[1, 32]) {
        let width = dice.pick(&[1usize, 2, 4, 8, 4, 4, 3, 256, 1 << 20]);
        let page = [0, regs::PCCSR_INST.into(), regs::VF_BASE.into(), 0x70_0000, 0x2000, 0x81_0000, 0xe0_0000];
        let offset = (dice.pick(&page) + dice.below(0x4000)) & dice.pick(&[!3, !3, !0]);
        let offset = if dice.once_in(3) { dice.below(bytes) } else { offset % bytes };
        let mut data = vec![dice.any() as u8; width];
        // Beyond the end it is refused.
        let _ = match dice.below(2) {
            0 => client.read(region, offset, &mut data),
            _ => client.write(region, offset, &data),
        };
    }
}

/// The other thread: spoils tables, wherever they may lie.
fn spoil(vram: &Arc<Mapping>, mut dice: Dice, root: u64, state: &SpoilerState) {
    let bytes = vram.len() as u64;
    while !state.stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let (near, any) = (root + dice.below(1 << 16), dice.below(bytes));
            let at = (dice.pick(&[near, near, any]) % (bytes - 8)) & !7;
            // Not too often: else nothing is left that works.
            if state.at_work.load(Ordering::Relaxed) && dice.once_in(16) {
                vram.write(at as usize, &dice.entry(bytes).to_le_bytes());
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
