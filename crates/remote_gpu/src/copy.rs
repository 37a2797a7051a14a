//! Copies of pageable memory through the staging area.
//!
//! The area is a circle of blocks. Writing: copy a block in, announce it, go on with the next; the daemon copies out what
//! was announced meanwhile. Reading: announce as many as fit, copy out what has been answered.
//!
//! Where frames are messages, there is no shared memory to copy through either: pieces of a copy travel in frames, and only the
//! last one is answered, unless everything is: then each waits for its answer.

use gpu::{DevAddr, GpuError};
use hostmem::HostRange;
use wire::limits::PIECE_BYTES;
use wire::{DaemonFrame, Transfer, frame};

use crate::{Caller, RemoteGpu};

type Answer = Result<(), GpuError>;

/// A copy, cut into blocks.
struct Blocks {
    at: DevAddr,
    bytes: usize,
    block: usize,
    area: usize,
}

impl Blocks {
    fn count(&self) -> usize {
        self.bytes.div_ceil(self.block)
    }

    /// Offset in the whole and length of a block.
    fn range(&self, index: usize) -> (usize, usize) {
        let offset = index * self.block;
        (offset, self.block.min(self.bytes - offset))
    }

    /// Blocks in the staging area.
    fn slots(&self) -> usize {
        self.area / self.block
    }

    fn transfer(&self, index: usize) -> Transfer {
        let (offset, length) = self.range(index);
        Transfer {
            at: DevAddr(self.at.0 + offset as u64),
            // Both are below MAX_STAGING_BYTES.
            staging: (index % self.slots() * self.block) as u32,
            bytes: length as u32,
        }
    }
}

impl RemoteGpu {
    fn blocks(&self, at: DevAddr, bytes: usize) -> Result<Blocks, GpuError> {
        self.alive()?;
        if at.0.checked_add(bytes as u64).is_none() {
            return Err(GpuError::InvalidValue { what: format!("{bytes} bytes at {:#x}", at.0) });
        }
        Ok(Blocks { at, bytes, block: self.staging_block, area: self.staging_bytes })
    }

    fn announce(&self, caller: &mut Caller, to_gpu: bool, transfer: Transfer) -> Result<u32, GpuError> {
        let number = caller.next();
        self.send(&mut self.sender.lock(), &[&frame::transfer(number, to_gpu, transfer)])?;
        Ok(number)
    }

    /// Copies in frames go in one copy, or where every frame is answered in one for each piece.
    fn in_frames(&self, at: DevAddr, bytes: usize, copy: impl Fn(DevAddr, usize, usize) -> Answer) -> Answer {
        let whole = self.blocks(at, bytes)?;
        let step = if self.answered { PIECE_BYTES } else { whole.bytes.max(1) };
        (0..whole.bytes).step_by(step).try_for_each(|done| {
            let length = step.min(whole.bytes - done);
            copy(DevAddr(at.0 + done as u64), done, length)
        })
    }

    /// Copies to the GPU, with one answer.
    fn put(&self, dst: DevAddr, src: HostRange<'_>) -> Answer {
        let mut caller = self.caller.lock();
        let number = caller.next();
        let mut piece = std::mem::take(&mut caller.frame);
        let mut done = 0;
        while done < src.len() {
            let length = PIECE_BYTES.min(src.len() - done);
            piece.resize(length, 0);
            src.part(done, length).read(&mut piece);
            let header = frame::put_header(number, done + length == src.len(), DevAddr(dst.0 + done as u64));
            self.send(&mut self.sender.lock(), &[&header, &piece])?;
            done += length;
        }
        caller.frame = piece;
        self.receive(&mut caller, number)?.map(drop)
    }

