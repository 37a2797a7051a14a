//! Any bytes are a handle of another process's memory or event: what is opened lies in a file that is there, or there is an error.
#![no_main]

use std::cell::LazyCell;
use std::sync::Arc;

use cuda_core::{Device, Driver, HostServices, Stream};
use gpu::DevAddr;
use libfuzzer_sys::fuzz_target;
use toy_gpu::ToyGpu;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`.
const SHARED: u32 = 6;
const KIND: usize = 4;

/// Who has an event that is shared, its handle, and who opens it: two drivers are two processes to each other.
struct Two {
    _exporter: Driver,
    handle: [u8; 64],
    importer: Driver,
}

/// A driver with its context current.
fn driver() -> Driver {
    let host = HostServices { print: |_| {}, context_destroyed: |_| {} };
    let driver = Driver::new(vec![Arc::new(ToyGpu::new(&Arc::default(), 1 << 30))], host);
    driver.init(0).expect("a driver");
    let context = driver.device_primary_ctx_retain(Device(0)).expect("a context");
    driver.ctx_set_current(context).expect("it is there");
    driver
}

thread_local! {
    static TWO: LazyCell<Two> = LazyCell::new(|| {
        let exporter = driver();
        let event = exporter.event_create(SHARED).expect("an event");
        let handle = exporter.ipc_get_event_handle(event).expect("it is shared");
        Two { handle, importer: driver(), _exporter: exporter }
    });
}

// A true handle, changed: place and byte of each change.
fuzz_target!(|data: &[u8]| TWO.with(|two| {
    let (driver, mut handle) = (&two.importer, two.handle);
    for change in data.chunks_exact(2) {
        handle[usize::from(change[0]) % handle.len()] = change[1];
    }
    if let Ok(event) = driver.ipc_open_event_handle(&handle) {
        let _ = driver.event_query(event);
        driver.event_destroy(event).expect("it is there");
    }
    handle[KIND] = 1;
    if let Ok(at) = driver.ipc_open_mem_handle(&handle, LAZY) {
        let (base, bytes) = driver.mem_get_address_range(at).expect("it is known");
        assert_eq!(base, at);
        for byte in [at.0, at.0 + bytes - 1] {
            driver.memset(DevAddr(byte), 7, 1, 1, Stream::NULL).expect("it is there");
        }
        driver.ctx_synchronize().expect("GPU and host see all of it");
        driver.ipc_close_mem_handle(at).expect("it was open");
    }
}));
