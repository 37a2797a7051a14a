//! Each instruction, executed on a watched page and on a plain one from the same state: memory, registers and flags are the same
//! afterwards, and what is told is what was written.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "executes the instructions that are tested")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::arch::asm;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use hostmem::{Mapping, Memfd, PAGE};
use write_trap::{Decode, WriteTrap, Written};

/// Counts what a thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: the system's allocator does it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

const SIZE: usize = PAGE as usize;
const PAGES: usize = 6;
/// Pages that are watched: two neighbours amid others.
const WATCHED: Range<usize> = 2..4;

/// What an instruction starts from, and leaves. RDI is the address that it writes to.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    r8: u64,
    flags: u64,
    /// Vector registers 1, 2, 17 and 18.
    vectors: [[u8; 64]; 4],
    /// k1 and k2.
    masks: [u64; 2],
}

/// Flags of arithmetic.
const ARITHMETIC: u64 = 0x8d5;
const DF: u64 = 1 << 10;

/// Executes instructions: first what loads the vectors from r9, last what stores them there.
macro_rules! execute {
    ([$($load:literal),*], [$($text:literal),*], [$($store:literal),*]) => {
        |state: &mut State| {
            // SAFETY: the instructions write to memory at RDI that is there for this, and to the state.
            unsafe {
                asm!(
                    $($load,)*
                    "push r10",
                    "popfq",
                    $($text,)*
                    "pushfq",
                    "pop r10",
                    "cld",
                    $($store,)*
                    inout("rax") state.rax,
                    inout("rcx") state.rcx,
                    inout("rdx") state.rdx,
                    inout("rsi") state.rsi,
                    inout("rdi") state.rdi,
                    inout("r8") state.r8,
                    inout("r9") state.vectors.as_mut_ptr() => _,
                    inout("r10") state.flags,
                    out("r11") _,
                    out("xmm1") _,
                    out("xmm2") _,
                );
            }
        }
    };
}

type Execute = fn(&mut State);
/// Bytes that are written, counted from RDI.
type Writes = Box<dyn Fn(&State) -> Vec<i64>>;

struct Case {
    name: &'static str,
    execute: Execute,
    writes: Writes,
    /// What RDI must be a multiple of.
    align: usize,
}

/// Bytes from RDI on.
fn bytes(bytes: i64) -> Writes {
    Box::new(move |_| (0..bytes).collect())
}

/// Elements that a mask chooses.
fn elements(count: i64, size: i64, chosen: impl Fn(&State, i64) -> bool + 'static) -> Writes {
    Box::new(move |state| (0..count * size).filter(|at| chosen(state, at / size)).collect())
}

fn by_k1(count: i64, size: i64) -> Writes {
    elements(count, size, |state, at| state.masks[0] >> at & 1 != 0)
}

/// By the highest bit of elements of vector register 2.
fn by_vector(count: i64, size: i64) -> Writes {
    elements(count, size, move |state, at| state.vectors[1][((at + 1) * size - 1) as usize] & 0x80 != 0)
}

/// General registers only.
macro_rules! plain {
    ($cases:ident: $($text:literal $bytes:literal,)*) => {
        $($cases.push(Case {
            name: $text,
            execute: execute!([], [$text], []),
            writes: bytes($bytes),
            align: 1,
        });)*
    };
}

/// With vectors; how they are loaded and stored comes first.
macro_rules! vector {
    ($cases:ident, $load:tt, $store:tt: $($text:literal $writes:expr, $align:literal;)*) => {
        $($cases.push(Case { name: $text, execute: execute!($load, [$text], $store), writes: $writes, align: $align });)*
    };
}

