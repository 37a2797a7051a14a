//! Programs that wait for memory of others: what waits holds nothing up that could end the wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_core::{CudaError, Driver, JitLog, Location, MemoryProps, Stream};
use gpu::{AllocId, Gpu, MemoryKind, Request};
use toy_gpu::{ToyGpu, ToyLine, ToyMachine};

use crate::support::{waiting, waiting_and_showing};

const CODE: &[u8] = b".version 8.0\n.entry nothing() .entry shared()\0";
/// Longer than anything takes that ends.
const BOUND: Duration = Duration::from_secs(20);

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < BOUND, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The same in a fat binary: loaded at its first use.
fn lazy() -> Vec<u8> {
    let mut image = [&[0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0][..], &[0; 8]].concat();
    let mut entry = vec![0u8; 0x40];
    entry[..8].copy_from_slice(&[1, 0, 1, 1, 0x40, 0, 0, 0]);
    entry[8..12].copy_from_slice(&(CODE.len() as u32).to_le_bytes());
    entry[28] = 75;
    image[8..16].copy_from_slice(&((entry.len() + CODE.len()) as u64).to_le_bytes());
    [image, entry, CODE.to_vec()].concat()
}

/// Another program, that takes what is free.
struct Other {
    toy: ToyGpu,
    line: Arc<ToyLine>,
}

impl Other {
    fn new(line: &Arc<ToyLine>) -> Other {
        Other { toy: ToyGpu::waiting(&Arc::<ToyMachine>::default(), line), line: Arc::clone(line) }
    }

    fn take_all(&self) {
        let bytes = self.line.capacity() - self.line.taken();
        self.toy.request(Request::Alloc { id: AllocId(0xFFFF_0000), bytes, kind: MemoryKind::Vram }).unwrap();
        assert_eq!(self.line.taken(), self.line.capacity());
    }

    fn give_all(&self) {
        self.toy.request(Request::Free { id: AllocId(0xFFFF_0000) }).unwrap();
    }
}

fn setting() -> (Arc<ToyLine>, Driver, Other) {
    let line = Arc::new(ToyLine::new(64 << 20));
    let (driver, other) = (waiting(&line), Other::new(&line));
    // The context is on the GPU, with what it takes.
    driver.stream_synchronize(Stream::NULL).unwrap();
    (line, driver, other)
}

#[test]
fn a_few_pages_wait_for_no_more_than_they_are() {
    let (line, driver, other) = setting();
    let page = AllocId(0xFFFF_0001);
    other.toy.request(Request::Alloc { id: page, bytes: 64 << 10, kind: MemoryKind::Vram }).unwrap();
    other.take_all();
    let context = driver.ctx_get_current().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            driver.ctx_set_current(context).unwrap();
            driver.mem_alloc(4096)
        });
        until("it stands in line", || line.standing() == 1);
        other.toy.request(Request::Free { id: page }).unwrap();
        driver.mem_free(waits.join().unwrap().unwrap()).unwrap();
    });
    other.give_all();
}

#[test]
fn who_waits_is_told_that_the_gpu_is_gone() {
    let (line, driver, other) = setting();
    other.take_all();
    let context = driver.ctx_get_current().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            driver.ctx_set_current(context).unwrap();
            driver.mem_alloc(6 << 20)
        });
        until("it stands in line", || line.standing() == 1);
        line.lose();
        assert_eq!(waits.join().unwrap(), Err(CudaError::DEVICE_UNAVAILABLE));
    });
}

#[test]
fn an_allocation_waits_until_another_thread_frees() {
    let (line, driver, other) = setting();
    let held = driver.mem_alloc(8 << 20).unwrap();
    other.take_all();
    let context = driver.ctx_get_current().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            driver.ctx_set_current(context).unwrap();
            driver.mem_alloc(6 << 20)
        });
        until("it stands in line", || line.standing() == 1);
        driver.mem_free(held).unwrap();
        let got = waits.join().unwrap().unwrap();
        driver.mem_free(got).unwrap();
    });
    assert_eq!(line.standing(), 0);
}

