//! Guests give VRAM back and take it again while they run; those that lie about it harm nobody else.
//!
//! `LEDGER_SEED` repeats the steps of the ledger's test.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod guest;
#[expect(dead_code, reason = "of what it has, some is used here")]
#[path = "../../gpu_driver/tests/software_gpu/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use device_io::{DeviceBacking, VramOffset};
use gpu::{AllocId, Command, DevAddr, Gpu, GpuError, MemoryKind, Request, Response};
use gpu_driver::{ClientConfig, Driver, HostCost};
use gpu_spec::balloon::{self, BLOCK_BYTES};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::regs::{self, vf};
use rogue::work::{classes, copy};
use rogue::{Port, Rogue, VRAM_VA};
use softgpu::{Config, SoftGpu};
use vgpu::{NotResized, Scheme, Vgpu};

use crate::guest::{Host, guest_of, host};
use crate::support::{BOUND, Tenant, eventually, kernel};

const MIB: u64 = 1 << 20;
const SCHEMES: [Scheme; 3] = [Scheme::Fv, Scheme::Pv, Scheme::FvNaive];

mod device {
    use std::sync::Arc;

    use device_io::DeviceBacking;

    pub(crate) fn make(vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
        crate::guest::gpu(vgpu::Scheme::Fv, vram_bytes, lend)
    }
}

/// A guest with a driver in it.
fn driven(driver: &Arc<Driver>, scheme: Scheme, vram_bytes: u64) -> (Arc<Vgpu>, Arc<Driver>) {
    let host = Host::new(driver, scheme, vram_bytes);
    let vgpu = Arc::clone(&host.vgpu);
    (vgpu, Driver::start(Arc::new(guest_of(host))).unwrap())
}

/// A guest that writes by hand what a driver would, and what stands behind it.
fn by_hand(driver: &Arc<Driver>, scheme: Scheme, vram_bytes: u64) -> (Port, Host) {
    let mut host = Host::new(driver, scheme, vram_bytes);
    (Port::over(host.connect()).unwrap(), host)
}

fn memory_info(tenant: &Tenant) -> (u64, u64) {
    match tenant.client.request(Request::MemoryInfo).unwrap() {
        Response::Memory { free, total } => (free, total),
        other => panic!("{other:?}"),
    }
}

fn fill(tenant: &Tenant, at: DevAddr, bytes: u64, value: u32) {
    tenant.submit(0, &[Command::Fill { dst: at, value, element: 4, width: bytes / 4, height: 1, pitch: 0 }]);
    tenant.sync(0);
}

fn is_all(tenant: &Tenant, at: DevAddr, bytes: u64, value: u32) -> bool {
    tenant.read_u32(at, (bytes / 4) as usize).iter().all(|word| *word == value)
}

fn adds(tenant: &Tenant, round: u32) {
    const N: u64 = 1024;
    let [out, a, b] = [tenant.alloc(N * 4), tenant.alloc(N * 4), tenant.alloc(N * 4)];
    fill(tenant, a, N * 4, round);
    fill(tenant, b, N * 4, 1);
    tenant.launch(0, kernel::ADD, (N / 128) as u32, 128, &[out.0, a.0, b.0]).unwrap();
    tenant.sync(0);
    assert!(is_all(tenant, out, N * 4, round + 3), "round {round}");
}

