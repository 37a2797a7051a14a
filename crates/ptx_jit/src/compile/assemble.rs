//! Compiled functions, put one behind the other, with a list of what refers to what.

use std::collections::HashMap;
use std::sync::Arc;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{ExternalName, TrapCode, Type, types};
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::{Context, Final, FinalizedRelocTarget, MachBufferFinalized};
use parking_lot::Mutex;

use super::unsupported;
use crate::CompileError;
use crate::abi::Helper;
use crate::abi::place::Place;
use crate::emit::{ENTRIES, FETCH, HELPERS, transparent};
use crate::image::{Relocation, Target};

/// What is called when a function refers to something outside.
#[derive(Clone, Copy, Debug)]
enum Outside {
    Helper(Helper),
    /// The helper's entry that changes no register.
    Entry(Helper),
}

/// Functions begin with a cache line. Loops over much memory were seen to run a sixth slower in functions that begin in the
/// middle of one: what the processor foretells of an instruction's loads it keeps by that instruction's address.
const LINE: u32 = 64;

/// A compiled function that can lie anywhere.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    code: Vec<u8>,
    align: u32,
    /// Bytes of stack that it takes for itself, return address and saved registers included.
    pub(super) frame_bytes: u32,
    /// 64-bit addresses in the code, and what of.
    references: Vec<(u32, Outside)>,
    /// Instructions that access a tenant's memory, in order.
    places: Vec<(u32, Place)>,
}

impl Piece {
    /// Compiles the function in `context`.
    pub(super) fn compile(isa: &dyn TargetIsa, context: &mut Context) -> Result<Piece, CompileError> {
        let compiled = context.compile(isa, &mut ControlPlane::default());
        compiled.map_err(|e| unsupported(format!("{:?}", e.inner)))?;
        let buffer = match context.compiled_code() {
            Some(compiled) => &compiled.buffer,
            None => return Err(unsupported("a function without code")),
        };
        // Return address and frame pointer lie above what the layout counts.
        let frame = buffer.frame_layout().map(|layout| layout.frame_to_fp_offset + 16);
        let frame_bytes = frame.ok_or_else(|| unsupported("a function whose frame is not known"))?;
        let mut references = Vec::new();
        for reloc in buffer.relocs() {
            let name = match (&reloc.kind, &reloc.target, reloc.addend) {
                (Reloc::Abs8, FinalizedRelocTarget::ExternalName(ExternalName::User(name)), 0) => *name,
                _ => return Err(unsupported(format!("a relocation: {reloc:?}"))),
            };
            let name = &context.func.params.user_named_funcs()[name];
            let helper = *Helper::ALL.get(name.index as usize).ok_or_else(|| unsupported("a call of nothing"))?;
            let outside = match name.namespace {
                HELPERS => Outside::Helper(helper),
                ENTRIES => Outside::Entry(helper),
                _ => return Err(unsupported("a call of nothing")),
            };
            references.push((reloc.offset, outside));
        }
        let places = places(buffer);
        let mut code = buffer.data().to_vec();
        for trap in buffer.traps().iter().filter(|trap| trap.code == FETCH) {
            fetch_instead(&mut code[trap.offset as usize..])?;
        }
        Ok(Piece { code, align: buffer.alignment.max(LINE), frame_bytes, references, places })
    }
}

/// Which instructions access a tenant's memory, and what for, in order.
fn places(buffer: &MachBufferFinalized<Final>) -> Vec<(u32, Place)> {
    let mut ranges = buffer.get_srclocs_sorted();
    let mut found = Vec::new();
    for trap in buffer.traps().iter().filter(|trap| trap.code == TrapCode::HEAP_OUT_OF_BOUNDS) {
        while let [range, rest @ ..] = ranges
            && range.end <= trap.offset
        {
            ranges = rest;
        }
        let place = ranges.first().filter(|range| range.start <= trap.offset && !range.loc.is_default());
        found.push((trap.offset, place.map_or(Place::UNKNOWN, |range| Place(range.loc.bits()))));
    }
    found
}

/// Makes a fetch ([`FETCH`]) of a load of a byte: `movzx` and `prefetcht0` take the same address.
fn fetch_instead(load: &mut [u8]) -> Result<(), CompileError> {
    const REX: u8 = 0x40;
    // Of the prefix, the bits that belong to the address.
    const ADDRESS: u8 = 0b0011;
    let inst = match load {
        [rex, inst @ ..] if *rex & 0xf0 == REX => {
            *rex &= REX | ADDRESS;
            inst
        }
        inst => inst,
    };
    let [0x0f, op @ 0xb6, place, ..] = inst else { return Err(unsupported("a fetch that is no load of a byte")) };
    *op = 0x18;
    // Where the load's register stood is what caches it is for: all.
    *place = *place & 0b1100_0111 | 1 << 3;
    Ok(())
}

