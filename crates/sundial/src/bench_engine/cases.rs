//! What is measured: kernels of `kernels/engine.cu` and `kernels/engine.cl`, with their memory.

/// A computation of one kernel or several, and what it is done on.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// Memory by number, as it is in the beginning.
    pub(super) buffers: Vec<Vec<u8>>,
    pub(super) calls: Vec<Call>,
    /// What it comes to: a buffer, and how far two engines may be apart in it.
    pub(super) result: (usize, Agreement),
    /// All its work, in 1e9 bytes or operations, or in 1e6 options, keys, steps or samples, as `unit` says.
    pub(super) work: f64,
    /// The interpreter runs only so many CTAs of each kernel; none: where a part cannot be run alone.
    pub(super) sample: Option<u32>,
    /// Times as fast as `PoCL` on one core it is to be; none: there is nothing of its kind in `OpenCL`.
    pub(super) goal: Option<f64>,
}

/// One launch.
pub(super) struct Call {
    pub(super) kernel: &'static str,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) params: Vec<Param>,
}

#[derive(Clone, Copy)]
pub(super) enum Param {
    /// A buffer by its number.
    Buffer(usize),
    /// A buffer of f32 as the texels of an image so wide and high, filtered, clamped to its edge, with coordinates in texels.
    Image(usize, [u32; 2]),
    Float(f32),
    Int(i32),
}

/// How alike two results are to be.
#[derive(Clone, Copy)]
pub(super) enum Agreement {
    /// To the bit.
    Exact,
    /// As f32: apart by so much of the larger one, or of 1.
    Within(f32),
}

impl Agreement {
    /// Byte at which they are not alike; none if they are.
    pub(super) fn differs_at(self, one: &[u8], other: &[u8]) -> Option<usize> {
        let float = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let alike = |one: &[u8], other: &[u8]| match self {
            Agreement::Exact => one == other,
            Agreement::Within(apart) => {
                let (one, other) = (float(one), float(other));
                (one - other).abs() <= apart * one.abs().max(other.abs()).max(1.0)
            }
        };
        let at = one.chunks_exact(4).zip(other.chunks_exact(4)).position(|(one, other)| !alike(one, other));
        at.map(|word| word * 4)
    }
}

/// All of them.
pub(super) fn all() -> Vec<Case> {
    let mut cases = vec![saxpy(), stencil(), matmul(), mma(), black_scholes(), nbody()];
    cases.extend(["reduction", "reduction_shuffle"].map(reduction));
    cases.extend([scan(), histogram(), radix_sort(), divergent(), spmv(), texture()]);
    cases
}

fn bytes<const N: usize>(values: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    values.flatten().collect()
}

fn zeros(words: u32) -> Vec<u8> {
    vec![0; words as usize * 4]
}

/// `n` numbers from 0.5 to 1.5, all the same in every run.
fn floats(n: u32) -> Vec<u8> {
    bytes((0..n).map(|i| (0.5 + (i % 1000) as f32 / 1000.0).to_le_bytes()))
}

/// `n` words without an order, all the same in every run.
fn words(n: u32) -> Vec<u8> {
    bytes((0..n).map(|i| mixed(i).to_le_bytes()))
}

/// A permutation of all words (Murmur3's last step).
fn mixed(i: u32) -> u32 {
    let i = (i ^ i >> 16).wrapping_mul(0x85eb_ca6b);
    let i = (i ^ i >> 13).wrapping_mul(0xc2b2_ae35);
    i ^ i >> 16
}

fn saxpy() -> Case {
    let n = 4 << 20;
    Case {
        name: "saxpy",
        unit: "GB/s",
        buffers: vec![floats(n), floats(n)],
        calls: vec![Call {
            kernel: "saxpy",
            grid: [n / 256, 1, 1],
            block: [256, 1, 1],
            params: vec![Param::Buffer(0), Param::Buffer(1), Param::Float(0.5), Param::Int(n as i32)],
        }],
        result: (1, Agreement::Within(1e-6)),
        work: f64::from(n) * 12.0 / 1e9,
        sample: Some(16),
        goal: Some(1.0),
    }
}

fn stencil() -> Case {
    let side = 2048;
    Case {
        name: "stencil",
        unit: "GB/s",
        buffers: vec![floats(side * side), zeros(side * side)],
        calls: vec![Call {
            kernel: "stencil",
            grid: [side / 32, side / 8, 1],
            block: [32, 8, 1],
            params: vec![Param::Buffer(0), Param::Buffer(1), Param::Int(side as i32), Param::Int(side as i32)],
        }],
        result: (1, Agreement::Within(1e-6)),
        work: f64::from(side * side) * 8.0 / 1e9,
        sample: Some(16),
        goal: Some(1.0),
    }
}

