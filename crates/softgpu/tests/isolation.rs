//! What one tenant does on the device, and another that launches, or waits, beside it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use device_io::DeviceBacking;
use gpu_spec::host::GpEntry;
use gpu_spec::mmu::{PhysAddr, Rights};
use gpu_spec::notifier::Reason;
use gpu_spec::qmd::Qmd;
use gpu_spec::ramfc::InstanceBlock;
use gpu_spec::regs::{self, budget};
use parking_lot::Mutex;
use softgpu::compiler::{Compiler, Done, Job, Outcome, Request, Threads};
use softgpu::testing::mini::{Buffer, Channel, Mini, PATIENCE, Space, Words, wait};
use softgpu::{Config, EngineKind};

/// Stores `b` at `a`.
const STORE: &str = "st.global.u64 [%rd1], %rd2;";
/// Waits until `a` is not 0, then counts `b` up.
const WAIT: &str = "L: ld.volatile.global.u64 %rd4, [%rd1];\nsetp.eq.u64 %p1, %rd4, 0;\n@%p1 bra L;\n\
                    mov.u64 %rd5, 1;\natom.global.add.u64 %rd6, [%rd2], %rd5;";

fn ptx(body: &str, locals: &str) -> String {
    format!(
        ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b)\n{{\n{locals}\
         .reg .pred %p<4>;\n.reg .b32 %r<10>;\n.reg .b64 %rd<10>;\nld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\n\
         {body}\nret;\n}}\n"
    )
}

/// A tenant with one channel, whose TSG and budget have the channel's number.
struct Tenant {
    space: Space,
    channel: Channel,
    buffer: Buffer,
    round: u64,
}

impl Tenant {
    fn new(mini: &mut Mini, id: u32) -> Tenant {
        let mut space = mini.space();
        let channel = mini.channel_with(&mut space, id, id, |block: &mut InstanceBlock| block.set_budget(id));
        let buffer = mini.buffer(&mut space, 64 << 10);
        Tenant { space, channel, buffer, round: 0 }
    }

    fn kernel(&mut self, mini: &mut Mini, text: &str, grid: u32, block: u32, params: &[u64]) -> u64 {
        let program = mini.load(&mut self.space, text, "k");
        mini.descriptor(&mut self.space, program, [grid, 1, 1], [block, 1, 1], params)
    }

    /// Launches, and waits until it is done; gives the time it took.
    fn run(&mut self, mini: &Mini, kernel: u64) -> Duration {
        self.round += 1;
        let mut words = Words::new();
        words.launch(kernel).release(self.buffer.va, self.round);
        let begin = Instant::now();
        mini.submit(&mut self.channel, &words);
        let semaphore = mini.gpu.vram().u64_at(self.buffer.offset as usize);
        while semaphore.load(Ordering::Acquire) != self.round {
            assert!(begin.elapsed() < PATIENCE, "a launch of round {} never ended", self.round);
            std::thread::yield_now();
        }
        mini.rewind(&mut self.channel);
        begin.elapsed()
    }

    fn launch(&mut self, mini: &Mini, kernel: u64) {
        let mut words = Words::new();
        words.launch(kernel);
        mini.submit(&mut self.channel, &words);
    }
}

fn used(mini: &Mini, number: u32) -> u64 {
    let read = |word| u64::from(mini.gpu.read32(budget::word(number, word)));
    read(budget::BYTES_LO) | read(budget::BYTES_HI) << 32
}

fn limit(mini: &Mini, number: u32, bytes: u64) {
    mini.gpu.write32(budget::word(number, budget::BYTES_LIMIT_LO), bytes as u32);
    mini.gpu.write32(budget::word(number, budget::BYTES_LIMIT_HI), (bytes >> 32) as u32);
}

/// What a module begins with whose kernels are held.
const HELD: &str = "// held";

/// [`STORE`] in a module whose kernels are held.
fn held_store() -> String {
    format!("{HELD}\n{}", ptx(STORE, ""))
}

