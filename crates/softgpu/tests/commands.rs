//! Pushbuffers written by hand: copies, fills, semaphores, inline data, and what is wrong with some.

use std::time::Duration;

use device_io::DeviceBacking;
use gpu_spec::copy::launch_dma;
use gpu_spec::fault::{AccessType, EngineId, FaultType};
use gpu_spec::host::{self, GpEntry, Header, SUBCHANNEL_COMPUTE, SUBCHANNEL_COPY, mem_op};
use gpu_spec::mmu::{PhysAddr, Rights};
use gpu_spec::notifier::{Code, Reason};
use gpu_spec::ramfc;
use gpu_spec::regs::{self, identity, vector, vf};
use softgpu::testing::mini::{LO, Mini, WINDOW, Words, wait};

#[test]
fn registers_say_what_the_device_is() {
    let mini = Mini::new(3);
    let read = |at| mini.gpu.read32(at);
    assert_eq!(read(regs::PMC_BOOT_0), regs::BOOT_0_TU104);
    assert_eq!(read(identity::MAGIC_WORD), identity::MAGIC);
    assert_eq!(read(identity::MULTIPROCESSORS), 3);
    assert_eq!((read(identity::VRAM_LO), read(identity::VRAM_HI)), (256 << 20, 0));
    assert_eq!(read(identity::NAME), u32::from_le_bytes(*b"Sund"));
    assert_eq!(read(regs::USERMODE), regs::TURING_USERMODE_A);
    let time = || u64::from(read(regs::PTIMER_TIME_1)) << 32 | u64::from(read(regs::PTIMER_TIME_0));
    let before = time();
    assert!(time() > before && before > 1 << 60);
    mini.gpu.write32(0x1700, 2);
    mini.gpu.write32(0x70_0010, 0x1234_5678);
    assert_eq!(mini.gpu.vram().u32_at(0x2_0010).load(std::sync::atomic::Ordering::Relaxed), 0x1234_5678);
    assert_eq!(read(0x70_0010), 0x1234_5678);
    assert_eq!(read(0x1234_5678), 0);
}

#[test]
fn copies_move_lines_and_bytes() {
    let mut mini = Mini::new(2);
    let mut space = mini.space();
    let mut channel = mini.channel(&mut space, 1, 1);
    let (src, dst) = (mini.buffer(&mut space, 8 << 20), mini.buffer(&mut space, 8 << 20));
    let done = mini.buffer(&mut space, 4096);
    let data: Vec<u8> = (0..6_000_000u32).map(|i| (i * 7 + i / 1000) as u8).collect();
    mini.write(src, 3, &data);
    let mut words = Words::new();
    words.copy(dst.va + 1, src.va + 3, data.len() as u32);
    words.copy_2d((dst.va + 7_000_000, 100), (src.va + 3, 1000), 10, 5, 0);
    words.copy(dst.va, src.va, 0);
    words.release(done.va, 1);
    mini.submit(&mut channel, &words);
    mini.wait_for(done, 0, 1);
    let mut back = vec![0; data.len()];
    mini.gpu.vram().read(dst.offset as usize + 1, &mut back);
    assert!(back == data);
    for line in 0..5 {
        let got: [u8; 11] = mini.read(dst, 7_000_000 + line * 100);
        let from = line as usize * 1000;
        assert_eq!((&got[..10], got[10]), (&data[from..from + 10], 0));
    }
    assert!(mini.read_u64(done, 8) > 1 << 60, "no timestamp");
    assert!(mini.time(1) > 0);
    // Those that are jobs, and the one that is not.
    mini.wait_for_copies(1, 3);
}

