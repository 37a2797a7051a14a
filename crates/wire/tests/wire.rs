//! Every message survives the way there and back; no bytes at all upset a decoder.

use gpu::{
    AllocId, CodeFormat, CodeImage, Command, Compare, ContextError, ContextId, DevAddr, GlobalInfo, GpuError,
    KernelInfo, MAX_INLINE_BYTES, MAX_PARAM_BYTES, MapAccess, MemoryKind, ModuleId, ModuleInfo, Properties, QueueId,
    Request, Response, RuntimeMemory, SEMAPHORE_SLOTS, SlotId,
};
use proptest::prelude::*;
use wire::handshake::features;
use wire::{
    Assembler, ClientFrame, Commands, Credential, GpuStanding, Hello, Import, Process, ProcessStanding, Reply,
    Standing, Transfer, Welcome, WireError, command, decode_answer, decode_request, encode_answer, encode_command,
    encode_request, frame, limits, parse_answer, parse_client_frame,
};

/// A command whose payload, if it has one, is `payload`.
fn command_of(pick: u8, n: [u32; 8], w: [u64; 6], payload: &[u8]) -> Command<'_> {
    match pick % 8 {
        0 => Command::Launch {
            module: ModuleId(n[0]),
            kernel: n[1],
            grid: [n[2], n[3], n[4]],
            block: [n[5], n[6], n[7]],
            shared_bytes: n[0] ^ n[1],
            cooperative: n[2].is_multiple_of(2),
            cluster: if n[3].is_multiple_of(2) { [1; 3] } else { [n[4], n[5], n[6]] },
            params: &payload[..payload.len().min(MAX_PARAM_BYTES)],
        },
        1 => Command::Copy {
            dst: DevAddr(w[0]),
            src: DevAddr(w[1]),
            width: w[2],
            height: w[3],
            dst_pitch: w[4],
            src_pitch: w[5],
        },
        2 => Command::Fill { dst: DevAddr(w[0]), value: n[0], element: n[1], width: w[1], height: w[2], pitch: w[3] },
        3 => Command::Write { dst: DevAddr(w[0]), data: payload },
        4 => Command::Signal { slot: SlotId(n[0] % SEMAPHORE_SLOTS), value: w[0] },
        5 => Command::WriteValue { at: DevAddr(w[0]), value: w[1], wide: n[0].is_multiple_of(2) },
        6 => {
            let all = [Compare::CyclicGeq, Compare::Equal, Compare::And, Compare::Nor];
            let compare = all[n[1] as usize % 4];
            Command::WaitValue { at: DevAddr(w[0]), value: w[1], wide: n[0].is_multiple_of(2), compare }
        }
        _ => Command::Wait { slot: SlotId(n[0] % SEMAPHORE_SLOTS), value: w[0] },
    }
}

proptest! {
    #[test]
    fn commands_round_trip(
        picks in prop::collection::vec((any::<u8>(), any::<[u32; 8]>(), any::<[u64; 6]>(), prop::collection::vec(any::<u8>(), 0..200)), 1..20)
    ) {
        let commands: Vec<Command<'_>> = picks.iter().map(|(p, n, w, payload)| command_of(*p, *n, *w, payload)).collect();
        let mut bytes = frame::submit_header(QueueId(7)).to_vec();
        for command in &commands {
            let before = bytes.len();
            encode_command(command, &mut bytes).unwrap();
            prop_assert!(bytes.len() - before <= command::encoded_bound(command));
        }
        let Ok(ClientFrame::Submit { queue: QueueId(7), commands: back }) = parse_client_frame(&bytes) else {
            return Err(TestCaseError::fail("not a submission"));
        };
        let back: Vec<Command<'_>> = back.map(Result::unwrap).collect();
        prop_assert_eq!(back, commands);
    }

    #[test]
    fn garbage_is_refused_quietly(data in prop::collection::vec(any::<u8>(), 0..600), kind in 0u8..20, operation in 0u8..8) {
        wire::fuzz(&data);
        // With plausible first words, to get further in.
        let mut likely = data;
        if likely.len() >= 12 {
            likely[..4].copy_from_slice(&[kind, 0, 0, if kind % 3 == 0 { 0x80 } else { 0 }]);
            likely[8..12].copy_from_slice(&[operation, 0, 0, 0]);
        }
        wire::fuzz(&likely);
        likely.splice(0..0, Hello { credential: Credential::default(), features: 0, gpu: 0, process: Process::default() }.encode());
        wire::fuzz(&likely);
    }

    #[test]
    fn imports_round_trip(number in any::<u32>(), id in any::<u32>(), offset in any::<u64>(), bytes in any::<u64>(), cut in 1usize..20) {
        let import = Import { id: AllocId(id), offset, bytes };
        let whole = frame::import(number, import);
        let Ok(ClientFrame::Import { number: of, import: back }) = parse_client_frame(&whole) else {
            return Err(TestCaseError::fail("not an import"));
        };
        prop_assert_eq!((of, back), (number, import));
        let longer = [&whole[..], &[0]].concat();
        for wrong in [&whole[..whole.len() - cut], &longer] {
            let refused = matches!(parse_client_frame(wrong), Err(WireError::Length { .. }));
            prop_assert!(refused, "{} bytes", wrong.len());
        }
        let message = frame::import_message(number);
        prop_assert_eq!(frame::parse_import_message(&message), Ok(number));
        prop_assert!(frame::parse_import_message(&longer).is_err() && frame::parse_import_message(&message[1..]).is_err());
    }

    #[test]
    fn fragments_assemble(length in 0usize..100_000, request in any::<bool>()) {
        let whole: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
        let mut assembler = Assembler::new(limits::MAX_ANSWER_BYTES);
        let mut done = None;
        for (header, body) in frame::fragments(request, 9, &whole) {
            prop_assert!(done.is_none() && body.len() <= limits::FRAGMENT_BYTES);
            let bytes = [&header, body].concat();
            let (number, last, part) = if request {
                match parse_client_frame(&bytes) {
                    Ok(ClientFrame::Request { number, last, body }) => (number, last, body),
                    other => return Err(TestCaseError::fail(format!("{other:?}"))),
                }
            } else {
                parse_answer(&bytes).unwrap()
            };
            prop_assert_eq!(number, 9);
            done = assembler.add(last, part).unwrap();
        }
        prop_assert_eq!(done, Some(whole));
    }
}

