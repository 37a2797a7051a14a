//! What an instruction does with a texture or a surface: one lane's access, for both engines.
//!
//! An access has a handle and *sources*, in this order, those in parentheses where the access says so: the layer (array
//! geometries), the coordinates, (the level, or the two gradients, as many numbers as coordinates), (an offset for each
//! coordinate), (the values). All are 32 bits long, in the low bits of a word, but for values of 64 bits.

use serde::{Deserialize, Serialize};

use crate::descriptor::Format;
use crate::object::Object;
use crate::sample::{self, Detail, Request};
use crate::surface;

/// Which coordinates an instruction has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Geometry {
    /// `.1d`.
    D1,
    /// `.2d`.
    D2,
    /// `.3d`.
    D3,
    /// `.a1d`: a layer and x.
    A1,
    /// `.a2d`: a layer, x and y.
    A2,
    /// `.cube`: a direction.
    Cube,
    /// `.acube`: a layer and a direction.
    ACube,
}

impl Geometry {
    /// Number of coordinates, the layer not counted.
    #[must_use]
    pub fn coordinates(self) -> usize {
        match self {
            Geometry::D1 | Geometry::A1 => 1,
            Geometry::D2 | Geometry::A2 => 2,
            Geometry::D3 | Geometry::Cube | Geometry::ACube => 3,
        }
    }

    /// Does a layer come before the coordinates?
    #[must_use]
    pub fn layered(self) -> bool {
        matches!(self, Geometry::A1 | Geometry::A2 | Geometry::ACube)
    }

    /// Is it a cube's?
    #[must_use]
    pub fn is_cube(self) -> bool {
        matches!(self, Geometry::Cube | Geometry::ACube)
    }
}

/// Which level of detail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Mip {
    /// `.base`: the first.
    Base,
    /// `.level`: it is said, in the type of the coordinates.
    Level,
    /// `.grad`: that where the texture is about as fine as these steps.
    Gradient,
}

/// What an access outside a surface does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Boundary {
    /// Ends the grid.
    Trap,
    /// Is one at the nearest place inside.
    Clamp,
    /// Reads zero, and writes nothing.
    Zero,
}

/// What is asked about a texture or a surface. Enumerations are those of OpenCL.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum Query {
    Width,
    Height,
    Depth,
    ChannelDataType,
    ChannelOrder,
    NormalizedCoords,
    ArraySize,
    NumMipmapLevels,
    NumSamples,
    FilterMode,
    /// For x, y and z.
    AddrMode(u8),
    MemoryLayout,
}

/// What a reduction does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum Reduction {
    Add,
    Min,
    Max,
    And,
    Or,
}

/// An instruction's access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as the instruction's parts")]
pub enum Access {
    /// `tex`: four results. `integer` coordinates are texels' indices.
    Sample { geometry: Geometry, integer: bool, mip: Mip, offset: bool },
    /// `tld4`: four texels' component, results in the order of PTX.
    Gather { geometry: Geometry, component: u8, offset: bool },
    /// `txq`, `suq`: one result; `level`: a source says of which level.
    Query { what: Query, level: bool },
    /// `suld.b`: `count` results of so many bytes; x counts bytes.
    Load { geometry: Geometry, bytes: u8, count: u8, boundary: Boundary },
    /// `sust.b`: the reverse.
    Store { geometry: Geometry, bytes: u8, count: u8, boundary: Boundary },
    /// `sust.p`: `count` channels, each from 32 bits; x counts texels.
    StoreFormatted { geometry: Geometry, count: u8, boundary: Boundary },
    /// `sured`: a value of so many bytes. x counts bytes, or with `formatted` texels, and then the format says whether it is signed.
    Reduce { op: Reduction, geometry: Geometry, bytes: u8, signed: bool, formatted: bool, boundary: Boundary },
}

/// Most sources of an access, the handle not counted: of a gradient in three dimensions of a layer, with offsets.
pub const MAX_SOURCES: usize = 13;
/// Most results.
pub const MAX_RESULTS: usize = 4;

impl Access {
    /// Does it need a texture's handle, and no surface's? Queries take both.
    #[must_use]
    pub fn is_texture(&self) -> bool {
        matches!(self, Access::Sample { .. } | Access::Gather { .. })
    }

    /// Does it change memory?
    #[must_use]
    pub fn writes(&self) -> bool {
        matches!(self, Access::Store { .. } | Access::StoreFormatted { .. } | Access::Reduce { .. })
    }

