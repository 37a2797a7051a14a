//! Speed of the engines on a handful of kernels: `engine_bench FILE.ptx [engine]`, the file holding `saxpy`, `matmul`, …
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for the engine's developers")]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use hostmem::{Memfd, Protection, Window};
use ptx::launch::{Launch, Step};
use ptx_jit::{Batch, Code, EngineKind, Grid};

const LO: u64 = 1 << 32;
const BYTES: u64 = 256 << 20;

struct Bench {
    program: ptx::Program,
    window: Arc<Window>,
    memory: hostmem::Mapping,
}

struct Case {
    name: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    params: Vec<u8>,
    /// Work of one launch, and its unit.
    work: f64,
    unit: &'static str,
    out: (usize, usize),
}

/// Processor time of this thread: other load on the machine counts less.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn params(list: &[(u64, usize)]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for &(v, bytes) in list {
        out.resize(out.len().next_multiple_of(bytes), 0);
        out.extend_from_slice(&v.to_le_bytes()[..bytes]);
    }
    out
}

impl Bench {
    fn launch(&self, code: &Arc<Code>, case: &Case) -> Duration {
        let launch = Launch { grid_id: 1, ..Launch::new(case.grid, case.block, case.params.clone()) };
        let grid = Arc::new(Grid {
            code: Arc::clone(code),
            launch,
            window: Arc::clone(&self.window),
            window_lo: LO,
            control: Arc::new(AtomicU32::new(0)),
            checker: None,
            launcher: None,
        });
        let start = cpu_time();
        let mut batch = Batch::new(grid, 0..case.grid.iter().map(|&side| u64::from(side)).product());
        loop {
            match batch.resume() {
                Step::Done => break,
                Step::Preempted => {}
                other => panic!("{}: {other:?}", case.name),
            }
        }
        cpu_time() - start
    }

