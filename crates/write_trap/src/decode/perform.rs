//! What an instruction writes, done on the other mapping.

use std::arch::asm;

use hostmem::PAGE;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use super::combine::{self, Registers};
use super::machine::{DF, Machine, VECTOR};

/// The watched mapping, as an instruction needs it.
pub(super) trait Target {
    /// Where these bytes are in the other mapping, if all of them are inside.
    fn place(&self, address: u64, bytes: u64) -> Option<*mut u8>;

    /// Is this an address of a page that is watched?
    fn is_watched(&self, address: u64) -> bool;

    /// Bytes inside have been written. It is called behind the write: whoever hears of it sees the bytes.
    fn stored(&self, address: u64, bytes: u64);
}

/// Does what `instruction` says, of which the write to `fault` was refused; gives the address to go on at. None if it does not
/// know how: then nothing has been done.
pub(super) fn perform(
    instruction: &Instruction,
    machine: &mut Machine<'_>,
    target: &impl Target,
    fault: u64,
) -> Option<u64> {
    if let Some((copies, size)) = string(instruction.code()) {
        return run_string(instruction, machine, target, fault, copies, size);
    }
    // Of two memory operands none is known but those of strings.
    let bytes = match instruction.op0_kind() {
        OpKind::Memory => instruction.memory_size().size(),
        OpKind::MemorySegRDI => instruction.op1_register().size(),
        _ => return None,
    };
    let address = instruction.virtual_address(0, 0, |register, _, _| machine.for_address(register))?;
    if bytes == 0 || bytes > VECTOR || fault.wrapping_sub(address) >= bytes as u64 {
        return None;
    }
    let place = target.place(address, bytes as u64)?;
    if let Some(value) = value_of(instruction, machine, bytes) {
        write(&value, bytes, address, place, target);
    } else {
        combine(instruction, machine, bytes, place)?;
        target.stored(address, bytes as u64);
    }
    Some(instruction.next_ip())
}

/// What a store stores.
struct Value {
    bytes: [u8; VECTOR],
    /// Bytes of an element, and which elements are stored; none if all are.
    mask: Option<(usize, u64)>,
}

impl Value {
    fn whole(value: u64) -> Value {
        let mut bytes = [0; VECTOR];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        Value { bytes, mask: None }
    }

    /// Elements whose highest bit is set in `chooser`.
    fn chosen(bytes: [u8; VECTOR], chooser: &[u8; VECTOR], element: usize) -> Value {
        let highest = chooser.chunks(element).map(|element| element.last().is_some_and(|byte| byte & 0x80 != 0));
        let mask = highest.enumerate().fold(0, |mask, (at, set)| mask | u64::from(set) << at);
        Value { bytes, mask: Some((element, mask)) }
    }
}

