//! What compilers and linkers hand to each other, told apart by how it begins.

/// What some bytes are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// PTX, if anything.
    Text,
    /// NVVM's intermediate code for linking.
    LtoIr,
    /// An ELF file for a GPU.
    MachineCode,
    /// A fatbin, object, library, or no such thing at all.
    Other,
}

/// How intermediate code begins, as NVRTC 13 and 12 make it.
const LTO_IR: &[u8] = b"\xed\x43\x4e\x7f";
/// How ELF files begin.
const ELF: &[u8] = b"\x7fELF";
/// Where these say for which machine, and the number of NVIDIA's GPUs.
const ELF_MACHINE: usize = 18;
const CUDA: [u8; 2] = 190u16.to_le_bytes();

/// What these bytes are.
pub(crate) fn kind(bytes: &[u8]) -> Kind {
    if bytes.starts_with(LTO_IR) {
        Kind::LtoIr
    } else if bytes.starts_with(ELF) && bytes.get(ELF_MACHINE..ELF_MACHINE + 2) == Some(&CUDA) {
        Kind::MachineCode
    } else if !without_end(bytes).is_empty()
        && bytes.iter().take(16).all(u8::is_ascii)
        && !bytes.starts_with(b"!<arch>")
        && !bytes.starts_with(ELF)
        && !without_end(bytes).contains(&0)
    {
        Kind::Text
    } else {
        Kind::Other
    }
}

/// A text without the NULs that may end it.
pub(crate) fn without_end(text: &[u8]) -> &[u8] {
    &text[..text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_known_by_its_beginning() {
        assert_eq!(kind(b"//\n.version 8.0\n\0\0"), Kind::Text);
        assert_eq!(kind(b"\n.version 8.0"), Kind::Text);
        assert_eq!(kind(b"\xed\x43\x4e\x7f\x01\x43"), Kind::LtoIr);
        let mut elf = [0; 64];
        elf[..4].copy_from_slice(ELF);
        assert_eq!(kind(&elf), Kind::Other);
        elf[ELF_MACHINE] = 190;
        assert_eq!(kind(&elf), Kind::MachineCode);
        assert_eq!(kind(&elf[..19]), Kind::Other);
        for other in [&b""[..], b"\0", b"!<arch>\n", b"\x50\xed\x55\xba", b"a\0b"] {
            assert_eq!(kind(other), Kind::Other, "{other:?}");
        }
    }
}
