//! TLB invalidation by register: what a write to [`vf::MMU_INVALIDATE`] and the registers before it mean together.
//!
//! The range is Sundial's own: hardware forgets all virtual addresses of a page directory, or all of everything.

use std::ops::Range;

use crate::mmu::{PhysAddr, SMALL_PAGE, VA_END};
use crate::ramfc::place;
use crate::regs::vf;

/// Which translations go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalidation {
    /// Their page directory; `None`: any.
    pub root: Option<PhysAddr>,
    /// Their virtual addresses, whole pages.
    pub range: Range<u64>,
}

/// The operands of an invalidation, as the registers stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operands {
    /// [`vf::MMU_INVALIDATE_PDB`].
    pub pdb: u32,
    /// [`vf::MMU_INVALIDATE_UPPER_PDB`].
    pub upper_pdb: u32,
    /// [`vf::MMU_INVALIDATE_VA_LO`].
    pub va_lo: u32,
    /// [`vf::MMU_INVALIDATE_VA_HI`].
    pub va_hi: u32,
    /// [`vf::MMU_INVALIDATE_PAGES`].
    pub pages: u32,
}

impl Operands {
    /// What `command`, written to [`vf::MMU_INVALIDATE`], asks for; `None` if the page directory is in no memory, and so has no
    /// translations.
    #[must_use]
    pub fn invalidation(&self, command: u32) -> Option<Invalidation> {
        let root = if vf::INVALIDATE_ALL_PDB.is_set(command) {
            None
        } else {
            let lo = self.pdb & vf::INVALIDATE_PDB_ADDRESS.mask() as u32;
            Some(place(vf::INVALIDATE_PDB_TARGET.get(self.pdb), lo, self.upper_pdb)?)
        };
        let range = if vf::INVALIDATE_ALL_VA.is_set(command) {
            0..VA_END
        } else {
            let va = u64::from(self.va_lo & !(SMALL_PAGE as u32 - 1)) | u64::from(self.va_hi) << 32;
            va..va.saturating_add(u64::from(self.pages) * SMALL_PAGE)
        };
        Some(Invalidation { root, range })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_mean_a_directory_and_pages_of_it() {
        let at = Operands { pdb: 0x4567_8000 | 2, upper_pdb: 0x12, va_lo: 0x8765_4321, va_hi: 0x1_0000, pages: 3 };
        let trigger = vf::INVALIDATE_TRIGGER.of(1);
        let range = 0x1_0000_8765_4000..0x1_0000_8765_7000;
        let root = Some(PhysAddr::system(0x12_4567_8000));
        assert_eq!(at.invalidation(trigger), Some(Invalidation { root, range: range.clone() }));
        let all = trigger | vf::INVALIDATE_ALL_VA.of(1);
        assert_eq!(at.invalidation(all), Some(Invalidation { root, range: 0..VA_END }));
        let everywhere = trigger | vf::INVALIDATE_ALL_PDB.of(1);
        assert_eq!(at.invalidation(everywhere), Some(Invalidation { root: None, range }));
        let last = Operands { va_hi: u32::MAX, va_lo: u32::MAX, pages: u32::MAX, ..at };
        assert_eq!(last.invalidation(trigger).map(|what| what.range), Some(u64::MAX - 0xfff..u64::MAX));
        // Memory of a peer.
        let nowhere = Operands { pdb: 0x4567_8000 | 1, ..at };
        assert_eq!(nowhere.invalidation(trigger), None);
        assert_eq!(nowhere.invalidation(everywhere).and_then(|what| what.root), None);
    }
}
