//! Guests that mean no good, beside a session and another guest that must finish right.
//!
//! `HOSTILE_SEED` repeats a storm.

#![expect(clippy::print_stdout, reason = "seeds, and how the victims fared")]
#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

#[path = "hostile/deeds.rs"]
mod deeds;
mod guest;
#[expect(dead_code, reason = "of what it has, some is used here")]
#[path = "../../gpu_driver/tests/software_gpu/support/mod.rs"]
mod support;
#[path = "hostile/vanishing.rs"]
mod vanishing;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gmmu::PhysMem;
use gpu::{AllocId, Command, DevAddr, Gpu, MapAccess, MemoryKind, Request};
use gpu_driver::{ClientConfig, Driver, Usage};
use gpu_spec::host::{Header, ILLEGAL, NON_STALL_INTERRUPT, SUBCHANNEL_COMPUTE};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier::{Code, Record, STATUS_ERROR};
use gpu_spec::pv::{self, Call};
use gpu_spec::regs::{self, vector, vf};
use hostmem::Memfd;
use rogue::work::{TOUCH, classes, copy, launch, release};
use rogue::{Channel, LO, Port, Rogue, Storm, VRAM_VA, WINDOW};
use vgpu::{Scheme, Trap};
use write_trap::Kind;
use zerocopy::IntoBytes;

use crate::guest::{Guest, Host, guest, host};
use crate::support::{BOUND, Tenant, eventually, kernel};

const MIB: u64 = 1 << 20;

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        crate::guest::gpu(vgpu::Scheme::Fv, vram_bytes, lend)
    }
}

/// Somebody who works beside: allocates, looks that it is clean, fills, launches, checks, frees.
struct Victim {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u32, Duration)>,
}

impl Victim {
    fn new(driver: Arc<Driver>) -> Victim {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let tenant = Tenant::new(&driver, ClientConfig::default());
            tenant.load(0, support::PTX);
            let (mut rounds, mut worst) = (0, Duration::ZERO);
            while rounds == 0 || !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                round(&tenant, rounds);
                worst = worst.max(start.elapsed());
                rounds += 1;
            }
            (rounds, worst)
        });
        Victim { stop, thread }
    }

    /// Beside a guest on the same device.
    fn in_guest(guest: Guest) -> Victim {
        Victim::new(Driver::start(Arc::new(guest)).unwrap())
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (rounds, worst) = self.thread.join().unwrap();
        println!("a victim has done {rounds} rounds, the longest in {worst:?}");
    }
}

fn round(tenant: &Tenant, round: u32) {
    const N: u32 = 4096;
    let bytes = u64::from(N) * 4;
    let buffers = [0, 1, 2].map(|which| {
        let (id, at) = (AllocId(1000 + which), DevAddr(support::LO + (1 << 30) + (u64::from(which) << 21)));
        tenant.client.request(Request::Alloc { id, bytes, kind: MemoryKind::Vram }).unwrap();
        tenant.client.request(Request::Map { at, id, offset: 0, bytes, access: MapAccess::ReadWrite }).unwrap();
        (at, id)
    });
    let [out, a, b] = buffers.map(|(at, _)| at);
    assert!(tenant.read_u32(out, N as usize).iter().all(|word| *word == 0), "memory of somebody else's");
    let packed = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    tenant.write(a, &packed((0..N).map(|i| i ^ round).collect()));
    tenant.write(b, &packed((0..N).map(|i| i + round).collect()));
    tenant.launch(0, kernel::ADD, N / 128, 128, &[out.0, a.0, b.0]).unwrap();
    tenant.sync(0);
    let sums = (0..N).map(|i| (i ^ round) + 3 * (i + round));
    assert!(tenant.read_u32(out, N as usize).into_iter().eq(sums), "round {round}");
    let fill = Command::Fill { dst: out, value: 0xabcd, element: 4, width: N.into(), height: 1, pitch: 0 };
    tenant.submit(0, &[fill]);
    tenant.sync(0);
    assert!(tenant.read_u32(out, N as usize).iter().all(|word| *word == 0xabcd), "round {round}");
    for (at, id) in buffers {
        tenant.client.request(Request::Unmap { at, bytes }).unwrap();
        tenant.client.request(Request::Free { id }).unwrap();
    }
}

