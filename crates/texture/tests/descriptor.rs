//! Descriptors come back from their bytes, and nothing but descriptors does; arrays' levels do not overlap.

use proptest::prelude::*;
use texture::{AddressMode, Descriptor, Filter, Format, Image, Layout, Malformed, Sampler, Shape};

fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    (0..all.len()).prop_map(|at| all[at])
}

prop_compose! {
    fn images()(
        shape in one_of(&Shape::ALL),
        format in one_of(&Format::ALL),
        channels in one_of(&[1u8, 2, 4]),
        base in 0u64..1 << 40,
        size in [any::<u32>(); 3],
        pad in 0u32..64,
        levels in any::<[u8; 3]>(),
        layers in any::<[u32; 2]>(),
    ) -> Image {
        let mut extent = [0, 1, 2].map(|i| 1 + size[i] % shape.limits()[i]);
        if shape.is_cube() {
            extent = [extent[0], extent[0], extent[2].next_multiple_of(6).min(shape.limits()[2])];
        }
        let levels = [1 + levels[0] % shape.most_levels(extent), levels[1], levels[2]];
        let mut image = Image::array(shape, format, channels, base * Layout::ALIGN, extent, levels[0]);
        if shape == Shape::Pitched {
            image.pitch = (extent[0] + pad) * image.texel();
        }
        let last = levels[1] % levels[0];
        image.level_range = [levels[2] % (last + 1), last];
        if shape.is_layered() {
            let unit = if shape.is_cube() { 6 } else { 1 };
            let last = layers[0] % (extent[2] / unit);
            image.layer_range = [layers[1] % (last + 1) * unit, last * unit + unit - 1];
        }
        image
    }
}

prop_compose! {
    fn samplers(format: Format)(
        address in [one_of(&AddressMode::ALL), one_of(&AddressMode::ALL), one_of(&AddressMode::ALL)],
        flags in any::<[bool; 5]>(),
        max_anisotropy in 0u8..=16,
        levels in [-1e3f32..1e3, -1e3f32..1e3, 0f32..1e3],
        border in any::<[u32; 4]>(),
    ) -> Sampler {
        let filter = |linear: bool| if linear { Filter::Linear } else { Filter::Point };
        Sampler {
            address,
            filter: filter(flags[0] && !format.is_integer()),
            mip_filter: filter(flags[1] && !format.is_integer()),
            normalized: flags[2],
            srgb: flags[3] && format == Format::Unorm8,
            seamless: flags[4],
            max_anisotropy,
            mip_bias: levels[0],
            level_clamp: [levels[1], levels[2]],
            border,
        }
    }
}

fn descriptors() -> impl Strategy<Value = Descriptor> {
    images().prop_flat_map(|image| {
        proptest::option::of(samplers(image.format)).prop_map(move |sampler| Descriptor { image, sampler })
    })
}

proptest! {
    #[test]
    fn comes_back(descriptor in descriptors()) {
        prop_assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
    }

    /// Whatever single byte is another, it means something else, or nothing.
    #[test]
    fn every_byte_counts(descriptor in descriptors(), at in 0..Descriptor::BYTES, change in 1u8..) {
        let mut bytes = descriptor.encode();
        bytes[at] ^= change;
        if let Ok(other) = Descriptor::decode(&bytes) {
            prop_assert_eq!(other.encode(), bytes);
        }
    }

    /// All texels of all levels lie in the array, and each has its place to itself.
    #[test]
    fn levels_are_apart(image in images()) {
        prop_assume!(image.shape.is_array());
        let texel = image.texel();
        let layout = Layout::new(image.shape, texel, image.extent, image.levels).expect("a layout");
        let mut end = 0;
        for (at, level) in layout.levels().iter().enumerate() {
            prop_assert!(level.offset >= end && level.offset.is_multiple_of(Layout::ALIGN));
            prop_assert!(level.pitch >= u64::from(level.width) * u64::from(texel));
            prop_assert!(level.slice >= level.pitch * u64::from(level.height));
            prop_assert_eq!(level.width, (image.extent[0] >> at).max(1));
            end = level.offset + level.bytes(texel);
            // A level is an array of its own.
            let extent = [level.width, level.height, level.depth];
            let own = Layout::new(image.shape, texel, extent, 1).expect("a layout");
            prop_assert_eq!(own.levels()[0], texture::Level { offset: 0, ..*level });
        }
        prop_assert!(layout.bytes() >= end && layout.bytes() - end < 2 * Layout::ALIGN.max(layout.levels()[0].pitch));
        let smallest = layout.levels()[usize::from(image.levels) - 1];
        let all = image.levels == image.shape.most_levels(image.extent);
        let deep = if image.shape == Shape::D3 { smallest.depth } else { 1 };
        prop_assert_eq!(all, smallest.width.max(smallest.height).max(deep) == 1);
    }
}

