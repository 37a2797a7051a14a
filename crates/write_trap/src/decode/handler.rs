//! The mappings that are watched, and what happens at a fault.
//!
//! The handler may interrupt a thread anywhere: it allocates nothing, and takes no lock. Mappings are in a table of fixed size;
//! whoever takes one out waits until no handler uses it.
//!
//! A page is released by whichever thread meets an instruction that the handler does not know, while others run, and perhaps
//! while its owner protects it. Nobody may write to it unnoticed then:
//!
//! ```text
//!   handler    releasing + 1     page is told as released   page writable     releasing - 1
//!   owner      (page is watched)   releasing? told as released once more       page read-only
//! ```
//! If the handler makes the page writable after the owner has made it read-only, the owner has seen that somebody was at it, and
//! hears of the page again; if it was before, the page is read-only.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, ptr};

use hostmem::{Chain, Mapping, PAGE};
use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction};
use rustix::mm::MprotectFlags;

use super::machine::{self, Machine};
use super::perform::{self, Target};
use crate::{Area, Written};

/// Mappings that can be watched at once.
const SLOTS: usize = 32;
/// Longest instruction, bytes.
const LONGEST: usize = 15;
/// Turns that are given to handlers that still use a mapping before it is left to them for ever.
const TURNS: u32 = 1 << 16;

static CHAIN: Chain = Chain::new(on_fault);
static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
/// Held to fill a place of the table; where to look first: places are used in turn, so that what was there last stays known.
static FILLING: Mutex<usize> = Mutex::new(0);

/// A place in the table.
#[derive(Debug)]
struct Slot {
    /// Addresses of the mapping, or of the last one that was here: a fault may be older than its release.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Null if there is none.
    watched: AtomicPtr<Watched>,
    /// Threads in the handler that may use it.
    users: AtomicU32,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            watched: AtomicPtr::new(ptr::null_mut()),
            users: AtomicU32::new(0),
        }
    }

    fn covers(&self, address: u64) -> bool {
        let address = address as usize;
        self.start.load(Ordering::Acquire) <= address && address < self.end.load(Ordering::Acquire)
    }
}

/// A mapping that is watched.
#[derive(Debug)]
struct Watched {
    area: Area,
    alias: Mapping,
    written: Arc<Written>,
    /// A bit for each page that may be read-only because of us.
    pages: Box<[AtomicU64]>,
    /// Threads that are releasing a page.
    releasing: AtomicU32,
    /// Keeps the addresses.
    _mapping: Arc<Mapping>,
}

/// A mapping in the table, until this goes.
#[derive(Debug)]
pub(super) struct Watch {
    watched: *const Watched,
    slot: &'static Slot,
}

// SAFETY: what it points to is only reached through shared references, and can be by any thread.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