#[test]
fn fills_repeat_elements_of_every_size() {
    let mut mini = Mini::new(1);
    let mut space = mini.space();
    let mut channel = mini.channel(&mut space, 1, 1);
    let (dst, done) = (mini.buffer(&mut space, 1 << 20), mini.buffer(&mut space, 4096));
    let mut words = Words::new();
    words.fill(dst.va, 0xab, 1, 5);
    words.fill(dst.va + 16, 0x1234, 2, 3);
    words.fill(dst.va + 32, 0xdead_beef, 4, 100_000);
    words.release(done.va, 1);
    mini.submit(&mut channel, &words);
    mini.wait_for(done, 0, 1);
    assert_eq!(mini.read::<6>(dst, 0), [0xab, 0xab, 0xab, 0xab, 0xab, 0]);
    assert_eq!(mini.read::<8>(dst, 16), [0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0, 0]);
    assert!((0..100_000).all(|i| mini.read_u32(dst, 32 + i * 4) == 0xdead_beef));
    assert_eq!(mini.read_u32(dst, 32 + 400_000), 0);
}

#[test]
fn the_remapper_swizzles_and_keeps() {
    let mut mini = Mini::new(1);
    let mut space = mini.space();
    let mut channel = mini.channel(&mut space, 1, 1);
    let (src, dst) = (mini.buffer(&mut space, 4096), mini.buffer(&mut space, 4096));
    mini.write(src, 0, &[1, 2, 3, 4, 5, 6]);
    mini.write(dst, 0, &[9; 16]);
    use gpu_spec::copy::{SET_REMAP_CONST_A, remap};
    // Three components to four: y, constant B, kept, x.
    let components = remap::DST_X.of(1)
        | remap::DST_Y.of(remap::CONST_B)
        | remap::DST_Z.of(remap::NO_WRITE)
        | remap::DST_W.of(0)
        | remap::NUM_SRC_COMPONENTS.of(2)
        | remap::NUM_DST_COMPONENTS.of(3);
    let mut words = Words::new();
    words.method(SUBCHANNEL_COPY, SET_REMAP_CONST_A, &[0, 0x77, components]);
    words.copy_2d((dst.va, 0), (src.va, 0), 2, 1, launch_dma::REMAP.of(1));
    words.release(dst.va + 64, 1);
    mini.submit(&mut channel, &words);
    mini.wait_for(dst, 64, 1);
    assert_eq!(mini.read::<9>(dst, 0), [2, 0x77, 9, 1, 5, 0x77, 9, 4, 9]);
}

#[test]
fn inline_data_and_reductions() {
    let mut mini = Mini::new(1);
    let mut space = mini.space();
    let mut channel = mini.channel(&mut space, 1, 1);
    let buffer = mini.buffer(&mut space, 8192);
    let data: Vec<u32> = (0..1000).collect();
    let mut words = Words::new();
    words.inline(buffer.va + 16, &data, 3998);
    words.reduce(buffer.va, 5, 5);
    words.reduce(buffer.va, 3, 1);
    words.reduce(buffer.va, 0x10, 4);
    words.release(buffer.va + 4096, 7);
    mini.submit(&mut channel, &words);
    mini.wait_for(buffer, 4096, 7);
    assert_eq!(mini.read_u64(buffer, 0), 0x15);
    assert!((0..999).all(|i| mini.read_u32(buffer, 16 + i * 4) == i as u32));
    assert_eq!(mini.read_u32(buffer, 16 + 3996), 999);
    mini.wait_for_copies(1, 1);
}

#[test]
fn semaphores_order_channels_and_wake_for_the_cpu() {
    let mut mini = Mini::new(2);
    let (mut one, mut two) = (mini.space(), mini.space());
    let mut first = mini.channel(&mut one, 1, 1);
    let mut second = mini.channel(&mut two, 2, 2);
    let shared = mini.buffer(&mut one, 4096);
    let alias = mini.share(&mut two, shared);
    let mut words = Words::new();
    words.acquire(shared.va, 10).release(shared.va + 16, 1);
    mini.submit(&mut first, &words);
    let mut words = Words::new();
    words.acquire(alias.va + 32, 5).release(alias.va, 11);
    mini.submit(&mut second, &words);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(mini.read_u64(shared, 16), 0);
    // The CPU stores; nobody rings: the device looks now and then.
    mini.write(shared, 32, &5u64.to_le_bytes());
    mini.wait_for(shared, 16, 1);
    assert_eq!(mini.read_u64(shared, 0), 11);
}