/// A compiler that keeps some compilations until the test lets them go, and compiles the rest.
#[derive(Debug, Default)]
struct Holding {
    threads: Threads,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    started: Vec<Option<(Request, Done)>>,
    /// Kernels are compiled at once after all.
    open: bool,
    given_up: u32,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} started, {} given up", self.started.len(), self.given_up)
    }
}

#[derive(Debug)]
struct Ticket {
    held: Arc<Mutex<Held>>,
    begin: Instant,
}

impl Job for Ticket {
    fn cpu(&self) -> Duration {
        self.begin.elapsed()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.held.lock().given_up += 1;
    }
}

impl Compiler for Holding {
    fn start(&self, request: Request, done: Done) -> Box<dyn Job> {
        let mut held = self.held.lock();
        if held.open || !request.source.text.starts_with(HELD) {
            return self.threads.start(request, done);
        }
        held.started.push(Some((request, done)));
        Box::new(Ticket { held: Arc::clone(&self.held), begin: Instant::now() })
    }
}

fn holding(workers: usize) -> (Mini, Arc<Mutex<Held>>) {
    let compiler = Holding::default();
    let held = Arc::clone(&compiler.held);
    (Mini::on(Config { workers, compiler: Arc::new(compiler), ..Config::default() }), held)
}

#[test]
fn a_compilation_holds_no_worker_and_is_charged() {
    let (mut mini, held) = holding(1);
    let mut attacker = Tenant::new(&mut mini, 1);
    let mut victim = Tenant::new(&mut mini, 2);
    let params = [attacker.buffer.va + 64, 5];
    let kernel = attacker.kernel(&mut mini, &held_store(), 1, 1, &params);
    attacker.launch(&mini, kernel);
    wait("the compilation", || held.lock().started.len() == 1);
    assert_eq!(mini.gpu.read32(budget::word(1, budget::COMPILING)), 1);
    assert!(used(&mini, 1) > 0, "what compiling may take is charged");
    // The only worker is the neighbour's.
    let params = [victim.buffer.va + 64, 7];
    let theirs = victim.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
    for _ in 0..50 {
        victim.run(&mini, theirs);
    }
    wait("the compiler's time on the account", || mini.time(1) > 2_000_000);
    // Then it is compiled, and runs.
    let (request, done) = held.lock().started[0].take().unwrap();
    let other = Threads::default();
    let _job = other.start(request, done);
    wait("the kernel", || mini.read_u64(attacker.buffer, 64) == 5);
    assert_eq!(mini.gpu.read32(budget::word(1, budget::COMPILING)), 0);
}

#[test]
fn nobody_waits_for_the_compilation_of_a_tenant_that_is_killed() {
    let (mut mini, held) = holding(1);
    let mut attacker = Tenant::new(&mut mini, 1);
    let kernel = attacker.kernel(&mut mini, &held_store(), 1, 1, &[0, 0]);
    attacker.launch(&mini, kernel);
    wait("the compilation", || held.lock().started.len() == 1);
    // The driver waits until nothing of it runs: that is at once.
    let begin = Instant::now();
    mini.remove(1);
    let removed = begin.elapsed();
    assert_eq!(held.lock().given_up, 1);
    assert_eq!(mini.gpu.read32(budget::word(1, budget::COMPILING)), 0);
    wait("what it was charged for", || used(&mini, 1) == 0);
    println!("removed in {removed:?}");
    // Its outcome, which comes all the same, changes nothing.
    let (_, done) = held.lock().started[0].take().unwrap();
    let code = Err(softgpu::CompileError::Failed { what: "too late".to_owned() });
    done(Outcome { code, cpu: Duration::from_secs(100) });
    let mut victim = Tenant::new(&mut mini, 2);
    let params = [victim.buffer.va + 64, 7];
    let theirs = victim.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
    victim.run(&mini, theirs);
    assert_eq!(mini.gpu.read32(regs::PMC_BOOT_0), regs::BOOT_0_TU104);
}

