//! Matrix instructions of a warp. Products, and loads of lines that another lane names, are operations of their own; where
//! a lane finds or leaves its part of a `wmma` matrix in memory it knows itself, and does so by ordinary loads and stores.

use super::body::Body;
use super::mods::Mods;
use super::operand::Arg;
use crate::error::PtxError;
use crate::ir::{Address, IntOp, MulPart, Op, Operand, Order, Reg, RegTy, Round, SReg, Space, Ty};
use crate::matrix::{self, Arithmetic, Element, Product};

/// A type's name.
fn element(word: &str) -> Option<Element> {
    Some(match word {
        "f16" => Element::F16,
        "bf16" => Element::BF16,
        "tf32" => Element::TF32,
        "f32" => Element::F32,
        "f64" => Element::F64,
        "e4m3" => Element::E4M3,
        "e5m2" => Element::E5M2,
        "s8" => Element::S8,
        "u8" => Element::U8,
        "s4" => Element::S4,
        "u4" => Element::U4,
        "b1" => Element::B1,
        "s32" => Element::S32,
        _ => return None,
    })
}

/// `m16n8k16` and its like.
fn shape(word: &str) -> Option<[u16; 3]> {
    let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

/// True for `row`, false for `col`.
fn layout(word: &str) -> Option<bool> {
    match word {
        "row" => Some(true),
        "col" => Some(false),
        _ => None,
    }
}

/// The type of a register of a matrix, by which constants are read.
fn word(of: Element) -> Ty {
    match of {
        Element::F64 => Ty::F64,
        Element::F32 => Ty::F32,
        _ => Ty::B32,
    }
}

/// The least k of a product by `mma` of such elements; there are twice and, of some, four times as much.
fn least_k(of: Element) -> u16 {
    match of {
        Element::F16 | Element::BF16 => 8,
        Element::TF32 | Element::F64 => 4,
        _ => (4 * of.per()) as u16,
    }
}

/// Which matrix of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    A,
    B,
    Sum,
}