/// What an instruction stores; none if it is not a mere store.
fn value_of(instruction: &Instruction, machine: &Machine<'_>, bytes: usize) -> Option<Value> {
    use Mnemonic as M;
    let vector = |operand: u32| machine.vector(instruction.op_register(operand));
    match instruction.mnemonic() {
        M::Mov | M::Movnti | M::Movdiri => operand(instruction, machine, 1).map(Value::whole),
        M::Movbe => Some(Value::whole(operand(instruction, machine, 1)?.swap_bytes() >> (64 - 8 * bytes))),
        M::Movd
        | M::Movq
        | M::Movaps
        | M::Movups
        | M::Movapd
        | M::Movupd
        | M::Movdqa
        | M::Movdqu
        | M::Movss
        | M::Movsd
        | M::Movlps
        | M::Movlpd
        | M::Movntps
        | M::Movntpd
        | M::Movntdq
        | M::Movntq
        | M::Movntss
        | M::Movntsd
        | M::Vmovd
        | M::Vmovq
        | M::Vmovw
        | M::Vmovaps
        | M::Vmovups
        | M::Vmovapd
        | M::Vmovupd
        | M::Vmovdqa
        | M::Vmovdqu
        | M::Vmovdqa32
        | M::Vmovdqa64
        | M::Vmovdqu8
        | M::Vmovdqu16
        | M::Vmovdqu32
        | M::Vmovdqu64
        | M::Vmovss
        | M::Vmovsd
        | M::Vmovsh
        | M::Vmovlps
        | M::Vmovlpd
        | M::Vmovntps
        | M::Vmovntpd
        | M::Vmovntdq => masked(instruction, machine, vector(1)?, 0),
        M::Movhps | M::Movhpd | M::Vmovhps | M::Vmovhpd => masked(instruction, machine, vector(1)?, 8),
        M::Pextrb
        | M::Pextrw
        | M::Pextrd
        | M::Pextrq
        | M::Extractps
        | M::Vpextrb
        | M::Vpextrw
        | M::Vpextrd
        | M::Vpextrq
        | M::Vextractps => masked(instruction, machine, vector(1)?, part(instruction, bytes, 16)),
        M::Vextractf128
        | M::Vextracti128
        | M::Vextractf32x4
        | M::Vextracti32x4
        | M::Vextractf64x2
        | M::Vextracti64x2
        | M::Vextractf32x8
        | M::Vextracti32x8
        | M::Vextractf64x4
        | M::Vextracti64x4 => {
            let of = instruction.op1_register().size();
            masked(instruction, machine, vector(1)?, part(instruction, bytes, of))
        }
        M::Vmaskmovps | M::Vpmaskmovd => Some(Value::chosen(vector(2)?, &vector(1)?, 4)),
        M::Vmaskmovpd | M::Vpmaskmovq => Some(Value::chosen(vector(2)?, &vector(1)?, 8)),
        M::Maskmovq | M::Maskmovdqu | M::Vmaskmovdqu => Some(Value::chosen(vector(1)?, &vector(2)?, 1)),
        mnemonic => condition(mnemonic, machine.flags()).map(|holds| Value::whole(holds.into())),
    }
}

/// Of the part of a vector from a byte on, the elements that the mask register chooses, if there is one.
fn masked(instruction: &Instruction, machine: &Machine<'_>, mut bytes: [u8; VECTOR], from: usize) -> Option<Value> {
    bytes.copy_within(from.., 0);
    let mask = match instruction.op_mask() {
        Register::None => None,
        mask => Some((instruction.memory_size().element_size(), machine.mask(mask)?)),
    };
    Some(Value { bytes, mask })
}

/// Where the part of so many bytes begins that the immediate names, in a register of `of` bytes.
fn part(instruction: &Instruction, bytes: usize, of: usize) -> usize {
    usize::from(instruction.immediate8()) % (of / bytes) * bytes
}

/// A general register or an immediate.
fn operand(instruction: &Instruction, machine: &Machine<'_>, number: u32) -> Option<u64> {
    match instruction.op_kind(number) {
        OpKind::Register => machine.general(instruction.op_register(number)),
        kind => is_immediate(kind).then(|| instruction.immediate(number)),
    }
}

fn is_immediate(kind: OpKind) -> bool {
    use OpKind as K;
    matches!(
        kind,
        K::Immediate8
            | K::Immediate8_2nd
            | K::Immediate16
            | K::Immediate32
            | K::Immediate64
            | K::Immediate8to16
            | K::Immediate8to32
            | K::Immediate8to64
            | K::Immediate32to64
    )
}

/// Whether the condition of a `setcc` holds.
fn condition(mnemonic: Mnemonic, flags: u64) -> Option<bool> {
    use Mnemonic as M;
    let flag = |bit: u32| flags >> bit & 1 != 0;
    let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
    Some(match mnemonic {
        M::Seto => overflow,
        M::Setno => !overflow,
        M::Setb => carry,
        M::Setae => !carry,
        M::Sete => zero,
        M::Setne => !zero,
        M::Setbe => carry || zero,
        M::Seta => !(carry || zero),
        M::Sets => sign,
        M::Setns => !sign,
        M::Setp => parity,
        M::Setnp => !parity,
        M::Setl => sign != overflow,
        M::Setge => sign == overflow,
        M::Setle => zero || sign != overflow,
        M::Setg => !zero && sign == overflow,
        _ => return None,
    })
}

/// Stores a value, and tells of it.
fn write(value: &Value, bytes: usize, address: u64, place: *mut u8, target: &impl Target) {
    let Some((element, mask)) = value.mask else {
        for (at, part) in value.bytes[..bytes].chunks(16).enumerate() {
            write_at_once(part, place.wrapping_add(at * 16));
        }
        return target.stored(address, bytes as u64);
    };
    for (at, part) in value.bytes[..bytes].chunks(element).enumerate().filter(|(at, _)| mask >> at & 1 != 0) {
        write_at_once(part, place.wrapping_add(at * element));
        target.stored(address + (at * element) as u64, element as u64);
    }
}

