//! Kernels: launches, their errors, preemption, shares.

use std::time::Duration;

use device_io::DeviceBacking;
use gpu_spec::fault::{AccessType, EngineId, FaultType};
use gpu_spec::mmu::Rights;
use gpu_spec::notifier::{Code, Reason};
use gpu_spec::program;
use gpu_spec::qmd::Qmd;
use gpu_spec::regs::{self, accounting};
use softgpu::testing::mini::{Buffer, Channel, Mini, Space, Words, wait};

/// Wraps a kernel's body, with some registers and its parameters `%rd1` to `%rd3` loaded.
fn ptx(body: &str) -> String {
    format!(
        ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c)\n\
         {{\n.reg .pred %p<4>;\n.reg .b32 %r<10>;\n.reg .b64 %rd<10>;\n\
         ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\nld.param.u64 %rd3, [c];\n{body}\nret;\n}}\n"
    )
}

/// `a[global thread] = global thread`.
const INDEX: &str = "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\n\
                     mad.lo.u32 %r4, %r1, %r2, %r3;\nmul.wide.u32 %rd4, %r4, 4;\nadd.u64 %rd5, %rd1, %rd4;\n\
                     st.global.u32 [%rd5], %r4;";
/// Counts `a` up `b` times, without end if `b` is 0.
const SPIN: &str = "mov.u64 %rd4, 0;\nL: ld.volatile.global.u64 %rd5, [%rd1];\nadd.u64 %rd4, %rd4, 1;\n\
                    setp.ne.u64 %p1, %rd4, %rd2;\n@%p1 bra L;";

struct Bench {
    mini: Mini,
    space: Space,
    channel: Channel,
    buffer: Buffer,
}

fn bench(workers: usize) -> Bench {
    let mut mini = Mini::new(workers);
    let mut space = mini.space();
    let channel = mini.channel(&mut space, 1, 1);
    let buffer = mini.buffer(&mut space, 1 << 20);
    Bench { mini, space, channel, buffer }
}

impl Bench {
    fn kernel(&mut self, text: &str, grid: [u32; 3], block: [u32; 3], params: &[u64]) -> u64 {
        let program = self.mini.load(&mut self.space, text, "k");
        self.mini.descriptor(&mut self.space, program, grid, block, params)
    }
}

#[test]
fn a_grid_runs_every_thread_and_releases_its_semaphore() {
    for workers in [1, 3] {
        let mut b = bench(workers);
        let program = b.mini.load(&mut b.space, &ptx(INDEX), "k");
        let done = b.buffer.va + 0x8_0000;
        let mut qmd = Qmd::default();
        qmd.set(Qmd::RELEASE0_ENABLE, 1);
        qmd.set(Qmd::RELEASE0_ADDRESS_LOWER, done as u32);
        qmd.set(Qmd::RELEASE0_ADDRESS_UPPER, (done >> 32) as u32);
        qmd.set(Qmd::RELEASE0_PAYLOAD, 77);
        let grid = [1000, 1, 1];
        let at = b.mini.describe(&mut b.space, &mut qmd, program, grid, [128, 1, 1], &[b.buffer.va, 0, 0]);
        let mut words = Words::new();
        words.launch(at).release(done + 16, 1);
        b.mini.submit(&mut b.channel, &words);
        b.mini.wait_for(b.buffer, 0x8_0010, 1);
        assert_eq!(b.mini.read_u64(b.buffer, 0x8_0000), 77);
        assert!((0..128_000).all(|i| b.mini.read_u32(b.buffer, i * 4) == i as u32));
        assert_eq!(b.mini.gpu.read32(accounting::word(1, accounting::GRIDS)), 1);
        assert!(b.mini.time(1) > 0);
    }
}

/// `a = a * 10 + b`.
const DIGIT: &str =
    "ld.global.u64 %rd4, [%rd1];\nmul.lo.u64 %rd4, %rd4, 10;\nadd.u64 %rd4, %rd4, %rd2;\nst.global.u64 [%rd1], %rd4;";