impl<'a> Body<'a, '_> {
    /// Takes what all matrix instructions have.
    fn warp_wide(&self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if !m.take("sync") {
            return Err(self.invalid("a matrix instruction lacks .sync"));
        }
        m.take("aligned");
        Ok(())
    }

    fn take_shape(&self, m: &mut Mods<'_>) -> Result<[u16; 3], PtxError> {
        m.find(shape).ok_or_else(|| self.invalid("a matrix instruction without a shape"))
    }

    fn take_element(&self, m: &mut Mods<'_>) -> Result<Element, PtxError> {
        m.find(element).ok_or_else(|| self.invalid("a matrix instruction lacks a type"))
    }

    fn take_layout(&self, m: &mut Mods<'_>) -> Result<bool, PtxError> {
        m.find(layout).ok_or_else(|| self.invalid("a matrix instruction lacks .row or .col"))
    }

    /// `mma.sync`.
    pub(super) fn mma(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let sparse = m.take("sp") || m.take("sp::ordered_metadata");
        self.warp_wide(m)?;
        if m.find(|w| w.starts_with("kind::").then_some(())).is_some() {
            return Err(self.unsupported("mma with .kind, which is of sm_120a, is not supported"));
        }
        let [rows, columns, k] = self.take_shape(m)?;
        let (a_row, b_row) = (self.take_layout(m)?, self.take_layout(m)?);
        let (d, a) = (self.take_element(m)?, self.take_element(m)?);
        let (b, c) = (self.take_element(m)?, self.take_element(m)?);
        let quads = (rows, columns, k, a) == (8, 8, 4, Element::F16);
        let arithmetic = if quads { Arithmetic::Quads { a_row, b_row } } else { self.arithmetic(m, a)? };
        if !quads && (!a_row || b_row) {
            return Err(self.invalid("this product is of .row and .col"));
        }
        if matches!(arithmetic, Arithmetic::Float { sat: true, .. }) {
            return Err(self.invalid("mma saturates in integers only"));
        }
        let product = Product { m: rows, n: columns, k, a, b, c, d, arithmetic, sparse: None };
        if sparse {
            return self.sparse_mma(product);
        }
        let times = k / least_k(a);
        let wide = rows == 16 && columns == 8 && matches!((times, a), (1 | 2, _) | (4, Element::F64));
        let low = !matches!(a, Element::F16 | Element::BF16 | Element::TF32 | Element::E4M3 | Element::E5M2);
        let small = rows == 8 && columns == 8 && times == 1 && low;
        if product.check().is_err() || !quads && (!(wide || small) || !k.is_multiple_of(least_k(a)) || c != d) {
            return Err(self.invalid("no matrix product has these types and this shape"));
        }
        self.count(4..=4)?;
        let [of_a, of_b, of_c, of_d] = product.registers();
        let dsts = self.fragment_dsts(0, d, of_d)?;
        let mut srcs = self.fragment(1, a, of_a)?;
        srcs.extend(self.fragment(2, b, of_b)?);
        srcs.extend(self.fragment(3, c, of_c)?);
        self.emit(Op::Mma { product, dsts, srcs })?;
        Ok(())
    }

    /// `mma.sp.sync`: the product is that of the instruction but for the selector, its last operand.
    fn sparse_mma(&mut self, mut product: Product) -> Result<(), PtxError> {
        self.count(6..=6)?;
        let Operand::Imm(selector) = self.src(5, Ty::U32)? else {
            return Err(self.invalid("the sparsity selector of mma.sp is a constant"));
        };
        product.sparse = Some(u8::try_from(selector).unwrap_or(u8::MAX));
        let Product { m, n, k, a, b: _, c, d, .. } = product;
        // As held, A is one of the two longest shapes of a product that is not sparse; of 8-bit numbers only the longer.
        let eight = matches!(a, Element::E4M3 | Element::E5M2);
        let times = k / 2 / least_k(a);
        let long = times == 2 || times == 1 && !eight;
        if (m, n) != (16, 8) || !long || !k.is_multiple_of(2 * least_k(a)) || c != d || eight && d != Element::F32 {
            return Err(self.invalid("no sparse matrix product has these types and this shape"));
        }
        product.check().map_err(|what| self.invalid(format!("mma.sp: {what}")))?;
        let [of_a, of_b, of_c, of_d] = product.registers();
        let dsts = self.fragment_dsts(0, d, of_d)?;
        let mut srcs = self.fragment(1, a, of_a)?;
        srcs.extend(self.fragment(2, a, of_b)?);
        srcs.extend(self.fragment(3, c, of_c)?);
        srcs.push(self.src(4, Ty::B32)?);
        self.emit(Op::Mma { product, dsts, srcs })?;
        Ok(())
    }

    /// How a product with such elements of A is computed.
    fn arithmetic(&self, m: &mut Mods<'_>, a: Element) -> Result<Arithmetic, PtxError> {
        let sat = m.take("satfinite");
        Ok(match a {
            Element::B1 => {
                let and = m.find(|w| match w {
                    "and" => Some(true),
                    "xor" => Some(false),
                    _ => None,
                });
                let and = and.ok_or_else(|| self.invalid("a product of bits lacks .xor or .and"))?;
                if !m.take("popc") || sat {
                    return Err(self.invalid("a product of bits is .popc, and does not saturate"));
                }
                Arithmetic::Bits { and }
            }
            Element::S8 | Element::U8 | Element::S4 | Element::U4 => Arithmetic::Integer { sat },
            Element::F64 => Arithmetic::Float { round: m.round().unwrap_or(Round::Rn), sat },
            _ => Arithmetic::Float { round: Round::Rn, sat },
        })
    }

    /// The registers of a matrix as sources: `count` of them.
    fn fragment(&mut self, at: usize, of: Element, count: usize) -> Result<Vec<Operand>, PtxError> {
        let parts = self.elements(at)?;
        if parts.len() != count {
            return Err(self.invalid(format!("a matrix of {} registers, which has {count}", parts.len())));
        }
        parts.into_iter().map(|arg| self.source(arg, word(of))).collect()
    }

    /// The same as destinations.
    fn fragment_dsts(&mut self, at: usize, of: Element, count: usize) -> Result<Vec<Reg>, PtxError> {
        let parts = self.elements(at)?;
        if parts.len() != count {
            return Err(self.invalid(format!("a matrix of {} registers, which has {count}", parts.len())));
        }
        let class = of.reg();
        let mut dsts = Vec::with_capacity(count);
        for arg in parts {
            dsts.push(match arg {
                Arg::Word("_") => self.new_reg(class)?,
                Arg::Word(name) => self.reg_of(name, class)?,
                Arg::Reg(reg) if self.inst.graph.ty(reg) == class => reg,
                _ => return Err(self.invalid("the destination is not a register of this matrix")),
            });
        }
        Ok(dsts)
    }

    /// The space of `ldmatrix` and its kin, and the address, operand `at`.
    fn lines(&mut self, m: &mut Mods<'_>, at: usize) -> Result<(Space, Address), PtxError> {
        let written = m.space();
        let place = self.address(at)?;
        let space = self.access_space(written, &place)?;
        if !matches!(space, Space::Shared | Space::Generic) {
            return Err(self.invalid("matrices of this kind are in shared memory"));
        }
        Ok((space, place.address))
    }

    /// Number of matrices; refuses other shapes than 8 × 8 of 16 bits.
    fn tiles(&self, m: &mut Mods<'_>) -> Result<usize, PtxError> {
        self.warp_wide(m)?;
        if let Some(what) = m.find(|w| matches!(w, "m16n16" | "m8n16" | "m16n8" | "b8" | "b8x16").then(|| w.to_owned()))
        {
            return Err(
                self.unsupported(format!("matrices .{what}, which are of sm_100a and sm_120a, are not supported"))
            );
        }
        if !m.take("m8n8") || !m.take("b16") {
            return Err(self.invalid("a matrix instruction of .m8n8 and .b16 lacks these"));
        }
        let count = m.find(|w| match w {
            "x1" => Some(1),
            "x2" => Some(2),
            "x4" => Some(4),
            _ => None,
        });
        count.ok_or_else(|| self.invalid("a matrix instruction lacks .x1, .x2 or .x4"))
    }

    pub(super) fn ldmatrix(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let count = self.tiles(m)?;
        let trans = m.take("trans");
        self.count(2..=2)?;
        let (space, addr) = self.lines(m, 1)?;
        let dsts = self.fragment_dsts(0, Element::F16, count)?;
        self.emit(Op::LdMatrix { space, trans, dsts, addr })?;
        Ok(())
    }

    pub(super) fn stmatrix(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let count = self.tiles(m)?;
        let trans = m.take("trans");
        self.count(2..=2)?;
        let (space, addr) = self.lines(m, 0)?;
        let srcs = self.fragment(1, Element::F16, count)?;
        self.emit(Op::StMatrix { space, trans, srcs, addr })?;
        Ok(())
    }

    pub(super) fn movmatrix(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        self.warp_wide(m)?;
        if !m.take("m8n8") || !m.take("trans") || !m.take("b16") {
            return Err(self.invalid("movmatrix is .m8n8.trans.b16"));
        }
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, Ty::B32)?, self.src(1, Ty::B32)?);
        self.emit(Op::MovMatrix { dst, a })?;
        Ok(())
    }

    /// `wmma.load`, `wmma.store` and `wmma.mma`.
    pub(super) fn wmma(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if m.take("mma") {
            return self.wmma_mma(m);
        }
        let store = m.take("store");
        if !store && !m.take("load") {
            return Err(self.invalid("wmma without .load, .store or .mma"));
        }
        let role = m.find(|w| match w {
            "a" => Some(Role::A),
            "b" => Some(Role::B),
            "c" | "d" => Some(Role::Sum),
            _ => None,
        });
        let role = role.ok_or_else(|| self.invalid("wmma without .a, .b, .c or .d"))?;
        self.warp_wide(m)?;
        let row = self.take_layout(m)?;
        let sides = self.take_shape(m)?;
        let space = m.space();
        let of = self.take_element(m)?;
        if store && role != Role::Sum {
            return Err(self.invalid("wmma.store stores .d"));
        }
        let part = self.wmma_part(role, of, sides)?;
        let along_k = row == (role != Role::B);
        if of.bits() < 8 && !along_k {
            return Err(self.invalid("matrices of this type lie along k"));
        }
        self.count(2..=3)?;
        let place = self.address(usize::from(!store))?;
        let space = self.access_space(space, &place)?;
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return Err(self.invalid("matrices are in global or shared memory"));
        }
        // From line to line of A and of sums in rows, and of B in columns; or along them.
        let [rows, columns, k] = sides;
        let (lines, length) = match role {
            Role::A => (rows, k),
            Role::B => (columns, k),
            Role::Sum => (rows, columns),
        };
        let least = u64::from(if along_k { length } else { lines });
        let pitch = if self.args.len() > 2 { self.src(2, Ty::U32)? } else { Operand::Imm(least) };
        let mut walk = Walk::new(self, place.address, pitch, along_k, &part)?;
        let count = part.registers.len();
        if store {
            let srcs = self.fragment(1, of, count)?;
            return self.wmma_store(&part, &mut walk, space, &srcs);
        }
        let dsts = self.fragment_dsts(0, of, count)?;
        self.wmma_load(&part, &mut walk, space, &dsts)
    }

    /// The product of which a matrix of this shape is a part, with what does not matter for it filled in.
    fn wmma_product(&self, [m, n, k]: [u16; 3], a: Element, b: Element, c: Element, d: Element) -> Option<Product> {
        use Element::{B1, BF16, F16, F64, S4, S8, TF32, U4, U8};
        let tall = matches!((m, n, k), (16, 16, 16) | (32, 8, 16) | (8, 32, 16));
        let known = match a {
            F16 | BF16 | S8 | U8 => tall,
            TF32 => (m, n, k) == (16, 16, 8),
            F64 => (m, n, k) == (8, 8, 4),
            S4 | U4 => (m, n, k) == (8, 8, 32),
            B1 => (m, n, k) == (8, 8, 128),
            _ => false,
        };
        let arithmetic = match a {
            S8 | U8 | S4 | U4 => Arithmetic::Integer { sat: false },
            B1 => Arithmetic::Bits { and: false },
            _ => Arithmetic::Float { round: Round::Rn, sat: false },
        };
        let product = Product { m, n, k, a, b, c, d, arithmetic, sparse: None };
        (known && product.check().is_ok()).then_some(product)
    }

    /// The registers of a matrix as `wmma` has them, and what is in each.
    fn wmma_part(&self, role: Role, of: Element, sides: [u16; 3]) -> Result<Part, PtxError> {
        // Elements of factors that go with such sums, and of sums that go with such factors.
        let factors: &[Element] = match (role, of) {
            (Role::A | Role::B, _) => &[of],
            (Role::Sum, Element::F64) => &[Element::F64],
            (Role::Sum, Element::S32) => &[Element::S8, Element::S4, Element::B1],
            (Role::Sum, _) => &[Element::F16, Element::TF32],
        };
        let sums = match (role, of) {
            (Role::Sum, _) => of,
            (_, Element::F64) => Element::F64,
            (_, Element::S8 | Element::U8 | Element::S4 | Element::U4 | Element::B1) => Element::S32,
            _ => Element::F32,
        };
        let product = factors.iter().find_map(|&f| self.wmma_product(sides, f, f, sums, sums));
        let product = product.ok_or_else(|| self.invalid("wmma has no matrix of this type and shape"))?;
        let mut registers = Vec::new();
        let k_tiles = product.k_tiles();
        let tile = 4 * product.a.per();
        match role {
            Role::A | Role::B => {
                let (lines, paired) =
                    if role == Role::A { (product.m, matrix::paired(product.m)) } else { (product.n, 1) };
                let count = u32::from(lines / 8) * k_tiles;
                registers.resize(count as usize, Spot::default());
                for line in 0..u32::from(lines / 8) {
                    for k in 0..k_tiles {
                        let register = matrix::factor_register(paired, k_tiles, line, k);
                        registers[register] = Spot { line: 8 * line, at: k * tile };
                    }
                }
                if of == Element::F16 {
                    // What PTX has eight registers for, whatever the shape, is there several times.
                    let distinct = registers.clone();
                    registers = distinct.into_iter().cycle().take(matrix::MAX_REGISTERS).collect();
                }
                Ok(Part { of, lane: product.a.per(), distinct: count as usize, registers })
            }
            Role::Sum => {
                let count = product.registers()[3];
                registers.resize(count, Spot::default());
                for row in 0..u32::from(product.m / 8) {
                    for column in 0..u32::from(product.n / 8) {
                        for part in (0..2).rev() {
                            let (register, inside) = matrix::sum_register(of, product.m, product.n, row, column, part);
                            registers[register] = Spot { line: 8 * row, at: 8 * column + part - inside };
                        }
                    }
                }
                Ok(Part { of, lane: 2, distinct: count, registers })
            }
        }
    }

    fn wmma_load(&mut self, part: &Part, walk: &mut Walk, space: Space, dsts: &[Reg]) -> Result<(), PtxError> {
        let class = part.of.reg();
        let mut at = 0;
        while at < part.distinct {
            let spot = part.registers[at];
            // Two columns of a line of sums, side by side.
            let pair = part.lane > part.of.per() && walk.along && at + 1 < part.distinct;
            let (addr, ty) = (walk.address(self, spot.line, spot.at)?, walk.whole(class));
            if walk.along || part.of.per() == 1 {
                let list = &dsts[at..=at + usize::from(pair)];
                let dsts = list.iter().copied().map(Some).collect();
                self.emit(Op::Ld { space, ty, order: Order::Weak, dsts, addr })?;
                at += list.len();
                continue;
            }
            // Of elements across the lines, one by one.
            let ty = if part.of.bits() == 8 { Ty::U8 } else { Ty::B16 };
            let mut halves = Vec::new();
            for i in 0..part.of.per() {
                let (addr, dst) = (walk.address(self, spot.line, spot.at + i)?, self.new_reg(RegTy::B16)?);
                self.emit(Op::Ld { space, ty, order: Order::Weak, dsts: vec![Some(dst)], addr })?;
                halves.push(dst);
            }
            if part.of.bits() == 8 {
                halves = self.joined(&halves)?;
            }
            let srcs = halves.into_iter().map(Operand::Reg).collect();
            self.emit(Op::Pack { dst: dsts[at], srcs })?;
            at += 1;
        }
        for (i, &dst) in dsts.iter().enumerate().skip(part.distinct) {
            let src = Operand::Reg(dsts[i % part.distinct]);
            self.emit(Op::Mov { ty: word(part.of), dst, src })?;
        }
        Ok(())
    }

    /// Bytes, two by two.
    fn joined(&mut self, bytes: &[Reg]) -> Result<Vec<Reg>, PtxError> {
        let mut halves = Vec::new();
        for two in bytes.chunks_exact(2) {
            let (high, both) = (self.new_reg(RegTy::B16)?, self.new_reg(RegTy::B16)?);
            let (a, b) = (Operand::Reg(two[1]), Operand::Imm(8));
            self.emit(Op::Int { op: IntOp::Shl, ty: Ty::B16, sat: false, dst: high, a, b })?;
            let (a, b) = (Operand::Reg(two[0]), Operand::Reg(high));
            self.emit(Op::Int { op: IntOp::Or, ty: Ty::B16, sat: false, dst: both, a, b })?;
            halves.push(both);
        }
        Ok(halves)
    }

    fn wmma_store(&mut self, part: &Part, walk: &mut Walk, space: Space, srcs: &[Operand]) -> Result<(), PtxError> {
        let class = part.of.reg();
        let mut at = 0;
        while at < part.distinct {
            let spot = part.registers[at];
            let pair = part.lane > part.of.per() && walk.along && at + 1 < part.distinct;
            let (addr, ty) = (walk.address(self, spot.line, spot.at)?, walk.whole(class));
            if walk.along || part.of.per() == 1 {
                let list = &srcs[at..=at + usize::from(pair)];
                self.emit(Op::St { space, ty, order: Order::Weak, srcs: list.to_vec(), addr })?;
                at += list.len();
                continue;
            }
            let halves = [self.new_reg(RegTy::B16)?, self.new_reg(RegTy::B16)?];
            let src = match srcs[at] {
                Operand::Imm(_) => {
                    let dst = self.new_reg(class)?;
                    self.emit(Op::Mov { ty: Ty::B32, dst, src: srcs[at] })?;
                    Operand::Reg(dst)
                }
                src => src,
            };
            self.emit(Op::Unpack { dsts: halves.map(Some).to_vec(), src })?;
            for (i, half) in halves.into_iter().enumerate() {
                let addr = walk.address(self, spot.line, spot.at + i as u32)?;
                let srcs = vec![Operand::Reg(half)];
                self.emit(Op::St { space, ty: Ty::B16, order: Order::Weak, srcs, addr })?;
            }
            at += 1;
        }
        Ok(())
    }

    fn wmma_mma(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let bits = m.find(|w| match w {
            "and" => Some(true),
            "xor" => Some(false),
            _ => None,
        });
        if bits.is_some() && !m.take("popc") {
            return Err(self.invalid("a product of bits is .popc"));
        }
        self.warp_wide(m)?;
        let (_, _) = (self.take_layout(m)?, self.take_layout(m)?);
        let sides = self.take_shape(m)?;
        let (sat, round) = (m.take("satfinite"), m.round());
        // Of f16 only the types of D and C are written.
        let (d, second) = (self.take_element(m)?, self.take_element(m)?);
        let (a, b, c) = match m.find(element) {
            None => (Element::F16, Element::F16, second),
            Some(b) => (second, b, self.take_element(m)?),
        };
        let product = self.wmma_product(sides, a, b, c, d);
        let mut product = product.ok_or_else(|| self.invalid("wmma has no product of these types and this shape"))?;
        product.arithmetic = match (product.arithmetic, bits, round) {
            (Arithmetic::Bits { .. }, Some(and), None) if !sat => Arithmetic::Bits { and },
            (Arithmetic::Integer { .. }, None, None) => Arithmetic::Integer { sat },
            (Arithmetic::Float { .. }, None, round) if round.is_none() || a == Element::F64 => {
                Arithmetic::Float { round: round.unwrap_or(Round::Rn), sat }
            }
            _ => return Err(self.invalid("modifiers that do not go with this product")),
        };
        if product.check().is_err() {
            return Err(self.invalid("wmma has no product of these types and this shape"));
        }
        self.count(4..=4)?;
        let [of_a, of_b, of_c, of_d] = product.registers();
        let written = |count: usize| if a == Element::F16 { matrix::MAX_REGISTERS } else { count };
        let dsts = self.fragment_dsts(0, d, of_d)?;
        let mut srcs = self.fragment(1, a, written(of_a))?;
        srcs.truncate(of_a);
        let mut of_right = self.fragment(2, b, written(of_b))?;
        of_right.truncate(of_b);
        srcs.append(&mut of_right);
        srcs.extend(self.fragment(3, c, of_c)?);
        self.emit(Op::Mma { product, dsts, srcs })?;
        Ok(())
    }
}

