//! Accesses to textures and surfaces, and bulk copies: a helper has the lanes of a chunk.

use cranelift_codegen::ir::{InstBuilder, StackSlot, Type, Value, types};
use ptx::ir::{Op, Operand, Reg, RegTy};
use ptx::tensor::Transfer;
use texture::Access;

use super::{Emit, Val, slot};
use crate::abi::Helper;
use crate::abi::image::{LANE_BYTES, Rows, Site};

impl Emit<'_, '_> {
    pub(super) fn image(&mut self, access: &Access, dsts: &[Reg], srcs: &[Operand]) {
        let lanes = self.lanes_per_chunk();
        let rows = Rows::new(access, lanes);
        let Some((&handle, rest)) = srcs.split_first().filter(|(_, rest)| rest.len() == rows.words + rows.values)
        else {
            return self.fail("an access to a texture or surface with other operands");
        };
        let at = self.image_rows();
        let handle = self.operand(handle, RegTy::B64);
        let same = if let Val::Same(handle) = handle {
            self.b.ins().stack_store(types::I64, handle, at, 0);
            1
        } else {
            let parts = self.lanes(&handle, RegTy::B64);
            self.put_row(at, 0, &parts);
            0
        };
        let (words, values) = rest.split_at(rows.words);
        for (i, &word) in words.iter().enumerate() {
            let parts = self.row_of(word, 4);
            self.put_row(at, rows.word(i), &parts);
        }
        for (i, &value) in values.iter().enumerate() {
            let parts = self.row_of(value, rows.value);
            self.put_row(at, rows.value(i), &parts);
        }
        let key = self.key(self.attached.images.len());
        self.attached.images.push(self.of_line(Site { access: *access, rows }));
        let bits = self.mask_bits_or_full();
        let same = self.i32(same);
        let base = self.b.ins().stack_addr(types::I64, at, 0);
        self.call(Helper::Image, &[self.inv.ctx, key, bits, same, base], &[]);
        for (i, &dst) in dsts.iter().enumerate().take(rows.results) {
            let (part, count) = if rows.result == 8 { (types::I64X2, lanes / 2) } else { (types::I32X4, lanes / 4) };
            let parts: Vec<Value> = (0..count).map(|j| self.take_row(part, at, rows.result(i) + 16 * j)).collect();
            let parts = match (rows.result, self.reg_ty(dst)) {
                (4, RegTy::B64) => parts.into_iter().flat_map(|v| self.widen(v, false)).collect(),
                (8, RegTy::B64) | (4, RegTy::B16 | RegTy::B32) => parts,
                _ => return self.fail("a result of a texture or surface in such a register"),
            };
            self.set(dst, Val::Lanes(parts));
        }
    }

    /// A bulk copy.
    pub(super) fn transfer(&mut self, op: &Op, transfer: &Transfer, srcs: &[Operand]) {
        let lanes = self.lanes_per_chunk();
        let rows = Rows::of_transfer(transfer, lanes);
        let Some((&first, rest)) = srcs.split_first().filter(|(_, rest)| rest.len() == rows.words + rows.values) else {
            return self.fail("a bulk copy with other operands");
        };
        let at = self.image_rows();
        let parts = self.row_of(first, 8);
        self.put_row(at, 0, &parts);
        let (words, values) = rest.split_at(rows.words);
        for (i, &word) in words.iter().enumerate() {
            let parts = self.row_of(word, 4);
            self.put_row(at, rows.word(i), &parts);
        }
        for (i, &value) in values.iter().enumerate() {
            let parts = self.row_of(value, 8);
            self.put_row(at, rows.value(i), &parts);
        }
        let key = self.op_key(op);
        let bits = self.mask_bits_or_full();
        let base = self.b.ins().stack_addr(types::I64, at, 0);
        let lanes = self.i32(lanes as i64);
        self.call(Helper::Transfer, &[self.inv.ctx, key, bits, self.chunk.thread, base, lanes], &[]);
    }

    fn image_rows(&mut self) -> StackSlot {
        let bytes = LANE_BYTES * self.lanes_per_chunk() as u32;
        let func = &mut *self.b.func;
        *self.image_rows.get_or_insert_with(|| slot(func, bytes))
    }

    /// The lanes of an operand as words of so many bytes.
    fn row_of(&mut self, operand: Operand, bytes: usize) -> Vec<Value> {
        let ty = match operand {
            Operand::Reg(r) => self.reg_ty(r),
            Operand::Imm(_) if bytes == 8 => RegTy::B64,
            Operand::Imm(_) => RegTy::B32,
        };
        let parts = self.operand_lanes(operand, ty);
        match (ty, bytes) {
            (RegTy::B64, 4) => parts.chunks(2).map(|two| self.narrow(two[0], two[1], false)).collect(),
            (RegTy::B64, _) | (RegTy::B16 | RegTy::B32, 4) => parts,
            _ => {
                self.fail("an operand of a texture or surface in such a register");
                parts
            }
        }
    }

    fn put_row(&mut self, at: StackSlot, offset: usize, parts: &[Value]) {
        for (i, &part) in parts.iter().enumerate() {
            self.b.ins().stack_store(types::I64, part, at, (offset + 16 * i) as i32);
        }
    }

    fn take_row(&mut self, part: Type, at: StackSlot, offset: usize) -> Value {
        self.b.ins().stack_load(types::I64, part, at, offset as i32)
    }
}
