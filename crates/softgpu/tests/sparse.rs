//! Sparse pages of every size: reads give zero, writes vanish, and neither is a fault.

use std::ops::Range;

use gpu_spec::mmu::{BIG_PAGE, DualPde, HUGE_PAGE, Pde, PhysAddr, Pte, Rights, SMALL_PAGE};
use gpu_spec::notifier::Reason;
use softgpu::EngineKind;
use softgpu::testing::mini::{Buffer, Channel, LO, Mini, Space, Words};
use zerocopy::IntoBytes;

/// Thread `i` copies word `i` from `a` to `b`, adds `i + 1` to that at `a` atomically, notes what was there 4 KiB behind in
/// `b`, and overwrites it by `i + 1`.
const PTX: &str = ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b)\n{\n\
                   .reg .b32 %r<6>;\n.reg .b64 %rd<6>;\nld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\n\
                   mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 4;\nadd.u64 %rd4, %rd1, %rd3;\n\
                   add.u64 %rd5, %rd2, %rd3;\nadd.u32 %r2, %r1, 1;\n\
                   ld.global.u32 %r3, [%rd4];\nst.global.u32 [%rd5], %r3;\n\
                   atom.global.add.u32 %r4, [%rd4], %r2;\nst.global.u32 [%rd5+4096], %r4;\n\
                   st.global.u32 [%rd4], %r2;\nret;\n}\n";
const THREADS: u32 = 64;
/// What memory beside sparse pages holds at first, in every byte.
const FILL: u8 = 0x5a;

struct Bench {
    mini: Mini,
    space: Space,
    channel: Channel,
    /// Semaphores, then 64 KiB on results.
    out: Buffer,
    program: u64,
    round: u64,
}

impl Bench {
    fn new(engine: EngineKind) -> Bench {
        let mut mini = Mini::with(2, engine);
        let mut space = mini.space();
        let channel = mini.channel(&mut space, 1, 1);
        let out = mini.buffer(&mut space, 256 << 10);
        let program = mini.load(&mut space, PTX, "k");
        Bench { mini, space, channel, out, program, round: 0 }
    }

    /// Maps filled memory; its pages have the size of `align`.
    fn map(&mut self, va: u64, bytes: u64, align: u64) -> Buffer {
        // Small pages where the memory is aligned to no larger ones.
        let skew = if align == SMALL_PAGE { SMALL_PAGE } else { 0 };
        let buffer = self.mini.map_at(&mut self.space, va + skew, bytes - skew, align, Rights::default());
        self.mini.write(buffer, 0, &vec![FILL; buffer.bytes as usize]);
        buffer
    }

    /// Submits, and waits until all of it is done.
    fn run(&mut self, build: impl FnOnce(&mut Words)) {
        self.round += 1;
        let mut words = Words::new();
        build(&mut words);
        words.release(self.out.va, self.round);
        self.mini.submit(&mut self.channel, &words);
        self.mini.wait_for(self.out, 0, self.round);
        self.mini.rewind(&mut self.channel);
        assert_eq!(self.mini.fault(), None);
    }

    /// What a copy of `N` bytes from an address gives.
    fn read<const N: usize>(&mut self, va: u64) -> [u8; N] {
        let to = self.out.va + (64 << 10);
        self.run(|words| {
            words.fill(to, 0xee, 1, N as u32).copy(to, va, N as u32);
        });
        self.mini.read(self.out, 64 << 10)
    }

    /// Reads and writes around the edge at `at`: what lies on one side of it is sparse, on the other side memory.
    fn check_edge(&mut self, at: u64, sparse: &Range<u64>) {
        let expect = |byte: u8| -> [u8; 128] {
            std::array::from_fn(|i| if sparse.contains(&(at - 64 + i as u64)) { 0 } else { byte })
        };
        assert_eq!(self.read(at - 64), expect(FILL));
        self.run(|words| {
            words.fill(at - 64, 3, 1, 128);
        });
        assert_eq!(self.read(at - 64), expect(3));
        self.run(|words| {
            words.inline(at - 64, &[0x0404_0404; 32], 128);
        });
        assert_eq!(self.read(at - 64), expect(4));
        // Longer than one part of a transfer, from memory of one byte.
        let from = self.out.va + (128 << 10);
        self.run(|words| {
            words.fill(from, 5, 1, 64 << 10).copy(at - 64, from, 128);
        });
        assert_eq!(self.read(at - 64), expect(5));

        let (from, to) = (at - u64::from(THREADS) * 2, self.out.va + (64 << 10));
        let descriptor = self.mini.descriptor(&mut self.space, self.program, [1, 1, 1], [THREADS, 1, 1], &[from, to]);
        self.run(|words| {
            words.fill(from, 9, 4, THREADS).launch(descriptor);
        });
        for i in 0..u64::from(THREADS) {
            let hole = sparse.contains(&(from + i * 4));
            let old = if hole { 0 } else { 9 };
            let results = [0, 4096].map(|row| self.mini.read_u32(self.out, (64 << 10) + row + i * 4));
            assert_eq!(results, [old, old], "thread {i}");
            let word = u32::from_le_bytes(self.read(from + i * 4));
            assert_eq!(word, if hole { 0 } else { i as u32 + 1 }, "thread {i}");
        }
        self.run(|words| {
            words.fill(at - 128, FILL.into(), 1, 256);
        });
    }

