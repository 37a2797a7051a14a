//! What images hold that this GPU does not execute, in words for who has to do with it: machine code, with its kernels' names.
//!
//! The image's own headers say how long it is, and may be wrong: of an image that was refused nothing is read that may not be there. Sizes
//! are limited before memory is allocated for them.

use std::fmt;

use crate::code::fatbin::{self, ELF_MAGIC, HEADER_MAGIC, WRAPPER_MAGIC, u32_at, u64_at};
use crate::values::Image;

/// Bytecode of tiles instead of threads, which newer libraries have compiled by the driver.
pub(crate) const TILE_IR_MAGIC: [u8; 4] = *b"\x7FTil";
/// What the section of a kernel's code is called, before its name.
const CODE: &[u8] = b".text.";
/// Files of 64 bits, whose sections are described by so many bytes each.
const CLASS_64: u8 = 2;
const SECTION_BYTES: u64 = 64;
/// Most bytes of machine code that is looked into, and of the names of a file's sections: names are not worth more.
const MOST_BYTES: u64 = 16 << 20;
/// Kernels that are named, and most characters of each name.
const MOST_NAMED: usize = 3;
const MOST_NAME: usize = 256;

/// What an image holds in place of PTX.
#[derive(Debug)]
pub(crate) enum Foreign {
    TileIr,
    /// Machine code, with these kernels: one at least.
    MachineCode(Vec<String>),
}

impl Foreign {
    /// What the image holds in place of PTX, if that can be told.
    pub(crate) fn of_image(image: &dyn Image) -> Option<Foreign> {
        let image = Careful(image);
        let mut magic = [0; 4];
        let kernels = match image.read(0, &mut magic).then(|| u32::from_le_bytes(magic))? {
            _ if magic == TILE_IR_MAGIC => return Some(Foreign::TileIr),
            _ if magic == ELF_MAGIC => kernels(&image)?,
            HEADER_MAGIC => of_binary(&image)?,
            WRAPPER_MAGIC => {
                let mut pointer = [0; 8];
                let pointer = image.read(8, &mut pointer).then(|| u64::from_le_bytes(pointer))?;
                of_binary(&Careful(&*image.follow(pointer)?))?
            }
            _ => return None,
        };
        (!kernels.is_empty()).then_some(Foreign::MachineCode(kernels))
    }

    /// Names of its kernels.
    pub(crate) fn kernels(self) -> Vec<String> {
        match self {
            Foreign::TileIr => Vec::new(),
            Foreign::MachineCode(kernels) => kernels,
        }
    }
}

/// "machine code (kernels a, b, c and 4 more)".
impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Foreign::MachineCode(kernels) = self else { return f.write_str("Tile IR") };
        let named = kernels.len().min(MOST_NAMED);
        let cut = |name: &String| name.chars().take(MOST_NAME).collect::<String>();
        write!(f, "machine code (kernels {}", kernels[..named].iter().map(cut).collect::<Vec<_>>().join(", "))?;
        match kernels.len() - named {
            0 => f.write_str(")"),
            more => write!(f, " and {more} more)"),
        }
    }
}

/// An image of which nothing promises that it is there.
struct Careful<'a>(&'a dyn Image);

impl Image for Careful<'_> {
    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.0.try_read(offset, out)
    }

    fn follow(&self, pointer: u64) -> Option<Box<dyn Image + '_>> {
        self.0.follow(pointer)
    }

    fn text(&self, _: u64) -> Vec<u8> {
        // Where one ends is not known before it is read.
        Vec::new()
    }
}

fn of_binary(image: &dyn Image) -> Option<Vec<String>> {
    kernels(&fatbin::machine_code(image, MOST_BYTES)?.as_slice())
}

