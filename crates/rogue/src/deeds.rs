//! One kind of hostility at a time.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gmmu::AddressSpace;
use gpu_spec::host::{Header, NON_STALL_INTERRUPT, SUBCHANNEL_COMPUTE, SUBCHANNEL_COPY};
use gpu_spec::mmu::{DualPde, HUGE_PAGE, Pde, PhysAddr, Pte, Rights};
use gpu_spec::pv::{self, Call};
use gpu_spec::ramfc;
use gpu_spec::regs::{self, vf};
use hostmem::{Mapping, Memfd};
use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use vfio_user::pci;
use vfio_user::wire::{self, Command};
use write_trap::{FaultParts, TrackerParts};
use zerocopy::IntoBytes;

use crate::dice::Dice;
use crate::driver::{Channel, FREE_VA, Had, LO, Rogue, VRAM_VA, WINDOW};
use crate::storm::access;
use crate::{Port, Storm, work};

/// A kind of hostility.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Deed {
    /// Page tables, and hypercalls, that name memory of others, in pages of every size; and copies from there and to there.
    Foreign,
    /// Every method of every engine with any data, and commands of which a few words are wrong.
    Methods,
    /// Instance blocks that change, and are bound again, while their channels run.
    Blocks,
    /// Accesses of every width and alignment to every page of every BAR.
    Widths,
    /// DMA maps that vanish while a kernel reads and writes them, and while tables and rings lie in them.
    Vanishing,
    /// Bytes that are no messages, and messages that are none.
    Garbage,
    /// Invalidates of all there is, over tables that are full.
    Invalidates,
    /// Doorbells, of channels that are there and that are not.
    Doorbells,
    /// Nothing but runlists, each with the channel in another group, and preemptions.
    Runlists,
    /// Work that does nothing but ask for interrupts.
    Signals,
    /// Tables that are as large as can be, and those that contain themselves.
    Endless,
    /// Parts of traps of page tables that are none, are silent, or lose their mapping; and work meanwhile.
    Watches,
    /// All of it: [`Storm`].
    Storm,
}

/// What came of it, as far as the guest knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Came {
    /// How often it was tried.
    pub done: u64,
    /// Memory that it should not have read, or that was written when it was no longer the device's: how often.
    pub leaked: u64,
    /// What the device did for it.
    pub had: Had,
}

/// Longest time in which nothing is done.
const LONGEST: Duration = Duration::from_secs(20);
/// Longest wait for something that the device will do or refuse.
const SOON: Duration = Duration::from_millis(200);
/// What memory is filled with that nobody may change.
const PATTERN: u32 = 0xa5c3_96f1;
/// Where system memory is lent.
const BUS: u64 = 1 << 33;
/// Groups of those who make many.
const GROUPS: u32 = 100;
/// The channel that does it, and its group.
const ID: u32 = 1;

impl Deed {
    /// All of them.
    pub const ALL: [Deed; 13] = [
        Deed::Foreign,
        Deed::Methods,
        Deed::Blocks,
        Deed::Widths,
        Deed::Vanishing,
        Deed::Garbage,
        Deed::Invalidates,
        Deed::Doorbells,
        Deed::Runlists,
        Deed::Signals,
        Deed::Endless,
        Deed::Watches,
        Deed::Storm,
    ];

    /// Whether grids and copies of it come to their end.
    #[must_use]
    pub fn computes(self) -> bool {
        matches!(self, Deed::Methods | Deed::Doorbells | Deed::Storm)
    }