#[test]
fn a_disabled_channel_compiles_when_it_is_enabled_again() {
    let (mut mini, held) = holding(1);
    let mut tenant = Tenant::new(&mut mini, 1);
    let params = [tenant.buffer.va + 64, 5];
    let kernel = tenant.kernel(&mut mini, &held_store(), 1, 1, &params);
    tenant.launch(&mini, kernel);
    wait("the compilation", || held.lock().started.len() == 1);
    mini.gpu.write32(regs::pccsr_channel(1), regs::CHANNEL_ENABLE_CLR.of(1));
    assert_eq!(held.lock().given_up, 1);
    held.lock().open = true;
    mini.gpu.write32(regs::pccsr_channel(1), regs::CHANNEL_ENABLE_SET.of(1));
    wait("the kernel", || mini.read_u64(tenant.buffer, 64) == 5);
}

/// Counts `a` up, and launches itself with two threads, if it has one.
const AGAIN: &str = "atom.global.add.u32 %r1, [%rd1], 1;\nmov.u32 %r2, %ntid.x;\nsetp.ne.u32 %p1, %r2, 1;\n\
    @%p1 bra END;\nmov.u64 %rd8, k;\n{\n.param .b64 p0;\nst.param.b64 [p0], %rd8;\n\
    .param .align 4 .b8 p1[12];\nst.param.b32 [p1], 1;\nst.param.b32 [p1+4], 1;\nst.param.b32 [p1+8], 1;\n\
    .param .align 4 .b8 p2[12];\nst.param.b32 [p2], 2;\nst.param.b32 [p2+4], 1;\nst.param.b32 [p2+8], 1;\n\
    .param .b32 p3;\nst.param.b32 [p3], 0;\n.param .b64 r;\n\
    call (r), __cudaCDP2GetParameterBufferV2, (p0, p1, p2, p3);\nld.param.b64 %rd9, [r];\n}\n\
    st.u64 [%rd9], %rd1;\n{\n.param .b64 p0;\nst.param.b64 [p0], %rd9;\n.param .b64 p1;\nst.param.b64 [p1], 0;\n\
    .param .b32 r;\ncall (r), __cudaCDP2LaunchDeviceV2, (p0, p1);\nld.param.b32 %r9, [r];\n}\nEND:";
const DEVICE_RUNTIME: &str = ".extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2(.param .b64 f, \
    .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);\n\
    .extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p, .param .b64 s);\n.visible";

#[test]
fn a_grid_is_not_repeated_for_what_it_has_launched() {
    let (mut mini, held) = holding(1);
    let mut tenant = Tenant::new(&mut mini, 1);
    let (count, end) = (tenant.buffer.va + 64, tenant.buffer.va + 128);
    let text = format!("{HELD}\n{}", ptx(AGAIN, "").replacen(".visible", DEVICE_RUNTIME, 1));
    let kernel = tenant.kernel(&mut mini, &text, 1, 1, &[count, 0]);
    let mut words = Words::new();
    words.launch(kernel).release(end, 1);
    mini.submit(&mut tenant.channel, &words);
    wait("the compilation", || held.lock().started.len() == 1);
    let (request, done) = held.lock().started[0].take().unwrap();
    let other = Threads::default();
    let _job = other.start(request, done);
    // The grid has ended, and nothing of its child has begun.
    wait("that of what it launches", || held.lock().started.len() == 2);
    held.lock().open = true;
    mini.remove(1);
    mini.bind(&mut tenant.channel, 1, 1);
    mini.ring(&tenant.channel);
    mini.wait_for(tenant.buffer, 128, 1);
    assert_eq!(mini.read_u64(tenant.buffer, 64), 1);
}