/// Stores 1, 2, 4, 8 or 16 bytes with one instruction: nobody sees a part of them, if nobody would have.
fn write_at_once(bytes: &[u8], to: *mut u8) {
    let mut low = [0; 8];
    let some = bytes.len().min(8);
    low[..some].copy_from_slice(&bytes[..some]);
    let low = u64::from_le_bytes(low);
    macro_rules! one {
        ($($instruction:tt)*) => {
            // SAFETY: `place` checked that the bytes are inside the other mapping, which is shared by raw accesses and atomics
            // only.
            unsafe { asm!($($instruction)*, to = in(reg) to, options(nostack, preserves_flags)) }
        };
    }
    match bytes.len() {
        1 => one!("mov byte ptr [{to}], {low}", low = in(reg_byte) low as u8),
        2 => one!("mov word ptr [{to}], {low:x}", low = in(reg) low),
        4 => one!("mov dword ptr [{to}], {low:e}", low = in(reg) low),
        8 => one!("mov qword ptr [{to}], {low:r}", low = in(reg) low),
        16 => one!("movups {v}, [{from}]", "movups [{to}], {v}", v = out(xmm_reg) _, from = in(reg) bytes.as_ptr()),
        _ => unreachable!("operands have 1, 2, 4 or 8 bytes, or several times 16"),
    }
}

/// Combines memory with registers or immediates.
fn combine(instruction: &Instruction, machine: &mut Machine<'_>, bytes: usize, place: *mut u8) -> Option<()> {
    use Mnemonic as M;
    let mnemonic = instruction.mnemonic();
    let general = |register| machine.whole(register);
    let mut registers = Registers {
        source: 0,
        accumulator: general(Register::RAX)?,
        count: general(Register::RCX)?,
        base: general(Register::RBX)?,
        data: general(Register::RDX)?,
        flags: machine.flags(),
    };
    match mnemonic {
        M::Inc | M::Dec | M::Neg | M::Not | M::Cmpxchg8b | M::Cmpxchg16b => {}
        M::Rol | M::Ror | M::Rcl | M::Rcr | M::Shl | M::Sal | M::Shr | M::Sar => {
            registers.count = operand(instruction, machine, 1)?;
        }
        M::Shld | M::Shrd => {
            registers.source = operand(instruction, machine, 1)?;
            registers.count = operand(instruction, machine, 2)?;
        }
        M::Bts | M::Btr | M::Btc => {
            // A register may name bits beyond the operand.
            let bit = is_immediate(instruction.op1_kind()).then(|| instruction.immediate(1))?;
            registers.source = bit % (8 * bytes as u64);
        }
        _ => registers.source = operand(instruction, machine, 1)?,
    }
    // SAFETY: `place` has checked that the bytes are inside the other mapping, which is shared by raw accesses and atomics only.
    unsafe { combine::run(mnemonic, instruction.has_lock_prefix(), place, bytes, &mut registers) }?;
    match mnemonic {
        M::Xchg | M::Xadd => machine.set_general(instruction.op1_register(), registers.source)?,
        M::Cmpxchg => machine.set_whole(Register::RAX, registers.accumulator)?,
        M::Cmpxchg8b | M::Cmpxchg16b => {
            machine.set_whole(Register::RAX, registers.accumulator)?;
            machine.set_whole(Register::RDX, registers.data)?;
        }
        _ => {}
    }
    machine.set_arithmetic(registers.flags);
    Some(())
}

/// Whether an instruction of strings copies, or else fills, and bytes of an element.
fn string(code: Code) -> Option<(bool, u64)> {
    Some(match code {
        Code::Movsb_m8_m8 => (true, 1),
        Code::Movsw_m16_m16 => (true, 2),
        Code::Movsd_m32_m32 => (true, 4),
        Code::Movsq_m64_m64 => (true, 8),
        Code::Stosb_m8_AL => (false, 1),
        Code::Stosw_m16_AX => (false, 2),
        Code::Stosd_m32_EAX => (false, 4),
        Code::Stosq_m64_RAX => (false, 8),
        _ => return None,
    })
}

