//! Instructions that read memory, and write what they make of it.
//!
//! Each is run as what it is, on the other mapping: so its flags are the processor's, those that its manual leaves undefined
//! too, and a locked one is one step for all threads, wherever they come from.

use std::arch::asm;

use iced_x86::Mnemonic;

use super::machine::ARITHMETIC;

/// What such an instruction reads and changes beside the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Registers {
    /// The operand, or, of shifts of two registers, what is shifted in.
    pub(super) source: u64,
    /// RAX.
    pub(super) accumulator: u64,
    /// RCX: the count of shifts, in its lowest byte.
    pub(super) count: u64,
    /// RBX and RDX, of the wide compare-and-exchange.
    pub(super) base: u64,
    pub(super) data: u64,
    pub(super) flags: u64,
}

/// One instruction, put together of pieces: `{p}` is the address, RDX the source.
macro_rules! one {
    ($at:ident, $r:ident, $($piece:literal),+) => {
        // SAFETY: the caller vouches for the memory; what the instruction changes beside it are these registers and the
        // flags of arithmetic. What is pushed is popped.
        unsafe {
            asm!(
                "push {f}",
                "popfq",
                concat!($($piece),+),
                "pushfq",
                "pop {f}",
                p = in(reg) $at,
                f = inout(reg) $r.flags,
                inout("rax") $r.accumulator,
                inout("rcx") $r.count,
                inout("rdx") $r.source,
            )
        }
    };
}

/// With and without the prefix that makes it one step for all.
macro_rules! lockable {
    ($lock:ident, $macro:ident!($at:ident, $bytes:ident, $r:ident, $name:literal)) => {
        if $lock { $macro!($at, $bytes, $r, "lock ", $name) } else { $macro!($at, $bytes, $r, "", $name) }
    };
}

/// A register as the source; all sizes.
macro_rules! binary {
    ($at:ident, $bytes:ident, $r:ident, $lock:literal, $name:literal) => {
        match $bytes {
            1 => one!($at, $r, $lock, $name, " byte ptr [{p}], dl"),
            2 => one!($at, $r, $lock, $name, " word ptr [{p}], dx"),
            4 => one!($at, $r, $lock, $name, " dword ptr [{p}], edx"),
            8 => one!($at, $r, $lock, $name, " qword ptr [{p}], rdx"),
            _ => return None,
        }
    };
}

/// As `binary`, without bytes; and what else stands behind the source.
macro_rules! wide {
    ($at:ident, $bytes:ident, $r:ident, $lock:literal, $name:literal $(, $more:literal)?) => {
        match $bytes {
            2 => one!($at, $r, $lock, $name, " word ptr [{p}], dx" $(, $more)?),
            4 => one!($at, $r, $lock, $name, " dword ptr [{p}], edx" $(, $more)?),
            8 => one!($at, $r, $lock, $name, " qword ptr [{p}], rdx" $(, $more)?),
            _ => return None,
        }
    };
}

/// No source.
macro_rules! unary {
    ($at:ident, $bytes:ident, $r:ident, $lock:literal, $name:literal) => {
        match $bytes {
            1 => one!($at, $r, $lock, $name, " byte ptr [{p}]"),
            2 => one!($at, $r, $lock, $name, " word ptr [{p}]"),
            4 => one!($at, $r, $lock, $name, " dword ptr [{p}]"),
            8 => one!($at, $r, $lock, $name, " qword ptr [{p}]"),
            _ => return None,
        }
    };
}

/// CL is the source.
macro_rules! shift {
    ($at:ident, $bytes:ident, $r:ident, $name:literal) => {
        match $bytes {
            1 => one!($at, $r, $name, " byte ptr [{p}], cl"),
            2 => one!($at, $r, $name, " word ptr [{p}], cl"),
            4 => one!($at, $r, $name, " dword ptr [{p}], cl"),
            8 => one!($at, $r, $name, " qword ptr [{p}], cl"),
            _ => return None,
        }
    };
}