#[test]
fn all_header_forms_and_interrupts() {
    let mut mini = Mini::new(1);
    let mut space = mini.space();
    let mut channel = mini.channel(&mut space, 3, 1);
    let buffer = mini.buffer(&mut space, 4096);
    mini.vf(vf::INTR_LEAF_EN_SET, 1 << vector::NON_STALL);
    mini.vf(vf::INTR_TOP_EN_SET, 1);
    assert!(!mini.gpu.wait_interrupt(Duration::ZERO));
    let mut words = Words::new();
    // Methods for another subdevice are skipped.
    words.0.push(1 << 16 | 2 << 4);
    words.release(buffer.va, 99);
    words.0.push(Header::new(Header::OP_IMMEDIATE, 0, host::ILLEGAL, 0).0);
    words.0.push(1 << 16 | 1 << 4);
    words.0.push(0);
    // One-increment: the address, then payloads over each other.
    words.method(0, host::SEM_ADDR_LO, &[buffer.va as u32, (buffer.va >> 32) as u32]);
    words.0.extend([Header::new(Header::OP_ONE_INC, 0, host::SEM_PAYLOAD_LO, 3).0, 42, 1, 0]);
    words.method(0, host::SEM_EXECUTE, &[1 | 1 << 24]);
    words.0.push(Header::new(Header::OP_IMMEDIATE, 0, host::NON_STALL_INTERRUPT, 0).0);
    words.method(0, host::SET_REFERENCE, &[0x55]);
    words.0.push(Header::new(Header::OP_END_SEGMENT, 0, 0, 0).0);
    words.0.push(0xffff_ffff);
    mini.submit(&mut channel, &words);
    assert!(mini.gpu.wait_interrupt(Duration::from_secs(10)));
    assert_eq!(mini.read_u64(buffer, 0), 42);
    mini.vf(vf::INTR_LEAF, 1 << vector::NON_STALL);
    assert!(!mini.gpu.wait_interrupt(Duration::ZERO));
    mini.push_entry(&mut channel, GpEntry::default());
    let mut words = Words::new();
    words.release(buffer.va + 16, 2);
    mini.submit(&mut channel, &words);
    mini.wait_for(buffer, 16, 2);
    assert_eq!(mini.notifier(&channel), None);
}

#[test]
fn pages_appear_and_vanish_with_invalidates() {
    let mut mini = Mini::new(1);
    let mut space = mini.space();
    let mut channel = mini.channel_with(&mut space, 1, 1, |_| {});
    let (a, b) = (mini.buffer(&mut space, 3 << 20), mini.buffer(&mut space, 4096));
    let mut words = Words::new();
    words.fill(a.va, 7, 1, 3 << 20).release(b.va, 1);
    mini.submit(&mut channel, &words);
    mini.wait_for(b, 0, 1);
    mini.unmap(&mut space, a);
    let mut words = Words::new();
    words.release(a.va + 0x1000, 2);
    mini.submit(&mut channel, &words);
    let (record, _) = mini.wait_error(&channel);
    assert_eq!((record.code, record.reason), (Code::MMU_FAULT, Reason::ILLEGAL_ADDRESS));
    assert_eq!(record.address, a.va + 0x1008, "the timestamp is stored first");
    let fault = mini.fault().unwrap();
    assert_eq!((fault.fault, fault.engine), (FaultType::PTE, EngineId::HOST));
}

