//! What a session costs, over a GPU that costs next to nothing. Prints; asserts nothing.
//!
//! `cargo run --release -p session --example costs`

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{
    AllocId, CodeImage, Command, ContextId, DevAddr, Gpu, MapAccess, MemoryKind, ModuleId, QueueId, Request,
    RuntimeMemory, SlotId,
};
use hostmem::{Mapping, Memfd};
use session::{Backend, Charges, Manner, Monitor, Session, SharedAccount};
use tenancy::{Account, Limits, NoDeviceCosts};
use toy_gpu::{ToyGpu, ToyMachine};
use transport::{Consumer, Producer, ring, unix};
use wire::{Credential, Hello, Process};

const LO: u64 = 1 << 40;
const BYTES: usize = 64 << 20;

type Failure = Box<dyn std::error::Error>;

/// The least of several runs: what it costs when nothing interferes.
fn least(runs: u32, mut run: impl FnMut() -> Duration) -> Duration {
    (0..runs).map(|_| run()).min().unwrap_or_default()
}

fn report(what: &str, value: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{what:<52} {value}");
}

fn memory(bytes: usize) -> Result<Mapping, Failure> {
    let mapping = Memfd::create("costs", bytes as u64)?.map()?;
    mapping.fill(0, bytes, 1);
    Ok(mapping)
}

fn rings() -> Result<(), Failure> {
    const CAPACITY: usize = 64 << 10;
    let area = || -> Result<Arc<Mapping>, Failure> { Ok(Arc::new(memory(ring::bytes(CAPACITY))?)) };
    let (there, back) = (area()?, area()?);
    there.fill(0, there.len(), 0);
    back.fill(0, back.len(), 0);
    let mut to = Producer::new(Arc::clone(&there), 0, CAPACITY);
    let mut from = Consumer::new(Arc::clone(&back), 0, CAPACITY);
    std::thread::spawn(move || {
        let (mut input, mut output) = (Consumer::new(there, 0, CAPACITY), Producer::new(back, 0, CAPACITY));
        let mut frame = Vec::new();
        while input.pop(&mut frame, &|| true).is_ok() && output.push(&[&frame], &|| true).is_ok() {}
    });
    const TIMES: u32 = 20_000;
    let mut frame = Vec::new();
    let trip = least(5, || {
        let start = Instant::now();
        for _ in 0..TIMES {
            let sent = to.push(&[&[1; 40]], &|| true).and_then(|()| from.pop(&mut frame, &|| true));
            assert!(sent.is_ok(), "{sent:?}");
        }
        start.elapsed() / TIMES
    });
    report("ring, round trip of 40 bytes", format!("{trip:?}"));
    Ok(())
}

/// Serves one client over the toy.
fn serve(path: &Path) -> Result<(), Failure> {
    let listener = unix::listen(path, 0o600)?;
    let account = SharedAccount::new(Account::new(Limits::default(), Box::new(NoDeviceCosts)));
    std::thread::spawn(move || -> Result<(), std::io::Error> {
        let monitor = Monitor::start(|| ())?;
        let socket = unix::accept(&listener)?;
        let length = unix::receive(&socket, &mut [0; 256])?.length;
        assert!(
            length
                == Hello { credential: Credential::default(), features: 0, gpu: 0, process: Process::default() }
                    .encode()
                    .len()
        );
        let toy = Arc::new(ToyGpu::new(&Arc::new(ToyMachine::default()), 1 << 30));
        let (aborted, closed) = (Arc::clone(&toy), Arc::clone(&toy));
        let backend = Backend {
            aperture: false,
            semaphores: Arc::clone(toy.semaphore_file()),
            abort: Arc::new(move || aborted.abort()),
            close: Arc::new(move || closed.close()),
            gpu: toy,
        };
        let charges = Charges::open(&account).map_err(std::io::Error::other)?;
        Session::begin(Arc::new(socket), None, Manner::usual(0), &backend, charges, &monitor)?.run();
        Ok(())
    });
    Ok(())
}

fn main() -> Result<(), Failure> {
    rings()?;
    let path = std::env::temp_dir().join(format!("sundial-costs-{}", std::process::id()));
    serve(&path)?;
    let gpu = remote_gpu::connect_as(&path, Credential::default())?;
    std::fs::remove_file(&path)?;
    let bytes = BYTES as u64;
    for request in [
        Request::SetAddressRange { lo: LO, bytes: 1 << 30 },
        Request::CreateContext { id: ContextId(1), runtime: RuntimeMemory::default() },
        Request::CreateQueue { id: QueueId(1), context: ContextId(1), priority: 0 },
        Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(vec![b' '; 100]), placed: vec![] },
        Request::Alloc { id: AllocId(1), bytes, kind: MemoryKind::Vram },
        Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes, access: MapAccess::ReadWrite },
    ] {
        gpu.request(request)?;
    }

    const TIMES: u32 = 10_000;
    let mut failed = Ok(());
    let trip = least(5, || {
        let start = Instant::now();
        for _ in 0..TIMES {
            failed = gpu.request(Request::MemoryInfo).map(drop);
        }
        start.elapsed() / TIMES
    });
    report("session, request and answer", format!("{trip:?}"));

    let params = [0; 64];
    let (grid, block) = ([1; 3], [256, 1, 1]);
    let launch = Command::Launch {
        module: ModuleId(1),
        kernel: 0,
        grid,
        block,
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params: &params,
    };
    let mut value = 0;
    for burst in [1u32, 100, 1000] {
        let (mut submitted, mut done) = (Duration::MAX, Duration::MAX);
        for _ in 0..20_000 / burst.max(100) {
            value += 1;
            let start = Instant::now();
            for _ in 0..burst {
                gpu.submit(QueueId(1), &[launch])?;
            }
            submitted = submitted.min(start.elapsed() / burst);
            gpu.submit(QueueId(1), &[Command::Signal { slot: SlotId(1), value }])?;
            gpu.wait(ContextId(1), SlotId(1), value, None)?;
            done = done.min(start.elapsed());
        }
        report(&format!("{burst} launches: submit, each"), format!("{submitted:?}"));
        report(&format!("{burst} launches: until all are done"), format!("{done:?}"));
    }

    let (host, other) = (memory(BYTES)?, memory(BYTES)?);
    let rate = |took: Duration| format!("{:.2} GB/s ({took:?})", BYTES as f64 / took.as_secs_f64() / 1e9);
    let copy = least(7, || {
        let start = Instant::now();
        other.range(0, BYTES).copy_from(host.range(0, BYTES));
        start.elapsed()
    });
    report("memcpy of 64 MiB", rate(copy));
    let write = least(7, || {
        let start = Instant::now();
        failed = failed.clone().and(gpu.write(DevAddr(LO), host.range(0, BYTES)));
        start.elapsed()
    });
    report("pageable copy of 64 MiB to the GPU", rate(write));
    let read = least(7, || {
        let start = Instant::now();
        failed = failed.clone().and(gpu.read(other.range(0, BYTES), DevAddr(LO)));
        start.elapsed()
    });
    report("pageable copy of 64 MiB from the GPU", rate(read));
    report("to the GPU, of memcpy", format!("{:.2}", copy.as_secs_f64() / write.as_secs_f64()));
    failed?;
    Ok(())
}