fn general() -> Vec<Case> {
    let mut c = Vec::new();
    plain!(c:
        "mov byte ptr [rdi], al" 1, "mov byte ptr [rdi], ah" 1, "mov byte ptr [rdi], ch" 1, "mov byte ptr [rdi], sil" 1,
        "mov byte ptr [rdi], r8b" 1, "mov word ptr [rdi], dx" 2, "mov dword ptr [rdi], ecx" 4, "mov qword ptr [rdi], rax" 8,
        "mov qword ptr [rdi], r8" 8, "mov byte ptr [rdi], 0x85" 1,
        "mov word ptr [rdi], 0x8512" 2, "mov dword ptr [rdi], 0x85123456" 4, "mov qword ptr [rdi], -2" 8,
        "movnti dword ptr [rdi], eax" 4, "movnti qword ptr [rdi], rax" 8,
        "add byte ptr [rdi], al" 1, "add byte ptr [rdi], dh" 1, "add word ptr [rdi], ax" 2, "add dword ptr [rdi], eax" 4,
        "add qword ptr [rdi], rax" 8, "add qword ptr [rdi], -5" 8, "add word ptr [rdi], 0x7fff" 2,
        "or byte ptr [rdi], al" 1, "or dword ptr [rdi], 0x12" 4, "or qword ptr [rdi], rdx" 8,
        "adc byte ptr [rdi], 0x7f" 1, "adc word ptr [rdi], cx" 2, "adc dword ptr [rdi], eax" 4, "adc qword ptr [rdi], rax" 8,
        "sbb byte ptr [rdi], al" 1, "sbb word ptr [rdi], dx" 2, "sbb dword ptr [rdi], eax" 4, "sbb qword ptr [rdi], rax" 8,
        "and byte ptr [rdi], 0x3c" 1, "and word ptr [rdi], ax" 2, "and dword ptr [rdi], eax" 4, "and qword ptr [rdi], rax" 8,
        "sub byte ptr [rdi], al" 1, "sub word ptr [rdi], ax" 2, "sub dword ptr [rdi], eax" 4, "sub qword ptr [rdi], rax" 8,
        "xor byte ptr [rdi], cl" 1, "xor word ptr [rdi], ax" 2, "xor dword ptr [rdi], eax" 4, "xor qword ptr [rdi], rax" 8,
        "inc byte ptr [rdi]" 1, "inc word ptr [rdi]" 2, "inc dword ptr [rdi]" 4, "inc qword ptr [rdi]" 8,
        "dec byte ptr [rdi]" 1, "dec word ptr [rdi]" 2, "dec dword ptr [rdi]" 4, "dec qword ptr [rdi]" 8,
        "neg byte ptr [rdi]" 1, "neg word ptr [rdi]" 2, "neg dword ptr [rdi]" 4, "neg qword ptr [rdi]" 8,
        "not byte ptr [rdi]" 1, "not word ptr [rdi]" 2, "not dword ptr [rdi]" 4, "not qword ptr [rdi]" 8,
        "xchg byte ptr [rdi], al" 1, "xchg byte ptr [rdi], ah" 1, "xchg word ptr [rdi], cx" 2, "xchg dword ptr [rdi], eax" 4,
        "xchg qword ptr [rdi], r8" 8,
        "xadd byte ptr [rdi], cl" 1, "xadd byte ptr [rdi], ch" 1, "xadd word ptr [rdi], ax" 2, "xadd dword ptr [rdi], ecx" 4,
        "xadd qword ptr [rdi], rcx" 8,
        "cmpxchg byte ptr [rdi], cl" 1, "cmpxchg word ptr [rdi], cx" 2, "cmpxchg dword ptr [rdi], ecx" 4,
        "cmpxchg qword ptr [rdi], rcx" 8, "cmpxchg qword ptr [rdi], rax" 8,
        "bts word ptr [rdi], 13" 2, "btr dword ptr [rdi], 31" 4, "btc qword ptr [rdi], 61" 8, "btc qword ptr [rdi], 64" 8,
        "rol byte ptr [rdi], cl" 1, "rol dword ptr [rdi], 1" 4, "ror word ptr [rdi], 5" 2, "ror qword ptr [rdi], cl" 8,
        "rcl byte ptr [rdi], cl" 1, "rcl qword ptr [rdi], 7" 8, "rcr word ptr [rdi], 1" 2, "rcr dword ptr [rdi], cl" 4,
        "shl byte ptr [rdi], 3" 1, "shl word ptr [rdi], cl" 2, "shl dword ptr [rdi], cl" 4, "shl qword ptr [rdi], 1" 8,
        "shr byte ptr [rdi], cl" 1, "shr dword ptr [rdi], 31" 4, "sar word ptr [rdi], cl" 2, "sar qword ptr [rdi], cl" 8,
        "shld word ptr [rdi], ax, 3" 2, "shld dword ptr [rdi], eax, cl" 4, "shld qword ptr [rdi], rax, 63" 8,
        "shrd word ptr [rdi], ax, 3" 2, "shrd dword ptr [rdi], eax, cl" 4, "shrd qword ptr [rdi], rax, cl" 8,
        "lock add byte ptr [rdi], al" 1, "lock add word ptr [rdi], 7" 2, "lock or dword ptr [rdi], eax" 4,
        "lock adc qword ptr [rdi], rax" 8, "lock sbb dword ptr [rdi], eax" 4, "lock and qword ptr [rdi], rcx" 8,
        "lock sub word ptr [rdi], ax" 2, "lock xor byte ptr [rdi], 0x55" 1, "lock inc dword ptr [rdi]" 4,
        "lock dec qword ptr [rdi]" 8, "lock neg byte ptr [rdi]" 1, "lock not word ptr [rdi]" 2,
        "lock xadd dword ptr [rdi], ecx" 4, "lock xadd qword ptr [rdi], rcx" 8, "lock cmpxchg dword ptr [rdi], ecx" 4,
        "lock cmpxchg qword ptr [rdi], rcx" 8, "lock bts dword ptr [rdi], 3" 4, "lock btr qword ptr [rdi], 63" 8,
        "lock btc word ptr [rdi], 9" 2, "cmpxchg8b qword ptr [rdi]" 8, "lock cmpxchg8b qword ptr [rdi]" 8,
        "seto byte ptr [rdi]" 1, "setno byte ptr [rdi]" 1, "setb byte ptr [rdi]" 1, "setae byte ptr [rdi]" 1,
        "sete byte ptr [rdi]" 1, "setne byte ptr [rdi]" 1, "setbe byte ptr [rdi]" 1, "seta byte ptr [rdi]" 1,
        "sets byte ptr [rdi]" 1, "setns byte ptr [rdi]" 1, "setp byte ptr [rdi]" 1, "setnp byte ptr [rdi]" 1,
        "setl byte ptr [rdi]" 1, "setge byte ptr [rdi]" 1, "setle byte ptr [rdi]" 1, "setg byte ptr [rdi]" 1,
        "stosb" 1, "stosw" 2, "stosd" 4, "stosq" 8, "movsb" 1, "movsw" 2, "movsd" 4, "movsq" 8,
    );
    // Other forms of addresses.
    c.push(Case {
        name: "mov [r11 + 8 * rcx - 0x123], rax",
        execute: execute!(
            [],
            ["lea r11, [rcx * 8]", "neg r11", "lea r11, [r11 + rdi + 0x123]", "mov [r11 + 8 * rcx - 0x123], rax"],
            []
        ),
        writes: bytes(8),
        align: 1,
    });
    // What the compiler's inline assembly cannot name.
    c.push(Case {
        name: "lock cmpxchg16b",
        execute: execute!([], ["xchg rbx, r8", "lock cmpxchg16b [rdi]", "xchg rbx, r8"], []),
        writes: bytes(16),
        align: 16,
    });
    c.push(Case {
        name: "cmpxchg16b that succeeds",
        execute: execute!(
            [],
            ["xchg rbx, r8", "mov rax, [rdi]", "mov rdx, [rdi + 8]", "cmpxchg16b [rdi]", "xchg rbx, r8"],
            []
        ),
        writes: bytes(16),
        align: 16,
    });
    c.push(Case {
        name: "lock cmpxchg that succeeds",
        execute: execute!([], ["mov rax, [rdi]", "lock cmpxchg qword ptr [rdi], rcx"], []),
        writes: bytes(8),
        align: 1,
    });
    c.push(Case {
        name: "cmpxchg of 32 bits that succeeds",
        execute: execute!([], ["xor eax, [rdi]", "xor eax, eax", "mov eax, [rdi]", "cmpxchg dword ptr [rdi], ecx"], []),
        writes: bytes(4),
        align: 1,
    });
    c
}

