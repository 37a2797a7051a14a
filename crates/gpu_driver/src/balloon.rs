//! VRAM that the host of a virtual GPU asks for, given back and taken again ([`gpu_spec::balloon`]).
//!
//! The driver gives what nobody uses: whole free blocks of its own allocator. What is in use stays; it is tried again from time
//! to time, until the host asks for no more. All of it on the interrupt thread, some blocks at a time.

use std::cmp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu_spec::balloon::{self, BLOCK_BYTES, MOST_BLOCKS};
use gpu_spec::regs::{self, vf};
use intervals::IntervalMap;
use parking_lot::Mutex;

use crate::mmio::{Mmio, Stuck};
use crate::vram::{Owner, Run, Vram};

/// Commands in one go: interrupts are not kept waiting for longer.
const MOST_COMMANDS: usize = 8;

/// The host's offer to be asked for VRAM, taken.
#[derive(Debug)]
pub(crate) struct Balloon {
    mmio: Arc<Mmio>,
    vram: Arc<Vram>,
    /// The host has raised its interrupt.
    asked: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the host has.
    given: IntervalMap<()>,
    /// Bytes that the host does not want back.
    target: u64,
    left: Left,
}

/// What is left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Left {
    /// Nothing until the host says something.
    #[default]
    Nothing,
    /// What is in use now, and may be free some time.
    Later,
    /// The rest, at once.
    More,
}

impl Balloon {
    /// Takes the offer, if there is one.
    pub(crate) fn take(mmio: &Arc<Mmio>, vram: &Arc<Vram>) -> Result<Option<Balloon>, Stuck> {
        if mmio.read(mailbox(balloon::OFFER))? != balloon::MAGIC {
            return Ok(None);
        }
        mmio.write(mailbox(balloon::LISTENER), balloon::MAGIC);
        let (mmio, vram) = (Arc::clone(mmio), Arc::clone(vram));
        // It may have asked already.
        Ok(Some(Balloon { mmio, vram, asked: AtomicBool::new(true), state: Mutex::default() }))
    }

    /// Nobody listens any more.
    pub(crate) fn leave(&self) {
        self.mmio.write(mailbox(balloon::LISTENER), 0);
    }

    /// The host has something to say.
    pub(crate) fn hear(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Comes nearer to what the host wants.
    pub(crate) fn go_on(&self) -> Result<Left, Stuck> {
        let mut state = self.state.lock();
        if self.asked.swap(false, Ordering::Relaxed) {
            state.target = u64::from(self.mmio.read(mailbox(balloon::TARGET))?) * BLOCK_BYTES;
            state.left = Left::More;
        }
        if state.left == Left::Nothing || state.left == Left::Later && self.vram.free() < BLOCK_BYTES {
            return Ok(state.left);
        }
        state.left = self.follow(&mut state)?;
        Ok(state.left)
    }

    fn follow(&self, state: &mut State) -> Result<Left, Stuck> {
        for _ in 0..MOST_COMMANDS {
            let given: u64 = state.given.iter().map(|(range, ())| range.end - range.start).sum();
            let held = self.vram.total() - given;
            let done = match held.cmp(&state.target) {
                cmp::Ordering::Equal => return Ok(Left::Nothing),
                cmp::Ordering::Greater => self.give(state, held - state.target)?,
                cmp::Ordering::Less => self.take_again(state, state.target - held)?,
            };
            if !done {
                return Ok(Left::Later);
            }
        }
        Ok(Left::More)
    }

    /// Gives some of `bytes`; false if none of it is free, or the host does not take it.
    fn give(&self, state: &mut State, bytes: u64) -> Result<bool, Stuck> {
        let mut most = bytes.min(u64::from(MOST_BLOCKS) * BLOCK_BYTES);
        let run = loop {
            match self.vram.take_run(most, BLOCK_BYTES, Owner::Device) {
                Some(run) => break run,
                None if most <= BLOCK_BYTES => return Ok(false),
                None => most = (most / 2).next_multiple_of(BLOCK_BYTES),
            }
        };
        let done = self.command(balloon::GIVE, run)?;
        let (gone, kept) = (run.offset..run.offset + done, run.offset + done..run.offset + run.bytes);
        if !gone.is_empty() {
            let _ = state.given.insert(gone, ());
        }
        if !kept.is_empty() {
            self.vram.put_clean(&[Run { offset: kept.start, bytes: kept.end - kept.start }], Owner::Device);
        }
        Ok(done > 0)
    }

    /// Takes some of `bytes` again; false if the host has none for us.
    fn take_again(&self, state: &mut State, bytes: u64) -> Result<bool, Stuck> {
        let Some((range, ())) = state.given.iter().next() else { return Ok(false) };
        let most = bytes.min(u64::from(MOST_BLOCKS) * BLOCK_BYTES).min(range.end - range.start);
        let done = self.command(balloon::TAKE, Run { offset: range.start, bytes: most })?;
        if done > 0 {
            state.given.cut(range.start..range.start + done);
            self.vram.put_clean(&[Run { offset: range.start, bytes: done }], Owner::Device);
        }
        Ok(done > 0)
    }

    /// Gives how many bytes of it were done.
    fn command(&self, command: u32, run: Run) -> Result<u64, Stuck> {
        let count = (run.bytes / BLOCK_BYTES) as u32;
        self.mmio.write(mailbox(balloon::FIRST), (run.offset / BLOCK_BYTES) as u32);
        self.mmio.write(mailbox(balloon::COUNT), count);
        self.mmio.write(mailbox(balloon::COMMAND), command);
        let status = self.mmio.read(mailbox(balloon::STATUS))?;
        let done = if status == 0 { count } else { (status - 1).min(count) };
        Ok(u64::from(done) * BLOCK_BYTES)
    }
}

fn mailbox(word: u32) -> u32 {
    regs::VF_BASE + vf::MAILBOX + word * 4
}