    /// Does it for `time`, and longer until it has done something at all. Each call of `connect` is a new guest; the one before
    /// has gone then.
    ///
    /// # Errors
    /// There is no virtual GPU.
    pub fn run(
        self,
        connect: &mut dyn FnMut() -> std::io::Result<UnixStream>,
        seed: u64,
        time: Duration,
    ) -> std::io::Result<Came> {
        let mut dice = Dice(seed);
        if self == Deed::Garbage {
            return garbage(connect, &mut dice, Instant::now() + time);
        }
        let mut rogue = Rogue::new(Port::over(connect()?)?);
        if self == Deed::Storm {
            let mut storm = Storm::new(rogue, seed);
            let begin = Instant::now();
            let mut done = 0;
            while begin.elapsed() < time || (storm.had().ended() == 0 && begin.elapsed() < LONGEST) {
                storm.run(8);
                done += 8;
            }
            return Ok(Came { done, leaked: 0, had: storm.had() });
        }
        let groups = if self == Deed::Runlists { GROUPS } else { 4 };
        let mut came = Came::default();
        let begin = Instant::now();
        let mut end = begin + time;
        loop {
            let step = match self {
                Deed::Foreign => foreign,
                Deed::Methods => methods,
                Deed::Blocks => blocks,
                Deed::Widths => widths,
                Deed::Vanishing => vanishing,
                Deed::Invalidates => invalidates,
                Deed::Doorbells => doorbells,
                Deed::Runlists => runlists,
                Deed::Signals => signals,
                Deed::Watches => watches,
                _ => endless,
            };
            step(&mut rogue, &mut dice, end, &mut came);
            if Instant::now() < end {
                continue;
            }
            let something = came.done > 0 && (!self.computes() || rogue.had(0..groups).ended() > 0);
            if something || begin.elapsed() > LONGEST {
                break;
            }
            end = Instant::now() + time;
        }
        came.had += rogue.had(0..groups);
        Ok(came)
    }
}

/// A channel in a space of page tables, listed alone.
fn begin(rogue: &mut Rogue) -> (AddressSpace, Channel) {
    let mut space = rogue.space();
    let channel = rogue.channel(&mut space, ID);
    rogue.list(&[(1, &[channel])]);
    (space, channel)
}

/// Fills half a page with the pattern, the other half with something else.
fn fresh(rogue: &mut Rogue) -> u64 {
    let at = rogue.take(8192, 4096).address;
    rogue.port.write_vram(at, &PATTERN.to_le_bytes().repeat(1024));
    rogue.port.write_vram(at + 4096, &[0x77; 4096]);
    at
}

/// Memory that is not the guest's.
fn others(rogue: &Rogue, dice: &mut Dice) -> PhysAddr {
    let vram = rogue.port.vram_bytes();
    let beyond = vram + (dice.below(1 << 20) << 12) % (16 * vram);
    // Bus addresses as the host gives them out begin at 4 GiB.
    let bus = (1 << 32) + (dice.below(1 << 12) << 12);
    let any = (dice.any() & 0xff_ffff_f000) + vram;
    dice.pick(&[
        PhysAddr::vram(vram),
        PhysAddr::vram(beyond),
        PhysAddr::vram(beyond),
        PhysAddr::vram(any),
        PhysAddr::system(bus),
        PhysAddr::system(any),
        PhysAddr::system(0),
    ])
}

/// One page of others' in its tables, one copy from there or to there.
fn foreign(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let (mut space, mut channel) = begin(rogue);
    let root = u64::from(ID) << 12;
    let entered = rogue.has_hypercalls() && dice.once_in(2);
    if entered {
        rogue.unbind(ID);
        rogue.call(&[Call { code: pv::DESTROY, root, ..Call::default() }]);
        let Some(made) = rogue.entered_channel(root, ID) else { return };
        channel = made;
        rogue.list(&[(1, &[channel])]);
    }
    for _ in 0..64 {
        if Instant::now() > end {
            return;
        }
        came.done += 1;
        let (at, mine) = (others(rogue, dice), fresh(rogue));
        let mut va = FREE_VA + (dice.below(64) << 21);
        if entered {
            let flags = if at == PhysAddr::vram(at.address) { 0 } else { pv::SYSTEM };
            let bytes = dice.pick(&[4096, 64 << 10, HUGE_PAGE]);
            let map = Call { code: pv::MAP, flags, root, va, bytes, at: at.address };
            // A refusal is right; that it is one is seen by what the copy does.
            rogue.call(&[Call { code: pv::UNMAP, ..map }, map]);
        } else {
            let _ = space.unmap(rogue, va, HUGE_PAGE);
            let vram = rogue.port.vram_bytes();
            match dice.below(4) {
                // A range of which the beginning is the guest's: the end of its partition lies in the middle.
                0 => {
                    let straddling = PhysAddr::vram(vram - HUGE_PAGE / 2);
                    let _ = space.map(rogue, va, HUGE_PAGE, straddling, Rights::default());
                    va += HUGE_PAGE / 2;
                }
                1 => drop(space.map(
                    rogue,
                    va,
                    HUGE_PAGE,
                    PhysAddr { address: at.address & !(HUGE_PAGE - 1), ..at },
                    Rights::default(),
                )),
                _ => drop(space.map(rogue, va, 4096, at, Rights::default())),
            }
            rogue.invalidate(space.root(), va & !(HUGE_PAGE - 1), HUGE_PAGE);
        }
        let reads = dice.below(2) == 0;
        let (to, from) = if reads { (VRAM_VA + mine, va) } else { (va, VRAM_VA + mine) };
        let sign = VRAM_VA + mine + 4096;
        rogue.submit(&mut channel, &[work::classes(), work::copy(to, from, 4096), work::release(sign, 1)].concat());
        rogue.wait(SOON, |rogue| rogue.word(mine + 4096) == 1 || rogue.has_failed(ID));
        let mut seen = vec![0; 4096];
        rogue.port.read_vram(mine, &mut seen);
        let untouched = seen.chunks_exact(4).all(|word| word == PATTERN.to_le_bytes());
        let done = rogue.word(mine + 4096) == 1;
        if rogue.port.is_gone() {
            return;
        }
        came.leaked += u64::from(!untouched || done);
        if rogue.has_failed(ID) {
            return;
        }
    }
}

