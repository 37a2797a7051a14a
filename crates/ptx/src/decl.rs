//! Declarations of variables, registers and parameters: the part of the grammar that modules and bodies share.

use crate::constant::{self, Constant};
use crate::error::PtxError;
use crate::ir::RegTy;
use crate::lexer::{Lexer, Mark, Token, clip};

/// Where a declared thing lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeclSpace {
    Reg,
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// Who sees a module-scope symbol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Linkage {
    /// This module only.
    #[default]
    Internal,
    /// `.visible`.
    Visible,
    /// `.extern`: defined elsewhere (for shared memory of unknown size: the dynamic part).
    Extern,
    /// `.weak`.
    Weak,
    /// `.common`.
    Common,
}

impl Linkage {
    /// Whether a program that is loaded as it is has memory for a variable of so many bytes: for an extern one too, which nobody else can
    /// define then, if its size is known. The rest are arrays of unknown length: dynamic shared memory, or undefined.
    ///
    /// Source: ptxas 13.5, by trial ("ignoring extern qualifier").
    pub(crate) fn defines(self, bytes: u64) -> bool {
        self != Linkage::Extern || bytes > 0
    }
}

/// What is written before the names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) linkage: Linkage,
    pub(crate) space: Option<DeclSpace>,
    pub(crate) elem: Option<Elem>,
    /// `.v2`, `.v4`, or 1.
    pub(crate) vector: u32,
    align: Option<u32>,
    pub(crate) managed: bool,
}

/// Type of a variable's element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Elem {
    /// So many bytes; `Float` initialisers are converted to this width.
    Scalar { bytes: u32, float: bool },
    /// A predicate register.
    Pred,
    /// `.texref`, `.samplerref`, `.surfref`: a handle, as the driver leaves it there.
    Opaque(Opaque),
}

/// What a reference refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opaque {
    /// `.texref`.
    Texture,
    /// `.samplerref`.
    Sampler,
    /// `.surfref`.
    Surface,
}

impl Elem {
    /// Bytes of one element.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Elem::Scalar { bytes, .. } => bytes,
            Elem::Pred => 1,
            Elem::Opaque(_) => 8,
        }
    }

    /// The class of a register of this type.
    pub(crate) fn reg(self) -> Option<RegTy> {
        match self {
            Elem::Pred => Some(RegTy::Pred),
            Elem::Scalar { bytes, .. } => Some(match bytes {
                1 | 2 => RegTy::B16,
                4 => RegTy::B32,
                8 => RegTy::B64,
                _ => RegTy::B128,
            }),
            Elem::Opaque(_) => None,
        }
    }

    fn parse(word: &str) -> Option<Elem> {
        let scalar = |bytes, float| Some(Elem::Scalar { bytes, float });
        match word {
            "pred" => Some(Elem::Pred),
            "b8" | "u8" | "s8" => scalar(1, false),
            "b16" | "u16" | "s16" => scalar(2, false),
            "f16" | "bf16" => scalar(2, true),
            "b32" | "u32" | "s32" | "f16x2" | "bf16x2" | "tf32" => scalar(4, false),
            "f32" => scalar(4, true),
            "b64" | "u64" | "s64" | "f32x2" => scalar(8, false),
            "f64" => scalar(8, true),
            "b128" => scalar(16, false),
            "texref" => Some(Elem::Opaque(Opaque::Texture)),
            "samplerref" => Some(Elem::Opaque(Opaque::Sampler)),
            "surfref" => Some(Elem::Opaque(Opaque::Surface)),
            _ => None,
        }
    }
}

/// One declared name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declarator<'a> {
    pub(crate) name: &'a str,
    /// Where the name stands; tells declarations apart.
    pub(crate) mark: Mark,
    /// `%r<100>`: how many.
    pub(crate) range: Option<u32>,
    /// Elements, all dimensions multiplied; 0 for an array of unknown length.
    pub(crate) count: u64,
    /// Elements under one index of the first dimension.
    pub(crate) inner: [u64; MAX_DIMS],
    /// How many dimensions are written.
    pub(crate) dims: usize,
}

/// Most array dimensions; keeps initialiser nesting, and so recursion, bounded.
pub(crate) const MAX_DIMS: usize = 8;
/// Most bytes of a variable: more than any GPU has, and far from overflowing sums of sizes.
pub(crate) const MAX_VARIABLE_BYTES: u64 = 1 << 40;
/// Largest alignment: a page is plenty, and layout sums stay far from overflow.
pub(crate) const MAX_ALIGN: u32 = 1 << 16;

impl Head {
    /// Alignment in force: as written, or natural.
    pub(crate) fn align(&self) -> u32 {
        let natural = self.elem.map_or(1, |e| e.bytes() * self.vector);
        self.align.unwrap_or(natural).max(1)
    }

    /// Bytes of one element, vectors counted whole.
    pub(crate) fn elem_bytes(&self) -> u64 {
        u64::from(self.elem.map_or(0, Elem::bytes) * self.vector)
    }

    /// Bytes that an index of `d` counts, if that is an array: of a scalar, in vectors too.
    pub(crate) fn array_element(&self, d: &Declarator<'_>) -> Option<u32> {
        self.elem.filter(|_| d.dims > 0).map(Elem::bytes)
    }

    /// Bytes of `d` under this head; 0 for an array of unknown length.
    pub(crate) fn size(&self, d: &Declarator<'_>, line: u32) -> Result<u64, PtxError> {
        let size = d.count.checked_mul(self.elem_bytes()).filter(|s| *s <= MAX_VARIABLE_BYTES);
        size.ok_or_else(|| PtxError::invalid(line, format!("variable '{}' is too large", clip(d.name))))
    }

