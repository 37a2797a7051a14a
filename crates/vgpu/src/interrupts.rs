//! A guest's interrupt tree: vectors in leaves, subtrees of two leaves, one line, as the device has it; but the line ends in
//! the guest.

use gpu_spec::regs::vf::INTR_LEAVES;

const LEAVES: usize = INTR_LEAVES as usize;

/// Pending and enabled vectors.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pending: [u32; LEAVES],
    enabled: [u32; LEAVES],
    subtrees: u32,
}

impl Tree {
    /// Makes a vector pending.
    pub(crate) fn raise(&mut self, vector: u32) {
        if let Some(leaf) = self.pending.get_mut(vector as usize / 32) {
            *leaf |= 1 << (vector % 32);
        }
    }

    /// The subtrees that have enabled vectors pending.
    pub(crate) fn top(&self) -> u32 {
        let pending = self.pending.iter().zip(&self.enabled).enumerate();
        pending.fold(0, |top, (leaf, (pending, enabled))| top | u32::from(pending & enabled != 0) << (leaf / 2))
    }

    /// Whether the line is raised.
    pub(crate) fn line(&self) -> bool {
        self.top() & self.subtrees != 0
    }

    /// Whether the guest would hear of a vector.
    pub(crate) fn hears(&self, vector: u32) -> bool {
        let leaf = vector as usize / 32;
        self.enabled.get(leaf).is_some_and(|word| word & 1 << (vector % 32) != 0)
            && self.subtrees & 1 << (leaf / 2) != 0
    }

    pub(crate) fn leaf(&self, leaf: u32) -> u32 {
        self.pending.get(leaf as usize).copied().unwrap_or(0)
    }

    pub(crate) fn clear(&mut self, leaf: u32, bits: u32) {
        if let Some(word) = self.pending.get_mut(leaf as usize) {
            *word &= !bits;
        }
    }

    pub(crate) fn enabled(&self, leaf: u32) -> u32 {
        self.enabled.get(leaf as usize).copied().unwrap_or(0)
    }

    pub(crate) fn enable(&mut self, leaf: u32, bits: u32) {
        if let Some(word) = self.enabled.get_mut(leaf as usize) {
            *word |= bits;
        }
    }

    pub(crate) fn disable(&mut self, leaf: u32, bits: u32) {
        if let Some(word) = self.enabled.get_mut(leaf as usize) {
            *word &= !bits;
        }
    }

    pub(crate) fn subtrees(&self) -> u32 {
        self.subtrees
    }

    pub(crate) fn enable_subtrees(&mut self, bits: u32) {
        self.subtrees |= bits;
    }

    pub(crate) fn disable_subtrees(&mut self, bits: u32) {
        self.subtrees &= !bits;
    }
}
