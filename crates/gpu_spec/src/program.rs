//! Sundial's own: what `PROGRAM_ADDRESS` and constant bank 0 of a launch descriptor point at.
//!
//! The instruction set of the hardware is not public; this GPU's is PTX. A module lies in GPU memory as one container,
//! written by the driver and read by the device:
//!
//! ```text
//! base + 0                 Header
//! base + entries_offset    Entry × entry_count      PROGRAM_ADDRESS points at one of these
//! base + symbols_offset    Symbol × symbol_count    addresses of module variables
//! base + names_offset      names, not terminated
//! base + text_offset       PTX text
//! ```
//!
//! Everything is little endian; tables are 16-byte aligned. Offsets count from the header, those of names from the
//! beginning of the names. The device caches what it compiled, by address of the entry, until the method
//! `INVALIDATE_SHADER_CACHES` names instructions.
//!
//! Constant bank 0 begins with a [`ConstantBank`]; the parameter block follows at [`PARAMS_OFFSET`], where Turing has it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// [`Header::magic`].
pub const MAGIC: u32 = u32::from_le_bytes(*b"SDLP");
/// [`Entry::magic`].
pub const ENTRY_MAGIC: u32 = u32::from_le_bytes(*b"SDLE");
/// [`Header::version`].
pub const VERSION: u32 = 1;
/// Largest container, bytes: what a launch may make the device read and parse.
pub const MAX_BYTES: u32 = 128 << 20;
/// Most variables of a module: each becomes an entry of a table. Each static member of a C++ template is one, of each instance: there are
/// programs with 100,000.
pub const MAX_SYMBOLS: usize = 1 << 18;
/// Offset of the parameter block in constant bank 0, bytes.
pub const PARAMS_OFFSET: u64 = 0x160;

/// The beginning of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of the whole container.
    pub bytes: u32,
    /// Kernels.
    pub entry_count: u32,
    /// Where their table begins.
    pub entries_offset: u32,
    /// Variables.
    pub symbol_count: u32,
    /// Where their table begins.
    pub symbols_offset: u32,
    /// Where the names begin.
    pub names_offset: u32,
    /// Bytes of names.
    pub names_bytes: u32,
    /// Where the text begins.
    pub text_offset: u32,
    /// Bytes of text.
    pub text_bytes: u32,
    /// Zero.
    pub reserved: [u32; 5],
}

/// A kernel of the container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Entry {
    /// [`ENTRY_MAGIC`].
    pub magic: u32,
    /// Bytes from the header to this entry: the way back.
    pub back: u32,
    /// Where its name begins.
    pub name_offset: u32,
    /// Bytes of its name.
    pub name_bytes: u32,
}

/// A module variable and its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Symbol {
    /// Where its name begins.
    pub name_offset: u32,
    /// Bytes of its name.
    pub name_bytes: u32,
    /// GPU virtual address.
    pub address: u64,
}

/// The driver's part of constant bank 0; addresses are GPU virtual, 0 = absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ConstantBank {
    /// printf FIFO.
    pub printf: u64,
    /// Heap of device-side `malloc`.
    pub heap: u64,
    /// Its size, bytes.
    pub heap_bytes: u64,
    /// Workspace of a cooperative grid: what `%envreg1` (upper half) and `%envreg2` (lower half) name.
    pub grid_workspace: u64,
    /// Dynamic shared memory per CTA, bytes.
    pub dynamic_shared: u32,
    /// Bytes of the parameter block.
    pub param_bytes: u32,
}

const ALIGN: usize = 16;

/// Builds a container of `text` with kernels (in this order) and variables; `None` if it would pass [`MAX_BYTES`].
///
/// The address of kernel `index` is the container's plus [`entry_offset`].
#[must_use]
pub fn encode(text: &[u8], entries: &[&str], symbols: &[(&str, u64)]) -> Option<Vec<u8>> {
    let mut container = encode_head(text.len(), entries, symbols)?;
    container.extend_from_slice(text);
    Some(container)
}

