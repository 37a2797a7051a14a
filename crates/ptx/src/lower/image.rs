//! Texture and surface instructions.

use texture::{Access, Boundary, Geometry, Mip, Query, Reduction};

use super::body::{Body, Name};
use super::mods::Mods;
use super::operand::{Arg, fits};
use crate::decl::Opaque;
use crate::error::PtxError;
use crate::ir::{Address, BoolOp, Cmp, Op, Operand, Order, PredRef, Reg, RegTy, Round, Space, Ty};
use crate::lexer::{Token, clip};
use crate::program::Item;

/// Most elements of a list, and most operands.
const MOST: usize = 8;

/// An operand as written.
#[derive(Debug)]
enum Part<'a> {
    /// `{…}` or a scalar, and the predicate behind `|`.
    List { elements: Vec<Arg<'a>>, braces: bool, pred: Option<&'a str> },
    /// `[handle]`, `[handle, place]`.
    Place { handle: &'a str, place: Vec<Arg<'a>> },
}

fn geometry(word: &str) -> Option<Geometry> {
    Some(match word {
        "1d" => Geometry::D1,
        "2d" => Geometry::D2,
        "3d" => Geometry::D3,
        "a1d" => Geometry::A1,
        "a2d" => Geometry::A2,
        "cube" => Geometry::Cube,
        "acube" => Geometry::ACube,
        _ => return None,
    })
}

fn boundary(word: &str) -> Option<Boundary> {
    Some(match word {
        "trap" => Boundary::Trap,
        "clamp" => Boundary::Clamp,
        "zero" => Boundary::Zero,
        _ => return None,
    })
}

fn opaque(word: &str) -> Option<Opaque> {
    Some(match word {
        "texref" => Opaque::Texture,
        "samplerref" => Opaque::Sampler,
        "surfref" => Opaque::Surface,
        _ => return None,
    })
}

fn query(word: &str) -> Option<(Query, bool)> {
    // What is asked, and whether only of textures.
    Some(match word {
        "width" => (Query::Width, false),
        "height" => (Query::Height, false),
        "depth" => (Query::Depth, false),
        "channel_data_type" => (Query::ChannelDataType, false),
        "channel_order" => (Query::ChannelOrder, false),
        "array_size" => (Query::ArraySize, false),
        "memory_layout" => (Query::MemoryLayout, false),
        "normalized_coords" => (Query::NormalizedCoords, true),
        "num_mipmap_levels" => (Query::NumMipmapLevels, true),
        "num_samples" => (Query::NumSamples, true),
        "filter_mode" => (Query::FilterMode, true),
        "addr_mode_0" => (Query::AddrMode(0), true),
        "addr_mode_1" => (Query::AddrMode(1), true),
        "addr_mode_2" => (Query::AddrMode(2), true),
        _ => return None,
    })
}