/// How many of `most` elements of `size` bytes from `at` on, one at least, lie in its page and in those behind it that `more`
/// takes.
fn reach(at: u64, size: u64, most: u64, down: bool, more: impl Fn(u64) -> bool) -> u64 {
    let elements = |edge: u64| if down { (at + size - edge) / size } else { (edge - at) / size };
    let mut edge = if down { at } else { at + size - 1 } / PAGE * PAGE;
    if !down {
        edge += PAGE;
    }
    while elements(edge) < most && edge >= PAGE && more(if down { edge - PAGE } else { edge }) {
        edge = if down { edge - PAGE } else { edge + PAGE };
    }
    elements(edge).min(most)
}

/// Copies or fills, as far as watched pages go. Of what is read, only the page that the processor has just read: the next one
/// may not be there, and that fault is not ours.
fn run_string(
    instruction: &Instruction,
    machine: &mut Machine<'_>,
    target: &impl Target,
    fault: u64,
    copies: bool,
    size: u64,
) -> Option<u64> {
    let plain = |register| !matches!(register, Register::FS | Register::GS);
    let from_known = instruction.op1_kind() == OpKind::MemorySegRSI && plain(instruction.memory_segment());
    if instruction.op0_kind() != OpKind::MemoryESRDI || copies && !from_known {
        return None;
    }
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let (to, from) = (machine.whole(Register::RDI)?, machine.whole(Register::RSI)?);
    let left = if repeats { machine.whole(Register::RCX)? } else { 1 };
    let down = machine.flags() & DF != 0;
    if left == 0 || fault.wrapping_sub(to) >= size || to.checked_add(size).is_none() {
        return None;
    }
    let mut count = reach(to, size, left, down, |page| target.is_watched(page));
    if copies {
        from.checked_add(size)?;
        count = reach(from, size, count, down, |_| false);
    }
    let bytes = count * size;
    let lowest = |at: u64| if down { at + size - bytes } else { at };
    let place = target.place(lowest(to), bytes)?.wrapping_add((to - lowest(to)) as usize);
    let mut source = std::ptr::with_exposed_provenance(from as usize);
    if copies {
        // What is copied inside the mapping is copied inside the other one: so both overlap in the same way.
        let first = lowest(from);
        match target.place(first, bytes) {
            Some(inside) => source = inside.wrapping_add((from - first) as usize).cast_const(),
            None if target.place(first, 1).is_some() || target.place(first + bytes - 1, 1).is_some() => return None,
            None => {}
        }
    }
    // SAFETY: the destination is inside the other mapping; of the source, the processor has just read the page.
    unsafe { repeat(copies, size, down, count, place, source, machine.whole(Register::RAX)?) };
    target.stored(lowest(to), bytes);

    let moved = |at: u64| if down { at.wrapping_sub(bytes) } else { at.wrapping_add(bytes) };
    machine.set_whole(Register::RDI, moved(to))?;
    if copies {
        machine.set_whole(Register::RSI, moved(from))?;
    }
    if repeats {
        machine.set_whole(Register::RCX, left - count)?;
    }
    Some(if count < left && repeats { instruction.ip() } else { instruction.next_ip() })
}

/// # Safety
/// `count` elements of `size` bytes can be written at `to` and, if they are copied, read at `from`, in the direction that is
/// named, and are shared with others by raw accesses and atomics only.
unsafe fn repeat(copies: bool, size: u64, down: bool, count: u64, to: *mut u8, from: *const u8, value: u64) {
    macro_rules! run {
        ($name:literal) => {
            // SAFETY: as the caller promises; the direction is as it has to be in the end.
            unsafe {
                asm!(
                    "test {down:e}, {down:e}",
                    "jz 2f",
                    "std",
                    "2:",
                    concat!("rep ", $name),
                    "cld",
                    down = in(reg) u32::from(down),
                    inout("rcx") count => _,
                    inout("rdi") to => _,
                    inout("rsi") from => _,
                    in("rax") value,
                    options(nostack),
                )
            }
        };
    }
    match (copies, size) {
        (true, 1) => run!("movsb"),
        (true, 2) => run!("movsw"),
        (true, 4) => run!("movsd"),
        (true, _) => run!("movsq"),
        (false, 1) => run!("stosb"),
        (false, 2) => run!("stosw"),
        (false, 4) => run!("stosd"),
        (false, _) => run!("stosq"),
    }
}
