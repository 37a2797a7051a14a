//! The registers of the thread that was interrupted, in the frame that the kernel made of them.
//!
//! Vector registers are where `xsave` puts them: the first 512 bytes as `fxsave` lays them out, behind them a header that says
//! which parts are there, behind that the parts, each at the place that `cpuid` names. A part that is not there is all zeros.

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use iced_x86::Register;

/// Flags of arithmetic: carry, parity, adjust, zero, sign, overflow.
pub(super) const ARITHMETIC: u64 = 0x8d5;
/// Direction flag.
pub(super) const DF: u64 = 1 << 10;

/// `FP_XSTATE_MAGIC1`: behind the first 512 bytes there is more.
const EXTENDED: u32 = 0x4650_5853;
/// Offset of what the kernel says of that, in the first 512 bytes: the magic number; bytes in all; parts; bytes of them.
const SAYS: usize = 464;
/// Offset of the header, which begins with the parts that are there.
const HEADER: usize = 512;

/// Parts: the first 16 bytes of vector registers 0 to 15; the second 16 of these; masks; bytes 32 to 63 of these; all
/// 64 bytes of registers 16 to 31.
const SSE: usize = 1;
const AVX: usize = 2;
const MASKS: usize = 5;
const ZMM_HIGH: usize = 6;
const ZMM_16: usize = 7;

/// Bytes of a vector register.
pub(super) const VECTOR: usize = 64;

/// Where the parts are: offsets by number. `cpuid` leaves a virtual machine for its answers, so they are asked for once,
/// before the first fault.
static PARTS: OnceLock<[usize; 8]> = OnceLock::new();

/// Learns the layout.
pub(super) fn prepare() {
    PARTS.get_or_init(|| {
        let mut parts = [0; 8];
        if __cpuid_count(0, 0).eax >= 0xd {
            for (number, part) in parts.iter_mut().enumerate().skip(AVX) {
                *part = __cpuid_count(0xd, number as u32).ebx as usize;
            }
        }
        parts
    });
}

/// Order of the general registers in instructions, as places in the frame.
const GENERAL: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// The state of the thread that was interrupted.
pub(super) struct Machine<'a> {
    general: &'a mut [libc::greg_t; 23],
    /// Null, or the area that `xsave` wrote.
    vectors: *const u8,
    /// Bytes of it.
    vector_bytes: usize,
}

