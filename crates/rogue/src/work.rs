//! Commands as a pushbuffer has them.

use gpu_spec::compute::{self, TURING_COMPUTE_A, pcas_b};
use gpu_spec::copy::{self, TURING_DMA_COPY_A, launch_dma, remap};
use gpu_spec::host::{Header, SEM_ADDR_LO, SET_OBJECT, SUBCHANNEL_COMPUTE, SUBCHANNEL_COPY, sem_execute};

/// A kernel `touch` with two 64-bit parameters, an address and a number: each thread adds one to a word of its own, so often.
/// With 0 it does not end.
pub const TOUCH: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
.visible .entry touch(.param .u64 p, .param .u64 n)\n{\n.reg .pred %q;\n.reg .b32 %r<2>;\n.reg .b64 %a<4>;\n\
ld.param.u64 %a0, [p];\nld.param.u64 %a2, [n];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %a1, %r1, 4;\nadd.s64 %a0, %a0, %a1;\n\
L:\nld.volatile.global.u32 %r0, [%a0];\nadd.u32 %r0, %r0, 1;\nst.volatile.global.u32 [%a0], %r0;\n\
sub.s64 %a2, %a2, 1;\nsetp.ne.s64 %q, %a2, 0;\n@%q bra L;\nret;\n}\n";

/// Methods in a row, from `method` on.
#[must_use]
pub fn inc(subchannel: u32, method: u32, data: &[u32]) -> Vec<u32> {
    let mut words = vec![Header::new(Header::OP_INC, subchannel, method, data.len() as u32).0];
    words.extend(data);
    words
}

/// The classes of the engines.
#[must_use]
pub fn classes() -> Vec<u32> {
    [inc(SUBCHANNEL_COMPUTE, SET_OBJECT, &[TURING_COMPUTE_A]), inc(SUBCHANNEL_COPY, SET_OBJECT, &[TURING_DMA_COPY_A])]
        .concat()
}

fn transfer(to: u64, from: u64, width: u32, flags: u32) -> Vec<u32> {
    let [to_hi, to_lo, from_hi, from_lo] = [(to >> 32) as u32, to as u32, (from >> 32) as u32, from as u32];
    let launch = launch_dma::DATA_TRANSFER_TYPE.of(launch_dma::TRANSFER_NON_PIPELINED)
        | launch_dma::SRC_LAYOUT_PITCH.of(1)
        | launch_dma::DST_LAYOUT_PITCH.of(1)
        | flags;
    [
        inc(SUBCHANNEL_COPY, copy::OFFSET_IN_UPPER, &[from_hi, from_lo, to_hi, to_lo]),
        inc(SUBCHANNEL_COPY, copy::LINE_LENGTH_IN, &[width, 1]),
        inc(SUBCHANNEL_COPY, copy::LAUNCH_DMA, &[launch]),
    ]
    .concat()
}

/// A copy.
#[must_use]
pub fn copy(to: u64, from: u64, bytes: u32) -> Vec<u32> {
    transfer(to, from, bytes, 0)
}

/// So many words with a value.
#[must_use]
pub fn fill(to: u64, value: u32, count: u32) -> Vec<u32> {
    let components = remap::DST_X.of(remap::CONST_A) | remap::COMPONENT_SIZE.of(3);
    let constant = inc(SUBCHANNEL_COPY, copy::SET_REMAP_CONST_A, &[value, 0, components]);
    [constant, transfer(to, to, count, launch_dma::REMAP.of(1))].concat()
}

/// Data that comes with the commands.
#[must_use]
pub fn inline(to: u64, data: &[u32]) -> Vec<u32> {
    let count = data.len() as u32;
    let place = [count * 4, 1, (to >> 32) as u32, to as u32];
    let mut words = inc(SUBCHANNEL_COMPUTE, compute::LINE_LENGTH_IN, &place);
    words.extend(inc(SUBCHANNEL_COMPUTE, compute::LAUNCH_DMA, &[1]));
    words.push(Header::new(Header::OP_NON_INC, SUBCHANNEL_COMPUTE, compute::LOAD_INLINE_DATA, count).0);
    words.extend(data);
    words
}

/// Stores 64 bits, and the time behind them.
#[must_use]
pub fn release(at: u64, value: u64) -> Vec<u32> {
    let execute = sem_execute::OPERATION.of(sem_execute::RELEASE)
        | sem_execute::PAYLOAD_64.of(1)
        | sem_execute::RELEASE_TIMESTAMP.of(1);
    let data = [at as u32, (at >> 32) as u32, value as u32, (value >> 32) as u32, execute];
    inc(SUBCHANNEL_COMPUTE, SEM_ADDR_LO, &data)
}

/// Runs what a launch descriptor describes.
#[must_use]
pub fn launch(descriptor: u64) -> Vec<u32> {
    [
        inc(SUBCHANNEL_COMPUTE, compute::SEND_PCAS_A, &[(descriptor >> 8) as u32]),
        inc(SUBCHANNEL_COMPUTE, compute::SEND_SIGNALING_PCAS_B, &[pcas_b::SCHEDULE.of(1)]),
    ]
    .concat()
}
