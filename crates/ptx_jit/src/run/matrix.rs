//! Operations on matrices that the lanes of a warp hold: products, and loads and stores of lines of shared memory.

mod fast;

use ptx::ir::{Op, RegTy, Space};
use ptx::launch::{Access, AccessError, Exception, SHARED_WINDOW, SHARED_WINDOW_BYTES, WARP};
use ptx::math::matrix::{Row, product};
use ptx::matrix::{MAX_REGISTERS, Product};

use crate::abi::context::Context;
use crate::abi::joint::{Matrix, Slot};
use crate::run::helpers::{attached, locate, raise};
use crate::run::joint::{lanes, write_lane, write_words};

const LANES: usize = WARP as usize;
/// A register of 32 bits of all lanes.
type Words = [u32; LANES];

/// Bytes of a line of a tile, and words.
const LINE: usize = 16;
const LINE_WORDS: usize = 4;

/// Performs an operation on matrices for the lanes `bits` of the warp whose frame is given. Called by machine code.
pub(crate) extern "C" fn run(ctx: *mut Context, site: u32, frame: *mut u8, bits: u32) {
    let site = attached(ctx, site, |of| &of.matrices);
    match &site.op {
        Op::Mma { product, .. } if bits == u32::MAX && fast::multiply(product, site, frame) => {}
        Op::Mma { product, .. } => multiply(product, site, frame, bits),
        Op::MovMatrix { .. } => {
            let tile = transposed(&masked(site.srcs[0].words(frame), bits));
            write_words(frame, site.dsts[0], bits, &tile);
        }
        Op::LdMatrix { space, trans, addr, .. } => {
            for (i, &dst) in site.dsts.iter().enumerate() {
                let mut tile = [0; LANES];
                for lane in lanes(bits & (0xff << (8 * i))) {
                    let at = line(ctx, *space, site.srcs[0], addr.offset, frame, lane, Access::Read);
                    // SAFETY: `line` has found a line of shared memory there, which the CTA's thread alone accesses.
                    let line = unsafe { at.cast::<[u32; LINE_WORDS]>().read_unaligned() };
                    tile[lane % 8 * LINE_WORDS..][..LINE_WORDS].copy_from_slice(&line);
                }
                write_words(frame, dst, bits, &if *trans { transposed(&tile) } else { tile });
            }
        }
        Op::StMatrix { space, trans, addr, .. } => {
            let Some((&base, srcs)) = site.srcs.split_last() else { return };
            for (i, src) in srcs.iter().enumerate() {
                let tile = masked(src.words(frame), bits);
                let tile = if *trans { transposed(&tile) } else { tile };
                for lane in lanes(bits & (0xff << (8 * i))) {
                    let at = line(ctx, *space, base, addr.offset, frame, lane, Access::Write);
                    let mut line = [0; LINE_WORDS];
                    line.copy_from_slice(&tile[lane % 8 * LINE_WORDS..][..LINE_WORDS]);
                    // SAFETY: as above.
                    unsafe { at.cast::<[u32; LINE_WORDS]>().write_unaligned(line) };
                }
            }
        }
        _ => {}
    }
}

/// The line of shared memory that a lane names; raises if there is none.
fn line(
    ctx: *mut Context,
    space: Space,
    base: Slot,
    offset: i64,
    frame: *const u8,
    lane: usize,
    access: Access,
) -> *mut u8 {
    let address = base.lane(frame, lane).wrapping_add(offset.cast_unsigned());
    let address = if space == Space::Shared { u64::from(address as u32) } else { address };
    // SAFETY: the context is live while its CTA runs.
    let context = unsafe { &*ctx };
    let elsewhere = space == Space::Generic && address.wrapping_sub(SHARED_WINDOW) >= SHARED_WINDOW_BYTES;
    let found = if elsewhere && address.is_multiple_of(LINE as u64) {
        Err(AccessError::Shared)
    } else {
        locate(context, space, address, LINE as u64, 0)
    };
    found.unwrap_or_else(|error| raise(ctx, Exception::Access { address, access, error }))
}

/// Zero in lanes that are not there.
fn masked(mut words: Words, bits: u32) -> Words {
    lanes(!bits).for_each(|lane| words[lane] = 0);
    words
}

/// A tile of 8 × 8 elements of 16 bits, its lines as columns.
fn transposed(tile: &Words) -> Words {
    let mut out = [0; LANES];
    for line in 0..8 {
        for (t, word) in tile[line * LINE_WORDS..][..LINE_WORDS].iter().enumerate() {
            let (at, shift) = (line / 2, line % 2 * 16);
            out[2 * t * LINE_WORDS + at] |= (word & 0xffff) << shift;
            out[(2 * t + 1) * LINE_WORDS + at] |= (word >> 16) << shift;
        }
    }
    out
}

/// Any product, element by element.
fn multiply(p: &Product, site: &Matrix, frame: *mut u8, bits: u32) {
    let mut srcs: [Row; 3 * MAX_REGISTERS] = [[0; LANES]; 3 * MAX_REGISTERS];
    for (row, src) in srcs.iter_mut().zip(&site.srcs) {
        lanes(bits).for_each(|lane| row[lane] = src.lane(frame, lane));
    }
    let mut dsts: [Row; MAX_REGISTERS] = [[0; LANES]; MAX_REGISTERS];
    let [a, b, c, d] = p.registers();
    product(p, &srcs[..a], &srcs[a..][..b], &srcs[a + b..][..c], &mut dsts[..d]);
    for (&dst, row) in site.dsts.iter().zip(&dsts) {
        if let Some((_, RegTy::B64)) = dst {
            lanes(bits).for_each(|lane| write_lane(frame, dst, lane, row[lane]));
        } else {
            write_words(frame, dst, bits, &row.map(|word| word as u32));
        }
    }
}
