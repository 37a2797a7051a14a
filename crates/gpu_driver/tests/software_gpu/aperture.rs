//! Allocations that another process sees in a memory file.

use std::sync::Arc;

use gpu::{AllocId, Command, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, Request, Response};
use gpu_driver::{ClientConfig, Driver, HostCost};
use hostmem::Mapping;
use proptest::prelude::*;

use crate::suite::support::{LO, Tenant, driver};

const BLOCK: u64 = 2 << 20;

fn tenant(driver: &Arc<Driver>, maps: u32) -> Tenant {
    let budget = driver.budget(HostCost { maps, files: 64, ..HostCost::default() }).unwrap();
    Tenant::new(driver, ClientConfig { budget: Some(budget), aperture: true, ..ClientConfig::default() })
}

/// Allocates, maps at `LO + at`; where it is shown.
fn alloc(tenant: &Tenant, id: u32, at: u64, bytes: u64) -> Result<Option<u64>, GpuError> {
    let id = AllocId(id);
    let answer = tenant.client.request(Request::Alloc { id, bytes, kind: MemoryKind::Vram })?;
    let access = MapAccess::ReadWrite;
    tenant.client.request(Request::Map { at: DevAddr(LO + at), id, offset: 0, bytes, access })?;
    match answer {
        Response::Shown { offset } => Ok(Some(offset)),
        _ => Ok(None),
    }
}

fn free(tenant: &Tenant, id: u32, at: u64, bytes: u64) {
    tenant.client.request(Request::Unmap { at: DevAddr(LO + at), bytes }).unwrap();
    tenant.client.request(Request::Free { id: AllocId(id) }).unwrap();
}

/// The file, as another process has it.
fn file(tenant: &Tenant, id: u32) -> Mapping {
    tenant.client.host_memory(AllocId(id)).unwrap().file.map().unwrap()
}

#[test]
fn the_file_shows_what_the_gpu_has() {
    let driver = driver(64);
    let free_before = driver.counts().vram_free;
    let one = tenant(&driver, 4096);
    let offset = alloc(&one, 1, 0, 2 * BLOCK).unwrap().unwrap();
    let seen = file(&one, 1);
    assert_eq!(one.client.host_memory(AllocId(1)).unwrap().offset, offset);
    // By the file, by the driver, and by the GPU itself.
    seen.write(offset as usize + 5, b"stored");
    assert_eq!(one.read(DevAddr(LO + 5), 6), b"stored");
    one.context(1);
    one.queue(1, 1);
    let (dst, src) = (DevAddr(LO + BLOCK), DevAddr(LO + 5));
    one.submit(1, &[Command::Copy { dst, src, width: 6, height: 1, dst_pitch: 0, src_pitch: 0 }]);
    one.sync(1);
    let mut out = [0; 6];
    seen.read((offset + BLOCK) as usize, &mut out);
    assert_eq!(&out, b"stored");
    // What is not whole 2 MiB lies elsewhere.
    assert_eq!(alloc(&one, 2, 4 * BLOCK, 4096).unwrap(), None);
    assert!(one.client.host_memory(AllocId(2)).is_err());

    // What it gives back nobody else sees, and it sees nobody else's.
    free(&one, 1, 0, 2 * BLOCK);
    let two = tenant(&driver, 4096);
    let mut others = 0;
    while let Ok(offset) = alloc(&two, 10 + others, u64::from(others) * BLOCK, BLOCK) {
        assert!(offset.is_some());
        assert_eq!(two.read(DevAddr(LO + u64::from(others) * BLOCK), BLOCK as usize), vec![0; BLOCK as usize]);
        two.write(DevAddr(LO + u64::from(others) * BLOCK), &[7; 64]);
        others += 1;
    }
    assert!(others > 8, "{others}");
    let mut all = vec![1; seen.len()];
    seen.read(0, &mut all);
    assert!(all.iter().all(|byte| *byte == 0), "the old file shows nothing");
    seen.fill(0, seen.len(), 9);
    for id in 0..others {
        assert_eq!(two.read(DevAddr(LO + u64::from(id) * BLOCK), 64), [7; 64]);
    }
    drop((one, two));
    assert_eq!(driver.counts().vram_free, free_before);
}

#[test]
fn without_map_entries_allocations_are_not_shown() {
    let driver = driver(64);
    // Each takes two, and two more if it is shown.
    let one = tenant(&driver, 40);
    let shown = (0..10).map(|id| alloc(&one, id, u64::from(id) * 2 * BLOCK, BLOCK).unwrap());
    let shown: Vec<bool> = shown.map(|offset| offset.is_some()).collect();
    assert!(shown.contains(&true) && shown.contains(&false), "{shown:?}");
    for (id, _) in (0u32..).zip(&shown) {
        one.write(DevAddr(LO + u64::from(id) * 2 * BLOCK), &[3; 8]);
        free(&one, id, u64::from(id) * 2 * BLOCK, BLOCK);
    }
    // All entries are there again.
    let again = (20..30).map(|id| alloc(&one, id, u64::from(id) * 2 * BLOCK, BLOCK).unwrap().is_some());
    assert_eq!(again.collect::<Vec<_>>(), shown);
}

#[test]
fn a_client_that_did_not_ask_is_shown_nothing() {
    let driver = driver(16);
    let one = Tenant::new(&driver, ClientConfig::default());
    assert_eq!(alloc(&one, 1, 0, BLOCK).unwrap(), None);
    assert!(one.client.host_memory(AllocId(1)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever two clients allocate and free, in whatever order: what is stored by one's file is what its GPU reads, what it is
    /// given is zero, and all VRAM is free when they have gone.
    #[test]
    fn what_is_shown_is_the_clients_own(steps in prop::collection::vec((0usize..2, 0u32..6, 1u64..4, any::<bool>()), 1..60)) {
        let driver = driver(32);
        let before = driver.counts().vram_free;
        let clients = [tenant(&driver, 4096), tenant(&driver, 4096)];
        let mut held = [[None; 6]; 2];
        for (step, (who, id, blocks, whole)) in steps.into_iter().enumerate() {
            let (client, slot) = (&clients[who], &mut held[who][id as usize]);
            let at = u64::from(id) * 4 * BLOCK;
            match *slot {
                Some((bytes, value)) => {
                    prop_assert_eq!(client.read(DevAddr(LO + at), 32), vec![value; 32]);
                    free(client, id, at, bytes);
                    *slot = None;
                }
                None => {
                    let bytes = if whole { blocks * BLOCK } else { blocks * 4096 };
                    let Ok(shown) = alloc(client, id, at, bytes) else { continue };
                    // Where VRAM is nearly used up it comes in pieces, and some are no whole 2 MiB.
                    prop_assert!(whole || shown.is_none());
                    for place in [0, bytes - 32] {
                        prop_assert_eq!(client.read(DevAddr(LO + at + place), 32), vec![0; 32]);
                    }
                    let value = step as u8 | 128;
                    match shown {
                        Some(offset) => file(client, id).fill(offset as usize, bytes as usize, value),
                        None => client.write(DevAddr(LO + at), &vec![value; bytes as usize]),
                    }
                    prop_assert_eq!(client.read(DevAddr(LO + at + bytes - 32), 32), vec![value; 32]);
                    *slot = Some((bytes, value));
                }
            }
        }
        drop(clients);
        prop_assert_eq!(driver.counts().vram_free, before);
    }
}