#[test]
fn requests_round_trip() {
    let requests = [
        Request::SetAddressRange { lo: 1 << 40, bytes: 1 << 36 },
        Request::MemoryInfo,
        Request::Alloc { id: AllocId(1), bytes: 1 << 33, kind: MemoryKind::Host },
        Request::Free { id: AllocId(1) },
        Request::Map { at: DevAddr(4096), id: AllocId(3), offset: 4096, bytes: 8192, access: MapAccess::Read },
        Request::Unmap { at: DevAddr(4096), bytes: 4096 },
        Request::CreateContext { id: ContextId(1), runtime: RuntimeMemory { printf: 5, heap: 6, heap_bytes: 7 } },
        Request::DestroyContext { id: ContextId(1) },
        Request::CreateQueue { id: QueueId(1), context: ContextId(2), priority: -5 },
        Request::DestroyQueue { id: QueueId(1) },
        Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(vec![b'x'; 100_000]), placed: vec![] },
        Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(vec![]), placed: vec![] },
        Request::LoadModule {
            id: ModuleId(1),
            code: CodeImage { format: CodeFormat(9), bytes: vec![b'x'; 2 << 20].into() },
            placed: vec![("sum".into(), DevAddr(1 << 40)), (String::new(), DevAddr(0))],
        },
        Request::UnloadModule { id: ModuleId(1) },
        Request::PrepareKernel { module: ModuleId(1), kernel: 3, stack_bytes: 4096 },
        Request::ContextError { id: ContextId(1) },
    ];
    for request in requests {
        assert_eq!(decode_request(&encode_request(&request).unwrap()), Ok(request));
    }
    let long = Request::LoadModule {
        id: ModuleId(1),
        code: CodeImage::ptx(vec![0; limits::MAX_REQUEST_BYTES]),
        placed: vec![],
    };
    assert!(matches!(encode_request(&long), Err(WireError::Limit { .. })));
    let placed = vec![(String::new(), DevAddr(0)); limits::MAX_HEAD_BYTES / 2];
    let crowded = Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(vec![]), placed };
    assert!(matches!(encode_request(&crowded), Err(WireError::Limit { .. })));
    assert_eq!(decode_request(&999u32.to_le_bytes()), Err(WireError::Unknown { what: "request", code: 999 }));
    let mut extra = encode_request(&Request::MemoryInfo).unwrap();
    extra.push(0);
    assert!(decode_request(&extra).is_err());
}

