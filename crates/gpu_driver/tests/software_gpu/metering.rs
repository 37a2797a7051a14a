//! Who has had what, and that all of the device's time is somebody's, idle, or overhead.

use std::sync::Arc;
use std::time::Instant;

use gpu::{AllocId, Command, ContextId, Gpu, MapAccess, MemoryKind, Request};
use gpu_driver::{ClientConfig, Driver, Metered};

use crate::suite::support::{PTX, Tenant, driver, kernel};

fn config() -> ClientConfig {
    ClientConfig { metered: true, ..ClientConfig::default() }
}

/// The times of some tenants, and the device's own, ns.
fn sum(driver: &Driver, tenants: &[&Tenant]) -> u64 {
    let unused = driver.unused().unwrap();
    let had: u64 = tenants.iter().map(|tenant| tenant.client.metered().engine_ns).sum();
    had + unused.idle_ns + unused.overhead_ns
}

/// A kernel of some microseconds, many times, and waits now and then.
fn work(tenant: &Tenant, times: u32) {
    let n = 1 << 14;
    let [out, a, b] = [tenant.alloc(n * 4), tenant.alloc(n * 4), tenant.alloc(n * 4)];
    for time in 0..times {
        tenant.launch(0, kernel::ADD, n as u32 / 128, 128, &[out.0, a.0, b.0]).unwrap();
        if time % 16 == 0 {
            tenant.sync(0);
        }
    }
    tenant.sync(0);
}

#[test]
fn all_time_is_somebodys_or_nobodys() {
    let driver = driver(64);
    let tenants = [(); 3].map(|()| Tenant::new(&driver, config()));
    let all: Vec<&Tenant> = tenants.iter().collect();
    for tenant in &tenants {
        tenant.load(0, PTX);
    }
    // Whoever is kept from the processor between two looks at clocks changes nothing: it lies between these bounds.
    let (before, first, after) = (Instant::now(), sum(&driver, &all), Instant::now());
    std::thread::scope(|scope| {
        for (times, tenant) in [3000, 1500, 200].into_iter().zip(&tenants) {
            scope.spawn(move || work(tenant, times));
        }
    });
    // What ends is not lost.
    tenants[0].client.request(Request::DestroyContext { id: ContextId(0) }).unwrap();
    let (before_end, last, after_end) = (Instant::now(), sum(&driver, &all), Instant::now());
    let least = (before_end - after).as_nanos() as f64;
    let most = (after_end - before).as_nanos() as f64;
    let counted = (last - first) as f64;
    assert!(counted >= least * 0.99 && counted <= most * 1.01, "{counted} ns of {least} to {most}");
    let engine = tenants.each_ref().map(|tenant| tenant.client.metered().engine_ns);
    assert!(engine.iter().all(|&ns| ns > 0) && engine[0] > engine[2], "{engine:?}");
}

#[test]
fn who_compiles_is_known_and_has_no_engine_time_for_it() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, config());
    tenant.load(0, PTX);
    assert_eq!(tenant.client.metered(), Metered::default());
    let memory = tenant.alloc(4096);
    tenant.launch(0, kernel::STORE, 1, 1, &[memory.0, 7]).unwrap();
    tenant.sync(0);
    let metered = tenant.client.metered();
    assert!(metered.prepare_ns > 0, "{metered:?}");
    let usage = tenant.client.usage();
    assert!(metered.engine_ns <= usage.gpu_time_ns && metered.kernels == 1, "{metered:?} {usage:?}");
}

#[test]
fn copies_are_counted_each_way_and_what_waits_is_too() {
    const BYTES: u64 = 1 << 20;
    let driver = driver(64);
    let tenant = Tenant::new(&driver, config());
    let [vram, other] = [(); 2].map(|()| tenant.alloc(BYTES));
    let host = tenant.try_alloc(BYTES, MemoryKind::Host).unwrap().0;
    let moved = |tenant: &Tenant| {
        let metered = tenant.client.metered();
        (metered.bytes_in, metered.bytes_out)
    };
    let copy = |dst, src, width| {
        let (height, dst_pitch, src_pitch) = (1, width, width);
        tenant.submit(0, &[Command::Copy { dst, src, width, height, dst_pitch, src_pitch }]);
    };
    for bytes in [BYTES, 256] {
        let before = moved(&tenant);
        copy(vram, host, bytes);
        copy(vram, host, bytes);
        copy(other, vram, bytes);
        copy(host, other, bytes);
        tenant.sync(0);
        assert_eq!(moved(&tenant), (before.0 + 2 * bytes, before.1 + bytes));
    }
    // Another kind of memory at the same address, and small copies that come again and again.
    let id = AllocId(1000);
    tenant.client.request(Request::Alloc { id, bytes: 4096, kind: MemoryKind::Vram }).unwrap();
    let before = moved(&tenant);
    copy(vram, host, 64);
    tenant.sync(0);
    let client = &tenant.client;
    client.request(Request::Unmap { at: host, bytes: BYTES }).unwrap();
    client.request(Request::Map { at: host, id, offset: 0, bytes: 4096, access: MapAccess::ReadWrite }).unwrap();
    copy(vram, host, 64);
    tenant.sync(0);
    assert_eq!(moved(&tenant), (before.0 + 64, before.1));
    let before = moved(&tenant);
    tenant.write(vram, &[1; 100]);
    tenant.read(vram, 10);
    assert_eq!(moved(&tenant), (before.0 + 100, before.1 + 10));

    let metered = tenant.client.metered();
    assert_eq!(metered.copies, 10);
    assert_eq!(metered.waits.iter().sum::<u64>(), 4, "small ones are done at once: {metered:?}");
    // Of what is held it is known how long.
    tenant.client.set_runnable(false).unwrap();
    let begin = Instant::now();
    copy(vram, other, BYTES);
    tenant.client.flush().unwrap();
    // When it has heard of what came later, the device has heard of this.
    let later = Tenant::new(&driver, config());
    let memory = later.alloc(4096);
    later.write(memory, &[0; 4]);
    later.submit(0, &[Command::Fill { dst: memory, width: 1, height: 1, pitch: 4, element: 4, value: 1 }]);
    later.sync(0);
    let held = Instant::now();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let slept = held.elapsed();
    tenant.client.set_runnable(true).unwrap();
    tenant.sync(0);
    let waited = u128::from(tenant.client.metered().waited_ns - metered.waited_ns);
    assert!(waited >= slept.as_nanos() && waited <= begin.elapsed().as_nanos(), "{waited} ns, {slept:?}");
}

#[test]
fn a_client_that_nobody_meters_costs_no_readings() {
    let driver = driver(64);
    let tenant = Arc::new(Tenant::new(&driver, ClientConfig::default()));
    tenant.load(0, PTX);
    work(&tenant, 10);
    assert!(tenant.client.usage().gpu_time_ns > 0);
    assert_eq!(tenant.client.metered(), Metered::default());
}
