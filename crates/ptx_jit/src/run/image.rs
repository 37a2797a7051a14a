//! Accesses to textures and surfaces, for the lanes of a chunk.

mod fast;

use std::convert::Infallible;

use fast::Plane;

use ptx::image;
use ptx::ir::Ty;
use ptx::launch;
use texture::{Access, Descriptor, MAX_RESULTS, MAX_SOURCES, Memory, Object, Refused};

use crate::abi::context::Context;
use crate::abi::image::{Rows, Site};
use crate::run::helpers::{
    active, attached, is_at_lane, poll, raise, reach_global, read_element, update, write_element,
};

/// Descriptors that have been read.
#[derive(Debug, Default)]
pub(crate) struct Known([Option<Seen>; KNOWN]);

const KNOWN: usize = 4;

/// A descriptor that has been read, and what it says.
#[derive(Debug)]
struct Seen {
    words: Words,
    object: Object,
    /// As it is sampled, and as its texels are fetched by index; none if only the slow way is right.
    planes: [Option<Plane>; 2],
}

/// A descriptor's bytes.
type Words = [u64; Descriptor::BYTES / 8];

/// Words of as much of a descriptor as is aligned.
const HALF: usize = Descriptor::ALIGN as usize / 8;

/// Performs an access for the lanes `bits` of a chunk. Called by machine code: `same` says whether the first handle is everybody's.
pub(crate) extern "C" fn run(ctx: *mut Context, site: u32, bits: u32, same: u32, rows: *mut u8) {
    // An access takes as long as a hundred instructions, and kernels may have many without a loop of their own.
    poll(ctx);
    let Site { access, rows: at } = attached(ctx, site, |of| &of.images);
    let rows = Lanes { rows: at, base: rows };
    if bits.count_ones() as usize != at.lanes {
        rows.clear();
    }
    if bits != 0 && same != 0 {
        let handle = rows.handle(0);
        let seen = look(ctx, handle);
        let left = fast::perform(access, seen, &rows, bits);
        for lane in active(left) {
            is_at_lane(ctx, lane);
            rows.perform(ctx, access, handle, &seen.object, lane);
        }
        return;
    }
    for lane in active(bits) {
        is_at_lane(ctx, lane);
        let handle = rows.handle(lane);
        rows.perform(ctx, access, handle, &look(ctx, handle).object, lane);
    }
}

/// What a handle stands for; raises if it stands for nothing.
fn look<'a>(ctx: *mut Context, handle: u64) -> &'a Seen {
    if !handle.is_multiple_of(Descriptor::ALIGN) {
        raise(ctx, image::nothing(handle));
    }
    let halves = [handle, handle.wrapping_add(Descriptor::ALIGN)]
        .map(|address| reach_global(ctx, address, Descriptor::ALIGN, launch::Access::Read));
    let word = |i: usize| {
        // SAFETY: both halves of the descriptor lie inside the window.
        let at = unsafe { halves[i / HALF].add(8 * (i % HALF)) };
        read_element(at, Ty::U64)
    };
    // SAFETY: the context is live while its CTA runs.
    let known = unsafe { &raw mut (*ctx).known.0[(handle / Descriptor::BYTES as u64) as usize % KNOWN] };
    let same = |seen: &Seen| seen.words.iter().enumerate().all(|(i, &seen)| seen == word(i));
    // SAFETY: nobody else has it, and nothing here looks at the rest of the context meanwhile.
    if !unsafe { &*known }.as_ref().is_some_and(same) {
        let seen = read(ctx, handle, std::array::from_fn(word));
        // SAFETY: as above.
        unsafe { *known = seen };
    }
    // SAFETY: as above; until the next look.
    match unsafe { &*known } {
        Some(seen) => seen,
        None => raise(ctx, image::nothing(handle)),
    }
}

/// What a descriptor says; nothing if it says nothing.
fn read(ctx: *mut Context, handle: u64, words: Words) -> Option<Seen> {
    let object = image::object(handle, |bytes| {
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(&words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    });
    let object = object.ok()?;
    Some(Seen { words, object, planes: [false, true].map(|index| Plane::new(ctx, &object, index)) })
}

/// Rows of the lanes of a chunk.
struct Lanes<'a> {
    rows: &'a Rows,
    base: *mut u8,
}