macro_rules! detected {
    ($($feature:tt)*) => {
        true $(&& std::arch::is_x86_feature_detected!($feature) || not_here($feature))*
    };
}

fn not_here(feature: &str) -> bool {
    eprintln!("SKIPPED: this processor has no {feature}");
    false
}

fn vectors() -> Vec<Case> {
    let mut c = Vec::new();
    vector!(c, ["movdqu xmm1, [r9]", "movdqu xmm2, [r9 + 64]"], ["movdqu [r9], xmm1", "movdqu [r9 + 64], xmm2"]:
        "movaps [rdi], xmm1" bytes(16), 16;
        "movups [rdi], xmm1" bytes(16), 1;
        "movapd [rdi], xmm1" bytes(16), 16;
        "movupd [rdi], xmm1" bytes(16), 1;
        "movdqa [rdi], xmm1" bytes(16), 16;
        "movdqu [rdi], xmm1" bytes(16), 1;
        "movntps [rdi], xmm1" bytes(16), 16;
        "movntpd [rdi], xmm1" bytes(16), 16;
        "movntdq [rdi], xmm1" bytes(16), 16;
        "movss dword ptr [rdi], xmm1" bytes(4), 1;
        "movsd qword ptr [rdi], xmm1" bytes(8), 1;
        "movlps qword ptr [rdi], xmm1" bytes(8), 1;
        "movlpd qword ptr [rdi], xmm1" bytes(8), 1;
        "movhps qword ptr [rdi], xmm1" bytes(8), 1;
        "movhpd qword ptr [rdi], xmm1" bytes(8), 1;
        "movd dword ptr [rdi], xmm1" bytes(4), 1;
        "movq qword ptr [rdi], xmm1" bytes(8), 1;
        "maskmovdqu xmm1, xmm2" by_vector(16, 1), 1;
    );
    vector!(c, ["movq mm1, [r9]", "movq mm2, [r9 + 64]"], ["emms"]:
        "movq qword ptr [rdi], mm1" bytes(8), 1;
        "movd dword ptr [rdi], mm1" bytes(4), 1;
        "movntq qword ptr [rdi], mm1" bytes(8), 1;
        "maskmovq mm1, mm2" by_vector(8, 1), 1;
    );
    if detected!("sse4.1") {
        vector!(c, ["movdqu xmm1, [r9]"], ["movdqu [r9], xmm1"]:
            "pextrb byte ptr [rdi], xmm1, 13" bytes(1), 1;
            "pextrw word ptr [rdi], xmm1, 6" bytes(2), 1;
            "pextrd dword ptr [rdi], xmm1, 7" bytes(4), 1;
            "pextrq qword ptr [rdi], xmm1, 1" bytes(8), 1;
            "extractps dword ptr [rdi], xmm1, 2" bytes(4), 1;
        );
    }
    if detected!("movbe") {
        plain!(c: "movbe word ptr [rdi], ax" 2, "movbe dword ptr [rdi], eax" 4, "movbe qword ptr [rdi], rax" 8,);
    }
    if detected!("avx" "avx2") {
        vector!(c, ["vmovdqu ymm1, [r9]", "vmovdqu ymm2, [r9 + 64]"], ["vmovdqu [r9], ymm1", "vmovdqu [r9 + 64], ymm2"]:
            "vmovaps [rdi], xmm1" bytes(16), 16;
            "vmovaps [rdi], ymm1" bytes(32), 32;
            "vmovups [rdi], ymm1" bytes(32), 1;
            "vmovapd [rdi], ymm1" bytes(32), 32;
            "vmovupd [rdi], ymm1" bytes(32), 1;
            "vmovdqa [rdi], ymm1" bytes(32), 32;
            "vmovdqu [rdi], ymm1" bytes(32), 1;
            "vmovdqu [rdi], xmm1" bytes(16), 1;
            "vmovntps [rdi], ymm1" bytes(32), 32;
            "vmovntpd [rdi], ymm1" bytes(32), 32;
            "vmovntdq [rdi], ymm1" bytes(32), 32;
            "vmovss dword ptr [rdi], xmm1" bytes(4), 1;
            "vmovsd qword ptr [rdi], xmm1" bytes(8), 1;
            "vmovlps qword ptr [rdi], xmm1" bytes(8), 1;
            "vmovhps qword ptr [rdi], xmm1" bytes(8), 1;
            "vmovlpd qword ptr [rdi], xmm1" bytes(8), 1;
            "vmovhpd qword ptr [rdi], xmm1" bytes(8), 1;
            "vmovd dword ptr [rdi], xmm1" bytes(4), 1;
            "vmovq qword ptr [rdi], xmm1" bytes(8), 1;
            "vpextrb byte ptr [rdi], xmm1, 3" bytes(1), 1;
            "vpextrw word ptr [rdi], xmm1, 3" bytes(2), 1;
            "vpextrd dword ptr [rdi], xmm1, 3" bytes(4), 1;
            "vpextrq qword ptr [rdi], xmm1, 1" bytes(8), 1;
            "vextractps dword ptr [rdi], xmm1, 3" bytes(4), 1;
            "vextractf128 xmmword ptr [rdi], ymm1, 1" bytes(16), 1;
            "vextracti128 xmmword ptr [rdi], ymm1, 0" bytes(16), 1;
            "vmaskmovps [rdi], ymm2, ymm1" by_vector(8, 4), 1;
            "vmaskmovps [rdi], xmm2, xmm1" by_vector(4, 4), 1;
            "vmaskmovpd [rdi], ymm2, ymm1" by_vector(4, 8), 1;
            "vpmaskmovd [rdi], ymm2, ymm1" by_vector(8, 4), 1;
            "vpmaskmovq [rdi], xmm2, xmm1" by_vector(2, 8), 1;
            "vmaskmovdqu xmm1, xmm2" by_vector(16, 1), 1;
        );
    }
    if detected!("avx512f" "avx512bw" "avx512dq" "avx512vl") {
        vector!(c,
            ["vmovdqu64 zmm1, [r9]", "vmovdqu64 zmm2, [r9 + 64]", "vmovdqu64 zmm17, [r9 + 128]", "kmovq k1, [r9 + 256]"],
            ["vmovdqu64 [r9], zmm1", "vmovdqu64 [r9 + 64], zmm2", "vmovdqu64 [r9 + 128], zmm17", "kmovq [r9 + 264], k1"]:
            "vmovaps [rdi], zmm1" bytes(64), 64;
            "vmovups [rdi], zmm17" bytes(64), 1;
            "vmovapd [rdi], zmm17" bytes(64), 64;
            "vmovupd [rdi], zmm1" bytes(64), 1;
            "vmovdqa32 [rdi], zmm1" bytes(64), 64;
            "vmovdqa64 [rdi], zmm17" bytes(64), 64;
            "vmovdqu64 [rdi], zmm1" bytes(64), 1;
            "vmovdqu64 [rdi], ymm17" bytes(32), 1;
            "vmovdqu64 [rdi], xmm17" bytes(16), 1;
            "vmovntdq [rdi], zmm1" bytes(64), 64;
            "vmovntps [rdi], zmm17" bytes(64), 64;
            "vmovss dword ptr [rdi], xmm17" bytes(4), 1;
            "vmovsd qword ptr [rdi], xmm17" bytes(8), 1;
            "vmovq qword ptr [rdi], xmm17" bytes(8), 1;
            "vmovhps qword ptr [rdi], xmm17" bytes(8), 1;
            "vpextrb byte ptr [rdi], xmm17, 15" bytes(1), 1;
            "vmovdqu8 [rdi]{{k1}}, zmm1" by_k1(64, 1), 1;
            "vmovdqu8 [rdi]{{k1}}, ymm17" by_k1(32, 1), 1;
            "vmovdqu16 [rdi]{{k1}}, zmm17" by_k1(32, 2), 1;
            "vmovdqu32 [rdi]{{k1}}, zmm1" by_k1(16, 4), 1;
            "vmovdqu32 [rdi]{{k1}}, xmm1" by_k1(4, 4), 1;
            "vmovdqu64 [rdi]{{k1}}, zmm17" by_k1(8, 8), 1;
            "vmovups [rdi]{{k1}}, zmm1" by_k1(16, 4), 1;
            "vmovupd [rdi]{{k1}}, ymm1" by_k1(4, 8), 1;
            "vmovapd [rdi]{{k1}}, zmm1" by_k1(8, 8), 64;
            "vmovdqa32 [rdi]{{k1}}, zmm1" by_k1(16, 4), 64;
            "vmovss dword ptr [rdi]{{k1}}, xmm1" by_k1(1, 4), 1;
            "vmovsd qword ptr [rdi]{{k1}}, xmm1" by_k1(1, 8), 1;
            "vextractf32x4 xmmword ptr [rdi], zmm1, 3" bytes(16), 1;
            "vextracti64x2 xmmword ptr [rdi], ymm17, 1" bytes(16), 1;
            "vextractf64x4 ymmword ptr [rdi], zmm17, 1" bytes(32), 1;
            "vextracti32x8 ymmword ptr [rdi], zmm1, 1" bytes(32), 1;
            "vextracti32x4 xmmword ptr [rdi]{{k1}}, zmm1, 2" by_k1(4, 4), 1;
            "vextractf64x4 ymmword ptr [rdi]{{k1}}, zmm1, 1" by_k1(4, 8), 1;
        );
    }
    c
}