    /// Copies from the GPU: asks once.
    fn get(&self, dst: HostRange<'_>, src: DevAddr) -> Answer {
        let mut caller = self.caller.lock();
        self.hear_posted(&mut caller)?;
        let number = caller.next();
        self.send(&mut self.sender.lock(), &[&frame::get(number, src, dst.len() as u64)])?;
        let mut done = 0;
        loop {
            self.pop(&mut caller)?;
            let caller = &mut *caller;
            match wire::parse_daemon_frame(&caller.frame).map_err(|error| self.lose(error))? {
                DaemonFrame::Data { number: of, last, body } => {
                    let is_last = done + body.len() == dst.len();
                    if of != number || body.len() > dst.len() - done || last != is_last || body.is_empty() {
                        return Err(self.lose("the daemon sent other bytes than were asked for"));
                    }
                    dst.part(done, body.len()).write(body);
                    done += body.len();
                    if last {
                        self.count_round_trip();
                        return Ok(());
                    }
                }
                DaemonFrame::Answer { number: of, last, body } => {
                    return match self.add_answer(&mut caller.answer, number, (of, last, body))? {
                        Some(Err(refused)) => Err(refused),
                        Some(Ok(_)) => Err(self.lose("the daemon sent an answer in place of bytes")),
                        None => continue,
                    };
                }
            }
        }
    }

    pub(crate) fn write_blocks(&self, dst: DevAddr, src: HostRange<'_>) -> Result<(), GpuError> {
        if self.in_frames {
            return self.in_frames(dst, src.len(), |at, done, length| self.put(at, src.part(done, length)));
        }
        let blocks = self.blocks(dst, src.len())?;
        let mut caller = self.caller.lock();
        let mut flight = InFlight::default();
        for index in 0..blocks.count() {
            if flight.full(blocks.slots()) {
                flight.land(self, &mut caller)?;
            }
            if flight.failed.is_some() {
                break;
            }
            let transfer = blocks.transfer(index);
            let (offset, length) = blocks.range(index);
            self.staging.range(transfer.staging as usize, length).copy_from(src.part(offset, length));
            flight.start(self.announce(&mut caller, true, transfer)?);
        }
        flight.finish(self, &mut caller)
    }

    pub(crate) fn read_blocks(&self, dst: HostRange<'_>, src: DevAddr) -> Result<(), GpuError> {
        if self.in_frames {
            return self.in_frames(src, dst.len(), |at, done, length| self.get(dst.part(done, length), at));
        }
        let blocks = self.blocks(src, dst.len())?;
        let mut caller = self.caller.lock();
        let mut flight = InFlight::default();
        let mut asked = 0;
        for index in 0..blocks.count() {
            while asked < blocks.count() && !flight.full(blocks.slots()) {
                flight.start(self.announce(&mut caller, false, blocks.transfer(asked))?);
                asked += 1;
            }
            flight.land(self, &mut caller)?;
            if flight.failed.is_some() {
                break;
            }
            let (offset, length) = blocks.range(index);
            let staging = blocks.transfer(index).staging as usize;
            dst.part(offset, length).copy_from(self.staging.range(staging, length));
        }
        flight.finish(self, &mut caller)
    }
}

/// Blocks announced and not yet answered: their numbers follow each other.
#[derive(Default)]
struct InFlight {
    first: u32,
    count: u32,
    failed: Option<GpuError>,
}

impl InFlight {
    fn full(&self, slots: usize) -> bool {
        self.count as usize >= slots
    }

    fn start(&mut self, number: u32) {
        if self.count == 0 {
            self.first = number;
        }
        self.count += 1;
    }

    /// Takes the oldest answer; fails only if the session is over.
    fn land(&mut self, gpu: &RemoteGpu, caller: &mut Caller) -> Result<(), GpuError> {
        let answer = gpu.receive(caller, self.first)?;
        self.first = self.first.wrapping_add(1);
        self.count -= 1;
        if let Err(error) = answer {
            self.failed.get_or_insert(error);
        }
        Ok(())
    }

    fn finish(mut self, gpu: &RemoteGpu, caller: &mut Caller) -> Result<(), GpuError> {
        while self.count > 0 {
            self.land(gpu, caller)?;
        }
        self.failed.map_or(Ok(()), Err)
    }
}