#[test]
fn a_module_that_waits_to_be_loaded_holds_nobody_up() {
    let (line, driver, other) = setting();
    let context = driver.ctx_get_current().unwrap();
    let load = || {
        driver.ctx_set_current(context).unwrap();
        driver.module_load_data(&CODE, &mut JitLog::default())
    };
    other.take_all();
    // Its library goes while it waits: nobody has to give anything back for that.
    let library = driver.library_load_data(&&lazy()[..], &mut JitLog::default()).unwrap();
    let kernel = driver.library_get_kernel(library, "nothing").unwrap();
    std::thread::scope(|scope| {
        let first = || {
            driver.ctx_set_current(context).unwrap();
            driver.kernel_get_function(kernel)
        };
        let waits = [scope.spawn(first), scope.spawn(first)];
        until("it stands in line, once", || line.standing() == 1);
        driver.library_unload(library).unwrap();
        for waits in waits {
            assert!(matches!(waits.join().unwrap(), Err(CudaError::INVALID_HANDLE | CudaError::CONTEXT_IS_DESTROYED)));
        }
    });
    assert_eq!(line.standing(), 0, "who does not wait any more stands in nobody's way");
    // And it is loaded when there is room.
    std::thread::scope(|scope| {
        let waits = scope.spawn(load);
        until("it stands in line", || line.standing() == 1);
        other.give_all();
        let module = waits.join().unwrap().unwrap();
        assert!(driver.module_get_function(module, "shared").is_ok());
        driver.module_unload(module).unwrap();
    });
    assert_eq!(line.standing(), 0);
}

#[test]
fn what_is_kept_for_later_goes_to_who_waits() {
    let (line, driver, other) = setting();
    let small = driver.mem_alloc(4096).unwrap();
    driver.mem_free(small).unwrap();
    let kept = line.taken();
    other.take_all();
    let third = ToyGpu::waiting(&Arc::<ToyMachine>::default(), &line);
    let wanted = Request::Alloc { id: AllocId(7), bytes: 2 << 20, kind: MemoryKind::Vram };
    assert!(third.request(wanted.clone()).is_err(), "it has to wait");
    until("the chunk in which nothing is goes", || line.taken() < line.capacity());
    third.request(wanted).unwrap();
    // While others wait nothing is kept.
    assert!(third.request(Request::Alloc { id: AllocId(8), bytes: 2 << 20, kind: MemoryKind::Vram }).is_err());
    third.request(Request::Free { id: AllocId(7) }).unwrap();
    let before = line.taken();
    let small = driver.mem_alloc(4096).unwrap();
    assert!(line.taken() > before && kept > 0);
    driver.mem_free(small).unwrap();
    assert_eq!(line.taken(), before);
}

#[test]
fn what_was_lent_goes_to_who_waits_once_nobody_has_it() {
    let line = Arc::new(ToyLine::new(64 << 20));
    let (driver, other) = (waiting_and_showing(&line), Other::new(&line));
    driver.stream_synchronize(Stream::NULL).unwrap();
    let props = MemoryProps { location: Location::Device(0), handle_types: 1, max_bytes: 0 };
    let lent = || {
        let memory = driver.mem_create(8 << 20, props, 0).unwrap();
        let fd = driver.mem_export(memory, 1).unwrap();
        driver.mem_release(memory).unwrap();
        fd
    };
    // To another program, though this one does nothing.
    let fd = lent();
    other.take_all();
    let third = ToyGpu::waiting(&Arc::<ToyMachine>::default(), &line);
    let wanted = Request::Alloc { id: AllocId(7), bytes: 6 << 20, kind: MemoryKind::Vram };
    assert!(third.request(wanted.clone()).is_err(), "it has to wait");
    assert_eq!(line.taken(), line.capacity(), "somebody has it");
    drop(fd);
    until("it goes", || line.taken() < line.capacity());
    third.request(wanted).unwrap();
    third.request(Request::Free { id: AllocId(7) }).unwrap();
    other.give_all();
    // To this one, which waits itself.
    let context = driver.ctx_get_current().unwrap();
    let takes: [&(dyn Fn() + Sync); 3] = [
        &|| driver.mem_create(6 << 20, props, 0).and_then(|memory| driver.mem_release(memory)).unwrap(),
        &|| driver.mem_alloc(6 << 20).and_then(|at| driver.mem_free(at)).unwrap(),
        &|| driver.mem_alloc_async(6 << 20, Stream::NULL).and_then(|at| driver.mem_free(at)).unwrap(),
    ];
    for take in takes {
        let fd = lent();
        other.take_all();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                driver.ctx_set_current(context).unwrap();
                take();
            });
            until("it stands in line", || line.standing() == 1);
            drop(fd);
            waits.join().unwrap();
        });
        other.give_all();
        driver.ctx_synchronize().unwrap();
    }
}