impl Watch {
    pub(super) fn new(mapping: &Arc<Mapping>, alias: Mapping, written: Arc<Written>) -> io::Result<Watch> {
        machine::prepare();
        // The decoder's tables are built when the first one is made.
        let _ = Decoder::new(64, &[], DecoderOptions::NONE);
        let area = Area::of(mapping);
        let pages = (0..area.pages().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let (releasing, _mapping) = (AtomicU32::new(0), Arc::clone(mapping));
        let watched = Box::new(Watched { area, alias, written, pages, releasing, _mapping });

        let mut next = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |place: &usize| {
            let slot = &TABLE[*place];
            slot.watched.load(Ordering::SeqCst).is_null() && slot.users.load(Ordering::SeqCst) == 0
        };
        let place = (*next..SLOTS).chain(0..*next).find(free);
        let place = place.ok_or_else(|| io::Error::new(io::ErrorKind::QuotaExceeded, "too many watched mappings"))?;
        *next = (place + 1) % SLOTS;
        let slot = &TABLE[place];
        let watched = Box::into_raw(watched);
        // Nobody faults there before the first page is protected.
        slot.start.store(area.address() as usize, Ordering::Release);
        slot.end.store((area.address() + area.bytes()) as usize, Ordering::Release);
        slot.watched.store(watched, Ordering::SeqCst);
        CHAIN.install();
        Ok(Watch { watched, slot })
    }

    fn watched(&self) -> &Watched {
        // SAFETY: made by `new`, and freed by `drop` alone.
        unsafe { &*self.watched }
    }

    pub(super) fn written(&self) -> &Arc<Written> {
        &self.watched().written
    }

    pub(super) fn area(&self) -> Area {
        self.watched().area
    }

    /// Whether a page inside the mapping is protected, or was until it had to be released.
    pub(super) fn is_marked(&self, page: u64) -> bool {
        self.watched().is_marked(page)
    }

    /// Runs are inside the mapping.
    pub(super) fn protect(&self, runs: &[Range<u64>]) -> io::Result<()> {
        let watched = self.watched();
        // Somebody may have come in front, who does not pass faults on.
        CHAIN.install();
        for run in runs {
            run.clone().for_each(|page| watched.mark(page, true));
            if watched.releasing.load(Ordering::SeqCst) > 0 {
                watched.written.released(run.start..=run.end - 1);
            }
            watched.set_writable(run.start, run.end - run.start, false)?;
        }
        Ok(())
    }

    /// Runs are inside the mapping.
    pub(super) fn release(&self, runs: &[Range<u64>]) -> io::Result<()> {
        let watched = self.watched();
        for run in runs {
            watched.set_writable(run.start, run.end - run.start, true)?;
            run.clone().for_each(|page| watched.mark(page, false));
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let watched = self.watched();
        if watched.set_writable(0, watched.area.pages(), true).is_err() {
            // Stores to it go on to be done by the handler.
            return;
        }
        self.slot.watched.store(ptr::null_mut(), Ordering::SeqCst);
        let mut turns = 0;
        while self.slot.users.load(Ordering::SeqCst) > 0 {
            turns += 1;
            if turns > TURNS {
                // A child that was forked while another thread of its parent was in the handler: nobody will ever leave it.
                return;
            }
            std::thread::yield_now();
        }
        // SAFETY: made by `new`; no handler has it, and none will get it.
        drop(unsafe { Box::from_raw(self.watched.cast_mut()) });
    }
}

impl Watched {
    fn mark(&self, page: u64, watched: bool) {
        let (word, bit) = (&self.pages[(page / 64) as usize], 1 << (page % 64));
        if watched {
            word.fetch_or(bit, Ordering::SeqCst)
        } else {
            word.fetch_and(!bit, Ordering::SeqCst)
        };
    }

    fn is_marked(&self, page: u64) -> bool {
        self.pages[(page / 64) as usize].load(Ordering::SeqCst) >> (page % 64) & 1 != 0
    }

    fn set_writable(&self, first: u64, pages: u64, writable: bool) -> io::Result<()> {
        let at = ptr::with_exposed_provenance_mut(self.area.address_of(first) as usize);
        let flags = if writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        // SAFETY: pages of the mapping that `_mapping` keeps, readable before and after; whoever writes to them meets the
        // handler, and nobody holds a Rust reference to more than atomics there. No libc: `errno` is the interrupted thread's.
        unsafe { rustix::mm::mprotect(at, (pages * PAGE) as usize, flags) }?;
        Ok(())
    }

    /// Notices a write to a page that is watched: true if the thread can go on.
    fn notice(&self, page: u64, address: u64, context: &mut libc::ucontext_t) -> bool {
        let mut machine = Machine::new(context);
        let instruction = decode(machine.rip());
        let next = instruction.and_then(|instruction| perform::perform(&instruction, &mut machine, self, address));
        match next {
            Some(next) => {
                machine.set_rip(next);
                true
            }
            None => self.let_through(page),
        }
    }

    /// Makes a page writable, and known as such; true if it is.
    fn let_through(&self, page: u64) -> bool {
        self.releasing.fetch_add(1, Ordering::SeqCst);
        self.written.released(page..=page);
        let mut done = self.set_writable(page, 1, true);
        if done.is_err() {
            // One page amid others takes two entries of the memory map, and the process may have no more. All pages take
            // none.
            self.written.released(0..=self.area.pages() - 1);
            done = self.set_writable(0, self.area.pages(), true);
        }
        self.releasing.fetch_sub(1, Ordering::SeqCst);
        done.is_ok()
    }
}

impl Target for Watched {
    fn place(&self, address: u64, bytes: u64) -> Option<*mut u8> {
        let offset = address.checked_sub(self.area.address())?;
        if offset > self.area.bytes() || bytes > self.area.bytes() - offset {
            return None;
        }
        Some(ptr::with_exposed_provenance_mut(self.alias.address() + offset as usize))
    }

    fn is_watched(&self, address: u64) -> bool {
        self.area.page_of(address).is_some_and(|page| self.is_marked(page))
    }

    fn stored(&self, address: u64, bytes: u64) {
        self.written.stored(address - self.area.address(), bytes);
    }
}

/// The instruction at an address.
fn decode(at: u64) -> Option<Instruction> {
    // It has just been executed, so that the rest of its page is there; the next page is, if it reaches into it.
    let in_page = (PAGE - at % PAGE) as usize;
    for bytes in [in_page.min(LONGEST), LONGEST] {
        let mut code = [0; LONGEST];
        let from: *const u8 = ptr::with_exposed_provenance(at as usize);
        // SAFETY: code that the processor has just read.
        unsafe { ptr::copy_nonoverlapping(from, code.as_mut_ptr(), bytes) };
        let mut decoder = Decoder::with_ip(64, &code[..bytes], at, DecoderOptions::NONE);
        let instruction = decoder.decode();
        match decoder.last_error() {
            DecoderError::None => return Some(instruction),
            DecoderError::NoMoreBytes => {}
            _ => return None,
        }
    }
    None
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// `SEGV_ACCERR`: there is a page, which does not allow the access.
    const NOT_ALLOWED: libc::c_int = 2;
    /// Bit of the page fault's error code: it was a write.
    const WRITE: i64 = 2;
    // SAFETY: the kernel passes a valid siginfo.
    let fault = unsafe { &*info };
    // SAFETY: of a fault; else the code is another one.
    let address = unsafe { fault.si_addr() }.addr() as u64;
    // SAFETY: the kernel passes a valid context, which is this handler's as long as it runs.
    let state = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let refused = fault.si_code == NOT_ALLOWED && state.uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0;
    if refused && noticed(address, state) {
        return;
    }
    // SAFETY: what the kernel passed.
    unsafe { CHAIN.pass_on(signal, info, context) };
}

/// True if the thread can go on.
fn noticed(address: u64, state: &mut libc::ucontext_t) -> bool {
    let mut ours = false;
    for slot in TABLE.iter().filter(|slot| slot.covers(address)) {
        ours = true;
        slot.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: null, or it stays as long as this thread is among the users.
        let watched = unsafe { slot.watched.load(Ordering::SeqCst).as_ref() };
        let done = watched.is_some_and(|watched| match watched.area.page_of(address) {
            Some(page) if watched.is_marked(page) => watched.notice(page, address, state),
            _ => false,
        });
        slot.users.fetch_sub(1, Ordering::SeqCst);
        if done {
            return true;
        }
    }
    // The page may have been released since the fault.
    ours && hostmem::is_writable(address as usize)
}