#[test]
fn a_guest_gives_memory_back_and_takes_it_again() {
    for scheme in SCHEMES {
        let driver = host(112 * MIB, false);
        let begin = driver.counts();
        let session = Tenant::new(&driver, ClientConfig::default());
        let (vgpu, inside) = driven(&driver, scheme, 64 * MIB);
        let tenant = Tenant::new(&inside, ClientConfig::default());
        tenant.load(0, support::PTX);
        let kept = tenant.alloc(8 * MIB);
        fill(&tenant, kept, 8 * MIB, 0x1111);
        let (before, inside_before) = (driver.counts().vram_free, memory_info(&tenant));

        vgpu.resize(24 * MIB, BOUND).unwrap();
        assert_eq!(vgpu.vram_used(), 24 * MIB);
        assert_eq!(driver.counts().vram_free, before + 40 * MIB, "{scheme:?}: it is everybody's now");
        assert_eq!(memory_info(&tenant), (inside_before.0 - 40 * MIB, inside_before.1), "the guest sees less");
        assert!(is_all(&tenant, kept, 8 * MIB, 0x1111), "{scheme:?}: what is in use stays");
        adds(&tenant, 1);
        let refused = tenant.try_alloc(32 * MIB, MemoryKind::Vram);
        assert!(matches!(refused, Err(GpuError::OutOfMemory { .. })), "{refused:?}");

        // Somebody else has it, finds nothing there, and leaves something.
        let (theirs, id) = session.try_alloc(before, MemoryKind::Vram).unwrap();
        assert!(is_all(&session, theirs, before, 0), "{scheme:?}: memory of the guest's");
        fill(&session, theirs, before, 0x2222);
        let none = vgpu.resize(64 * MIB, BOUND);
        assert!(matches!(none, Err(NotResized::NoVram { .. })), "{none:?}");
        assert!(is_all(&tenant, kept, 8 * MIB, 0x1111));
        session.client.request(Request::Unmap { at: theirs, bytes: before }).unwrap();
        session.client.request(Request::Free { id }).unwrap();

        let between = driver.counts().vram_free;
        vgpu.resize(64 * MIB, BOUND).unwrap();
        assert_eq!((vgpu.vram_used(), driver.counts().vram_free), (64 * MIB, between - 40 * MIB));
        eventually("the guest sees it", || memory_info(&tenant).0 > 32 * MIB);
        let more = tenant.alloc(32 * MIB);
        assert!(is_all(&tenant, more, 32 * MIB, 0), "{scheme:?}: memory of the session's");
        fill(&tenant, more, 32 * MIB, 0x3333);
        assert!(is_all(&tenant, more, 32 * MIB, 0x3333));
        adds(&tenant, 2);
        drop((tenant, inside, vgpu, session));
        eventually("all is given back", || driver.counts() == begin);
    }
}

#[test]
fn what_is_in_use_stays_until_it_is_free() {
    let driver = host(160 * MIB, false);
    let (vgpu, inside) = driven(&driver, Scheme::Fv, 64 * MIB);
    let tenant = Tenant::new(&inside, ClientConfig::default());
    let (at, id) = tenant.try_alloc(40 * MIB, MemoryKind::Vram).unwrap();
    fill(&tenant, at, 40 * MIB, 0x4444);
    let Err(NotResized::Partly { held, .. }) = vgpu.resize(16 * MIB, Duration::from_secs(3)) else {
        panic!("most of it is in use")
    };
    assert!((40 * MIB..64 * MIB).contains(&held) && vgpu.vram_used() == held, "{held}");
    assert!(is_all(&tenant, at, 40 * MIB, 0x4444));
    // It is asked for no more; and then again, and gives it as soon as it can.
    std::thread::scope(|scope| {
        let resized = scope.spawn(|| vgpu.resize(16 * MIB, BOUND));
        assert_eq!(vgpu.vram_used(), held);
        tenant.client.request(Request::Unmap { at, bytes: 40 * MIB }).unwrap();
        tenant.client.request(Request::Free { id }).unwrap();
        resized.join().unwrap().unwrap();
    });
    assert_eq!(vgpu.vram_used(), 16 * MIB);
    // The next driver finds what there is, in one piece; and can be given no more than that while it is there.
    drop((tenant, inside));
    let sized = Vgpu::sized(
        &driver,
        vgpu::Config {
            name: "next".into(),
            vram_bytes: 64 * MIB,
            scheme: Scheme::Fv,
            watching: vgpu::Watching::default(),
            budget: driver.budget(HostCost::default()).unwrap(),
        },
        16 * MIB,
    )
    .unwrap();
    assert_eq!(sized.vram_used(), 16 * MIB);
    sized.resize(64 * MIB, BOUND).unwrap();
    sized.resize(2 * MIB, BOUND).unwrap();
    assert_eq!(sized.vram_used(), 2 * MIB, "without a guest nobody is asked");
    for bad in [0, MIB, 66 * MIB] {
        assert!(matches!(sized.resize(bad, BOUND), Err(NotResized::BadSize { .. })));
    }
}