fn matmul() -> Case {
    let n = 512;
    Case {
        name: "matmul",
        unit: "GFLOP/s",
        buffers: vec![floats(n * n), floats(n * n), zeros(n * n)],
        calls: vec![Call {
            kernel: "matmul",
            grid: [n / 32, n / 32, 1],
            block: [32, 32, 1],
            params: vec![Param::Buffer(0), Param::Buffer(1), Param::Buffer(2), Param::Int(n as i32)],
        }],
        result: (2, Agreement::Within(1e-4)),
        work: 2.0 * f64::from(n).powi(3) / 1e9,
        sample: Some(1),
        goal: Some(5.0),
    }
}

fn mma() -> Case {
    let n = 512;
    // From 1 up to 2, in f16.
    let halves = || bytes((0..n * n).map(|i| (0x3c00 + (i % 1000) as u16).to_le_bytes()));
    Case {
        name: "mma",
        unit: "GFLOP/s",
        buffers: vec![halves(), halves(), zeros(n * n)],
        calls: vec![Call {
            kernel: "mma",
            grid: [n / 64, n / 64, 1],
            block: [128, 1, 1],
            params: vec![Param::Buffer(0), Param::Buffer(1), Param::Buffer(2), Param::Int(n as i32)],
        }],
        result: (2, Agreement::Within(1e-4)),
        work: 2.0 * f64::from(n).powi(3) / 1e9,
        sample: Some(1),
        goal: None,
    }
}

fn black_scholes() -> Case {
    let n = 1 << 20;
    let mut params: Vec<Param> = (0..5).map(Param::Buffer).collect();
    params.extend([Param::Float(0.02), Param::Float(0.3), Param::Int(n as i32)]);
    Case {
        name: "black_scholes",
        unit: "Moption/s",
        buffers: vec![zeros(n), zeros(n), floats(n), floats(n), floats(n)],
        calls: vec![Call { kernel: "black_scholes", grid: [n / 128, 1, 1], block: [128, 1, 1], params }],
        result: (0, Agreement::Within(1e-4)),
        work: f64::from(n) / 1e6,
        sample: Some(16),
        goal: Some(5.0),
    }
}

fn nbody() -> Case {
    let n = 4096;
    Case {
        name: "nbody",
        unit: "GFLOP/s",
        buffers: vec![floats(4 * n), zeros(4 * n)],
        calls: vec![Call {
            kernel: "nbody",
            grid: [n / 128, 1, 1],
            block: [128, 1, 1],
            params: vec![Param::Buffer(0), Param::Buffer(1), Param::Int(n as i32)],
        }],
        result: (1, Agreement::Within(1e-2)),
        work: 20.0 * f64::from(n).powi(2) / 1e9,
        sample: Some(1),
        goal: Some(2.5),
    }
}

fn reduction(kernel: &'static str) -> Case {
    let n = 4 << 20;
    Case {
        name: kernel,
        unit: "GB/s",
        buffers: vec![floats(n), zeros(256)],
        calls: vec![Call {
            kernel,
            grid: [256, 1, 1],
            block: [256, 1, 1],
            params: vec![Param::Buffer(0), Param::Buffer(1), Param::Int(n as i32)],
        }],
        result: (1, Agreement::Within(1e-4)),
        work: f64::from(n) * 4.0 / 1e9,
        sample: Some(8),
        goal: Some(1.5),
    }
}

/// `totals` become sums of those before them.
fn scan_totals(totals: usize, n: u32) -> Call {
    let params = vec![Param::Buffer(totals), Param::Int(n as i32)];
    Call { kernel: "scan_totals", grid: [1, 1, 1], block: [256, 1, 1], params }
}

fn scan() -> Case {
    let n = 1 << 20;
    let parts = n / 256;
    let call = |kernel, params: &[usize]| {
        let params = params.iter().copied().map(Param::Buffer).collect();
        Call { kernel, grid: [parts, 1, 1], block: [256, 1, 1], params }
    };
    Case {
        name: "scan",
        unit: "GB/s",
        buffers: vec![words(n), zeros(n), zeros(parts)],
        calls: vec![call("scan_parts", &[0, 1, 2]), scan_totals(2, parts), call("scan_add", &[1, 2])],
        result: (1, Agreement::Exact),
        work: f64::from(n) * 8.0 / 1e9,
        sample: Some(1),
        goal: Some(1.5),
    }
}