fn picture() -> Image {
    Image::array(Shape::D2, Format::F32, 4, 0x1000, [640, 480, 1], 3)
}

fn check(descriptor: Descriptor, expect: Malformed) {
    assert_eq!(Descriptor::decode(&descriptor.encode()), Err(expect));
}

#[test]
fn what_is_no_descriptor_is_refused() {
    assert_eq!(Descriptor::decode(&[0; 128]), Err(Malformed::Magic));
    let image = |image| Descriptor { image, sampler: None };
    check(image(Image { channels: 3, ..picture() }), Malformed::Channels(3));
    check(image(Image { base: 0x1010, ..picture() }), Malformed::Base(0x1010));
    check(image(Image { base: u64::MAX << 9, ..picture() }), Malformed::Base(u64::MAX << 9));
    check(image(Image { pitch: 16, ..picture() }), Malformed::Pitch(16));
    check(image(Image { levels: 11, ..picture() }), Malformed::Levels(11));
    check(image(Image { level_range: [1, 3], ..picture() }), Malformed::LevelRange([1, 3]));
    check(image(Image { level_range: [2, 1], ..picture() }), Malformed::LevelRange([2, 1]));
    check(image(Image { layer_range: [0, 1], ..picture() }), Malformed::LayerRange([0, 1]));
    check(image(Image { extent: [0, 480, 1], ..picture() }), Malformed::Extent([0, 480, 1], Shape::D2));
    check(image(Image { extent: [640, 480, 2], ..picture() }), Malformed::Extent([640, 480, 2], Shape::D2));
    let cube = Image::array(Shape::Cube, Format::U8, 1, 0, [8, 8, 6], 1);
    assert!(cube.check().is_ok());
    check(image(Image { extent: [8, 4, 6], ..cube }), Malformed::Extent([8, 4, 6], Shape::Cube));
    check(image(Image { layer_range: [0, 4], ..cube }), Malformed::LayerRange([0, 4]));
    let rows = Image::pitched(Format::F16, 2, 0x104, [10, 10], 48);
    assert!(rows.check().is_ok());
    check(image(Image { pitch: 36, ..rows }), Malformed::Pitch(36));
    check(image(Image { pitch: 42, ..rows }), Malformed::Pitch(42));
    check(image(Image { base: 0x102, ..rows }), Malformed::Base(0x102));
    check(image(Image { levels: 2, ..rows }), Malformed::Levels(2));

    let texture = |image, sampler| Descriptor { image, sampler: Some(sampler) };
    let linear = Sampler { filter: Filter::Linear, ..Sampler::default() };
    check(texture(Image { format: Format::U8, ..picture() }, linear), Malformed::Filter(Format::U8));
    check(texture(picture(), Sampler { srgb: true, ..linear }), Malformed::Srgb(Format::F32));
    check(texture(picture(), Sampler { max_anisotropy: 17, ..linear }), Malformed::Anisotropy(17));
    check(texture(picture(), Sampler { mip_bias: f32::NAN, ..linear }), Malformed::LevelOfDetail);
    check(texture(picture(), Sampler { level_clamp: [0.0, f32::NAN], ..linear }), Malformed::LevelOfDetail);
}

/// The bytes are what other processes read: an older descriptor must not change its meaning.
#[test]
fn bytes_stay_where_they_are() {
    let sampler = Sampler {
        address: [AddressMode::Mirror, AddressMode::Border, AddressMode::Clamp],
        filter: Filter::Linear,
        normalized: true,
        max_anisotropy: 4,
        mip_bias: 1.0,
        level_clamp: [0.5, 8.0],
        border: [1, 2, 3, 0x0403_0201],
        ..Sampler::default()
    };
    let image =
        Image { level_range: [1, 2], ..Image::array(Shape::D2Layered, Format::F32, 4, 0x1234_5600, [64, 32, 5], 3) };
    let bytes = Descriptor { image, sampler: Some(sampler) }.encode();
    let mut expect = [0; 128];
    expect[..16].copy_from_slice(&[0xa7, b's', b'd', b'T', b'e', b'x', 1, 0xe3, 1, 6, 8, 4, 3, 1, 2, 3]);
    expect[16..20].copy_from_slice(&[0x00, 0x56, 0x34, 0x12]);
    for (at, byte) in [(24, 64), (28, 32), (32, 5), (44, 4), (48, 2), (49, 3), (50, 1), (51, 4)] {
        expect[at] = byte;
    }
    expect[52..64].copy_from_slice(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0x3f, 0, 0, 0, 0x41]);
    expect[64..80].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!(bytes, expect);
}
