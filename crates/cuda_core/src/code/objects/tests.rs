use proptest::prelude::*;

use super::*;

const PTX: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

/// A fat binary with one entry, of PTX (1) or machine code (2).
pub(super) fn fat_binary(kind: u16, arch: u32, payload: &[u8]) -> Vec<u8> {
    let padded = payload.len().next_multiple_of(8);
    let mut bytes = [0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0].to_vec();
    bytes.extend_from_slice(&(0x40 + padded as u64).to_le_bytes());
    let mut entry = vec![0; 0x40];
    entry[..2].copy_from_slice(&kind.to_le_bytes());
    entry[4..8].copy_from_slice(&0x40u32.to_le_bytes());
    entry[8..12].copy_from_slice(&(padded as u32).to_le_bytes());
    entry[28..32].copy_from_slice(&arch.to_le_bytes());
    bytes.extend_from_slice(&entry);
    bytes.extend_from_slice(payload);
    bytes.resize(16 + 0x40 + padded, 0);
    bytes
}

/// A relocatable ELF file with these sections.
fn elf(machine: u16, sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut names = b"\0.shstrtab\0".to_vec();
    let mut data = Vec::new();
    let mut headers = vec![[0u8; 64]];
    let mut header = |name: u32, kind: u32, at: usize, bytes: usize| {
        let mut header = [0; 64];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(bytes as u64).to_le_bytes());
        headers.push(header);
    };
    for (name, bytes) in sections {
        header(names.len() as u32, 1, 64 + data.len(), bytes.len());
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        data.extend_from_slice(bytes);
    }
    header(1, 3, 64 + data.len(), names.len());
    data.extend_from_slice(&names);
    let mut file = b"\x7FELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    file[16..18].copy_from_slice(&1u16.to_le_bytes());
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    file[20] = 1;
    file[40..48].copy_from_slice(&(64 + data.len() as u64).to_le_bytes());
    file[52] = 64;
    file[58] = 64;
    file[60..62].copy_from_slice(&(headers.len() as u16).to_le_bytes());
    file[62..64].copy_from_slice(&(headers.len() as u16 - 1).to_le_bytes());
    file.extend_from_slice(&data);
    headers.iter().for_each(|header| file.extend_from_slice(header));
    file
}

fn library(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = ARCHIVE_MAGIC.to_vec();
    for (name, data) in members {
        bytes.extend_from_slice(
            format!("{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", format!("{name}/"), 0, 0, 0, 644, data.len()).as_bytes(),
        );
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(2), b'\n');
    }
    bytes
}

fn text(tail: &str) -> Vec<u8> {
    format!("{PTX}// {tail}").into_bytes()
}

/// An object with two files' relocatable code, a whole program's, and other sections.
fn sample() -> Vec<u8> {
    let relocatable =
        [fat_binary(1, 75, &text("a")), vec![0; 16], fat_binary(2, 75, b"\x7FELF"), fat_binary(1, 120, &text("b"))];
    elf(
        62,
        &[
            (".text", b"code"),
            ("__nv_relfatbin", &relocatable.concat()),
            (".nv_fatbin", &fat_binary(1, 80, &text("c"))),
        ],
    )
}

#[test]
fn device_code_of_an_object_is_found() {
    let found = Found { texts: vec![text("a"), text("b"), text("c")], without: 1 };
    assert_eq!(members(&sample(), 120), Ok(vec![Member { name: None, found }]));
    // Members of libraries lie anywhere.
    let moved = [b"x", &sample()[..]].concat();
    assert!(members(&moved[1..], 120).is_ok());
    let older = members(&sample(), 75).unwrap();
    assert_eq!((older[0].found.texts.len(), older[0].found.without), (1, 3));
}

#[test]
fn members_of_a_library_are_found() {
    let machine = elf(62, &[("__nv_relfatbin", &fat_binary(2, 75, b"\x7FELF"))]);
    let host = elf(62, &[(".text", b"code")]);
    let bytes = library(&[("sample.o", &sample()), ("notes.txt", b"odd"), ("host.o", &host), ("machine.o", &machine)]);
    let found = members(&bytes, 120).unwrap();
    let names: Vec<_> = found.iter().map(|m| (m.name.as_deref(), m.found.texts.len(), m.found.without)).collect();
    assert_eq!(names, [(Some("sample.o"), 3, 1), (Some("machine.o"), 0, 1)]);
    assert_eq!(members(&library(&[]), 120), Ok(vec![]));
}

#[test]
fn what_has_no_code_is_refused() {
    let object = |sections: &[(&str, &[u8])]| members(&elf(62, sections), 120);
    assert_eq!(object(&[(".text", b"code")]), Err(CudaError::NO_BINARY_FOR_GPU));
    assert_eq!(object(&[(".nv_fatbin", &fat_binary(2, 75, b"x"))]), Err(CudaError::NO_BINARY_FOR_GPU));
    assert_eq!(object(&[(".nv_fatbin", b"something else entirely")]), Err(CudaError::INVALID_IMAGE));
    assert_eq!(
        members(&elf(EM_CUDA, &[(".nv_fatbin", &fat_binary(1, 75, &text("a")))]), 120),
        Err(CudaError::NO_BINARY_FOR_GPU)
    );
    let cut = sample();
    assert_eq!(members(&cut[..cut.len() - 10], 120), Err(CudaError::INVALID_IMAGE));
    let cut = library(&[("sample.o", &sample())]);
    assert_eq!(members(&cut[..cut.len() - 10], 120), Err(CudaError::INVALID_IMAGE));
    assert_eq!(members(b"!<thin>\n", 120), Err(CudaError::INVALID_IMAGE));
}

proptest! {
    #[test]
    fn mutations_are_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        archive in any::<bool>(),
    ) {
        let mut bytes = if archive { library(&[("a.o", &sample()), ("b.o", &sample())]) } else { sample() };
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = members(&bytes, 120);
    }
}
