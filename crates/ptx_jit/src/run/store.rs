//! Instructions that write memory, done by hand where the processor refused them.
//!
//! A sparse page ([`Window::map_sparse`]) can be mapped for reading, but nothing can be mapped so that writes vanish: in
//! machine code they fault, and yet are no errors. The fault handler then does what the interpreter does for every access:
//! it performs the instruction through the window's checked methods, and goes on behind it. That costs a signal for
//! each write to a sparse page (about 2 µs), and programs that have no such pages nothing.
//!
//! For this it has to know the instruction. It knows a closed list: what Cranelift makes of `store`, of a load, an
//! operation and a store to one place, and of atomics, and what rustc makes of the same in `helpers`. Whatever else faults
//! is not touched, and the fault stays one. Decoding is exact, where the alternatives are not: source locations of
//! Cranelift name ranges with other instructions in them, and a writable page in place of the sparse one would show other
//! threads what was written.
//!
//! The flags of arithmetic are left as they were: nobody reads those of an operation on memory. `cmpxchg` sets ZF.

use hostmem::{PAGE, Window};

/// Zero flag, in the flags register.
const ZF: i64 = 1 << 6;

/// Where an instruction's operand lies: register numbers, as encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    base: Option<usize>,
    /// The register, and how far its value is shifted.
    index: Option<(usize, u32)>,
    displacement: i64,
}

impl Place {
    fn address(&self, context: &libc::mcontext_t) -> u64 {
        let base = self.base.map_or(0, |number| register(context, number));
        let index = self.index.map_or(0, |(number, shift)| register(context, number) << shift);
        base.wrapping_add(index).wrapping_add_signed(self.displacement)
    }
}

/// What an instruction writes, or combines with what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Register(usize),
    Immediate(i64),
    /// A vector register, from a byte on.
    Vector(usize, usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Combine {
    Add,
    Or,
    And,
    Sub,
    Xor,
}

/// What an instruction does with its memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Store(Source),
    Combine(Combine, Source),
    /// `xchg`: the register takes the old value.
    Exchange(usize),
    /// `xadd`: as well.
    ExchangeAdd(usize),
    /// `cmpxchg`: RAX takes the old value, if it differs from RAX.
    CompareExchange(usize),
}

/// An instruction that writes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Instruction {
    place: Place,
    /// Bytes of the operand.
    bytes: u32,
    what: What,
    /// Bytes of the instruction.
    len: usize,
}

/// Bytes of an instruction, one after the other.
struct Fetch<F> {
    byte: F,
    len: usize,
}

impl<F: FnMut(usize) -> u8> Fetch<F> {
    fn byte(&mut self) -> u8 {
        self.len += 1;
        (self.byte)(self.len - 1)
    }

    /// A little-endian number, sign-extended.
    fn number(&mut self, bytes: u32) -> i64 {
        let value = (0..bytes).fold(0, |value, i| value | u64::from(self.byte()) << (8 * i));
        let unused = 64 - 8 * bytes;
        (value << unused).cast_signed() >> unused
    }
}

/// Prefixes, of the old encoding or VEX.
#[derive(Clone, Copy, Default)]
struct Prefix {
    lock: bool,
    /// The one that selects among vector instructions: 0, 0x66, 0xf3 or 0xf2.
    select: u8,
    wide: bool,
    /// High bits of the register, index and base.
    r: usize,
    x: usize,
    b: usize,
    rex: bool,
    vex: bool,
    /// Opcode map: 0, 1 (`0f`) or 3 (`0f 3a`).
    map: u8,
}

