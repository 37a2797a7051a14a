//! Fat binaries: containers of code for several architectures.
//!
//! ```text
//! wrapper v1 ──► header, entries            (one fat binary)
//! wrapper v2 ──► pointers ──► header, …     (those of each file compiled with -rdc=true; NULL ends the list)
//! ```
//! The first pointer of a wrapper leads to what the toolkit linked of them, machine code, which is passed over: their PTX is
//! linked here.
//!
//! A header says how many bytes of entries follow; an entry is a small header and a payload: PTX text or machine code
//! (ELF), plain or compressed with LZ4 or Zstandard. This GPU's instruction set is PTX, so of each fat binary the PTX for
//! the highest architecture not above the GPU's is taken. If there is none, but machine code that such a GPU runs, the PTX
//! beside it is the same code, though for a higher architecture of the GPU's family: vendor libraries have PTX for the
//! highest only. That goes for a fat binary alone: among files to link there is the device runtime library, whose PTX
//! is of that kind too, and this GPU has functions of its own in place of the library's.
//!
//! The layout was learned from files; no part of it is published. Images come from programs: sizes are limited before
//! memory is allocated for them.

use std::io::Read;

use crate::code::foreign::TILE_IR_MAGIC;
use crate::error::{CudaError, Result};
use crate::values::Image;

pub(crate) const WRAPPER_MAGIC: u32 = 0x4662_43B1;
pub(crate) const HEADER_MAGIC: u32 = 0xBA55_ED50;
const HEADER_BYTES: u64 = 16;
pub(crate) const ELF_MAGIC: [u8; 4] = *b"\x7FELF";
/// Kinds of entries: PTX text; machine code.
const PTX: u16 = 1;
const MACHINE_CODE: u16 = 2;
/// Entry flags.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// Smallest entry header: up to and including the flags; later fields are read if they are there.
const ENTRY_BYTES: u64 = 0x30;
/// Most bytes of one fat binary: those of vendor libraries are below 1 GiB.
pub(crate) const MOST_BYTES: u64 = 2 << 30;
/// Most entries: a header of 2 GiB could hold 40 million empty ones.
const MOST_ENTRIES: usize = 4096;
/// Most fat binaries behind one wrapper: one per compiled file of a program.
const MOST_BINARIES: u64 = 4096;
/// Most bytes of PTX text after decompression: a few bytes can decompress to any size.
pub(crate) const MOST_PTX: u64 = 512 << 20;

/// What an image holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// PTX texts, trailing NULs removed; several only for a wrapper of version 2 and for concatenated fat binaries.
    pub texts: Vec<Vec<u8>>,
    /// Fat binaries without PTX for the GPU.
    pub without: usize,
}

impl Found {
    fn one(text: Result<Vec<u8>>) -> Result<Found> {
        Ok(Found { texts: vec![text?], without: 0 })
    }

