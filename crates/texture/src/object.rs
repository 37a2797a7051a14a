//! A descriptor that has been read, and what is asked about it.

use crate::access::Query;
use crate::descriptor::{AddressMode, Descriptor, Filter, Format, Image, Malformed, Sampler};
use crate::layout::{Level, Shape};

/// What a handle stands for, ready for accesses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Object {
    descriptor: Descriptor,
    /// The view's first level; its offset is from address 0.
    first: Level,
}

impl Object {
    /// Reads a descriptor; any bytes may be there.
    ///
    /// # Errors
    /// Why these are none.
    pub fn decode(bytes: &[u8; Descriptor::BYTES]) -> Result<Object, Malformed> {
        let descriptor = Descriptor::decode(bytes)?;
        Ok(Object { descriptor, first: at(&descriptor.image, 0) })
    }

    /// Its texels.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.descriptor.image
    }

    /// How they are read; a surface has no such thing.
    #[must_use]
    pub fn sampler(&self) -> Option<&Sampler> {
        self.descriptor.sampler.as_ref()
    }

    /// Number of levels of the view.
    #[must_use]
    pub fn levels(&self) -> u8 {
        let [first, last] = self.descriptor.image.level_range;
        last - first + 1
    }

    /// Number of layers, faces or slices of a level of the view.
    #[must_use]
    pub fn slices(&self, level: &Level) -> u32 {
        let [first, last] = self.descriptor.image.layer_range;
        if self.descriptor.image.shape.is_layered() { last - first + 1 } else { level.depth }
    }

    /// A level of the view: where it begins (`offset` is an address) and its size.
    #[must_use]
    pub fn level(&self, level: u8) -> Level {
        if level == 0 { self.first } else { at(&self.descriptor.image, level) }
    }

    /// What `txq` and `suq` say; 0 of what there is not.
    #[must_use]
    pub fn query(&self, what: Query, level: u32) -> u32 {
        let image = &self.descriptor.image;
        let sampler = self.descriptor.sampler.unwrap_or_default();
        let size = self.level(u8::try_from(level).unwrap_or(u8::MAX));
        let flat = matches!(image.shape, Shape::Linear | Shape::D1 | Shape::D1Layered);
        match what {
            Query::Width => size.width,
            Query::Height if flat => 0,
            Query::Height => size.height,
            Query::Depth if image.shape == Shape::D3 => size.depth,
            Query::Depth | Query::NumSamples => 0,
            Query::ChannelDataType => match image.format {
                Format::Snorm8 => 0x10d0,
                Format::Snorm16 => 0x10d1,
                Format::Unorm8 => 0x10d2,
                Format::Unorm16 => 0x10d3,
                Format::S8 => 0x10d7,
                Format::S16 => 0x10d8,
                Format::S32 => 0x10d9,
                Format::U8 => 0x10da,
                Format::U16 => 0x10db,
                Format::U32 => 0x10dc,
                Format::F16 => 0x10dd,
                Format::F32 => 0x10de,
            },
            Query::ChannelOrder => match image.channels {
                1 => 0x10b0,
                2 => 0x10b2,
                _ => 0x10b5,
            },
            Query::NormalizedCoords => sampler.normalized.into(),
            Query::ArraySize if image.shape == Shape::CubeLayered => self.slices(&size) / 6,
            Query::ArraySize if image.shape.is_layered() && image.shape != Shape::Cube => self.slices(&size),
            Query::ArraySize => 0,
            Query::NumMipmapLevels if image.levels > 1 => self.levels().into(),
            Query::NumMipmapLevels => 0,
            Query::FilterMode => (sampler.filter == Filter::Linear).into(),
            Query::AddrMode(axis) => match sampler.address.get(usize::from(axis)) {
                None | Some(AddressMode::Wrap) => 0,
                Some(AddressMode::Mirror) => 1,
                Some(AddressMode::Clamp) => 3,
                Some(AddressMode::Border) => 4,
            },
            Query::MemoryLayout => (!image.shape.is_array()).into(),
        }
    }
}

/// A level of the view, with the address of the view's first layer in place of an offset.
fn at(image: &Image, level: u8) -> Level {
    let level = image.level(level);
    let layer = if image.shape.is_layered() { u64::from(image.layer_range[0]) } else { 0 };
    Level { offset: image.base + level.offset + layer * level.slice, ..level }
}
