//! Grids that launch grids: order, ends, faults, and those who do it without end. On both engines.

use device_io::DeviceBacking;
use gpu_spec::fault::FaultType;
use gpu_spec::notifier::Code;
use gpu_spec::program;
use gpu_spec::regs::accounting;
use softgpu::EngineKind;
use softgpu::testing::mini::{Buffer, Channel, Mini, Space, Words};

const ENGINES: [EngineKind; 2] = [EngineKind::Jit, EngineKind::Interpreter];

/// Streams of launches.
const NULL: u32 = 0;
const TAIL: u32 = 3;
const FIRE_AND_FORGET: u32 = 4;

const DECLARATIONS: &str = ".version 8.5\n.target sm_75\n.address_size 64\n\
    .extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2(.param .b64 f, .param .align 4 .b8 g[12], \
    .param .align 4 .b8 b[12], .param .b32 s);\n\
    .extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p, .param .b64 s);\n";

/// A kernel of two parameters, in `%rd1` and `%rd2`.
fn kernel(name: &str, body: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 a, .param .u64 b)\n{{\n.reg .pred %p<4>;\n.reg .b32 %r<10>;\n\
         .reg .b64 %rd<10>;\nld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\n{body}\nret;\n}}\n"
    )
}

/// Launches a kernel of one thread with `%rd1` and `second` as its parameters, into a stream; the error is in `%r9`.
fn launch(name: &str, second: &str, stream: u32) -> String {
    let ones = |name: &str| -> String { (0..3).map(|at| format!("st.param.b32 [{name}+{}], 1;\n", at * 4)).collect() };
    format!(
        "mov.u64 %rd8, {name};\n{{\n.param .b64 p0;\nst.param.b64 [p0], %rd8;\n.param .align 4 .b8 p1[12];\n{}\
         .param .align 4 .b8 p2[12];\n{}.param .b32 p3;\nst.param.b32 [p3], 0;\n.param .b64 r;\n\
         call (r), __cudaCDP2GetParameterBufferV2, (p0, p1, p2, p3);\nld.param.b64 %rd9, [r];\n}}\n\
         st.u64 [%rd9], %rd1;\nmov.u64 %rd7, {second};\nst.u64 [%rd9+8], %rd7;\n\
         {{\n.param .b64 p0;\nst.param.b64 [p0], %rd9;\n.param .b64 p1;\nst.param.b64 [p1], {stream};\n.param .b32 r;\n\
         call (r), __cudaCDP2LaunchDeviceV2, (p0, p1);\nld.param.b32 %r9, [r];\n}}\n",
        ones("p1"),
        ones("p2")
    )
}

/// `a = a * 10 + b`.
const DIGIT: &str =
    "ld.global.u64 %rd4, [%rd1];\nmul.lo.u64 %rd4, %rd4, 10;\nadd.u64 %rd4, %rd4, %rd2;\nst.global.u64 [%rd1], %rd4;";
/// Counts `a` up.
const COUNT: &str = "atom.global.add.u32 %r1, [%rd1], 1;";

struct Bench {
    mini: Mini,
    space: Space,
    channel: Channel,
    buffer: Buffer,
}

fn bench(workers: usize, engine: EngineKind) -> Bench {
    let mut mini = Mini::with(workers, engine);
    let mut space = mini.space();
    let channel = mini.channel(&mut space, 1, 1);
    let buffer = mini.buffer(&mut space, 4096);
    Bench { mini, space, channel, buffer }
}

impl Bench {
    /// Loads kernels in one module; descriptors of each with one thread, `a` at the buffer's beginning and a value for `b`.
    fn load<const N: usize>(&mut self, kernels: [(&str, &str, u64); N]) -> [u64; N] {
        let text: String = kernels.iter().map(|(name, body, _)| kernel(name, body)).collect();
        let names = kernels.map(|(name, ..)| name);
        let container =
            program::encode(format!("{DECLARATIONS}{text}").as_bytes(), &names, &[]).expect("a small module");
        let at = self.mini.buffer(&mut self.space, container.len() as u64);
        self.mini.write(at, 0, &container);
        let mut index = 0;
        kernels.map(|(_, _, second)| {
            let program = at.va + program::entry_offset(index);
            index += 1;
            let params = [self.buffer.va, second];
            self.mini.descriptor(&mut self.space, program, [1, 1, 1], [1, 1, 1], &params)
        })
    }

    fn submit(&mut self, descriptors: &[u64]) {
        let mut words = Words::new();
        for descriptor in descriptors {
            words.launch(*descriptor);
        }
        words.release(self.buffer.va + 64, 1);
        self.mini.submit(&mut self.channel, &words);
    }
}

