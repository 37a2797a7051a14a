//! Sessions over the software GPU and its driver that are shown their VRAM: copies go there, and nobody is asked.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu::{AllocId, DevAddr, Gpu, MapAccess, MemoryKind, Request, Response};
use gpu_driver::{ClientConfig, Driver};
use hostmem::Memfd;
use remote_gpu::RemoteGpu;
use session::{Backend, Charges, Manner, Monitor, Session, SessionHandle, SharedAccount};
use softgpu::{Config, SoftGpu};
use tenancy::{Account, Limits, NoDeviceCosts};
use transport::unix;
use wire::handshake::features;
use wire::{Credential, limits::MAX_HELLO_BYTES};

const LO: u64 = 0x7000_0000_0000;
const BYTES: u64 = 4 << 20;

/// A session whose client knows all, and which is shown its VRAM or not.
fn serve(name: &str, shown: bool) -> (Arc<RemoteGpu>, SessionHandle) {
    let path = std::env::temp_dir().join(format!("sundial-shown-{name}-{}", std::process::id()));
    let listener = unix::listen(&path, 0o600).unwrap();
    let config = Config { vram_bytes: 256 << 20, workers: 2, lend: true, ..Config::default() };
    let driver = Driver::start(SoftGpu::new(&config).unwrap()).unwrap();
    let (tell, handle) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let monitor = Monitor::start(|| panic!("the monitor is broken")).unwrap();
        let account = SharedAccount::new(Account::new(Limits::default(), Box::new(NoDeviceCosts)));
        let socket = unix::accept(&listener).unwrap();
        unix::receive(&socket, &mut [0; MAX_HELLO_BYTES]).unwrap();
        let budget = driver.budget(gpu_driver::HostCost { bytes: 1 << 30, maps: 10_000, files: 100 }).unwrap();
        let client =
            driver.open(ClientConfig { aperture: shown, budget: Some(budget), ..ClientConfig::default() }).unwrap();
        let closed = Arc::clone(&client);
        let backend = Backend {
            aperture: shown,
            semaphores: Arc::clone(client.semaphore_file()),
            abort: Arc::new(|| ()),
            close: Arc::new(move || closed.close()),
            gpu: client,
        };
        let charges = Charges::open(&account).unwrap();
        let manner = Manner::usual(features::ALL & !features::ON_DEMAND);
        let session = Session::begin(Arc::new(socket), None, manner, &backend, charges, &monitor).unwrap();
        tell.send(session.handle()).unwrap();
        session.run();
    });
    let gpu = remote_gpu::connect_as(&path, Credential::default()).unwrap();
    let _ = std::fs::remove_file(&path);
    (gpu, handle.recv().unwrap())
}

#[test]
fn copies_go_through_what_is_shown_and_nobody_is_asked() {
    for shown in [true, false] {
        let (gpu, handle) = serve(if shown { "yes" } else { "no" }, shown);
        let done = |request: Request| gpu.request(request).unwrap();
        done(Request::SetAddressRange { lo: LO, bytes: 1 << 30 });
        let answer = done(Request::Alloc { id: AllocId(1), bytes: BYTES, kind: MemoryKind::Vram });
        assert_eq!(matches!(answer, Response::Shown { .. }), shown, "{answer:?}");
        let access = MapAccess::ReadWrite;
        done(Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes: BYTES, access });

        let (there, back) = (memory(), memory());
        let pattern: Vec<u8> = (0..BYTES).map(|i| (i * 13 + i / 4096) as u8).collect();
        there.write(0, &pattern);
        let length = BYTES as usize - 5;
        let before = (gpu.calls_remote().load(Ordering::Relaxed), gpu.round_trips());
        gpu.write(DevAddr(LO + 5), there.range(0, length)).unwrap();
        gpu.read(back.range(0, length), DevAddr(LO + 5)).unwrap();
        let after = (gpu.calls_remote().load(Ordering::Relaxed), gpu.round_trips());
        let mut read = vec![0; length];
        back.read(0, &mut read);
        assert!(read == pattern[..length]);
        assert_eq!(after == before, shown, "{before:?} {after:?}");
        let copied = if shown { (length as u64, length as u64) } else { (0, 0) };
        assert_eq!(handle.copied(), copied, "what the library copied itself");

        // The file that shows it is the client's to map as well.
        let place = gpu.host_memory(AllocId(1));
        if shown {
            let place = place.unwrap();
            let mut seen = [0; 8];
            place.file.map().unwrap().read(place.offset as usize + 5, &mut seen);
            assert_eq!(seen, pattern[..8]);
        } else {
            assert!(place.is_err());
        }
        done(Request::Unmap { at: DevAddr(LO), bytes: BYTES });
        done(Request::Free { id: AllocId(1) });
        assert!(gpu.host_memory(AllocId(1)).is_err(), "it is nobody's any more");
        assert!(gpu.write(DevAddr(LO), there.range(0, 8)).is_err());
    }
}

fn memory() -> hostmem::Mapping {
    Memfd::create("program", BYTES).unwrap().map().unwrap()
}
