//! Operations on matrices that the lanes of a warp hold: products, and loads and stores of lines of shared memory.

mod double;
mod fast;

use ptx::ir::{Op, RegTy, Space};
use ptx::launch::{Access, AccessError, Exception, SHARED_WINDOW, WARP};
use ptx::math::matrix::{Row, product};
use ptx::matrix::{MAX_REGISTERS, Product};

use crate::abi::context::Context;
use crate::abi::joint::{Matrix, Slot};
use crate::run::helpers::{attached, is_at_lane, raise};
use crate::run::joint::{lanes, write_lane, write_words};

const LANES: usize = WARP as usize;
/// A register of 32 bits of all lanes.
type Words = [u32; LANES];

/// Lines of a tile.
const LINES: usize = 8;
/// Bytes of a line of a tile, and words.
const LINE: usize = 16;
const LINE_WORDS: usize = 4;
/// Most sources of a product: three matrices, and the metadata of a sparse one.
const MAX_SOURCES: usize = 3 * MAX_REGISTERS + 1;

/// Is there a quick way for a product, on this machine?
pub(crate) fn is_quick(p: &Product) -> bool {
    fast::is_there(p) || double::is_there(p)
}

/// Computes a product for a whole warp in a quick way, if there is one.
fn quickly(p: &Product, site: &Matrix, frame: *mut u8) -> bool {
    fast::multiply(p, site, frame) || double::multiply(p, site, frame)
}

/// Performs an operation on matrices for the lanes `bits` of the warp whose frame is given. Called by machine code.
pub(crate) extern "C" fn run(ctx: *mut Context, site: u32, frame: *mut u8, bits: u32) {
    let site = attached(ctx, site, |of| &of.matrices);
    match &site.op {
        Op::Mma { product, .. } if bits == u32::MAX && quickly(product, site, frame) => {}
        Op::Mma { product, .. } => multiply(product, site, frame, bits),
        Op::MovMatrix { .. } => {
            let tile = transposed(&masked(site.srcs[0].words(frame), bits));
            write_words(frame, site.dsts[0], bits, &tile);
        }
        Op::LdMatrix { space, trans, addr, .. } => {
            let lines = Lines::new(ctx, *space, site.srcs[0], addr.offset, frame);
            let there = bits == u32::MAX && lines.are_there(LINES * site.dsts.len());
            for (i, &dst) in site.dsts.iter().enumerate() {
                let mut tile = [0; LANES];
                for lane in eight(bits, i) {
                    let at = if there { lines.at(lane) } else { lines.find(ctx, lane, Access::Read) };
                    // SAFETY: a line of shared memory is there, which the CTA's thread alone accesses.
                    let line = unsafe { at.cast::<[u32; LINE_WORDS]>().read_unaligned() };
                    tile[lane % LINES * LINE_WORDS..][..LINE_WORDS].copy_from_slice(&line);
                }
                write_words(frame, dst, bits, &if *trans { transposed(&tile) } else { tile });
            }
        }
        Op::StMatrix { space, trans, addr, .. } => {
            let Some((&base, srcs)) = site.srcs.split_last() else { return };
            let lines = Lines::new(ctx, *space, base, addr.offset, frame);
            for (i, src) in srcs.iter().enumerate() {
                let tile = masked(src.words(frame), bits);
                let tile = if *trans { transposed(&tile) } else { tile };
                for lane in eight(bits, i) {
                    let at = lines.find(ctx, lane, Access::Write);
                    let mut line = [0; LINE_WORDS];
                    line.copy_from_slice(&tile[lane % LINES * LINE_WORDS..][..LINE_WORDS]);
                    // SAFETY: as above.
                    unsafe { at.cast::<[u32; LINE_WORDS]>().write_unaligned(line) };
                }
            }
        }
        _ => {}
    }
}

/// The lanes of `bits` that name the lines of tile `tile`.
fn eight(bits: u32, tile: usize) -> impl Iterator<Item = usize> {
    (LINES * tile..LINES * (tile + 1)).filter(move |lane| bits >> lane & 1 != 0)
}

/// The lines of shared memory that lanes name.
struct Lines {
    /// Offsets in shared memory, and what is an address's beginning there. Read before the first result is written, which may be
    /// in the same register.
    offsets: [u64; LANES],
    window: u64,
    shared: u64,
    /// The first offset at which no line begins.
    end: u64,
}