/// The kernels of a file of machine code; `None` if it is none.
fn kernels(image: &dyn Image) -> Option<Vec<String>> {
    let part = |at: u64, bytes: u64| {
        let mut part = vec![0; usize::try_from(bytes).ok().filter(|_| bytes <= MOST_BYTES)?];
        image.read(at, &mut part).then_some(part)
    };
    let header = part(0, 64).filter(|header| header.starts_with(&ELF_MAGIC) && header[4] == CLASS_64)?;
    // Where the table of sections is; how large each entry is, how many there are, and which has the names.
    let (table, each) = (u64_at(&header, 0x28), u64::from(u32_at(&header, 0x38) >> 16));
    let [count, names] = [u32_at(&header, 0x3c) as u16, (u32_at(&header, 0x3c) >> 16) as u16].map(u64::from);
    let sections = part(table, count * SECTION_BYTES).filter(|_| each == SECTION_BYTES)?;
    let sections = sections.chunks_exact(SECTION_BYTES as usize);
    let of_names = sections.clone().nth(names as usize)?;
    let names = part(u64_at(of_names, 0x18), u64_at(of_names, 0x20))?;
    let code = |section| names.get(u32_at(section, 0) as usize..)?.strip_prefix(CODE);
    let name = |section| {
        let name = code(section)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Some(String::from_utf8_lossy(&name[..end]).into_owned())
    };
    Some(sections.filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(image: &dyn Image) -> Option<String> {
        Foreign::of_image(image).map(|found| found.to_string())
    }

    /// A file with sections of these names, and one with the names.
    fn elf(names: &[&str]) -> Vec<u8> {
        let mut table = vec![0u8];
        let mut sections = vec![0u8; 64];
        for name in names.iter().chain(&[".shstrtab"]) {
            let mut section = [0; 64];
            section[..4].copy_from_slice(&(table.len() as u32).to_le_bytes());
            table.extend(name.bytes().chain([0]));
            sections.extend(section);
        }
        let count = names.len() as u16 + 2;
        let of_names = sections.len() - 64;
        let names_at = 64 + sections.len() as u64;
        sections[of_names + 0x18..][..8].copy_from_slice(&names_at.to_le_bytes());
        sections[of_names + 0x20..][..8].copy_from_slice(&(table.len() as u64).to_le_bytes());
        let mut header = [0; 64];
        header[..4].copy_from_slice(&ELF_MAGIC);
        header[4] = CLASS_64;
        header[0x28] = 64;
        header[0x3a] = 64;
        header[0x3c..0x3e].copy_from_slice(&count.to_le_bytes());
        header[0x3e..].copy_from_slice(&(count - 1).to_le_bytes());
        [&header[..], &sections, &table].concat()
    }

    #[test]
    fn kernels_are_named() {
        let told = |names: &[&str]| describe(&elf(names).as_slice());
        assert_eq!(told(&[".text.a", ".nv.info", ".text.b"]).as_deref(), Some("machine code (kernels a, b)"));
        let many = [".text.a", ".text.b", ".text.c", ".text.d", ".text.e"];
        assert_eq!(told(&many).as_deref(), Some("machine code (kernels a, b, c and 2 more)"));
        assert_eq!(told(&[".data"]), None);
        let long = format!(".text.{}", "x".repeat(1000));
        let cut = format!("machine code (kernels {})", "x".repeat(MOST_NAME));
        assert_eq!(told(&[&long]), Some(cut));
        let mut of_32_bits = elf(&[".text.a"]);
        of_32_bits[4] = 1;
        assert_eq!(describe(&of_32_bits.as_slice()), None);
        assert_eq!(describe(&&b"\x7FTileIR\0"[..]).as_deref(), Some("Tile IR"));
        assert_eq!(describe(&&b".version 7.0"[..]), None);
    }

    #[test]
    fn what_may_not_be_there_is_only_tried() {
        /// A program's memory, which ends where nothing says.
        struct Ends(Vec<u8>);
        impl Image for Ends {
            fn read(&self, _: u64, _: &mut [u8]) -> bool {
                panic!("it would fault")
            }
            fn try_read(&self, offset: u64, out: &mut [u8]) -> bool {
                self.0.as_slice().read(offset, out)
            }
            fn follow(&self, _: u64) -> Option<Box<dyn Image + '_>> {
                Some(Box::new(Ends(self.0.get(16..)?.to_vec())))
            }
            fn text(&self, _: u64) -> Vec<u8> {
                panic!("it would fault")
            }
        }
        let whole = elf(&[".text.a"]);
        assert_eq!(describe(&Ends(whole.clone())).as_deref(), Some("machine code (kernels a)"));
        assert_eq!(describe(&Ends(whole[..100].to_vec())), None);
        let wrapper = [&WRAPPER_MAGIC.to_le_bytes()[..], &[1; 12], &HEADER_MAGIC.to_le_bytes(), &[0; 2]].concat();
        assert_eq!(describe(&Ends(wrapper)), None);
    }

    #[test]
    fn damage_is_survived() {
        let whole = elf(&[".text.a", ".text.b"]);
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                describe(&damaged.as_slice());
            }
            describe(&&whole[..at]);
        }
    }
}
