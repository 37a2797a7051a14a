/// Numbers without an order.
pub(crate) struct Random(pub(crate) u32);

impl Random {
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) % n
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u32) as usize]
    }
}