#[test]
fn answers_round_trip() {
    let kernel =
        KernelInfo { name: "k".into(), params: vec![(0, 8), (8, 4)], max_ntid: Some([32, 1, 1]), ..Default::default() };
    let answers = [
        Ok(Response::Done),
        Ok(Response::Shown { offset: u64::MAX }),
        Ok(Response::Memory { free: 1, total: 2 }),
        Ok(Response::Module(ModuleInfo {
            kernels: vec![kernel.clone()],
            globals: vec![GlobalInfo { name: "g".into(), address: DevAddr(77), bytes: 5 }],
            log: "note".into(),
        })),
        Ok(Response::Kernel(kernel)),
        Ok(Response::ContextError(Some(ContextError::IllegalAddress {
            address: 1,
            write: true,
            site: "by thread".into(),
        }))),
        Err(GpuError::OutOfMemory { wanted: 1, free: 2, limit: 3 }),
        Err(GpuError::InvalidPtx { log: "line 1".into(), unsupported: true }),
        Err(GpuError::TooMany { what: "queues".into(), limit: 7 }),
        Err(GpuError::InvalidId { what: "context".into(), id: 7 }),
        Err(GpuError::InvalidValue { what: "é".into() }),
        Err(GpuError::Unsupported { what: "fat binaries".into() }),
        Err(GpuError::Context(ContextError::Misaligned { address: 3, site: String::new() })),
        Err(GpuError::Context(ContextError::LaunchFailed { reason: "trap".into() })),
        Err(GpuError::Context(ContextError::Assert { site: "by thread".into() })),
        Err(GpuError::Context(ContextError::InvalidKernel { log: "tex".into(), unsupported: true })),
        Err(GpuError::Context(ContextError::IllegalCommand { reason: "no".into() })),
        Err(GpuError::Lost { reason: "gone".into() }),
        Err(GpuError::TimedOut),
        Err(GpuError::Deferred),
        Ok(Response::ContextError(None)),
    ];
    for answer in answers {
        assert_eq!(decode_answer(&encode_answer(&answer)), Ok(answer));
    }
}

#[test]
fn limits_hold_both_ways() {
    let long = vec![0; MAX_INLINE_BYTES + 1];
    let write = Command::Write { dst: DevAddr(0), data: &long };
    assert!(matches!(encode_command(&write, &mut Vec::new()), Err(WireError::Limit { .. })));

    let mut signal = Vec::new();
    encode_command(&Command::Signal { slot: SlotId(1), value: 1 }, &mut signal).unwrap();
    signal[16..20].copy_from_slice(&SEMAPHORE_SLOTS.to_le_bytes());
    assert!(matches!(Commands::new(&signal).next(), Some(Err(WireError::Limit { .. }))));

    let mut many = Vec::new();
    for _ in 0..=limits::MAX_COMMANDS {
        encode_command(&Command::Signal { slot: SlotId(1), value: 1 }, &mut many).unwrap();
    }
    assert!(Commands::new(&many).any(|command| command.is_err()));

    let over =
        frame::transfer(1, true, Transfer { at: DevAddr(0), staging: limits::MAX_STAGING_BYTES as u32, bytes: 1 });
    assert!(matches!(parse_client_frame(&over), Err(WireError::Limit { .. })));

    let piece = |bytes: usize| [&frame::put_header(1, true, DevAddr(5))[..], &vec![7; bytes]].concat();
    let most = piece(limits::PIECE_BYTES);
    assert!(matches!(parse_client_frame(&most), Ok(ClientFrame::Put { number: 1, last: true, at: DevAddr(5), .. })));
    assert!(matches!(parse_client_frame(&piece(limits::PIECE_BYTES + 1)), Err(WireError::Limit { .. })));
    assert!(matches!(parse_client_frame(&most[..15]), Err(WireError::Length { .. })), "half an address");
    assert!(matches!(parse_client_frame(&frame::get(1, DevAddr(5), 0)), Err(WireError::Length { .. })));
    let get = frame::get(1, DevAddr(5), u64::MAX);
    assert!(matches!(parse_client_frame(&get), Ok(ClientFrame::Get { bytes: u64::MAX, .. })));
    let answer = frame::fragments(false, 3, &[0]).flat_map(|(head, body)| [&head, body].concat()).collect::<Vec<u8>>();
    assert!(parse_answer(&answer).is_ok() && parse_answer(&frame::data_header(3, true)).is_err());
}