/// Work that is right, and is waited for; then the same with any method behind it, or with some words changed.
fn methods(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let (_, mut channel) = begin(rogue);
    let program = rogue.load(work::TOUCH, "touch");
    let half = rogue.port.vram_bytes().min(64 << 20) / 2;
    let sign = rogue.take(4096, 4096).address;
    for round in 1..256 {
        if Instant::now() > end || rogue.has_failed(ID) {
            return;
        }
        came.done += 1;
        let to = VRAM_VA + half + (dice.below(half / 2) & !0xff);
        let descriptor = rogue.describe(program, 1 + dice.below(4) as u32, 64, &[to, 1 + dice.below(500)]);
        let mut words = [work::copy(to, VRAM_VA, 4096), work::launch(descriptor), work::fill(to, 1, 64)].concat();
        rogue.submit(&mut channel, &[work::classes(), words.clone(), work::release(VRAM_VA + sign, round)].concat());
        rogue.wait(SOON, |rogue| u64::from(rogue.word(sign)) == round || rogue.has_failed(ID));
        if dice.once_in(2) {
            dice.mutate(&mut words);
        } else {
            let method = dice.below(0x1000) as u32 * 4;
            let count = 1 + dice.below(4);
            let subchannel = dice.pick(&[SUBCHANNEL_COMPUTE, SUBCHANNEL_COPY]);
            words.extend(work::inc(subchannel, method, &dice.words(count)));
        }
        rogue.submit(&mut channel, &words);
    }
}

/// The block of a channel that runs: other bytes, another number, again and again.
fn blocks(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let (space, mut channel) = begin(rogue);
    let program = rogue.load(work::TOUCH, "touch");
    let counter = rogue.port.vram_bytes().min(64 << 20) / 2;
    rogue.port.write_vram(counter, &[0; 4]);
    let to = VRAM_VA + counter;
    let long = rogue.describe(program, 8, 128, &[to, 200_000]);
    rogue.submit(&mut channel, &[work::classes(), work::launch(long), work::copy(to, to + 8192, 4096)].concat());
    rogue.wait(SOON, |rogue| rogue.word(counter) != 0 || rogue.has_failed(ID));
    for _ in 0..32 {
        if Instant::now() > end {
            return;
        }
        came.done += 1;
        match dice.below(6) {
            0 => rogue.put(channel.instance.offset(dice.below(1024) * 4), dice.words(1).as_bytes()),
            1 => rogue.put(channel.instance.offset(ramfc::PAGE_DIR_BASE_LO as u64 * 4), dice.words(2).as_bytes()),
            2 => rogue.bind_block(ID, channel.instance),
            3 => rogue.bind_block(2 + dice.below(4) as u32, channel.instance),
            4 => {
                let any = PhysAddr::vram(dice.below(1 << 24) & !0xfff);
                rogue.bind(channel, dice.pick(&[space.root(), any]), (LO, WINDOW), LO);
            }
            _ => {
                rogue.port.write32(regs::pccsr_channel(ID), dice.any() as u32);
                rogue.port.write32(regs::PREEMPT, regs::PREEMPT_ID.of(ID));
                rogue.list(&[(1, &[channel]), (2, &[channel])]);
            }
        }
        if dice.once_in(4) {
            rogue.submit(&mut channel, &[work::classes(), work::launch(long)].concat());
        }
    }
}

