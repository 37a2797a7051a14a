//! Any bytes as a bulk copy: what it says of a map, of coordinates, of where the tile is.

use std::cell::RefCell;

use ptx::ir::{AtomOp, Ty};
use ptx::launch::{AccessError, GlobalMemory, SHARED_WINDOW};
use ptx::tensor::{MAX_ADDRESSES, MAX_WORDS, Mode, Transfer};

/// Where global memory is, and how much there is of it and of shared memory.
const BASE: u64 = 0x20_0000_0000;
const GLOBAL: usize = 4096;
const SHARED: usize = 2048;

/// Memory that counts what it is asked for.
struct Counted {
    global: RefCell<Vec<u8>>,
    shared: RefCell<Vec<u8>>,
}

impl Counted {
    fn at<R>(&self, address: u64, bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, AccessError> {
        let place = |start: u64, length: usize| {
            let offset = usize::try_from(address.checked_sub(start)?).ok()?;
            (offset < length).then_some(offset)
        };
        let (memory, offset, error) = match (place(BASE, GLOBAL), place(SHARED_WINDOW, SHARED)) {
            (Some(offset), _) => (&self.global, offset, AccessError::Unmapped),
            (_, Some(offset)) => (&self.shared, offset, AccessError::Shared),
            _ => return Err(AccessError::OutOfWindow),
        };
        match memory.borrow_mut().get_mut(offset..).and_then(|rest| rest.get_mut(..bytes)) {
            Some(there) => Ok(f(there)),
            None => Err(error),
        }
    }
}

impl GlobalMemory for Counted {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.at(address, out.len(), |there| out.copy_from_slice(there))
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        self.at(address, data.len(), |there| there.copy_from_slice(data))
    }

    fn update(&self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
        self.at(address, bytes as usize, |there| {
            let mut old = [0; 8];
            old[..there.len()].copy_from_slice(there);
            let old = u64::from_le_bytes(old);
            there.copy_from_slice(&f(old).to_le_bytes()[..there.len()]);
            old
        })
    }
}

/// Takes the bytes as a map and a copy by it, and makes that: it ends, and nothing panics.
pub fn fuzz(data: &[u8]) {
    let Some((map, rest)) = data.split_at_checked(texture::TensorMap::BYTES) else { return };
    let mut bytes = rest.iter().copied();
    let mut next = || bytes.next().unwrap_or(0);
    let (kind, mode, rank) = (next(), next(), next() % 6);
    let mode = [Mode::Tile, Mode::Gather4, Mode::Im2col][usize::from(mode % 3)];
    let op = [AtomOp::Add, AtomOp::Min, AtomOp::Inc, AtomOp::Xor][usize::from(kind / 8 % 4)];
    let ty = [Ty::U32, Ty::F16, Ty::B64, Ty::F64][usize::from(kind / 32 % 4)];
    let transfer = match kind % 6 {
        0 | 1 => Transfer::Load { mode, rank, multicast: kind & 8 != 0 },
        2 => Transfer::Store { mode, rank },
        3 => Transfer::Reduce { op, mode, rank },
        4 => Transfer::Multicast,
        _ => Transfer::Combine { op, ty, tracked: mode == Mode::Tile },
    };
    let mut word = || u32::from_le_bytes([next(), next(), next(), next()]);
    let words = [0; MAX_WORDS].map(|_: u32| {
        let word = word();
        // Coordinates that are near, as often as not.
        if word & 1 == 0 { word >> 28 } else { word.cast_signed().wrapping_shr(4).cast_unsigned() }
    });
    let addresses = [0; MAX_ADDRESSES].map(|_: u64| SHARED_WINDOW + u64::from(word() % (2 * SHARED as u32)) / 8 * 8);
    let mut global: Vec<u8> = (0..GLOBAL).map(|i| (i * 7) as u8).collect();
    global[..map.len()].copy_from_slice(map);
    let memory = Counted { global: RefCell::new(global), shared: RefCell::new(vec![0; SHARED]) };
    if transfer.is_valid() {
        let _ = transfer.perform(BASE, &words, &addresses, &memory);
    }
}
