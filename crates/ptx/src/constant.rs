//! Constant expressions: `(1 << 4) | 3`, `-0f3F800000`, `.s64` and `.u64` casts. ISA manual, section 4.6.
//!
//! Integers are signed numbers of 64 bits until a cast, or a literal that fits no other way, makes them unsigned.

use crate::error::PtxError;
use crate::lexer::{Lexer, Token};

/// Deepest nesting of parentheses and signs: each level is one on this machine's stack.
const MOST_DEEP: u32 = 64;

/// A constant's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Constant {
    /// An integer as 64 bits.
    Int { bits: u64, signed: bool },
    /// A literal of an f32, negated or not: its bits.
    Single(u32),
    /// Any other floating-point value: bits of an f64.
    Double(u64),
}

/// A binary operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Shl,
    Shr,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

/// How tightly sums bind: operands of a product bind tighter.
const SUM: u8 = 9;

/// The operator at the next token: itself, how tightly it binds, and its length in characters.
fn operator(lexer: &mut Lexer<'_>) -> Result<Option<(Operator, u8, usize)>, PtxError> {
    // A percent sign begins a word: alone it is the operator.
    let (Token::Punct(_) | Token::Word("%")) = lexer.peek()? else { return Ok(None) };
    let rest = lexer.text().as_bytes().get(lexer.mark().pos..).unwrap_or_default();
    Ok(Some(match rest {
        [b'|', b'|', ..] => (Operator::Or, 1, 2),
        [b'&', b'&', ..] => (Operator::And, 2, 2),
        [b'|', ..] => (Operator::BitOr, 3, 1),
        [b'^', ..] => (Operator::BitXor, 4, 1),
        [b'&', ..] => (Operator::BitAnd, 5, 1),
        [b'=', b'=', ..] => (Operator::Equal, 6, 2),
        [b'!', b'=', ..] => (Operator::Unequal, 6, 2),
        [b'<', b'=', ..] => (Operator::LessEqual, 7, 2),
        [b'>', b'=', ..] => (Operator::GreaterEqual, 7, 2),
        [b'<', b'<', ..] => (Operator::Shl, 8, 2),
        [b'>', b'>', ..] => (Operator::Shr, 8, 2),
        [b'<', ..] => (Operator::Less, 7, 1),
        [b'>', ..] => (Operator::Greater, 7, 1),
        [b'+', ..] => (Operator::Add, SUM, 1),
        [b'-', ..] => (Operator::Sub, SUM, 1),
        [b'*', ..] => (Operator::Mul, SUM + 1, 1),
        [b'/', ..] => (Operator::Div, SUM + 1, 1),
        [b'%', ..] => (Operator::Rem, SUM + 1, 1),
        _ => return Ok(None),
    }))
}

/// The expression that begins with `first`, which has been read.
pub(crate) fn parse<'a>(lexer: &mut Lexer<'a>, first: Token<'a>) -> Result<Constant, PtxError> {
    ternary(lexer, first, 0)
}

/// The next term of a sum, an integer: what may follow `symbol +`.
pub(crate) fn term(lexer: &mut Lexer<'_>) -> Result<i64, PtxError> {
    let first = lexer.next()?;
    let value = binary(lexer, first, SUM + 1, 0)?;
    Ok(integer(lexer, value)?.0.cast_signed())
}

fn ternary<'a>(lexer: &mut Lexer<'a>, first: Token<'a>, depth: u32) -> Result<Constant, PtxError> {
    let condition = binary(lexer, first, 0, depth)?;
    if !lexer.eat(b'?')? {
        return Ok(condition);
    }
    let next = lexer.next()?;
    let yes = ternary(lexer, next, deeper(lexer, depth)?)?;
    lexer.expect(b':')?;
    let next = lexer.next()?;
    let no = ternary(lexer, next, deeper(lexer, depth)?)?;
    Ok(if integer(lexer, condition)?.0 != 0 { yes } else { no })
}

fn binary<'a>(lexer: &mut Lexer<'a>, first: Token<'a>, least: u8, depth: u32) -> Result<Constant, PtxError> {
    let mut left = unary(lexer, first, depth)?;
    while let Some((operator, binds, length)) = operator(lexer)? {
        if binds < least {
            break;
        }
        for _ in 0..length {
            lexer.next()?;
        }
        let next = lexer.next()?;
        let right = binary(lexer, next, binds + 1, deeper(lexer, depth)?)?;
        left = apply(lexer, operator, left, right)?;
    }
    Ok(left)
}

fn deeper(lexer: &Lexer<'_>, depth: u32) -> Result<u32, PtxError> {
    if depth == MOST_DEEP {
        return Err(PtxError::invalid(lexer.line(), "a constant expression is nested too deeply"));
    }
    Ok(depth + 1)
}