/// Not known to the handler: it lets them through.
fn unknown() -> Vec<Case> {
    let mut c = Vec::new();
    vector!(c, ["fninit", "fild qword ptr [r9]"], ["fninit"]:
        "fistp qword ptr [rdi]" bytes(8), 1;
        "fst dword ptr [rdi]" bytes(4), 1;
        "fstp tbyte ptr [rdi]" bytes(10), 1;
        "fnstcw word ptr [rdi]" bytes(2), 1;
    );
    plain!(c:
        "pop qword ptr [rdi]\npush rax" 8, "bts qword ptr [rdi], rcx" 8, "fxsave [rdi]" 464,
        "mov word ptr [rdi], ds" 2, "stmxcsr dword ptr [rdi]" 4,
    );
    c.retain(|case| !case.name.starts_with("pop"));
    for case in &mut c {
        match case.name {
            "bts qword ptr [rdi], rcx" => {
                case.execute = execute!([], ["and rcx, 63", "bts qword ptr [rdi], rcx"], []);
            }
            "fxsave [rdi]" => case.align = 16,
            _ => {}
        }
    }
    if detected!("avx512f") {
        vector!(c,
            ["vmovdqu64 zmm1, [r9]", "vpxord zmm2, zmm2, zmm2", "kxnorw k1, k1, k1"],
            ["vmovdqu64 [r9], zmm1"]:
            "vpcompressq [rdi]{{k1}}, zmm1" bytes(64), 1;
            "vpmovqd [rdi], zmm1" bytes(32), 1;
            "vpscatterdd [rdi + zmm2]{{k1}}, zmm1" bytes(4), 1;
        );
    }
    c
}