impl Bench {
    /// A descriptor whose grid appends a digit to the number at `a`; `dependent` is launched at its end.
    fn digit(&mut self, digit: u64, dependent: Option<u64>, adjust: impl FnOnce(&mut Qmd)) -> u64 {
        let program = self.mini.load(&mut self.space, &ptx(DIGIT), "k");
        let mut qmd = Qmd::default();
        if let Some(at) = dependent {
            qmd.set(Qmd::DEPENDENT_QMD_SCHEDULE_ENABLE, 1);
            qmd.set(Qmd::DEPENDENT_QMD_TYPE_GRID, 1);
            qmd.set(Qmd::DEPENDENT_QMD, (at >> 8) as u32);
        }
        adjust(&mut qmd);
        let params = [self.buffer.va, digit, 0];
        self.mini.describe(&mut self.space, &mut qmd, program, [1, 1, 1], [1, 1, 1], &params)
    }
}

#[test]
fn grids_launch_the_grids_that_depend_on_them() {
    let mut b = bench(2);
    let done = b.buffer.va + 64;
    let third = b.digit(3, None, |_| {});
    let second = b.digit(2, Some(third), |qmd| {
        qmd.set(Qmd::RELEASE0_ENABLE, 1);
        qmd.set(Qmd::RELEASE0_ADDRESS_LOWER, done as u32);
        qmd.set(Qmd::RELEASE0_ADDRESS_UPPER, (done >> 32) as u32);
        qmd.set(Qmd::RELEASE0_PAYLOAD, 77);
    });
    let first = b.digit(1, Some(second), |_| {});
    let last = b.digit(4, None, |_| {});
    let mut words = Words::new();
    words.launch(first).launch(last).release(b.buffer.va + 128, 1);
    b.mini.submit(&mut b.channel, &words);
    b.mini.wait_for(b.buffer, 128, 1);
    assert_eq!(b.mini.read_u64(b.buffer, 0), 1234);
    assert_eq!(b.mini.read_u32(b.buffer, 64), 77);
    assert_eq!(b.mini.gpu.read32(accounting::word(1, accounting::GRIDS)), 4);
    // What depends is checked like what is launched.
    let queue = b.digit(5, Some(last), |qmd| qmd.set(Qmd::DEPENDENT_QMD_TYPE_GRID, 0));
    let before = b.digit(6, Some(queue), |_| {});
    let mut words = Words::new();
    words.launch(before);
    b.mini.submit(&mut b.channel, &words);
    let (record, log) = b.mini.wait_error(&b.channel);
    assert_eq!(record.reason, Reason::ILLEGAL_COMMAND);
    assert!(log.contains("dependent"), "{log}");
    assert_eq!(b.mini.read_u64(b.buffer, 0), 12346);
}

#[test]
fn a_grid_that_depends_on_itself_can_be_killed() {
    let mut b = bench(1);
    let at = b.digit(1, Some(0), |_| {});
    b.mini.store(&b.space, at + 60, (at >> 8) as u32);
    let mut words = Words::new();
    words.launch(at).release(b.buffer.va + 128, 1);
    b.mini.submit(&mut b.channel, &words);
    let grids = |b: &Bench| b.mini.gpu.read32(accounting::word(1, accounting::GRIDS));
    wait("a hundred grids", || grids(&b) > 100);
    // Another tenant gets its turn on the only worker.
    let mut other = b.mini.space();
    let mut channel = b.mini.channel(&mut other, 2, 2);
    let buffer = b.mini.buffer(&mut other, 4096);
    let mut words = Words::new();
    words.fill(buffer.va + 1024, 5, 4, 500).release(buffer.va, 1);
    b.mini.submit(&mut channel, &words);
    b.mini.wait_for(buffer, 0, 1);
    b.mini.remove(1);
    let count = grids(&b);
    let mut words = Words::new();
    words.release(buffer.va, 2);
    b.mini.submit(&mut channel, &words);
    b.mini.wait_for(buffer, 0, 2);
    assert_eq!((grids(&b), b.mini.read_u64(b.buffer, 128)), (count, 0));
}

#[test]
fn programs_are_read_again_after_an_invalidate() {
    let mut b = bench(1);
    let text = |value: u32| ptx(&format!("mov.u32 %r1, {value};\nst.global.u32 [%rd1], %r1;"));
    let program = b.mini.load(&mut b.space, &text(1111), "k");
    let at = b.mini.descriptor(&mut b.space, program, [1, 1, 1], [1, 1, 1], &[b.buffer.va, 0, 0]);
    let container = program::encode(text(2222).as_bytes(), &["k"], &[]).unwrap();
    let mut expected = [1111, 1111, 2222].into_iter();
    for round in 1..=3u64 {
        let mut words = Words::new();
        if round == 2 {
            // The second launch still runs what was compiled; the third looks again.
            let bytes = container.len() as u32;
            let staged = b.mini.buffer(&mut b.space, bytes.into());
            b.mini.write(staged, 0, &container);
            words.copy(program - program::entry_offset(0), staged.va, bytes);
        }
        if round == 3 {
            words.method(1, gpu_spec::compute::INVALIDATE_SHADER_CACHES, &[1]);
        }
        words.launch(at).release(b.buffer.va + 64, round);
        b.mini.submit(&mut b.channel, &words);
        b.mini.wait_for(b.buffer, 64, round);
        assert_eq!(Some(b.mini.read_u32(b.buffer, 0)), expected.next());
    }
}