#[test]
fn a_tsg_has_few_compilations_under_way() {
    let (mut mini, held) = holding(1);
    let mut first = Tenant::new(&mut mini, 1);
    let mut tenants = Vec::new();
    for id in 2..10 {
        tenants.push(mini.channel(&mut first.space, id, 1));
    }
    for channel in &mut tenants {
        let params = [first.buffer.va + 64 + 8 * u64::from(channel.id), 5];
        let program = mini.load(&mut first.space, &held_store(), "k");
        let kernel = mini.descriptor(&mut first.space, program, [1, 1, 1], [1, 1, 1], &params);
        let mut words = Words::new();
        words.launch(kernel);
        mini.submit(channel, &words);
    }
    wait("compilations", || held.lock().started.len() == 2);
    let other = Threads::default();
    let mut jobs = Vec::new();
    // Whenever one ends, another begins, until all have had theirs.
    for next in 0..8 {
        wait("the next compilation", || held.lock().started.len() > next);
        assert!(held.lock().started.len() <= next + 2);
        let (request, done) = held.lock().started[next].take().unwrap();
        jobs.push(other.start(request, done));
    }
    for channel in &tenants {
        wait("a kernel", || mini.read_u64(first.buffer, 64 + 8 * u64::from(channel.id)) == 5);
    }
}

#[test]
fn ctas_that_wait_stay_within_their_budget() {
    let mut mini = Mini::new(2);
    let mut attacker = Tenant::new(&mut mini, 1);
    let mut victim = Tenant::new(&mut mini, 2);
    let params = [victim.buffer.va + 64, 7];
    let theirs = victim.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
    victim.run(&mini, theirs);
    // 16 MiB for each CTA, and room for five.
    let text = ptx(WAIT, ".local .align 8 .b8 hoard[65536];\n")
        .replace("L:", "mov.u64 %rd7, hoard;\nst.local.u64 [%rd7], %rd1;\nL:");
    let params = [attacker.buffer.va + 64, attacker.buffer.va + 72];
    let kernel = attacker.kernel(&mut mini, &text, 40, 256, &params);
    // Compiled before, with all that compiling may take.
    mini.write(attacker.buffer, 64, &1u64.to_le_bytes());
    attacker.run(&mini, kernel);
    assert_eq!(mini.read_u64(attacker.buffer, 72), 40 * 256);
    mini.write(attacker.buffer, 64, &0u64.to_le_bytes());
    let code = used(&mini, 1);
    assert!((1..1 << 20).contains(&code), "{code} bytes of code and text");
    let bound = code + (90 << 20);
    limit(&mini, 1, bound);
    attacker.launch(&mini, kernel);
    wait("CTAs under way", || used(&mini, 1) > code + (64 << 20));
    let mut most = 0;
    for _ in 0..200 {
        victim.run(&mini, theirs);
        most = most.max(used(&mini, 1));
    }
    assert!(most <= bound, "{most} bytes of {bound}");
    // All of them come to their end, a few at a time.
    mini.write(attacker.buffer, 64, &1u64.to_le_bytes());
    wait("all CTAs", || mini.read_u64(attacker.buffer, 72) == 2 * 40 * 256);
    wait("their memory", || used(&mini, 1) == code);
}

#[test]
fn what_can_never_be_resident_is_refused() {
    for cooperative in [false, true] {
        let mut mini = Mini::new(1);
        let mut tenant = Tenant::new(&mut mini, 1);
        let text = ptx(STORE, ".local .align 8 .b8 hoard[65536];\n")
            .replace("st.global", "mov.u64 %rd7, hoard;\nst.local.u64 [%rd7], %rd1;\nst.global");
        let program = mini.load(&mut tenant.space, &text, "k");
        let params = [tenant.buffer.va + 64, 5];
        let ctas = if cooperative { 100 } else { 1 };
        let mut qmd = Qmd::default();
        qmd.set(Qmd::COOPERATIVE, cooperative.into());
        // 2 MiB each, or 64.
        let threads = if cooperative { 32 } else { 1024 - 32 };
        let kernel = mini.describe(&mut tenant.space, &mut qmd, program, [ctas, 1, 1], [threads, 1, 1], &params);
        limit(&mini, 1, 60 << 20);
        tenant.launch(&mini, kernel);
        let (record, log) = mini.wait_error(&tenant.channel);
        assert_eq!(record.reason, Reason::OUT_OF_RESOURCES, "{log}");
        wait("what it was charged for", || used(&mini, 1) < 1 << 20);
    }
}