/// Pages in order, each in some widths.
fn widths(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let regions = [(pci::BAR0, 16 << 20), (pci::BAR1, rogue.port.vram_bytes()), (pci::BAR4, 8192), (pci::CONFIG, 256)];
    let data = dice.words(16);
    let start = dice.below(1 << 12);
    for page in 0..1 << 12 {
        if Instant::now() > end {
            return;
        }
        for (region, bytes) in regions {
            for _ in 0..4 {
                came.done += 1;
                let width = dice.pick(&[1usize, 2, 3, 4, 5, 8, 16, 64]);
                let offset = ((page + start) * 4096 + dice.below(4096)) % bytes;
                let _ = rogue.port.client.write_posted(region, offset, &data.as_bytes()[..width]);
            }
        }
        if page % 64 == 0 {
            access(rogue, dice);
        }
    }
}

/// Memory that a kernel is busy with is taken back, and looked at afterwards; or that tables and rings are in.
fn vanishing(rogue: &mut Rogue, dice: &mut Dice, _end: Instant, came: &mut Came) {
    came.done += 1;
    if rogue.lend(BUS, 1 << 20).is_err() {
        return;
    }
    let in_it = dice.once_in(2);
    rogue.use_memory(in_it.then_some(BUS + (64 << 10)..BUS + (1 << 20)));
    let (mut space, mut channel) = begin(rogue);
    rogue.use_memory(None);
    let _ = space.map(rogue, FREE_VA, 64 << 10, PhysAddr::system(BUS), Rights::default());
    rogue.invalidate(space.root(), FREE_VA, 64 << 10);
    let program = rogue.load(work::TOUCH, "touch");
    let endless = rogue.describe(program, 2, 64, &[FREE_VA, 0]);
    // The same with a file that may shrink, if the device takes one.
    let shrinking = may_shrink().ok().filter(|file| {
        let map = rogue.port.client.map_dma(BUS + (2 << 20), 64 << 10, (true, true), Some((file.as_fd(), 0)));
        map.is_ok()
    });
    if shrinking.is_some() {
        let _ = space.map(rogue, FREE_VA + (16 << 10), 16 << 10, PhysAddr::system(BUS + (2 << 20)), Rights::default());
        rogue.invalidate(space.root(), FREE_VA, 64 << 10);
    }
    let copies: Vec<u32> = (0..16).flat_map(|_| work::copy(FREE_VA + (16 << 10), FREE_VA, 16 << 10)).collect();
    rogue.submit(&mut channel, &[work::classes(), copies, work::launch(endless)].concat());
    let begun = |rogue: &Rogue| rogue.lent.iter().any(|lent| lent.memory.u32_at(0).load(Ordering::Relaxed) > 0);
    if dice.once_in(4) {
        std::thread::sleep(Duration::from_micros(dice.below(2000)));
    } else {
        rogue.wait(SOON, begun);
    }
    if let Some(lent) = rogue.lent.first() {
        // Without pages for a moment; without rights; without an end.
        match dice.below(4) {
            0 => drop(lent.file.punch(0, 64 << 10)),
            1 => drop(rustix::fs::fcntl_add_seals(&lent.file, SealFlags::FUTURE_WRITE)),
            2 => drop(rustix::fs::ftruncate(&lent.file, 0)),
            _ => {}
        }
    }
    if let Some(file) = shrinking {
        let _ = rustix::fs::ftruncate(&file, 0);
        std::thread::sleep(Duration::from_millis(1));
        let _ = rogue.port.client.unmap_dma(BUS + (2 << 20), 64 << 10);
    }
    let Some(lent) = rogue.take_back(BUS) else { return };
    let look = || {
        let mut bytes = vec![0; 64 << 10];
        lent.memory.read(0, &mut bytes);
        bytes
    };
    let before = look();
    std::thread::sleep(Duration::from_millis(2));
    came.leaked += u64::from(before != look());
    rogue.unbind(ID);
    came.had += rogue.had(1..2);
    // The rest of what it had there is gone as well.
    let _ = rogue.port.client.reset();
}

