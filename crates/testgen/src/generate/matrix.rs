//! Operations on matrices that the lanes of a warp hold.

use ptx::ir::{Address, IntOp, MulPart, Op, Operand, Order, Round, Space, Ty};
use ptx::matrix::{Arithmetic, Element, Product};

use super::{Builder, Pool, reg};

impl Builder<'_> {
    /// A product of matrices, of what registers happen to hold; a line of shared memory that each lane has written and
    /// others load; a transposition.
    pub(super) fn matrices(&mut self) {
        match self.below(4) {
            0 | 1 => self.matrix_product(),
            2 => self.lines(),
            _ => {
                let (dst, a) = (self.any(Pool::I32), self.source(Pool::I32));
                self.emit(Op::MovMatrix { dst, a });
            }
        }
    }

    fn matrix_product(&mut self) {
        use Element::{B1, BF16, F16, F32, F64, S4, S8, S32, TF32, U8};
        let float = Arithmetic::Float { round: Round::Rn, sat: false };
        let integer = Arithmetic::Integer { sat: self.chance(2) };
        let (m, n, k, a, b, c, arithmetic, sparse) = self.pick(&[
            (16, 8, 16, F16, F16, F32, float, None),
            (16, 8, 8, F16, F16, F16, float, None),
            (16, 8, 8, BF16, BF16, F32, float, None),
            (16, 8, 8, TF32, TF32, F32, float, None),
            (16, 16, 16, F16, F16, F32, float, None),
            (8, 32, 16, BF16, BF16, F32, float, None),
            (8, 8, 4, F64, F64, F64, float, None),
            (16, 8, 32, S8, U8, S32, integer, None),
            (32, 8, 16, U8, U8, S32, integer, None),
            (8, 8, 32, S4, S4, S32, integer, None),
            (16, 8, 128, B1, B1, S32, Arithmetic::Bits { and: true }, None),
            (8, 8, 4, F16, F16, F32, Arithmetic::Quads { a_row: true, b_row: false }, None),
            (16, 8, 32, F16, F16, F32, float, Some(1)),
            (16, 8, 16, TF32, TF32, F32, float, Some(0)),
            (16, 8, 64, S8, U8, S32, integer, Some(0)),
            (16, 8, 64, S4, S4, S32, integer, Some(1)),
        ]);
        let product = Product { m, n, k, a, b, c, d: c, arithmetic, sparse };
        let pool = |of: Element| match of {
            F64 => Pool::F64,
            F32 => Pool::F32,
            _ => Pool::I32,
        };
        let [of_a, of_b, of_c, of_d] = product.registers();
        let mut srcs: Vec<Operand> = (0..of_a + of_b).map(|_| reg(self.any(pool(a)))).collect();
        srcs.extend((0..of_c).map(|_| reg(self.any(pool(c)))));
        srcs.extend(sparse.map(|_| reg(self.any(Pool::I32))));
        let dsts = (0..of_d).map(|_| self.any(pool(c))).collect();
        self.emit(Op::Mma { product, dsts, srcs });
    }

    fn lines(&mut self) {
        let f = self.fixed;
        // Whole warps have 256 bytes of 8 for each thread: 16 lines, of which lanes name some.
        self.barrier();
        self.int(IntOp::Shl, Ty::B32, f.index, reg(f.tid), Operand::Imm(3));
        let own = Address { base: reg(f.index), offset: 0 };
        let srcs = vec![reg(self.any(Pool::I64))];
        let (space, trans, count) = (Space::Shared, self.chance(2), self.pick(&[1, 2, 4]));
        self.emit(Op::St { space, ty: Ty::U64, order: Order::Weak, srcs, addr: own });
        self.barrier();
        let step = 16 * u64::from(self.pick(&[1_u32, 3, 5]));
        self.emit(Op::Mul { part: MulPart::Lo, ty: Ty::U32, dst: f.index, a: reg(f.tid), b: Operand::Imm(step) });
        self.int(IntOp::And, Ty::B32, f.index, reg(f.index), Operand::Imm(0xf0));
        let addr = Address { base: reg(f.index), offset: 0 };
        let dsts = (0..count).map(|_| self.any(Pool::I32)).collect();
        self.emit(Op::LdMatrix { space, trans, dsts, addr });
        self.barrier();
    }
}