#[test]
fn children_run_in_order_and_before_what_follows() {
    for engine in ENGINES {
        let mut b = bench(2, engine);
        let launches =
            [("digit", "4", TAIL), ("digit", "1", NULL), ("nest", "2", FIRE_AND_FORGET), ("digit", "3", NULL)];
        let parent: String = launches.iter().map(|(name, digit, stream)| launch(name, digit, *stream)).collect();
        let nest = format!("{}{}", launch("digit", "7", TAIL), launch("digit", "%rd2", NULL));
        // The kernels lie before and behind the one that launches them.
        let [_, parent, _, last] =
            b.load([("digit", DIGIT, 0), ("parent", &parent, 0), ("nest", &nest, 0), ("last", DIGIT, 5)]);
        b.submit(&[parent, last]);
        b.mini.wait_for(b.buffer, 64, 1);
        assert_eq!(b.mini.read_u64(b.buffer, 0), 127_345, "{engine:?}");
        assert_eq!(b.mini.gpu.read32(accounting::word(1, accounting::GRIDS)), 8, "{engine:?}");
    }
}

#[test]
fn a_fault_of_a_child_is_told_and_nothing_comes_after_it() {
    for engine in ENGINES {
        let mut b = bench(1, engine);
        let parent = [launch("digit", "1", NULL), launch("bad", "48", NULL), launch("digit", "2", NULL)].concat();
        let bad = "st.global.u32 [%rd2], 1;";
        let [parent, ..] = b.load([("parent", &parent, 0), ("bad", bad, 0), ("digit", DIGIT, 0)]);
        b.submit(&[parent]);
        let (record, _) = b.mini.wait_error(&b.channel);
        let fault = b.mini.fault().expect("a fault packet");
        assert_eq!((fault.fault, record.address), (FaultType::PDE, 48), "{engine:?}");
        assert_eq!((b.mini.read_u64(b.buffer, 0), b.mini.read_u64(b.buffer, 64)), (1, 0), "{engine:?}");
    }
}

#[test]
fn what_is_no_kernel_is_refused_or_ends_the_channel() {
    for engine in ENGINES {
        // Not what stands for a kernel: an error of the call.
        let mut b = bench(1, engine);
        let odd = launch("1099511627784", "1", NULL) + "st.global.u32 [%rd1], %r9;";
        let far = launch("1099511627824", "1", NULL) + "st.global.u32 [%rd1+4], %r9;";
        let [parent, _] = b.load([("parent", &format!("{odd}{far}"), 0), ("digit", DIGIT, 0)]);
        b.submit(&[parent]);
        b.mini.wait_for(b.buffer, 64, 1);
        assert_eq!((b.mini.read_u32(b.buffer, 0), b.mini.read_u32(b.buffer, 4)), (98, 98), "{engine:?}");
        // A kernel that cannot be compiled.
        let [parent, _] = b.load([("parent", &launch("odd", "1", NULL), 0), ("odd", "frobnicate.u32 %r1, %r2;", 0)]);
        b.submit(&[parent]);
        let (record, text) = b.mini.wait_error(&b.channel);
        assert!(record.code == Code::GR_EXCEPTION && text.contains("frobnicate"), "{engine:?}: {text}");
    }
}

/// In the place of itself, or one more each time.
#[test]
fn who_launches_without_end_shares_and_ends() {
    for (engine, body) in [
        (EngineKind::Jit, format!("{COUNT}{}", launch("k", "0", TAIL))),
        (EngineKind::Jit, format!("{COUNT}{}{}", launch("k", "0", NULL), launch("k", "0", FIRE_AND_FORGET))),
        (EngineKind::Interpreter, format!("{COUNT}{}{}", launch("k", "0", NULL), launch("k", "0", TAIL))),
    ] {
        let mut b = bench(1, engine);
        let [endless] = b.load([("k", &body, 0)]);
        b.submit(&[endless]);
        // Another tenant has the only worker in between.
        let mut other = b.mini.space();
        let mut channel = b.mini.channel(&mut other, 2, 2);
        let buffer = b.mini.buffer(&mut other, 4096);
        let text = format!("{DECLARATIONS}{}", kernel("digit", DIGIT));
        let program = b.mini.load(&mut other, &text, "digit");
        let digit = b.mini.descriptor(&mut other, program, [1, 1, 1], [1, 1, 1], &[buffer.va, 1]);
        for round in 1..=20u64 {
            let mut words = Words::new();
            words.launch(digit).release(buffer.va + 64, round);
            b.mini.submit(&mut channel, &words);
            b.mini.wait_for(buffer, 64, round);
        }
        softgpu::testing::mini::wait("many launches", || b.mini.read_u32(b.buffer, 0) > 1000);
        assert_eq!(b.mini.read_u64(b.buffer, 64), 0);
        b.mini.remove(1);
        let before = b.mini.read_u32(b.buffer, 0);
        let mut words = Words::new();
        words.launch(digit).release(buffer.va + 64, 21);
        b.mini.submit(&mut channel, &words);
        b.mini.wait_for(buffer, 64, 21);
        assert_eq!(b.mini.read_u32(b.buffer, 0), before, "it still launches");
    }
}