    /// A range that is sparse, with memory before and behind it.
    fn check(&mut self, sparse: Range<u64>) {
        self.mini.invalidate(&self.space, sparse.start, sparse.end - sparse.start);
        self.check_edge(sparse.start, &sparse);
        if sparse.end < LO + softgpu::testing::mini::WINDOW {
            self.check_edge(sparse.end, &sparse);
        }
        // Semaphores: the release vanishes, and zero is what an acquire finds.
        let middle = sparse.start + (sparse.end - sparse.start) / 2;
        self.run(|words| {
            words.release(middle, 7).reduce(middle, 1, 5).acquire(middle, 0);
        });
        assert_eq!(self.read(middle), [0; 8]);
    }
}

#[test]
fn pages_of_every_size_can_be_sparse() {
    for engine in [EngineKind::Jit, EngineKind::Interpreter] {
        let mut b = Bench::new(engine);
        let small = LO + (16 << 20);
        b.map(small, 16 * SMALL_PAGE, SMALL_PAGE);
        for page in 5..7 {
            let at = b.mini.entries(&b.space, small + page * SMALL_PAGE).small.unwrap();
            b.mini.put(at, Pte::SPARSE.as_bytes());
        }
        b.check(small + 5 * SMALL_PAGE..small + 7 * SMALL_PAGE);

        let big = LO + (32 << 20);
        b.map(big, 4 * BIG_PAGE, BIG_PAGE);
        let at = b.mini.entries(&b.space, big + BIG_PAGE).big.unwrap();
        b.mini.put(at, Pte::SPARSE.as_bytes());
        b.check(big + BIG_PAGE..big + 2 * BIG_PAGE);

        let huge = LO + (64 << 20);
        b.map(huge, 3 * HUGE_PAGE, HUGE_PAGE);
        b.mini.put(b.mini.entries(&b.space, huge + HUGE_PAGE).pde0, DualPde::SPARSE.as_bytes());
        b.check(huge + HUGE_PAGE..huge + 2 * HUGE_PAGE);

        // The second half of the window is one entry of the directory above.
        let half = LO + (512 << 20);
        b.map(half - HUGE_PAGE, HUGE_PAGE, HUGE_PAGE);
        b.mini.put(b.mini.entries(&b.space, half).pde1, Pde::SPARSE.as_bytes());
        b.check(half..half + (512 << 20));
        assert_eq!(b.mini.notifier(&b.channel), None);
    }
}

#[test]
fn sparse_pages_come_and_go_with_invalidates() {
    let mut b = Bench::new(EngineKind::Jit);
    let va = LO + (16 << 20);
    let memory = b.map(va, 4 * SMALL_PAGE, SMALL_PAGE);
    let (at, page) = (va + 2 * SMALL_PAGE, PhysAddr::vram(memory.offset + SMALL_PAGE));
    let entry = b.mini.entries(&b.space, at).small.unwrap();
    b.mini.put(entry, Pte::SPARSE.as_bytes());
    assert_eq!(b.read(at), [FILL; 8], "the old entry holds until the invalidate");
    b.mini.invalidate(&b.space, at, SMALL_PAGE);
    assert_eq!(b.read(at), [0; 8]);
    b.mini.put(entry, Pte::to_page(page, Rights::default()).as_bytes());
    b.mini.invalidate(&b.space, at, SMALL_PAGE);
    assert_eq!(b.read(at), [FILL; 8]);
    b.run(|words| {
        words.fill(at, 1, 1, 8);
    });
    assert_eq!(b.read(at), [1; 8]);
    b.mini.put(entry, Pte::SPARSE.as_bytes());
    b.mini.invalidate(&b.space, at, SMALL_PAGE);
    b.mini.put(entry, Pte::INVALID.as_bytes());
    b.mini.invalidate(&b.space, at, SMALL_PAGE);
    let mut words = Words::new();
    words.copy(at, b.out.va, 8);
    b.mini.submit(&mut b.channel, &words);
    let (record, _) = b.mini.wait_error(&b.channel);
    assert_eq!((record.reason, record.address), (Reason::ILLEGAL_ADDRESS, at));
}