/// Decodes the instruction whose bytes `byte` gives; it is asked for no byte behind its end. `None` if it is not on the list.
fn decode(byte: impl FnMut(usize) -> u8) -> Option<Instruction> {
    let mut code = Fetch { byte, len: 0 };
    let (p, opcode) = prefixes(&mut code)?;
    // Those that have an operand in memory at all.
    let listed = match p.map {
        0 => [0x01, 0x09, 0x21, 0x29, 0x31, 0x81, 0x83, 0x87, 0x88, 0x89, 0xc6, 0xc7].contains(&opcode),
        1 => [0x11, 0x13, 0x17, 0x29, 0x7e, 0x7f, 0xb1, 0xc1, 0xd6].contains(&opcode),
        3 => matches!(opcode, 0x14..=0x17),
        _ => false,
    };
    if !listed {
        return None;
    }
    let modrm = code.byte();
    let (mode, field) = (modrm >> 6, usize::from(modrm >> 3 & 7));
    if mode == 3 {
        return None;
    }
    let place = place(&mut code, &p, mode, modrm & 7)?;
    let register = field | p.r << 3;
    let size = if p.wide {
        8
    } else if p.select == 0x66 {
        2
    } else {
        4
    };
    let general = !p.vex && matches!(p.select, 0 | 0x66);
    let combine = |number| {
        Some(match number {
            0 => Combine::Add,
            1 => Combine::Or,
            4 => Combine::And,
            5 => Combine::Sub,
            6 => Combine::Xor,
            _ => return None,
        })
    };
    let vector = |bytes, from| (bytes, What::Store(Source::Vector(register, from)));
    let (bytes, what) = match (p.map, opcode) {
        // Without REX, some numbers would name second bytes of registers.
        (0, 0x88) if general && (p.rex || register < 4) => (1, What::Store(Source::Register(register))),
        (0, 0x89) if general => (size, What::Store(Source::Register(register))),
        (0, 0xc6) if general && field == 0 => (1, What::Store(Source::Immediate(code.number(1)))),
        (0, 0xc7) if general && field == 0 => (size, What::Store(Source::Immediate(code.number(size.min(4))))),
        (0, 0x01 | 0x09 | 0x21 | 0x29 | 0x31) if general => {
            (size, What::Combine(combine(opcode >> 3)?, Source::Register(register)))
        }
        (0, 0x81 | 0x83) if general => {
            let immediate = code.number(if opcode == 0x83 { 1 } else { size.min(4) });
            (size, What::Combine(combine(field as u8)?, Source::Immediate(immediate)))
        }
        (0, 0x87) if general => (size, What::Exchange(register)),
        (1, 0xc1) if general => (size, What::ExchangeAdd(register)),
        (1, 0xb1) if general => (size, What::CompareExchange(register)),
        (1, 0x11) if p.select == 0xf3 => vector(4, 0),
        (1, 0x11) if p.select == 0xf2 => vector(8, 0),
        (1, 0x11 | 0x29) if matches!(p.select, 0 | 0x66) => vector(16, 0),
        (1, 0x7f) if matches!(p.select, 0x66 | 0xf3) => vector(16, 0),
        (1, 0x13) if matches!(p.select, 0 | 0x66) => vector(8, 0),
        (1, 0x17) if matches!(p.select, 0 | 0x66) => vector(8, 8),
        (1, 0x7e) if p.select == 0x66 => vector(if p.wide { 8 } else { 4 }, 0),
        (1, 0xd6) if p.select == 0x66 => vector(8, 0),
        (3, 0x14..=0x17) if p.select == 0x66 => {
            let bytes = match opcode {
                0x14 => 1,
                0x15 => 2,
                0x16 if p.wide => 8,
                _ => 4,
            };
            let lane = usize::from(code.byte()) % (16 / bytes as usize);
            vector(bytes, lane * bytes as usize)
        }
        _ => return None,
    };
    let may_lock = !matches!(what, What::Store(_));
    (!p.lock || may_lock).then_some(Instruction { place, bytes, what, len: code.len })
}

/// Prefixes and the opcode.
fn prefixes<F: FnMut(usize) -> u8>(code: &mut Fetch<F>) -> Option<(Prefix, u8)> {
    const MOST: usize = 4;
    let mut p = Prefix::default();
    let mut byte = code.byte();
    while matches!(byte, 0x66 | 0xf2 | 0xf3 | 0xf0) && code.len <= MOST {
        match byte {
            0xf0 => p.lock = true,
            // The others come before it in what they select.
            0x66 if p.select != 0 => {}
            select => p.select = select,
        }
        byte = code.byte();
    }
    if matches!(byte, 0xc4 | 0xc5) {
        if code.len > 1 {
            return None;
        }
        p.vex = true;
        let first = code.byte();
        let mut last = first;
        p.map = 1;
        p.r = usize::from(first >> 7 ^ 1);
        if byte == 0xc4 {
            p.x = usize::from(first >> 6 & 1 ^ 1);
            p.b = usize::from(first >> 5 & 1 ^ 1);
            p.map = first & 0x1f;
            last = code.byte();
            p.wide = last >> 7 != 0;
        }
        p.select = [0, 0x66, 0xf3, 0xf2][usize::from(last & 3)];
        // No second source, 128 bits.
        return (last & 0x7c == 0x78).then(|| (p, code.byte()));
    }
    if byte & 0xf0 == 0x40 {
        p.rex = true;
        p.wide = byte & 8 != 0;
        [p.r, p.x, p.b] = [2, 1, 0].map(|bit| usize::from(byte >> bit & 1));
        byte = code.byte();
    }
    if byte == 0x0f {
        byte = code.byte();
        p.map = 1;
        if byte == 0x3a {
            byte = code.byte();
            p.map = 3;
        }
    }
    Some((p, byte))
}

