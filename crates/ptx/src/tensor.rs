//! Bulk copies whose shape is known only when they run: those of tensors, those to several CTAs, those that reduce.
//!
//! Both engines perform them here, on memory of generic addresses, which are the same for all. A copy is made at once, by the
//! thread that asks for it, row by row: a row is what lies side by side in shared memory and, where the tensor is, in global
//! memory. What a map says is believed as far as it cannot do harm: addresses are computed modulo 2^64, and every access is checked.
//! Source: PTX ISA ("Tensors", `cp.async.bulk.tensor`, `cp.reduce.async.bulk`).

use serde::{Deserialize, Serialize};
use texture::{MAX_RANK, Region, Swizzle, TensorElement, TensorMap};

use crate::ir::{AtomOp, Ty};
use crate::launch::{
    Access, AccessError, Exception, GlobalMemory, LOCAL_WINDOW, LOCAL_WINDOW_BYTES, MAX_CLUSTER_CTAS, SHARED_WINDOW,
    SHARED_WINDOW_BYTES,
};
use crate::{math, mbarrier};

/// How an instruction names elements of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// `.tile`: where a box begins.
    Tile,
    /// `.tile::gather4`: a column, and four rows.
    Gather4,
    /// `.im2col`, and `.im2col_no_offs` of stores.
    Im2col,
}

/// What is copied, and what an instruction says about it: a generic address of 64 bits, so many words of 32 bits, and so many more
/// addresses, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Transfer {
    /// To shared memory. The map; coordinates, the offsets of images, with `multicast` the CTAs' mask; the destination, the
    /// mbarrier object.
    Load {
        /// How elements are named.
        mode: Mode,
        /// Dimensions of the tensor.
        rank: u8,
        /// To the same place of several CTAs.
        multicast: bool,
    },
    /// To global memory. The map; coordinates; the source.
    Store {
        /// How elements are named.
        mode: Mode,
        /// Dimensions of the tensor.
        rank: u8,
    },
    /// As a store, but what is there is combined with what comes.
    Reduce {
        /// How.
        op: AtomOp,
        /// How elements are named.
        mode: Mode,
        /// Dimensions of the tensor.
        rank: u8,
    },
    /// Bytes that lie side by side, to the same place of several CTAs. The source; bytes, mask; the destination, the object.
    Multicast,
    /// Elements that lie side by side in shared memory are combined with others. The destination; bytes; the source, and with
    /// `tracked`, which is to shared memory, the object.
    Combine {
        /// How.
        op: AtomOp,
        /// Elements.
        ty: Ty,
        /// An mbarrier object is told.
        tracked: bool,
    },
}

/// Most words of an instruction: of a multicast of images in five dimensions.
pub const MAX_WORDS: usize = MAX_RANK + 3 + 1;
/// Most addresses behind them.
pub const MAX_ADDRESSES: usize = 2;

/// Longest row, and longest piece of other copies, bytes.
const ROW: usize = 256 * 8;
/// What addresses of tiles in shared memory are multiples of.
const TILE_ALIGN: u64 = 128;

impl Transfer {
    /// How many words, and how many addresses behind them.
    #[must_use]
    pub fn sources(&self) -> (usize, usize) {
        let coordinates = |mode: Mode, rank: u8| if mode == Mode::Gather4 { 5 } else { usize::from(rank) };
        match *self {
            Transfer::Load { mode, rank, multicast } => {
                let offsets = if mode == Mode::Im2col { usize::from(rank).saturating_sub(2) } else { 0 };
                (coordinates(mode, rank) + offsets + usize::from(multicast), 2)
            }
            Transfer::Store { mode, rank } | Transfer::Reduce { mode, rank, .. } => (coordinates(mode, rank), 1),
            Transfer::Multicast => (2, 2),
            Transfer::Combine { tracked, .. } => (1, 1 + usize::from(tracked)),
        }
    }

