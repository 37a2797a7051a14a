//! Host object files and libraries of them: which fat binaries are in their sections.
//!
//! nvcc puts the device code of a file that it compiles into the section `.nv_fatbin` of the object, and relocatable device
//! code (`-rdc=true`) into `__nv_relfatbin`.

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSection};

use crate::code::fatbin::{self, Found};
use crate::error::{CudaError, Result};

const ELF_MAGIC: &[u8] = b"\x7FELF";
const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";
const THIN_MAGIC: &[u8] = b"!<thin>\n";
/// `e_machine` of device code.
const EM_CUDA: u16 = 190;
/// Most members of a library: those of vendors have a few hundred.
const MOST_MEMBERS: usize = 65536;

/// What such a file holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Member {
    /// The member's name in its library; none for an object file.
    pub name: Option<String>,
    /// Its texts.
    pub found: Found,
}

/// Is this an object file or a library?
#[must_use]
pub fn is_object(bytes: &[u8]) -> bool {
    [ELF_MAGIC, ARCHIVE_MAGIC, THIN_MAGIC].iter().any(|magic| bytes.starts_with(magic))
}

/// The device code of an object file, or of the members of a library that have any.
///
/// # Errors
/// `INVALID_IMAGE` for what is neither, or malformed, and for thin archives, whose members lie elsewhere;
/// `NO_BINARY_FOR_GPU` for an object file without PTX for the GPU.
pub fn members(bytes: &[u8], capability: u32) -> Result<Vec<Member>> {
    if !bytes.starts_with(ARCHIVE_MAGIC) {
        let found = object_file(bytes, capability)?;
        if found.texts.is_empty() {
            return Err(CudaError::NO_BINARY_FOR_GPU);
        }
        return Ok(vec![Member { name: None, found }]);
    }
    let archive = ArchiveFile::parse(bytes).map_err(|_| CudaError::INVALID_IMAGE)?;
    let mut members = Vec::new();
    for member in archive.members().take(MOST_MEMBERS) {
        let member = member.map_err(|_| CudaError::INVALID_IMAGE)?;
        let data = member.data(bytes).map_err(|_| CudaError::INVALID_IMAGE)?;
        // Libraries may hold anything beside objects.
        if data.starts_with(ELF_MAGIC) {
            let found = object_file(data, capability)?;
            if found != Found::default() {
                members.push(Member { name: Some(String::from_utf8_lossy(member.name()).into_owned()), found });
            }
        }
    }
    Ok(members)
}

fn object_file(bytes: &[u8], capability: u32) -> Result<Found> {
    let machine = bytes.get(18..20).map(|word| u16::from_le_bytes([word[0], word[1]]));
    if !bytes.starts_with(ELF_MAGIC) {
        return Err(CudaError::INVALID_IMAGE);
    }
    if machine == Some(EM_CUDA) {
        // A cubin: machine code.
        return Ok(Found { texts: Vec::new(), without: 1 });
    }
    let file = object::File::parse(bytes).map_err(|_| CudaError::INVALID_IMAGE)?;
    let mut found = Found::default();
    for section in file.sections() {
        if matches!(section.name_bytes(), Ok(b".nv_fatbin" | b"__nv_relfatbin")) {
            let data = section.data().map_err(|_| CudaError::INVALID_IMAGE)?;
            let more = fatbin::section(data, capability)?;
            found.texts.extend(more.texts);
            found.without += more.without;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
