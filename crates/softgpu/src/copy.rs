//! The copy engine: methods of class C5B5, and the transfers they describe.

use std::ops::Range;
use std::sync::Arc;

use gmmu::{AccessKind, PhysMem};
use gpu_spec::Field;
use gpu_spec::copy::{
    LAUNCH_DMA, LINE_COUNT, LINE_LENGTH_IN, NOP, OFFSET_IN_LOWER, OFFSET_IN_UPPER, OFFSET_OUT_LOWER, OFFSET_OUT_UPPER,
    PITCH_IN, PITCH_OUT, SET_DST_PHYS_MODE, SET_REMAP_COMPONENTS, SET_REMAP_CONST_A, SET_REMAP_CONST_B,
    SET_SEMAPHORE_A, SET_SEMAPHORE_B, SET_SEMAPHORE_PAYLOAD, SET_SRC_PHYS_MODE, UPPER, launch_dma, remap,
};
use gpu_spec::fault::FaultType;
use gpu_spec::mmu::{Aperture, PhysAddr};
use gpu_spec::notifier::Code;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::channel::{Context, Flow};
use crate::error::{ChannelError, Unit};
use crate::host::Release;
use crate::job::Job;
use crate::memory::Memory;
use crate::space::{Refused, Space};

/// Bytes that a worker copies before it looks up.
const PART_BYTES: u64 = 512 << 10;
/// Lines that a worker copies before it looks up.
const PART_LINES: u64 = 1024;
/// Transfers up to this size are done at once, by whoever reads the pushbuffer.
const SMALL_BYTES: u64 = 4 << 10;
/// The same of transfers that make elements, which takes longer for each.
const SMALL_ELEMENTS: u64 = 1 << 10;
/// Bytes of a staging buffer for what does not go directly from place to place.
const STAGE_BYTES: usize = 16 << 10;

/// Method state.
#[derive(Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct CopyEngine {
    source: [u32; 2],
    destination: [u32; 2],
    pitch: [u32; 2],
    line_length: u32,
    line_count: u32,
    physical: [u32; 2],
    constants: [u32; 2],
    components: u32,
    semaphore: [u32; 3],
}

/// One end of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Virtual(u64),
    Physical(PhysAddr),
}

impl Place {
    fn offset(self, bytes: u64) -> Place {
        match self {
            Place::Virtual(va) => Place::Virtual(va.wrapping_add(bytes)),
            Place::Physical(at) => Place::Physical(at.offset(bytes)),
        }
    }
}

/// Where a component of an element comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Component {
    Source(usize),
    Constant(u32),
    Keep,
}

/// How the remapper makes elements.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Remap {
    component_bytes: usize,
    source_components: usize,
    components: Vec<Component>,
}

impl Remap {
    fn source_bytes(&self) -> u64 {
        (self.component_bytes * self.source_components) as u64
    }

    fn element_bytes(&self) -> u64 {
        (self.component_bytes * self.components.len()) as u64
    }

    fn reads_source(&self) -> bool {
        self.components.iter().any(|component| matches!(component, Component::Source(_)))
    }

    /// Makes elements in `out` from those in `source`.
    fn apply(&self, source: &[u8], out: &mut [u8]) {
        let size = self.component_bytes;
        let elements = out.chunks_exact_mut(size * self.components.len());
        for (index, element) in elements.enumerate() {
            for (place, component) in element.chunks_exact_mut(size).zip(&self.components) {
                match component {
                    Component::Source(which) => {
                        let at = (index * self.source_components + which) * size;
                        if let Some(bytes) = source.get(at..at + size) {
                            place.copy_from_slice(bytes);
                        }
                    }
                    Component::Constant(value) => place.copy_from_slice(&value.to_le_bytes()[..size]),
                    Component::Keep => {}
                }
            }
        }
    }
}

/// A transfer. Lengths and positions count units: bytes, or elements when there is a remapper.
#[derive(Debug)]
pub(crate) struct Transfer {
    space: Arc<Space>,
    source: Place,
    destination: Place,
    source_pitch: u64,
    destination_pitch: u64,
    /// Units of a line.
    line: u64,
    /// Units of all lines.
    total: u64,
    remap: Option<Remap>,
    /// What is done at the end.
    pub(crate) finish: Finish,
}

