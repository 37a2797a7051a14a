//! What tenants cost the host: descriptors and entries of its memory map.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use gpu::{AllocId, Command, DevAddr, Gpu, GpuError, HostMemory, MapAccess, MemoryKind, Request, SlotId};
use gpu_driver::{ClientConfig, HostCost};
use hostmem::Memfd;

use crate::suite::support::{LO, PTX, Tenant, driver, eventually, kernel};

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;

fn alloc(tenant: &Tenant, id: u32, bytes: u64, kind: MemoryKind) -> Result<(), GpuError> {
    tenant.client.request(Request::Alloc { id: AllocId(id), bytes, kind }).map(drop)
}

fn map(tenant: &Tenant, at: u64, id: u32, bytes: u64) -> Result<(), GpuError> {
    let (at, id, access) = (DevAddr(LO + at), AllocId(id), MapAccess::ReadWrite);
    tenant.client.request(Request::Map { at, id, offset: 0, bytes, access }).map(drop)
}

fn unmap(tenant: &Tenant, at: u64, bytes: u64) -> Result<(), GpuError> {
    tenant.client.request(Request::Unmap { at: DevAddr(LO + at), bytes }).map(drop)
}

fn limited(limits: HostCost) -> (Tenant, Arc<gpu_driver::Budget>) {
    let driver = driver(64);
    let budget = driver.budget(limits).unwrap();
    let config = ClientConfig { budget: Some(Arc::clone(&budget)), ..ClientConfig::default() };
    (Tenant::new(&driver, config), budget)
}

