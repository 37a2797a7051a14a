//! Bytes that are nearly tensor maps: every copy ends, and nothing panics.

use std::cell::Cell;

use ptx::launch::{AccessError, GlobalMemory, SHARED_WINDOW};
use ptx::tensor::{Mode, Transfer};
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

/// Memory that has the same map everywhere, as often as it is asked for it.
struct Everywhere {
    map: [u8; TensorMap::BYTES],
    left: Cell<u32>,
}

impl Everywhere {
    fn counted(&self) -> Result<(), AccessError> {
        self.left.set(self.left.get().checked_sub(1).ok_or(AccessError::Unmapped)?);
        Ok(())
    }
}

impl GlobalMemory for Everywhere {
    fn read(&self, _: u64, out: &mut [u8]) -> Result<(), AccessError> {
        for (to, from) in out.iter_mut().zip(self.map.iter().cycle()) {
            *to = *from;
        }
        self.counted()
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), AccessError> {
        self.counted()
    }

    fn update(&self, _: u64, _: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
        f(0);
        self.counted().map(|()| 0)
    }
}

/// What bounds a copy is the shared memory that it goes to. Where it goes to none, it is not made.
#[test]
fn a_copy_to_no_cta_is_none() {
    let map = TensorMap {
        base: 0x20_0000_0000,
        rank: 5,
        element: TensorElement::U64,
        sizes: [1 << 31; 5],
        strides: [0; 4],
        steps: [1; 5],
        swizzle: Swizzle::None,
        nan_fill: false,
        region: Region::Tiled([256; 5]),
    };
    let memory = Everywhere { map: map.encode(), left: Cell::new(10) };
    let addresses = [SHARED_WINDOW, SHARED_WINDOW + 1024];
    let load = Transfer::Load { mode: Mode::Tile, rank: 5, multicast: true };
    assert_eq!(load.perform(0, &[0, 0, 0, 0, 0, 0], &addresses, &memory), Ok(()));
    assert_eq!(Transfer::Multicast.perform(0, &[0xffff_fff0, 0x1_0000], &addresses, &memory), Ok(()));
}