    /// Is there such an instruction?
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let reduces = |op: AtomOp| !matches!(op, AtomOp::Exch | AtomOp::Cas | AtomOp::Arrive);
        let dimensions = |mode: Mode, rank: u8| match mode {
            Mode::Tile => (1..=5).contains(&rank),
            Mode::Gather4 => rank == 2,
            Mode::Im2col => (3..=5).contains(&rank),
        };
        match *self {
            Transfer::Load { mode, rank, .. } => dimensions(mode, rank),
            Transfer::Store { mode, rank } => dimensions(mode, rank) && mode != Mode::Gather4,
            Transfer::Reduce { op, mode, rank } => dimensions(mode, rank) && mode != Mode::Gather4 && reduces(op),
            Transfer::Multicast => true,
            Transfer::Combine { op, ty, .. } => combines(op, ty),
        }
    }

    /// Makes the copy. `words` and `addresses` are as many as [`Transfer::sources`] says; more are not looked at. Owns nothing while
    /// it uses `memory`, which may come back late, when others have run, or never.
    ///
    /// # Errors
    /// What ends the CTA: memory that cannot be accessed, addresses that are not aligned, or not in shared memory where they
    /// should be; [`Exception::Illegal`] for a map that is none, or one for another instruction.
    pub fn perform(
        &self,
        handle: u64,
        words: &[u32],
        addresses: &[u64],
        memory: &dyn GlobalMemory,
    ) -> Result<(), Exception> {
        let (count, more) = self.sources();
        let (Some(words), Some(addresses)) = (words.get(..count), addresses.get(..more)) else {
            return Err(Exception::Illegal);
        };
        match *self {
            Transfer::Load { mode, rank, multicast } => {
                let (words, mask) = match (multicast, words.split_last()) {
                    (true, Some((&mask, words))) => (words, Some(mask)),
                    _ => (words, None),
                };
                let map = map(handle, rank, memory)?;
                let to = Targets::new(addresses[0], addresses[1], mask);
                load(&map, mode, words, &to, memory)
            }
            Transfer::Store { mode, rank } => {
                store(&map(handle, rank, memory)?, mode, words, addresses[0], None, memory)
            }
            Transfer::Reduce { op, mode, rank } => {
                store(&map(handle, rank, memory)?, mode, words, addresses[0], Some(op), memory)
            }
            Transfer::Multicast => {
                let to = Targets::new(addresses[0], addresses[1], Some(words[1]));
                multicast(handle, words[0], &to, memory)
            }
            Transfer::Combine { op, ty, tracked } => {
                combine(op, ty, handle, words[0], addresses[0], memory)?;
                if tracked { complete(addresses[1], words[0].into(), memory) } else { Ok(()) }
            }
        }
    }
}

/// Is there such a reduction of elements side by side?
fn combines(op: AtomOp, ty: Ty) -> bool {
    match op {
        AtomOp::Add => {
            matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64)
        }
        AtomOp::Min | AtomOp::Max => {
            matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 | Ty::F16 | Ty::BF16)
        }
        AtomOp::Inc | AtomOp::Dec => ty == Ty::U32,
        AtomOp::And | AtomOp::Or | AtomOp::Xor => matches!(ty, Ty::B32 | Ty::B64),
        AtomOp::Exch | AtomOp::Cas | AtomOp::Arrive => false,
    }
}

/// The type in which elements of a tensor are combined.
fn combined(op: AtomOp, element: TensorElement) -> Option<Ty> {
    let bitwise = matches!(op, AtomOp::And | AtomOp::Or | AtomOp::Xor);
    let ty = match element {
        TensorElement::U32 | TensorElement::S32 if bitwise => Ty::B32,
        TensorElement::U64 | TensorElement::S64 if bitwise => Ty::B64,
        TensorElement::U32 => Ty::U32,
        TensorElement::S32 => Ty::S32,
        // The sum of signed numbers is that of unsigned ones.
        TensorElement::S64 if op == AtomOp::Add => Ty::U64,
        TensorElement::U64 => Ty::U64,
        TensorElement::S64 => Ty::S64,
        TensorElement::F16 => Ty::F16,
        TensorElement::BF16 => Ty::BF16,
        TensorElement::F32 | TensorElement::F32Ftz | TensorElement::TF32 | TensorElement::TF32Ftz => Ty::F32,
        TensorElement::F64 => Ty::F64,
        TensorElement::U8 | TensorElement::U16 => return None,
    };
    combines(op, ty).then_some(ty)
}