/// A memory file of 64 KiB that can be made shorter at any time.
fn may_shrink() -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("rogue", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, 64 << 10)?;
    Ok(file)
}

/// Connections that greet, and those that do not; bytes of all kinds behind.
fn garbage(
    connect: &mut dyn FnMut() -> std::io::Result<UnixStream>,
    dice: &mut Dice,
    end: Instant,
) -> std::io::Result<Came> {
    let mut came = Came::default();
    let file = Memfd::create("rogue", 1 << 20)?;
    while came.done == 0 || Instant::now() < end {
        came.done += 1;
        let mut socket = connect()?;
        socket.set_write_timeout(Some(Duration::from_millis(100)))?;
        let mut bytes = Vec::new();
        if !dice.once_in(4) {
            let version = b"{\"capabilities\":{\"max_msg_fds\":8,\"write_multiple\":true}}\0";
            message(&mut bytes, Command::VERSION.0, &[&[0, 0, 1, 0], &version[..]].concat());
        }
        for _ in 0..dice.below(40) {
            let count = dice.below(16);
            let payload = dice.words(count);
            let start = bytes.len();
            message(&mut bytes, dice.below(20) as u16, payload.as_bytes());
            if dice.once_in(3) {
                let at = start + dice.below((bytes.len() - start) as u64) as usize;
                bytes[at] ^= 1 << dice.below(8);
            }
        }
        if dice.once_in(3) {
            let count = dice.below(256);
            bytes.extend(dice.words(count).as_bytes());
        }
        // It may have been made to leave.
        let _ = match dice.once_in(4) {
            true => send_with(&socket, &bytes, &file),
            false => socket.write_all(&bytes),
        };
        if dice.once_in(3) {
            socket.set_read_timeout(Some(Duration::from_millis(5)))?;
            let _ = socket.read(&mut [0; 4096]);
        }
    }
    Ok(came)
}

fn message(out: &mut Vec<u8>, command: u16, payload: &[u8]) {
    let size = (wire::HEADER + payload.len()) as u32;
    out.extend(wire::Header { id: 1, command, size, flags: wire::COMMAND, error: 0 }.as_bytes());
    out.extend(payload);
}

/// Bytes, and more descriptors with them than there may be.
fn send_with(socket: &UnixStream, bytes: &[u8], file: &Memfd) -> std::io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [file.as_fd(); 20];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Nothing but invalidates.
fn invalidates(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let (mut space, mut channel) = begin(rogue);
    // Every other page, so that none goes together with the next.
    let pages = if rogue.port.vram().is_some() { 1024 } else { 32 };
    for page in 0..pages {
        let _ = space.map(rogue, FREE_VA + page * 8192, 4096, PhysAddr::vram(page % 64 * 4096), Rights::default());
    }
    rogue.submit(&mut channel, &work::classes());
    let trigger = vf::INVALIDATE_TRIGGER.of(1);
    let all =
        [trigger | vf::INVALIDATE_ALL_VA.of(1), trigger | vf::INVALIDATE_ALL_VA.of(1) | vf::INVALIDATE_ALL_PDB.of(1)];
    loop {
        let value = dice.pick(&all).to_le_bytes();
        let at = u64::from(regs::VF_BASE + vf::MMU_INVALIDATE);
        rogue.invalidate(space.root(), dice.pick(&[0, LO]), dice.pick(&[u64::MAX, 1 << 40, WINDOW]));
        let _ = rogue.port.client.write_multi(&vec![(pci::BAR0, at, &value[..]); 64]);
        rogue.submit(&mut channel, &work::copy(VRAM_VA + 4096, VRAM_VA, 64));
        came.done += 65;
        if Instant::now() > end {
            return;
        }
    }
}