impl Lines {
    fn new(ctx: *mut Context, space: Space, base: Slot, offset: i64, frame: *const u8) -> Lines {
        let window = if space == Space::Shared { 0 } else { SHARED_WINDOW };
        let mut offsets = [0; LANES];
        if space == Space::Shared {
            for (of_lane, word) in offsets.iter_mut().zip(base.words(frame)) {
                *of_lane = u64::from(word.wrapping_add(offset as u32));
            }
        } else {
            for (lane, of_lane) in offsets.iter_mut().enumerate() {
                *of_lane = base.lane(frame, lane).wrapping_add(offset.cast_unsigned()).wrapping_sub(window);
            }
        }
        // SAFETY: the context is live while its CTA runs.
        let context = unsafe { &*ctx };
        let end = (context.shared_bytes + 1).saturating_sub(LINE as u64);
        Lines { offsets, window, shared: context.shared, end }
    }

    /// Whether the first `lanes` lanes all name a line.
    #[inline]
    fn are_there(&self, lanes: usize) -> bool {
        let wrong = |offset: &u64| !offset.is_multiple_of(LINE as u64) | (*offset >= self.end);
        !self.offsets[..lanes.min(LANES)].iter().fold(false, |any, offset| any | wrong(offset))
    }

    /// The line of a lane, if there is one.
    #[inline]
    fn at(&self, lane: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.shared.wrapping_add(self.offsets[lane]) as usize)
    }

    /// The line of a lane; raises if there is none.
    #[inline]
    fn find(&self, ctx: *mut Context, lane: usize, access: Access) -> *mut u8 {
        let offset = self.offsets[lane];
        let aligned = offset.is_multiple_of(LINE as u64);
        if aligned && offset < self.end {
            return self.at(lane);
        }
        let error = if aligned { AccessError::Shared } else { AccessError::Misaligned };
        is_at_lane(ctx, lane);
        raise(ctx, Exception::Access { address: offset.wrapping_add(self.window), access, error })
    }
}

/// Zero in lanes that are not there.
fn masked(mut words: Words, bits: u32) -> Words {
    lanes(!bits).for_each(|lane| words[lane] = 0);
    words
}

/// A tile of 8 × 8 elements of 16 bits, its lines as columns.
fn transposed(tile: &Words) -> Words {
    // SAFETY: every processor that this is for has SSE2.
    unsafe { turned(tile) }
}

#[target_feature(enable = "sse2")]
fn turned(tile: &Words) -> Words {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi16, _mm_unpackhi_epi32, _mm_unpackhi_epi64,
        _mm_unpacklo_epi16, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };
    let line = |i: usize| -> __m128i {
        let words: &[u32] = &tile[i * LINE_WORDS..][..LINE_WORDS];
        // SAFETY: there are 16 bytes.
        unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
    };
    let two = |a, b| (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b));
    let four = |a, b| (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let eight = |a, b| [_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)];
    let ((a, e), (b, f)) = (two(line(0), line(1)), two(line(2), line(3)));
    let ((c, g), (d, h)) = (two(line(4), line(5)), two(line(6), line(7)));
    let ((a, b), (c, d)) = (four(a, b), four(c, d));
    let ((e, f), (g, h)) = (four(e, f), four(g, h));
    let columns = [eight(a, c), eight(b, d), eight(e, g), eight(f, h)];
    let mut out = [0; LANES];
    for (words, column) in out.chunks_exact_mut(LINE_WORDS).zip(columns.into_iter().flatten()) {
        // SAFETY: there are 16 bytes.
        unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), column) }
    }
    out
}

/// Any product, element by element.
fn multiply(p: &Product, site: &Matrix, frame: *mut u8, bits: u32) {
    let mut srcs: [Row; MAX_SOURCES] = [[0; LANES]; MAX_SOURCES];
    for (row, src) in srcs.iter_mut().zip(&site.srcs) {
        lanes(bits).for_each(|lane| row[lane] = src.lane(frame, lane));
    }
    let mut dsts: [Row; MAX_REGISTERS] = [[0; LANES]; MAX_REGISTERS];
    product(p, &srcs[..site.srcs.len()], &mut dsts[..site.dsts.len()]);
    for (&dst, row) in site.dsts.iter().zip(&dsts) {
        if let Some((_, RegTy::B64)) = dst {
            lanes(bits).for_each(|lane| write_lane(frame, dst, lane, row[lane]));
        } else {
            write_words(frame, dst, bits, &row.map(|word| word as u32));
        }
    }
}