fn fault(address: u64, access: Access, error: AccessError) -> Exception {
    Exception::Access { address, access, error }
}

fn aligned(address: u64, align: u64, access: Access) -> Result<(), Exception> {
    if address.is_multiple_of(align) { Ok(()) } else { Err(fault(address, access, AccessError::Misaligned)) }
}

/// Copies of bytes are as long as some pieces of 16 bytes.
fn whole(from: u64, bytes: u32) -> Result<(), Exception> {
    if bytes.is_multiple_of(16) { Ok(()) } else { Err(fault(from, Access::Read, AccessError::Misaligned)) }
}

/// Is it an address of no CTA's or thread's own memory?
fn is_global(address: u64) -> bool {
    !(SHARED_WINDOW..LOCAL_WINDOW + LOCAL_WINDOW_BYTES).contains(&address)
}

fn global(address: u64, access: Access) -> Result<(), Exception> {
    if is_global(address) { Ok(()) } else { Err(fault(address, access, AccessError::OutOfWindow)) }
}

/// So many bytes of one CTA's shared memory.
fn shared(address: u64, bytes: u64, access: Access) -> Result<(), Exception> {
    let inside = (SHARED_WINDOW..LOCAL_WINDOW).contains(&address)
        && bytes <= SHARED_WINDOW_BYTES - address % SHARED_WINDOW_BYTES;
    if inside { Ok(()) } else { Err(fault(address, access, AccessError::Shared)) }
}

/// As [`shared`], and they are there.
fn present(address: u64, bytes: u64, access: Access, memory: &dyn GlobalMemory) -> Result<(), Exception> {
    shared(address, bytes, access)?;
    match bytes {
        0 => Ok(()),
        _ => read(memory, address + bytes - 1, &mut [0]),
    }
}

fn read(memory: &dyn GlobalMemory, address: u64, out: &mut [u8]) -> Result<(), Exception> {
    memory.read(address, out).map_err(|error| fault(address, Access::Read, error))
}

fn write(memory: &dyn GlobalMemory, address: u64, data: &[u8]) -> Result<(), Exception> {
    memory.write(address, data).map_err(|error| fault(address, Access::Write, error))
}