/// A device, a session and a guest that work on it; what is done beside them; and then it is as it was.
fn beside_victims(vram_mib: u64, attack: impl FnOnce(&Arc<Driver>)) {
    let driver = host((vram_mib + 256) * MIB, false);
    let before = driver.counts();
    let session = Victim::new(Arc::clone(&driver));
    let other = Victim::in_guest(guest(&driver, Scheme::Fv, 64 * MIB));
    attack(&driver);
    session.finish();
    other.finish();
    assert!(!driver.is_lost());
    eventually("all is given back", || driver.counts() == before);
}

/// A guest that means no good, and what stands behind it.
fn rogue(driver: &Arc<Driver>, scheme: impl Into<Way>, vram_bytes: u64) -> (Rogue, Host) {
    let Way(scheme, trap) = scheme.into();
    let mut host = Host::trapped(driver, (scheme, trap), vram_bytes);
    (Rogue::new(Port::over(host.connect()).unwrap()), host)
}

/// A scheme, and how stores into page tables are noticed.
#[derive(Clone, Copy, Debug)]
struct Way(Scheme, Trap);

impl From<Scheme> for Way {
    fn from(scheme: Scheme) -> Way {
        Way(scheme, Trap::default())
    }
}

const SCHEMES: [Way; 8] = [
    Way(Scheme::Fv, Trap::Announced),
    Way(Scheme::Pv, Trap::Announced),
    Way(Scheme::FvNaive, Trap::Announced),
    Way(Scheme::Fv, Trap::Bar),
    Way(Scheme::Fv, Trap::Snapshot),
    Way(Scheme::Fv, Trap::Watched(Kind::Tracker)),
    Way(Scheme::Fv, Trap::Watched(Kind::Fault)),
    Way(Scheme::Fv, Trap::Watched(Kind::Decode)),
];