/// Where a register's first element of lane 0 lies in its matrix: a line, and how far along it.
#[derive(Clone, Copy, Default)]
struct Spot {
    line: u32,
    at: u32,
}

/// The registers of a `wmma` matrix.
struct Part {
    of: Element,
    /// Elements of a line between one lane and the next.
    lane: u32,
    /// Registers that differ; the others are the same again.
    distinct: usize,
    registers: Vec<Spot>,
}

/// Addresses of a lane's elements.
struct Walk {
    /// Address of the lane's first element of all.
    base: Operand,
    ty: Ty,
    pitch: Operand,
    /// Elements of a line are side by side, else those of all lines at one place.
    along: bool,
    bits: u32,
    /// Bases so many pitches further.
    further: Vec<(u32, Operand)>,
}

impl Walk {
    fn new(body: &mut Body<'_, '_>, at: Address, pitch: Operand, along: bool, part: &Part) -> Result<Walk, PtxError> {
        let wide = !matches!(at.base, Operand::Reg(reg) if body.inst.graph.ty(reg) == RegTy::B32);
        let ty = if wide { Ty::U64 } else { Ty::U32 };
        let [lane, line, word] = [body.new_reg(RegTy::B32)?, body.new_reg(RegTy::B32)?, body.new_reg(RegTy::B32)?];
        body.emit(Op::Special { ty: Ty::U32, dst: lane, sreg: SReg::LaneId })?;
        let lane = Operand::Reg(lane);
        body.emit(Op::Int { op: IntOp::Shr, ty: Ty::U32, sat: false, dst: line, a: lane, b: Operand::Imm(2) })?;
        body.emit(Op::Int { op: IntOp::And, ty: Ty::B32, sat: false, dst: word, a: lane, b: Operand::Imm(3) })?;
        let step = part.lane;
        // Loads between here and the last use may write the register in which it is.
        let pitch = match pitch {
            Operand::Reg(_) => {
                let kept = body.new_reg(RegTy::B32)?;
                body.emit(Op::Mov { ty: Ty::B32, dst: kept, src: pitch })?;
                Operand::Reg(kept)
            }
            Operand::Imm(_) => pitch,
        };
        let (across, along_line) = (Operand::Reg(line), Operand::Reg(word));
        let mut walk = Walk { base: at.base, ty, pitch, along, bits: part.of.bits(), further: Vec::new() };
        let (by_pitch, by_one, unit) =
            if along { (across, along_line, (1, step)) } else { (along_line, across, (step, 1)) };
        walk.base = walk.sum(body, at.base, Operand::Imm(at.offset.cast_unsigned()))?;
        let (dst, b) = (body.new_reg(RegTy::B32)?, Operand::Imm(u64::from(unit.0 * walk.bits)));
        body.emit(Op::Mul { part: MulPart::Lo, ty: Ty::U32, dst, a: by_pitch, b })?;
        let far = walk.pitches(body, Operand::Reg(dst))?;
        walk.base = walk.sum(body, walk.base, far)?;
        let near = walk.bytes(body, by_one, unit.1)?;
        walk.base = walk.sum(body, walk.base, near)?;
        Ok(walk)
    }