/// Nothing but doorbells, of a channel that has work, and of all others.
/// Some descriptors, as a guest may send them for a trap of `mapping`; what ends when the last is dropped is kept in `ends`.
fn descriptors(dice: &mut Dice, mapping: &Arc<Mapping>, ends: &mut Vec<OwnedFd>) -> Option<Vec<OwnedFd>> {
    let mut one = |dice: &mut Dice| -> Option<OwnedFd> {
        Some(match dice.below(6) {
            0 => Memfd::create("rogue", 4096 << dice.below(24)).ok()?.into_fd(),
            1 => rustix::event::eventfd(3, EventfdFlags::CLOEXEC).ok()?,
            2 => {
                let (ours, theirs) = std::io::pipe().ok()?;
                ends.push(theirs.into());
                ours.into()
            }
            3 => {
                let kind = dice.pick(&[SocketType::SEQPACKET, SocketType::STREAM]);
                let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).ok()?;
                // An answer that nobody has waited for; or the end is closed at once. One that says nothing costs its own time.
                let _ = rustix::net::send(&theirs, &dice.any().to_ne_bytes(), SendFlags::empty());
                if dice.once_in(2) {
                    ends.push(theirs);
                }
                ours
            }
            4 => rustix::fs::open("/proc/self/pagemap", OFlags::RDONLY, Mode::empty()).ok()?,
            _ => FaultParts::new(mapping).ok()?.userfault,
        })
    };
    match dice.below(3) {
        0 => (0..dice.below(4)).map(|_| one(dice)).collect(),
        1 => TrackerParts::new(mapping).ok().map(|parts| vec![parts.userfault, parts.page_map]),
        _ => FaultParts::new(mapping).ok().map(|parts| vec![parts.userfault]),
    }
}

fn watches(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let (mut space, mut channel) = begin(rogue);
    let to = rogue.take(4096, 4096);
    while Instant::now() < end && !rogue.has_failed(ID) {
        let bytes = rogue.port.vram_bytes();
        let file = Memfd::create("rogue", bytes).expect("a file");
        let mapping = Arc::new(file.map().expect("a mapping"));
        let mut ends = Vec::new();
        let Some(fds) = descriptors(dice, &mapping, &mut ends) else { continue };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let address = mapping.address() as u64;
        let address = dice.pick(&[address, address, address, 0, 4096, address + 1, 1 << 46, u64::MAX - 4095]);
        let bytes = dice.pick(&[bytes, bytes, bytes, 4096, 0, bytes + 4096, 1 << 47]);
        let kind = dice.pick(&[wire::WATCH_TRACKER, wire::WATCH_FAULT, wire::WATCH_DECODE, 77]);
        let region = dice.pick(&[pci::BAR1, pci::BAR1, pci::BAR1, pci::BAR0, 1000]);
        let _ = rogue.port.client.watch_stores((kind, region), (address, bytes), &fds);
        drop(fds);
        if dice.once_in(2) {
            drop(mapping);
        }
        // Tables come and go, and what is submitted asks the trap.
        let va = FREE_VA + dice.below(64) * HUGE_PAGE;
        let _ = space.unmap(rogue, va, 4096);
        let _ = space.map(rogue, va, 4096, to, Rights::default());
        rogue.submit(
            &mut channel,
            &[work::classes(), work::copy(VRAM_VA + to.address, VRAM_VA + to.address + 64, 16)].concat(),
        );
        came.done += 1;
    }
}

fn doorbells(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let (_, mut channel) = begin(rogue);
    let program = rogue.load(work::TOUCH, "touch");
    let to = VRAM_VA + rogue.port.vram_bytes().min(64 << 20) / 2;
    let short = rogue.describe(program, 1, 32, &[to, 10]);
    let at = u64::from(regs::USERMODE + regs::USERMODE_DOORBELL);
    while Instant::now() < end && !rogue.has_failed(ID) {
        rogue.submit(&mut channel, &[work::classes(), work::launch(short)].concat());
        let values: Vec<[u8; 4]> = (0..1000)
            .map(|_| {
                regs::DOORBELL_CHANNEL.of(if dice.once_in(2) { ID } else { dice.below(5000) as u32 }).to_le_bytes()
            })
            .collect();
        let writes: Vec<(u32, u64, &[u8])> = values.iter().map(|value| (pci::BAR0, at, &value[..])).collect();
        let _ = rogue.port.client.write_multi(&writes);
        came.done += 1000;
    }
}