#[test]
fn each_exception_has_its_reason() {
    let page = |b: &mut Bench, rights| b.mini.buffer_with(&mut b.space, 4096, rights).va;
    let read_only = Rights { read_only: true, ..Rights::default() };
    type Expect = (Code, Reason, Option<FaultType>);
    let mmu = |fault| (Code::MMU_FAULT, Reason::ILLEGAL_ADDRESS, Some(fault));
    let cases: [(&str, Expect); 6] = [
        ("trap;", (Code::GR_EXCEPTION, Reason::TRAP, None)),
        ("ld.global.u32 %r1, [%rd2+4096];\nst.global.u32 [%rd1], %r1;", mmu(FaultType::PTE)),
        ("ld.global.u32 %r1, [4096];\nst.global.u32 [%rd1], %r1;", mmu(FaultType::PDE)),
        ("mov.u32 %r1, 1;\nst.global.u32 [%rd2], %r1;", mmu(FaultType::RO_VIOLATION)),
        ("mov.u32 %r1, 1;\natom.global.add.u32 %r2, [%rd2], %r1;", mmu(FaultType::RO_VIOLATION)),
        ("ld.global.u32 %r1, [%rd1+2];\nst.global.u32 [%rd1], %r1;", (Code::GR_EXCEPTION, Reason::MISALIGNED, None)),
    ];
    for (body, (code, reason, fault)) in cases {
        let mut b = bench(2);
        let at = page(&mut b, read_only);
        let kernel = b.kernel(&ptx(body), [4, 1, 1], [32, 1, 1], &[b.buffer.va, at, 0]);
        let mut words = Words::new();
        words.launch(kernel).release(b.buffer.va + 64, 1);
        b.mini.submit(&mut b.channel, &words);
        let (record, _) = b.mini.wait_error(&b.channel);
        assert_eq!((record.code, record.reason), (code, reason), "{body}");
        let seen = b.mini.fault();
        assert_eq!(seen.map(|seen| seen.fault), fault, "{body}");
        if let Some(seen) = seen {
            assert!(seen.gpc && seen.engine == EngineId::GRAPHICS);
            let atomic = body.contains("atom");
            let write = body.contains("[%rd2], %r1;");
            let access = if atomic { AccessType::VIRT_ATOMIC } else { AccessType(write.into()) };
            assert_eq!((seen.access, seen.address), (access, record.address & !0xfff), "{body}");
        }
        assert_eq!(b.mini.read_u64(b.buffer, 64), 0);
    }
}

#[test]
fn programs_that_do_not_compile_are_explained() {
    let cases = [
        ("frobnicate.u32 %r1, %r2;", Reason::INVALID_PROGRAM, "frobnicate"),
        ("mov.u32 %r1, nothing;", Reason::INVALID_PROGRAM, "nothing"),
    ];
    for (body, reason, log) in cases {
        let mut b = bench(1);
        let kernel = b.kernel(&ptx(body), [1, 1, 1], [1, 1, 1], &[0, 0, 0]);
        let mut words = Words::new();
        words.launch(kernel);
        b.mini.submit(&mut b.channel, &words);
        let (record, text) = b.mini.wait_error(&b.channel);
        assert_eq!(record.reason, reason, "{body}: {text}");
        assert!(text.contains(log), "{log:?} is not in {text:?}");
    }
}

