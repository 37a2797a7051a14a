//! VRAM that a guest gives back and takes again while it runs.
//!
//! ```text
//!   resize ──► target ──► interrupt ──► the guest's driver reads it ──► GIVE / TAKE, some blocks at a time
//!     ▲                                                                   │ on the guest's own thread
//!     └──────────────── held = target, or time is up ◄───────────────────┘
//! ```
//!
//! What is given back is first taken out of the guest's grant, then out of all its shadow tables, then the device forgets its
//! translations; only then is it scrubbed and the ledger's ([`gpu_driver::Lease::put_vram`]). So the guest's word is needed for
//! nothing but its own good: one that gives back what it uses has faults, and no other memory.

use std::time::{Duration, Instant};

use gpu_spec::balloon::{self, BLOCK_BYTES};
use gpu_spec::mmu::PhysAddr;
use parking_lot::{Condvar, Mutex};

use crate::mediator::{Inner, Vgpu};
use crate::partition::NoBlocks;

/// Between two looks at what a guest writes where it has no VRAM any more.
const LOOK: Duration = Duration::from_secs(1);

/// Why a virtual GPU has not as much VRAM as was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotResized {
    /// Not whole blocks, or more than it may ever have.
    #[error("its memory may be whole 2 MiB up to the {most} bytes that it was created with, not {wanted}")]
    BadSize {
        /// The size asked for, in bytes.
        wanted: u64,
        /// The size it was created with, in bytes.
        most: u64,
    },
    /// It is gone for its guest, because something did not stop.
    #[error("it has ended, and its memory stays until it is destroyed")]
    Ended,
    /// Somebody else is at it.
    #[error("its memory is being changed already")]
    Busy,
    /// The guest's driver does not know how, or is not there.
    #[error("its guest has no driver at work that gives memory back and takes it again")]
    Unwilling,
    /// It would not find it.
    #[error("its guest has begun with {shown} bytes, and can have more only from its next start on")]
    Later {
        /// What its driver found when it started, in bytes.
        shown: u64,
    },
    /// The device has not as much.
    #[error("there is not as much VRAM: {why}")]
    NoVram {
        /// What is missing.
        why: String,
    },
    /// The guest has not done all of it in time. It has what it has, and is asked for no more.
    #[error("its guest has come to {held} bytes in {bound:?}, and stays there: it uses the rest, or does not answer")]
    Partly {
        /// What it has now, in bytes.
        held: u64,
        /// How long it had.
        bound: Duration,
    },
}

/// What a guest has, and should have.
#[derive(Debug)]
pub(crate) struct Balloon {
    sizes: Mutex<Sizes>,
    changed: Condvar,
    /// One at a time.
    resizing: Mutex<()>,
}

/// All in bytes. Held for no longer than it takes to look.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    held: u64,
    target: u64,
    /// What the guest's driver found at its start: no block beyond is of any use to it.
    shown: u64,
    attached: bool,
    listens: bool,
}

impl Balloon {
    pub(crate) fn new(bytes: u64) -> Balloon {
        let sizes = Sizes { held: bytes, target: bytes, shown: bytes, attached: false, listens: false };
        Balloon { sizes: Mutex::new(sizes), changed: Condvar::new(), resizing: Mutex::default() }
    }

    /// What the guest has.
    pub(crate) fn held(&self) -> u64 {
        self.sizes.lock().held
    }

    /// What its driver finds.
    pub(crate) fn shown(&self) -> u64 {
        self.sizes.lock().shown
    }

    /// Who waits for a guest need not.
    pub(crate) fn end(&self) {
        self.change(|_| ());
    }

    fn change<R>(&self, change: impl FnOnce(&mut Sizes) -> R) -> R {
        let result = change(&mut self.sizes.lock());
        self.changed.notify_all();
        result
    }
}