fn unary<'a>(lexer: &mut Lexer<'a>, first: Token<'a>, depth: u32) -> Result<Constant, PtxError> {
    let depth = deeper(lexer, depth)?;
    Ok(match first {
        Token::Int(bits) => Constant::Int { bits, signed: i64::try_from(bits).is_ok() },
        Token::Single(bits) => Constant::Single(bits),
        Token::Double(bits) => Constant::Double(bits),
        Token::Word("WARP_SZ") => Constant::Int { bits: 32, signed: true },
        Token::Punct(b'(') => {
            let next = lexer.next()?;
            if let Token::Word(cast @ (".s64" | ".u64")) = next {
                lexer.expect(b')')?;
                let next = lexer.next()?;
                let operand = unary(lexer, next, depth)?;
                return Ok(Constant::Int { bits: integer(lexer, operand)?.0, signed: cast == ".s64" });
            }
            let inner = ternary(lexer, next, depth)?;
            lexer.expect(b')')?;
            inner
        }
        Token::Punct(sign @ (b'-' | b'+' | b'~' | b'!')) => {
            let next = lexer.next()?;
            let operand = unary(lexer, next, depth)?;
            match (sign, operand) {
                (b'+', operand) => operand,
                (b'-', Constant::Single(bits)) => Constant::Single(bits ^ 1 << 31),
                (b'-', Constant::Double(bits)) => Constant::Double(bits ^ 1 << 63),
                (b'-', Constant::Int { bits, .. }) => Constant::Int { bits: bits.wrapping_neg(), signed: true },
                (b'~', operand) => {
                    let (bits, signed) = integer(lexer, operand)?;
                    Constant::Int { bits: !bits, signed }
                }
                (_, operand) => truth(integer(lexer, operand)?.0 == 0),
            }
        }
        other => return Err(lexer.unexpected(&other, "an operand")),
    })
}

fn truth(holds: bool) -> Constant {
    Constant::Int { bits: holds.into(), signed: true }
}

fn integer(lexer: &Lexer<'_>, value: Constant) -> Result<(u64, bool), PtxError> {
    match value {
        Constant::Int { bits, signed } => Ok((bits, signed)),
        _ => Err(PtxError::invalid(lexer.line(), "an integer was expected in a constant expression")),
    }
}

/// The value as an f64.
fn float(value: Constant) -> f64 {
    match value {
        Constant::Int { bits, signed: true } => bits.cast_signed() as f64,
        Constant::Int { bits, signed: false } => bits as f64,
        Constant::Single(bits) => f32::from_bits(bits).into(),
        Constant::Double(bits) => f64::from_bits(bits),
    }
}

fn apply(lexer: &Lexer<'_>, operator: Operator, a: Constant, b: Constant) -> Result<Constant, PtxError> {
    let (Constant::Int { bits: x, signed: sx }, Constant::Int { bits: y, signed: sy }) = (a, b) else {
        let (x, y) = (float(a), float(b));
        let value = match operator {
            Operator::Add => x + y,
            Operator::Sub => x - y,
            Operator::Mul => x * y,
            Operator::Div => x / y,
            Operator::Less => return Ok(truth(x < y)),
            Operator::LessEqual => return Ok(truth(x <= y)),
            Operator::Greater => return Ok(truth(x > y)),
            Operator::GreaterEqual => return Ok(truth(x >= y)),
            Operator::Equal => return Ok(truth(x == y)),
            Operator::Unequal => return Ok(truth(x != y)),
            _ => {
                return Err(PtxError::invalid(lexer.line(), "an operator for integers between floating-point numbers"));
            }
        };
        return Ok(Constant::Double(value.to_bits()));
    };
    let signed = sx && sy;
    // By value, so that comparison and division follow the sign.
    let wide = |bits: u64| if signed { i128::from(bits.cast_signed()) } else { i128::from(bits) };
    let (p, q) = (wide(x), wide(y));
    let shifted = |bits: Option<u64>| Constant::Int { bits: bits.unwrap_or(0), signed: sx };
    let value = match operator {
        Operator::Or => return Ok(truth(x != 0 || y != 0)),
        Operator::And => return Ok(truth(x != 0 && y != 0)),
        Operator::Equal => return Ok(truth(x == y)),
        Operator::Unequal => return Ok(truth(x != y)),
        Operator::Less => return Ok(truth(p < q)),
        Operator::LessEqual => return Ok(truth(p <= q)),
        Operator::Greater => return Ok(truth(p > q)),
        Operator::GreaterEqual => return Ok(truth(p >= q)),
        Operator::Shl => return Ok(shifted(u32::try_from(y).ok().and_then(|n| x.checked_shl(n)))),
        Operator::Shr if sx => return Ok(shifted(Some((x.cast_signed() >> y.min(63)).cast_unsigned()))),
        Operator::Shr => return Ok(shifted(u32::try_from(y).ok().and_then(|n| x.checked_shr(n)))),
        Operator::BitOr => p | q,
        Operator::BitXor => p ^ q,
        Operator::BitAnd => p & q,
        Operator::Add => p + q,
        Operator::Sub => p - q,
        Operator::Mul => x.wrapping_mul(y).into(),
        Operator::Div | Operator::Rem if q == 0 => {
            return Err(PtxError::invalid(lexer.line(), "division by zero in a constant expression"));
        }
        Operator::Div => p / q,
        Operator::Rem => p % q,
    };
    Ok(Constant::Int { bits: value as u64, signed })
}
