//! The bytes of every message, as released. A test that fails here says that a released version would change its meaning:
//! give what is new a number of its own instead.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use gpu::{
    AllocId, CodeImage, Command, Compare, ContextError, ContextId, DevAddr, GlobalInfo, GpuError, KernelInfo,
    MapAccess, MemoryKind, ModuleId, ModuleInfo, Properties, QueueId, Request, Response, RuntimeMemory, SlotId,
};
use wire::handshake::features;
use wire::{
    Credential, GpuStanding, HostPlace, Import, Process, ProcessStanding, Reply, Standing, Transfer, Welcome,
    decode_answer, decode_request, encode_answer, encode_command, encode_request, frame,
};

/// Bytes as groups of four in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> =
        bytes.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    words.join(" ")
}

/// Compares what `shown` says with a file of lines `name: bytes`.
fn check(file: &str, shown: &[(String, Vec<u8>)]) {
    let text: String = shown.iter().map(|(name, bytes)| format!("{name}: {}\n", hex(bytes))).collect();
    let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("SUNDIAL_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (line, expected) in text.lines().zip(golden.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(text.lines().count(), golden.lines().count());
}

/// The first word of what is shown by `Debug`.
fn name(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").chars().take_while(|&c| c.is_alphanumeric()).collect()
}

#[test]
fn commands() {
    let shown = [
        Command::Launch {
            module: ModuleId(1),
            kernel: 2,
            grid: [3, 4, 5],
            block: [6, 7, 8],
            shared_bytes: 9,
            cooperative: true,
            cluster: [1; 3],
            params: &[0xaa, 0xbb, 0xcc],
        },
        Command::Copy { dst: DevAddr(1 << 40), src: DevAddr(2), width: 3, height: 4, dst_pitch: 5, src_pitch: 6 },
        Command::Fill { dst: DevAddr(1), value: 2, element: 4, width: 3, height: 5, pitch: 6 },
        Command::Write { dst: DevAddr(1), data: &[1, 2, 3, 4, 5] },
        Command::Signal { slot: SlotId(1), value: 2 },
        Command::Wait { slot: SlotId(1), value: 2 },
        Command::WriteValue { at: DevAddr(8), value: 1, wide: true },
        Command::WaitValue { at: DevAddr(8), value: 1, wide: false, compare: Compare::CyclicGeq },
        Command::WaitValue { at: DevAddr(8), value: 1, wide: true, compare: Compare::Equal },
        Command::WaitValue { at: DevAddr(8), value: 1, wide: true, compare: Compare::And },
        Command::WaitValue { at: DevAddr(8), value: 1, wide: true, compare: Compare::Nor },
        Command::Launch {
            module: ModuleId(1),
            kernel: 2,
            grid: [4, 2, 3],
            block: [6, 7, 8],
            shared_bytes: 9,
            cooperative: false,
            cluster: [2, 1, 3],
            params: &[0xaa, 0xbb, 0xcc],
        },
    ]
    .map(|command| {
        let mut bytes = Vec::new();
        encode_command(&command, &mut bytes).unwrap();
        (name(&command), bytes)
    });
    check("commands.txt", &shown);
}

#[test]
fn frames() {
    let transfer = Transfer { at: DevAddr(1 << 40), staging: 2, bytes: 3 };
    let fragment = |request| {
        let whole = vec![0xee; wire::limits::FRAGMENT_BYTES + 1];
        let frames: Vec<u8> =
            frame::fragments(request, 7, &whole).flat_map(|(head, body)| [&head[..], &body[..1]].concat()).collect();
        frames
    };
    let place = HostPlace { id: AllocId(1), file: 2, offset: 4096 };
    let shown = [
        ("Submit", frame::submit_header(QueueId(5)).to_vec()),
        ("Request", fragment(true)),
        ("Write", frame::transfer(1, true, transfer)),
        ("Read", frame::transfer(1, false, transfer)),
        ("Release", frame::release(SlotId(5), 6).to_vec()),
        ("Listen", frame::listen().to_vec()),
        ("Answer", fragment(false)),
        ("HostPlace", place.encode().to_vec()),
        ("Answered", frame::answered_header(7).to_vec()),
        ("Put", frame::put_header(7, true, DevAddr(1 << 40)).to_vec()),
        ("Put, more", frame::put_header(7, false, DevAddr(1 << 40)).to_vec()),
        ("Get", frame::get(7, DevAddr(1 << 40), 5).to_vec()),
        ("Data", frame::data_header(7, true).to_vec()),
        ("Data, more", frame::data_header(7, false).to_vec()),
        ("Import", frame::import(7, Import { id: AllocId(1), offset: 2, bytes: 3 })),
        ("Import, message", frame::import_message(7).to_vec()),
    ];
    check("frames.txt", &shown.map(|(name, bytes)| (name.to_owned(), bytes)));
}

#[test]
fn requests() {
    let shown = [
        Request::SetAddressRange { lo: 1 << 40, bytes: 1 << 36 },
        Request::MemoryInfo,
        Request::Alloc { id: AllocId(1), bytes: 4096, kind: MemoryKind::Vram },
        Request::Alloc { id: AllocId(1), bytes: 4096, kind: MemoryKind::Host },
        Request::Free { id: AllocId(1) },
        Request::Map { at: DevAddr(1), id: AllocId(2), offset: 3, bytes: 4, access: MapAccess::Read },
        Request::Map { at: DevAddr(1), id: AllocId(2), offset: 3, bytes: 4, access: MapAccess::ReadWrite },
        Request::Unmap { at: DevAddr(1), bytes: 2 },
        Request::CreateContext { id: ContextId(1), runtime: RuntimeMemory { printf: 2, heap: 3, heap_bytes: 4 } },
        Request::DestroyContext { id: ContextId(1) },
        Request::CreateQueue { id: QueueId(1), context: ContextId(2), priority: -3 },
        Request::DestroyQueue { id: QueueId(1) },
        Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx("PTX"), placed: vec![("v".into(), DevAddr(2))] },
        Request::UnloadModule { id: ModuleId(1) },
        Request::PrepareKernel { module: ModuleId(1), kernel: 2, stack_bytes: 3 },
        Request::ContextError { id: ContextId(1) },
    ]
    .map(|request| {
        let bytes = encode_request(&request).unwrap();
        assert_eq!(decode_request(&bytes).as_ref(), Ok(&request));
        (name(&request), bytes)
    });
    check("requests.txt", &shown);
}