#[test]
fn every_refusal_has_its_fault() {
    let read_only = Rights { read_only: true, ..Rights::default() };
    let privileged = Rights { privileged: true, ..Rights::default() };
    let cases: [(Rights, u64, bool, FaultType); 5] = [
        (read_only, 0, true, FaultType::RO_VIOLATION),
        (privileged, 0, false, FaultType::PRIV_VIOLATION),
        (Rights::default(), 4096, true, FaultType::PTE),
        (Rights::default(), WINDOW / 2, false, FaultType::PDE),
        (Rights::default(), 1 << 47, false, FaultType::PDE),
    ];
    for (rights, offset, write, expect) in cases {
        let mut mini = Mini::new(1);
        let mut space = mini.space();
        let mut channel = mini.channel(&mut space, 1, 1);
        let good = mini.buffer(&mut space, 64 << 10);
        let bad = mini.buffer_with(&mut space, 4096, rights);
        let at = bad.va + offset;
        let mut words = Words::new();
        if write {
            words.copy(at, good.va, 64)
        } else {
            words.copy(good.va, at, 64)
        };
        mini.submit(&mut channel, &words);
        let (record, _) = mini.wait_error(&channel);
        assert_eq!((record.address, record.access), (at, write.into()), "{expect:?}");
        let fault = mini.fault().unwrap();
        let access = if write { AccessType::VIRT_WRITE } else { AccessType::VIRT_READ };
        assert_eq!((fault.fault, fault.access, fault.engine), (expect, access, EngineId::COPY));
        assert_eq!((fault.address, fault.instance, fault.gpc), (at & !0xfff, channel.inst, false));
        let state = mini.gpu.read32(regs::pccsr_channel(1));
        assert!(regs::CHANNEL_ENG_FAULTED.is_set(state));
    }
}

#[test]
fn semaphores_at_the_end_of_all_addresses_are_faults() {
    for va in [u64::MAX - 7, u64::MAX - 15, !0xfff_u64] {
        for what in 0..3 {
            let mut mini = Mini::new(1);
            let mut space = mini.space();
            let mut channel = mini.channel(&mut space, 1, 1);
            let mut words = Words::new();
            match what {
                0 => words.release(va, 1),
                1 => words.acquire(va, 1),
                _ => words.reduce(va, 1, 5),
            };
            mini.submit(&mut channel, &words);
            let (record, _) = mini.wait_error(&channel);
            assert_eq!(record.reason, Reason::ILLEGAL_ADDRESS, "{va:#x} {what}");
            assert_eq!(mini.gpu.read32(regs::PMC_BOOT_0), regs::BOOT_0_TU104);
        }
    }
}

#[test]
fn a_fault_stops_its_own_tsg_only() {
    let mut mini = Mini::new(2);
    let (mut one, mut two) = (mini.space(), mini.space());
    let mut bad = mini.channel(&mut one, 1, 1);
    let mut sibling = mini.channel(&mut one, 2, 1);
    let mut other = mini.channel(&mut two, 3, 2);
    let (a, b) = (mini.buffer(&mut one, 4096), mini.buffer(&mut two, 4096));
    let mut words = Words::new();
    words.copy(0x5000, a.va, 16);
    mini.submit(&mut bad, &words);
    mini.wait_error(&bad);
    mini.wait_error(&sibling);
    let mut words = Words::new();
    words.release(a.va, 1);
    mini.submit(&mut sibling, &words);
    let mut words = Words::new();
    words.release(b.va, 1);
    mini.submit(&mut other, &words);
    mini.wait_for(b, 0, 1);
    assert_eq!(mini.notifier(&other), None);
    assert_eq!(mini.read_u64(a, 0), 0);
    // Clearing the faults lets them go on behind what failed.
    for id in [1, 2] {
        mini.gpu.write32(regs::pccsr_channel(id), regs::CHANNEL_ENG_FAULTED.of(1));
    }
    mini.wait_for(a, 0, 1);
}