#[test]
fn code_for_many_block_shapes_is_forgotten_in_turn() {
    let mut mini = Mini::new(1);
    let mut tenant = Tenant::new(&mut mini, 1);
    let program = mini.load(&mut tenant.space, &ptx(STORE, ""), "k");
    let params = [tenant.buffer.va + 64, 5];
    let shapes: Vec<u64> = (1..=120)
        .map(|threads| mini.descriptor(&mut tenant.space, program, [1, 1, 1], [threads, 1, 1], &params))
        .collect();
    tenant.run(&mini, shapes[0]);
    let one = used(&mini, 1);
    // Room for one compilation, and little else.
    let bound = (32 << 20) + 20 * one;
    limit(&mini, 1, bound);
    for shape in &shapes {
        tenant.run(&mini, *shape);
        assert!(used(&mini, 1) <= bound);
    }
    assert_eq!(mini.notifier(&tenant.channel), None);
}

#[test]
fn channels_that_wait_cost_a_neighbour_nothing() {
    for lend in [false, true] {
        let (alone, beside) = beside_channels_that_wait(lend);
        println!("lend {lend}: a launch alone {alone:?}, beside 440 channels that wait {beside:?}");
    }
}

/// How long a launch takes alone, and beside 440 channels that wait.
fn beside_channels_that_wait(lend: bool) -> (Duration, Duration) {
    let mut mini = Mini::on(Config { workers: 2, lend, ..Config::default() });
    let mut victim = Tenant::new(&mut mini, 2);
    let params = [victim.buffer.va + 64, 7];
    let theirs = victim.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
    let median = |mini: &Mini, victim: &mut Tenant| {
        let mut times: Vec<Duration> = (0..400).map(|_| victim.run(mini, theirs)).collect();
        times.sort();
        times[times.len() / 2]
    };
    let alone = median(&mini, &mut victim);
    let mut space = mini.space();
    let semaphores = mini.buffer(&mut space, 64 << 10);
    let mut waiting = Vec::new();
    for id in 10..450 {
        let mut channel = mini.channel(&mut space, id, 1);
        let mut words = Words::new();
        words.acquire(semaphores.va + 64 * u64::from(id), 1).release(semaphores.va + 64 * u64::from(id) + 16, 1);
        mini.submit(&mut channel, &words);
        waiting.push(channel);
    }
    let waits = |id| regs::CHANNEL_STATUS.get(mini.gpu.read32(regs::pccsr_channel(id))) == 3;
    wait("all to wait", || (10..450).all(waits));
    let beside = median(&mini, &mut victim);
    // One releases the others, each by its address.
    let mut releasing = mini.channel(&mut space, 9, 3);
    for ids in [10..200, 200..450] {
        let mut words = Words::new();
        for id in ids {
            words.release(semaphores.va + 64 * id, 1);
        }
        mini.submit(&mut releasing, &words);
    }
    for id in 10..450 {
        mini.wait_for(semaphores, 64 * id + 16, 1);
    }
    (alone, beside)
}

#[test]
fn semaphores_are_released_by_whatever_writes_them() {
    let mut mini = Mini::new(2);
    let mut tenant = Tenant::new(&mut mini, 1);
    let mut other = Tenant::new(&mut mini, 2);
    let theirs = mini.share(&mut other.space, tenant.buffer);
    let mut waiter = mini.channel(&mut tenant.space, 3, 1);
    let sem = tenant.buffer.va + 256;
    let mut round = 0;
    let mut check = |mini: &mut Mini, what: &str, write: &mut dyn FnMut(&mut Mini, u64)| {
        round += 1;
        let mut words = Words::new();
        words.acquire(sem, round).release(sem + 16, round);
        mini.submit(&mut waiter, &words);
        wait("the acquire", || regs::CHANNEL_STATUS.get(mini.gpu.read32(regs::pccsr_channel(3))) == 3);
        write(mini, round);
        wait(what, || mini.read_u64(tenant.buffer, 256 + 16) == round);
    };
    check(&mut mini, "the CPU's store", &mut |mini, round| mini.write(tenant.buffer, 256, &round.to_le_bytes()));
    check(&mut mini, "another address space's release", &mut |mini, round| {
        let mut words = Words::new();
        words.release(theirs.va + 256, round);
        mini.submit(&mut other.channel, &words);
    });
    check(&mut mini, "another address space's copy", &mut |mini, round| {
        mini.write(other.buffer, 1024, &round.to_le_bytes());
        let mut words = Words::new();
        words.copy(theirs.va + 256, other.buffer.va + 1024, 8);
        mini.submit(&mut other.channel, &words);
    });
    let kernel = ptx(STORE, "");
    check(&mut mini, "another address space's kernel", &mut |mini, round| {
        let kernel = other.kernel(mini, &kernel, 1, 1, &[theirs.va + 256, round]);
        other.launch(mini, kernel);
    });
}