#[test]
fn malformed_launches_end_in_the_notifier() {
    type Spoil = fn(&mut Qmd);
    let cases: [(&str, Spoil); 7] = [
        ("version", |q| q.set(Qmd::VERSION, 2)),
        ("empty", |q| q.set(Qmd::CTA_RASTER_HEIGHT, 0)),
        ("CTA", |q| q.set(Qmd::CTA_THREAD_DIMENSION1, 500)),
        ("shared", |q| q.set(Qmd::SHARED_MEMORY_SIZE, 200_000)),
        ("missing", |q| q.set(Qmd::constant_buffer_valid(0), 0)),
        ("parameters", |q| q.set(Qmd::constant_buffer_size_shifted4(0), 22)),
        ("entry", |q| q.set(Qmd::PROGRAM_ADDRESS_LOWER, q.get(Qmd::PROGRAM_ADDRESS_LOWER) + 16)),
    ];
    for (log, spoil) in cases {
        let mut b = bench(1);
        let program = b.mini.load(&mut b.space, &ptx(INDEX), "k");
        let mut qmd = Qmd::default();
        let at = b.mini.describe(&mut b.space, &mut qmd, program, [2, 2, 1], [4, 4, 1], &[b.buffer.va, 0, 0]);
        spoil(&mut qmd);
        let spoiled = b.mini.buffer(&mut b.space, 256);
        b.mini.write(spoiled, 0, zerocopy::IntoBytes::as_bytes(&qmd));
        assert_ne!(at, spoiled.va);
        let mut words = Words::new();
        words.launch(spoiled.va);
        b.mini.submit(&mut b.channel, &words);
        let (record, text) = b.mini.wait_error(&b.channel);
        assert_eq!(record.reason, Reason::ILLEGAL_COMMAND, "{log}: {text}");
        assert!(text.contains(log), "{log:?} is not in {text:?}");
    }
}

#[test]
fn an_endless_kernel_is_preempted_and_killed() {
    let mut b = bench(1);
    let endless = b.kernel(&ptx(SPIN), [8, 1, 1], [64, 1, 1], &[b.buffer.va, 0, 0]);
    let mut words = Words::new();
    words.launch(endless).release(b.buffer.va + 64, 1);
    b.mini.submit(&mut b.channel, &words);
    // Another tenant gets the only worker within slices.
    let mut other = b.mini.space();
    let mut channel = b.mini.channel(&mut other, 2, 2);
    let buffer = b.mini.buffer(&mut other, 4096);
    let program = b.mini.load(&mut other, &ptx(INDEX), "k");
    let kernel = b.mini.descriptor(&mut other, program, [2, 1, 1], [32, 1, 1], &[buffer.va, 0, 0]);
    for round in 1..=20u64 {
        let mut words = Words::new();
        words.launch(kernel).release(buffer.va + 1024, round);
        b.mini.submit(&mut channel, &words);
        b.mini.wait_for(buffer, 1024, round);
    }
    assert_eq!(b.mini.read_u64(b.buffer, 64), 0);
    b.mini.remove(1);
    let used = b.mini.time(1);
    let mut words = Words::new();
    words.launch(kernel).release(buffer.va + 1024, 21);
    b.mini.submit(&mut channel, &words);
    b.mini.wait_for(buffer, 1024, 21);
    assert_eq!(b.mini.time(1), used, "the killed kernel still uses time");
}

#[test]
fn a_disabled_channel_goes_on_later() {
    let mut b = bench(1);
    let kernel = b.kernel(&ptx(SPIN), [4, 1, 1], [32, 1, 1], &[b.buffer.va, 3_000_000, 0]);
    let mut words = Words::new();
    words.launch(kernel).release(b.buffer.va + 64, 1);
    b.mini.submit(&mut b.channel, &words);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(2));
        b.mini.gpu.write32(regs::pccsr_channel(1), regs::CHANNEL_ENABLE_CLR.of(1));
        wait("the channel", || !regs::CHANNEL_BUSY.is_set(b.mini.gpu.read32(regs::pccsr_channel(1))));
        b.mini.gpu.write32(regs::pccsr_channel(1), regs::CHANNEL_ENABLE_SET.of(1));
    }
    b.mini.wait_for(b.buffer, 64, 1);
}