    /// Its sources, the handle not counted: so many of 32 bits, and behind them so many values of so many bytes.
    #[must_use]
    #[inline]
    pub fn sources(&self) -> (usize, usize, u8) {
        let place = |geometry: Geometry| usize::from(geometry.layered()) + geometry.coordinates();
        match *self {
            Access::Sample { geometry, mip, offset, .. } => {
                let detail = match mip {
                    Mip::Base => 0,
                    Mip::Level => 1,
                    Mip::Gradient => 2 * geometry.coordinates(),
                };
                (place(geometry) + detail + if offset { geometry.coordinates() } else { 0 }, 0, 4)
            }
            Access::Gather { geometry, offset, .. } => {
                (place(geometry) + if offset { geometry.coordinates() } else { 0 }, 0, 4)
            }
            Access::Query { level, .. } => (usize::from(level), 0, 4),
            Access::Load { geometry, .. } => (place(geometry), 0, 4),
            Access::Store { geometry, bytes, count, .. } => (place(geometry), count.into(), bytes),
            Access::StoreFormatted { geometry, count, .. } => (place(geometry), count.into(), 4),
            Access::Reduce { geometry, bytes, .. } => (place(geometry), 1, bytes),
        }
    }

    /// Number of results, and bytes of each.
    #[must_use]
    #[inline]
    pub fn results(&self) -> (usize, u8) {
        match *self {
            Access::Sample { .. } | Access::Gather { .. } => (4, 4),
            Access::Query { .. } => (1, 4),
            Access::Load { bytes, count, .. } => (count.into(), bytes),
            Access::Store { .. } | Access::StoreFormatted { .. } | Access::Reduce { .. } => (0, 4),
        }
    }

    /// Is there such an instruction?
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let element =
            |bytes: u8, count: u8| matches!(bytes, 1 | 2 | 4 | 8) && matches!(count, 1 | 2 | 4) && bytes * count <= 16;
        match *self {
            Access::Sample { geometry, integer, offset, .. } => !geometry.is_cube() || !(integer || offset),
            Access::Gather { geometry, component, offset } => {
                let flat = matches!(geometry, Geometry::D2 | Geometry::A2);
                component < 4 && (flat || geometry.is_cube() && !offset)
            }
            Access::Query { what: Query::AddrMode(axis), level } => axis < 3 && !level,
            Access::Query { what, level } => !level || matches!(what, Query::Width | Query::Height | Query::Depth),
            Access::Load { geometry, bytes, count, .. } | Access::Store { geometry, bytes, count, .. } => {
                !geometry.is_cube() && element(bytes, count)
            }
            Access::StoreFormatted { geometry, count, .. } => !geometry.is_cube() && matches!(count, 1 | 2 | 4),
            Access::Reduce { geometry, bytes, .. } => !geometry.is_cube() && matches!(bytes, 4 | 8),
        }
    }

    /// Performs the access for one lane: `sources` are the words behind the handle.
    ///
    /// # Errors
    /// Of the wrong sort of handle, the surface's boundary, an address that is no multiple of the access's length, and memory's
    /// own.
    pub fn perform<M: Memory>(
        &self,
        object: &Object,
        sources: &[u64],
        memory: &mut M,
    ) -> Result<[u64; MAX_RESULTS], Refused<M::Fault>> {
        let mut words = Words(sources.iter());
        if self.is_texture() != object.sampler().is_some() && !matches!(self, Access::Query { .. }) {
            return Err(Refused::Role);
        }
        match *self {
            Access::Sample { geometry, integer, mip, offset } => {
                let (layer, at) = words.place(geometry);
                let mut numbers = || {
                    let mut at = [0.0; 3];
                    at[..geometry.coordinates()].fill_with(|| f32::from_bits(words.next()));
                    at
                };
                let detail = match mip {
                    Mip::Base => Detail::Base,
                    Mip::Level if integer => Detail::Level(f64::from(words.next().cast_signed())),
                    Mip::Level => Detail::Level(f64::from(f32::from_bits(words.next()))),
                    Mip::Gradient => {
                        let dx = numbers();
                        Detail::Gradient(dx, numbers())
                    }
                };
                let offset = words.offset(geometry, offset);
                let request = Request { cube: geometry.is_cube(), layer, at, integer, offset };
                sample::sample(object, &request, detail, memory)
                    .map(|texel| texel.map(u64::from))
                    .map_err(Refused::Memory)
            }
            Access::Gather { geometry, component, offset } => {
                let (layer, at) = words.place(geometry);
                let offset = words.offset(geometry, offset);
                let request = Request { cube: geometry.is_cube(), layer, at, integer: false, offset };
                let texels = sample::gather(object, &request, component, memory).map_err(Refused::Memory)?;
                Ok(texels.map(u64::from))
            }
            Access::Query { what, level } => {
                let level = if level { words.next() } else { 0 };
                Ok([object.query(what, level).into(), 0, 0, 0])
            }
            Access::Load { geometry, bytes, count, boundary } => {
                let (layer, at) = words.place(geometry);
                let all = u32::from(bytes) * u32::from(count);
                let Some(address) = surface::bytes_at(object, layer, at, all, boundary)? else { return Ok([0; 4]) };
                let value = memory.load(address, all).map_err(Refused::Memory)?;
                let part = |i: u32| value.checked_shr(8 * u32::from(bytes) * i).unwrap_or(0) & ones(bytes);
                let mut results = [0; MAX_RESULTS];
                for (result, i) in results.iter_mut().zip(0..u32::from(count)) {
                    *result = part(i) as u64;
                }
                Ok(results)
            }
            Access::Store { geometry, bytes, count, boundary } => {
                let (layer, at) = words.place(geometry);
                let all = u32::from(bytes) * u32::from(count);
                let Some(address) = surface::bytes_at(object, layer, at, all, boundary)? else { return Ok([0; 4]) };
                let mut value = 0;
                for i in 0..u32::from(count) {
                    value |= (u128::from(words.long()) & ones(bytes)) << (8 * u32::from(bytes) * i);
                }
                memory.store(address, all, value).map_err(Refused::Memory)?;
                Ok([0; 4])
            }
            Access::StoreFormatted { geometry, count, boundary } => {
                let (layer, at) = words.place(geometry);
                let mut channels = [0; 4];
                channels[..usize::from(count)].fill_with(|| words.next());
                let Some(address) = surface::texel_at(object, layer, at, boundary)? else { return Ok([0; 4]) };
                let (texel, value) = (object.image().texel(), surface::packed(object.image(), channels));
                memory.store(address, texel, value).map_err(Refused::Memory)?;
                Ok([0; 4])
            }
            Access::Reduce { op, geometry, bytes, signed, formatted, boundary } => {
                let (layer, at) = words.place(geometry);
                let value = words.long();
                let address = if formatted {
                    // The value is as long as the texel, or else there is no such access.
                    if object.image().texel() != u32::from(bytes) {
                        return Err(Refused::Role);
                    }
                    surface::texel_at(object, layer, at, boundary)?
                } else {
                    surface::bytes_at(object, layer, at, bytes.into(), boundary)?
                };
                let Some(address) = address else { return Ok([0; 4]) };
                let signed = if formatted { object.image().format == Format::S32 } else { signed };
                let mut replace = |old| surface::reduced(op, bytes, signed, old, value);
                memory.update(address, bytes.into(), &mut replace).map_err(Refused::Memory)?;
                Ok([0; 4])
            }
        }
    }
}