fn seed() -> u64 {
    let seed = std::env::var("HOSTILE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("HOSTILE_SEED={seed}");
    seed
}

/// And the storm is one: of what it means, a share is done by the engines, as the host counts.
#[test]
fn storms_harm_nobody_else() {
    let seed = seed();
    beside_victims(256, |driver| {
        for (number, scheme) in SCHEMES.into_iter().enumerate() {
            let (rogue, host) = rogue(driver, scheme, 32 * MIB);
            let mut storm = Storm::new(rogue, seed + number as u64);
            storm.run(1500);
            let enough = |meant: u64, usage: &Usage| usage.kernels >= 10 && usage.kernels + usage.copies > meant / 5;
            // How many grids are right depends on the seed, and how much is done in time on the machine: some storms take longer.
            for _ in 0..20 {
                if enough(storm.meant(), &host.vgpu.usage()) {
                    break;
                }
                storm.run(500);
            }
            let (meant, usage) = (storm.meant(), host.vgpu.usage());
            println!("{scheme:?}: of {meant} grids and copies that were right, and more that were not: {usage:?}");
            assert!(meant > 500, "{meant}");
            assert!(enough(meant, &usage), "{usage:?} of {meant}");
            drop(storm);
        }
    });
}

#[test]
fn guests_leave_in_the_middle_of_everything() {
    let seed = seed();
    beside_victims(256, |driver| {
        for number in 0..200 {
            let (rogue, host) = rogue(driver, SCHEMES[number as usize % SCHEMES.len()], 8 * MIB);
            let mut storm = Storm::new(rogue, seed + number);
            storm.run(number % 23);
            drop(storm);
            drop(host);
        }
    });
}

/// A map at the end of all addresses is none that can be had, and none that ends anything.
#[test]
fn addresses_have_an_end() {
    let driver = host(256 * MIB, false);
    let (rogue, _host) = rogue(&driver, Scheme::Fv, 16 * MIB);
    let file = Memfd::create("rogue", 4096).unwrap();
    let last = u64::MAX - 4095;
    assert!(rogue.port.client.map_dma(last, 4096, (true, true), Some((file.as_fd(), 0))).is_err());
    rogue.port.client.map_dma(last, 4096, (true, true), None).unwrap();
    rogue.port.client.unmap_dma(last, 4096).unwrap();
    for window in [(last, 4095), (u64::MAX, u64::MAX), (0, u64::MAX), (LO, 0), (1, WINDOW), (1 << 49, WINDOW)] {
        let (mut rogue_channel, _host) = crate::rogue(&driver, Scheme::Fv, 16 * MIB);
        let channel = rogue_channel.blank_channel(3, PhysAddr::vram(0), PhysAddr::vram(0));
        rogue_channel.bind(channel, PhysAddr::vram(0), window, 0xffff_ffff_fff8);
        assert!(rogue_channel.has_failed(3), "{window:x?}");
    }
}

/// What a hypercall has taken away before one that is refused is gone from the device as well.
#[test]
fn refused_hypercalls_leave_no_translation() {
    let driver = host(256 * MIB, false);
    let (mut rogue, _host) = rogue(&driver, Scheme::Pv, 32 * MIB);
    let file = Memfd::create("rogue", 4096).unwrap();
    let memory = file.map().unwrap();
    memory.fill(0, 4096, 0x5a);
    let (bus, root, va, to) = (1 << 33, 24 * MIB, LO + (64 << 20), 20 * MIB);
    rogue.port.client.map_dma(bus, 4096, (true, true), Some((file.as_fd(), 0))).unwrap();
    let mut channel = rogue.entered_channel(root, 3).unwrap();
    let page = Call { code: pv::MAP, flags: pv::SYSTEM, root, va, bytes: 4096, at: bus };
    assert_eq!(rogue.call(&[page]), 0);
    rogue.list(&[(1, &[channel])]);
    rogue.submit(&mut channel, &[classes(), copy(VRAM_VA + to, va, 16)].concat());
    eventually("the copy", || rogue.word(to) == 0x5a5a_5a5a);

    let unmap = Call { code: pv::UNMAP, root, va, bytes: 4096, ..Call::default() };
    assert_eq!(rogue.call(&[unmap, Call { code: 99, ..unmap }]), 2);
    rogue.port.client.unmap_dma(bus, 4096).unwrap();
    rogue.submit(&mut channel, &copy(VRAM_VA + to + 16, va, 16));
    eventually("a fault", || rogue.has_failed(3));
    assert_eq!(rogue.word(to + 16), 0, "the memory had been taken back");
}

/// A page that is mapped at two addresses is still there at the one when it is unmapped at the other.
#[test]
fn what_is_unmapped_at_one_address_stays_at_another() {
    let driver = host(256 * MIB, false);
    for scheme in SCHEMES {
        let (mut rogue, _host) = rogue(&driver, scheme, 32 * MIB);
        let file = Memfd::create("rogue", 8192).unwrap();
        let memory = file.map().unwrap();
        memory.fill(0, 8192, 0x5a);
        // Two pages at the one address; the second of them at the other as well.
        let (buses, root, vas, to) = ([1 << 33, 1 << 34], 24 * MIB, [LO + (64 << 20), LO + (66 << 20)], 20 * MIB);
        let client = &rogue.port.client;
        client.map_dma(buses[0], 8192, (true, true), Some((file.as_fd(), 0))).unwrap();
        client.map_dma(buses[1], 4096, (true, true), Some((file.as_fd(), 4096))).unwrap();
        let pages = [(vas[0], 8192, buses[0]), (vas[1], 4096, buses[1])];
        let mut channel = if scheme.0 == Scheme::Pv {
            let channel = rogue.entered_channel(root, 3).unwrap();
            let enter = |(va, bytes, at)| Call { code: pv::MAP, flags: pv::SYSTEM, root, va, bytes, at };
            assert_eq!(rogue.call(&pages.map(enter)), 0);
            channel
        } else {
            let mut space = rogue.space();
            for (va, bytes, at) in pages {
                space.map(&mut rogue, va, bytes, PhysAddr::system(at), Default::default()).unwrap();
            }
            rogue.channel(&mut space, 3)
        };
        rogue.list(&[(1, &[channel])]);
        rogue.submit(&mut channel, &[classes(), copy(VRAM_VA + to, vas[0] + 4096, 16)].concat());
        eventually("a copy by the one", || rogue.word(to) == 0x5a5a_5a5a);
        rogue.port.client.unmap_dma(buses[0], 8192).unwrap();
        memory.fill(4096, 4096, 0x66);
        rogue.submit(&mut channel, &copy(VRAM_VA + to + 16, vas[1], 16));
        eventually("a copy by the other", || rogue.word(to + 16) == 0x6666_6666 || rogue.has_failed(3));
        assert!(!rogue.has_failed(3), "{scheme:?}: it is gone at both");
        rogue.submit(&mut channel, &copy(VRAM_VA + to + 32, vas[0] + 4096, 16));
        eventually("a fault", || rogue.has_failed(3));
        assert_eq!(rogue.word(to + 32), 0, "{scheme:?}: it is still there where it was unmapped");
    }
}

/// Windows of all spaces together have a limit: the device's process has addresses for everybody.
#[test]
fn windows_leave_addresses_to_others() {
    let driver = host(512 * MIB, false);
    let (mut rogue, host) = rogue(&driver, Scheme::Fv, 64 * MIB);
    for id in 0..100 {
        let root = rogue.take(4096, 4096);
        let channel = rogue.blank_channel(id, root, root);
        rogue.bind(channel, root, (LO, (1 << 40) - (1 << 30)), LO);
    }
    // Asked last, so that all binds have been done.
    assert!(rogue.has_failed(99), "a limit");
    let bound = host.vgpu.channels();
    assert!((8..=16).contains(&bound), "{bound} windows of almost 2^40");
}

/// Files cost descriptors and addresses, of which a guest has so many.
#[test]
fn memory_files_are_charged() {
    let driver = host(256 * MIB, false);
    let (rogue, host) = rogue(&driver, Scheme::Fv, 16 * MIB);
    let map = |number: u64, bytes: u64| {
        let file = Memfd::create("rogue", bytes).unwrap();
        rogue.port.client.map_dma(number << 44, 4096, (true, true), Some((file.as_fd(), 0))).is_ok()
    };
    let taken = (1..=300).filter(|number| map(*number, 4096)).count();
    assert!((16..=96).contains(&taken), "{taken} files");
    rogue.port.client.unmap_all().unwrap();
    let large = (1..=10).filter(|number| map(*number, 1 << 40)).count();
    assert!((1..=4).contains(&large), "{large} TiB");
    rogue.port.client.unmap_all().unwrap();
    assert!(map(1, 4096), "all are given back");
    rogue.port.client.unmap_all().unwrap();
    assert_eq!(host.vgpu.config().budget.used().files, 0);
}

/// A guest that has more for its thread to do than it could do in an hour is ended all the same.
#[test]
fn a_guest_is_ended_in_mid_message() {
    let driver = host(512 * MIB, false);
    let (mut rogue, host) = rogue(&driver, Scheme::FvNaive, 64 * MIB);
    let mut space = rogue.space();
    // Every page a table of its own: as much to scan as there can be.
    for unit in 0..100 {
        space
            .map(&mut rogue, LO + (512 << 20) + unit * (2 << 20), 4096, PhysAddr::vram(0), Default::default())
            .unwrap();
    }
    rogue.channel(&mut space, 1);
    let at = regs::VF_BASE + vf::MMU_INVALIDATE;
    let trigger = (vf::INVALIDATE_TRIGGER.of(1) | 3).to_le_bytes();
    let writes = vec![(vfio_user::pci::BAR0, u64::from(at), &trigger[..]); 40_000];
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            host.vgpu.end();
        });
        let _ = rogue.port.client.write_multi(&writes);
    });
    assert!(start.elapsed() < BOUND / 2, "it took {:?}", start.elapsed());
}