#[test]
fn answers() {
    let kernel = KernelInfo {
        name: "k".into(),
        params: vec![(1, 2)],
        param_bytes: 3,
        shared_bytes: 4,
        local_bytes: 5,
        const_bytes: 6,
        registers: 7,
        max_threads: 8,
        max_ntid: Some([9, 10, 11]),
        exact_ntid: true,
        ptx_version: 12,
        target: 13,
    };
    let global = GlobalInfo { name: "g".into(), address: DevAddr(1), bytes: 2 };
    let module = ModuleInfo { kernels: vec![kernel.clone()], globals: vec![global], log: "log".into() };
    let text = || String::from("text");
    let dead = |error| Err(GpuError::Context(error));
    let shown = [
        Ok(Response::Done),
        Ok(Response::Memory { free: 1, total: 2 }),
        Ok(Response::Module(module)),
        Ok(Response::Kernel(KernelInfo { max_ntid: None, exact_ntid: false, ..kernel })),
        Ok(Response::ContextError(None)),
        Ok(Response::ContextError(Some(ContextError::IllegalAddress { address: 1, write: true, site: text() }))),
        Err(GpuError::OutOfMemory { wanted: 1, free: 2, limit: 3 }),
        Err(GpuError::TooMany { what: text(), limit: 1 }),
        Err(GpuError::InvalidId { what: text(), id: 1 }),
        Err(GpuError::InvalidValue { what: text() }),
        Err(GpuError::InvalidPtx { log: text(), unsupported: true }),
        Err(GpuError::Unsupported { what: text() }),
        dead(ContextError::IllegalAddress { address: 1, write: false, site: text() }),
        dead(ContextError::Misaligned { address: 1, site: text() }),
        dead(ContextError::LaunchFailed { reason: text() }),
        dead(ContextError::Assert { site: text() }),
        dead(ContextError::InvalidKernel { log: text(), unsupported: false }),
        dead(ContextError::IllegalCommand { reason: text() }),
        dead(ContextError::OutOfResources { reason: text() }),
        Err(GpuError::Lost { reason: text() }),
        Err(GpuError::TimedOut),
        Ok(Response::Shown { offset: 1 << 21 }),
        Err(GpuError::Deferred),
    ]
    .map(|answer| {
        let bytes = encode_answer(&answer);
        assert_eq!(decode_answer(&bytes), Ok(answer.clone()));
        let name = match &answer {
            Ok(response) => name(response),
            Err(GpuError::Context(error)) => name(error),
            Err(error) => name(error),
        };
        (name, bytes)
    });
    check("answers.txt", &shown);
}