/// The mailbox by hand.
struct Liar<'a>(&'a Port);

impl Liar<'_> {
    fn word(&self, word: u32) -> u32 {
        self.0.read32(regs::VF_BASE + vf::MAILBOX + word * 4)
    }

    fn put(&self, word: u32, value: u32) {
        self.0.write32(regs::VF_BASE + vf::MAILBOX + word * 4, value);
    }

    /// The status.
    fn command(&self, command: u32, first: u32, count: u32) -> u32 {
        self.put(balloon::FIRST, first);
        self.put(balloon::COUNT, count);
        self.put(balloon::COMMAND, command);
        self.word(balloon::STATUS)
    }
}

#[test]
fn who_lies_gets_nothing_for_it() {
    let gpu = SoftGpu::new(&Config { vram_bytes: 256 * MIB, workers: 2, ..Config::default() }).unwrap();
    let driver = Driver::start(Arc::clone(&gpu) as _).unwrap();
    for scheme in SCHEMES {
        let begin = driver.counts();
        let (guest, host) = by_hand(&driver, scheme, 32 * MIB);
        let (vgpu, liar) = (Arc::clone(&host.vgpu), Liar(&guest));
        assert_eq!((liar.word(balloon::OFFER), liar.word(balloon::TARGET)), (balloon::MAGIC, 16));
        assert_eq!(vgpu.resize(16 * MIB, BOUND), Err(NotResized::Unwilling));
        assert_eq!(liar.command(balloon::GIVE, 3, 1), 1, "nobody has asked");
        liar.put(balloon::LISTENER, balloon::MAGIC);
        assert_eq!(liar.word(balloon::LISTENER), 0);
        guest.write_vram(3 * BLOCK_BYTES, &[0x55; 64]);
        guest.write_vram(15 * BLOCK_BYTES, &[0x66; 64]);
        let third = vgpu.vram_at(3 * BLOCK_BYTES).unwrap();
        let device_byte = |at: VramOffset| {
            let mut byte = [0; 1];
            gpu.read_vram(at, &mut byte);
            byte[0]
        };
        assert_eq!(liar.word(balloon::TARGET), 16, "what was written before has been done");
        assert_eq!(device_byte(third), 0x55);
        std::thread::scope(|scope| {
            let resized = scope.spawn(|| vgpu.resize(24 * MIB, BOUND));
            eventually("it is asked", || liar.word(balloon::TARGET) == 12);
            for (first, count) in [(16, 1), (1000, 1), (u32::MAX, 1), (u32::MAX, u32::MAX), (0, 0x8000_0000)] {
                let status = liar.command(balloon::GIVE, first, count);
                assert!(status == 1 || first == 0, "{first} {count}: {status}");
                if first == 0 {
                    assert_eq!(status, 5, "no more than it is asked for");
                    resized.join().unwrap().unwrap();
                    return;
                }
                assert_eq!(liar.command(balloon::TAKE, 3, 1), 1, "what it has it cannot take");
            }
        });
        assert_eq!(vgpu.vram_used(), 24 * MIB);
        assert_eq!(liar.command(balloon::GIVE, 8, 1), 1, "nobody asks for more");
        assert_eq!(device_byte(third), 0, "{scheme:?}: scrubbed");
        assert!(vgpu.vram_at(3 * BLOCK_BYTES).is_none() && vgpu.vram_at(4 * BLOCK_BYTES).is_some());

        // It goes on using what it gave.
        guest.write_vram(3 * BLOCK_BYTES, &[0x77; 64]);
        assert_eq!(liar.word(balloon::TARGET), 12, "and that has been done");
        assert_eq!(device_byte(third), 0, "{scheme:?}: it reached what is not its own any more");
        let taken = driver.lease(driver.budget(HostCost::default()).unwrap(), 0, Arc::new(Nobody));
        while let Some(run) = taken.take_vram(BLOCK_BYTES, BLOCK_BYTES) {
            gpu.fill_vram(VramOffset(run.offset), 64, 0x88);
        }
        assert_eq!(device_byte(third), 0x88, "it is somebody else's");
        let mut seen = [0; 64];
        guest.read_vram(3 * BLOCK_BYTES, &mut seen);
        assert!(!seen.contains(&0x88), "{scheme:?}: it sees what is not its own any more");
        if let Some(vram) = guest.vram() {
            // Nor does it get memory of the host's that way, for long.
            vram.fill(0, 32 * MIB as usize, 0x99);
            eventually("its pages are taken", || {
                vram.u32_at(3 * BLOCK_BYTES as usize).load(std::sync::atomic::Ordering::Relaxed) == 0
            });
            assert_eq!(vram.u32_at(15 * BLOCK_BYTES as usize).load(std::sync::atomic::Ordering::Relaxed), 0x9999_9999);
        }
        drop(taken);

        // Back again: twice is once, and what it has stays as it is.
        std::thread::scope(|scope| {
            let resized = scope.spawn(|| vgpu.resize(32 * MIB, BOUND));
            eventually("it may have more", || liar.word(balloon::TARGET) == 16);
            assert_eq!(liar.command(balloon::GIVE, 8, 1), 1);
            assert_eq!(liar.command(balloon::TAKE, 15, 4), 1, "what it has");
            assert_eq!(liar.command(balloon::TAKE, 16, 4), 1, "what there is not");
            assert_eq!(liar.command(balloon::TAKE, 2, 1), 0);
            assert_eq!(liar.command(balloon::TAKE, 2, 1), 1);
            assert_eq!(liar.command(balloon::TAKE, 0, 4), 3, "as far as it has not");
            assert_eq!(liar.command(balloon::TAKE, 3, 1), 0);
            resized.join().unwrap().unwrap();
        });
        let mut back = [1; 64];
        guest.read_vram(3 * BLOCK_BYTES, &mut back);
        assert_eq!(back, [0; 64], "{scheme:?}");
        drop((guest, host, vgpu));
        eventually("all is given back", || driver.counts() == begin);
    }
}