fn update(memory: &dyn GlobalMemory, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<(), Exception> {
    memory.update(address, bytes, f).map(|_| ()).map_err(|error| fault(address, Access::Atomic, error))
}

/// The map at this address, of a tensor of so many dimensions.
fn map(handle: u64, rank: u8, memory: &dyn GlobalMemory) -> Result<TensorMap, Exception> {
    aligned(handle, 64, Access::Read)?;
    let mut bytes = [0; TensorMap::BYTES];
    read(memory, handle, &mut bytes)?;
    let map = TensorMap::decode(&bytes).map_err(|_| Exception::Illegal)?;
    if map.rank == rank { Ok(map) } else { Err(Exception::Illegal) }
}

/// Where in shared memory a copy goes, and which objects are told.
struct Targets {
    to: u64,
    object: u64,
    /// Ranks of CTAs; without, the one that is named.
    mask: Option<u32>,
}

impl Targets {
    fn new(to: u64, object: u64, mask: Option<u32>) -> Targets {
        // A mask has as many bits as a cluster has CTAs at most.
        Targets { to, object, mask: mask.map(|mask| mask & ((1 << MAX_CLUSTER_CTAS) - 1)) }
    }

    /// Is no CTA named? Nothing is copied then, and nothing bounds what would be.
    fn is_empty(&self) -> bool {
        self.mask == Some(0)
    }

    /// For each: its place and its object. They are no addresses of shared memory if those named are none.
    fn each(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (to, object, mask) = (self.to, self.object, self.mask);
        let own = mask.is_none().then_some((to, object));
        let there = move |address: u64, rank: u32| {
            if !(SHARED_WINDOW..LOCAL_WINDOW).contains(&address) {
                return address;
            }
            SHARED_WINDOW + SHARED_WINDOW_BYTES * u64::from(1 + rank) + address % SHARED_WINDOW_BYTES
        };
        let mask = mask.unwrap_or(0);
        let others = (0..MAX_CLUSTER_CTAS).filter(move |rank| mask >> rank & 1 != 0);
        own.into_iter().chain(others.map(move |rank| (there(to, rank), there(object, rank))))
    }

    /// All places and objects must be there.
    fn check(&self, bytes: u64, align: u64, memory: &dyn GlobalMemory) -> Result<(), Exception> {
        for (to, object) in self.each() {
            aligned(to, align, Access::Write)?;
            present(to, bytes, Access::Write, memory)?;
            // An atomic, as is all that is done to objects, so that it is no race.
            change(object, &mut |word| word, memory)?;
        }
        Ok(())
    }

    fn complete(&self, bytes: u64, memory: &dyn GlobalMemory) -> Result<(), Exception> {
        self.each().try_for_each(|(_, object)| complete(object, bytes, memory))
    }
}

/// Tells an mbarrier object that so many bytes have come.
fn complete(object: u64, bytes: u64, memory: &dyn GlobalMemory) -> Result<(), Exception> {
    change(object, &mut |word| mbarrier::transferred(word, bytes), memory)
}

/// Changes an mbarrier object, which must be there.
fn change(object: u64, f: &mut dyn FnMut(u64) -> u64, memory: &dyn GlobalMemory) -> Result<(), Exception> {
    aligned(object, 8, Access::Atomic)?;
    shared(object, 8, Access::Atomic)?;
    update(memory, object, 8, f)
}

/// A row of a copy: where it is in the tensor, and which of its elements are there.
#[derive(Clone, Copy)]
struct Row {
    /// Global address of its first element, which may be outside the tensor.
    global: u64,
    /// Elements inside the tensor, from the first to before the last.
    inside: (usize, usize),
}

impl Row {
    /// The row at these coordinates.
    fn at(map: &TensorMap, coordinates: [i64; MAX_RANK]) -> Row {
        let rank = usize::from(map.rank);
        let first = coordinates[0].wrapping_mul(map.element.bytes().into()).cast_unsigned();
        let mut global = map.base.wrapping_add(first);
        let mut there = true;
        let others = coordinates[1..rank].iter().zip(&map.sizes[1..]).zip(map.strides);
        for ((&coordinate, &size), stride) in others {
            there &= u64::try_from(coordinate).is_ok_and(|c| c < size);
            global = global.wrapping_add(stride.wrapping_mul(coordinate.cast_unsigned()));
        }
        let most = i64::from(map.row());
        let begin = (-coordinates[0]).clamp(0, most);
        let end = (map.sizes[0].cast_signed() - coordinates[0]).clamp(begin, most);
        Row { global, inside: if there { (begin as usize, end as usize) } else { (0, 0) } }
    }
}

/// Rows of a copy.
fn count(map: &TensorMap, mode: Mode) -> Result<u64, Exception> {
    match (map.region, mode) {
        (Region::Tiled(sides), Mode::Tile) => {
            Ok((1..MAX_RANK).map(|at| u64::from(sides[at]).div_ceil(map.steps[at].into())).product())
        }
        (Region::Tiled(sides), Mode::Gather4) if sides[1] == 1 => Ok(4),
        (Region::Im2col { pixels, .. }, Mode::Im2col) => Ok(pixels.into()),
        _ => Err(Exception::Illegal),
    }
}

/// Calls `f` with each row and its number. `words` are coordinates and offsets.
fn rows(
    map: &TensorMap,
    mode: Mode,
    words: &[u32],
    f: &mut dyn FnMut(u64, Row) -> Result<(), Exception>,
) -> Result<(), Exception> {
    let word = |at: usize| i64::from(words.get(at).copied().unwrap_or(0).cast_signed());
    let rank = usize::from(map.rank);
    let total = count(map, mode)?;
    match map.region {
        Region::Tiled(_) if mode == Mode::Gather4 => {
            for row in 0..total {
                f(row, Row::at(map, [word(0), word(1 + row as usize), 0, 0, 0]))?;
            }
        }
        Region::Tiled(sides) => {
            let start = [0, 1, 2, 3, 4].map(|at| if at < rank { word(at) } else { 0 });
            let mut place = start;
            for row in 0..total {
                f(row, Row::at(map, place))?;
                for at in 1..rank {
                    place[at] += i64::from(map.steps[at]);
                    if place[at] < start[at] + i64::from(sides[at]) {
                        break;
                    }
                    place[at] = start[at];
                }
            }
        }
        Region::Im2col { lower, upper, .. } => {
            let images = rank - 1;
            let mut place = [0, 1, 2, 3, 4].map(|at| if at < rank { word(at) } else { 0 });
            for row in 0..total {
                let mut seen = place;
                for (at, offset) in (rank..).zip(&mut seen[1..images]) {
                    // Offsets are unsigned, of 16 bits.
                    *offset += word(at) & 0xffff;
                }
                f(row, Row::at(map, seen))?;
                let mut image = true;
                for at in 1..images {
                    place[at] += i64::from(map.steps[at]);
                    if place[at] < map.sizes[at].cast_signed() + i64::from(upper[at - 1]) {
                        image = false;
                        break;
                    }
                    place[at] = lower[at - 1].into();
                }
                place[images] += i64::from(image);
            }
        }
    }
    Ok(())
}

/// Calls `f` with the addresses of the pieces of a row in shared memory, and where in the row they are.
fn pieces(
    swizzle: Swizzle,
    row: u64,
    bytes: usize,
    f: &mut dyn FnMut(u64, std::ops::Range<usize>) -> Result<(), Exception>,
) -> Result<(), Exception> {
    let unit = match swizzle {
        Swizzle::None => return f(row, 0..bytes),
        Swizzle::B128Atom32Flip8 => 8,
        _ => 16,
    };
    let mut at = 0;
    while at < bytes {
        let address = row + at as u64;
        let end = bytes.min(at + unit - (address % unit as u64) as usize);
        f(swizzle.place(address), at..end)?;
        at = end;
    }
    Ok(())
}

/// What an element becomes on its way: `rounds` if it is loaded.
fn convert(element: TensorElement, rounds: bool, row: &mut [u8]) {
    let rounds = rounds && matches!(element, TensorElement::TF32 | TensorElement::TF32Ftz);
    if !rounds && !element.flushes() {
        return;
    }
    for bytes in row.chunks_exact_mut(4) {
        let mut word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if element.flushes() && word & 0x7f80_0000 == 0 {
            word &= 0x8000_0000;
        }
        if rounds {
            word = math::convert::tf32(word);
        }
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

fn load(
    map: &TensorMap,
    mode: Mode,
    words: &[u32],
    targets: &Targets,
    memory: &dyn GlobalMemory,
) -> Result<(), Exception> {
    let size = map.element.bytes() as usize;
    let bytes = map.row() as usize * size;
    let total = count(map, mode)? * bytes as u64;
    targets.check(total, TILE_ALIGN, memory)?;
    if targets.is_empty() {
        return Ok(());
    }
    let fill = if map.nan_fill { map.element.nan().to_le_bytes() } else { [0; 8] };
    let mut buffer = [0; ROW];
    let buffer = &mut buffer[..bytes];
    rows(map, mode, words, &mut |number, row| {
        let (begin, end) = (row.inside.0 * size, row.inside.1 * size);
        for element in buffer[..begin].chunks_exact_mut(size) {
            element.copy_from_slice(&fill[..size]);
        }
        for element in buffer[end..].chunks_exact_mut(size) {
            element.copy_from_slice(&fill[..size]);
        }
        if begin < end {
            let from = row.global.wrapping_add(begin as u64);
            global(from, Access::Read)?;
            read(memory, from, &mut buffer[begin..end])?;
            convert(map.element, true, &mut buffer[begin..end]);
        }
        let offset = number * bytes as u64;
        targets.each().try_for_each(|(to, _)| {
            pieces(map.swizzle, to + offset, bytes, &mut |at, part| write(memory, at, &buffer[part]))
        })
    })?;
    targets.complete(total, memory)
}

fn store(
    map: &TensorMap,
    mode: Mode,
    words: &[u32],
    from: u64,
    op: Option<AtomOp>,
    memory: &dyn GlobalMemory,
) -> Result<(), Exception> {
    let how = match op {
        Some(op) => Some((op, combined(op, map.element).ok_or(Exception::Illegal)?)),
        None => None,
    };
    if map.swizzle == Swizzle::B128Atom32Flip8 {
        return Err(Exception::Illegal);
    }
    let size = map.element.bytes() as usize;
    let bytes = map.row() as usize * size;
    aligned(from, TILE_ALIGN, Access::Read)?;
    present(from, count(map, mode)? * bytes as u64, Access::Read, memory)?;
    let mut buffer = [0; ROW];
    let buffer = &mut buffer[..bytes];
    rows(map, mode, words, &mut |number, row| {
        let (begin, end) = (row.inside.0 * size, row.inside.1 * size);
        if begin == end {
            return Ok(());
        }
        let offset = number * bytes as u64;
        pieces(map.swizzle, from + offset, bytes, &mut |at, part| read(memory, at, &mut buffer[part]))?;
        convert(map.element, false, buffer);
        let to = row.global.wrapping_add(begin as u64);
        global(to, Access::Write)?;
        match how {
            None => write(memory, to, &buffer[begin..end]),
            Some((op, ty)) => combine_elements(op, ty, map.element.flushes(), to, &buffer[begin..end], memory),
        }
    })
}

/// Combines elements that lie side by side, each atomically.
fn combine_elements(
    op: AtomOp,
    ty: Ty,
    ftz: bool,
    to: u64,
    values: &[u8],
    memory: &dyn GlobalMemory,
) -> Result<(), Exception> {
    let size = ty.bytes();
    for (at, bytes) in (to..).step_by(size as usize).zip(values.chunks_exact(size as usize)) {
        update(memory, at, size, &mut |old| math::atomic(op, ty, ftz, old, element(bytes), 0).unwrap_or(old))?;
    }
    Ok(())
}

/// A number of up to 8 bytes.
fn element(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Calls `f` with offset and length of each piece of a copy of so many bytes.
fn spans(bytes: u32, f: &mut dyn FnMut(u64, usize) -> Result<(), Exception>) -> Result<(), Exception> {
    let mut at = 0;
    while at < bytes {
        let length = (bytes - at).min(ROW as u32);
        f(at.into(), length as usize)?;
        at += length;
    }
    Ok(())
}

fn multicast(from: u64, bytes: u32, targets: &Targets, memory: &dyn GlobalMemory) -> Result<(), Exception> {
    aligned(from, 16, Access::Read)?;
    whole(from, bytes)?;
    targets.check(bytes.into(), 16, memory)?;
    if targets.is_empty() {
        return Ok(());
    }
    let mut buffer = [0; ROW];
    spans(bytes, &mut |at, length| {
        let from = from.wrapping_add(at);
        global(from, Access::Read)?;
        read(memory, from, &mut buffer[..length])?;
        targets.each().try_for_each(|(to, _)| write(memory, to + at, &buffer[..length]))
    })?;
    targets.complete(bytes.into(), memory)
}

fn combine(op: AtomOp, ty: Ty, to: u64, bytes: u32, from: u64, memory: &dyn GlobalMemory) -> Result<(), Exception> {
    aligned(from, 16, Access::Read)?;
    whole(from, bytes)?;
    aligned(to, 16, Access::Atomic)?;
    present(from, bytes.into(), Access::Read, memory)?;
    if !is_global(to) {
        present(to, bytes.into(), Access::Atomic, memory)?;
    }
    let mut buffer = [0; ROW];
    spans(bytes, &mut |at, length| {
        read(memory, from + at, &mut buffer[..length])?;
        combine_elements(op, ty, false, to.wrapping_add(at), &buffer[..length], memory)
    })
}