/// A generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]));
    }

    fn state(&mut self) -> State {
        let mut state = State {
            rax: self.next(),
            rcx: self.next(),
            rdx: self.next(),
            rsi: 0,
            rdi: 0,
            r8: self.next(),
            flags: self.next() & ARITHMETIC,
            vectors: [[0; 64]; 4],
            masks: [self.next(), 0],
        };
        state.vectors.iter_mut().for_each(|vector| self.fill(vector));
        state
    }
}

/// A watched mapping, and its twin.
struct Bench {
    watched: Arc<Mapping>,
    twin: Mapping,
    trap: Decode,
}

impl Bench {
    fn new() -> Bench {
        let bytes = (PAGES * SIZE) as u64;
        let (file, twin) = (Memfd::create("watched", bytes).unwrap(), Memfd::create("twin", bytes).unwrap());
        let watched = Arc::new(file.map().unwrap());
        let written = Arc::new(Written::create(PAGES as u64).unwrap().0);
        let trap = Decode::new(&watched, file.map().unwrap(), written).unwrap();
        Bench { watched, twin: twin.map().unwrap(), trap }
    }

    /// Gives both the same content, and protects.
    fn prepare(&mut self, random: &mut Random) {
        let pages: Vec<u64> = WATCHED.map(|page| page as u64).collect();
        self.trap.release(&pages).unwrap();
        let mut content = vec![0; PAGES * SIZE];
        random.fill(&mut content);
        self.watched.write(0, &content);
        self.twin.write(0, &content);
        self.take();
        self.trap.protect(&pages).unwrap();
    }