/// How much of each block is marked: where the guest copies to, and some around.
const MARKED: usize = 16 << 10;

/// Somebody who takes what a guest gives, marks it, and looks that nobody else does.
struct Taker {
    lease: gpu_driver::Lease,
    held: Vec<gpu_driver::VramRange>,
}

impl Taker {
    fn mark(&mut self, gpu: &SoftGpu) {
        // Some is left for what serving the guest takes.
        while self.lease.vram_free() > 8 * MIB
            && let Some(run) = self.lease.take_vram(BLOCK_BYTES, BLOCK_BYTES)
        {
            assert!(Taker::is_all(gpu, run, 0), "it was not scrubbed");
            gpu.fill_vram(VramOffset(run.offset), MARKED, 0xc3);
            self.held.push(run);
        }
    }

    fn check(&self, gpu: &SoftGpu) {
        for run in &self.held {
            assert!(Taker::is_all(gpu, *run, 0xc3), "a guest has written what is not its own");
        }
    }

    fn is_all(gpu: &SoftGpu, run: gpu_driver::VramRange, value: u8) -> bool {
        let mut seen = [!value; MARKED];
        gpu.read_vram(VramOffset(run.offset), &mut seen);
        seen.iter().all(|byte| *byte == value)
    }
}

/// A guest copies without end from and to all that it has, had and never had, while it gives and takes at random.
#[test]
fn what_changes_hands_under_work_is_nobodys_twice() {
    let gpu = SoftGpu::new(&Config { vram_bytes: 64 * MIB, workers: 2, ..Config::default() }).unwrap();
    let driver = Driver::start(Arc::clone(&gpu) as _).unwrap();
    for scheme in [Scheme::Fv, Scheme::FvNaive] {
        let begin = driver.counts();
        let (port, behind) = by_hand(&driver, scheme, 32 * MIB);
        let mut rogue = Rogue::new(port);
        let mut taker = Taker {
            lease: driver.lease(driver.budget(HostCost::default()).unwrap(), 0, Arc::new(Nobody)),
            held: vec![],
        };
        let mut space = rogue.space();
        let mut channel = rogue.channel(&mut space, 3);
        rogue.list(&[(1, &[channel])]);
        rogue.submit(&mut channel, &classes());
        // What its tables, its channel and its rings lie in it keeps, or it would not get on.
        let (mut next, mut done, mut gone) = (0x9e37_79b9_u64, 0u32, 0);
        let mut random = |below: u64| {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (next >> 33) % below
        };
        Liar(&rogue.port).put(balloon::LISTENER, balloon::MAGIC);
        for round in 0..400 {
            // On a busy machine a round may be over before the mediator has heard of it.
            if round >= 20 && done > 10 && gone > 0 {
                break;
            }
            let target = (8 + random(9)) * BLOCK_BYTES;
            std::thread::scope(|scope| {
                let vgpu = &behind.vgpu;
                scope.spawn(move || vgpu.resize(target, Duration::from_millis(30)));
                for _ in 0..12 {
                    let [from, to] = [random(16), random(16)].map(|block| VRAM_VA + block * BLOCK_BYTES + 4096);
                    rogue.submit(&mut channel, &copy(to, from, 4096));
                    let (first, count) = (8 + random(8) as u32, 1 + random(4) as u32);
                    let command = if random(2) == 0 { balloon::GIVE } else { balloon::TAKE };
                    let status = Liar(&rogue.port).command(command, first, count);
                    done += u32::from(status != 1);
                    if rogue.has_failed(channel.id) {
                        gone += 1;
                        rogue.unbind(channel.id);
                        channel = rogue.channel(&mut space, 3);
                        rogue.list(&[(1, &[channel])]);
                        rogue.submit(&mut channel, &classes());
                    }
                }
            });
            // All that is free is somebody's at once.
            taker.mark(&gpu);
            taker.check(&gpu);
            if round % 3 == 2 {
                taker.held.drain(..).for_each(|run| taker.lease.put_vram(run));
            }
        }
        assert!(done > 10 && gone > 0, "{scheme:?}: {done} commands did something, {gone} channels failed");
        drop((rogue, behind, taker));
        eventually("all is given back", || driver.counts() == begin);
    }
}