#[test]
fn malformed_commands_end_in_the_notifier() {
    type Case = (&'static str, fn(&mut Words) -> &mut Words, Code);
    let cases: [Case; 9] = [
        ("opcode 6", |w| w.raw(6 << 29), Code::PBDMA_ERROR),
        ("old format", |w| w.raw(0x100), Code::PBDMA_ERROR),
        ("unknown host method", |w| w.method(0, 0xfc, &[0]), Code::PBDMA_ERROR),
        ("unknown class", |w| w.method(2, host::SET_OBJECT, &[0x902d]), Code::PBDMA_ERROR),
        ("no class", |w| w.method(3, 0x200, &[0]), Code::PBDMA_ERROR),
        ("copy class", |w| w.method(SUBCHANNEL_COPY, 0x104, &[1]), Code::CE_EXCEPTION),
        ("compute class", |w| w.method(SUBCHANNEL_COMPUTE, 0x104, &[1]), Code::GR_CLASS_ERROR),
        ("privileged", |w| w.copy_2d((LO, 0), (LO, 0), 1, 1, 1 << 12), Code::CE_EXCEPTION),
        (
            "foreign page directories",
            |w| {
                let d = mem_op::D_OPERATION.of(mem_op::MMU_TLB_INVALIDATE);
                w.method(0, host::MEM_OP_A, &[0, 0, 0x7777_7000, d])
            },
            Code::PBDMA_ERROR,
        ),
    ];
    for (expect, write, code) in cases {
        let mut mini = Mini::new(1);
        let mut space = mini.space();
        let mut channel = mini.channel(&mut space, 1, 1);
        let mut words = Words::new();
        write(&mut words);
        mini.submit(&mut channel, &words);
        let (record, log) = mini.wait_error(&channel);
        assert_eq!((record.code, record.reason), (code, Reason::ILLEGAL_COMMAND), "{expect}");
        assert!(log.contains(expect), "{expect:?} is not in {log:?}");
        assert!(mini.fault().is_none());
    }
}

#[test]
fn privileged_channels_use_physical_addresses() {
    let mut mini = Mini::new(1);
    let mut space = mini.space();
    let privileged = |block: &mut ramfc::InstanceBlock| block.words[ramfc::CONFIG] = ramfc::CONFIG_PRIVILEGED.of(1);
    let mut channel = mini.channel_with(&mut space, 1, 1, privileged);
    let buffer = mini.buffer(&mut space, 64 << 10);
    let dma = mini.gpu.alloc_dma(1 << 16).unwrap();
    dma.mapping.write(0x100, &[1, 2, 3, 4]);
    let mut words = Words::new();
    words.method(SUBCHANNEL_COPY, gpu_spec::copy::SET_SRC_PHYS_MODE, &[1]);
    words.copy_2d((buffer.va, 0), (dma.bus().0, 0), 40_000, 1, launch_dma::SRC_PHYSICAL.of(1));
    words.release(buffer.va + 60_000, 1);
    mini.submit(&mut channel, &words);
    mini.wait_for(buffer, 60_000, 1);
    assert_eq!(mini.read::<4>(buffer, 0x100), [1, 2, 3, 4]);
    mini.gpu.free_dma(dma.bus());
    let mut words = Words::new();
    words.copy_2d((buffer.va, 0), (dma.bus().0, 0), 4, 1, launch_dma::SRC_PHYSICAL.of(1));
    mini.submit(&mut channel, &words);
    assert_eq!(mini.wait_error(&channel).0.address, dma.bus().0);
}

#[test]
fn unusable_instance_blocks_are_told() {
    let mut mini = Mini::new(1);
    let mut space = mini.space();
    for adjust in [
        (|block| block.words[ramfc::SIGNATURE] = 0) as fn(&mut ramfc::InstanceBlock),
        |block| block.words[ramfc::PAGE_DIR_BASE_LO] = 1,
        |block| block.set_window(LO + 5, WINDOW),
        |block| block.set_window(LO, 1 << 46),
        |block| block.set_gpfifo(LO, 31),
    ] {
        let mut fresh = mini.space();
        let channel = mini.channel_with(&mut fresh, 9, 1, adjust);
        let fault = mini.fault().unwrap();
        assert_eq!((fault.fault, fault.instance), (FaultType::UNBOUND_INST_BLOCK, channel.inst));
        while mini.fault().is_some() {}
        mini.remove(1);
    }
    let bind = regs::INST_PTR.of(0xfff_ffff) | regs::INST_BIND.of(1);
    mini.gpu.write32(regs::pccsr_inst(9), bind);
    assert_eq!(mini.fault().unwrap().instance, PhysAddr::vram(0xff_ffff_f000));
    // Without a window, one is made around what is mapped.
    let mut channel = mini.channel_with(&mut space, 10, 2, |block| block.set_window(0, 0));
    let mut words = Words::new();
    words.method(0, host::SET_REFERENCE, &[1]);
    mini.submit(&mut channel, &words);
    wait("the channel", || !regs::CHANNEL_BUSY.is_set(mini.gpu.read32(regs::pccsr_channel(10))));
    assert_eq!(mini.notifier(&channel), None);
}

#[test]
fn sixty_four_channels_work_at_once() {
    let mut mini = Mini::new(2);
    let mut channels = Vec::new();
    for id in 0..64 {
        let mut space = mini.space();
        let channel = mini.channel(&mut space, id * 60, id);
        let buffer = mini.buffer(&mut space, 16 << 10);
        channels.push((channel, buffer, space));
    }
    for round in 1..=20u32 {
        for (channel, buffer, _) in &mut channels {
            let mut words = Words::new();
            words.fill(buffer.va + 4096, round, 4, 3072 / 4);
            words.copy(buffer.va + 8192, buffer.va + 4096, 3072);
            words.release(buffer.va, round.into());
            mini.submit(channel, &words);
        }
    }
    for (channel, buffer, _) in &channels {
        mini.wait_for(*buffer, 0, 20);
        assert_eq!(mini.read_u32(*buffer, 8192 + 3068), 20);
        assert_eq!(mini.notifier(channel), None);
    }
}

#[test]
fn acquires_of_every_form_wait_for_what_they_say() {
    use gpu_spec::host::{SEM_ADDR_LO, sem_execute};
    let mut mini = Mini::new(1);
    let mut space = mini.space();
    let mut channel = mini.channel(&mut space, 1, 1);
    let buffer = mini.buffer(&mut space, 4096);
    let high = 1u64 << 63;
    // Operation, payload, what does not satisfy it, what does; the first four of 32 bits, beside which lies something else.
    let cases: [(u32, u64, u64, u64); 9] = [
        (sem_execute::ACQUIRE, 5, 0xffff_ffff_0000_0004, 0xffff_ffff_0000_0005),
        (sem_execute::ACQ_CIRC_GEQ, 5, 0x7_ffff_fff0, 0x7_0000_0006),
        (sem_execute::ACQ_AND, 6, 0xf_0000_0001, 4),
        (sem_execute::ACQ_NOR, 0xffff_fff0, 0x0f, 0xffff_ffff_0000_000e),
        (sem_execute::ACQUIRE, high | 5, 5, high | 5),
        (sem_execute::ACQ_CIRC_GEQ, u64::MAX, u64::MAX - 1, 3),
        (sem_execute::ACQ_STRICT_GEQ, 7 << 32, u32::MAX.into(), 8 << 32),
        (sem_execute::ACQ_AND, high, u64::MAX >> 1, high),
        (sem_execute::ACQ_NOR, u64::MAX >> 1, high, u64::MAX >> 1),
    ];
    for (round, (operation, payload, before, after)) in (1..).zip(cases) {
        let wide = round > 4;
        mini.write(buffer, 0, &before.to_le_bytes());
        let execute = sem_execute::OPERATION.of(operation) | sem_execute::PAYLOAD_64.of(wide.into());
        let words_of = |value: u64| [value as u32, (value >> 32) as u32];
        let ([lo, hi], [payload_lo, payload_hi]) = (words_of(buffer.va), words_of(payload));
        let mut words = Words::new();
        words.method(1, SEM_ADDR_LO, &[lo, hi, payload_lo, payload_hi, execute]).release(buffer.va + 64, round);
        mini.submit(&mut channel, &words);
        wait("the acquire", || regs::CHANNEL_STATUS.get(mini.gpu.read32(regs::pccsr_channel(1))) == 3);
        // It looks again at each doorbell.
        mini.ring(&channel);
        assert_ne!(mini.read_u64(buffer, 64), round, "case {round} did not wait");
        mini.write(buffer, 0, &after.to_le_bytes());
        mini.wait_for(buffer, 64, round);
    }
    assert_eq!(mini.notifier(&channel), None);
}
