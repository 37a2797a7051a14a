//! Two sessions over two software GPUs, as a program with two GPUs has them: what one shares with the host is seen by the other, at
//! the same address.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gpu::{
    AllocId, CodeImage, Command, ContextId, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, ModuleId, QueueId, Request,
    RuntimeMemory, SlotId,
};
use gpu_driver::{Budget, ClientConfig, Driver, HostCost};
use hostmem::Memfd;
use remote_gpu::{Address, RemoteGpu};
use session::{Backend, Charges, Manner, Monitor, Session, SharedAccount};
use softgpu::{Config, SoftGpu};
use tenancy::{Account, AccountAccess, Limits, NoDeviceCosts, Used};
use transport::unix;
use wire::handshake::features;
use wire::{Credential, Hello, limits::MAX_HELLO_BYTES};

const BOUND: Duration = Duration::from_secs(20);
const LO: u64 = 0x7000_0000_0000;
const BYTES: u64 = 64 << 10;
const QUEUE: QueueId = QueueId(1);
const CONTEXT: ContextId = ContextId(1);
/// Adds 1 to each of 64 numbers.
const PTX: &[u8] = b"
.version 8.5
.target sm_75
.address_size 64
.visible .entry add(.param .u64 at)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [at];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}
";

/// What a GPU's tenant has to pay for.
type Costs = (Arc<SharedAccount>, Arc<Budget>);

/// Sessions of one program with two GPUs that know nothing of each other, and what is charged on either side.
fn program(limits: &Limits) -> (Vec<Arc<RemoteGpu>>, Vec<Costs>) {
    let path = std::env::temp_dir().join(format!("sundial-import-{}-{:?}", std::process::id(), thread::current().id()));
    let listener = unix::listen(&path, 0o600).unwrap();
    let gpus: Vec<(Arc<Driver>, Costs)> = (0..2)
        .map(|number| {
            let config = Config { vram_bytes: 64 << 20, workers: 2, ..Config::default() }.numbered(number);
            let driver = Driver::start(SoftGpu::new(&config).unwrap()).unwrap();
            let budget = driver.budget(HostCost { bytes: 1 << 30, maps: 10_000, files: 100 }).unwrap();
            let account = Account::new(limits.clone(), Box::new(NoDeviceCosts));
            (driver, (SharedAccount::new(account), budget))
        })
        .collect();
    let costs = gpus.iter().map(|(_, costs)| costs.clone()).collect();
    thread::spawn(move || {
        let monitor = Monitor::start(|| panic!("the monitor is broken")).unwrap();
        for _ in 0..gpus.len() {
            let socket = unix::accept(&listener).unwrap();
            let mut hello = [0; MAX_HELLO_BYTES];
            let length = unix::receive(&socket, &mut hello).unwrap().length;
            let (driver, (account, budget)) = &gpus[Hello::decode(&hello[..length]).unwrap().gpu as usize];
            let config = ClientConfig { budget: Some(Arc::clone(budget)), ..ClientConfig::default() };
            let client = driver.open(config).unwrap();
            let closed = Arc::clone(&client);
            let backend = Backend {
                aperture: false,
                semaphores: Arc::clone(client.semaphore_file()),
                abort: Arc::new(|| ()),
                close: Arc::new(move || closed.close()),
                gpu: client,
            };
            let manner = Manner { gpus: 2, ..Manner::usual(features::ALL & !features::ON_DEMAND) };
            let charges = Charges::hold(account, manner.own()).unwrap();
            let session = Session::begin(Arc::new(socket), None, manner, &backend, charges, &monitor).unwrap();
            thread::spawn(move || session.run());
        }
    });
    let sessions = Address { path: path.clone(), credential: Credential::default() }.open_all().unwrap();
    let _ = std::fs::remove_file(&path);
    for gpu in &sessions {
        done(gpu, Request::SetAddressRange { lo: LO, bytes: 1 << 30 });
        done(gpu, Request::CreateContext { id: CONTEXT, runtime: RuntimeMemory::default() });
        done(gpu, Request::CreateQueue { id: QUEUE, context: CONTEXT, priority: 0 });
        done(gpu, Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(PTX.to_vec()), placed: vec![] });
    }
    (sessions, costs)
}

fn done(gpu: &RemoteGpu, request: Request) {
    gpu.request(request).unwrap();
}

/// Does one thing after all that came before.
fn run(gpu: &RemoteGpu, number: u64, command: Command<'_>) {
    gpu.submit(QUEUE, &[command, Command::Signal { slot: SlotId(1), value: number }]).unwrap();
    gpu.wait(CONTEXT, SlotId(1), number, Some(BOUND)).unwrap();
}

fn add(gpu: &RemoteGpu, number: u64, at: u64) {
    let params = at.to_le_bytes();
    let launch = Command::Launch {
        module: ModuleId(1),
        kernel: 0,
        grid: [1; 3],
        block: [64, 1, 1],
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params: &params,
    };
    run(gpu, number, launch);
}

fn map(at: u64, id: u32) -> Request {
    Request::Map { at: DevAddr(at), id: AllocId(id), offset: 0, bytes: BYTES, access: MapAccess::ReadWrite }
}

fn used(costs: &Costs) -> (Used, HostCost) {
    (costs.0.with(|account| account.used()), costs.1.used())
}

