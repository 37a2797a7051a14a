//! Sessions over the software GPU and its driver: every wait of a client ends, whether it looks or sleeps, and
//! however late the daemon hears of it.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{
    AllocId, CodeImage, Command, ContextId, DevAddr, Gpu, MapAccess, MemoryKind, ModuleId, QueueId, Request,
    RuntimeMemory, SlotId,
};
use gpu_driver::{ClientConfig, Driver};
use hostmem::Memfd;
use remote_gpu::RemoteGpu;
use session::{Backend, Charges, Manner, Monitor, Session, SharedAccount};
use softgpu::{Config, SoftGpu};
use tenancy::{Account, Limits, NoDeviceCosts};
use transport::unix;
use wire::{Credential, limits::MAX_HELLO_BYTES};

const LO: u64 = 0x7000_0000_0000;
const BOUND: Duration = Duration::from_secs(20);
const ROUNDS: u64 = 500;
/// `spin(flag)`: until flag[0] is not 0; `store(at, value)`.
const PTX: &str = ".version 8.5\n.target sm_75\n.address_size 64\n\
    .visible .entry spin(.param .u64 flag)\n{\n.reg .pred %p1;\n.reg .b32 %r1;\n.reg .b64 %rd1;\n\
    ld.param.u64 %rd1, [flag];\nL: ld.volatile.global.u32 %r1, [%rd1];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra L;\nret;\n}\n\
    .visible .entry store(.param .u64 at, .param .u64 value)\n{\n.reg .b64 %rd<3>;\n\
    ld.param.u64 %rd1, [at];\nld.param.u64 %rd2, [value];\nst.global.u64 [%rd1], %rd2;\nret;\n}\n";

/// A daemon's worth of sessions over one device, for this many clients.
fn serve(clients: u32) -> (std::path::PathBuf, Vec<Arc<RemoteGpu>>) {
    let path = std::env::temp_dir().join(format!("sundial-wakeups-{}", std::process::id()));
    let listener = unix::listen(&path, 0o600).unwrap();
    let config = Config { vram_bytes: 256 << 20, workers: 2, lend: true, ..Config::default() };
    let driver = Driver::start(SoftGpu::new(&config).unwrap()).unwrap();
    std::thread::spawn(move || {
        let monitor = Monitor::start(|| panic!("the monitor is broken")).unwrap();
        let account = SharedAccount::new(Account::new(Limits::default(), Box::new(NoDeviceCosts)));
        std::thread::scope(|scope| {
            for _ in 0..clients {
                let socket = unix::accept(&listener).unwrap();
                unix::receive(&socket, &mut [0; MAX_HELLO_BYTES]).unwrap();
                let client = driver.open(ClientConfig::default()).unwrap();
                let closed = Arc::clone(&client);
                let backend = Backend {
                    aperture: false,
                    semaphores: Arc::clone(client.semaphore_file()),
                    // No client leaves with work under way.
                    abort: Arc::new(|| ()),
                    close: Arc::new(move || closed.close()),
                    gpu: client,
                };
                let charges = Charges::open(&account).unwrap();
                let session =
                    Session::begin(Arc::new(socket), None, Manner::usual(0), &backend, charges, &monitor).unwrap();
                scope.spawn(move || session.run());
            }
        });
    });
    let connect = |_| remote_gpu::connect_as(&path, Credential::default()).unwrap();
    let connected = (0..clients).map(connect).collect();
    (path, connected)
}

/// Pauses of many lengths around those after which threads sleep, without pattern.
fn pause(round: u64) {
    let wait = Duration::from_nanos(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 47);
    let start = Instant::now();
    while start.elapsed() < wait {
        std::hint::spin_loop();
    }
}

fn launch(gpu: &RemoteGpu, queue: u32, kernel: u32, params: &[u64]) {
    let params: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
    let launch = Command::Launch {
        module: ModuleId(1),
        kernel,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params: &params,
    };
    gpu.submit(QueueId(queue), &[launch]).unwrap();
}

/// One queue does little, again and again; the other runs kernels until the host stores a flag.
fn client(gpu: &RemoteGpu) {
    for request in [
        Request::SetAddressRange { lo: LO, bytes: 1 << 30 },
        Request::CreateContext { id: ContextId(1), runtime: RuntimeMemory::default() },
        Request::CreateQueue { id: QueueId(1), context: ContextId(1), priority: 0 },
        Request::CreateQueue { id: QueueId(2), context: ContextId(1), priority: 0 },
        Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(PTX), placed: vec![] },
        Request::Alloc { id: AllocId(1), bytes: 1 << 20, kind: MemoryKind::Vram },
        Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes: 1 << 20, access: MapAccess::ReadWrite },
    ] {
        gpu.request(request).unwrap();
    }
    let words = Memfd::create("words", 4096).unwrap().map().unwrap();
    words.write(8, &[1; 4]);
    let wait = |slot, value| gpu.wait(ContextId(1), SlotId(slot), value, Some(BOUND)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                launch(gpu, 1, 1, &[LO + 4096, round]);
                gpu.submit(QueueId(1), &[Command::Signal { slot: SlotId(1), value: round }]).unwrap();
                pause(round);
                wait(1, round);
            }
        });
        scope.spawn(|| {
            for round in 1..=ROUNDS / 4 {
                gpu.write(DevAddr(LO), words.range(0, 4)).unwrap();
                launch(gpu, 2, 0, &[LO]);
                gpu.submit(QueueId(2), &[Command::Signal { slot: SlotId(2), value: round }]).unwrap();
                std::thread::scope(|scope| {
                    scope.spawn(|| wait(2, round));
                    pause(round);
                    gpu.write(DevAddr(LO), words.range(8, 4)).unwrap();
                    wait(2, round);
                });
                if round % 25 == 0 {
                    // Whatever the client writes there: it sleeps longer at worst.
                    gpu.semaphores().set_listening(true);
                }
            }
        });
    });
}

#[test]
fn every_wait_ends() {
    let (path, clients) = serve(3);
    std::thread::scope(|scope| {
        for gpu in &clients {
            scope.spawn(|| client(gpu));
        }
    });
    drop(clients);
    std::fs::remove_file(path).unwrap();
}