/// Maps of the host that a budget is charged for.
fn maps(mini: &Mini, number: u32) -> u32 {
    mini.gpu.read32(budget::word(number, budget::MAPS))
}

#[test]
fn map_entries_end_at_the_budgets_limit_and_unmapping_takes_none() {
    let mut mini = Mini::new(1);
    let mut attacker = Tenant::new(&mut mini, 1);
    let mut victim = Tenant::new(&mut mini, 2);
    let params = [victim.buffer.va + 64, 7];
    let theirs = victim.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
    let program = mini.load(&mut attacker.space, &ptx(STORE, ""), "k");
    let mut buffers = Vec::new();
    let mut kernels = Vec::new();
    let descriptors: Vec<Buffer> = (0..3).map(|_| mini.buffer(&mut attacker.space, 4096)).collect();
    let most = maps(&mini, 1) + 4;
    mini.gpu.write32(budget::word(1, budget::MAPS_LIMIT), most);
    for descriptor in descriptors {
        // Each is an entry, and what is between it and the next another.
        let buffer = mini.buffer(&mut attacker.space, 3 * 4096);
        mini.describe_at(descriptor, program, [1, 1, 1], [1, 1, 1], &[buffer.va + 4096, 5]);
        buffers.push(buffer);
        kernels.push(descriptor.va);
    }
    assert_eq!(maps(&mini, 1), most);
    attacker.run(&mini, kernels[0]);
    attacker.run(&mini, kernels[1]);
    assert_eq!(mini.read_u64(buffers[1], 4096), 5);
    // A hole would make two of one; so all of it goes.
    let hole = Buffer { va: buffers[0].va + 4096, offset: buffers[0].offset + 4096, bytes: 4096 };
    mini.unmap(&mut attacker.space, hole);
    assert_eq!(maps(&mini, 1), most - 2);
    attacker.run(&mini, kernels[1]);
    // What is beyond the limit is not there: whoever accesses it has the fault.
    attacker.launch(&mini, kernels[2]);
    let (record, _) = mini.wait_error(&attacker.channel);
    assert_eq!((record.reason, record.address), (Reason::ILLEGAL_ADDRESS, buffers[2].va + 4096));
    victim.run(&mini, theirs);
    assert_eq!(mini.notifier(&victim.channel), None);
    mini.remove(1);
    wait("its entries", || maps(&mini, 1) == 0);
    victim.run(&mini, theirs);
}