#[test]
fn what_is_kept_beside_tables_is_charged() {
    let driver = host(160 * MIB, false);
    let tables = |bytes: u64| {
        let budget = driver.budget(HostCost { bytes, ..HostCost::default() }).unwrap();
        let config = vgpu::Config {
            name: "kept".into(),
            vram_bytes: 64 * MIB,
            scheme: Scheme::Fv,
            watching: vgpu::Watching::default(),
            budget,
        };
        let mut host = Host::of(Vgpu::new(&driver, config).unwrap());
        let budget = Arc::clone(&host.vgpu.config().budget);
        let mut rogue = Rogue::new(Port::over(host.connect()).unwrap());
        let mut space = rogue.space();
        let channel = rogue.channel(&mut space, 1);
        // Asked first: all that was written before has been done then.
        let failed = rogue.has_failed(channel.id);
        let held = budget.used().bytes;
        drop((rogue, host));
        eventually("nothing is charged any more", || budget.used().bytes == 0);
        (held, failed)
    };
    let (held, failed) = tables(MIB);
    assert!(held >= 512 << 10 && !failed, "{held}");
    let (held, failed) = tables(256 << 10);
    assert!(held <= 256 << 10 && failed, "{held}");
}

/// Hears nothing.
struct Nobody;

impl gpu_driver::Mediator for Nobody {
    fn fault(&self, _fault: &gpu_spec::fault::Fault) {}
    fn channel_error(&self) {}
    fn signal(&self) {}
    fn lost(&self) {}
}

