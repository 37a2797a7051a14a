//! The cases' arrays, textures and coordinates, drawn again as they were for the hardware.

use half::f16;
use texture::{Access, AddressMode, Descriptor, Filter, Format, Geometry, Image, Layout, Mip, Object, Sampler, Shape};

use crate::common::Picture;

/// Samples of a case.
pub(crate) const SAMPLES: usize = 384;

const BASE: u64 = 0x7000_0000_0000;
const MODES: [(&str, AddressMode); 4] = [
    ("wrap", AddressMode::Wrap),
    ("clamp", AddressMode::Clamp),
    ("mirror", AddressMode::Mirror),
    ("border", AddressMode::Border),
];
const FORMATS: [(&str, Format, u8); 7] = [
    ("u8x4", Format::Unorm8, 4),
    ("s8x2", Format::Snorm8, 2),
    ("u16x1", Format::Unorm16, 1),
    ("s16x4", Format::Snorm16, 4),
    ("f16x4", Format::F16, 4),
    ("f32x1", Format::F32, 1),
    ("f32x4", Format::F32, 4),
];

/// The sequence of numbers that everything is drawn from.
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        let state = &mut self.0;
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        state.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ *state >> 29
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 16_777_216.0
    }

    /// Channels of so many texels.
    fn fill(&mut self, format: Format, channels: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..channels {
            match format {
                Format::Unorm8 | Format::Snorm8 => bytes.push(self.next() as u8),
                Format::F16 => bytes.extend(f16::from_f32(self.unit() * 4.0 - 2.0).to_le_bytes()),
                Format::F32 => bytes.extend((self.unit() * 4.0 - 2.0).to_le_bytes()),
                _ => bytes.extend((self.next() as u16).to_le_bytes()),
            }
        }
        bytes
    }

    /// A coordinate along an axis: texels' centres and edges, places beyond, halves of 256ths, anywhere; and odd ones.
    fn coordinate(&mut self, size: f32, normalized: bool) -> f32 {
        const ODD: [f32; 12] = [
            0.0,
            -0.0,
            1e30,
            -1e30,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1e-40,
            1.0,
            0.999_999_94,
            2_147_483_648.0,
            8_388_608.0,
        ];
        let scale = if normalized { 1.0 } else { size };
        let x = match self.next() % 6 {
            0 => (self.unit() * 2.0 * size).trunc() / (2.0 * size) * scale,
            1 => (self.unit() * 4.0 - 1.5) * scale,
            2 => {
                // Both draws are in this order.
                let texel = (self.unit() * size).floor() + 0.5;
                (texel + (self.unit() * 512.0).floor() / 512.0) / size * scale
            }
            _ => self.unit() * scale,
        };
        if self.next().is_multiple_of(64) { ODD[(self.next() % 12) as usize] } else { x }
    }

    fn direction(&mut self) -> f32 {
        if self.next().is_multiple_of(8) { (self.next() % 3) as f32 - 1.0 } else { self.unit() * 2.0 - 1.0 }
    }
}

/// What is asked of a texture.
#[derive(Clone, Copy, PartialEq)]
enum Ask {
    Base,
    Gather(u8),
    /// The level is w times the first, and the second.
    Level(f32, f32),
    Gradient,
    Fetch,
}

/// A texture and its coordinates.
pub(crate) struct Case {
    name: String,
    picture: Picture,
    object: Object,
    ask: Ask,
    coordinates: Vec<[f32; 4]>,
}

impl Case {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Does its name have the word?
    pub(crate) fn has(&self, word: &str) -> bool {
        self.name.split(' ').any(|part| part == word)
    }

    /// What the crate gives for all samples.
    pub(crate) fn results(&self) -> Vec<[u32; 4]> {
        let mut memory = self.picture.clone();
        let geometry = match self.picture.image.shape {
            Shape::Linear | Shape::D1 => Geometry::D1,
            Shape::Pitched | Shape::D2 => Geometry::D2,
            Shape::D3 => Geometry::D3,
            Shape::D1Layered => Geometry::A1,
            Shape::D2Layered => Geometry::A2,
            Shape::Cube => Geometry::Cube,
            Shape::CubeLayered => Geometry::ACube,
        };
        let access = match self.ask {
            Ask::Gather(component) => Access::Gather { geometry, component, offset: false },
            Ask::Fetch => Access::Sample { geometry, integer: true, mip: Mip::Base, offset: false },
            Ask::Base => Access::Sample { geometry, integer: false, mip: Mip::Base, offset: false },
            Ask::Level(..) => Access::Sample { geometry, integer: false, mip: Mip::Level, offset: false },
            Ask::Gradient => Access::Sample { geometry, integer: false, mip: Mip::Gradient, offset: false },
        };
        let sample = |(number, at): (usize, &[f32; 4])| {
            let sources = self.sources(geometry, number, *at);
            let found = access.perform(&self.object, &sources, &mut memory).expect("an access inside the image");
            found.map(|word| word as u32)
        };
        self.coordinates.iter().enumerate().map(sample).collect()
    }