    /// Adds a fat binary's text, or that it has none.
    fn add(&mut self, text: Result<Vec<u8>>) -> Result<()> {
        match text {
            Ok(text) => self.texts.push(text),
            Err(CudaError::NO_BINARY_FOR_GPU) => self.without += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// The PTX texts of an image.
///
/// # Errors
/// `INVALID_IMAGE` if it is nothing known or malformed, `NO_BINARY_FOR_GPU` if it has no PTX for the GPU.
pub fn texts(image: &dyn Image, capability: u32) -> Result<Found> {
    let mut magic = [0; 4];
    // A text may be shorter, and nothing be behind it.
    if !image.try_read(0, &mut magic) {
        return Found::one(text(image));
    }
    match u32::from_le_bytes(magic) {
        WRAPPER_MAGIC => wrapped(image, capability),
        HEADER_MAGIC => Found::one(binary(image, capability, Kin::Alone)?.0),
        _ if magic == ELF_MAGIC || magic == TILE_IR_MAGIC => Err(CudaError::NO_BINARY_FOR_GPU),
        _ => Found::one(text(image)),
    }
}

/// The PTX texts of fat binaries one behind the other, as sections of object files have them.
///
/// # Errors
/// `INVALID_IMAGE` if one is malformed.
pub fn section(bytes: &[u8], capability: u32) -> Result<Found> {
    let mut found = Found::default();
    let mut rest = bytes;
    for _ in 0..MOST_BINARIES {
        // Sections are padded.
        rest = &rest[rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len())..];
        if rest.is_empty() {
            return Ok(found);
        }
        let (text, bytes) = binary(&rest, capability, Kin::Linked)?;
        found.add(text)?;
        rest = usize::try_from(bytes).ok().and_then(|bytes| rest.get(bytes..)).unwrap_or(&[]);
    }
    Err(CudaError::INVALID_IMAGE)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn wrapped(image: &dyn Image, capability: u32) -> Result<Found> {
    let mut wrapper = [0; 24];
    if !image.read(0, &mut wrapper) {
        return Err(CudaError::INVALID_IMAGE);
    }
    match u32_at(&wrapper, 4) {
        1 => {
            let data = image.follow(u64_at(&wrapper, 8)).ok_or(CudaError::INVALID_IMAGE)?;
            Found::one(binary(&*data, capability, Kin::Alone)?.0)
        }
        2 => {
            let list = image.follow(u64_at(&wrapper, 16)).ok_or(CudaError::INVALID_IMAGE)?;
            let mut found = Found::default();
            for index in 0..MOST_BINARIES {
                let mut pointer = [0; 8];
                if !list.read(index * 8, &mut pointer) {
                    return Err(CudaError::INVALID_IMAGE);
                }
                let pointer = u64::from_le_bytes(pointer);
                if pointer == 0 {
                    return if found.texts.is_empty() { Err(CudaError::NO_BINARY_FOR_GPU) } else { Ok(found) };
                }
                let data = list.follow(pointer).ok_or(CudaError::INVALID_IMAGE)?;
                // The device runtime library, linked in though unused, has machine code only.
                found.add(binary(&*data, capability, Kin::Linked)?.0)?;
            }
            Err(CudaError::INVALID_IMAGE)
        }
        _ => Err(CudaError::INVALID_IMAGE),
    }
}

/// Where an entry's payload is, and what.
#[derive(Clone, Copy)]
struct Entry {
    kind: u16,
    at: u64,
    bytes: u64,
    compressed: u64,
    uncompressed: u64,
    flags: u64,
    arch: u32,
}

/// Whether a fat binary is all of an image, or one of those that are linked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kin {
    Alone,
    Linked,
}

/// The best PTX of one fat binary, or that there is none, and how long it is.
fn binary(image: &dyn Image, capability: u32, kin: Kin) -> Result<(Result<Vec<u8>>, u64)> {
    let (entries, end) = entries(image)?;
    let fits = |entry: &&Entry| entry.arch <= capability;
    let family = |entry: &&Entry| entry.arch / 10 == capability / 10;
    // Link-time intermediate code, and whatever comes are passed over; of several equal ones the first is taken.
    let ptx = || entries.iter().filter(|entry| entry.kind == PTX);
    let best = ptx().rev().filter(fits).max_by_key(|entry| entry.arch);
    let above = || {
        let runs = entries.iter().any(|entry| entry.kind == MACHINE_CODE && family(&entry) && fits(&entry));
        ptx().filter(family).min_by_key(|entry| entry.arch).filter(|_| runs && kin == Kin::Alone)
    };
    let best = best.or_else(above).ok_or(CudaError::NO_BINARY_FOR_GPU);
    Ok((best.and_then(|best| trimmed(payload(image, *best, MOST_PTX)?)), end))
}

/// The machine code of one fat binary, if it has any and that is at most `most` bytes.
pub(crate) fn machine_code(image: &dyn Image, most: u64) -> Option<Vec<u8>> {
    let entries = entries(image).ok()?.0;
    payload(image, *entries.iter().rfind(|entry| entry.kind == MACHINE_CODE)?, most).ok()
}

/// The entries of one fat binary, and where it ends.
fn entries(image: &dyn Image) -> Result<(Vec<Entry>, u64)> {
    let mut header = [0; HEADER_BYTES as usize];
    if !image.read(0, &mut header) || u32_at(&header, 0) != HEADER_MAGIC {
        return Err(CudaError::INVALID_IMAGE);
    }
    let start = u64::from(u32_at(&header, 4) >> 16);
    let bytes = u64_at(&header, 8);
    if start < HEADER_BYTES || bytes > MOST_BYTES {
        return Err(CudaError::INVALID_IMAGE);
    }
    let end = start + bytes;
    let mut entries = Vec::new();
    let mut at = start;
    while at < end && entries.len() < MOST_ENTRIES {
        let mut head = [0; 0x48];
        let known = (end - at).min(head.len() as u64) as usize;
        if known < ENTRY_BYTES as usize || !image.read(at, &mut head[..known]) {
            return Err(CudaError::INVALID_IMAGE);
        }
        let header_bytes = u64::from(u32_at(&head, 4));
        let payload = u64::from(u32_at(&head, 8));
        let whole = header_bytes.checked_add(payload).filter(|&whole| whole <= end - at);
        let (true, Some(whole)) = (header_bytes >= ENTRY_BYTES, whole) else {
            return Err(CudaError::INVALID_IMAGE);
        };
        let has_uncompressed = header_bytes >= 0x40 && known >= 0x40;
        entries.push(Entry {
            kind: u32_at(&head, 0) as u16,
            at: at + header_bytes,
            bytes: payload,
            compressed: u64::from(u32_at(&head, 16)),
            uncompressed: if has_uncompressed { u64_at(&head, 0x38) } else { 0 },
            flags: u64_at(&head, 0x28),
            arch: u32_at(&head, 28),
        });
        at += whole;
    }
    Ok((entries, end))
}

/// An entry's payload, decompressed: at most `most` bytes.
fn payload(image: &dyn Image, entry: Entry, most: u64) -> Result<Vec<u8>> {
    let compressed = entry.flags & (LZ4 | ZSTD) != 0;
    let stored = if compressed && entry.compressed != 0 { entry.compressed } else { entry.bytes };
    if stored > entry.bytes || stored > most || entry.uncompressed > most {
        return Err(CudaError::INVALID_IMAGE);
    }
    let mut bytes = vec![0; stored as usize];
    if !image.read(entry.at, &mut bytes) {
        return Err(CudaError::INVALID_IMAGE);
    }
    if entry.flags & ZSTD != 0 {
        unzstd(&bytes, entry.uncompressed, most)
    } else if entry.flags & LZ4 != 0 {
        lz4_flex::block::decompress(&bytes, entry.uncompressed as usize).map_err(|_| CudaError::INVALID_IMAGE)
    } else {
        Ok(bytes)
    }
}

fn unzstd(bytes: &[u8], uncompressed: u64, most: u64) -> Result<Vec<u8>> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(bytes).map_err(|_| CudaError::INVALID_IMAGE)?;
    let limit = if uncompressed == 0 { most } else { uncompressed };
    let mut text = Vec::new();
    decoder.take(limit + 1).read_to_end(&mut text).map_err(|_| CudaError::INVALID_IMAGE)?;
    if text.len() as u64 > limit {
        return Err(CudaError::INVALID_IMAGE);
    }
    Ok(text)
}

/// PTX text without a container.
fn text(image: &dyn Image) -> Result<Vec<u8>> {
    trimmed(image.text(MOST_PTX))
}

/// Text without trailing NULs, if it can be PTX at all.
fn trimmed(mut text: Vec<u8>) -> Result<Vec<u8>> {
    text.truncate(ptx::before_nul(&text).len());
    let looks = text.windows(8).take(64 << 10).any(|window| window == b".version");
    if looks { Ok(text) } else { Err(CudaError::INVALID_IMAGE) }
}

#[cfg(test)]
mod tests;