fn histogram() -> Case {
    let n = 1 << 20;
    Case {
        name: "histogram",
        unit: "GB/s",
        buffers: vec![words(n), zeros(256)],
        calls: vec![Call {
            kernel: "histogram",
            grid: [64, 1, 1],
            block: [256, 1, 1],
            params: vec![Param::Buffer(0), Param::Buffer(1), Param::Int(n as i32)],
        }],
        result: (1, Agreement::Exact),
        work: f64::from(n) * 4.0 / 1e9,
        sample: Some(1),
        goal: Some(1.5),
    }
}

fn radix_sort() -> Case {
    let n = 1 << 18;
    let parts = n / 256;
    let [keys, counts] = [0, 3];
    let call = |kernel, params| Call { kernel, grid: [parts, 1, 1], block: [256, 1, 1], params };
    let passes = (0..8).flat_map(|pass| {
        let shift = Param::Int(4 * pass);
        // The keys stay as they are: the first pass reads them, the others go to and fro between two buffers.
        let from = if pass == 0 { keys } else { 1 + (pass as usize - 1) % 2 };
        let to = 1 + pass as usize % 2;
        let of = |buffers: &[usize]| buffers.iter().copied().map(Param::Buffer).chain([shift]).collect();
        [
            call("radix_count", of(&[from, counts])),
            scan_totals(counts, 16 * parts),
            call("radix_scatter", of(&[from, to, counts])),
        ]
    });
    Case {
        name: "radix_sort",
        unit: "Mkey/s",
        calls: passes.collect(),
        buffers: vec![words(n), zeros(n), zeros(n), zeros(16 * parts)],
        result: (2, Agreement::Exact),
        work: f64::from(n) / 1e6,
        sample: None,
        goal: Some(1.5),
    }
}

fn divergent() -> Case {
    let n = 1 << 17;
    Case {
        name: "divergent",
        unit: "Mstep/s",
        buffers: vec![zeros(n)],
        calls: vec![Call {
            kernel: "divergent",
            grid: [n / 128, 1, 1],
            block: [128, 1, 1],
            params: vec![Param::Buffer(0), Param::Int(n as i32)],
        }],
        result: (0, Agreement::Exact),
        work: f64::from((1..=n).map(collatz).sum::<u32>()) / 1e6,
        sample: Some(1),
        goal: Some(1.0),
    }
}

/// What the kernel counts for `value`.
fn collatz(value: u32) -> u32 {
    let next = |&value: &u32| {
        (value != 1).then(|| if value % 2 == 0 { value / 2 } else { value.wrapping_mul(3).wrapping_add(1) })
    };
    std::iter::successors(Some(value), next).skip(1).take(1000).count() as u32
}

fn spmv() -> Case {
    let n = 1 << 16;
    // From none to 63 elements a row, in columns without an order.
    let starts: Vec<u32> = std::iter::once(0)
        .chain((0..n).scan(0, |at, row| {
            *at += mixed(row) % 64;
            Some(*at)
        }))
        .collect();
    let elements = starts[n as usize];
    let columns = bytes((0..elements).map(|i| (mixed(i) % n).to_le_bytes()));
    let mut params: Vec<Param> = (0..5).map(Param::Buffer).collect();
    params.push(Param::Int(n as i32));
    Case {
        name: "spmv",
        unit: "GFLOP/s",
        buffers: vec![
            bytes(starts.iter().map(|start| start.to_le_bytes())),
            columns,
            floats(elements),
            floats(n),
            zeros(n),
        ],
        calls: vec![Call { kernel: "spmv", grid: [n / 128, 1, 1], block: [128, 1, 1], params }],
        result: (4, Agreement::Within(1e-4)),
        work: 2.0 * f64::from(elements) / 1e9,
        sample: Some(4),
        goal: Some(1.0),
    }
}

fn texture() -> Case {
    let side = 1024;
    Case {
        name: "texture",
        unit: "Msample/s",
        buffers: vec![floats(side * side), zeros(side * side)],
        calls: vec![Call {
            kernel: "texture",
            grid: [side / 16, side / 16, 1],
            block: [16, 16, 1],
            params: vec![
                Param::Image(0, [side, side]),
                Param::Buffer(1),
                Param::Int(side as i32),
                Param::Float(0.8),
                Param::Float(0.6),
            ],
        }],
        // Weights have 8 bits behind the point here.
        result: (1, Agreement::Within(1.0 / 128.0)),
        work: f64::from(side * side) / 1e6,
        sample: Some(1),
        goal: Some(1.0),
    }
}