    fn sources(&self, geometry: Geometry, number: usize, at: [f32; 4]) -> Vec<u64> {
        let [x, y, z, w] = at;
        if self.ask == Ask::Fetch {
            return vec![u64::from((x as i32).cast_unsigned())];
        }
        let mut floats = at[..geometry.coordinates()].to_vec();
        match self.ask {
            Ask::Level(times, plus) => floats.push(w.mul_add(times, plus)),
            Ask::Gradient if geometry == Geometry::D1 => floats.extend([y * 0.3, z * 0.3]),
            Ask::Gradient => floats.extend([z * 0.3, w * 0.01, w * 0.2, z * 0.02]),
            _ => {}
        }
        let mut sources: Vec<u64> = floats.into_iter().map(|x| x.to_bits().into()).collect();
        if geometry.layered() {
            // Some are below zero, or too high.
            let layer = (w.abs() * 3.0) as i32 % 4 - i32::from(number.is_multiple_of(7));
            sources.insert(0, layer.cast_unsigned().into());
        }
        sources
    }
}

/// Draws case after case.
struct Maker<F> {
    sequence: Sequence,
    each: F,
}

/// Gives all cases to `each`, in order.
pub(crate) fn cases(each: impl FnMut(&Case)) {
    let mut maker = Maker { sequence: Sequence(88_172_645_463_325_252), each };
    for (name, format, channels) in FORMATS {
        for shape in
            [Shape::D1, Shape::D2, Shape::D3, Shape::D1Layered, Shape::D2Layered, Shape::Cube, Shape::CubeLayered]
        {
            maker.arrays(name, format, channels, shape);
        }
        for (number, shape) in [(0, Shape::D1), (1, Shape::D2), (2, Shape::D3), (4, Shape::D2Layered), (5, Shape::Cube)]
        {
            maker.mipmaps(&format!("{name} mip{number}"), format, channels, shape);
        }
        maker.memory(name, format, channels);
    }
}

impl<F: FnMut(&Case)> Maker<F> {
    /// An array with texels.
    fn array(&mut self, shape: Shape, format: Format, channels: u8, extent: [u32; 3], levels: u8) -> Picture {
        let image = Image::array(shape, format, channels, BASE, extent, levels);
        let layout = Layout::new(shape, image.texel(), extent, levels).expect("a layout");
        let mut bytes = vec![0; layout.bytes() as usize];
        for level in layout.levels() {
            let texels = level.width * level.height * level.depth;
            let row = (level.width * image.texel()) as usize;
            let filled = self.sequence.fill(format, texels as usize * usize::from(channels));
            for (number, filled) in filled.chunks(row).enumerate() {
                let (z, y) = (number as u64 / u64::from(level.height), number as u64 % u64::from(level.height));
                let at = (level.offset + z * level.slice + y * level.pitch) as usize;
                bytes[at..at + row].copy_from_slice(filled);
            }
        }
        Picture { image, bytes }
    }

    /// Draws a case's coordinates.
    fn run(&mut self, name: String, picture: &Picture, sampler: Sampler, ask: Ask) {
        let [width, height, depth] = picture.image.extent.map(|size| size as f32);
        let depth = if picture.image.shape == Shape::D3 { depth } else { 1.0 };
        // Indices go beyond the end.
        let size = if ask == Ask::Fetch { [60.0, 1.0, 1.0] } else { [width, height, depth] };
        let sequence = &mut self.sequence;
        let coordinates = (0..SAMPLES)
            .map(|_| {
                let [x, y, z] = size.map(|size| sequence.coordinate(size, sampler.normalized));
                let w = sequence.unit();
                if !picture.image.shape.is_cube() {
                    return [x, y, z, w];
                }
                let [x, y, z] = [(); 3].map(|()| sequence.direction());
                [x, y, z, w]
            })
            .collect();
        let object = Object::decode(&Descriptor { image: picture.image, sampler: Some(sampler) }.encode());
        let object = object.expect("a descriptor");
        (self.each)(&Case { name, picture: picture.clone(), object, ask, coordinates });
    }

