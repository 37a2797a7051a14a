//! Whoever divides the GPU is asked before anything of it is taken, whatever for, and told when it is free: its books and the
//! driver's are the same at every moment that nothing is under way, and never less than the driver's otherwise.

use std::sync::Arc;

use gpu::{
    AllocId, CodeImage, Command, ContextId, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, ModuleId, QueueId, Request,
    RuntimeMemory, SlotId, VramLedger, VramUse,
};
use gpu_driver::{Client, ClientConfig, Driver};
use parking_lot::Mutex;
use proptest::prelude::*;

use crate::suite::support::{LO, PTX, RANGE_BYTES, driver};

/// What clients have asked for; every so often it refuses.
#[derive(Debug, Default)]
struct Book {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// What counts against limits, and upkeep.
    bytes: [u64; 2],
    /// Questions until one is refused; 0: none is.
    patience: u32,
    asked: u32,
}

impl Book {
    fn bytes(&self) -> [u64; 2] {
        self.entries.lock().bytes
    }
}

impl VramLedger for Book {
    fn take(&self, bytes: u64, what: VramUse) -> Result<(), GpuError> {
        let mut entries = self.entries.lock();
        entries.asked += 1;
        if entries.patience > 0 && entries.asked.is_multiple_of(entries.patience) {
            return Err(match what {
                VramUse::Asked => GpuError::Deferred,
                _ => GpuError::OutOfMemory { wanted: bytes, free: 0, limit: 0 },
            });
        }
        entries.bytes[usize::from(what == VramUse::Upkeep)] += bytes;
        Ok(())
    }

    fn give(&self, bytes: u64, what: VramUse) {
        self.entries.lock().bytes[usize::from(what == VramUse::Upkeep)] -= bytes;
    }
}

/// What clients may do, with small numbers for names and places.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Alloc(u32, u64, bool),
    Free(u32),
    /// Part of an allocation, at one of a few places that lie far apart: tables of their own.
    Map(u32, u64),
    Unmap(u64),
    Load(u32, u64),
    Unload(u32),
    Context(u32),
    EndContext(u32),
    /// A queue that is used: it has a channel.
    Queue(u32, u32),
    EndQueue(u32),
    /// The client is gone, whatever it was doing; another is there.
    Die,
}

fn doing() -> impl Strategy<Value = Doing> {
    let name = 0..4u32;
    prop_oneof![
        4 => (name.clone(), 1..1500u64, any::<bool>()).prop_map(|(id, pages, host)| Doing::Alloc(id, pages, host)),
        2 => name.clone().prop_map(Doing::Free),
        4 => (name.clone(), 0..12u64).prop_map(|(id, at)| Doing::Map(id, at)),
        3 => (0..12u64).prop_map(Doing::Unmap),
        3 => (name.clone(), 0..40_000u64).prop_map(|(id, bytes)| Doing::Load(id, bytes)),
        2 => name.clone().prop_map(Doing::Unload),
        2 => name.clone().prop_map(Doing::Context),
        1 => name.clone().prop_map(Doing::EndContext),
        3 => (name.clone(), name.clone()).prop_map(|(id, context)| Doing::Queue(id, context)),
        1 => name.prop_map(Doing::EndQueue),
        1 => Just(Doing::Die),
    ]
}

fn open(driver: &Arc<Driver>, book: &Arc<Book>) -> Arc<Client> {
    let vram = Some(Arc::clone(book) as Arc<dyn VramLedger>);
    let config = ClientConfig { memory_limit: Some(12 << 20), vram, ..ClientConfig::default() };
    let client = driver.open(config).unwrap();
    // It may be refused; all else is, then.
    let _ = client.request(Request::SetAddressRange { lo: LO, bytes: RANGE_BYTES });
    client
}