/// Waits until a GPU's tenant holds nothing.
fn until_unused(costs: &Costs) {
    let start = Instant::now();
    while used(costs) != (Used::default(), HostCost { bytes: 0, maps: 0, files: 0 }) {
        assert!(start.elapsed() < BOUND, "{:?}", used(costs));
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn kernels_and_copies_of_both_see_the_same_memory() {
    let (gpus, costs) = program(&Limits::default());
    let [maker, other] = [&gpus[0], &gpus[1]];
    assert_ne!(maker.properties().uuid, other.properties().uuid);
    // Channels and code take something as well.
    let signal = Command::Signal { slot: SlotId(0), value: 1 };
    gpus.iter().for_each(|gpu| run(gpu, 1, signal));
    let before = used(&costs[1]);
    // Small pieces share a file: three of them, and what lies between stays the maker's.
    for id in 1..=5 {
        done(maker, Request::Alloc { id: AllocId(id), bytes: BYTES, kind: MemoryKind::Host });
    }
    let place = maker.host_memory(AllocId(2)).unwrap();
    let file = place.file.map().unwrap();
    let base = place.offset as usize;
    let word = |at: usize| {
        let mut word = [0; 4];
        file.read(base + at, &mut word);
        u32::from_le_bytes(word)
    };
    for id in [2, 3, 5] {
        let memory = maker.host_memory(AllocId(id)).unwrap();
        assert!(Arc::ptr_eq(&memory.file, &place.file), "allocations of 64 KiB share a file");
        other.import(AllocId(id), &memory, BYTES).unwrap();
        assert_eq!(other.host_memory(AllocId(id)).unwrap().offset, memory.offset);
    }
    let with = used(&costs[1]);
    assert_eq!(with.1.files - before.1.files, 1, "one file, however many parts of it");
    assert!(with.0.host_bytes - before.0.host_bytes >= 3 * BYTES, "what its kernels may touch is charged");
    assert_eq!(with.0.allocations - before.0.allocations, 3);
    let at = LO + (2 << 20);
    for gpu in &gpus {
        done(gpu, map(at, 2));
    }
    // Kernels in turn; copy engines; copies of the host's.
    add(maker, 2, at);
    add(other, 2, at);
    add(maker, 3, at);
    assert_eq!([word(0), word(63 * 4), word(64 * 4)], [3, 3, 0]);
    run(other, 3, Command::Fill { dst: DevAddr(at), value: 40, element: 4, width: 64, height: 1, pitch: 256 });
    add(maker, 4, at);
    assert_eq!(word(63 * 4), 41);
    file.write(base + 8, &7u32.to_le_bytes());
    let bytes = Memfd::create("program", 4096).unwrap().map().unwrap();
    other.read(bytes.range(0, 16), DevAddr(at)).unwrap();
    let mut seen = [0; 16];
    bytes.read(0, &mut seen);
    assert_eq!(seen.map(u32::from), [41, 0, 0, 0, 41, 0, 0, 0, 7, 0, 0, 0, 41, 0, 0, 0]);
    // Its neighbour in the file, where it is mapped on the other alone.
    done(other, map(at + BYTES, 3));
    run(other, 4, Command::Fill { dst: DevAddr(at + BYTES), value: 9, element: 4, width: 64, height: 1, pitch: 256 });
    assert_eq!(word(BYTES as usize), 9);
    let unmapped = other.read(bytes.range(0, 16), DevAddr(at + 2 * BYTES));
    assert!(unmapped.is_err(), "what was not imported is not there");

    // Given back on either side, in either order.
    done(maker, Request::Unmap { at: DevAddr(at), bytes: BYTES });
    done(maker, Request::Free { id: AllocId(2) });
    file.fill(base, 4, 0);
    add(other, 5, at);
    assert_eq!(word(0), 1, "what was imported is there until it is given back");
    done(other, Request::Unmap { at: DevAddr(at), bytes: 2 * BYTES });
    for id in [2, 3, 5] {
        done(other, Request::Free { id: AllocId(id) });
        assert!(other.host_memory(AllocId(id)).is_err());
    }
    assert_eq!(used(&costs[1]).1.files, before.1.files);
    let after = used(&costs[1]).0;
    assert_eq!((after.host_bytes, after.allocations), (before.0.host_bytes, before.0.allocations));
}

#[test]
fn what_is_imported_counts_as_what_is_made() {
    let limits = Limits { host_bytes: session::OWN.host_bytes + (8 << 20), allocations: 3, ..Limits::default() };
    let (gpus, costs) = program(&limits);
    let [maker, other] = [&gpus[0], &gpus[1]];
    done(maker, Request::Alloc { id: AllocId(1), bytes: 4 << 20, kind: MemoryKind::Host });
    let memory = maker.host_memory(AllocId(1)).unwrap();
    other.import(AllocId(1), &memory, 4 << 20).unwrap();
    // The same once more: it is not made, and yet nobody else may pay for it.
    let refused = other.import(AllocId(2), &memory, 4 << 20);
    assert!(matches!(refused, Err(GpuError::OutOfMemory { .. })), "{refused:?}");
    let allocs = |gpu: &RemoteGpu| gpu.import(AllocId(7), &memory, 4096);
    other.import(AllocId(2), &memory, 4096).unwrap();
    other.import(AllocId(3), &memory, 4096).unwrap();
    assert!(matches!(allocs(other), Err(GpuError::TooMany { .. })));
    done(other, Request::Free { id: AllocId(3) });
    allocs(other).unwrap();
    // The maker's end takes nothing from who has imported it.
    let mut gpus = gpus;
    drop((memory, gpus.remove(0)));
    until_unused(&costs[0]);
    done(
        &gpus[0],
        Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes: 4 << 20, access: MapAccess::ReadWrite },
    );
    add(&gpus[0], 1, LO);
}