#[test]
fn what_is_mapped_page_by_page_takes_entries_as_if_it_were_mapped_at_once() {
    const PAGES: u64 = 64;
    let mut mini = Mini::new(1);
    let mut tenant = Tenant::new(&mut mini, 1);
    let buffer = mini.buffer(&mut tenant.space, PAGES * 4096);
    let page = |page: u64| Buffer { va: buffer.va + page * 4096, offset: buffer.offset + page * 4096, bytes: 4096 };
    let whole = maps(&mini, 1);
    mini.unmap(&mut tenant.space, buffer);
    let without = maps(&mini, 1);
    mini.gpu.write32(budget::word(1, budget::MAPS_LIMIT), whole + 2);
    // Each page is an invalidate of its own.
    for some in 0..PAGES {
        let Buffer { va, offset, bytes } = page(some);
        mini.map_memory(&mut tenant.space, va, bytes, PhysAddr::vram(offset), Rights::default());
    }
    assert_eq!(maps(&mini, 1), whole);
    mini.gpu.write32(budget::word(1, budget::MAPS_LIMIT), u32::MAX);
    for some in 0..PAGES {
        let kernel = tenant.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &[page(some).va, some + 1]);
        tenant.run(&mini, kernel);
        assert_eq!(mini.read_u64(page(some), 0), some + 1);
    }
    let before = maps(&mini, 1);
    (0..PAGES).for_each(|some| mini.unmap(&mut tenant.space, page(some)));
    assert_eq!(maps(&mini, 1), before - (whole - without));
}

#[test]
fn much_memory_of_a_cta_is_cleared_in_slices() {
    let mut mini = Mini::new(1);
    let mut attacker = Tenant::new(&mut mini, 1);
    let mut victim = Tenant::new(&mut mini, 2);
    // 60 MiB for each CTA, all of it cleared, and checked a little.
    let check = "mov.u64 %rd7, hoard;\nld.local.u64 %rd4, [%rd7+65000];\nadd.u64 %rd4, %rd4, 1;\n\
                 st.local.u64 [%rd7+65000], %rd4;\natom.global.add.u64 %rd6, [%rd1], %rd4;";
    let params = [attacker.buffer.va + 64, 0];
    let text = ptx(check, ".local .align 8 .b8 hoard[65536];\n");
    let kernel = attacker.kernel(&mut mini, &text, 8, 960, &params);
    let params = [victim.buffer.va + 64, 7];
    let theirs = victim.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
    victim.run(&mini, theirs);
    attacker.launch(&mini, kernel);
    let mut times = Vec::new();
    while mini.read_u64(attacker.buffer, 64) < 8 * 960 {
        times.push(victim.run(&mini, theirs));
    }
    times.sort();
    println!("{} launches beside it, the slowest took {:?}", times.len(), times.last());
    assert_eq!(mini.read_u64(attacker.buffer, 64), 8 * 960);
}

/// A compiler that is not what it should be.
#[derive(Debug)]
enum Broken {
    Start,
    Time,
}

impl Job for Broken {
    fn cpu(&self) -> Duration {
        panic!("a broken clock");
    }
}

impl Compiler for Broken {
    fn start(&self, _request: Request, _done: Done) -> Box<dyn Job> {
        match self {
            Broken::Start => panic!("a broken compiler"),
            Broken::Time => Box::new(Broken::Time),
        }
    }
}

#[test]
fn a_panic_anywhere_in_the_device_loses_it_cleanly() {
    for (broken, lend) in [(Broken::Start, false), (Broken::Start, true), (Broken::Time, false), (Broken::Time, true)] {
        let config = Config { workers: 2, lend, compiler: Arc::new(broken), ..Config::default() };
        let mut mini = Mini::on(config);
        let mut tenant = Tenant::new(&mut mini, 1);
        let kernel = tenant.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &[0, 0]);
        tenant.launch(&mini, kernel);
        wait("the device to be lost", || mini.gpu.read32(regs::PMC_BOOT_0) == u32::MAX);
        // Nobody hangs on it, and its threads end.
        mini.ring(&tenant.channel);
        mini.gpu.write32(regs::pccsr_channel(1), regs::CHANNEL_ENABLE_CLR.of(1));
        drop(mini);
    }
}

/// A compiler that leaves everything to the interpreter.
#[derive(Debug, Default)]
struct Interpreting(Threads);

impl Compiler for Interpreting {
    fn start(&self, request: Request, done: Done) -> Box<dyn Job> {
        self.0.start(Request { engine: EngineKind::Interpreter, ..request }, done)
    }
}