/// So many bytes of ones.
fn ones(bytes: u8) -> u128 {
    u128::MAX >> (128 - 8 * u32::from(bytes))
}

/// Sources that are left.
struct Words<'a>(std::slice::Iter<'a, u64>);

impl Words<'_> {
    fn long(&mut self) -> u64 {
        self.0.next().copied().unwrap_or(0)
    }

    fn next(&mut self) -> u32 {
        self.long() as u32
    }

    /// The layer and the coordinates; zero where there are none.
    fn place(&mut self, geometry: Geometry) -> (u32, [u32; 3]) {
        let layer = if geometry.layered() { self.next() } else { 0 };
        let mut at = [0; 3];
        at[..geometry.coordinates()].fill_with(|| self.next());
        (layer, at)
    }

    /// Offsets are numbers of four bits.
    fn offset(&mut self, geometry: Geometry, there: bool) -> [i64; 3] {
        let mut offset = [0; 3];
        if there {
            offset[..geometry.coordinates()].fill_with(|| i64::from((self.next() << 28).cast_signed() >> 28));
        }
        offset
    }
}

/// GPU memory, as the access's thread sees it.
pub trait Memory {
    /// Why memory is not accessible.
    type Fault;

    /// Reads 1, 2, 4, 8 or 16 bytes at a multiple of as many, little-endian.
    ///
    /// # Errors
    /// There are none.
    fn load(&mut self, address: u64, bytes: u32) -> Result<u128, Self::Fault>;

    /// Writes so.
    ///
    /// # Errors
    /// They cannot be written.
    fn store(&mut self, address: u64, bytes: u32, value: u128) -> Result<(), Self::Fault>;

    /// Replaces 4 or 8 bytes atomically.
    ///
    /// # Errors
    /// They cannot be written.
    fn update(&mut self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<(), Self::Fault>;
}

/// Why an access was not performed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Refused<F> {
    /// The handle stands for a surface where a texture is needed, the reverse, or the texel does not suit the operation.
    Role,
    /// It is outside the surface, and traps there.
    Outside,
    /// This address is no multiple of the access's length.
    Misaligned(u64),
    /// Memory's own reason.
    Memory(F),
}