/// The memory operand.
fn place<F: FnMut(usize) -> u8>(code: &mut Fetch<F>, p: &Prefix, mode: u8, rm: u8) -> Option<Place> {
    let (mut base, mut index) = (Some(usize::from(rm) | p.b << 3), None);
    let mut low = rm;
    if rm == 4 {
        let sib = code.byte();
        low = sib & 7;
        base = Some(usize::from(low) | p.b << 3);
        let number = usize::from(sib >> 3 & 7) | p.x << 3;
        index = (number != 4).then_some((number, u32::from(sib >> 6)));
    }
    let bytes = match mode {
        0 if low == 5 && rm == 4 => {
            base = None;
            4
        }
        // Relative to the instruction: no tenant's memory lies there.
        0 if low == 5 => return None,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    let displacement = if bytes == 0 { 0 } else { code.number(bytes) };
    Some(Place { base, index, displacement })
}

/// Place of a general register, by its number in instructions, among the registers of a signal's context.
pub(super) const GENERAL: [i32; 16] = [
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

fn register(context: &libc::mcontext_t, number: usize) -> u64 {
    context.gregs[GENERAL[number] as usize].cast_unsigned()
}

/// Sets the lower bytes of a register, as an instruction of that size does.
fn set_register(context: &mut libc::mcontext_t, number: usize, bytes: u32, value: u64) {
    let register = &mut context.gregs[GENERAL[number] as usize];
    *register = match bytes {
        2 => register.cast_unsigned() & !0xffff | value & 0xffff,
        4 => value & 0xffff_ffff,
        _ => value,
    }
    .cast_signed();
}

/// The first bytes of a value.
fn cut(bytes: u32, value: u64) -> u64 {
    value & u64::MAX >> (64 - 8 * bytes)
}

/// The bytes of a source, as many as the instruction writes.
fn value(context: &libc::mcontext_t, source: Source) -> Option<[u8; 16]> {
    let small = |value: u64| {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&value.to_le_bytes());
        out
    };
    Some(match source {
        Source::Register(number) => small(register(context, number)),
        Source::Immediate(value) => small(value.cast_unsigned()),
        Source::Vector(number, from) => {
            // SAFETY: the kernel's context has the processor's vector registers, or no pointer to them.
            let vectors = unsafe { context.fpregs.as_ref() }?;
            let mut out = [0; 16];
            for (bytes, word) in out.chunks_exact_mut(4).zip(vectors._xmm[number].element) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            out.rotate_left(from);
            out
        }
    })
}

/// What came of [`perform`].
pub(super) enum Performed {
    /// The context stands behind the instruction.
    Done,
    /// The window refuses it, first at this offset; nothing has changed.
    Refused(u64),
    /// The instruction is not on the list; nothing has changed.
    Unknown,
}

/// Performs the instruction at which the context stands on a window.
///
/// Takes the window's lock: the interrupted code must not hold it.
pub(super) fn perform(context: &mut libc::mcontext_t, window: &Window) -> Performed {
    let at = context.gregs[libc::REG_RIP as usize] as usize;
    let instruction = decode(|i| {
        let byte: *const u8 = std::ptr::with_exposed_provenance(at + i);
        // SAFETY: the processor has fetched the instruction from there, and no more of it is asked for.
        unsafe { byte.read() }
    });
    let Some(instruction) = instruction else { return Performed::Unknown };
    let offset = instruction.place.address(context).wrapping_sub(window.address() as u64);
    let bytes = u64::from(instruction.bytes);
    if window.probe(offset, bytes, true).is_err() {
        // It may be the second page that refuses.
        let here = bytes.min(PAGE - offset % PAGE);
        let second = window.probe(offset, here, true).is_ok();
        return Performed::Refused(if second { offset.wrapping_add(here) } else { offset });
    }
    if access(context, window, offset, &instruction).is_none() {
        return Performed::Unknown;
    }
    context.gregs[libc::REG_RIP as usize] += instruction.len as i64;
    Performed::Done
}

/// Does what the instruction does with memory and registers, but for moving on; `None` if that is not possible.
fn access(context: &mut libc::mcontext_t, window: &Window, offset: u64, instruction: &Instruction) -> Option<()> {
    let Instruction { bytes, what, .. } = *instruction;
    let update = |f: &dyn Fn(u64) -> u64| window.update(offset, bytes, &mut |old| cut(bytes, f(old))).ok();
    match what {
        What::Store(source) => window.write(offset, &value(context, source)?[..bytes as usize]).ok(),
        What::Combine(combine, source) => {
            let value = value(context, source)?;
            let value = u64::from_le_bytes(*value.first_chunk()?);
            update(&|old| match combine {
                Combine::Add => old.wrapping_add(value),
                Combine::Or => old | value,
                Combine::And => old & value,
                Combine::Sub => old.wrapping_sub(value),
                Combine::Xor => old ^ value,
            })
            .map(drop)
        }
        What::Exchange(number) => {
            let value = register(context, number);
            let old = update(&|_| value)?;
            set_register(context, number, bytes, old);
            Some(())
        }
        What::ExchangeAdd(number) => {
            let value = register(context, number);
            let old = update(&|old| old.wrapping_add(value))?;
            set_register(context, number, bytes, old);
            Some(())
        }
        What::CompareExchange(number) => {
            let (expected, new) = (cut(bytes, register(context, 0)), register(context, number));
            let old = update(&|old| if old == expected { new } else { old })?;
            let flags = &mut context.gregs[libc::REG_EFL as usize];
            *flags = if old == expected { *flags | ZF } else { *flags & !ZF };
            if old != expected {
                set_register(context, 0, bytes, old);
            }
            Some(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], base: usize, index: Option<(usize, u32)>, displacement: i64, size: u32, what: What) {
        let place = Place { base: Some(base), index, displacement };
        let expect = Instruction { place, bytes: size, what, len: bytes.len() };
        assert_eq!(decode(|i| bytes[i]), Some(expect), "{bytes:02x?}");
    }

    #[test]
    fn instructions_are_what_the_processor_takes_them_for() {
        use Source::{Immediate, Register, Vector};
        use What::{CompareExchange, Exchange, ExchangeAdd, Store};
        let combine = What::Combine;
        // Assembled with GNU as.
        check(&[0x88, 0x07], 7, None, 0, 1, Store(Register(0)));
        check(&[0x40, 0x88, 0x70, 0x05], 0, None, 5, 1, Store(Register(6)));
        check(&[0x66, 0x89, 0x0e], 6, None, 0, 2, Store(Register(1)));
        check(&[0x89, 0x4c, 0x86, 0xfc], 6, Some((0, 2)), -4, 4, Store(Register(1)));
        check(&[0x4d, 0x89, 0x84, 0x24, 0, 1, 0, 0], 12, None, 256, 8, Store(Register(8)));
        check(&[0x4b, 0x89, 0x44, 0x25, 0x10], 13, Some((12, 0)), 16, 8, Store(Register(0)));
        check(&[0xc6, 0x03, 0xff], 3, None, 0, 1, Store(Immediate(-1)));
        check(&[0x66, 0xc7, 0x03, 0x34, 0x12], 3, None, 0, 2, Store(Immediate(0x1234)));
        check(&[0x41, 0xc7, 0x45, 0x00, 1, 2, 3, 4], 13, None, 0, 4, Store(Immediate(0x0403_0201)));
        check(&[0x48, 0xc7, 0x03, 0xfe, 0xff, 0xff, 0xff], 3, None, 0, 8, Store(Immediate(-2)));
        check(&[0x0f, 0x11, 0x0f], 7, None, 0, 16, Store(Vector(1, 0)));
        check(&[0x44, 0x0f, 0x29, 0x1f], 7, None, 0, 16, Store(Vector(11, 0)));
        check(&[0x66, 0x0f, 0x11, 0x0f], 7, None, 0, 16, Store(Vector(1, 0)));
        check(&[0xf3, 0x0f, 0x7f, 0x47, 0x10], 7, None, 16, 16, Store(Vector(0, 0)));
        check(&[0xf3, 0x45, 0x0f, 0x11, 0x00], 8, None, 0, 4, Store(Vector(8, 0)));
        check(&[0xf2, 0x0f, 0x11, 0x07], 7, None, 0, 8, Store(Vector(0, 0)));
        check(&[0x0f, 0x17, 0x07], 7, None, 0, 8, Store(Vector(0, 8)));
        check(&[0x66, 0x0f, 0x7e, 0x07], 7, None, 0, 4, Store(Vector(0, 0)));
        check(&[0x66, 0x48, 0x0f, 0x7e, 0x07], 7, None, 0, 8, Store(Vector(0, 0)));
        check(&[0x66, 0x0f, 0xd6, 0x07], 7, None, 0, 8, Store(Vector(0, 0)));
        check(&[0x66, 0x0f, 0x3a, 0x14, 0x07, 3], 7, None, 0, 1, Store(Vector(0, 3)));
        check(&[0x66, 0x0f, 0x3a, 0x16, 0x07, 3], 7, None, 0, 4, Store(Vector(0, 12)));
        check(&[0x66, 0x48, 0x0f, 0x3a, 0x16, 0x07, 1], 7, None, 0, 8, Store(Vector(0, 8)));
        check(&[0xc5, 0xf8, 0x11, 0x07], 7, None, 0, 16, Store(Vector(0, 0)));
        check(&[0xc5, 0x7a, 0x7f, 0x3f], 7, None, 0, 16, Store(Vector(15, 0)));
        check(&[0xc5, 0xfa, 0x11, 0x07], 7, None, 0, 4, Store(Vector(0, 0)));
        check(&[0xc4, 0x41, 0x7b, 0x11, 0x04, 0x08], 8, Some((1, 0)), 0, 8, Store(Vector(8, 0)));
        check(&[0xc4, 0xe3, 0x79, 0x15, 0x07, 5], 7, None, 0, 2, Store(Vector(0, 10)));
        check(&[0xc4, 0xe3, 0xf9, 0x16, 0x07, 0], 7, None, 0, 8, Store(Vector(0, 0)));
        check(&[0x01, 0x07], 7, None, 0, 4, combine(Combine::Add, Register(0)));
        check(&[0x4c, 0x31, 0x07], 7, None, 0, 8, combine(Combine::Xor, Register(8)));
        check(&[0x83, 0x2f, 0x01], 7, None, 0, 4, combine(Combine::Sub, Immediate(1)));
        check(&[0xf0, 0x81, 0x27, 0, 1, 0, 0], 7, None, 0, 4, combine(Combine::And, Immediate(256)));
        check(&[0xf0, 0x48, 0x09, 0x07], 7, None, 0, 8, combine(Combine::Or, Register(0)));
        check(&[0xf0, 0x0f, 0xc1, 0x07], 7, None, 0, 4, ExchangeAdd(0));
        check(&[0x66, 0xf0, 0x0f, 0xb1, 0x0f], 7, None, 0, 2, CompareExchange(1));
        check(&[0xf0, 0x4d, 0x0f, 0xb1, 0x08], 8, None, 0, 8, CompareExchange(9));
        check(&[0x48, 0x87, 0x07], 7, None, 0, 8, Exchange(0));
    }

    #[test]
    fn what_is_not_on_the_list_is_left_alone() {
        for bytes in [
            &[0x89, 0xc7][..],                           // to a register
            &[0x89, 0x05, 0, 0, 0, 0],                   // relative to the instruction
            &[0x88, 0x27],                               // ah
            &[0xf0, 0x89, 0x07],                         // no such instruction
            &[0x64, 0x89, 0x07],                         // another segment
            &[0xc5, 0xfc, 0x11, 0x07],                   // 256 bits
            &[0x0f, 0xc3, 0x07],                         // movnti
            &[0xf3, 0xa4],                               // a string of bytes
            &[0x8b, 0x07],                               // a load
            &[0x83, 0x17, 0x01],                         // adc
            &[0x62, 0xf1, 0x7c, 0x48, 0x11, 0x07],       // EVEX
            &[0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66], // no end
        ] {
            assert_eq!(decode(|i| bytes[i]), None, "{bytes:02x?}");
        }
    }
}
