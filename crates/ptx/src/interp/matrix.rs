//! Operations on matrices that the lanes of a warp hold together.

use super::memory::Place;
use super::races::Touch;
use super::warp::bits;
use super::{Cta, WARP};
use crate::ir::{Address, Op, Operand, Reg, Space};
use crate::launch::{Access, AccessError, Exception};
use crate::math::matrix::{Row, product, transposed};

/// Bytes of a line of a tile.
const LINE: usize = 16;

impl Cta {
    /// Performs `op` for `lanes`, of the warp whose first thread is `first`.
    pub(super) fn matrix(&mut self, first: usize, lanes: u32, op: &Op) -> Result<(), Exception> {
        match op {
            Op::Mma { product: p, dsts, srcs } => {
                let srcs: Vec<Row> = srcs.iter().map(|&src| self.row(first, lanes, src)).collect();
                let mut results = vec![[0; WARP as usize]; dsts.len()];
                product(p, &srcs, &mut results);
                for (&dst, row) in dsts.iter().zip(&results) {
                    self.set_row(first, lanes, dst, row);
                }
            }
            Op::MovMatrix { dst, a } => {
                let tile = transposed(&self.row(first, lanes, *a));
                self.set_row(first, lanes, *dst, &tile);
            }
            Op::LdMatrix { space, trans, dsts, addr } => {
                let mut tiles = vec![[0; WARP as usize]; dsts.len()];
                for (i, tile) in tiles.iter_mut().enumerate() {
                    for lane in bits(lanes & (0xff << (8 * i))) {
                        let mut line = [0; LINE];
                        // Shared memory is the CTA's own: no global memory is needed.
                        line.copy_from_slice(self.shared_line(first + lane as usize, *space, addr, op, None)?);
                        for (t, word) in line.chunks_exact(4).enumerate() {
                            let word = word.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b));
                            tile[lane as usize % 8 * 4 + t] = word;
                        }
                    }
                }
                for (&dst, tile) in dsts.iter().zip(&tiles) {
                    self.set_row(first, lanes, dst, &if *trans { transposed(tile) } else { *tile });
                }
            }
            Op::StMatrix { space, trans, srcs, addr } => {
                for (i, &src) in srcs.iter().enumerate() {
                    let tile = self.row(first, lanes, src);
                    let tile = if *trans { transposed(&tile) } else { tile };
                    for lane in bits(lanes & (0xff << (8 * i))) {
                        let mut line = [0; LINE];
                        for (word, t) in line.chunks_exact_mut(4).zip(0..) {
                            word.copy_from_slice(&(tile[lane as usize % 8 * 4 + t] as u32).to_le_bytes());
                        }
                        let to = self.shared_line(first + lane as usize, *space, addr, op, Some(&line))?;
                        to.copy_from_slice(&line);
                    }
                }
            }
            _ => return Err(Exception::Illegal),
        }
        Ok(())
    }

    /// The lanes of an operand, those elsewhere as zero.
    fn row(&self, first: usize, lanes: u32, operand: Operand) -> Row {
        let mut row = [0; WARP as usize];
        for lane in bits(lanes) {
            row[lane as usize] = self.operand(first + lane as usize, operand);
        }
        row
    }

    fn set_row(&mut self, first: usize, lanes: u32, reg: Reg, row: &Row) {
        for lane in bits(lanes) {
            self.set(first + lane as usize, reg, row[lane as usize]);
        }
    }

    /// A thread's line of a matrix in shared memory, to be read, or to be written with `data`.
    fn shared_line(
        &mut self,
        thread: usize,
        space: Space,
        at: &Address,
        op: &Op,
        data: Option<&[u8; LINE]>,
    ) -> Result<&mut [u8], Exception> {
        let access = if data.is_some() { Access::Write } else { Access::Read };
        let placed = self.locate(thread, space, at, LINE, access).and_then(|(place, address)| {
            let Place::Shared(offset) = place else {
                return Err(Exception::Access { address, access, error: AccessError::Shared });
            };
            let start = usize::try_from(offset).ok();
            let range = start.and_then(|start| Some(start..start.checked_add(LINE)?));
            let range = range.filter(|range| range.end <= self.shared.len());
            range.ok_or(Exception::Access { address, access, error: AccessError::Shared })
        });
        let range = placed.inspect_err(|exception| {
            self.is_at(thread..thread + 1);
            self.tell_failure(thread, op, *exception);
        })?;
        self.observe_shared(thread, range.start as u64, LINE, Touch::plain(access, data.map(<[u8; LINE]>::as_slice)));
        Ok(&mut self.shared[range])
    }
}