impl<'a> Machine<'a> {
    pub(super) fn new(context: &'a mut libc::ucontext_t) -> Machine<'a> {
        let vectors: *const u8 = context.uc_mcontext.fpregs.cast_const().cast();
        let mut machine = Machine { general: &mut context.uc_mcontext.gregs, vectors, vector_bytes: 0 };
        if !vectors.is_null() {
            machine.vector_bytes = HEADER;
            let [magic, bytes, _, _] = machine.bytes_of(SAYS).map_or([0; 4], |says: [u8; 16]| {
                [0, 4, 8, 12].map(|at| u32::from_le_bytes([says[at], says[at + 1], says[at + 2], says[at + 3]]))
            });
            if magic == EXTENDED {
                machine.vector_bytes = bytes as usize;
            }
        }
        machine
    }

    pub(super) fn rip(&self) -> u64 {
        self.general[libc::REG_RIP as usize].cast_unsigned()
    }

    /// Goes on at another instruction.
    pub(super) fn set_rip(&mut self, address: u64) {
        self.general[libc::REG_RIP as usize] = address.cast_signed();
    }

    pub(super) fn flags(&self) -> u64 {
        self.general[libc::REG_EFL as usize].cast_unsigned()
    }

    /// Sets the flags of arithmetic; the others stay.
    pub(super) fn set_arithmetic(&mut self, flags: u64) {
        let flags = self.flags() & !ARITHMETIC | flags & ARITHMETIC;
        self.general[libc::REG_EFL as usize] = flags.cast_signed();
    }

    /// All of a general register, of which `register` may be a part.
    pub(super) fn whole(&self, register: Register) -> Option<u64> {
        let place = GENERAL.get(register.is_gpr().then(|| register.full_register().number())?)?;
        Some(self.general[*place as usize].cast_unsigned())
    }

    pub(super) fn set_whole(&mut self, register: Register, value: u64) -> Option<()> {
        let place = GENERAL.get(register.is_gpr().then(|| register.full_register().number())?)?;
        self.general[*place as usize] = value.cast_signed();
        Some(())
    }

    /// A general register, or the part that is named, in the lowest bits; what is above means nothing.
    pub(super) fn general(&self, register: Register) -> Option<u64> {
        Some(self.whole(register)? >> high_byte(register))
    }

    /// Sets what is named. `value` has, above it, what the processor would leave there.
    pub(super) fn set_general(&mut self, register: Register, value: u64) -> Option<()> {
        let shift = high_byte(register);
        if shift == 0 {
            return self.set_whole(register, value);
        }
        let whole = self.whole(register)? & !(0xff << shift) | (value & 0xff) << shift;
        self.set_whole(register, whole)
    }

    /// A register's value as a part of an address.
    pub(super) fn for_address(&self, register: Register) -> Option<u64> {
        match register {
            Register::DS | Register::ES | Register::SS | Register::CS => Some(0),
            register if register.is_gpr64() => self.whole(register),
            register if register.is_gpr32() => self.whole(register).map(|whole| whole & u64::from(u32::MAX)),
            _ => None,
        }
    }

    /// A vector register; of short ones the part above means nothing.
    pub(super) fn vector(&self, register: Register) -> Option<[u8; VECTOR]> {
        let mut value = [0; VECTOR];
        if register.is_mm() {
            value[..8].copy_from_slice(&self.bytes_of::<8>(32 + register.number() * 16)?);
            return Some(value);
        }
        if !register.is_vector_register() {
            return None;
        }
        let number = register.number();
        if number >= 16 {
            return self.part(ZMM_16, (number - 16) * VECTOR);
        }
        if self.there() & 1 << SSE != 0 {
            value[..16].copy_from_slice(&self.bytes_of::<16>(160 + number * 16)?);
        }
        // Short registers are there on processors that have no long ones.
        if !register.is_xmm() {
            value[16..32].copy_from_slice(&self.part::<16>(AVX, number * 16)?);
        }
        if register.is_zmm() {
            value[32..].copy_from_slice(&self.part::<32>(ZMM_HIGH, number * 32)?);
        }
        Some(value)
    }

    /// A mask register.
    pub(super) fn mask(&self, register: Register) -> Option<u64> {
        let mask = self.part::<8>(MASKS, register.is_k().then(|| register.number() * 8)?)?;
        Some(u64::from_le_bytes(mask))
    }

    /// Parts that are there.
    fn there(&self) -> u64 {
        if self.vector_bytes <= HEADER {
            return 1 << SSE;
        }
        self.bytes_of(HEADER).map_or(0, u64::from_le_bytes)
    }

    fn part<const N: usize>(&self, part: usize, offset: usize) -> Option<[u8; N]> {
        if self.there() & 1 << part == 0 {
            return Some([0; N]);
        }
        let start = *PARTS.get()?.get(part)?;
        self.bytes_of((start > HEADER).then_some(start)? + offset)
    }

    fn bytes_of<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        if self.vectors.is_null() || offset + N > self.vector_bytes {
            return None;
        }
        let mut bytes = [0; N];
        let from = self.vectors.wrapping_add(offset);
        // SAFETY: inside the area that the kernel has written and told the size of; it stays as long as the handler runs.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), N) };
        Some(bytes)
    }
}

/// How far a register lies above the beginning of the whole one.
fn high_byte(register: Register) -> u32 {
    match register {
        Register::AH | Register::CH | Register::DH | Register::BH => 8,
        _ => 0,
    }
}