/// The two that use RBX, which the compiler does not let be named.
macro_rules! compare_wide {
    ($at:ident, $r:ident, $($piece:literal),+) => {
        // SAFETY: as `one`; RBX is as before in the end.
        unsafe {
            asm!(
                "push {f}",
                "popfq",
                "xchg {b}, rbx",
                concat!($($piece),+, " [rdi]"),
                "xchg {b}, rbx",
                "pushfq",
                "pop {f}",
                b = inout(reg) $r.base => _,
                f = inout(reg) $r.flags,
                in("rdi") $at,
                in("rcx") $r.count,
                inout("rax") $r.accumulator,
                inout("rdx") $r.data,
            )
        }
    };
}

/// Runs an instruction on `bytes` bytes at `at`; none if it is not one of these.
///
/// # Safety
/// The memory is mapped and writable, and shared with others by raw accesses and atomics only.
pub(super) unsafe fn run(
    mnemonic: Mnemonic,
    lock: bool,
    at: *mut u8,
    bytes: usize,
    registers: &mut Registers,
) -> Option<()> {
    let mut r = Registers { flags: registers.flags & ARITHMETIC, ..*registers };
    match mnemonic {
        Mnemonic::Add => lockable!(lock, binary!(at, bytes, r, "add")),
        Mnemonic::Or => lockable!(lock, binary!(at, bytes, r, "or")),
        Mnemonic::Adc => lockable!(lock, binary!(at, bytes, r, "adc")),
        Mnemonic::Sbb => lockable!(lock, binary!(at, bytes, r, "sbb")),
        Mnemonic::And => lockable!(lock, binary!(at, bytes, r, "and")),
        Mnemonic::Sub => lockable!(lock, binary!(at, bytes, r, "sub")),
        Mnemonic::Xor => lockable!(lock, binary!(at, bytes, r, "xor")),
        Mnemonic::Xadd => lockable!(lock, binary!(at, bytes, r, "xadd")),
        Mnemonic::Cmpxchg => lockable!(lock, binary!(at, bytes, r, "cmpxchg")),
        // Always locked.
        Mnemonic::Xchg => binary!(at, bytes, r, "", "xchg"),
        Mnemonic::Bts => lockable!(lock, wide!(at, bytes, r, "bts")),
        Mnemonic::Btr => lockable!(lock, wide!(at, bytes, r, "btr")),
        Mnemonic::Btc => lockable!(lock, wide!(at, bytes, r, "btc")),
        Mnemonic::Inc => lockable!(lock, unary!(at, bytes, r, "inc")),
        Mnemonic::Dec => lockable!(lock, unary!(at, bytes, r, "dec")),
        Mnemonic::Neg => lockable!(lock, unary!(at, bytes, r, "neg")),
        Mnemonic::Not => lockable!(lock, unary!(at, bytes, r, "not")),
        Mnemonic::Rol => shift!(at, bytes, r, "rol"),
        Mnemonic::Ror => shift!(at, bytes, r, "ror"),
        Mnemonic::Rcl => shift!(at, bytes, r, "rcl"),
        Mnemonic::Rcr => shift!(at, bytes, r, "rcr"),
        Mnemonic::Shl | Mnemonic::Sal => shift!(at, bytes, r, "shl"),
        Mnemonic::Shr => shift!(at, bytes, r, "shr"),
        Mnemonic::Sar => shift!(at, bytes, r, "sar"),
        Mnemonic::Shld => wide!(at, bytes, r, "", "shld", ", cl"),
        Mnemonic::Shrd => wide!(at, bytes, r, "", "shrd", ", cl"),
        Mnemonic::Cmpxchg8b if lock => compare_wide!(at, r, "lock cmpxchg8b"),
        Mnemonic::Cmpxchg8b => compare_wide!(at, r, "cmpxchg8b"),
        Mnemonic::Cmpxchg16b if lock => compare_wide!(at, r, "lock cmpxchg16b"),
        Mnemonic::Cmpxchg16b => compare_wide!(at, r, "cmpxchg16b"),
        _ => return None,
    }
    *registers = r;
    Some(())
}
