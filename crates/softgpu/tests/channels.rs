//! Channels that are unbound on their way, and go on where they were when they are bound again.

use device_io::DeviceBacking;
use gpu_spec::host::{Header, NON_STALL_INTERRUPT, SEM_EXECUTE, SEMAPHORE_A, SUBCHANNEL_COMPUTE};
use gpu_spec::{compute, copy, ramfc, regs};
use softgpu::testing::mini::{Buffer, Channel, Mini, Space, Words, wait};

/// Counts `a` without end.
const SPIN: &str = ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a)\n{\n\
                    .reg .b64 %rd<4>;\nld.param.u64 %rd1, [a];\nL: ld.volatile.global.u64 %rd2, [%rd1];\n\
                    add.u64 %rd2, %rd2, 1;\nst.volatile.global.u64 [%rd1], %rd2;\nbra L;\n}\n";

struct Bench {
    mini: Mini,
    space: Space,
    channel: Channel,
    /// A semaphore to wait for at 0, one for the end at 16; the rest is data.
    buffer: Buffer,
}

impl Bench {
    fn new() -> Bench {
        let mut mini = Mini::new(2);
        let mut space = mini.space();
        let channel = mini.channel(&mut space, 3, 4);
        let buffer = mini.buffer(&mut space, 64 << 10);
        Bench { mini, space, channel, buffer }
    }

    /// Waits until the channel waits for a semaphore.
    fn wait_until_it_waits(&self) {
        const PENDING_ACQUIRE: u32 = 3;
        let state = || self.mini.gpu.read32(regs::pccsr_channel(self.channel.id));
        wait("an acquire", || regs::CHANNEL_STATUS.get(state()) == PENDING_ACQUIRE);
    }

    /// Submits `words`, unbinds the channel where they wait, binds it as channel `id`, and lets it come to the end.
    fn interrupt(&mut self, words: &Words, id: u32) {
        let mut end = Words::new();
        end.release(self.buffer.va + 16, 1);
        self.mini.submit(&mut self.channel, words);
        self.mini.submit(&mut self.channel, &end);
        self.wait_until_it_waits();
        self.mini.remove(4);
        // What was saved is all there is; what comes now goes on from there.
        self.mini.bind(&mut self.channel, id, 4);
        self.wait_until_it_waits();
        self.mini.write(self.buffer, 0, &1u64.to_le_bytes());
        self.mini.ring(&self.channel);
        self.mini.wait_for(self.buffer, 16, 1);
        assert_eq!(self.mini.notifier(&self.channel), None);
        assert_eq!(self.mini.fault(), None);
    }
}

#[test]
fn a_channel_goes_on_where_it_was_under_any_number() {
    for id in [3, 900] {
        let mut b = Bench::new();
        let (sem, data) = (b.buffer.va, b.buffer.va + 4096);
        let mut words = Words::new();
        // A transfer whose methods stand on both sides.
        let launch = copy::launch_dma::DATA_TRANSFER_TYPE.of(2)
            | copy::launch_dma::SRC_LAYOUT_PITCH.of(1)
            | copy::launch_dma::DST_LAYOUT_PITCH.of(1);
        words.fill(data, 0x11, 1, 64).acquire(sem, 1).method(4, copy::OFFSET_OUT_LOWER, &[data as u32 + 64]);
        words.method(4, copy::LAUNCH_DMA, &[launch | copy::launch_dma::REMAP.of(1)]);
        b.interrupt(&words, id);
        assert_eq!(b.mini.read::<128>(b.buffer, 4096), [0x11; 128]);
        assert_eq!(b.mini.read::<1>(b.buffer, 4096 + 128), [0]);
    }
}