#[test]
fn time_follows_slices() {
    // Three to one, and the favoured one has the shorter CTAs; then the other way round.
    for (slices, counts) in [([3_000_000, 1_000_000], [20_000, 400_000]), ([1_000_000, 2_000_000], [20_000, 400_000])] {
        let mut mini = Mini::new(2);
        let mut tenants = Vec::new();
        for (tsg, count) in (1..).zip(counts) {
            let mut space = mini.space();
            let mut channel = mini.channel(&mut space, tsg, tsg);
            mini.set_slice(tsg, slices[tsg as usize - 1]);
            let buffer = mini.buffer(&mut space, 4096);
            let program = mini.load(&mut space, &ptx(SPIN), "k");
            let kernel = mini.descriptor(&mut space, program, [1_000_000, 1, 1], [32, 1, 1], &[buffer.va, count, 0]);
            let mut words = Words::new();
            words.launch(kernel);
            mini.push(&mut channel, &words);
            tenants.push((space, channel));
        }
        for (_, channel) in &tenants {
            mini.ring(channel);
        }
        wait("both to run", || mini.time(1) > 10_000_000 && mini.time(2) > 10_000_000);
        let before = [mini.time(1), mini.time(2)];
        let used = || [mini.time(1) - before[0], mini.time(2) - before[1]];
        // Long against what one of them can overrun where the host is busy.
        wait("two seconds of GPU time", || used().iter().sum::<u64>() > 2_000_000_000);
        let wanted = slices[0] as f64 / slices.iter().sum::<u64>() as f64;
        // A slice that the host takes away counts as used, and is made up for later.
        let share = || {
            let used = used().map(|ns| ns as f64);
            used[0] / (used[0] + used[1])
        };
        wait("the shares", || (share() - wanted).abs() < 0.05);
        println!("share {:.4} of {wanted:.4}, {} ms of GPU time", share(), used().iter().sum::<u64>() / 1_000_000);
    }
}

#[test]
fn kernels_of_one_tsg_wait_for_each_other() {
    // One worker; the first kernel waits for a flag that the second sets.
    let mut b = bench(1);
    let waits = "L: ld.volatile.global.u32 %r1, [%rd1];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra L;";
    let waits = b.kernel(&ptx(waits), [1, 1, 1], [1, 1, 1], &[b.buffer.va, 0, 0]);
    let sets = b.kernel(
        &ptx("mov.u32 %r1, 1;\nst.volatile.global.u32 [%rd1], %r1;"),
        [1, 1, 1],
        [1, 1, 1],
        &[b.buffer.va, 0, 0],
    );
    let mut second = b.mini.channel(&mut b.space, 2, 1);
    let mut words = Words::new();
    words.launch(waits).release(b.buffer.va + 64, 1);
    b.mini.submit(&mut b.channel, &words);
    std::thread::sleep(Duration::from_millis(5));
    let mut words = Words::new();
    words.launch(sets).release(b.buffer.va + 128, 1);
    b.mini.submit(&mut second, &words);
    b.mini.wait_for(b.buffer, 64, 1);
    b.mini.wait_for(b.buffer, 128, 1);
}

#[test]
fn ctas_of_a_cooperative_grid_wait_for_each_other() {
    let mut b = bench(2);
    let barrier = "mov.u32 %r1, 1;\natom.global.add.u32 %r2, [%rd1], %r1;\n\
                   L: ld.volatile.global.u32 %r3, [%rd1];\nsetp.lt.u32 %p1, %r3, 24;\n@%p1 bra L;\n\
                   atom.global.add.u32 %r2, [%rd1+4], %r1;";
    let program = b.mini.load(&mut b.space, &ptx(barrier), "k");
    let mut qmd = Qmd::default();
    qmd.set(Qmd::COOPERATIVE, 1);
    let kernel = b.mini.describe(&mut b.space, &mut qmd, program, [24, 1, 1], [1, 1, 1], &[b.buffer.va, 0, 0]);
    let mut words = Words::new();
    words.launch(kernel).release(b.buffer.va + 64, 1);
    b.mini.submit(&mut b.channel, &words);
    b.mini.wait_for(b.buffer, 64, 1);
    assert_eq!((b.mini.read_u32(b.buffer, 0), b.mini.read_u32(b.buffer, 4)), (24, 24));
}

#[test]
fn unmapping_under_a_running_kernel_is_its_fault() {
    let mut b = bench(1);
    let victim = b.mini.buffer(&mut b.space, 4096);
    let kernel = b.kernel(&ptx(SPIN), [1, 1, 1], [32, 1, 1], &[victim.va, 0, 0]);
    let mut words = Words::new();
    words.launch(kernel);
    b.mini.submit(&mut b.channel, &words);
    wait("the kernel", || regs::CHANNEL_BUSY.is_set(b.mini.gpu.read32(regs::pccsr_channel(1))));
    std::thread::sleep(Duration::from_millis(2));
    b.mini.unmap(&mut b.space, victim);
    assert_eq!(b.mini.wait_error(&b.channel).0.address, victim.va);
}