/// Does it, as far as it is granted.
fn happen(client: &Client, doing: Doing) {
    let place = |at: u64| DevAddr(LO + at * (130 << 20));
    let ask = |request| drop(client.request(request));
    match doing {
        Doing::Alloc(id, pages, host) => {
            let kind = if host { MemoryKind::Host } else { MemoryKind::Vram };
            ask(Request::Alloc { id: AllocId(id), bytes: pages * 4096, kind });
        }
        Doing::Free(id) => ask(Request::Free { id: AllocId(id) }),
        Doing::Map(id, at) => {
            let (id, access) = (AllocId(id), MapAccess::ReadWrite);
            ask(Request::Map { at: place(at), id, offset: 0, bytes: 4096, access });
        }
        Doing::Unmap(at) => ask(Request::Unmap { at: place(at), bytes: 4096 }),
        Doing::Load(id, bytes) => {
            let variable = format!(".global .align 4 .b8 room[{bytes}];\n.entry");
            let text = if bytes == 0 { PTX.to_owned() } else { PTX.replacen(".entry", &variable, 1) };
            ask(Request::LoadModule { id: ModuleId(id), code: CodeImage::ptx(text), placed: vec![] });
        }
        Doing::Unload(id) => ask(Request::UnloadModule { id: ModuleId(id) }),
        Doing::Context(id) => {
            ask(Request::CreateContext { id: ContextId(id), runtime: RuntimeMemory::default() });
        }
        Doing::EndContext(id) => ask(Request::DestroyContext { id: ContextId(id) }),
        Doing::Queue(id, context) => {
            ask(Request::CreateQueue { id: QueueId(id), context: ContextId(context), priority: 0 });
            let _ = client.submit(QueueId(id), &[Command::Signal { slot: SlotId(id), value: 1 }]);
            let _ = client.flush();
        }
        Doing::EndQueue(id) => ask(Request::DestroyQueue { id: QueueId(id) }),
        Doing::Die => client.close(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Two clients do anything, and are refused every so often: what is free, theirs, and the driver's own is all there is, and the
    /// books say what is theirs. When they have gone nothing is.
    #[test]
    fn all_of_it_is_in_the_books(
        patience in prop_oneof![Just(0u32), 2..40u32],
        doings in prop::collection::vec((any::<bool>(), doing()), 1..60),
    ) {
        let driver = driver(32);
        let before = driver.counts();
        let beside = driver.vram_beside_clients();
        let book = Arc::new(Book::default());
        book.entries.lock().patience = patience;
        let mut clients = [open(&driver, &book), open(&driver, &book)];
        for (which, doing) in doings {
            let client = &mut clients[usize::from(which)];
            happen(client, doing);
            if let Doing::Die = doing {
                *client = open(&driver, &book);
            }
            let counts = driver.counts();
            prop_assert_eq!([counts.vram_of_clients, counts.vram_upkeep], book.bytes(), "after {:?}", doing);
            prop_assert_eq!(driver.vram_beside_clients(), beside, "the driver's own is what it was");
            prop_assert_eq!(counts.vram_free + counts.vram_of_clients + counts.vram_upkeep + beside, counts.vram_total);
        }
        drop(clients);
        prop_assert_eq!(book.bytes(), [0, 0]);
        prop_assert_eq!(driver.counts(), before);
    }
}

/// A module is asked for as a whole, before any of it is taken.
#[test]
fn a_module_is_asked_for_at_once() {
    let driver = driver(64);
    let book = Arc::new(Book::default());
    let client = open(&driver, &book);
    let text = PTX.replacen(".entry", ".global .align 4 .b8 room[3000000];\n.entry", 1);
    let load = || {
        let code = CodeImage::ptx(text.clone());
        client.request(Request::LoadModule { id: ModuleId(1), code, placed: vec![] })
    };
    load().unwrap();
    let of_module = book.bytes()[0];
    assert!(of_module > 3_000_000 + text.len() as u64 && of_module.is_multiple_of(4096), "{of_module}");
    client.request(Request::UnloadModule { id: ModuleId(1) }).unwrap();
    assert_eq!(book.bytes()[0], 0);
    // The next question is refused: not a page is taken then, and nothing else is asked.
    let free = driver.counts().vram_free;
    let asked = {
        let mut entries = book.entries.lock();
        entries.patience = entries.asked + 1;
        entries.asked
    };
    assert_eq!(load().map(drop), Err(GpuError::Deferred));
    assert_eq!((book.entries.lock().asked, driver.counts().vram_free), (asked + 1, free));
}

/// What many threads take and give back at once is in the books before it is taken, and until it is free.
#[test]
fn the_books_are_never_behind() {
    let driver = driver(64);
    let book = Arc::new(Book::default());
    let clients = [open(&driver, &book), open(&driver, &book), open(&driver, &book)];
    let beside = driver.vram_beside_clients();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                for round in 0..300u32 {
                    happen(client, Doing::Alloc(1, u64::from(1 + round % 700), false));
                    happen(client, Doing::Map(1, u64::from(round % 12)));
                    happen(client, Doing::Unmap(u64::from(round % 12)));
                    happen(client, Doing::Free(1));
                }
            });
        }
        for _ in 0..20_000 {
            assert_eq!(driver.vram_beside_clients(), beside, "what is given back is in one of the sums");
        }
    });
    let counts = driver.counts();
    assert_eq!([counts.vram_of_clients, counts.vram_upkeep], book.bytes());
    drop(clients);
    assert_eq!(book.bytes(), [0, 0]);
}