#[test]
fn grids_that_the_interpreter_runs_are_counted() {
    let interpreted = |mini: &Mini| mini.gpu.read32(budget::word(1, budget::INTERPRETED));
    for (compiler, each) in
        [(Arc::new(Interpreting::default()) as Arc<dyn Compiler>, 1), (Arc::new(Threads::default()), 0)]
    {
        let mut mini = Mini::on(Config { workers: 1, compiler, ..Config::default() });
        let mut tenant = Tenant::new(&mut mini, 1);
        let params = [tenant.buffer.va + 64, 5];
        let kernel = tenant.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
        for round in 1..=3 {
            tenant.run(&mini, kernel);
            assert_eq!(interpreted(&mini), round * each);
        }
        assert_eq!(mini.read_u64(tenant.buffer, 64), 5);
    }
}

#[test]
fn large_programs_are_read_and_compiled_beside_a_neighbour_and_dropped_at_once() {
    let mut mini = Mini::new(1);
    let mut victim = Tenant::new(&mut mini, 2);
    let params = [victim.buffer.va + 64, 7];
    let theirs = victim.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
    victim.run(&mini, theirs);
    // Much text before a small kernel, and a kernel that takes long.
    let text = format!("{}\n{}", "// nothing to see here\n".repeat(2 << 20), ptx(STORE, ""));
    let body = "ld.global.u64 %rd4, [%rd5];\nxor.b64 %rd4, %rd4, 5;\nst.global.u64 [%rd5], %rd4;\n".repeat(1500);
    let long = ptx(&format!("mov.u32 %r1, %tid.x;\nmad.wide.u32 %rd5, %r1, 8, %rd1;\n{body}"), "");
    for (what, text) in [("text", &text), ("kernel", &long)] {
        let mut attacker = Tenant::new(&mut mini, 1);
        let params = [attacker.buffer.va + 64, 5];
        let kernel = attacker.kernel(&mut mini, text, 1, 32, &params);
        attacker.launch(&mini, kernel);
        wait("the attack", || used(&mini, 1) > 0);
        let mut slowest = Duration::ZERO;
        for _ in 0..100 {
            slowest = slowest.max(victim.run(&mini, theirs));
        }
        let begin = Instant::now();
        mini.remove(1);
        println!("{what}: removed in {:?}; the slowest of 100 launches beside it took {slowest:?}", begin.elapsed());
        wait("what it was charged for", || used(&mini, 1) == 0);
        victim.run(&mini, theirs);
    }
    assert_eq!(mini.notifier(&victim.channel), None);
}

#[test]
fn long_pushbuffers_of_many_channels_are_read_in_turns() {
    let mut mini = Mini::new(1);
    let mut victim = Tenant::new(&mut mini, 2);
    let params = [victim.buffer.va + 64, 7];
    let theirs = victim.kernel(&mut mini, &ptx(STORE, ""), 1, 1, &params);
    victim.run(&mini, theirs);
    let mut space = mini.space();
    let done = mini.buffer(&mut space, 64 << 10);
    // Small fills, as many as a segment has; many segments.
    let mut words = Words::new();
    while words.0.len() < 4000 {
        words.fill(done.va + 0x8000, 9, 4, 1000);
    }
    let segment = mini.buffer(&mut space, 16 << 10);
    mini.write(segment, 0, zerocopy::IntoBytes::as_bytes(&words.0[..]));
    let entry = GpEntry::segment(segment.va, words.0.len() as u32);
    let mut channels: Vec<Channel> = (10..50).map(|id| mini.channel(&mut space, id, 1)).collect();
    for channel in &mut channels {
        for _ in 0..20 {
            mini.push_entry(channel, entry);
        }
        let mut end = Words::new();
        end.release(done.va + 16 * u64::from(channel.id), 1);
        mini.submit(channel, &end);
    }
    let slowest = (0..50).map(|_| victim.run(&mini, theirs)).max();
    println!("the slowest of 50 launches beside 40 channels that fill took {slowest:?}");
    for channel in &channels {
        mini.wait_for(done, 16 * u64::from(channel.id), 1);
    }
    assert_eq!(mini.read_u32(done, 0x8000 + 3996), 9);
}