#[test]
fn work_in_what_was_given_back_faults() {
    for scheme in [Scheme::Fv, Scheme::FvNaive] {
        let driver = host(64 * MIB, false);
        let (port, behind) = by_hand(&driver, scheme, 32 * MIB);
        let (vgpu, mut rogue) = (Arc::clone(&behind.vgpu), Rogue::new(port));
        let mut space = rogue.space();
        let mut channel = rogue.channel(&mut space, 3);
        rogue.list(&[(1, &[channel])]);
        let (from, to) = (12 * MIB, 20 * MIB);
        rogue.put(PhysAddr::vram(from), &[0x5a; 16]);
        rogue.submit(&mut channel, &[classes(), copy(VRAM_VA + to, VRAM_VA + from, 16)].concat());
        eventually("the copy", || rogue.word(to) == 0x5a5a_5a5a);
        let liar = Liar(&rogue.port);
        liar.put(balloon::LISTENER, balloon::MAGIC);
        assert_eq!(liar.word(balloon::TARGET), 16, "what was written before has been done");
        std::thread::scope(|scope| {
            let resized = scope.spawn(|| vgpu.resize(30 * MIB, BOUND));
            eventually("it is asked", || liar.word(balloon::TARGET) == 15);
            assert_eq!(liar.command(balloon::GIVE, (to / BLOCK_BYTES) as u32, 1), 0);
            resized.join().unwrap().unwrap();
        });
        // Its tables still say that it has it.
        let session = Tenant::new(&driver, ClientConfig::default());
        let free = driver.counts().vram_free / (4 * MIB) * (4 * MIB);
        let (theirs, bytes) = (session.alloc(free - 8 * MIB), free - 8 * MIB);
        rogue.submit(&mut channel, &copy(VRAM_VA + to, VRAM_VA + from, 16));
        eventually("a fault", || rogue.has_failed(3));
        assert!(is_all(&session, theirs, bytes, 0), "{scheme:?}: it wrote what is not its own any more");
    }
}

/// What somebody has of the ledger, and the mark that it has left there.
struct Owner {
    vgpu: Arc<Vgpu>,
    /// By block of the guest's: what was written.
    marks: HashMap<u64, u64>,
}

impl Owner {
    /// Looks that its own is as it was, and what is new is zero; marks all.
    fn look(&mut self, gpu: &SoftGpu, next: &mut u64) {
        let blocks = self.vgpu.config().vram_bytes / BLOCK_BYTES;
        for block in 0..blocks {
            let Some(at) = self.vgpu.vram_at(block * BLOCK_BYTES + 64) else {
                self.marks.remove(&block);
                continue;
            };
            let mut word = [0; 8];
            gpu.read_vram(at, &mut word);
            assert_eq!(u64::from_le_bytes(word), self.marks.get(&block).copied().unwrap_or(0), "block {block}");
            *next += 1;
            gpu.write_vram(at, &next.to_le_bytes());
            self.marks.insert(block, *next);
        }
    }
}

