//! Images of code in the caller's memory, and the options of their compilation.

use cuda_abi::{CUjit_option, CUresult, HostAddr};
use cuda_core::{Image, JitLog, JitOptions as CompileOptions};
use hostmem::HostRange;

use crate::decode::{In, InOut, out_at};
use crate::entry::{Refusal, refuse};

/// Most options of one call; there are fewer kinds than this.
const MAX_OPTIONS: u32 = 256;

/// An image at an address: PTX text, a fatbin or its wrapper. How long it is only its own headers tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostImage {
    address: usize,
    /// Where the caller said how long it is.
    bytes: Option<usize>,
}

impl HostImage {
    /// The image at `address`; null is refused with `INVALID_VALUE`.
    ///
    /// # Safety
    /// The caller promised an image there, or null: so many bytes as its headers, or the text up to its NUL, say.
    pub(crate) unsafe fn at(address: HostAddr) -> Result<HostImage, Refusal> {
        if address.is_null() {
            return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(HostImage { address: address.0 as usize, bytes: None })
    }

    /// The image of known size at `address`.
    ///
    /// # Safety
    /// The caller promised so many bytes there, or null.
    pub(crate) unsafe fn sized(address: HostAddr, bytes: usize) -> Result<HostImage, Refusal> {
        // SAFETY: as our caller knows.
        let image = unsafe { HostImage::at(address) }?;
        Ok(HostImage { bytes: Some(bytes), ..image })
    }

    /// Where a part is; `None` if the image is known to end before.
    fn place(&self, offset: u64, bytes: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(bytes)?;
        self.address.checked_add(offset).filter(|_| self.bytes.is_none_or(|bytes| end <= bytes))
    }
}

impl Image for HostImage {
    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let Some(address) = self.place(offset, out.len()) else { return false };
        // SAFETY: the caller promised an image here, and the reader asks only for what the image's headers, or the text
        // up to its NUL, say is there.
        let range = unsafe { HostRange::new(address, out.len()) };
        range.read(out);
        true
    }

    fn try_read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.place(offset, out.len()).is_some_and(|address| hostmem::read_if_there(address, out))
    }

    fn follow(&self, pointer: u64) -> Option<Box<dyn Image + '_>> {
        // SAFETY: the caller promised that its image's pointers lead to images.
        unsafe { HostImage::at(HostAddr(pointer)) }.ok().map(|image| Box::new(image) as Box<dyn Image>)
    }

    fn text(&self, most: u64) -> Vec<u8> {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(self.bytes.unwrap_or(usize::MAX));
        // SAFETY: the caller promised a text here that ends with a NUL, or so many bytes.
        let bytes = unsafe { libc::strnlen(std::ptr::with_exposed_provenance(self.address), most) };
        // SAFETY: those before its end are there.
        let range = unsafe { HostRange::new(self.address, bytes) };
        let mut text = vec![0; bytes];
        range.read(&mut text);
        text
    }

    fn whole(&self, most: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.bytes.filter(|bytes| *bytes as u64 <= most)?];
        self.read(0, &mut bytes).then_some(bytes)
    }
}

/// The options that matter of a compilation: where the logs go. The rest chooses among what hardware compilers do.
#[derive(Debug)]
pub(crate) struct JitOptions {
    info: LogBuffer,
    error: LogBuffer,
    compile: CompileOptions,
}

/// A caller's buffer for a log.
#[derive(Debug, Default)]
struct LogBuffer {
    text: HostAddr,
    /// Size of the buffer; the option's slot then takes the size of the log.
    bytes: u32,
    /// Address of the options' values, and which of them is the size.
    values: HostAddr,
    slot: usize,
}

impl LogBuffer {
    fn fill(&self, log: &str) {
        // SAFETY: the C caller promised a buffer there, or null.
        let text = unsafe { out_at::<u8>(self.text) };
        // SAFETY: it is so long, as the options say.
        let set = unsafe { text.set_text(log, i32::try_from(self.bytes).unwrap_or(i32::MAX)) };
        let written = if set.is_ok() { log.len().min(self.bytes as usize - 1) } else { 0 };
        // SAFETY: the C caller promised the options' values there, or null.
        let values = unsafe { out_at::<HostAddr>(self.values) };
        // SAFETY: this is one of them.
        unsafe { values.set_at(self.slot, HostAddr(written as u64)) }
    }
}