/// The end of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Finish {
    pub(crate) release: Option<Release>,
    pub(crate) interrupt: bool,
}

impl CopyEngine {
    pub(crate) fn method(
        &mut self,
        context: &mut Context<'_>,
        subchannel: u32,
        method: u32,
        data: u32,
    ) -> Result<Flow, ChannelError> {
        match method {
            NOP => {}
            SET_SEMAPHORE_A => self.semaphore[0] = data,
            SET_SEMAPHORE_B => self.semaphore[1] = data,
            SET_SEMAPHORE_PAYLOAD => self.semaphore[2] = data,
            SET_SRC_PHYS_MODE => self.physical[0] = data,
            SET_DST_PHYS_MODE => self.physical[1] = data,
            OFFSET_IN_UPPER => self.source[1] = data,
            OFFSET_IN_LOWER => self.source[0] = data,
            OFFSET_OUT_UPPER => self.destination[1] = data,
            OFFSET_OUT_LOWER => self.destination[0] = data,
            PITCH_IN => self.pitch[0] = data,
            PITCH_OUT => self.pitch[1] = data,
            LINE_LENGTH_IN => self.line_length = data,
            LINE_COUNT => self.line_count = data,
            SET_REMAP_CONST_A => self.constants[0] = data,
            SET_REMAP_CONST_B => self.constants[1] = data,
            SET_REMAP_COMPONENTS => self.components = data,
            LAUNCH_DMA => {
                return self
                    .launch(context, data)
                    .map_err(|what| ChannelError::method(Code::CE_EXCEPTION, subchannel, method, data, what))?
                    .start(context);
            }
            _ => {
                let what = "unknown method of the copy class";
                return Err(ChannelError::method(Code::CE_EXCEPTION, subchannel, method, data, what));
            }
        }
        Ok(Flow::Next)
    }

    fn launch(&self, context: &Context<'_>, launch: u32) -> Result<Transfer, &'static str> {
        /// Combining with the semaphore's old value instead of storing.
        const SEMAPHORE_REDUCTION: Field = Field::bit(19);
        let va = |words: [u32; 2]| u64::from(words[0]) | u64::from(UPPER.get(words[1])) << 32;
        let place = |physical: Field, mode: u32, words: [u32; 2]| {
            if !physical.is_set(launch) {
                return Ok(Place::Virtual(va(words)));
            }
            if !context.privileged {
                return Err("physical addresses are for privileged channels");
            }
            Ok(Place::Physical(match mode & 3 {
                0 => PhysAddr::vram(va(words)),
                1 | 2 => PhysAddr::system(va(words)),
                _ => return Err("unknown physical target"),
            }))
        };
        let transfer = launch_dma::DATA_TRANSFER_TYPE.get(launch) != launch_dma::TRANSFER_NONE;
        let pitch = launch_dma::SRC_LAYOUT_PITCH.is_set(launch) && launch_dma::DST_LAYOUT_PITCH.is_set(launch);
        if transfer && !pitch {
            return Err("only pitch layouts exist");
        }
        if SEMAPHORE_REDUCTION.is_set(launch) {
            return Err("semaphore reductions of the copy class do not exist");
        }
        let release = match launch_dma::SEMAPHORE_TYPE.get(launch) {
            launch_dma::SEMAPHORE_NONE => None,
            kind @ (launch_dma::SEMAPHORE_ONE_WORD | launch_dma::SEMAPHORE_FOUR_WORD) => Some(Release {
                va: u64::from(self.semaphore[1]) | u64::from(UPPER.get(self.semaphore[0])) << 32,
                payload: self.semaphore[2].into(),
                wide: false,
                timestamp: kind == launch_dma::SEMAPHORE_FOUR_WORD,
            }),
            _ => return Err("unknown kind of semaphore"),
        };
        let lines = if launch_dma::MULTI_LINE.is_set(launch) { self.line_count } else { 1 };
        let line = u64::from(self.line_length);
        let total = if transfer { line.checked_mul(lines.into()).ok_or("too long")? } else { 0 };
        Ok(Transfer {
            space: Arc::clone(context.space),
            source: place(launch_dma::SRC_PHYSICAL, self.physical[0], self.source)?,
            destination: place(launch_dma::DST_PHYSICAL, self.physical[1], self.destination)?,
            source_pitch: self.pitch[0].into(),
            destination_pitch: self.pitch[1].into(),
            line,
            total,
            remap: launch_dma::REMAP.is_set(launch).then(|| self.remap()).transpose()?,
            finish: Finish { release, interrupt: launch_dma::INTERRUPT_TYPE.is_set(launch) },
        })
    }

    fn remap(&self) -> Result<Remap, &'static str> {
        let selectors = [remap::DST_X, remap::DST_Y, remap::DST_Z, remap::DST_W];
        let count = remap::NUM_DST_COMPONENTS.get(self.components) as usize + 1;
        let source_components = remap::NUM_SRC_COMPONENTS.get(self.components) as usize + 1;
        let component = |selector: &Field| match selector.get(self.components) {
            which @ 0..=3 if (which as usize) < source_components => Ok(Component::Source(which as usize)),
            remap::CONST_A => Ok(Component::Constant(self.constants[0])),
            remap::CONST_B => Ok(Component::Constant(self.constants[1])),
            remap::NO_WRITE => Ok(Component::Keep),
            _ => Err("a component has no source"),
        };
        Ok(Remap {
            component_bytes: remap::COMPONENT_SIZE.get(self.components) as usize + 1,
            source_components,
            components: selectors[..count].iter().map(component).collect::<Result<_, _>>()?,
        })
    }
}