impl<'a> Body<'a, '_> {
    /// All operands, up to and including the semicolon.
    fn parts(&mut self) -> Result<std::vec::IntoIter<Part<'a>>, PtxError> {
        let mut parts = Vec::new();
        loop {
            let part = if self.lexer.eat(b'[')? { self.place()? } else { self.list()? };
            if parts.len() == MOST {
                return Err(self.unsupported("too many operands"));
            }
            parts.push(part);
            match self.lexer.next()? {
                Token::Punct(b',') => {}
                Token::Punct(b';') => return Ok(parts.into_iter()),
                other => return Err(self.lexer.unexpected(&other, "',' or ';'")),
            }
        }
    }

    fn list(&mut self) -> Result<Part<'a>, PtxError> {
        let braces = self.lexer.eat(b'{')?;
        let mut elements = vec![self.parse_scalar()?];
        if braces {
            while self.lexer.eat(b',')? {
                if elements.len() == MOST {
                    return Err(self.unsupported("too many vector elements"));
                }
                elements.push(self.parse_scalar()?);
            }
            self.lexer.expect(b'}')?;
        }
        let mut pred = if braces && self.lexer.eat(b'|')? { Some(self.lexer.word("a predicate")?) } else { None };
        if let [Arg::Pair(first, second)] = elements[..] {
            (elements, pred) = (vec![Arg::Word(first)], Some(second));
        }
        if let [Arg::Word(name)] = elements[..]
            && let Some(Name::Vector(first, lanes)) = self.lookup(name)?
        {
            elements = (0..lanes).map(|lane| Arg::Reg(Reg(first.0 + lane))).collect();
        }
        Ok(Part::List { elements, braces, pred })
    }

    fn place(&mut self) -> Result<Part<'a>, PtxError> {
        let handle = self.lexer.word("a texture or surface")?;
        let mut place = Vec::new();
        if self.lexer.eat(b',')? {
            let Part::List { elements, .. } = self.list()? else { return Err(self.invalid("coordinates are missing")) };
            place = elements;
            if self.lexer.eat(b',')? {
                return Err(self.unsupported("samplers apart from their textures are not supported"));
            }
        }
        self.lexer.expect(b']')?;
        Ok(Part::Place { handle, place })
    }

    /// The opaque variable of that name, if the module has one.
    fn reference(&self, name: &str) -> Option<Opaque> {
        match self.inst.program.names.get(name)? {
            Item::Variable(at) => self.inst.program.variables[*at].opaque,
            _ => None,
        }
    }

    /// The handle in an opaque variable of the module, which the driver writes between launches.
    pub(super) fn handle_in(&mut self, name: &'a str) -> Result<Option<Operand>, PtxError> {
        if self.reference(name).is_none() {
            return Ok(None);
        }
        let Some(address) = (self.inst.symbols)(name) else {
            return Err(self.wrong(format!("undefined symbol '{}'", clip(name))));
        };
        let at = Address { base: Operand::Imm(address), offset: 0 };
        self.loaded(Space::Const, at).map(Some)
    }

    fn loaded(&mut self, space: Space, addr: Address) -> Result<Operand, PtxError> {
        let handle = self.new_reg(RegTy::B64)?;
        self.emit(Op::Ld { space, ty: Ty::B64, order: Order::Weak, dsts: vec![Some(handle)], addr })?;
        Ok(Operand::Reg(handle))
    }

    /// A handle as named: in a register, a parameter, or a variable of the module, which must be of a sort in `sorts`.
    fn handle(&mut self, name: &'a str, sorts: &[Opaque]) -> Result<Operand, PtxError> {
        match self.lookup(name)? {
            Some(Name::Reg(_)) => Ok(Operand::Reg(self.reg_of(name, RegTy::B64)?)),
            Some(Name::Param(at)) => self.loaded(Space::Param, Address { base: Operand::Imm(at.into()), offset: 0 }),
            Some(Name::Slot(slot)) => {
                let (handle, addr) = (self.new_reg(RegTy::B64)?, self.slot_address(slot));
                let (space, ty, order, dsts) = (Space::Local, Ty::B64, Order::Weak, vec![Some(handle)]);
                let at = self.emit(Op::Ld { space, ty, order, dsts, addr })?;
                self.inst.slots.access(at, slot, 0);
                Ok(Operand::Reg(handle))
            }
            Some(_) => Err(self.invalid(format!("'{}' is no texture or surface", clip(name)))),
            None => match self.reference(name) {
                Some(Opaque::Sampler) if !sorts.contains(&Opaque::Sampler) => {
                    Err(self.unsupported("samplers apart from their textures are not supported"))
                }
                Some(sort) if !sorts.contains(&sort) => {
                    Err(self.invalid(format!("'{}' is a reference of another sort", clip(name))))
                }
                _ => match self.handle_in(name)? {
                    Some(handle) => Ok(handle),
                    None => Err(self.invalid(format!("'{}' is no texture or surface", clip(name)))),
                },
            },
        }
    }

    /// So many first elements as sources; those behind only pad.
    fn padded(&mut self, elements: Vec<Arg<'a>>, wanted: usize, ty: Ty) -> Result<Vec<Operand>, PtxError> {
        if elements.len() < wanted || elements.len() > 4 {
            return Err(self.invalid("a vector of another length than the geometry has"));
        }
        elements.into_iter().take(wanted).map(|arg| self.source(arg, ty)).collect()
    }

    /// The layer and the coordinates.
    fn coordinates(&mut self, geometry: Geometry, place: Vec<Arg<'a>>, ty: Ty) -> Result<Vec<Operand>, PtxError> {
        let mut place = place.into_iter();
        let mut sources = Vec::new();
        if geometry.layered() {
            let layer = place.next().ok_or_else(|| self.invalid("the layer is missing"))?;
            sources.push(self.source(layer, Ty::U32)?);
        }
        sources.extend(self.padded(place.collect(), geometry.coordinates(), ty)?);
        Ok(sources)
    }

    fn geometry(&self, m: &mut Mods<'_>) -> Result<Geometry, PtxError> {
        if m.take("2dms") || m.take("a2dms") {
            return Err(self.unsupported("textures of several samples a texel are not supported"));
        }
        m.find(geometry).ok_or_else(|| self.invalid("the instruction lacks its geometry"))
    }

    fn missing(&self) -> PtxError {
        self.invalid("an operand is missing, or of another kind")
    }

    /// The offset and the end of the operands of `tex` and `tld4`.
    fn texel_offset(
        &mut self,
        geometry: Geometry,
        parts: &mut dyn Iterator<Item = Part<'a>>,
    ) -> Result<Option<Vec<Operand>>, PtxError> {
        let mut offset = None;
        for part in parts {
            match part {
                Part::List { elements, braces: true, pred: None } if offset.is_none() => {
                    offset = Some(self.padded(elements, geometry.coordinates(), Ty::S32)?);
                }
                Part::List { braces: false, .. } => {
                    return Err(self.unsupported("comparisons with depth textures are not supported"));
                }
                _ => return Err(self.missing()),
            }
        }
        Ok(offset)
    }

    /// Results of a texture of this type, and the predicate that says they are resident: they always are.
    fn results(&mut self, access: Access, ty: Ty, dst: Option<Part<'a>>, srcs: Vec<Operand>) -> Result<(), PtxError> {
        let Some(Part::List { elements, pred, .. }) = dst else { return Err(self.missing()) };
        let half = matches!(ty, Ty::F16 | Ty::F16x2);
        if elements.len() != if ty == Ty::F16x2 { 2 } else { 4 } {
            return Err(self.invalid("the vector does not have the instruction's length"));
        }
        let mut dsts = Vec::new();
        for &arg in &elements {
            dsts.push(match arg {
                Arg::Word("_") => self.new_reg(ty.reg())?,
                Arg::Word(name) => self.reg_of(name, ty.reg())?,
                Arg::Reg(reg) if self.inst.graph.ty(reg) == ty.reg() => reg,
                _ => return Err(self.invalid("the destination is not a register")),
            });
        }
        if half {
            let floats = [0; 4].map(|_| self.new_reg(RegTy::B32));
            let mut words = Vec::new();
            for reg in floats {
                words.push(reg?);
            }
            self.emit(Op::Image { access, dsts: words.clone(), srcs })?;
            let (round, to_integral, ftz, sat, relu) = (Round::Rn, false, false, false, false);
            for (i, dst) in dsts.into_iter().enumerate() {
                let (src_ty, word) = (Ty::F32, |i: usize| Operand::Reg(words[i]));
                self.emit(if ty == Ty::F16 {
                    let round = Some(round);
                    Op::Cvt { dst_ty: ty, src_ty, round, to_integral, ftz, sat, relu, dst, a: word(i) }
                } else {
                    let (a, b) = (word(2 * i + 1), word(2 * i));
                    Op::CvtPack { dst_ty: ty, src_ty, round, sat, relu, dst, a, b }
                })?;
            }
        } else {
            self.emit(Op::Image { access, dsts, srcs })?;
        }
        if let Some(name) = pred.filter(|name| *name != "_") {
            let dst = self.reg_of(name, RegTy::Pred)?;
            self.emit(Op::Mov { ty: Ty::Pred, dst, src: Operand::Imm(1) })?;
        }
        Ok(())
    }

    /// The types of results and of coordinates.
    fn texture_types(&self, m: &mut Mods<'_>) -> Result<(Ty, Ty), PtxError> {
        let lanes = m.vector();
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        let coordinates = m.ty().map_err(|e| self.invalid(e))?;
        let known = match ty {
            Ty::U32 | Ty::S32 | Ty::F32 | Ty::F16 => lanes == 4,
            Ty::F16x2 => lanes == 2,
            _ => false,
        };
        if !known || !matches!(coordinates, Ty::S32 | Ty::F32) {
            return Err(self.invalid("no texture instruction of these types"));
        }
        Ok((ty, coordinates))
    }

    pub(super) fn tex(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let mip = m.find(|word| match word {
            "base" => Some(Mip::Base),
            "level" => Some(Mip::Level),
            "grad" => Some(Mip::Gradient),
            _ => None,
        });
        let mip = mip.unwrap_or(Mip::Base);
        let geometry = self.geometry(m)?;
        let (ty, ctype) = self.texture_types(m)?;
        let mut parts = self.parts()?;
        let dst = parts.next();
        let Some(Part::Place { handle, place }) = parts.next() else { return Err(self.missing()) };
        let mut srcs = vec![self.handle(handle, &[Opaque::Texture])?];
        srcs.extend(self.coordinates(geometry, place, ctype)?);
        let detail: &[(usize, Ty)] = match mip {
            Mip::Base => &[],
            Mip::Level => &[(1, ctype)],
            Mip::Gradient => &[(geometry.coordinates(), Ty::F32); 2],
        };
        for &(count, ty) in detail {
            let Some(Part::List { elements, pred: None, .. }) = parts.next() else { return Err(self.missing()) };
            srcs.extend(self.padded(elements, count, ty)?);
        }
        let offset = self.texel_offset(geometry, &mut parts)?;
        let access = Access::Sample { geometry, integer: ctype == Ty::S32, mip, offset: offset.is_some() };
        srcs.extend(offset.into_iter().flatten());
        self.known(access)?;
        self.results(access, ty, dst, srcs)
    }

    pub(super) fn tld4(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let component = m.find(|word| match word {
            "r" => Some(0),
            "g" => Some(1),
            "b" => Some(2),
            "a" => Some(3),
            _ => None,
        });
        let component = component.ok_or_else(|| self.invalid("the instruction lacks its component"))?;
        let geometry = self.geometry(m)?;
        let (ty, ctype) = self.texture_types(m)?;
        let mut parts = self.parts()?;
        let dst = parts.next();
        let Some(Part::Place { handle, place }) = parts.next() else { return Err(self.missing()) };
        let mut srcs = vec![self.handle(handle, &[Opaque::Texture])?];
        srcs.extend(self.coordinates(geometry, place, ctype)?);
        let offset = self.texel_offset(geometry, &mut parts)?;
        let access = Access::Gather { geometry, component, offset: offset.is_some() };
        srcs.extend(offset.into_iter().flatten());
        if ctype != Ty::F32 || matches!(ty, Ty::F16 | Ty::F16x2) {
            return Err(self.invalid("no texture instruction of these types"));
        }
        self.known(access)?;
        self.results(access, ty, dst, srcs)
    }

    fn known(&self, access: Access) -> Result<(), PtxError> {
        if access.is_valid() { Ok(()) } else { Err(self.invalid("no texture or surface instruction of this form")) }
    }

    /// `txq` and `suq`.
    pub(super) fn image_query(&mut self, m: &mut Mods<'_>, surface: bool) -> Result<(), PtxError> {
        if m.take("force_unnormalized_coords") {
            return Err(self.unsupported("samplers apart from their textures are not supported"));
        }
        let level = !surface && m.take("level");
        let found = m.find(query).filter(|(_, of_textures)| !(surface && *of_textures));
        let (what, _) = found.ok_or_else(|| self.invalid("nothing that can be asked"))?;
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        if ty.bits() != 32 {
            return Err(self.invalid("the answer has 32 bits"));
        }
        let mut parts = self.parts()?;
        let dst = match parts.next() {
            Some(Part::List { elements, pred: None, .. }) => match elements[..] {
                [Arg::Word(name)] => self.reg_of(name, RegTy::B32)?,
                _ => return Err(self.invalid("the destination is not a register")),
            },
            _ => return Err(self.missing()),
        };
        let handle = match parts.next() {
            Some(Part::Place { handle, place }) if place.is_empty() => handle,
            _ => return Err(self.missing()),
        };
        let sort = if surface { Opaque::Surface } else { Opaque::Texture };
        let mut srcs = vec![self.handle(handle, &[sort])?];
        if level {
            let Some(Part::List { elements, pred: None, .. }) = parts.next() else { return Err(self.missing()) };
            srcs.extend(self.padded(elements, 1, Ty::U32)?);
        }
        if parts.next().is_some() {
            return Err(self.missing());
        }
        let access = Access::Query { what, level };
        self.known(access)?;
        self.emit(Op::Image { access, dsts: vec![dst], srcs })?;
        Ok(())
    }

    /// Of a surface instruction: addresses by bytes (`.b`) or by texels, its geometry, elements, and boundary.
    fn surface_mods(&self, m: &mut Mods<'_>) -> Result<(bool, Geometry, usize, Ty, Boundary), PtxError> {
        let (bytes, texels) = (m.take("b"), m.take("p"));
        if bytes == texels {
            return Err(self.invalid("the instruction lacks .b or .p"));
        }
        m.cache();
        let geometry = self.geometry(m)?;
        let count = m.vector();
        let boundary = m.find(boundary).unwrap_or(Boundary::Trap);
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        Ok((bytes, geometry, count, ty, boundary))
    }

    /// The handle and the place of a surface instruction.
    fn surface_place(&mut self, geometry: Geometry, part: Option<Part<'a>>) -> Result<Vec<Operand>, PtxError> {
        let Some(Part::Place { handle, place }) = part else { return Err(self.missing()) };
        let mut srcs = vec![self.handle(handle, &[Opaque::Surface])?];
        srcs.extend(self.coordinates(geometry, place, Ty::S32)?);
        Ok(srcs)
    }

    pub(super) fn suld(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let (bytewise, geometry, count, ty, boundary) = self.surface_mods(m)?;
        if !bytewise {
            return Err(self.unsupported("suld.p, which no GPU has, is not supported"));
        }
        let mut parts = self.parts()?;
        let Some(Part::List { elements, pred: None, .. }) = parts.next() else { return Err(self.missing()) };
        let srcs = self.surface_place(geometry, parts.next())?;
        if elements.len() != count || parts.next().is_some() {
            return Err(self.invalid("the vector does not have the instruction's length"));
        }
        let access = Access::Load { geometry, bytes: ty.bytes() as u8, count: count as u8, boundary };
        self.known(access)?;
        let mut dsts = Vec::new();
        for arg in elements {
            dsts.push(match arg {
                Arg::Word("_") => self.new_reg(ty.reg())?,
                Arg::Word(name) => self.wide_reg(name, ty)?,
                Arg::Reg(reg) if fits(ty, self.inst.graph.ty(reg)) => reg,
                _ => return Err(self.invalid("the destination is not a register")),
            });
        }
        self.emit(Op::Image { access, dsts, srcs })?;
        Ok(())
    }

    pub(super) fn sust(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let (bytewise, geometry, count, ty, boundary) = self.surface_mods(m)?;
        let mut parts = self.parts()?;
        let mut srcs = self.surface_place(geometry, parts.next())?;
        let Some(Part::List { elements, pred: None, .. }) = parts.next() else { return Err(self.missing()) };
        if elements.len() != count || parts.next().is_some() {
            return Err(self.invalid("the vector does not have the instruction's length"));
        }
        let (bytes, count) = (ty.bytes() as u8, count as u8);
        let access = if bytewise {
            Access::Store { geometry, bytes, count, boundary }
        } else if ty == Ty::B32 {
            Access::StoreFormatted { geometry, count, boundary }
        } else {
            return Err(self.invalid("a formatted store is of .b32"));
        };
        self.known(access)?;
        for arg in elements {
            srcs.push(self.wide_source(arg, ty)?);
        }
        self.emit(Op::Image { access, dsts: Vec::new(), srcs })?;
        Ok(())
    }

    pub(super) fn sured(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let op = m.find(|word| {
            Some(match word {
                "add" => Reduction::Add,
                "min" => Reduction::Min,
                "max" => Reduction::Max,
                "and" => Reduction::And,
                "or" => Reduction::Or,
                _ => return None,
            })
        });
        let op = op.ok_or_else(|| self.invalid("the instruction lacks its operation"))?;
        let (bytewise, geometry, count, ty, boundary) = self.surface_mods(m)?;
        let known = match (op, bytewise) {
            (Reduction::Add, true) => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64),
            (Reduction::Min | Reduction::Max, true) => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
            (Reduction::And | Reduction::Or, true) => ty == Ty::B32,
            (Reduction::Min | Reduction::Max, false) => matches!(ty, Ty::B32 | Ty::B64),
            (_, false) => ty == Ty::B32,
        };
        if !known || count != 1 {
            return Err(self.invalid("no reduction of this type"));
        }
        let mut parts = self.parts()?;
        let mut srcs = self.surface_place(geometry, parts.next())?;
        let value = match parts.next() {
            Some(Part::List { elements, pred: None, .. }) if elements.len() == 1 => elements[0],
            _ => return Err(self.missing()),
        };
        if parts.next().is_some() {
            return Err(self.missing());
        }
        srcs.push(self.source(value, ty)?);
        let (bytes, signed, formatted) = (ty.bytes() as u8, ty.is_signed(), !bytewise);
        let access = Access::Reduce { op, geometry, bytes, signed, formatted, boundary };
        self.known(access)?;
        self.emit(Op::Image { access, dsts: Vec::new(), srcs })?;
        Ok(())
    }

    /// `istypep`: whether a register holds what a reference of the module does.
    pub(super) fn istypep(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let sort = m.find(opaque).ok_or_else(|| self.invalid("the instruction lacks the kind of reference"))?;
        self.parse_args()?;
        self.count(2..=2)?;
        let dst = self.dst(0, Ty::Pred)?;
        if let Arg::Word(name) = self.arg(1)?
            && let Some(found) = self.reference(name)
        {
            self.emit(Op::Mov { ty: Ty::Pred, dst, src: Operand::Imm((found == sort).into()) })?;
            return Ok(());
        }
        let a = self.src(1, Ty::U64)?;
        let program = self.inst.program;
        let all: Vec<&'a str> =
            program.variables.iter().filter(|v| v.opaque == Some(sort)).map(|v| v.name.as_str()).collect();
        self.charge(all.len())?;
        let found = self.new_reg(RegTy::Pred)?;
        self.emit(Op::Mov { ty: Ty::Pred, dst: found, src: Operand::Imm(0) })?;
        for name in all {
            let Some(b) = self.handle_in(name)? else { continue };
            let combine = Some((BoolOp::Or, PredRef { reg: found, negate: false }));
            let (cmp, ty, ftz, dst2) = (Cmp::Eq, Ty::U64, false, None);
            self.emit(Op::Setp { cmp, ty, ftz, dst: found, dst2, a, b, combine })?;
        }
        self.emit(Op::Mov { ty: Ty::Pred, dst, src: Operand::Reg(found) })?;
        Ok(())
    }
}
