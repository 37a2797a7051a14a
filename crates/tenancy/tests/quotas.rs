//! The books balance, whatever clients ask for and however the GPU answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::cell::RefCell;

use gpu::{
    AllocId, CodeImage, Command, ContextId, DevAddr, GlobalInfo, GpuError, KernelInfo, MapAccess, MemoryKind, ModuleId,
    ModuleInfo, PAGE_BYTES, QueueId, Request, Response, RuntimeMemory, client_bytes,
};
use proptest::prelude::*;
use tenancy::{Account, Limits, NoDeviceCosts, Session, Settled, Used, most_upkeep};

const LO: u64 = 1 << 40;
const RANGE: u64 = 256 << 20;
/// What a session takes for itself.
const OWN: Used = Used {
    vram_bytes: 0,
    host_bytes: 10_000,
    maps: 3,
    files: 2,
    threads: 1,
    sessions: 0,
    contexts: 0,
    queues: 0,
    allocations: 0,
    mappings: 0,
    modules: 0,
};

fn limits() -> Limits {
    Limits {
        vram_bytes: 64 * PAGE_BYTES,
        host_bytes: 30 * PAGE_BYTES,
        maps: 10,
        files: 10,
        threads: 10,
        sessions: 2,
        contexts: 3,
        queues: 4,
        allocations: 6,
        mappings: 8,
        modules: 3,
    }
}

/// What a GPU that always agrees would say.
fn agree(request: &Request, globals: u64) -> Response {
    match request {
        Request::MemoryInfo => Response::Memory { free: u64::MAX, total: u64::MAX },
        Request::LoadModule { .. } => Response::Module(ModuleInfo {
            kernels: vec![KernelInfo::default(); 2],
            globals: vec![GlobalInfo { name: "g".into(), address: DevAddr(LO + client_bytes(RANGE)), bytes: globals }],
            log: String::new(),
        }),
        Request::PrepareKernel { .. } => Response::Kernel(KernelInfo::default()),
        Request::ContextError { .. } => Response::ContextError(None),
        _ => Response::Done,
    }
}

/// Checks, lets the GPU agree, settles.
fn ask(session: &mut Session, account: &RefCell<Account>, request: Request) -> Result<Response, GpuError> {
    let ticket = session.check(account, &request)?;
    match session.settle(account, ticket, Ok(agree(&request, 0))) {
        Settled::Answer(answer) => answer,
        Settled::Undo(_, error, cost) => {
            session.undone(account, cost);
            Err(error)
        }
    }
}

fn opened() -> (RefCell<Account>, Session) {
    let account = RefCell::new(Account::new(limits(), Box::new(NoDeviceCosts)));
    let mut session = Session::open(&account, OWN).unwrap();
    ask(&mut session, &account, Request::SetAddressRange { lo: LO, bytes: RANGE }).unwrap();
    (account, session)
}

fn request() -> impl Strategy<Value = Request> {
    let id = 0u32..5;
    let page = (0u64..12).prop_map(|n| n * PAGE_BYTES);
    let at = (0u64..20).prop_map(|n| DevAddr(LO + n * PAGE_BYTES));
    prop_oneof![
        Just(Request::MemoryInfo),
        (id.clone(), page.clone(), any::<bool>()).prop_map(|(id, bytes, host)| Request::Alloc {
            id: AllocId(id),
            bytes,
            kind: if host { MemoryKind::Host } else { MemoryKind::Vram }
        }),
        id.clone().prop_map(|id| Request::Free { id: AllocId(id) }),
        (at.clone(), id.clone(), page.clone(), page.clone()).prop_map(|(at, id, offset, bytes)| Request::Map {
            at,
            id: AllocId(id),
            offset,
            bytes,
            access: MapAccess::ReadWrite
        }),
        (at, page).prop_map(|(at, bytes)| Request::Unmap { at, bytes }),
        id.clone().prop_map(|id| Request::CreateContext { id: ContextId(id), runtime: RuntimeMemory::default() }),
        id.clone().prop_map(|id| Request::DestroyContext { id: ContextId(id) }),
        (id.clone(), id.clone()).prop_map(|(id, context)| Request::CreateQueue {
            id: QueueId(id),
            context: ContextId(context),
            priority: 0
        }),
        id.clone().prop_map(|id| Request::DestroyQueue { id: QueueId(id) }),
        (id.clone(), 0usize..20_000).prop_map(|(id, n)| Request::LoadModule {
            id: ModuleId(id),
            code: CodeImage::ptx(vec![0; n]),
            placed: vec![]
        }),
        id.prop_map(|id| Request::UnloadModule { id: ModuleId(id) }),
    ]
}