/// A guest whose turn it is not does not run for moments, by making one group after the other.
#[test]
fn who_is_held_does_not_run() {
    let driver = host(256 * MIB, false);
    let (mut rogue, host) = rogue(&driver, Scheme::Fv, 32 * MIB);
    let mut space = rogue.space();
    let channels: Vec<Channel> = (0..12).map(|id| rogue.channel(&mut space, id)).collect();
    let (mut first, program) = (channels[0], rogue.load(TOUCH, "touch"));
    let run = |rogue: &mut Rogue, first: &mut Channel, times: u64| {
        let descriptor = rogue.describe(program, 1, 32, &[VRAM_VA + 20 * MIB, times]);
        rogue.submit(first, &[classes(), launch(descriptor)].concat());
    };
    run(&mut rogue, &mut first, 1);
    rogue.list(&[(0, &channels[..1])]);
    eventually("the kernel is compiled, and runs", || host.vgpu.usage().kernels == 1);
    host.vgpu.set_runnable(false);
    let before = host.vgpu.usage();
    run(&mut rogue, &mut first, 0);
    for round in 1..=10 {
        // The first in a group that is new, and comes first; then others in theirs.
        let one = |at: usize| (round * 12 + at as u32, std::slice::from_ref(&channels[at]));
        let groups: Vec<(u32, &[Channel])> = (0..12).map(one).collect();
        rogue.list(&groups);
    }
    assert!(!rogue.has_failed(0));
    assert_eq!(host.vgpu.usage(), before);
    host.vgpu.set_runnable(true);
    eventually("its turn", || host.vgpu.usage().gpu_time_ns > before.gpu_time_ns);
}