#[test]
fn what_a_channel_was_in_the_middle_of_is_finished() {
    let mut b = Bench::new();
    let (sem, data) = (b.buffer.va, b.buffer.va + 4096);
    let enable = regs::VF_BASE + regs::vf::INTR_LEAF_EN_SET;
    b.mini.gpu.write32(enable, u32::MAX);
    let mut words = Words::new();
    // Inline data, half of which comes later.
    words.method(SUBCHANNEL_COMPUTE, compute::LINE_LENGTH_IN, &[32, 1, (data >> 32) as u32, data as u32]);
    words.method(SUBCHANNEL_COMPUTE, compute::LAUNCH_DMA, &[1]);
    words.raw(Header::new(Header::OP_NON_INC, SUBCHANNEL_COMPUTE, compute::LOAD_INLINE_DATA, 3).0);
    words.raw(1).raw(2).raw(3);
    // An acquire in the middle of a header's methods; behind it is the interrupt.
    assert_eq!(SEMAPHORE_A + 16, NON_STALL_INTERRUPT);
    words.method(0, SEMAPHORE_A, &[(sem >> 32) as u32, sem as u32, 1, 4, 0]);
    words.raw(Header::new(Header::OP_NON_INC, SUBCHANNEL_COMPUTE, compute::LOAD_INLINE_DATA, 5).0);
    words.raw(4).raw(5).raw(6).raw(7).raw(8);
    b.interrupt(&words, 77);
    let seen: [u32; 8] = std::array::from_fn(|i| b.mini.read_u32(b.buffer, 4096 + 4 * i as u64));
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn the_instance_block_says_where_a_channel_was() {
    let mut b = Bench::new();
    let sem = b.buffer.va;
    let before = b.mini.instance_block(&b.channel);
    let mut words = Words::new();
    words.raw(0).raw(0).acquire(sem, 5).raw(0).raw(0);
    b.mini.submit(&mut b.channel, &words);
    let mut more = Words::new();
    more.raw(0);
    b.mini.submit(&mut b.channel, &more);
    b.wait_until_it_waits();
    b.mini.remove(4);
    let saved = b.mini.instance_block(&b.channel).words;
    // One entry bound the classes, one is under way, one was not fetched.
    assert_eq!(saved[ramfc::GP_GET], 2);
    let left = saved[ramfc::PB_PUT].wrapping_sub(saved[ramfc::PB_GET]);
    assert_eq!(left, 2 * 4, "two words are left of the segment");
    assert_eq!(ramfc::COUNT_VALUE.get(saved[ramfc::PB_COUNT]), 0);
    assert!(ramfc::METHOD_VALID.is_set(saved[ramfc::METHOD0]));
    assert_eq!(ramfc::METHOD_ADDR.get(saved[ramfc::METHOD0]) << 2, SEM_EXECUTE);
    let words = [ramfc::SEM_ADDR_LO, ramfc::SEM_ADDR_HI, ramfc::SEM_PAYLOAD_LO].map(|at| saved[at]);
    assert_eq!(words, [sem as u32, (sem >> 32) as u32, 5]);
    // The driver's words stay.
    let drivers = [ramfc::SIGNATURE, ramfc::GP_BASE, ramfc::GP_BASE_HI, ramfc::USERD, ramfc::PAGE_DIR_BASE_LO];
    assert_eq!(drivers.map(|at| saved[at]), drivers.map(|at| before.words[at]));
}

#[test]
fn a_grid_that_ran_is_lost_and_what_is_behind_it_is_not() {
    let mut b = Bench::new();
    let program = b.mini.load(&mut b.space, SPIN, "k");
    let descriptor = b.mini.descriptor(&mut b.space, program, [1, 1, 1], [1, 1, 1], &[b.buffer.va + 32]);
    let mut words = Words::new();
    words.launch(descriptor).release(b.buffer.va + 16, 1);
    b.mini.submit(&mut b.channel, &words);
    wait("the kernel", || b.mini.read_u64(b.buffer, 32) > 0);
    b.mini.remove(4);
    let counted = b.mini.read_u64(b.buffer, 32);
    b.mini.bind(&mut b.channel, 5, 4);
    b.mini.wait_for(b.buffer, 16, 1);
    assert_eq!(b.mini.read_u64(b.buffer, 32), counted);
}
