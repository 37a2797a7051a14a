//! Copies of pageable memory straight to and from the tenant's VRAM, as far as the daemon shows it.
//!
//! A memory file shows allocations; it is mapped once, whole. Which of the GPU's addresses are where in it follows from
//! the requests that went through here.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use gpu::{AllocId, DevAddr, HostMemory, MapAccess, Request, Response};
use hostmem::{HostRange, Mapping, Memfd};
use intervals::IntervalMap;
use parking_lot::RwLock;

/// What is shown, and where it is mapped.
#[derive(Debug, Default)]
pub(crate) struct Aperture {
    /// Of the whole file: from the first allocation on that is shown; `None` if this process has no room for it.
    mapping: OnceLock<Option<(Arc<Memfd>, Mapping)>>,
    shown: RwLock<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    /// Offset of each allocation's first byte in the file.
    allocations: HashMap<AllocId, u64>,
    /// By GPU address.
    mapped: IntervalMap<Part>,
}

/// A piece of the file, mapped on the GPU.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: u64,
    access: MapAccess,
}

impl Part {
    fn advance(&self, by: u64) -> Part {
        Part { offset: self.offset + by, ..*self }
    }
}

impl Aperture {
    /// Whether the file has come, or will never.
    pub(crate) fn is_settled(&self) -> bool {
        self.mapping.get().is_some()
    }

    fn is_open(&self) -> bool {
        matches!(self.mapping.get(), Some(Some(_)))
    }

    /// The file has come; without a mapping of it, all copies go through the daemon.
    pub(crate) fn settle(&self, mapping: Option<(Arc<Memfd>, Mapping)>) {
        if let Some((_, mapping)) = &mapping {
            mapping.leave_out_of_dumps();
        }
        // One thread asks at a time.
        let _ = self.mapping.set(mapping);
    }

    /// Where an allocation lies that is shown.
    pub(crate) fn place(&self, id: AllocId) -> Option<HostMemory> {
        let (file, _) = self.mapping.get()?.as_ref()?;
        let offset = *self.shown.read().allocations.get(&id)?;
        Some(HostMemory { file: Arc::clone(file), offset })
    }

    /// Before a request is sent: addresses that it takes away are shown no more.
    pub(crate) fn before(&self, request: &Request) {
        match *request {
            Request::Unmap { at, bytes } if self.is_open() => {
                if let Some(end) = at.0.checked_add(bytes) {
                    self.shown.write().mapped.cut_with(at.0..end, Part::advance);
                }
            }
            Request::Free { id } if self.is_open() => {
                self.shown.write().allocations.remove(&id);
            }
            _ => {}
        }
    }

    /// After a request was granted.
    pub(crate) fn after(&self, request: &Request, response: &Response) {
        match (request, response) {
            (Request::Alloc { id, .. }, Response::Shown { offset }) => {
                self.shown.write().allocations.insert(*id, *offset);
            }
            (&Request::Map { at, id, offset, bytes, access }, _) if self.is_open() => {
                let mut shown = self.shown.write();
                if let Some(start) = shown.allocations.get(&id).copied() {
                    // The daemon has seen that nothing was there.
                    let _ = shown.mapped.insert(at.0..at.0 + bytes, Part { offset: start + offset, access });
                }
            }
            _ => {}
        }
    }

    /// Copies to VRAM; false, and nothing is done, if not all of it is shown.
    pub(crate) fn write(&self, dst: DevAddr, src: HostRange<'_>) -> bool {
        self.with(dst, src.len(), true, |done, vram| vram.copy_from(src.part(done, vram.len())))
    }

    /// Copies from VRAM; false, and nothing is done, if not all of it is shown.
    pub(crate) fn read(&self, dst: HostRange<'_>, src: DevAddr) -> bool {
        self.with(src, dst.len(), false, |done, vram| dst.part(done, vram.len()).copy_from(vram))
    }