/// A kernel that never ends, in one group after another: each is new to the device, and may be owed something.
fn runlists(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let (_, mut channel) = begin(rogue);
    let program = rogue.load(work::TOUCH, "touch");
    let to = VRAM_VA + rogue.port.vram_bytes().min(64 << 20) / 2;
    let long = rogue.describe(program, 8, 128, &[to, 0]);
    rogue.submit(&mut channel, &[work::classes(), work::launch(long)].concat());
    while Instant::now() < end {
        for _ in 0..16 {
            let group = 1 + dice.below(u64::from(GROUPS) - 1) as u32;
            rogue.list(&[(group, &[channel])]);
            if dice.once_in(8) {
                rogue
                    .port
                    .write32(regs::PREEMPT, regs::PREEMPT_ID.of(group) | regs::PREEMPT_TYPE.of(regs::PREEMPT_TYPE_TSG));
            }
            came.done += 1;
        }
        // Not further ahead of the other side than that.
        let _ = rogue.port.is_gone();
    }
    rogue.unbind(ID);
}

/// As many interrupts as can be asked for, while somebody listens.
fn signals(rogue: &mut Rogue, _dice: &mut Dice, end: Instant, came: &mut Came) {
    let (_, mut channel) = begin(rogue);
    rogue.vf(vf::INTR_TOP_EN_SET, u32::MAX);
    (0..vf::INTR_LEAVES).for_each(|leaf| rogue.vf(vf::INTR_LEAF_EN_SET + leaf * 4, u32::MAX));
    let ask = Header::new(Header::OP_IMMEDIATE, SUBCHANNEL_COMPUTE, NON_STALL_INTERRUPT, 0).0;
    let sign = rogue.take(4096, 4096).address;
    for round in 1.. {
        if Instant::now() > end || rogue.has_failed(ID) {
            return;
        }
        rogue.submit(&mut channel, &[work::classes(), vec![ask; 4000], work::release(VRAM_VA + sign, round)].concat());
        rogue.wait(SOON, |rogue| u64::from(rogue.word(sign)) == round || rogue.has_failed(ID));
        came.done += 4000;
    }
}

/// Tables that have no end: each entry of a table is the table itself; or all of a table's pages, over and over.
fn endless(rogue: &mut Rogue, dice: &mut Dice, end: Instant, came: &mut Came) {
    let (space, mut channel) = begin(rogue);
    let table = rogue.take(4096, 4096);
    let entry = match dice.below(3) {
        // The same bytes are a directory, a directory's directory, and so on, down to pages.
        0 => Pde::to_table(table).0,
        1 => Pte::to_page(table, Rights::default()).0,
        _ => DualPde::to_tables(Some(table), Some(table)).small,
    };
    rogue.put(table, &entry.to_le_bytes().repeat(512));
    let mut root = vec![0; 4096];
    let _ = gmmu::PhysMem::read(rogue, space.root(), &mut root);
    // Where the space's tables say something, that stays: its channel is to be there still.
    for slot in root.chunks_exact_mut(8).filter(|slot| slot.iter().all(|byte| *byte == 0)) {
        slot.copy_from_slice(&Pde::to_table(table).0.to_le_bytes());
    }
    rogue.put(space.root(), &root);
    let windows = [(LO, WINDOW), (LO, 1 << 39), (0, 1 << 40), (LO, (1 << 40) - (1 << 30))];
    while Instant::now() < end {
        came.done += 1;
        rogue.invalidate(space.root(), 0, u64::MAX);
        rogue.submit(&mut channel, &[work::classes(), work::copy(VRAM_VA + 4096, VRAM_VA, 64)].concat());
        let id = 2 + dice.below(6) as u32;
        let blank = rogue.blank_channel(id, table, table);
        rogue.bind(blank, dice.pick(&[table, space.root()]), dice.pick(&windows), LO);
        rogue.ring(id);
        if dice.once_in(8) || rogue.has_failed(ID) {
            return;
        }
    }
}
