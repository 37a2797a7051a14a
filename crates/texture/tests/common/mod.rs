//! An image in memory, and its texels as the documentation of the layout says where they are.

#![allow(dead_code, reason = "each test uses a part")]

use std::cell::Cell;

use texture::{Descriptor, Format, Image, Layout, Memory, Object, Sampler, Shape};

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(Cell<u64>);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(Cell::new(seed))
    }
    pub(crate) fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub(crate) fn below(&self, n: u64) -> u64 {
        self.next() % n
    }
    pub(crate) fn of<T: Copy>(&self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
    pub(crate) fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Memory that has an image and nothing else.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Picture {
    pub(crate) image: Image,
    pub(crate) bytes: Vec<u8>,
}

/// Where something was accessed that is no part of the image.
#[derive(PartialEq, Debug)]
pub(crate) struct Stray(pub(crate) u64, pub(crate) u32);

impl Picture {
    /// An image of some shape, of random bytes; small.
    pub(crate) fn random(random: &Random, shapes: &[Shape], formats: &[Format]) -> Picture {
        let (shape, format, channels) = (random.of(shapes), random.of(formats), random.of(&[1, 2, 4]));
        let mut extent = [1 + random.below(9) as u32, 1 + random.below(7) as u32, 1 + random.below(5) as u32];
        match shape {
            Shape::Linear | Shape::D1 => extent[1..].fill(1),
            Shape::Pitched | Shape::D2 => extent[2] = 1,
            Shape::D1Layered => extent[1] = 1,
            Shape::Cube => extent = [extent[0], extent[0], 6],
            Shape::CubeLayered => extent = [extent[0], extent[0], 6 * extent[2]],
            Shape::D3 | Shape::D2Layered => {}
        }
        let levels = 1 + random.below(shape.most_levels(extent).into()) as u8;
        let mut image = Image::array(shape, format, channels, 0x7000_0000_0000, extent, levels);
        if shape == Shape::Pitched {
            image.pitch = (extent[0] + random.below(4) as u32) * image.texel();
        }
        let [first, last] = image.level_range;
        let first = first + random.below(u64::from(last - first) + 1) as u8;
        image.level_range = [first, first + random.below(u64::from(last - first) + 1) as u8];
        if shape.is_layered() {
            let unit = if shape.is_cube() { 6 } else { 1 };
            let all = u64::from(extent[2] / unit);
            let first = random.below(all);
            let count = 1 + random.below(all - first);
            image.layer_range = [first as u32 * unit, (first + count) as u32 * unit - 1];
        }
        let bytes = if shape.is_array() {
            Layout::new(shape, image.texel(), extent, levels).expect("a layout").bytes()
        } else {
            u64::from(image.pitch.max(extent[0] * image.texel())) * u64::from(extent[1])
        };
        let mut picture = Picture { image, bytes: (0..bytes).map(|_| random.next() as u8).collect() };
        if format == Format::F32 {
            // Numbers that a sum shows, and now and then what is none.
            for word in picture.bytes.chunks_exact_mut(4) {
                let number = random.below(2000) as f32 / 8.0 - 100.0;
                let number = if random.one_in(60) { random.of(&[f32::NAN, f32::INFINITY, -0.0]) } else { number };
                word.copy_from_slice(&number.to_le_bytes());
            }
        }
        picture
    }

    pub(crate) fn object(&self, sampler: Option<Sampler>) -> Object {
        let descriptor = Descriptor { image: self.image, sampler };
        Object::decode(&descriptor.encode()).expect("a descriptor")
    }

    /// Width, height and depth (or layers) of a level of the view.
    pub(crate) fn size(&self, level: u8) -> [u32; 3] {
        let level = level + self.image.level_range[0];
        let halved = |n: u32| (0..level).fold(n, |n, _| if n > 1 { n / 2 } else { 1 });
        let [width, height, depth] = self.image.extent;
        let [first, last] = self.image.layer_range;
        let depth = match self.image.shape {
            Shape::D3 => halved(depth),
            shape if shape.is_layered() => last - first + 1,
            _ => depth,
        };
        [halved(width), halved(height), depth]
    }

    /// Where a texel of the view is, in bytes from the image's begin.
    pub(crate) fn place(&self, level: u8, [x, y, z]: [u32; 3]) -> usize {
        let texel = u64::from(self.image.texel());
        let round = |n: u64, to: u64| n.div_ceil(to) * to;
        let [mut width, mut height, mut depth] = self.image.extent.map(u64::from);
        let mut offset = 0;
        let mut pitch = round(width * texel, 32);
        for _ in 0..level + self.image.level_range[0] {
            offset = round(offset + pitch * height * depth, 512);
            (width, height) = ((width / 2).max(1), (height / 2).max(1));
            depth = if self.image.shape == Shape::D3 { (depth / 2).max(1) } else { depth };
            pitch = round(width * texel, 32);
        }
        if self.image.shape == Shape::Pitched {
            pitch = self.image.pitch.into();
        }
        let z = u64::from(z) + u64::from(self.image.layer_range[0]);
        (offset + (z * height + u64::from(y)) * pitch + u64::from(x) * texel) as usize
    }

    /// A texel's bytes.
    pub(crate) fn raw(&self, level: u8, at: [u32; 3]) -> &[u8] {
        &self.bytes[self.place(level, at)..][..self.image.texel() as usize]
    }

    fn range(&self, address: u64, bytes: u32) -> Result<std::ops::Range<usize>, Stray> {
        let stray = Stray(address, bytes);
        let Some(at) = address.checked_sub(self.image.base) else { return Err(stray) };
        let fits = address.is_multiple_of(bytes.into()) && at + u64::from(bytes) <= self.bytes.len() as u64;
        if fits { Ok(at as usize..(at + u64::from(bytes)) as usize) } else { Err(stray) }
    }
}

impl Memory for Picture {
    type Fault = Stray;

    fn load(&mut self, address: u64, bytes: u32) -> Result<u128, Stray> {
        let mut value = [0; 16];
        value[..bytes as usize].copy_from_slice(&self.bytes[self.range(address, bytes)?]);
        Ok(u128::from_le_bytes(value))
    }

    fn store(&mut self, address: u64, bytes: u32, value: u128) -> Result<(), Stray> {
        let range = self.range(address, bytes)?;
        self.bytes[range].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Ok(())
    }

    fn update(&mut self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<(), Stray> {
        let old = self.load(address, bytes)? as u64;
        self.store(address, bytes, f(old).into())
    }
}