impl Transfer {
    /// A copy in an address space, from byte to byte.
    pub(crate) fn copying(space: &Arc<Space>, dst: u64, src: u64, bytes: u64) -> Transfer {
        Transfer {
            space: Arc::clone(space),
            source: Place::Virtual(src),
            destination: Place::Virtual(dst),
            source_pitch: 0,
            destination_pitch: 0,
            line: bytes,
            total: bytes,
            remap: None,
            finish: Finish::default(),
        }
    }

    /// One that makes every byte the same.
    pub(crate) fn filling(space: &Arc<Space>, dst: u64, value: u8, bytes: u64) -> Transfer {
        let components = vec![Component::Constant(value.into())];
        let remap = Remap { component_bytes: 1, source_components: 1, components };
        Transfer { remap: Some(remap), ..Transfer::copying(space, dst, dst, bytes) }
    }

    /// Units of all lines.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of all lines.
    pub(crate) fn bytes(&self) -> u64 {
        self.total.saturating_mul(self.unit())
    }

    /// Bytes of a unit at the destination.
    fn unit(&self) -> u64 {
        self.remap.as_ref().map_or(1, Remap::element_bytes)
    }

    /// Units that one worker should do at once.
    pub(crate) fn part(&self) -> u64 {
        (PART_BYTES / self.unit()).min(self.line.saturating_mul(PART_LINES)).max(1)
    }

    /// Does a small transfer now; makes a job of a large one.
    fn start(self, context: &mut Context<'_>) -> Result<Flow, ChannelError> {
        let one_line = self.total == self.line || self.total == 0;
        let small = if self.remap.is_some() { SMALL_ELEMENTS } else { SMALL_BYTES };
        if !one_line || self.total > small {
            return Ok(Flow::Start(Job::Copy(Arc::new(self))));
        }
        self.run(&context.chip.memory, 0..self.total)?;
        if let Some(release) = self.finish.release {
            release.run(context.chip, context.space, Unit::Copy)?;
            context.effects.released.push(release.va);
        }
        context.effects.copies += 1;
        let moved = self.moved(&context.chip.memory);
        for (total, bytes) in context.effects.moved.iter_mut().zip(moved) {
            *total += bytes;
        }
        context.effects.interrupts += u32::from(self.finish.interrupt);
        Ok(Flow::Next)
    }

    /// Bytes that came from system memory into VRAM, and that went the other way, by where its first byte comes from and goes:
    /// a range that is both is rare, and no reason to walk through tables for each page.
    pub(crate) fn moved(&self, memory: &Memory) -> [u64; 2] {
        let reads = self.remap.as_ref().is_none_or(Remap::reads_source);
        if !reads || self.total == 0 {
            return [0; 2];
        }
        let is_vram = |place, end| match place {
            Place::Virtual(va) => self.space.is_vram(memory, va, end),
            Place::Physical(at) => Some(at.aperture == Aperture::Vram),
        };
        match (is_vram(self.source, 0), is_vram(self.destination, 1)) {
            (Some(false), Some(true)) => [self.bytes(), 0],
            (Some(true), Some(false)) => [0, self.bytes()],
            _ => [0; 2],
        }
    }