    /// The type of a whole register.
    fn whole(&self, class: RegTy) -> Ty {
        if class == RegTy::B64 { Ty::B64 } else { Ty::B32 }
    }

    fn class(&self) -> RegTy {
        self.ty.reg()
    }

    fn sum(&self, body: &mut Body<'_, '_>, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let dst = body.new_reg(self.class())?;
        let [a, b] = [a, b].map(|o| match o {
            Operand::Imm(v) if self.ty == Ty::U32 => Operand::Imm(v & u64::from(u32::MAX)),
            o => o,
        });
        body.emit(Op::Int { op: IntOp::Add, ty: self.ty, sat: false, dst, a, b })?;
        Ok(Operand::Reg(dst))
    }

    /// Bytes of `index * times` elements.
    fn bytes(&self, body: &mut Body<'_, '_>, index: Operand, times: u32) -> Result<Operand, PtxError> {
        let bytes = Operand::Imm(u64::from(times * self.bits / 8));
        self.product(body, index, bytes)
    }

    fn product(&self, body: &mut Body<'_, '_>, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let dst = body.new_reg(self.class())?;
        let part = if self.ty == Ty::U64 { MulPart::Wide } else { MulPart::Lo };
        body.emit(Op::Mul { part, ty: Ty::U32, dst, a, b })?;
        Ok(Operand::Reg(dst))
    }

