use std::collections::HashMap;

use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

/// Memory of a program: images by address.
#[derive(Clone, Default)]
struct Memory(HashMap<u64, Vec<u8>>);

struct At<'a> {
    memory: &'a Memory,
    bytes: &'a [u8],
}

impl Image for At<'_> {
    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.bytes.read(offset, out)
    }

    fn follow(&self, pointer: u64) -> Option<Box<dyn Image + '_>> {
        let bytes = self.memory.0.get(&pointer)?;
        Some(Box::new(At { memory: self.memory, bytes }))
    }

    fn text(&self, most: u64) -> Vec<u8> {
        self.bytes.text(most)
    }
}

impl Memory {
    fn texts(&self, address: u64) -> Result<Vec<String>> {
        let image = At { memory: self, bytes: &self.0[&address] };
        let texts = texts(&image, 120)?.texts;
        Ok(texts.into_iter().map(|text| String::from_utf8_lossy(&text).into_owned()).collect())
    }
}

fn entry(kind: u16, arch: u32, flags: u64, payload: &[u8], uncompressed: u64) -> Vec<u8> {
    let mut entry = vec![0; 0x50];
    let padded = payload.len().next_multiple_of(8);
    entry[..2].copy_from_slice(&kind.to_le_bytes());
    entry[2..4].copy_from_slice(&0x101u16.to_le_bytes());
    entry[4..8].copy_from_slice(&0x50u32.to_le_bytes());
    entry[8..12].copy_from_slice(&(padded as u32).to_le_bytes());
    if flags & (LZ4 | ZSTD) != 0 {
        entry[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        entry[0x38..0x40].copy_from_slice(&uncompressed.to_le_bytes());
    }
    entry[28..32].copy_from_slice(&arch.to_le_bytes());
    entry[0x28..0x30].copy_from_slice(&flags.to_le_bytes());
    entry.extend_from_slice(payload);
    entry.resize(0x50 + padded, 0);
    entry
}

fn binary_of(entries: &[Vec<u8>]) -> Vec<u8> {
    let entries = entries.concat();
    let mut binary = Vec::new();
    binary.extend_from_slice(&HEADER_MAGIC.to_le_bytes());
    binary.extend_from_slice(&[1, 0, 16, 0]);
    binary.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    binary.extend_from_slice(&entries);
    binary
}

fn wrapper(version: u32, data: u64, binaries: u64) -> Vec<u8> {
    let mut wrapper = Vec::new();
    wrapper.extend_from_slice(&WRAPPER_MAGIC.to_le_bytes());
    wrapper.extend_from_slice(&version.to_le_bytes());
    wrapper.extend_from_slice(&data.to_le_bytes());
    wrapper.extend_from_slice(&binaries.to_le_bytes());
    wrapper
}

fn ptx(target: u32) -> String {
    format!(
        ".version 8.0\n.target sm_{target}\n.visible .entry kernel_{target}() {{ ret; }}\n// {}",
        "again ".repeat(40)
    )
}

fn zstd(text: &str) -> Vec<u8> {
    compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
}

/// One of everything.
fn sample() -> (Memory, u64) {
    let (a, b, c) = (ptx(75), ptx(120), ptx(121));
    let binary = binary_of(&[
        entry(2, 120, 0x11, b"\x7FELF machine code", 0),
        entry(1, 75, 0x11, a.as_bytes(), 0),
        entry(1, 120, 0x11 | ZSTD, &zstd(&b), b.len() as u64),
        entry(1, 121, 0x11, c.as_bytes(), 0),
    ]);
    let mut memory = Memory::default();
    memory.0.insert(0x1000, binary);
    memory.0.insert(0x2000, wrapper(1, 0x1000, 0));
    (memory, 0x2000)
}

#[test]
fn the_best_text_is_found() {
    let (mut memory, wrapped) = sample();
    assert_eq!(memory.texts(wrapped), Ok(vec![ptx(120)]));
    assert_eq!(memory.texts(0x1000), Ok(vec![ptx(120)]));
    let text = ptx(86);
    let packed = lz4_flex::block::compress(text.as_bytes());
    let older = binary_of(&[entry(1, 86, LZ4, &packed, text.len() as u64), entry(2, 120, 0, b"\x7FELF", 0)]);
    memory.0.insert(0x3000, older);
    assert_eq!(memory.texts(0x3000), Ok(vec![text]));
    // Separately compiled files: the linked machine code is passed over.
    memory.0.insert(0x6000, binary_of(&[entry(2, 120, 0, b"\x7FELF", 0)]));
    memory.0.insert(0x4000, [0x1000u64, 0x6000, 0x3000, 0].map(u64::to_le_bytes).concat());
    memory.0.insert(0x5000, wrapper(2, 0, 0x4000));
    assert_eq!(memory.texts(0x5000), Ok(vec![ptx(120), ptx(86)]));
}

#[test]
fn ptx_beside_machine_code_for_the_gpu_is_for_it_too() {
    let of = |entries: &[(u16, u32)]| {
        let entry = |&(kind, arch)| {
            let text = ptx(arch);
            entry(kind, arch, 0, if kind == PTX { text.as_bytes() } else { b"\x7FELF" }, 0)
        };
        Memory(HashMap::from([(1, binary_of(&entries.iter().map(entry).collect::<Vec<_>>()))])).texts(1)
    };
    let none = Err(CudaError::NO_BINARY_FOR_GPU);
    let linked = binary_of(&[entry(MACHINE_CODE, 120, 0, b"\x7FELF", 0), entry(PTX, 121, 0, ptx(121).as_bytes(), 0)]);
    let found = section(&linked, 120).unwrap();
    assert_eq!((found.texts.len(), found.without), (0, 1), "not among files that are linked");
    assert_eq!(of(&[(2, 120), (1, 123), (1, 121), (2, 121)]), Ok(vec![ptx(121)]));
    assert_eq!(of(&[(1, 121), (2, 120), (1, 75)]), Ok(vec![ptx(75)]), "what any driver takes comes first");
    assert_eq!(of(&[(1, 121), (2, 121)]), none, "not for this GPU");
    assert_eq!(of(&[(1, 121), (2, 90)]), none, "not for this GPU either");
    assert_eq!(of(&[(1, 130), (2, 120)]), none, "another family's instructions");
}

#[test]
fn images_without_ptx_are_refused() {
    let mut memory = Memory::default();
    let mut add = |address, bytes: Vec<u8>| drop(memory.0.insert(address, bytes));
    add(1, binary_of(&[entry(2, 120, 0, b"\x7FELF", 0)]));
    add(2, b"\x7FELF\x02\x01\x01".to_vec());
    add(3, binary_of(&[entry(1, 121, 0, ptx(121).as_bytes(), 0)]));
    add(4, wrapper(2, 0, 5));
    add(5, vec![0; 8]);
    add(6, b"\x7FTileIR\0\x0d\x01".to_vec());
    for address in [1, 2, 3, 4, 6] {
        assert_eq!(memory.texts(address), Err(CudaError::NO_BINARY_FOR_GPU), "{address}");
    }
    let mut add = |address, bytes: Vec<u8>| drop(memory.0.insert(address, bytes));
    let mut long = binary_of(&[entry(1, 75, 0, ptx(75).as_bytes(), 0)]);
    long[8] += 8;
    add(11, wrapper(3, 1, 1));
    add(12, wrapper(1, 0, 0));
    add(13, long);
    add(14, b"what is this".to_vec());
    add(15, vec![]);
    add(16, binary_of(&[entry(1, 75, ZSTD, b"not compressed", 100)]));
    add(17, binary_of(&[entry(1, 75, LZ4, b"not compressed", u64::MAX)]));
    add(18, wrapper(2, 0, 19));
    add(19, 1u64.to_le_bytes().to_vec());
    for address in [11, 12, 13, 14, 15, 16, 17] {
        assert_eq!(memory.texts(address), Err(CudaError::INVALID_IMAGE), "{address}");
    }
    assert!(memory.texts(18).is_err());
}

#[test]
fn more_than_promised_is_not_decompressed() {
    let text = ptx(75);
    let bomb = binary_of(&[entry(1, 75, ZSTD, &zstd(&text), text.len() as u64 - 1)]);
    let memory = Memory(HashMap::from([(1, bomb)]));
    assert_eq!(memory.texts(1), Err(CudaError::INVALID_IMAGE));
}

#[test]
fn plain_text_ends_with_a_nul_or_the_image() {
    let with = |tail: &[u8]| Memory(HashMap::from([(1, [ptx(75).as_bytes(), tail].concat())])).texts(1);
    assert_eq!(with(b""), Ok(vec![ptx(75)]));
    assert_eq!(with(b"\0"), Ok(vec![ptx(75)]));
    assert_eq!(with(b"\0\0\0more"), Ok(vec![ptx(75)]));
}

proptest! {
    #[test]
    fn mutations_are_survived(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..8),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let (mut memory, wrapped) = sample();
        for (at, value, in_wrapper) in changes {
            // Headers are hit often, payloads sometimes.
            let bytes = memory.0.get_mut(if in_wrapper { &0x2000 } else { &0x1000 }).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            let bytes = memory.0.get_mut(&0x1000).unwrap();
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = memory.texts(wrapped);
        let _ = memory.texts(0x1000);
    }

    #[test]
    fn noise_is_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Memory(HashMap::from([(1, bytes.clone())])).texts(1);
        if bytes.len() > 16 {
            bytes[..8].copy_from_slice(&[0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0]);
            let whole = bytes.len() as u64 - 16;
            bytes[8..16].copy_from_slice(&whole.to_le_bytes());
            let _ = Memory(HashMap::from([(1, bytes)])).texts(1);
        }
    }
}
