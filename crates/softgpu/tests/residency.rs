//! Work that waits for room in a budget: it gets it, or learns that there will be none.

use device_io::DeviceBacking;
use gpu_spec::notifier::Reason;
use gpu_spec::qmd::Qmd;
use gpu_spec::ramfc::InstanceBlock;
use gpu_spec::regs::budget;
use softgpu::testing::mini::{Buffer, Channel, Mini, Space, Words, wait};

/// The budget of all sessions here.
const BUDGET: u32 = 1;
/// What compiling a kernel needs at least, bytes.
const COMPILING: u64 = 32 << 20;

/// Stores `b` at `a`, with so many bytes of local memory in each thread.
fn store(local_bytes: u64) -> String {
    format!(
        ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b)\n{{\n\
         .local .align 8 .b8 hoard[{local_bytes}];\n.reg .pred %p<4>;\n.reg .b64 %rd<10>;\n\
         ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\nmov.u64 %rd7, hoard;\nst.local.u64 [%rd7], %rd1;\n\
         st.global.u64 [%rd1], %rd2;\nL: ld.volatile.global.u64 %rd4, [%rd1+8];\nsetp.ne.u64 %p1, %rd4, 0;\n\
         @%p1 bra L;\nret;\n}}\n"
    )
}

/// One of a tenant's sessions: an address space and a channel.
struct Session {
    space: Space,
    channel: Channel,
    buffer: Buffer,
    round: u64,
}

impl Session {
    fn new(mini: &mut Mini, id: u32) -> Session {
        let mut space = mini.space();
        let channel = mini.channel_with(&mut space, id, id, |block: &mut InstanceBlock| block.set_budget(BUDGET));
        let buffer = mini.buffer(&mut space, 64 << 10);
        Session { space, channel, buffer, round: 0 }
    }

    fn kernel(&mut self, mini: &mut Mini, text: &str, grid: u32, block: u32, cooperative: bool) -> u64 {
        let program = mini.load(&mut self.space, text, "k");
        let mut qmd = Qmd::default();
        qmd.set(Qmd::COOPERATIVE, cooperative.into());
        let params = [self.buffer.va + 64, 5];
        mini.describe(&mut self.space, &mut qmd, program, [grid, 1, 1], [block, 1, 1], &params)
    }

    fn launch(&mut self, mini: &Mini, kernel: u64) {
        self.round += 1;
        let mut words = Words::new();
        words.launch(kernel).release(self.buffer.va, self.round);
        mini.submit(&mut self.channel, &words);
    }

    fn run(&mut self, mini: &Mini, kernel: u64) {
        self.launch(mini, kernel);
        mini.wait_for(self.buffer, 0, self.round);
        mini.rewind(&mut self.channel);
    }

    fn is_refused(&self, mini: &Mini) {
        let (record, log) = mini.wait_error(&self.channel);
        assert_eq!(record.reason, Reason::OUT_OF_RESOURCES, "{log}");
    }
}

fn used(mini: &Mini) -> u64 {
    let read = |word| u64::from(mini.gpu.read32(budget::word(BUDGET, word)));
    read(budget::BYTES_LO) | read(budget::BYTES_HI) << 32
}

fn limit(mini: &Mini, bytes: u64) {
    mini.gpu.write32(budget::word(BUDGET, budget::BYTES_LIMIT_LO), bytes as u32);
    mini.gpu.write32(budget::word(BUDGET, budget::BYTES_LIMIT_HI), (bytes >> 32) as u32);
}

#[test]
fn what_an_idle_session_keeps_makes_room_for_another() {
    let mut mini = Mini::new(1);
    let mut idle = Session::new(&mut mini, 1);
    let program = mini.load(&mut idle.space, &store(64), "k");
    let mut one = 0;
    for threads in 1..=40 {
        let params = [idle.buffer.va + 64, 5];
        let kernel = mini.descriptor(&mut idle.space, program, [1, 1, 1], [threads, 1, 1], &params);
        idle.run(&mini, kernel);
        one = if one == 0 { used(&mini) } else { one };
    }
    let kept = used(&mini);
    assert!(kept > 20 * one / 2, "{kept} bytes of code for 40 shapes, {one} for one");
    // Room for one compilation, and little else.
    limit(&mini, COMPILING + 2 * one);
    let mut other = Session::new(&mut mini, 2);
    let kernel = other.kernel(&mut mini, &store(64), 1, 1, false);
    other.run(&mini, kernel);
    assert_eq!(mini.read_u64(other.buffer, 64), 5);
    assert!(used(&mini) < kept);
    assert_eq!(mini.notifier(&idle.channel), None);
    let again = idle.kernel(&mut mini, &store(64), 1, 3, false);
    idle.run(&mini, again);
}

#[test]
fn a_kernel_whose_own_text_leaves_no_room_to_compile_it_is_refused() {
    let mut mini = Mini::new(1);
    let mut session = Session::new(&mut mini, 1);
    let text = format!("{}\n{}", "// nothing to see here\n".repeat(100_000), store(64));
    let kernel = session.kernel(&mut mini, &text, 1, 1, false);
    limit(&mini, COMPILING + text.len() as u64 / 2);
    session.launch(&mini, kernel);
    session.is_refused(&mini);
    // With some more it runs: a module costs twice its text.
    let mut session = Session::new(&mut mini, 2);
    let kernel = session.kernel(&mut mini, &text, 1, 1, false);
    limit(&mini, COMPILING + 4 * text.len() as u64);
    session.run(&mini, kernel);
}

#[test]
fn ctas_that_do_not_fit_beside_their_own_code_are_refused_once_nothing_is_under_way() {
    for (cooperative, ctas) in [(false, 1), (true, 3)] {
        let mut mini = Mini::new(2);
        let mut session = Session::new(&mut mini, 1);
        let mut other = Session::new(&mut mini, 2);
        let kernel = session.kernel(&mut mini, &store(65536), ctas, 128, cooperative);
        session.run(&mini, kernel);
        wait("the CTAs' memory", || used(&mini) < 1 << 20);
        let code = used(&mini);
        // What they cost together.
        mini.write(session.buffer, 72, &1u64.to_le_bytes());
        session.launch(&mini, kernel);
        wait("CTAs under way", || used(&mini) > code + (4 << 20) * u64::from(ctas));
        let resident = used(&mini) - code;
        mini.write(session.buffer, 72, &0u64.to_le_bytes());
        mini.wait_for(session.buffer, 0, session.round);
        mini.rewind(&mut session.channel);
        wait("the CTAs' memory", || used(&mini) == code);
        limit(&mini, code + resident);
        session.run(&mini, kernel);
        // Another session's, so that there is something to wait for.
        wait("the CTAs' memory", || used(&mini) == code);
        limit(&mini, 1 << 40);
        let small = other.kernel(&mut mini, &store(1024), 1, 1, false);
        mini.write(other.buffer, 72, &1u64.to_le_bytes());
        other.launch(&mini, small);
        wait("the other's CTA", || mini.read_u64(other.buffer, 64) == 5);
        // Texts can be forgotten; the code that they are to run cannot.
        limit(&mini, resident + 1);
        session.launch(&mini, kernel);
        // Looked at some times meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(mini.notifier(&session.channel), None, "it waits for what is under way");
        mini.write(other.buffer, 72, &0u64.to_le_bytes());
        mini.wait_for(other.buffer, 0, other.round);
        session.is_refused(&mini);
        assert_eq!(mini.notifier(&other.channel), None);
        mini.rewind(&mut other.channel);
        limit(&mini, 1 << 40);
        other.run(&mini, small);
    }
}