    /// Bytes of the pitch times a number of bits.
    fn pitches(&self, body: &mut Body<'_, '_>, bits: Operand) -> Result<Operand, PtxError> {
        let all = self.product(body, bits, self.pitch)?;
        let bytes = body.new_reg(self.class())?;
        let b = Operand::Imm(3);
        body.emit(Op::Int { op: IntOp::Shr, ty: self.ty, sat: false, dst: bytes, a: all, b })?;
        Ok(Operand::Reg(bytes))
    }

    /// The address of the element `at` elements along line `line`, both counted from the lane's first.
    fn address(&mut self, body: &mut Body<'_, '_>, line: u32, at: u32) -> Result<Address, PtxError> {
        let (pitches, elements) = if self.along { (line, at) } else { (at, line) };
        let offset = i64::from(elements * self.bits / 8);
        if let Operand::Imm(pitch) = self.pitch {
            let further = u64::from(pitches).wrapping_mul(pitch).wrapping_mul(self.bits.into()) / 8;
            return Ok(Address { base: self.base, offset: offset.wrapping_add(further.cast_signed()) });
        }
        if pitches == 0 {
            return Ok(Address { base: self.base, offset });
        }
        let base = match self.further.iter().find(|(n, _)| *n == pitches) {
            Some((_, base)) => *base,
            None => {
                let far = self.pitches(body, Operand::Imm(u64::from(pitches * self.bits)))?;
                let base = self.sum(body, self.base, far)?;
                self.further.push((pitches, base));
                base
            }
        };
        Ok(Address { base, offset })
    }
}