#[test]
fn handshake_names_versions_and_keeps_secrets() {
    let hello = Hello {
        credential: Credential([9; 32]),
        features: features::ALL,
        gpu: 5,
        process: Process { pid: 7, namespace: 8 },
    };
    let bytes = hello.encode();
    assert_eq!(Hello::decode(&bytes), Ok(hello.clone()));
    assert!(!format!("{hello:?}").contains('9'));
    assert_eq!(Credential::from_hex(&hello.credential.to_hex()), Some(hello.credential));
    assert_eq!(Credential::from_hex("zz"), None);

    let longer = [&bytes[..], b"what a newer client says"].concat();
    assert_eq!(Hello::decode(&longer), Ok(hello.clone()));
    let process = Process::default();
    for (cut, older) in [(12, Hello { process, ..hello.clone() }), (16, Hello { gpu: 0, process, ..hello.clone() })] {
        assert_eq!(Hello::decode(&bytes[..bytes.len() - cut]), Ok(older), "an older client's");
    }
    for cut in (1..12).chain(13..16).chain([17]) {
        assert!(Hello::decode(&bytes[..bytes.len() - cut]).is_err(), "a part of a number");
    }

    let mut newer = bytes.clone();
    newer[8] = 9;
    let error = Hello::decode(&newer).unwrap_err();
    assert_eq!(error.to_string(), "protocol version 9; this side speaks 3");
    assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\n\r\n"), Err(WireError::Magic));

    let properties = Properties {
        name: "Test GPU".into(),
        uuid: [1; 16],
        pci: [0, 1, 0],
        compute_capability: [12, 0],
        driver_version: 13050,
        multiprocessors: 2,
        memory_bytes: 1 << 30,
        clock_khz: 1,
        memory_clock_khz: 1,
        memory_bus_bits: 64,
        l2_bytes: 1,
    };
    let welcome = Welcome {
        features: features::SHARED_MEMORY,
        properties,
        command_ring: (0, limits::COMMAND_RING_BYTES as u32),
        answer_ring: (1 << 20, limits::ANSWER_RING_BYTES as u32),
        statistics: 64,
        staging_block: limits::STAGING_BLOCK as u32,
        staging_bytes: limits::STAGING_BYTES as u32,
        gpus: 1,
    };
    let larger = Welcome {
        features: features::ALL,
        staging_bytes: limits::MAX_STAGING_BYTES as u32,
        gpus: limits::MAX_GPUS,
        ..welcome.clone()
    };
    let bytes = Reply::Welcome(Box::new(larger.clone())).encode();
    assert_eq!(Reply::decode(&bytes), Ok(Reply::Welcome(Box::new(larger.clone()))));
    for cut in 1..8 {
        assert!(Reply::decode(&bytes[..bytes.len() - cut]).is_err(), "staging area and GPUs were promised");
    }
    for gpus in [0, limits::MAX_GPUS + 1, u32::MAX] {
        let bytes = Reply::Welcome(Box::new(Welcome { gpus, ..larger.clone() })).encode();
        assert!(matches!(Reply::decode(&bytes), Err(WireError::Limit { .. })), "{gpus} GPUs");
    }
    for reply in [Reply::Welcome(Box::new(welcome)), Reply::Refused("tenant limit".into())] {
        let bytes = reply.encode();
        assert!(bytes.len() <= limits::MAX_REPLY_BYTES);
        let longer = [&bytes[..], b"what a newer daemon says"].concat();
        assert_eq!(Reply::decode(&longer), Ok(reply.clone()));
        assert_eq!(Reply::decode(&bytes), Ok(reply));
    }
    let process = |n| ProcessStanding { pid: n, memory_used: u64::from(n), gpu_time_ns: 9 };
    let gpu = |most: u32| GpuStanding {
        properties: Properties { name: "x".repeat(64), ..larger.properties.clone() },
        answers: true,
        memory_used: 5,
        received: 10_000,
        processes: (0..most).map(process).collect(),
    };
    let most = Standing { gpus: vec![gpu(limits::MAX_STANDING_PROCESSES as u32); limits::MAX_GPUS as usize] };
    let reply = Reply::Standing(Box::new(most.clone()));
    let bytes = reply.encode();
    assert!(bytes.len() <= limits::MAX_STANDING_BYTES);
    assert_eq!(Reply::decode(&bytes), Ok(reply.clone()));
    assert_eq!(Reply::decode(&[&bytes[..], b"what a newer daemon says"].concat()), Ok(reply));
    assert!(Reply::decode(&bytes[..bytes.len() - 1]).is_err());
    let mut least = gpu(0);
    least.properties.name.clear();
    let reply = Reply::Standing(Box::new(Standing { gpus: vec![least; 2] }));
    assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    // Of too many processes those are told of that have most.
    let many = Reply::Standing(Box::new(Standing { gpus: vec![gpu(1000)] })).encode();
    let Ok(Reply::Standing(told)) = Reply::decode(&many) else { panic!() };
    assert_eq!(told.gpus[0].processes.len(), limits::MAX_STANDING_PROCESSES);
    assert!(told.gpus[0].processes.iter().all(|process| process.pid >= 1000 - limits::MAX_STANDING_PROCESSES as u32));
    // And nobody else's counts are believed.
    let crowd = Standing { gpus: vec![gpu(0); limits::MAX_GPUS as usize + 1] };
    assert!(matches!(Reply::decode(&Reply::Standing(Box::new(crowd)).encode()), Err(WireError::Limit { .. })));
    let flood = Reply::Refused("é".repeat(5000)).encode();
    assert!(flood.len() < limits::MAX_REASON_BYTES + 64 && Reply::decode(&flood).is_ok());
}