impl JitOptions {
    /// Reads `count` options and their values.
    pub(crate) fn read(count: u32, options: In<CUjit_option>, values: InOut<HostAddr>) -> Result<JitOptions, Refusal> {
        if count > MAX_OPTIONS {
            return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (mut info, mut error) = (LogBuffer::default(), LogBuffer::default());
        let mut compile = CompileOptions::default();
        for slot in 0..count as usize {
            // SAFETY: the C caller promised memory there, so much of it (`decode`).
            let value = unsafe { values.input().get_at(slot) }?;
            // A size stands in the low bytes of a pointer's place.
            let size = |buffer: &mut LogBuffer| {
                (buffer.bytes, buffer.values, buffer.slot) = (value.0 as u32, values.output().address(), slot);
            };
            // SAFETY: the C caller promised memory there, so much of it (`decode`).
            match unsafe { options.get_at(slot) }? {
                CUjit_option::CU_JIT_INFO_LOG_BUFFER => info.text = value,
                CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => size(&mut info),
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER => error.text = value,
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => size(&mut error),
                CUjit_option::CU_JIT_MAX_REGISTERS => {
                    compile.max_registers = Some(value.0 as u32).filter(|n| *n > 0);
                }
                CUjit_option::CU_JIT_FMA => compile.fma = value.0 as u32 != 0,
                _ => {}
            }
        }
        Ok(JitOptions { info, error, compile })
    }

    /// What the compiler is asked for.
    pub(crate) fn compile(&self) -> CompileOptions {
        self.compile
    }

    /// Runs a compilation and hands its logs to the caller, whether it succeeds or not.
    pub(crate) fn log<T>(&self, compile: impl FnOnce(&mut JitLog) -> cuda_core::Result<T>) -> Result<T, Refusal> {
        let ask = !self.info.text.is_null() && self.info.bytes > 0;
        let mut log = JitLog { options: self.compile, ask, ..JitLog::default() };
        let made = compile(&mut log);
        if !log.error.is_empty() {
            tracing::warn!("{}", log.error.trim_end());
        }
        self.info.fill(&log.info);
        self.error.fill(&log.error);
        Ok(made?)
    }

    /// No options: the logs go nowhere.
    pub(crate) fn none() -> JitOptions {
        JitOptions { info: LogBuffer::default(), error: LogBuffer::default(), compile: CompileOptions::default() }
    }
}

/// Reads a file whose path the caller named.
pub(crate) fn file(path: &str) -> Result<Vec<u8>, Refusal> {
    let mut bytes = std::fs::read(path).map_err(|error| {
        tracing::warn!("{path}: {error}");
        Refusal(CUresult::CUDA_ERROR_FILE_NOT_FOUND)
    })?;
    // PTX text ends in NUL in memory, not in files.
    bytes.push(0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_known_size_ends() {
        let bytes = *b"abcd";
        // SAFETY: there are four bytes.
        let image = unsafe { HostImage::sized(HostAddr(bytes.as_ptr() as u64), 4) }.unwrap();
        let mut out = [0; 2];
        assert!(image.read(2, &mut out));
        assert_eq!(&out, b"cd");
        assert!(!image.read(3, &mut out));
        assert!(!image.read(u64::MAX, &mut out));
        assert!(image.follow(0).is_none());
        assert_eq!(image.whole(4).as_deref(), Some(&b"abcd"[..]));
        assert_eq!(image.whole(3), None);
    }

    #[test]
    fn a_text_ends_at_its_nul_or_where_the_caller_said() {
        let bytes = b"text\0behind";
        let address = HostAddr(bytes.as_ptr() as u64);
        // SAFETY: there is a text.
        let image = unsafe { HostImage::at(address) }.unwrap();
        // SAFETY: there are so many bytes.
        let sized = [11, 3].map(|bytes| unsafe { HostImage::sized(address, bytes) }.unwrap());
        let texts = [image, sized[0], sized[1]].map(|image| image.text(100));
        assert_eq!(texts.each_ref().map(|text| text.as_slice()), [&b"text"[..], b"text", b"tex"]);
        assert_eq!(image.text(2), b"te");
    }

    #[test]
    fn an_image_of_unknown_size_is_tried_to_its_end() {
        const PAGE: usize = hostmem::PAGE as usize;
        let (read, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh pages at an address of the kernel's choice disturb nothing.
        let pages = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, read, flags, -1, 0) }.cast::<u8>();
        // SAFETY: the second of the two.
        assert_eq!(unsafe { libc::mprotect(pages.wrapping_add(PAGE).cast(), PAGE, libc::PROT_NONE) }, 0);
        // SAFETY: the last bytes of the first, which nobody else knows.
        let header = unsafe { &mut *pages.wrapping_add(PAGE - 64).cast::<[u8; 64]>() };
        header[..5].copy_from_slice(b"\x7FELF\x02");
        let address = header.as_ptr().expose_provenance() as u64;
        // SAFETY: of what is there no more is read than its magic number.
        let image = unsafe { HostImage::at(HostAddr(address)) }.unwrap();
        let mut out = [0; 5];
        assert!(image.try_read(0, &mut out));
        assert_eq!(&out, b"\x7FELF\x02");
        assert!(!image.try_read(60, &mut out) && !image.try_read(64, &mut out) && !image.try_read(u64::MAX, &mut out));
        // The shortest of texts, too.
        header[61..].copy_from_slice(b".v\0");
        // SAFETY: it ends there.
        let image = unsafe { HostImage::at(HostAddr(address + 61)) }.unwrap();
        assert_eq!(cuda_core::fatbin::texts(&image, 120), Err(cuda_core::CudaError::INVALID_IMAGE));
    }
}