impl Vgpu {
    /// Has the guest have `bytes` of VRAM from now on, and waits until it does, `bound` at most. Without a guest it is done at
    /// once. Not for the thread that serves the guest.
    ///
    /// # Errors
    /// Why it has not; [`Vgpu::vram_used`] says what it has then.
    pub fn resize(&self, bytes: u64, bound: Duration) -> Result<(), NotResized> {
        let most = self.config.vram_bytes;
        if bytes == 0 || bytes > most || !bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(NotResized::BadSize { wanted: bytes, most });
        }
        if self.lines.is_lost() {
            return Err(NotResized::Ended);
        }
        let Some(_one) = self.balloon.resizing.try_lock() else { return Err(NotResized::Busy) };
        if !self.balloon.sizes.lock().attached {
            // No guest comes while this is held.
            let mut inner = self.inner.lock();
            if !self.balloon.sizes.lock().attached {
                return self.resize_idle(&mut inner, bytes);
            }
        }
        {
            let mut sizes = self.balloon.sizes.lock();
            if sizes.held == bytes && sizes.target == bytes {
                return Ok(());
            }
            if !sizes.listens {
                return Err(NotResized::Unwilling);
            }
            if bytes > sizes.shown {
                return Err(NotResized::Later { shown: sizes.shown });
            }
            let (wanted, free) = (bytes.saturating_sub(sizes.held), self.lease.vram_free());
            if free < wanted {
                return Err(NotResized::NoVram { why: format!("{wanted} bytes more are wanted, {free} are free") });
            }
            sizes.target = bytes;
        }
        self.lines.raise(balloon::VECTOR);
        self.await_target(bytes, bound)
    }

    fn resize_idle(&self, inner: &mut Inner, bytes: u64) -> Result<(), NotResized> {
        let before = self.balloon.change(|sizes| std::mem::replace(&mut sizes.target, bytes));
        self.renew(inner, false);
        if self.lines.is_lost() {
            return Err(NotResized::Ended);
        }
        let held = self.balloon.held();
        if held == bytes {
            return Ok(());
        }
        let free = self.lease.vram_free();
        self.balloon.change(|sizes| sizes.target = before);
        self.renew(inner, false);
        Err(NotResized::NoVram { why: format!("of {bytes} bytes {held} could be had, and {free} are free") })
    }

    fn await_target(&self, bytes: u64, bound: Duration) -> Result<(), NotResized> {
        let until = Instant::now() + bound;
        let waits = |sizes: &mut Sizes| sizes.held != bytes && sizes.target == bytes && !self.lines.is_lost();
        self.balloon.changed.wait_while_until(&mut self.balloon.sizes.lock(), waits, until);
        // No block changes hands while this is held: what the guest has now it keeps.
        let inner = self.inner.lock();
        if self.lines.is_lost() {
            return Err(NotResized::Ended);
        }
        let held = self.balloon.change(|sizes| {
            sizes.target = sizes.held;
            sizes.held
        });
        drop(inner);
        if held == bytes {
            return Ok(());
        }
        self.lines.raise(balloon::VECTOR);
        Err(NotResized::Partly { held, bound })
    }

    /// A guest is there.
    pub(crate) fn balloon_attach(&self) {
        let inner = self.inner.lock();
        self.balloon.change(|sizes| sizes.attached = true);
        drop(inner);
    }

    /// VRAM as after power-on, as much of it as the guest should have; with `leave`, there is no guest any more. A virtual GPU
    /// that has ended keeps what it has until it is destroyed: what did not stop may use it.
    pub(crate) fn renew(&self, inner: &mut Inner, leave: bool) {
        if self.lines.is_lost() {
            self.balloon.change(|sizes| sizes.attached &= !leave);
            return;
        }
        let target = self.balloon.sizes.lock().target;
        let renewed = inner.memory.vram.renew(target, leave);
        if let Err(error) = &renewed {
            tracing::warn!(guest = self.config.name, %error, "a virtual GPU has less VRAM than it should");
        }
        if let Err(error @ (NoBlocks::Lend(_) | NoBlocks::GivenUp)) = &renewed {
            // Some of it may be the last guest's still: there is none after it.
            self.end_for_good(error);
        }
        let held = inner.memory.vram.held();
        self.balloon.change(|sizes| {
            *sizes = Sizes { held, target: held, shown: held, attached: sizes.attached && !leave, listens: false };
        });
        self.look_after_holes();
    }

    /// A word of the mailbox, if it is one of these.
    pub(crate) fn read_balloon(&self, word: u32) -> Option<u32> {
        match word {
            balloon::OFFER => Some(balloon::MAGIC),
            balloon::TARGET => Some(u32::try_from(self.balloon.sizes.lock().target / BLOCK_BYTES).unwrap_or(u32::MAX)),
            _ => None,
        }
    }

    /// True if the word is one of these, and dealt with.
    pub(crate) fn write_balloon(&self, word: u32, value: u32) -> bool {
        match word {
            balloon::OFFER | balloon::TARGET | balloon::STATUS => {}
            balloon::LISTENER => self.balloon.change(|sizes| sizes.listens = value == balloon::MAGIC),
            balloon::COMMAND => self.balloon_command(value),
            _ => return false,
        }
        true
    }

    fn balloon_command(&self, command: u32) {
        let mut inner = self.inner.lock();
        let word = |word: u32| inner.latches.mailbox[word as usize];
        let (first, count) = (word(balloon::FIRST), word(balloon::COUNT));
        let (at, wanted) = (u64::from(first) * BLOCK_BYTES, u64::from(count.min(balloon::MOST_BLOCKS)) * BLOCK_BYTES);
        let done = match command {
            balloon::GIVE => self.give_blocks(&mut inner, at, wanted),
            balloon::TAKE => self.take_blocks(&mut inner, at, wanted),
            _ => 0,
        };
        let done = u32::try_from(done / BLOCK_BYTES).unwrap_or(u32::MAX);
        inner.latches.mailbox[balloon::STATUS as usize] = if done == count { 0 } else { done + 1 };
    }

    /// Takes blocks from the guest, those of them that it has and is asked for; gives how many bytes.
    fn give_blocks(&self, inner: &mut Inner, at: u64, wanted: u64) -> u64 {
        let asked = {
            let sizes = self.balloon.sizes.lock();
            sizes.held.saturating_sub(sizes.target)
        };
        let vram = &mut inner.memory.vram;
        let bytes = wanted.min(asked).min(vram.has_from(at));
        if bytes == 0 || !vram.may_cut(at..at + bytes) {
            return 0;
        }
        let runs = vram.cut(at..at + bytes);
        let lost: Vec<_> = runs.iter().map(|run| (PhysAddr::vram(run.offset), run.bytes)).collect();
        // Of channels that did not stop nobody knows what they lead to.
        let let_go = self.revoke(inner, (PhysAddr::vram(at), bytes), &lost) && !self.lease.is_stuck();
        if let Err(error) = inner.memory.vram.give(&runs, let_go) {
            self.end_for_good(&error);
        }
        self.balloon.change(|sizes| {
            sizes.held -= bytes;
            // Who asked for this has given up meanwhile, or wants it back: it is not for the guest to take it then.
            sizes.target = sizes.target.min(sizes.held);
        });
        self.look_after_holes();
        bytes
    }

    /// Gives the guest blocks, those of them that it has not and should have; gives how many bytes.
    fn take_blocks(&self, inner: &mut Inner, at: u64, wanted: u64) -> u64 {
        let vram = &mut inner.memory.vram;
        let bytes = {
            let sizes = self.balloon.sizes.lock();
            let asked = sizes.target.saturating_sub(sizes.held);
            wanted.min(asked).min(vram.lacks_from(at)).min(sizes.shown.saturating_sub(at))
        };
        if bytes == 0 {
            return 0;
        }
        if let Err(error) = vram.fill(at..at + bytes) {
            log_limit::warn!(guest = self.config.name, %error, "a guest does not get VRAM again");
            if let NoBlocks::GivenUp = error {
                self.end_for_good(&error);
            }
            return 0;
        }
        self.balloon.change(|sizes| sizes.held += bytes);
        inner.spaces.values_mut().for_each(|space| space.shadow.granted());
        bytes
    }

    /// Has the mediator's thread look at holes from now on, if there are any.
    fn look_after_holes(&self) {
        if self.looks_after().is_some() {
            self.lines.tell(|news| news.rung = true);
        }
    }

    /// How long until somebody should look at what the guest writes where it has no VRAM.
    pub(crate) fn looks_after(&self) -> Option<Duration> {
        (self.balloon.held() < self.config.vram_bytes).then_some(LOOK)
    }

    /// Takes that away, if it is time to.
    pub(crate) fn reclaim(&self, looked: &mut Instant) {
        if self.looks_after().is_none() || looked.elapsed() < LOOK {
            return;
        }
        *looked = Instant::now();
        if self.inner.lock().memory.vram.reclaim() {
            log_limit::warn!(guest = self.config.name, "a guest goes on using VRAM that it has given back");
        }
    }
}