    /// Parses everything up to the first name. `first` is the word already read.
    pub(crate) fn parse<'a>(lexer: &mut Lexer<'a>, first: &'a str) -> Result<Head, PtxError> {
        let mut head =
            Head { linkage: Linkage::Internal, space: None, elem: None, vector: 1, align: None, managed: false };
        let mut word = first;
        loop {
            for piece in word.split('.').skip(1) {
                head.piece(lexer, piece)?;
            }
            match lexer.peek()? {
                Token::Word(w) if w.starts_with('.') => {
                    word = w;
                    lexer.next()?;
                }
                _ => return Ok(head),
            }
        }
    }

    fn piece(&mut self, lexer: &mut Lexer<'_>, piece: &str) -> Result<(), PtxError> {
        if let Some(elem) = Elem::parse(piece) {
            self.elem = Some(elem);
            return Ok(());
        }
        match piece {
            "visible" => self.linkage = Linkage::Visible,
            "extern" => self.linkage = Linkage::Extern,
            "weak" => self.linkage = Linkage::Weak,
            "common" => self.linkage = Linkage::Common,
            "reg" => self.space = Some(DeclSpace::Reg),
            // In `.param .u64 .ptr .global .align 16 p` the second space is what the pointer points to.
            "global" if self.space.is_none() => self.space = Some(DeclSpace::Global),
            "const" if self.space.is_none() => self.space = Some(DeclSpace::Const),
            "shared" if self.space.is_none() => self.space = Some(DeclSpace::Shared),
            "local" if self.space.is_none() => self.space = Some(DeclSpace::Local),
            "param" if self.space.is_none() => self.space = Some(DeclSpace::Param),
            "global" | "const" | "shared" | "local" | "param" if self.space == Some(DeclSpace::Param) => {}
            "ptr" if self.space == Some(DeclSpace::Param) => {
                // What follows describes the memory pointed to, not the parameter.
                return Self::pointee(lexer);
            }
            "v2" => self.vector = 2,
            "v4" => self.vector = 4,
            "v8" => self.vector = 8,
            "align" => {
                let value = lexer.int("an alignment")?;
                self.align = Some(check_align(value, lexer.line())?);
            }
            "attribute" => {
                lexer.expect(b'(')?;
                loop {
                    match lexer.next()? {
                        Token::Punct(b')') => break,
                        Token::Word(".managed") => self.managed = true,
                        Token::End => return Err(PtxError::invalid(lexer.line(), "syntax error: end of text")),
                        _ => {}
                    }
                }
            }
            _ => {
                let text = format!("syntax error: unknown directive '.{}'", clip(piece));
                return Err(PtxError::invalid(lexer.line(), text));
            }
        }
        Ok(())
    }

    fn pointee(lexer: &mut Lexer<'_>) -> Result<(), PtxError> {
        while let Token::Word(w) = lexer.peek()? {
            match w {
                ".global" | ".const" | ".shared" | ".local" | ".param" => {
                    lexer.next()?;
                }
                ".align" => {
                    lexer.next()?;
                    let value = lexer.int("an alignment")?;
                    check_align(value, lexer.line())?;
                }
                _ => break,
            }
        }
        Ok(())
    }
}

fn check_align(value: u64, line: u32) -> Result<u32, PtxError> {
    u32::try_from(value)
        .ok()
        .filter(|v| v.is_power_of_two() && *v <= MAX_ALIGN)
        .ok_or_else(|| PtxError::invalid(line, format!("alignment {value} is not a power of two up to {MAX_ALIGN}")))
}

impl<'a> Declarator<'a> {
    /// Parses a name with its range or dimensions.
    pub(crate) fn parse(lexer: &mut Lexer<'a>) -> Result<Declarator<'a>, PtxError> {
        let name = lexer.word("a name")?;
        let mut d = Declarator { name, mark: lexer.start(), range: None, count: 1, inner: [1; MAX_DIMS], dims: 0 };
        if lexer.eat(b'<')? {
            let n = lexer.int("a number of registers")?;
            let range = u32::try_from(n).ok();
            d.range = Some(range.ok_or_else(|| PtxError::invalid(lexer.line(), "too many registers"))?);
            lexer.expect(b'>')?;
            return Ok(d);
        }
        let mut lengths = [1u64; MAX_DIMS];
        let mut open = false;
        while lexer.eat(b'[')? {
            let length = match lexer.next()? {
                // Only the first dimension may be left open: its length comes from elsewhere.
                Token::Punct(b']') if d.dims == 0 => {
                    open = true;
                    0
                }
                Token::Punct(b']') => return Err(PtxError::invalid(lexer.line(), "an array length is missing")),
                first => {
                    let Constant::Int { bits, .. } = constant::parse(lexer, first)? else {
                        return Err(PtxError::invalid(lexer.line(), "an array length is an integer"));
                    };
                    lexer.expect(b']')?;
                    bits
                }
            };
            let Some(slot) = lengths.get_mut(d.dims) else {
                return Err(PtxError::invalid(lexer.line(), format!("more than {MAX_DIMS} array dimensions")));
            };
            *slot = length;
            d.dims += 1;
        }
        let too_large = || PtxError::invalid(lexer.line(), format!("variable '{}' is too large", clip(name)));
        let mut product = 1u64;
        for i in (0..d.dims).rev() {
            d.inner[i] = product;
            product = product.checked_mul(lengths[i]).filter(|p| *p <= MAX_VARIABLE_BYTES).ok_or_else(too_large)?;
        }
        d.count = if open { 0 } else { product };
        Ok(d)
    }
}