    /// Calls `f` with each piece of a range, and how many bytes came before it.
    fn with(&self, at: DevAddr, bytes: usize, write: bool, f: impl Fn(usize, HostRange<'_>)) -> bool {
        let Some(Some((_, mapping))) = self.mapping.get() else { return false };
        let Some(end) = at.0.checked_add(bytes as u64) else { return false };
        let whole = at.0..end;
        // Copied outside the lock: who frees other memory does not wait.
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        {
            let shown = self.shown.read();
            let mut reached = whole.start;
            for (range, part) in shown.mapped.overlapping(whole.clone()) {
                if range.start > reached || write && part.access == MapAccess::Read {
                    return false;
                }
                let Range { start, end } = reached..range.end.min(whole.end);
                pieces.push((part.offset + (start - range.start), end - start));
                reached = end;
            }
            if reached < whole.end {
                return false;
            }
        }
        // All of it is looked at before any is copied: the daemon named these places, but a mistake of its is no reason to
        // fault.
        let fits =
            |&(offset, bytes): &(u64, u64)| offset.checked_add(bytes).is_some_and(|end| end <= mapping.len() as u64);
        if !pieces.iter().all(fits) {
            return false;
        }
        let mut done = 0;
        for (offset, bytes) in pieces {
            let (offset, bytes) = (offset as usize, bytes as usize);
            f(done, mapping.range(offset, bytes));
            done += bytes;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;
    const PAGES: u64 = 16;

    fn file() -> (Arc<Memfd>, Mapping) {
        let file = Memfd::create("file", PAGES * PAGE).unwrap();
        let mapping = file.map().unwrap();
        (Arc::new(file), mapping)
    }

    fn told(aperture: &Aperture, request: Request, response: Response) {
        aperture.before(&request);
        aperture.after(&request, &response);
    }

    fn alloc(aperture: &Aperture, id: u32, offset: u64, bytes: u64) {
        let request = Request::Alloc { id: AllocId(id), bytes, kind: gpu::MemoryKind::Vram };
        told(aperture, request, Response::Shown { offset });
    }

    fn map(aperture: &Aperture, at: u64, id: u32, offset: u64, bytes: u64, access: MapAccess) {
        told(aperture, Request::Map { at: DevAddr(at), id: AllocId(id), offset, bytes, access }, Response::Done);
    }

    #[test]
    fn what_may_only_be_read_and_what_the_file_lacks_is_not_copied_here() {
        let aperture = Aperture::default();
        let memory = Memfd::create("program", PAGE).unwrap().map().unwrap();
        let part = |bytes: u64| memory.range(0, bytes as usize);
        assert!(!aperture.write(DevAddr(0), part(8)), "no file has come");
        let without = Aperture::default();
        without.settle(None);
        alloc(&without, 1, 0, PAGE);
        map(&without, 0, 1, 0, PAGE, MapAccess::ReadWrite);
        assert!(!without.write(DevAddr(0), part(8)), "there is no room for the file");
        aperture.settle(Some(file()));
        alloc(&aperture, 1, PAGE, 2 * PAGE);
        map(&aperture, 0, 1, 0, PAGE, MapAccess::Read);
        map(&aperture, PAGE, 1, PAGE, PAGE, MapAccess::ReadWrite);
        assert!(aperture.read(part(8), DevAddr(PAGE - 4)) && !aperture.write(DevAddr(PAGE - 4), part(8)));
        assert!(aperture.write(DevAddr(PAGE), part(8)) && !aperture.read(part(8), DevAddr(2 * PAGE - 4)));
        assert!(!aperture.read(part(8), DevAddr(u64::MAX - 2)));
        // The daemon's mistake.
        alloc(&aperture, 2, (PAGES - 1) * PAGE, 2 * PAGE);
        map(&aperture, 8 * PAGE, 2, 0, 2 * PAGE, MapAccess::ReadWrite);
        assert!(aperture.write(DevAddr(8 * PAGE), part(8)) && !aperture.write(DevAddr(9 * PAGE - 4), part(8)));
        alloc(&aperture, 3, u64::MAX - PAGE, PAGE);
        map(&aperture, 12 * PAGE, 3, 0, PAGE, MapAccess::ReadWrite);
        assert!(!aperture.write(DevAddr(12 * PAGE), part(8)));
    }

    proptest! {
        /// After any maps and unmaps of pages, a range is reached here just if all its pages are mapped, and each byte is the
        /// one that a plain table of pages names.
        #[test]
        fn addresses_lead_where_they_were_mapped(
            steps in prop::collection::vec((0u64..PAGES, 1u64..5, 0u64..PAGES, any::<bool>()), 1..40),
            at in 0..PAGES * PAGE,
            bytes in 1..4 * PAGE,
        ) {
            let aperture = Aperture::default();
            aperture.settle(Some(file()));
            alloc(&aperture, 1, 0, PAGES * PAGE);
            let mut pages = [None; PAGES as usize];
            for (first, count, offset, unmap) in steps {
                let (count, at) = (count.min(PAGES - first).min(PAGES - offset), first * PAGE);
                let range = first as usize..(first + count) as usize;
                if unmap {
                    told(&aperture, Request::Unmap { at: DevAddr(at), bytes: count * PAGE }, Response::Done);
                    pages[range].fill(None);
                } else if pages[range.clone()].iter().all(Option::is_none) {
                    map(&aperture, at, 1, offset * PAGE, count * PAGE, MapAccess::ReadWrite);
                    range.zip(offset..).for_each(|(page, offset)| pages[page] = Some(offset));
                }
            }
            let (_, mapping) = aperture.mapping.get().unwrap().as_ref().unwrap();
            (0..mapping.len()).for_each(|at| mapping.fill(at, 1, (at / 256 + at) as u8));
            let bytes = bytes.min(PAGES * PAGE - at);
            let expected: Option<Vec<u8>> = (at..at + bytes)
                .map(|at| pages[(at / PAGE) as usize].map(|page| page * PAGE + at % PAGE))
                .map(|place| place.map(|place| (place / 256 + place) as u8))
                .collect();
            let out = Memfd::create("program", bytes).unwrap().map().unwrap();
            let reached = aperture.read(out.range(0, bytes as usize), DevAddr(at));
            prop_assert_eq!(reached, expected.is_some());
            if let Some(expected) = expected {
                let mut read = vec![0; bytes as usize];
                out.read(0, &mut read);
                prop_assert_eq!(read, expected);
            }
        }
    }
}