    fn content(mapping: &Mapping) -> Vec<u8> {
        let mut content = vec![0; PAGES * SIZE];
        mapping.read(0, &mut content);
        content
    }

    /// Words that were stored to, and pages that were released.
    fn take(&mut self) -> (BTreeSet<u64>, Vec<u64>) {
        let (mut words, mut pages) = (BTreeSet::new(), Vec::new());
        self.trap.written().take_stores(|word| assert!(words.insert(word)));
        self.trap.take_written(&mut pages).unwrap();
        (words, pages)
    }

    /// Executes on both, from `at` on; RSI points into the same mapping if it is an offset.
    fn execute(&mut self, name: &str, execute: Execute, state: &State, at: usize, from: Option<usize>) -> State {
        let states = [&*self.watched, &self.twin].map(|mapping| {
            let mut state = state.clone();
            state.rdi = (mapping.address() + at) as u64;
            state.rsi = from.map_or(state.rsi, |from| (mapping.address() + from) as u64);
            let before = ALLOCATED.get();
            execute(&mut state);
            assert_eq!(ALLOCATED.get(), before, "{name}: the handler allocates");
            // Compared by what they point to.
            state.rdi = state.rdi.wrapping_sub(mapping.address() as u64);
            if from.is_some() {
                state.rsi = state.rsi.wrapping_sub(mapping.address() as u64);
            }
            state.flags &= ARITHMETIC;
            state
        });
        assert!(states[0] == states[1], "{name} at {at:#x}: {:#x?}", states);
        let (seen, expect) = (Bench::content(&self.watched), Bench::content(&self.twin));
        if let Some(first) = seen.iter().zip(&expect).position(|(seen, expect)| seen != expect) {
            let some = first..(first + 16).min(seen.len());
            panic!("{name} at {at:#x}: {:x?} in place of {:x?} at {first:#x}", &seen[some.clone()], &expect[some]);
        }
        states[1].clone()
    }
}