proptest! {
    /// Two sessions of one tenant, a GPU that may refuse, modules that turn out large: never above a limit, and nothing
    /// left at the end.
    #[test]
    fn books_balance(steps in prop::collection::vec((any::<bool>(), request(), any::<bool>(), 0u64..100_000), 1..200)) {
        let (account, first) = opened();
        let second = Session::open(&account, OWN).unwrap();
        prop_assert!(Session::open(&account, OWN).is_err(), "a third session");
        let mut sessions = [first, second];
        ask(&mut sessions[1], &account, Request::SetAddressRange { lo: LO, bytes: RANGE }).unwrap();
        for (which, request, refuses, globals) in steps {
            let session = &mut sessions[usize::from(which)];
            let before = account.borrow().used();
            if let Ok(ticket) = session.check(&account, &request) {
                prop_assert!(account.borrow().used().is_within(&limits()));
                let refused = GpuError::OutOfMemory { wanted: 0, free: 0, limit: 0 };
                let answer = if refuses { Err(refused) } else { Ok(agree(&request, globals)) };
                let settled = session.settle(&account, ticket, answer);
                let undone = matches!(settled, Settled::Undo(..));
                if let Settled::Undo(_, _, cost) = settled {
                    // The GPU has it still, until it is undone.
                    prop_assert_ne!(account.borrow().used(), before);
                    session.undone(&account, cost);
                }
                if refuses || undone {
                    prop_assert_eq!(account.borrow().used(), before, "a refusal costs nothing");
                }
            } else {
                prop_assert_eq!(account.borrow().used(), before);
            }
            let used = account.borrow().used();
            prop_assert!(used.is_within(&limits()), "{used:?}");
        }
        prop_assert_ne!(account.borrow().used(), Used::default());
        for session in sessions {
            session.close(&account);
        }
        prop_assert_eq!(account.borrow().used(), Used::default());
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (account, mut session) = opened();
    let alloc = |id, bytes| Request::Alloc { id: AllocId(id), bytes, kind: MemoryKind::Vram };
    let map =
        |at, offset, bytes| Request::Map { at: DevAddr(at), id: AllocId(1), offset, bytes, access: MapAccess::Read };
    ask(&mut session, &account, alloc(1, 8 * PAGE_BYTES)).unwrap();
    ask(&mut session, &account, map(LO, 0, 4 * PAGE_BYTES)).unwrap();
    let end = LO + client_bytes(RANGE);
    for (what, request) in [
        ("a second address range", Request::SetAddressRange { lo: LO, bytes: RANGE }),
        ("a name twice", alloc(1, PAGE_BYTES)),
        ("no bytes", alloc(2, 0)),
        ("half a page", alloc(2, 100)),
        ("mapped memory freed", Request::Free { id: AllocId(1) }),
        ("a page twice", map(LO + PAGE_BYTES, 0, PAGE_BYTES)),
        ("beyond the allocation", map(LO + 16 * PAGE_BYTES, 4 * PAGE_BYTES, 5 * PAGE_BYTES)),
        ("an offset that overflows", map(LO + 16 * PAGE_BYTES, u64::MAX - PAGE_BYTES + 1, PAGE_BYTES)),
        ("below the range", map(LO - PAGE_BYTES, 0, PAGE_BYTES)),
        ("the driver's part", map(end, 0, PAGE_BYTES)),
        ("across its edge", map(end - PAGE_BYTES, 0, 2 * PAGE_BYTES)),
        ("an address that overflows", Request::Unmap { at: DevAddr(u64::MAX - PAGE_BYTES + 1), bytes: PAGE_BYTES }),
        ("a queue without context", Request::CreateQueue { id: QueueId(1), context: ContextId(9), priority: 0 }),
        ("an unknown module", Request::UnloadModule { id: ModuleId(1) }),
        ("an unknown kernel", Request::PrepareKernel { module: ModuleId(1), kernel: 0, stack_bytes: 0 }),
    ] {
        assert!(session.check(&account, &request).is_err(), "{what}");
    }
    // A hole splits a run in two; then all of it can go.
    ask(&mut session, &account, Request::Unmap { at: DevAddr(LO + PAGE_BYTES), bytes: PAGE_BYTES }).unwrap();
    assert_eq!(session.charged().mappings, 2);
    ask(&mut session, &account, Request::Unmap { at: DevAddr(LO), bytes: 8 * PAGE_BYTES }).unwrap();
    assert_eq!(session.charged().mappings, 0);
    ask(&mut session, &account, Request::Free { id: AllocId(1) }).unwrap();
    let free = ask(&mut session, &account, Request::MemoryInfo);
    assert_eq!(free, Ok(Response::Memory { free: 64 * PAGE_BYTES, total: 64 * PAGE_BYTES }));
}

#[test]
fn placed_variables_are_few_and_in_the_clients_range() {
    let (account, mut session) = opened();
    let load = |id, placed| Request::LoadModule { id: ModuleId(id), code: CodeImage::ptx(vec![0; 10]), placed };
    let end = LO + client_bytes(RANGE);
    for at in [0, LO - 1, end, u64::MAX] {
        assert!(session.check(&account, &load(1, vec![("v".into(), DevAddr(at))])).is_err(), "{at:#x}");
    }
    let many = vec![(String::new(), DevAddr(LO)); 16_385];
    assert!(matches!(session.check(&account, &load(1, many)), Err(GpuError::TooMany { .. })));
    let request = load(1, vec![("v".into(), DevAddr(end - 8))]);
    let ticket = session.check(&account, &request).unwrap();
    let mut answer = agree(&request, 4096);
    if let Response::Module(info) = &mut answer {
        info.globals.push(GlobalInfo { name: "v".into(), address: DevAddr(end - 8), bytes: 1 << 20 });
    }
    assert!(matches!(session.settle(&account, ticket, Ok(answer)), Settled::Answer(Ok(_))));
}

/// Whoever takes memory of the GPU charges it.
#[test]
fn memory_of_the_gpu_has_a_limit_and_its_upkeep_another() {
    let mut account = Account::new(Limits { vram_bytes: 1 << 20, ..Limits::default() }, Box::new(NoDeviceCosts));
    account.take_vram(1 << 19, &mut 0).unwrap();
    let refused = account.take_vram((1 << 19) + 1, &mut 0);
    assert_eq!(refused, Err(GpuError::OutOfMemory { wanted: (1 << 19) + 1, free: 1 << 19, limit: 1 << 20 }));
    assert_eq!(account.take_vram(1 << 60, &mut 0).map_err(drop), Err(()));
    account.take_vram(1 << 19, &mut 0).unwrap();
    let most = most_upkeep(1 << 20);
    assert!(most < 3 << 20, "a small tenant has small tables");
    assert!((64 << 20..=80 << 20).contains(&most_upkeep(4 << 30)));
    account.take_upkeep(most).unwrap();
    assert_eq!(account.take_upkeep(1), Err(GpuError::OutOfMemory { wanted: 1, free: 0, limit: most }));
    account.give_upkeep(most);
    account.give_vram(1 << 20);
    assert_eq!((account.used(), account.upkeep()), (Used::default(), 0));
}

#[test]
fn commands_name_what_is_there() {
    let (account, mut session) = opened();
    let launch = |kernel| Command::Launch {
        module: ModuleId(1),
        kernel,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params: &[],
    };
    assert!(session.check_command(&launch(0)).is_err(), "no module yet");
    ask(
        &mut session,
        &account,
        Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(vec![0; 10]), placed: vec![] },
    )
    .unwrap();
    assert!(session.check_command(&launch(1)).is_ok());
    assert!(session.check_command(&launch(2)).is_err(), "the module has two kernels");
    let fill = |element, height, pitch| Command::Fill { dst: DevAddr(LO), value: 0, element, width: 8, height, pitch };
    assert!(session.check_command(&fill(4, 8, 64)).is_ok());
    assert!(session.check_command(&fill(3, 8, 64)).is_err(), "elements of 3 bytes");
    assert!(session.check_command(&fill(4, u64::MAX, u64::MAX)).is_err(), "lines beyond 2^64");
    assert!(session.context_of(QueueId(1)).is_err());
    assert!(session.check_copy(DevAddr(LO + RANGE - 1), 2).is_err());
    assert!(session.check_copy(DevAddr(LO + RANGE - 1), 1).is_ok());
    assert!(session.check_copy(DevAddr(u64::MAX), 2).is_err());
}

#[test]
fn who_has_memory_by_being_there_can_have_more_or_less() {
    let limits = Limits { vram_bytes: 10 << 20, ..Limits::default() };
    let account = RefCell::new(Account::new(limits, Box::new(NoDeviceCosts)));
    let own = Used { vram_bytes: 8 << 20, ..Used::default() };
    let mut session = Session::open(&account, own).unwrap();
    let used = || account.borrow().used().vram_bytes >> 20;
    session.resize(&account, 8 << 20, 2 << 20).unwrap();
    assert_eq!(used(), 2);
    session.resize(&account, 2 << 20, 10 << 20).unwrap();
    assert_eq!(used(), 10);
    let refused = session.resize(&account, 10 << 20, 11 << 20);
    assert!(matches!(refused, Err(GpuError::OutOfMemory { .. })), "{refused:?}");
    assert_eq!(used(), 10);
    session.close(&account);
    assert_eq!(account.borrow().used(), Used::default());
}