    /// Moves a part: units from `part.start` to `part.end`, counted over all lines.
    pub(crate) fn run(&self, memory: &Memory, part: Range<u64>) -> Result<(), ChannelError> {
        let mut at = part.start;
        if let Place::Virtual(va) = self.destination
            && self.total == self.line
        {
            let unit = self.unit();
            self.space.expect_writes(va.wrapping_add(at * unit), (part.end - at) * unit);
        }
        while at < part.end {
            let (line, column) = (at / self.line, at % self.line);
            let count = (self.line - column).min(part.end - at);
            let source = self.source.offset(line.wrapping_mul(self.source_pitch));
            let destination = self.destination.offset(line.wrapping_mul(self.destination_pitch));
            match &self.remap {
                None => self.copy(memory, destination.offset(column), source.offset(column), count),
                Some(remap) => {
                    let source = source.offset(column * remap.source_bytes());
                    self.make(memory, remap, destination.offset(column * remap.element_bytes()), source, count)
                }
            }
            .map_err(|refused| ChannelError::refused(refused, Unit::Copy))?;
            at += count;
        }
        Ok(())
    }

    fn copy(&self, memory: &Memory, destination: Place, source: Place, bytes: u64) -> Result<(), Refused> {
        if let (Place::Virtual(to), Place::Virtual(from)) = (destination, source) {
            return self.space.copy(memory, to, from, bytes);
        }
        let mut stage = [0; STAGE_BYTES];
        let mut done = 0;
        while done < bytes {
            let stage = &mut stage[..(bytes - done).min(STAGE_BYTES as u64) as usize];
            self.read(memory, source.offset(done), stage)?;
            self.write(memory, destination.offset(done), stage)?;
            done += stage.len() as u64;
        }
        Ok(())
    }

    fn make(
        &self,
        memory: &Memory,
        remap: &Remap,
        destination: Place,
        source: Place,
        elements: u64,
    ) -> Result<(), Refused> {
        let (from_bytes, to_bytes) = (remap.source_bytes(), remap.element_bytes());
        let per_stage = STAGE_BYTES as u64 / 16;
        let (mut from, mut to) = ([0; STAGE_BYTES], [0; STAGE_BYTES]);
        let reads = remap.reads_source();
        let keeps = remap.components.contains(&Component::Keep);
        let constant = !reads && !keeps;
        if constant {
            // A fill: the same bytes again and again.
            remap.apply(&[], &mut to[..(per_stage.min(elements) * to_bytes) as usize]);
        }
        let mut done = 0;
        while done < elements {
            let count = (elements - done).min(per_stage);
            let from = &mut from[..(count * from_bytes) as usize];
            let to = &mut to[..(count * to_bytes) as usize];
            let at = destination.offset(done * to_bytes);
            if reads {
                self.read(memory, source.offset(done * from_bytes), from)?;
            }
            if keeps {
                self.read(memory, at, to)?;
            }
            if !constant {
                remap.apply(from, to);
            }
            self.write(memory, at, to)?;
            done += count;
        }
        Ok(())
    }

    fn read(&self, memory: &Memory, place: Place, out: &mut [u8]) -> Result<(), Refused> {
        match place {
            Place::Virtual(va) => self.space.read(memory, va, out),
            Place::Physical(at) => memory.read(at, out).map_err(|_| nowhere(at, AccessKind::Read)),
        }
    }

    fn write(&self, memory: &Memory, place: Place, data: &[u8]) -> Result<(), Refused> {
        match place {
            Place::Virtual(va) => self.space.write(memory, va, data),
            Place::Physical(at) => memory.write(at, data).map_err(|_| nowhere(at, AccessKind::Write)),
        }
    }
}

fn nowhere(at: PhysAddr, access: AccessKind) -> Refused {
    Refused { address: at.address, kind: FaultType::REGION_VIOLATION, access }
}