/// What a client may keep of memory that it has given back is the file, and none of its pages: they are the driver's no longer.
#[test]
fn pages_of_a_file_that_the_client_keeps_go_when_it_is_given_back() {
    const BYTES: u64 = 40 << 20;
    let (tenant, _budget) = limited(HostCost { bytes: u64::MAX, maps: 4096, files: 64 });
    alloc(&tenant, 1, BYTES, MemoryKind::Host).unwrap();
    let kept = tenant.client.host_memory(AllocId(1)).unwrap().file;
    map(&tenant, 0, 1, BYTES).unwrap();
    tenant.write(DevAddr(LO), &[7; 1 << 20]);
    let path = format!("/proc/self/fd/{}", kept.as_fd().as_raw_fd());
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    assert!(blocks() * 512 >= 1 << 20);
    unmap(&tenant, 0, BYTES).unwrap();
    tenant.client.request(Request::Free { id: AllocId(1) }).unwrap();
    assert_eq!(blocks(), 0);
    assert_eq!(kept.map().unwrap().u32_at(0).load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn small_host_allocations_share_files() {
    let (tenant, budget) = limited(HostCost { maps: 4096, ..HostCost::default() });
    let before = budget.used().files;
    for id in 0..20_000 {
        alloc(&tenant, id, PAGE, MemoryKind::Host).unwrap();
    }
    assert!(budget.used().files - before <= 4, "{:?}", budget.used());
    let [a, b] = [7, 19_999].map(|id| tenant.client.host_memory(AllocId(id)).unwrap());
    let (first, last) = (a.file.map().unwrap(), b.file.map().unwrap());
    first.fill(a.offset as usize, PAGE as usize, 1);
    last.fill(b.offset as usize, PAGE as usize, 2);
    // The GPU sees the same pages, and the neighbours have not changed.
    for (id, value) in [(6, 0), (7, 1), (8, 0), (19_998, 0), (19_999, 2)] {
        let at = u64::from(id) * PAGE;
        map(&tenant, at, id, PAGE).unwrap();
        assert_eq!(tenant.read(DevAddr(LO + at), PAGE as usize), [value; PAGE as usize], "{id}");
        unmap(&tenant, at, PAGE).unwrap();
    }
    // What is freed is zero when it is taken again.
    tenant.client.request(Request::Free { id: AllocId(7) }).unwrap();
    alloc(&tenant, 30_000, PAGE, MemoryKind::Host).unwrap();
    let again = tenant.client.host_memory(AllocId(30_000)).unwrap();
    assert_eq!((again.offset, Arc::ptr_eq(&again.file, &a.file)), (a.offset, true), "the gap is used");
    map(&tenant, 0, 30_000, PAGE).unwrap();
    assert_eq!(tenant.read(DevAddr(LO), PAGE as usize), [0; PAGE as usize]);
    unmap(&tenant, 0, PAGE).unwrap();
    for id in (0..20_000).filter(|id| *id != 7).chain([30_000]) {
        tenant.client.request(Request::Free { id: AllocId(id) }).unwrap();
    }
    assert!(budget.used().files - before <= 1, "empty files go: {:?}", budget.used());
    tenant.client.close();
    assert_eq!(budget.used(), HostCost { bytes: 0, maps: 0, files: 0 });
}

#[test]
fn files_and_clients_are_kept_apart() {
    let driver = driver(64);
    let [a, b] = [(); 2].map(|()| Tenant::new(&driver, ClientConfig::default()));
    let places = [&a, &b].map(|tenant| {
        alloc(tenant, 1, PAGE, MemoryKind::Host).unwrap();
        tenant.client.host_memory(AllocId(1)).unwrap()
    });
    assert!(!Arc::ptr_eq(&places[0].file, &places[1].file), "no file holds memory of two clients");
}

#[test]
fn a_tenant_runs_out_of_files_alone() {
    let (tenant, budget) = limited(HostCost { files: 5, ..HostCost::default() });
    let large = 33 << 20;
    let made = (0..).take_while(|id| alloc(&tenant, *id, large, MemoryKind::Host).is_ok()).count() as u32;
    assert!((1..5).contains(&made), "{made}");
    assert!(matches!(alloc(&tenant, 99, large, MemoryKind::Host), Err(GpuError::OutOfMemory { .. })));
    budget.set_limits(HostCost { files: 6, ..budget.limits() });
    alloc(&tenant, 99, large, MemoryKind::Host).unwrap();
}

#[test]
fn map_entries_are_refused_before_anything_changes() {
    let (tenant, budget) = limited(HostCost { maps: 500, ..HostCost::default() });
    // The queue has its channel, which takes entries, too.
    tenant.sync(0);
    let before = budget.used().maps;
    alloc(&tenant, 1, BLOCK, MemoryKind::Vram).unwrap();
    let made = (0..).take_while(|block| map(&tenant, block * BLOCK, 1, BLOCK).is_ok()).count() as u64;
    assert!((100..250).contains(&made), "{made}");
    assert!(matches!(map(&tenant, made * BLOCK, 1, BLOCK), Err(GpuError::OutOfMemory { .. })));
    // A hole would take entries as well.
    let hole = || unmap(&tenant, PAGE, PAGE);
    assert!(500 - budget.used().maps < 2);
    assert!(matches!(hole(), Err(GpuError::OutOfMemory { .. })));
    // All of it works, up to the last.
    let (first, last) = (DevAddr(LO), DevAddr(LO + (made - 1) * BLOCK));
    tenant.submit(0, &[Command::Fill { dst: last, value: 7, element: 4, width: 1, height: 1, pitch: 0 }]);
    tenant.sync(0);
    assert_eq!(tenant.read_u32(first, 1), [7]);
    unmap(&tenant, BLOCK, BLOCK).unwrap();
    hole().unwrap();
    // What was there in two parts goes as a whole.
    unmap(&tenant, 0, made * BLOCK).unwrap();
    assert_eq!(budget.used().maps, before);
    map(&tenant, 0, 1, BLOCK).unwrap();
    tenant.client.close();
    assert_eq!(budget.used().maps, 0);
}

#[test]
fn work_of_all_clients_of_a_tenant_is_charged_to_one_budget() {
    let driver = driver(64);
    let budget = driver.budget(HostCost::default()).unwrap();
    let config = ClientConfig { budget: Some(Arc::clone(&budget)), ..ClientConfig::default() };
    let tenants = [(); 2].map(|()| Tenant::new(&driver, config.clone()));
    let mut charged = Vec::new();
    for tenant in &tenants {
        tenant.load(0, PTX);
        let memory = tenant.alloc(4096);
        let before = budget.used().bytes;
        tenant.launch(0, kernel::STORE, 1, 1, &[memory.0, 1]).unwrap();
        tenant.sync(0);
        charged.push(budget.used().bytes - before);
    }
    assert!(charged.iter().all(|bytes| *bytes > 0), "code takes memory: {charged:?}");
    // Who has no budget, or another one, pays nothing for it.
    let stranger = driver.budget(HostCost::default()).unwrap();
    assert_eq!(stranger.used().bytes, 0);
    drop(tenants);
    eventually("all is given back", || budget.used() == HostCost { bytes: 0, maps: 0, files: 0 });
    assert_eq!((budget.compiling(), budget.interpreted()), (0, 0));
}

#[test]
fn the_drivers_own_memory_is_limited_with_the_devices() {
    let (tenant, budget) = limited(HostCost { bytes: 600 << 10, ..HostCost::default() });
    let signal = |slot| Command::Signal { slot: SlotId(slot), value: 1 };
    (1..8).for_each(|id| tenant.queue(id, 0));
    tenant.submit(0, &[signal(0)]);
    tenant.submit(1, &[signal(1)]);
    // A third channel does not fit: its queues share the others.
    (2..8).for_each(|id| tenant.submit(id, &[signal(id)]));
    for id in 0..8 {
        tenant.client.wait(gpu::ContextId(0), SlotId(id), 1, Some(crate::suite::support::BOUND)).unwrap();
    }
    assert_eq!(budget.driver_bytes(), 512 << 10);
    // Neither does what a parked queue would have to keep.
    let wait = Command::Wait { slot: SlotId(100), value: 1 };
    tenant.submit(0, &[wait]);
    let data = vec![0; 60_000];
    let write = || tenant.client.submit(gpu::QueueId(0), &[Command::Write { dst: DevAddr(LO), data: &data }]);
    let refused = (0..4).find_map(|_| write().err());
    assert!(matches!(refused, Some(GpuError::OutOfMemory { .. })), "{refused:?}");
    assert!(budget.used().bytes <= 600 << 10);
    // Nor in another context.
    tenant.context(1);
    tenant.queue(9, 1);
    assert!(matches!(tenant.client.submit(gpu::QueueId(9), &[signal(9)]), Err(GpuError::OutOfMemory { .. })));
    budget.set_limits(HostCost::default());
    tenant.submit(9, &[signal(9)]);
    assert_eq!(budget.driver_bytes() >> 18, 3);
}

#[test]
fn parts_of_one_imported_file_cost_one_and_it_goes_with_the_last() {
    let (tenant, budget) = limited(HostCost::default());
    let before = budget.used().files;
    let [one, other] = [8, 2].map(|pages| Arc::new(Memfd::create("another's", pages * PAGE).unwrap()));
    let import = |id, file: &Arc<Memfd>, offset, bytes| {
        tenant.client.import(AllocId(id), &HostMemory { file: Arc::clone(file), offset }, bytes)
    };
    for id in 0..8 {
        import(id, &one, u64::from(id) * PAGE, PAGE).unwrap();
        map(&tenant, u64::from(id) * PAGE, id, PAGE).unwrap();
    }
    assert_eq!(budget.used().files - before, 1);
    import(20, &other, 0, 2 * PAGE).unwrap();
    assert_eq!(budget.used().files - before, 2);
    // What the file does not have, half a page, a name that is taken.
    for (offset, bytes) in
        [(8 * PAGE, PAGE), (7 * PAGE, 2 * PAGE), (u64::MAX - PAGE + 1, PAGE), (PAGE / 2, PAGE), (0, 0)]
    {
        let refused = import(30, &one, offset, bytes);
        assert!(matches!(refused, Err(GpuError::InvalidValue { .. })), "{offset:#x} {bytes:#x}: {refused:?}");
    }
    assert!(matches!(import(20, &one, 0, PAGE), Err(GpuError::InvalidId { .. })));
    assert_eq!(budget.used().files - before, 2);
    let pages = one.map().unwrap();
    for id in 0..8 {
        pages.fill((u64::from(id) * PAGE) as usize, PAGE as usize, 10 + id as u8);
        assert_eq!(tenant.read(DevAddr(LO + u64::from(id) * PAGE), 1), [10 + id as u8], "{id}");
        unmap(&tenant, u64::from(id) * PAGE, PAGE).unwrap();
        assert_eq!(budget.used().files - before, 2, "{id}");
        tenant.client.request(Request::Free { id: AllocId(id) }).unwrap();
    }
    assert_eq!(budget.used().files - before, 1, "no part of it is left");
    let mut there = [0];
    pages.read(0, &mut there);
    assert_eq!(there, [10], "what is another's is not scrubbed");
    tenant.client.close();
    assert_eq!(budget.used(), HostCost { bytes: 0, maps: 0, files: 0 });
    assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 1), "nobody holds them");
}

