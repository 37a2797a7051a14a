//! Where a CTA's exception was raised: found out when it has been, from what machine code and helpers leave behind as they go.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, OpKind};
use ptx::launch::FaultSite;

use super::trap::Fault;
use crate::abi::context::{self, Context, SEVERAL};
use crate::abi::place::Lanes;
use crate::code::Compiled;

/// Bytes of the longest instruction.
const LONGEST: usize = 15;

/// Where, in a CTA of the code, a fault was.
pub(crate) fn of_fault(context: &Context, code: &Compiled, fault: &Fault) -> FaultSite {
    match code.place_of(fault.instruction()) {
        None => of_helper(context, code, Some(fault)),
        Some((bytes, Some(place))) => {
            let threads = threads_of(context, code, fault, place.lanes(), bytes);
            FaultSite { line: place.line(), ctaid: ctaid(context), threads }
        }
        // No access: the stack is used up, by whoever it is.
        Some((_, None)) => of_cta(context, code, 0),
    }
}

/// Where a helper has raised an exception, or had a fault.
pub(crate) fn of_helper(context: &Context, code: &Compiled, fault: Option<&Fault>) -> FaultSite {
    let threads = match (context.thread, fault) {
        (SEVERAL, Some(fault)) if context.run_bytes > 0 => lane_of_run(context, code, fault, context.run_bytes),
        (SEVERAL, _) => all_of_chunk(context, code),
        (thread, _) => thread..thread.saturating_add(1),
    };
    FaultSite { line: context.line, ctaid: ctaid(context), threads }
}

/// Of an exception that the scheduler of a CTA has found, at a line, or at none.
pub(crate) fn of_cta(context: &Context, code: &Compiled, line: u32) -> FaultSite {
    FaultSite { line, ctaid: ctaid(context), threads: 0..code.threads }
}

fn ctaid(context: &Context) -> [u32; 3] {
    [0, 1, 2].map(|axis| context.fixed[context::CTAID + axis])
}

/// The threads of the chunk that runs.
fn all_of_chunk(context: &Context, code: &Compiled) -> Range<u32> {
    let first = context.first_thread.min(code.threads);
    first..(first + code.lanes).min(code.threads)
}

/// The thread of a lane, if there is one.
fn one(context: &Context, code: &Compiled, lane: u64) -> Range<u32> {
    let all = all_of_chunk(context, code);
    match u32::try_from(lane).ok().and_then(|lane| all.start.checked_add(lane)).filter(|thread| all.contains(thread)) {
        Some(thread) => thread..thread + 1,
        None => all,
    }
}

/// The thread whose bytes the fault was at, of those that lie one behind another.
fn lane_of_run(context: &Context, code: &Compiled, fault: &Fault, bytes: u64) -> Range<u32> {
    one(context, code, fault.address.wrapping_sub(context.run) / bytes)
}

/// The threads of the lanes for which an instruction, of the code's first bytes, has accessed the place of the fault.
fn threads_of(context: &Context, code: &Compiled, fault: &Fault, lanes: Lanes, bytes: &[u8]) -> Range<u32> {
    match lanes {
        Lanes::Any => all_of_chunk(context, code),
        Lanes::One(lane) => one(context, code, lane.into()),
        Lanes::OfRun { bytes } => lane_of_run(context, code, fault, bytes.into()),
        Lanes::Run { first, bytes: of_lane } => match operand(fault, bytes) {
            Some(begin) => {
                let ahead = fault.address.wrapping_sub(begin) / u64::from(of_lane);
                one(context, code, u64::from(first).saturating_add(ahead))
            }
            None => all_of_chunk(context, code),
        },
    }
}

/// Where the operand of an instruction begins that lies in memory.
fn operand(fault: &Fault, bytes: &[u8]) -> Option<u64> {
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    let inst = Decoder::with_ip(64, bytes, fault.instruction(), DecoderOptions::NONE).decode();
    let operand = (0..inst.op_count()).find(|&operand| inst.op_kind(operand) == OpKind::Memory)?;
    inst.virtual_address(operand, 0, |register, _, _| match register.full_register() {
        // Segments begin at 0.
        register if register.is_gpr() => fault.register(register.number()),
        _ => Some(0),
    })
}
