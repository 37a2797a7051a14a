//! Tensor maps: their bytes, and what is none.

use testgen::image::Random;
use texture::{NoTensorMap, Region, Swizzle, TensorElement, TensorMap};

fn tiled() -> TensorMap {
    TensorMap {
        base: 0x1000,
        rank: 3,
        element: TensorElement::F16,
        sizes: [100, 1 << 31, 7, 1, 1],
        strides: [208, (1 << 40) - 16, 0, 0],
        steps: [1, 8, 2, 1, 1],
        swizzle: Swizzle::B64,
        nan_fill: true,
        region: Region::Tiled([32, 256, 3, 1, 1]),
    }
}

fn images() -> TensorMap {
    let region = Region::Im2col { lower: [-128, 127, 0], upper: [127, 120, 0], channels: 5, pixels: 1024 };
    TensorMap { rank: 4, sizes: [5, 4, 9, 1, 1], strides: [16, 16, 32, 0], steps: [1; 5], region, ..tiled() }
}

#[test]
fn a_map_is_what_its_bytes_say() {
    for map in [tiled(), images()] {
        assert_eq!(map.check(), Ok(()));
        assert_eq!(TensorMap::decode(&map.encode()), Ok(map));
    }
}

#[test]
fn values_out_of_their_ranges_are_refused() {
    let refused = |change: &dyn Fn(&mut TensorMap), mut map: TensorMap| {
        change(&mut map);
        assert_eq!(map.check(), Err(NoTensorMap), "{map:?}");
        assert_eq!(TensorMap::decode(&map.encode()), Err(NoTensorMap), "{map:?}");
    };
    let changes: [&dyn Fn(&mut TensorMap); 16] = [
        &|map| map.base += 8,
        &|map| map.rank = 0,
        &|map| map.rank = 6,
        &|map| map.sizes[1] = (1 << 31) + 1,
        &|map| map.sizes[3] = 2,
        &|map| map.strides[0] = 200,
        &|map| map.strides[1] = 1 << 40,
        &|map| map.strides[2] = 16,
        &|map| map.steps[0] = 2,
        &|map| map.steps[1] = 9,
        &|map| map.steps[2] = 0,
        &|map| map.steps[3] = 2,
        &|map| map.swizzle = Swizzle::B32,
        &|map| map.element = TensorElement::U16,
        &|map| map.region = Region::Tiled([31, 1, 1, 1, 1]),
        &|map| map.region = Region::Tiled([32, 257, 1, 1, 1]),
    ];
    changes.iter().for_each(|change| refused(change, tiled()));
    let corners = |lower: [i16; 3], upper: [i16; 3]| Region::Im2col { lower, upper, channels: 5, pixels: 3 };
    let changes: [&dyn Fn(&mut TensorMap); 5] = [
        &|map| map.region = corners([-129, 0, 0], [0; 3]),
        &|map| map.region = corners([0; 3], [0, 0, 1]),
        // No pixel is left.
        &|map| map.region = corners([0; 3], [-4, 0, 0]),
        &|map| map.region = Region::Im2col { lower: [0; 3], upper: [0; 3], channels: 257, pixels: 3 },
        &|map| map.region = Region::Im2col { lower: [0; 3], upper: [0; 3], channels: 5, pixels: 0 },
    ];
    changes.iter().for_each(|change| refused(change, images()));
}

#[test]
fn any_bytes_are_a_map_or_none() {
    let random = &mut Random(3);
    let (mut maps, mut others) = (0, 0);
    for _ in 0..200_000 {
        let mut bytes = if random.one_in(2) { tiled() } else { images() }.encode();
        for _ in 0..random.below(4) {
            let at = random.below(128) as usize;
            bytes[at] = if random.one_in(2) { random.word() as u8 } else { bytes[at] ^ 1 << random.below(8) };
        }
        match TensorMap::decode(&bytes) {
            Ok(map) => {
                assert_eq!(map.encode(), bytes);
                maps += 1;
            }
            Err(NoTensorMap) => others += 1,
        }
    }
    assert!(maps > 10_000 && others > 10_000, "{maps} are maps, {others} are none");
}

#[test]
fn swizzles_exchange_pieces_of_a_line() {
    for swizzle in Swizzle::ALL {
        for line in 0..16_u64 {
            let mut places: Vec<u64> = (0..128).map(|byte| swizzle.place(128 * line + byte)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(128 * line..128 * (line + 1)), "{swizzle:?}");
        }
    }
}