fn is_watched(offset: i64) -> bool {
    WATCHED.contains(&(offset as usize / SIZE))
}

/// Places to write to: aligned and not, in each of the two pages, and across each edge of them.
fn places(case: &Case) -> Vec<usize> {
    let edges = [WATCHED.start, WATCHED.start + 1, WATCHED.end];
    let inside = [(WATCHED.start, 0), (WATCHED.start, 0x240), (WATCHED.start, 0x241), (WATCHED.end - 1, 0x7fb)];
    let mut places: Vec<usize> = inside.map(|(page, offset)| page * SIZE + offset).into();
    for edge in edges {
        places.extend([1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 31, 33, 48, 63].map(|before| edge * SIZE - before));
    }
    places.retain(|place| place % case.align == 0);
    places
}

fn check(case: &Case, random: &mut Random, bench: &mut Bench, known: bool) {
    for place in places(case) {
        let mut state = random.state();
        let source = std::array::from_fn::<u64, 4, _>(|_| random.next());
        state.rsi = source.as_ptr() as u64;
        let place_i = place as i64;
        let written: Vec<i64> = (case.writes)(&state).into_iter().map(|at| place_i + at).collect();
        bench.prepare(random);
        bench.execute(case.name, case.execute, &state, place, None);
        let (words, pages) = bench.take();
        let expect: BTreeSet<u64> = written.iter().map(|at| *at as u64 & !7).collect();
        if !known {
            let watched = written.iter().filter(|at| is_watched(**at)).map(|at| *at as u64 / PAGE);
            let watched: BTreeSet<u64> = watched.collect();
            assert!(words.is_empty(), "{} at {place:#x}: {words:x?}", case.name);
            assert_eq!(pages, watched.into_iter().collect::<Vec<_>>(), "{} at {place:#x}", case.name);
        } else if written.iter().any(|at| is_watched(*at)) {
            assert_eq!((words, pages), (expect, vec![]), "{} at {place:#x}", case.name);
        } else {
            // Some processors refuse a masked store for bytes that it does not choose.
            assert!(words.is_subset(&expect) && pages.is_empty(), "{} at {place:#x}: {words:x?}", case.name);
        }
    }
}

fn check_all(cases: &[Case], seed: u64, known: bool) {
    let (mut bench, mut random) = (Bench::new(), Random(seed));
    for _ in 0..4 {
        cases.iter().for_each(|case| check(case, &mut random, &mut bench, known));
    }
    eprintln!("{} instructions", cases.len());
}

#[test]
fn general_registers_and_immediates() {
    check_all(&general(), 1, true);
}

#[test]
fn vector_registers() {
    check_all(&vectors(), 2, true);
}

#[test]
fn what_is_not_known_releases_the_page() {
    check_all(&unknown(), 3, false);
}