/// Notifiers are written where the guest has memory, and only there.
#[test]
fn notifiers_may_be_anywhere() {
    let driver = host(256 * MIB, false);
    for scheme in SCHEMES {
        let (mut rogue, _host) = rogue(&driver, scheme, 16 * MIB);
        rogue.lend(1 << 33, MIB).unwrap();
        let mut space = rogue.space();
        let last = 16 * MIB - 4096;
        let places = [
            (PhysAddr::vram(12 * MIB), true),
            (PhysAddr::system((1 << 33) + 4096), true),
            // A record fits, the log behind it does not.
            (PhysAddr::vram(last), true),
            (PhysAddr::vram(16 * MIB), false),
            (PhysAddr::vram(!0xfff), false),
            (PhysAddr::system((1 << 33) + MIB), false),
            (PhysAddr::system(!0xfff), false),
        ];
        for (id, (at, is_there)) in (0..).zip(places) {
            let mut channel = rogue.channel(&mut space, id);
            rogue.rebind(channel, |block| block.set_notifier(Some(at)));
            rogue.submit(&mut channel, &[Header::new(Header::OP_INC, 0, ILLEGAL, 1).0, 0]);
            eventually("a refusal", || rogue.has_failed(id));
            let mut record = Record::default();
            let found = rogue.read(at, record.as_mut_bytes()).is_ok();
            assert_eq!((found, record.status == STATUS_ERROR), (is_there, is_there), "{scheme:?}: {at:x?}");
            if is_there {
                assert_eq!((record.channel, record.code), (id, Code::PBDMA_ERROR));
            }
        }
    }
}