/// Code, and what belongs to it.
#[derive(Default)]
pub(super) struct Assembled {
    pub(super) code: Vec<u8>,
    pub(super) places: Vec<(u32, Place)>,
    pub(super) relocations: Vec<Relocation>,
}

/// Code that grows.
#[derive(Default)]
pub(super) struct Assembler {
    code: Vec<u8>,
    places: Vec<(u32, Place)>,
    relocations: Vec<Relocation>,
    /// Entries that are already there.
    entries: HashMap<Helper, u32>,
}

impl Assembler {
    /// Appends a function, behind the entries that it uses; says where it begins.
    pub(super) fn add(&mut self, isa: &dyn TargetIsa, piece: &Piece) -> Result<u32, CompileError> {
        for &(_, outside) in &piece.references {
            if let Outside::Entry(helper) = outside
                && !self.entries.contains_key(&helper)
            {
                let at = self.add(isa, &*entry(isa, helper)?)?;
                self.entries.insert(helper, at);
            }
        }
        let begin = self.code.len().next_multiple_of(piece.align as usize);
        let end = begin + piece.code.len();
        let too_long = || unsupported(format!("{end} bytes of machine code"));
        i32::try_from(end).map_err(|_| too_long())?;
        // What lies between two functions is not to be run.
        self.code.resize(begin, 0xcc);
        self.code.extend_from_slice(&piece.code);
        self.places.extend(piece.places.iter().map(|&(at, place)| (begin as u32 + at, place)));
        for &(at, outside) in &piece.references {
            let target = match outside {
                Outside::Helper(helper) => Target::Helper(helper),
                Outside::Entry(helper) => Target::Code(self.entries.get(&helper).copied().ok_or_else(too_long)?),
            };
            self.relocations.push(Relocation { at: begin as u32 + at, target });
        }
        Ok(begin as u32)
    }

    pub(super) fn finish(self) -> Assembled {
        let Assembler { code, places, relocations, .. } = self;
        Assembled { code, places, relocations }
    }
}

/// The entry to a helper, compiled once in a process.
fn entry(isa: &dyn TargetIsa, helper: Helper) -> Result<Arc<Piece>, CompileError> {
    static ENTRIES: Mutex<Vec<(Helper, Arc<Piece>)>> = Mutex::new(Vec::new());
    let mut entries = ENTRIES.lock();
    if let Some((_, piece)) = entries.iter().find(|(of, _)| *of == helper) {
        return Ok(Arc::clone(piece));
    }
    let mut context = Context::new();
    transparent::emit_entry(isa, &mut context, helper, params(helper)?);
    let piece = Arc::new(Piece::compile(isa, &mut context)?);
    entries.push((helper, Arc::clone(&piece)));
    Ok(piece)
}

/// What helpers that are called rarely take.
fn params(helper: Helper) -> Result<&'static [Type], CompileError> {
    const LONG: Type = types::I64;
    const WORD: Type = types::I32;
    Ok(match helper {
        Helper::Preempt => &[LONG],
        Helper::Resolve => &[LONG, WORD, LONG, LONG],
        Helper::Load | Helper::Store | Helper::Atomic | Helper::Service => &[LONG, WORD, WORD, WORD, LONG, LONG],
        Helper::Collect | Helper::Scatter => &[LONG, WORD, WORD, WORD, WORD, LONG],
        _ => return Err(unsupported(format!("{helper:?} called from where calls are rare"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_take_the_address_of_a_load() {
        for (mut load, fetch) in [
            // movzx eax, byte [rcx]; prefetcht0 [rcx]
            (vec![0x0f, 0xb6, 0x01], vec![0x0f, 0x18, 0x09]),
            // movzx r14, byte [r12 + rax * 4 + 0x44]; prefetcht0 of the same
            (vec![0x4d, 0x0f, 0xb6, 0x74, 0x84, 0x44], vec![0x41, 0x0f, 0x18, 0x4c, 0x84, 0x44]),
            // movzx edi, byte [rax + r15 + 0x800]
            (vec![0x42, 0x0f, 0xb6, 0xbc, 0x38, 0, 8, 0, 0], vec![0x42, 0x0f, 0x18, 0x8c, 0x38, 0, 8, 0, 0]),
        ] {
            fetch_instead(&mut load).unwrap();
            assert_eq!(load, fetch);
        }
        // mov eax, [rcx]
        fetch_instead(&mut [0x8b, 0x01, 0x90]).unwrap_err();
    }
}