impl Lanes<'_> {
    fn read<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: machine code has reserved rows for the access, of as many lanes as it says.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: as above; rows are plain data.
        unsafe { at.cast::<T>().read_unaligned() }
    }

    fn write<T: Copy>(&self, offset: usize, value: T) {
        // SAFETY: as above.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: as above.
        unsafe { at.cast::<T>().write_unaligned(value) }
    }

    fn handle(&self, lane: usize) -> u64 {
        self.read(8 * lane)
    }

    /// Makes all results zero, for lanes that are not there.
    fn clear(&self) {
        let Rows { results, result, lanes, .. } = *self.rows;
        for offset in (0..results * result * lanes).step_by(4) {
            self.write(self.rows.result(0) + offset, 0_u32);
        }
    }

    /// The access of one lane.
    fn perform(&self, ctx: *mut Context, access: &Access, handle: u64, object: &Object, lane: usize) {
        let Rows { words, values, value, results, result, .. } = *self.rows;
        let mut sources = [0; MAX_SOURCES];
        for (i, source) in sources.iter_mut().enumerate().take(words) {
            *source = self.read::<u32>(self.rows.word(i) + 4 * lane).into();
        }
        for (i, source) in sources[words..].iter_mut().enumerate().take(values) {
            let at = self.rows.value(i) + value * lane;
            *source = if value == 8 { self.read(at) } else { self.read::<u32>(at).into() };
        }
        let found = access.perform(object, &sources[..words + values], &mut Window { ctx });
        let found: [u64; MAX_RESULTS] = found.unwrap_or_else(|refused| {
            let refused = match refused {
                Refused::Memory(never) => match never {},
                Refused::Role => Refused::Role,
                Refused::Outside => Refused::Outside,
                Refused::Misaligned(address) => Refused::Misaligned(address),
            };
            raise(ctx, image::exception(access, handle, refused))
        });
        for (i, found) in found.into_iter().enumerate().take(results) {
            let at = self.rows.result(i) + result * lane;
            if result == 8 { self.write(at, found) } else { self.write(at, found as u32) }
        }
    }
}

/// Global memory of the CTA, which raises where there is none.
struct Window {
    ctx: *mut Context,
}

impl Memory for Window {
    type Fault = Infallible;

    fn load(&mut self, address: u64, bytes: u32) -> Result<u128, Infallible> {
        let at = reach_global(self.ctx, address, bytes.into(), launch::Access::Read);
        Ok(match element(bytes) {
            Some(ty) => read_element(at, ty).into(),
            None => {
                // SAFETY: there are 16 bytes inside the window.
                let high = unsafe { at.add(8) };
                u128::from(read_element(at, Ty::U64)) | u128::from(read_element(high, Ty::U64)) << 64
            }
        })
    }

    fn store(&mut self, address: u64, bytes: u32, value: u128) -> Result<(), Infallible> {
        let at = reach_global(self.ctx, address, bytes.into(), launch::Access::Write);
        match element(bytes) {
            Some(ty) => write_element(at, ty, value as u64),
            None => {
                // SAFETY: there are 16 bytes inside the window.
                let high = unsafe { at.add(8) };
                write_element(at, Ty::U64, value as u64);
                write_element(high, Ty::U64, (value >> 64) as u64);
            }
        }
        Ok(())
    }

    fn update(&mut self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<(), Infallible> {
        let at = reach_global(self.ctx, address, bytes.into(), launch::Access::Atomic);
        // SAFETY: the context is live while its CTA runs.
        unsafe { (*self.ctx).atomic = 1 };
        update(at, bytes, f);
        // SAFETY: as above.
        unsafe { (*self.ctx).atomic = 0 };
        Ok(())
    }
}

/// The type of so many bytes; none of 16.
fn element(bytes: u32) -> Option<Ty> {
    match bytes {
        1 => Some(Ty::U8),
        2 => Some(Ty::U16),
        4 => Some(Ty::U32),
        8 => Some(Ty::U64),
        _ => None,
    }
}