/// What lies before the text, of `text_bytes`, in the container that [`encode`] builds.
#[must_use]
pub fn encode_head(text_bytes: usize, entries: &[&str], symbols: &[(&str, u64)]) -> Option<Vec<u8>> {
    let entries_offset = size_of::<Header>();
    let symbols_offset = entries_offset + entries.len() * size_of::<Entry>();
    let names_offset = symbols_offset + symbols.len() * size_of::<Symbol>();
    let names_bytes: usize =
        entries.iter().map(|name| name.len()).sum::<usize>() + symbols.iter().map(|s| s.0.len()).sum::<usize>();
    let text_offset = (names_offset + names_bytes).next_multiple_of(ALIGN);
    let bytes = text_offset + text_bytes;
    if bytes > MAX_BYTES as usize {
        return None;
    }
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        bytes: bytes as u32,
        entry_count: entries.len() as u32,
        entries_offset: entries_offset as u32,
        symbol_count: symbols.len() as u32,
        symbols_offset: symbols_offset as u32,
        names_offset: names_offset as u32,
        names_bytes: names_bytes as u32,
        text_offset: text_offset as u32,
        text_bytes: text_bytes as u32,
        reserved: [0; 5],
    };
    let mut out = Vec::with_capacity(text_offset);
    let mut names = Vec::with_capacity(names_bytes);
    out.extend_from_slice(header.as_bytes());
    for name in entries {
        let (name_offset, name_bytes) = (names.len() as u32, name.len() as u32);
        let entry = Entry { magic: ENTRY_MAGIC, back: out.len() as u32, name_offset, name_bytes };
        out.extend_from_slice(entry.as_bytes());
        names.extend_from_slice(name.as_bytes());
    }
    for (name, address) in symbols {
        let symbol = Symbol { name_offset: names.len() as u32, name_bytes: name.len() as u32, address: *address };
        out.extend_from_slice(symbol.as_bytes());
        names.extend_from_slice(name.as_bytes());
    }
    out.extend_from_slice(&names);
    out.resize(text_offset, 0);
    Some(out)
}

/// Offset of the entry of kernel `index` in a container that [`encode`] built.
#[must_use]
pub const fn entry_offset(index: u32) -> u64 {
    size_of::<Header>() as u64 + index as u64 * size_of::<Entry>() as u64
}

/// A container as read from memory, checked.
#[derive(Clone, Debug)]
pub struct Container<'a> {
    /// PTX text.
    pub text: &'a [u8],
    /// Variables by name and address.
    pub symbols: Vec<(&'a str, u64)>,
    /// Names, as [`entry_name`] wants them.
    pub names: &'a [u8],
}

impl<'a> Container<'a> {
    /// Decodes the bytes of a whole container (as many as its header says); `None` if they are none.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Container<'a>> {
        let (header, _) = Header::read_from_prefix(bytes).ok()?;
        if !header.is_valid() || header.bytes as usize != bytes.len() {
            return None;
        }
        let names = part(bytes, header.names_offset, header.names_bytes)?;
        let table = header.symbol_count.checked_mul(size_of::<Symbol>() as u32)?;
        let symbols = part(bytes, header.symbols_offset, table)?
            .chunks_exact(size_of::<Symbol>())
            .map(|raw| {
                let symbol = Symbol::read_from_bytes(raw).ok()?;
                Some((text(names, symbol.name_offset, symbol.name_bytes)?, symbol.address))
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Container { text: part(bytes, header.text_offset, header.text_bytes)?, symbols, names })
    }
}

/// The name of a kernel in the names of its container; `None` if the entry names none.
#[must_use]
pub fn entry_name<'a>(names: &'a [u8], entry: &Entry) -> Option<&'a str> {
    text(names, entry.name_offset, entry.name_bytes)
}

impl Header {
    /// Magic, version and size are as they should be.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.magic == MAGIC && self.version == VERSION && self.bytes <= MAX_BYTES
    }
}

fn part(bytes: &[u8], offset: u32, len: u32) -> Option<&[u8]> {
    bytes.get(offset as usize..(offset as usize).checked_add(len as usize)?)
}

fn text(names: &[u8], offset: u32, len: u32) -> Option<&str> {
    std::str::from_utf8(part(names, offset, len)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_round_trip_and_damage_is_seen() {
        let bytes = encode(b".version 8.5", &["add", "mul"], &[("table", 0x7f00_0000_1000)]).unwrap();
        let container = Container::decode(&bytes).unwrap();
        assert_eq!(container.text, b".version 8.5");
        assert_eq!(container.symbols, [("table", 0x7f00_0000_1000)]);
        let entry = Entry::read_from_prefix(&bytes[entry_offset(1) as usize..]).unwrap().0;
        assert_eq!((entry.magic, u64::from(entry.back)), (ENTRY_MAGIC, entry_offset(1)));
        assert_eq!(entry_name(container.names, &entry), Some("mul"));
        assert!(Container::decode(&bytes[..bytes.len() - 1]).is_none());
        for at in 0..size_of::<Header>() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            let _ = Container::decode(&damaged);
        }
    }
}