/// Sessions that allocate and free, guests that come, go, grow and shrink: at any time each byte of VRAM is free, or somebody's,
/// and nobody's twice.
#[test]
fn the_ledger_is_the_device() {
    let seed = std::env::var("LEDGER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("LEDGER_SEED={seed}");
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let gpu = SoftGpu::new(&Config { vram_bytes: 128 * MIB, workers: 1, ..Config::default() }).unwrap();
    let driver = Driver::start(Arc::clone(&gpu) as _).unwrap();
    let begin = driver.counts();
    let session = Tenant::new(&driver, ClientConfig::default());
    let mut allocs: Vec<(DevAddr, AllocId, u64, u32)> = Vec::new();
    let mut guests: Vec<Owner> = Vec::new();
    let mut marks = 0;
    let of_guests =
        |guests: &[Owner]| guests.iter().map(|owner| owner.vgpu.vram_used() + owner.vgpu.vram_overhead()).sum::<u64>();
    for step in 0..400u32 {
        // What is neither free nor a guest's is the session's, and the driver's own.
        let rest = |guests: &[Owner]| begin.vram_total - driver.counts().vram_free - of_guests(guests);
        let before = (rest(&guests), of_guests(&guests));
        match next(6) {
            0 if guests.len() < 4 => {
                let scheme = SCHEMES[next(3) as usize];
                let budget = driver.budget(HostCost::default()).unwrap();
                let (most, now) = (next(24) + 1, next(24) + 1);
                let (vram_bytes, now) = (most.max(now) * BLOCK_BYTES, now * BLOCK_BYTES);
                let config = vgpu::Config {
                    name: format!("{step}"),
                    vram_bytes,
                    scheme,
                    watching: vgpu::Watching::default(),
                    budget,
                };
                if let Ok(vgpu) = Vgpu::sized(&driver, config, now) {
                    assert_eq!(vgpu.vram_used(), now);
                    guests.push(Owner { vgpu, marks: HashMap::new() });
                }
                assert_eq!(rest(&guests), before.0, "step {step}");
            }
            1 if !guests.is_empty() => {
                drop(guests.swap_remove(next(guests.len() as u64) as usize));
                assert_eq!(rest(&guests), before.0, "step {step}");
            }
            2 | 3 if !guests.is_empty() => {
                let owner = next(guests.len() as u64) as usize;
                let (vgpu, had) = (Arc::clone(&guests[owner].vgpu), guests[owner].vgpu.vram_used());
                let bytes = (next(vgpu.config().vram_bytes / BLOCK_BYTES) + 1) * BLOCK_BYTES;
                let free = driver.counts().vram_free;
                match vgpu.resize(bytes, BOUND) {
                    Ok(()) => assert_eq!(vgpu.vram_used(), bytes),
                    Err(error) => {
                        assert!(matches!(error, NotResized::NoVram { .. }), "{error}");
                        assert!(bytes > had && vgpu.vram_used() == had, "step {step}: {free} were free");
                    }
                }
                // Without a guest it is as new.
                guests[owner].marks.clear();
                assert_eq!(rest(&guests), before.0, "step {step}");
            }
            4 if allocs.len() < 8 => {
                let bytes = (next(16 * 256) + 1) * 4096;
                if let Ok((at, id)) = session.try_alloc(bytes, MemoryKind::Vram) {
                    assert!(is_all(&session, at, bytes, 0), "step {step}: memory of somebody else's");
                    fill(&session, at, bytes, step + 1);
                    allocs.push((at, id, bytes, step + 1));
                }
                assert_eq!(of_guests(&guests), before.1, "step {step}");
            }
            _ if !allocs.is_empty() => {
                let (at, id, bytes, mark) = allocs.swap_remove(next(allocs.len() as u64) as usize);
                assert!(is_all(&session, at, bytes, mark), "step {step}: somebody else has written");
                session.client.request(Request::Unmap { at, bytes }).unwrap();
                session.client.request(Request::Free { id }).unwrap();
                assert_eq!(of_guests(&guests), before.1, "step {step}");
            }
            _ => {}
        }
        assert!(rest(&guests) >= session.client.memory_used(), "step {step}");
        guests.iter_mut().for_each(|owner| owner.look(&gpu, &mut marks));
    }
    drop((guests, session));
    eventually("all is given back", || driver.counts() == begin);
}