#[test]
fn handshake() {
    let hello = wire::Hello {
        credential: Credential([0xcc; 32]),
        features: features::SHARED_MEMORY,
        gpu: 3,
        process: Process { pid: 4, namespace: 5 },
    };
    let properties = Properties {
        name: "GPU".into(),
        uuid: [1; 16],
        pci: [2, 3, 4],
        compute_capability: [5, 6],
        driver_version: 7,
        multiprocessors: 8,
        memory_bytes: 9,
        clock_khz: 10,
        memory_clock_khz: 11,
        memory_bus_bits: 12,
        l2_bytes: 13,
    };
    let welcome = Welcome {
        features: features::SHARED_MEMORY,
        properties,
        command_ring: (1, 2),
        answer_ring: (3, 4),
        statistics: 5,
        staging_block: 6,
        staging_bytes: wire::limits::STAGING_BYTES as u32,
        gpus: 1,
    };
    let staging =
        Welcome { features: features::SHARED_MEMORY | features::STAGING, staging_bytes: 7, ..welcome.clone() };
    let several = Welcome { features: features::SHARED_MEMORY | features::SEVERAL_GPUS, gpus: 2, ..welcome.clone() };
    // The first version's ends before the GPU, the second's before the process.
    let process = Process::default();
    let longest = hello.encode();
    let longer = longest[..longest.len() - 12].to_vec();
    let first = longer[..longer.len() - 4].to_vec();
    assert_eq!(wire::Hello::decode(&longer), Ok(wire::Hello { process, ..hello.clone() }));
    assert_eq!(wire::Hello::decode(&first), Ok(wire::Hello { gpu: 0, process, ..hello }));
    let standing = GpuStanding {
        properties: welcome.properties.clone(),
        answers: true,
        memory_used: 14,
        received: 15,
        processes: vec![ProcessStanding { pid: 16, memory_used: 17, gpu_time_ns: 18 }],
    };
    let shown = [
        ("Hello", first),
        ("Welcome", Reply::Welcome(Box::new(welcome)).encode()),
        ("Refused", Reply::Refused("no".into()).encode()),
        ("Welcome, STAGING", Reply::Welcome(Box::new(staging)).encode()),
        ("Hello, GPU", longer),
        ("Welcome, SEVERAL_GPUS", Reply::Welcome(Box::new(several)).encode()),
        ("Hello, process", longest),
        ("Standing", Reply::Standing(Box::new(Standing { gpus: vec![standing] })).encode()),
    ];
    check("handshake.txt", &shown.map(|(name, bytes)| (name.to_owned(), bytes)));
}