/// A tenant pays for what it imports; of a huge file that is all that is mapped.
#[test]
fn each_part_of_a_huge_file_costs_one() {
    let (tenant, budget) = limited(HostCost::default());
    let before = budget.used().files;
    let shared = 512 << 20;
    for bytes in [shared, shared + PAGE, 1 << 46] {
        let file = Arc::new(Memfd::create("huge", bytes).unwrap());
        let import = |id, offset, bytes| {
            tenant.client.import(AllocId(id), &HostMemory { file: Arc::clone(&file), offset }, bytes)
        };
        let huge = bytes > shared;
        let last = bytes - 3 * PAGE;
        import(1, last, 2 * PAGE).unwrap();
        import(2, 0, PAGE).unwrap();
        assert_eq!(budget.used().files - before, if huge { 2 } else { 1 });
        map(&tenant, 0, 1, 2 * PAGE).unwrap();
        map(&tenant, 2 * PAGE, 2, PAGE).unwrap();
        for (at, seen) in [(last + PAGE, PAGE), (0, 2 * PAGE)] {
            let page = file.map_part(at, PAGE).unwrap();
            page.fill(7, 1, 42);
            assert_eq!(tenant.read(DevAddr(LO + seen + 7), 1), [42], "{bytes:#x} {at:#x}");
            tenant.write(DevAddr(LO + seen + 8), &[43]);
            let mut there = [0];
            page.read(8, &mut there);
            assert_eq!(there, [43], "{bytes:#x} {at:#x}");
        }
        unmap(&tenant, 0, 3 * PAGE).unwrap();
        if bytes == shared + PAGE {
            // All of it is something else than a part, whatever has been imported of it.
            import(3, 0, bytes).unwrap();
            assert_eq!(budget.used().files - before, 3);
            tenant.client.request(Request::Free { id: AllocId(3) }).unwrap();
        }
        let refused = import(4, last + PAGE, 3 * PAGE);
        assert!(matches!(refused, Err(GpuError::InvalidValue { .. })), "{refused:?}");
        (1..3).for_each(|id| drop(tenant.client.request(Request::Free { id: AllocId(id) })));
        assert_eq!((budget.used().files, Arc::strong_count(&file)), (before, 1));
    }
}