/// Strings: with and without repetition, both directions, across all edges, and overlapping themselves.
#[test]
fn strings() {
    let repeated: [(&str, Execute, u64, bool); 9] = [
        ("rep stosb", execute!([], ["rep stosb"], []), 1, false),
        ("rep stosw", execute!([], ["rep stosw"], []), 2, false),
        ("rep stosd", execute!([], ["rep stosd"], []), 4, false),
        ("rep stosq", execute!([], ["rep stosq"], []), 8, false),
        ("rep movsb", execute!([], ["rep movsb"], []), 1, true),
        ("rep movsw", execute!([], ["rep movsw"], []), 2, true),
        ("rep movsd", execute!([], ["rep movsd"], []), 4, true),
        ("rep movsq", execute!([], ["rep movsq"], []), 8, true),
        ("repne movsb", execute!([], ["repne movsb"], []), 1, true),
    ];
    let (mut bench, mut random) = (Bench::new(), Random(4));
    for round in 0..60 {
        for (name, execute, size, copies) in repeated {
            for down in [false, true] {
                // Somewhere in the mapping, as long as fits.
                let span = PAGES as u64 * PAGE;
                let count = random.next() % if round % 4 == 0 { span / size } else { 40 };
                let room = span - count * size;
                let lowest = |random: &mut Random| if room == 0 { 0 } else { random.next() % room };
                let (to, from) = (lowest(&mut random), lowest(&mut random));
                let from = match round % 3 {
                    // Shortly before or behind, so that what is copied is copied again.
                    0 => to.saturating_sub(random.next() % 20),
                    1 => (to + random.next() % 20).min(room),
                    _ => from,
                };
                let first = |low: u64| (if down && count > 0 { low + (count - 1) * size } else { low }) as usize;
                let mut state = random.state();
                state.rcx = count;
                state.flags = state.flags & ARITHMETIC | if down { DF } else { 0 };
                bench.prepare(&mut random);
                let before = Bench::content(&bench.twin);
                bench.execute(name, execute, &state, first(to), copies.then(|| first(from)));
                let (words, pages) = bench.take();
                let after = Bench::content(&bench.twin);
                // All that changed is told, and nothing that was not written.
                let inside = |word: &u64| *word + 8 > to && *word < to + count * size;
                assert!(words.iter().all(inside), "{name} down {down} {to:#x} {count}: {words:x?}");
                let told = |at: u64| words.contains(&(at & !7)) || pages.contains(&(at / PAGE));
                let lost = (to..to + count * size)
                    .filter(|at| is_watched(*at as i64) && before[*at as usize] != after[*at as usize])
                    .find(|at| !told(*at));
                assert_eq!(lost, None, "{name} down {down} from {from:#x} to {to:#x} {count}: {words:x?} {pages:?}");
                // Only what reaches over the edge of the mapping is let through.
                assert!(pages.is_empty(), "{name}: {pages:?}");
            }
        }
    }
}

/// The second page of an instruction may not be there.
#[test]
fn an_instruction_at_the_end_of_its_page() {
    let mut bench = Bench::new();
    // mov [rdi], rax; ret
    let code = [0x48, 0x89, 0x07, 0xc3];
    // SAFETY: fresh memory, which nobody else knows.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            3 * SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(memory, libc::MAP_FAILED);
    for (offset, pages) in [(SIZE - 4, 1), (SIZE - 3, 2), (SIZE - 2, 2), (SIZE - 1, 2)] {
        let at = memory.cast::<u8>().wrapping_add(offset);
        // SAFETY: inside that memory.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at, code.len()) };
        // SAFETY: what is code, and no more, can be executed; the next page cannot even be read.
        let changed = unsafe {
            [(0, pages, libc::PROT_READ | libc::PROT_EXEC), (pages, 3 - pages, libc::PROT_NONE)]
                .map(|(first, pages, rights)| libc::mprotect(memory.wrapping_add(first * SIZE), pages * SIZE, rights))
        };
        assert_eq!(changed, [0, 0]);
        bench.prepare(&mut Random(offset as u64));
        let target = bench.watched.address() + WATCHED.start * SIZE;
        // SAFETY: a function that stores RAX at RDI and returns.
        unsafe { asm!("call {}", in(reg) at, in("rdi") target, in("rax") 0x1234_5678_u64, clobber_abi("C")) };
        assert_eq!(bench.watched.u64_at(WATCHED.start * SIZE).load(std::sync::atomic::Ordering::Relaxed), 0x1234_5678);
        let (words, pages) = bench.take();
        assert_eq!((words.into_iter().collect::<Vec<_>>(), pages), (vec![(WATCHED.start * SIZE) as u64], vec![]));
        // SAFETY: that memory.
        let back = unsafe { libc::mprotect(memory, 3 * SIZE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(back, 0);
    }
    // SAFETY: that memory, which nobody uses any more.
    unsafe { libc::munmap(memory, 3 * SIZE) };
}