/// What a guest has had of the host's memory goes back when it leaves, whatever it keeps.
#[test]
fn who_leaves_keeps_no_memory() {
    let driver = host(256 * MIB, false);
    let mut kept = Vec::new();
    let (first, mut host) = rogue(&driver, Scheme::Fv, 16 * MIB);
    let mut rogue = first;
    for _ in 0..3 {
        let vram = Arc::clone(rogue.port.vram().unwrap());
        vram.fill(0, 16 * MIB as usize, 0x5a);
        kept.push(vram);
        drop(rogue);
        // The next comes when the one before has been cleaned up after.
        rogue = Rogue::new(Port::over(host.connect()).unwrap());
        let of_kept = kept.iter().map(|vram| vram.u32_at(8 << 20).load(Ordering::Relaxed));
        assert!(of_kept.clone().all(|word| word == 0), "{:x?}", of_kept.collect::<Vec<_>>());
    }
    let vram = Arc::clone(rogue.port.vram().unwrap());
    vram.fill(0, 4096, 0x5a);
    drop((rogue, host));
    assert_eq!(vram.u32_at(0).load(Ordering::Relaxed), 0);
}

#[test]
fn guests_are_told_of_interrupts_that_their_own_work_asked_for() {
    let driver = host(64 * MIB, false);
    let begin = || {
        let (mut rogue, behind) = rogue(&driver, Scheme::Fv, 16 * MIB);
        let mut space = rogue.space();
        let channel = rogue.channel(&mut space, 3);
        rogue.list(&[(1, &[channel])]);
        rogue.vf(vf::INTR_TOP_EN_SET, 1);
        rogue.vf(vf::INTR_LEAF_EN_SET, 1 << vector::NON_STALL);
        (rogue, behind, channel)
    };
    let pending = |rogue: &Rogue| rogue.port.read32(regs::VF_BASE + vf::INTR_LEAF) & 1 << vector::NON_STALL != 0;
    let ask = Header::new(Header::OP_IMMEDIATE, SUBCHANNEL_COMPUTE, NON_STALL_INTERRUPT, 0).0;
    // In this order they would be told.
    let (mut bystander, _host, mut idle) = begin();
    let (mut asking, _other, mut channel) = begin();
    assert!(!pending(&bystander) && !pending(&asking));
    asking.submit(&mut channel, &[classes(), vec![ask]].concat());
    eventually("it is told", || pending(&asking));
    assert!(!pending(&bystander), "it is told of another's");
    // However often others ask while only it listens, its own are told.
    asking.vf(vf::INTR_LEAF_EN_CLEAR, 1 << vector::NON_STALL);
    let there = asking.take(4096, 4096).address;
    for round in 1..=100 {
        asking.submit(&mut channel, &[classes(), vec![ask], release(VRAM_VA + there, round)].concat());
        eventually("another's work is done", || u64::from(asking.word(there)) == round);
        bystander.vf(vf::INTR_LEAF, 1 << vector::NON_STALL);
    }
    bystander.submit(&mut idle, &[classes(), vec![ask]].concat());
    eventually("it is told of its own", || pending(&bystander));
    bystander.vf(vf::INTR_LEAF, 1 << vector::NON_STALL);
    // What is asked for while nobody listens is told to who listens next.
    bystander.vf(vf::INTR_LEAF_EN_CLEAR, 1 << vector::NON_STALL);
    let sign = bystander.take(4096, 4096).address;
    bystander.submit(&mut idle, &[classes(), vec![ask], release(VRAM_VA + sign, 1)].concat());
    eventually("its work is done", || bystander.word(sign) == 1);
    bystander.vf(vf::INTR_LEAF_EN_SET, 1 << vector::NON_STALL);
    eventually("it is told after all", || pending(&bystander));
}