    fn arrays(&mut self, format_name: &str, format: Format, channels: u8, shape: Shape) {
        let (number, extent) = match shape {
            Shape::D1 => (0, [13, 1, 1]),
            Shape::D2 => (1, [13, 7, 1]),
            Shape::D3 => (2, [13, 7, 5]),
            Shape::D1Layered => (3, [13, 1, 3]),
            Shape::D2Layered => (4, [13, 7, 3]),
            Shape::Cube => (5, [6, 6, 6]),
            _ => (6, [6, 6, 12]),
        };
        let picture = self.array(shape, format, channels, extent, 1);
        for (mode_name, mode) in MODES {
            for filter in [Filter::Point, Filter::Linear] {
                for normalized in [false, true] {
                    let repeats = matches!(mode, AddressMode::Wrap | AddressMode::Mirror);
                    if !normalized && (repeats || shape.is_cube()) {
                        continue;
                    }
                    let border = [0.25_f32, -0.5, 0.75, 0.125].map(f32::to_bits);
                    let sampler = Sampler { address: [mode; 3], filter, normalized, border, ..Sampler::default() };
                    let units = if normalized { "norm" } else { "texel" };
                    let name = format!("{format_name} shape{number} {mode_name} {} {units}", filter_name(filter));
                    self.run(name.clone(), &picture, sampler, Ask::Base);
                    if shape == Shape::D2 {
                        self.run(format!("{name} gather0"), &picture, sampler, Ask::Gather(0));
                        self.run(format!("{name} gather3"), &picture, sampler, Ask::Gather(3));
                    }
                }
            }
        }
        if format == Format::Unorm8 && shape == Shape::D2 {
            let address = [AddressMode::Clamp; 3];
            let sampler =
                Sampler { address, filter: Filter::Linear, normalized: true, srgb: true, ..Sampler::default() };
            self.run(format!("{format_name} srgb linear"), &picture, sampler, Ask::Base);
        }
    }

    fn mipmaps(&mut self, prefix: &str, format: Format, channels: u8, shape: Shape) {
        let (extent, levels, level) = match shape {
            Shape::D1 => ([16, 1, 1], 5, Ask::Level(6.0, -1.0)),
            Shape::D3 => ([16, 8, 4], 5, Ask::Level(5.0, -1.0)),
            Shape::D2Layered => ([16, 8, 3], 5, Ask::Level(6.0, -1.0)),
            Shape::Cube => ([8, 8, 6], 4, Ask::Level(4.0, -0.5)),
            _ => ([16, 8, 1], 5, Ask::Level(6.0, -1.0)),
        };
        let picture = self.array(shape, format, channels, extent, levels);
        for (mode_name, mode) in MODES {
            for filter in [Filter::Point, Filter::Linear] {
                for mip_filter in [Filter::Point, Filter::Linear] {
                    for variant in 0..3 {
                        if variant == 2 && shape != Shape::D2 {
                            continue;
                        }
                        let plain = Sampler { level_clamp: [0.0, 100.0], ..Sampler::default() };
                        let varied = match variant {
                            1 => Sampler { mip_bias: 0.3, level_clamp: [0.7, 2.6], ..plain },
                            2 => Sampler { max_anisotropy: 8, ..plain },
                            _ => plain,
                        };
                        let sampler = Sampler { address: [mode; 3], filter, mip_filter, normalized: true, ..varied };
                        let (between, of) = (filter_name(mip_filter), filter_name(filter));
                        let name = format!("{prefix} {mode_name} {of} m{between} v{variant}");
                        self.run(format!("{name} lod"), &picture, sampler, level);
                        if matches!(shape, Shape::D1 | Shape::D2) {
                            self.run(format!("{name} grad"), &picture, sampler, Ask::Gradient);
                        }
                    }
                }
            }
        }
    }

    /// Linear and pitched memory.
    fn memory(&mut self, format_name: &str, format: Format, channels: u8) {
        let bytes = self.sequence.fill(format, 64 * usize::from(channels));
        let picture = Picture { image: Image::linear(format, channels, BASE, 50), bytes };
        self.run(format!("{format_name} fetch"), &picture, Sampler::default(), Ask::Fetch);
        let bytes = self.sequence.fill(format, 13 * 7 * usize::from(channels));
        let texel = Image::linear(format, channels, BASE, 1).texel();
        let picture = Picture { image: Image::pitched(format, channels, BASE, [13, 7], 13 * texel), bytes };
        for (mode_name, mode) in MODES {
            for filter in [Filter::Point, Filter::Linear] {
                let sampler = Sampler { address: [mode; 3], filter, normalized: true, ..Sampler::default() };
                let name = format!("{format_name} pitch {mode_name} {}", filter_name(filter));
                self.run(name, &picture, sampler, Ask::Base);
            }
        }
    }
}

fn filter_name(filter: Filter) -> &'static str {
    if filter == Filter::Linear { "linear" } else { "point" }
}
