//! Bytes that are nearly tensor maps: every copy ends, and nothing panics.

use testgen::image::Random;
use texture::{Region, Swizzle, TensorElement, TensorMap};

#[test]
fn any_bytes_are_a_copy() {
    let random = &mut Random(11);
    for _ in 0..30_000 {
        let mut sides = [1; 5];
        let rank = 1 + random.below(5) as usize;
        for side in &mut sides[..rank] {
            *side = 1 + random.below(6) as u16;
        }
        sides[0] = 16;
        let map = TensorMap {
            base: 0x20_0000_0000 + 16 * random.below(300),
            rank: rank as u8,
            element: TensorElement::ALL[random.below(13) as usize],
            sizes: [0, 1, 2, 3, 4].map(|at| if at < rank { 1 + random.below(9) } else { 1 }),
            strides: [0, 1, 2, 3].map(|at| if at + 1 < rank { 16 * random.below(20) } else { 0 }),
            steps: [1; 5],
            swizzle: Swizzle::ALL[random.below(7) as usize],
            nan_fill: false,
            region: Region::Tiled(sides),
        };
        let mut data = map.encode().to_vec();
        for _ in 0..random.below(3) {
            let at = random.below(102) as usize;
            data[at] = if random.one_in(2) { random.word() as u8 } else { data[at] ^ 1 << random.below(8) };
        }
        data.extend((0..12).flat_map(|_| random.word().to_le_bytes()));
        testgen::tensor::fuzz(&data);
    }
}