    fn fill(&self) {
        let mut seed = 1_u32;
        let mut data = vec![0_u8; 1 << 20];
        for block in 0..(BYTES >> 21) {
            for word in data.chunks_exact_mut(4) {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                word.copy_from_slice(&(1.0 + (seed >> 9) as f32 / (1 << 23) as f32).to_le_bytes());
            }
            self.memory.write((block << 20) as usize, &data);
        }
        self.memory.fill((BYTES / 2) as usize, (BYTES / 2) as usize, 0);
    }
}

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let only = std::env::args().nth(2);
    let program = ptx::Program::parse(&std::fs::read(path).unwrap()).unwrap();
    let file = Memfd::create("bench", BYTES).unwrap();
    let window = Window::reserve(BYTES).unwrap();
    window.map(0, &file, 0, BYTES, Protection::ReadWrite).unwrap();
    let bench = Bench { program, window: Arc::new(window), memory: file.map().unwrap() };
    let (a, b, c, out) = (LO, LO + (32 << 20), LO + (64 << 20), LO + (BYTES / 2));
    let n = 4 << 20;
    let f = |v: f32| u64::from(v.to_bits());
    let cases = |s: u64| {
        let n = n / s;
        let m = 512 / s.isqrt();
        let at = (BYTES / 2) as usize;
        vec![
            Case {
                name: "saxpy",
                grid: [(n as u32).div_ceil(256), 1, 1],
                block: [256, 1, 1],
                params: params(&[(n, 4), (f(2.0), 4), (a, 8), (out, 8)]),
                work: n as f64 * 12e-9,
                unit: "GB/s",
                out: (at, n as usize * 4),
            },
            Case {
                name: "matmul",
                grid: [m as u32 / 32, m as u32 / 32, 1],
                block: [32, 32, 1],
                params: params(&[(out, 8), (a, 8), (b, 8), (m, 4)]),
                work: 2e-9 * (m * m * m) as f64,
                unit: "GFLOP/s",
                out: (at, (m * m * 4) as usize),
            },
            Case {
                name: "mma",
                grid: [m.max(64) as u32 / 64, m.max(64) as u32 / 64, 1],
                block: [128, 1, 1],
                params: params(&[(a, 8), (b, 8), (out, 8), (m.max(64), 4)]),
                work: 2e-9 * m.max(64).pow(3) as f64,
                unit: "GFLOP/s",
                out: (at, m.max(64).pow(2) as usize * 4),
            },
            Case {
                name: "bs",
                grid: [(n as u32).div_ceil(256), 1, 1],
                block: [256, 1, 1],
                params: params(&[
                    (out, 8),
                    (out + (32 << 20), 8),
                    (a, 8),
                    (b, 8),
                    (c, 8),
                    (f(0.02), 4),
                    (f(0.3), 4),
                    (n, 4),
                ]),
                work: n as f64 * 1e-6,
                unit: "Moption/s",
                out: (at, n as usize * 4),
            },
            Case {
                name: "nbody",
                grid: [(4096 / s.isqrt() as u32) / 256, 1, 1],
                block: [256, 1, 1],
                params: params(&[(a, 8), (out, 8), (4096 / s.isqrt(), 4), (f(0.01), 4)]),
                work: (4096 / s.isqrt()).pow(2) as f64 * 20e-9,
                unit: "GFLOP/s",
                out: (at, (4096 / s.isqrt() * 16) as usize),
            },
            Case {
                name: "reduce",
                grid: [64, 1, 1],
                block: [256, 1, 1],
                params: params(&[(a, 8), (out, 8), (n, 4)]),
                work: n as f64 * 4e-9,
                unit: "GB/s",
                out: (at, 4),
            },
            Case {
                name: "shfl",
                grid: [64, 1, 1],
                block: [256, 1, 1],
                params: params(&[(a, 8), (out, 8), (n, 4)]),
                work: n as f64 * 4e-9,
                unit: "GB/s",
                out: (at, 4),
            },
            Case {
                name: "mandel",
                grid: [512 / s.isqrt() as u32 / 16, 512 / s.isqrt() as u32 / 16, 1],
                block: [16, 16, 1],
                params: params(&[(out, 8), (512 / s.isqrt(), 4), (512 / s.isqrt(), 4), (100, 4)]),
                work: (512 / s.isqrt()).pow(2) as f64 * 1e-6,
                unit: "Mpixel/s",
                out: (at, ((512 / s.isqrt()).pow(2) * 4) as usize),
            },
            Case {
                name: "histo",
                grid: [64, 1, 1],
                block: [256, 1, 1],
                params: params(&[(a, 8), (out, 8), (n, 4)]),
                work: n as f64 * 1e-9,
                unit: "GB/s",
                out: (at, 1024),
            },
        ]
    };
    let small = cases(256);
    for (case, small) in cases(1).iter().zip(&small) {
        if only.as_ref().is_some_and(|o| o != case.name) {
            continue;
        }
        let Some(entry) = bench.program.find_entry(case.name) else { continue };
        let kernel = Arc::new(bench.program.lower(entry, &|_| None).unwrap());
        let start = cpu_time();
        let jit = Code::compile(Arc::clone(&kernel), case.block, EngineKind::Jit).unwrap();
        let compile = cpu_time() - start;
        let reference = Code::compile(kernel, case.block, EngineKind::Interpreter).unwrap();
        let mut images = Vec::new();
        let mut slow = 0.0;
        for (code, kind) in [(&jit, EngineKind::Jit), (&reference, EngineKind::Interpreter)] {
            bench.fill();
            let time = bench.launch(code, small);
            let mut image = vec![0; small.out.1];
            bench.memory.read(small.out.0, &mut image);
            images.push(image);
            if kind == EngineKind::Interpreter {
                slow = small.work / time.as_secs_f64();
            }
        }
        let differing = images[0].chunks(4).zip(images[1].chunks(4)).filter(|(a, b)| a != b).count();
        let first = images[0].chunks(4).zip(images[1].chunks(4)).position(|(a, b)| a != b);
        if let Some(at) = first {
            println!("{:?} {:?}", &images[0][at * 4..at * 4 + 4], &images[1][at * 4..at * 4 + 4]);
        }
        bench.launch(&jit, case);
        let best = (0..3).map(|_| bench.launch(&jit, case)).min().unwrap();
        println!(
            "{:8} {:10.3} {:10} interpreter {:9.5}  compile {:6.2} ms  words that differ {differing} {first:?}",
            case.name,
            case.work / best.as_secs_f64(),
            case.unit,
            slow,
            compile.as_secs_f64() * 1e3,
        );
    }
}
