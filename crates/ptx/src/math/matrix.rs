//! Products of matrices that the lanes of a warp hold, element by element.

use super::{NAN_F16, NAN_F32, fp8, soft};
use crate::ir::{Fp8, Round};
use crate::launch::WARP;
use crate::matrix::{self, Arithmetic, Element, Product};

/// A register of all lanes.
pub type Row = [u64; WARP as usize];

/// Computes `d` from the registers of A, B and C: as many as [`Product::registers`] says, in its order; those of a sparse
/// product have its metadata behind them.
pub fn product(p: &Product, sources: &[Row], d: &mut [Row]) {
    let [of_a, of_b, of_c, _] = p.registers();
    let (a, rest) = sources.split_at(of_a);
    let (b, rest) = rest.split_at(of_b);
    let (c, metadata) = rest.split_at(of_c);
    let columns = &columns(p, metadata);
    match p.arithmetic {
        Arithmetic::Quads { a_row, b_row } => quads(p, a_row, b_row, a, b, c, d),
        Arithmetic::Float { round, .. } if p.a == Element::F64 => {
            let f64s = |bits: u64| bits;
            let (a, b) = (left(p, a, f64s), right(p, b, f64s));
            each(p, c, d, |i, j, c| sum_f64(round, terms(p, &a, &b, columns, i, j), c));
        }
        Arithmetic::Float { sat, .. } => {
            let (a, b) = (left(p, a, |bits| single(p.a, bits)), right(p, b, |bits| single(p.b, bits)));
            each(p, c, d, |i, j, c| {
                let sum = terms(p, &a, &b, columns, i, j).fold(single(p.c, c), |s, (a, b)| a.mul_add(b, s));
                result(p.d, sat, sum)
            });
        }
        Arithmetic::Integer { sat } => {
            let (a, b) = (left(p, a, |bits| integer(p.a, bits)), right(p, b, |bits| integer(p.b, bits)));
            each(p, c, d, |i, j, c| {
                let products = terms(p, &a, &b, columns, i, j).map(|(a, b)| a * b);
                let sum = i64::from((c as u32).cast_signed()) + products.sum::<i64>();
                let sum = if sat { sum.clamp(i32::MIN.into(), i32::MAX.into()) } else { sum };
                u64::from(sum as u32)
            });
        }
        Arithmetic::Bits { and } => {
            let (a, b) = (left(p, a, |bits| bits as u32), right(p, b, |bits| bits as u32));
            each(p, c, d, |i, j, c| {
                let ones = terms(p, &a, &b, columns, i, j).map(|(a, b)| if and { a & b } else { a ^ b });
                u64::from(ones.fold(c as u32, |sum, bits| sum.wrapping_add(bits.count_ones())))
            });
        }
    }
}

/// Elements that are looked at one by one: of single bits, 32 together.
fn units(of: Element) -> (u32, u32) {
    if of == Element::B1 { (1, 32) } else { (of.per(), of.bits()) }
}

/// Elements of a line of so many tiles of A or B.
fn length(p: &Product, tiles: u32) -> usize {
    (4 * tiles * units(p.a).0) as usize
}

/// Of a sparse product, the columns of the elements that are held, row after row.
fn columns(p: &Product, metadata: &[Row]) -> Option<Vec<u32>> {
    let metadata = metadata.first().filter(|_| p.sparse.is_some())?;
    let held = length(p, p.k_tiles_of_a()) as u32;
    Some((0..u32::from(p.m)).flat_map(|i| (0..held).map(move |at| p.column(metadata, i, at))).collect())
}

/// What is multiplied for row `i` and column `j` of D, in the order in which A's row is held.
fn terms<'a, T: Copy>(
    p: &Product,
    a: &'a [T],
    b: &'a [T],
    columns: &'a Option<Vec<u32>>,
    i: u32,
    j: u32,
) -> impl Iterator<Item = (T, T)> + use<'a, T> {
    let (held, length) = (length(p, p.k_tiles_of_a()), length(p, p.k_tiles()));
    let first = i as usize * held;
    let b = &b[j as usize * length..][..length];
    let at = move |l: usize| columns.as_ref().map_or(l, |columns| columns[first + l] as usize);
    a[first..][..held].iter().enumerate().map(move |(l, &a)| (a, b[at(l)]))
}

fn left<T>(p: &Product, registers: &[Row], decode: impl Fn(u64) -> T) -> Vec<T> {
    lines(p.a, p.m, matrix::paired(p.m), p.k_tiles_of_a(), registers, decode)
}

fn right<T>(p: &Product, registers: &[Row], decode: impl Fn(u64) -> T) -> Vec<T> {
    lines(p.b, p.n, 1, p.k_tiles(), registers, decode)
}

/// The elements of A or B, which has so many tiles along k, line after line.
fn lines<T>(of: Element, count: u16, paired: u32, tiles: u32, rows: &[Row], decode: impl Fn(u64) -> T) -> Vec<T> {
    let (per, bits) = units(of);
    let mask = u64::MAX >> (64 - bits);
    let mut out = Vec::with_capacity(usize::from(count) * (4 * tiles * per) as usize);
    for line in 0..u32::from(count) {
        for k in 0..4 * tiles {
            let register = matrix::factor_register(paired, tiles, line / 8, k / 4);
            let word = rows[register][(line % 8 * 4 + k % 4) as usize];
            out.extend((0..per).map(|part| decode(word >> (part * bits) & mask)));
        }
    }
    out
}

/// Gives every element of D its value, from its row, its column and that of C.
fn each(p: &Product, c: &[Row], d: &mut [Row], value: impl Fn(u32, u32, u64) -> u64) {
    for register in d.iter_mut() {
        register.fill(0);
    }
    for i in 0..u32::from(p.m) {
        for j in 0..u32::from(p.n) {
            let lane = (i % 8 * 4 + j % 8 / 2) as usize;
            let place = |of| matrix::sum_register(of, p.m, p.n, i / 8, j / 8, j % 2);
            let (from, part) = place(p.c);
            let old = element(p.c, c[from][lane], part);
            let (to, part) = place(p.d);
            d[to][lane] |= value(i, j, old) << (part * p.d.bits());
        }
    }
}

/// An element of a register.
fn element(of: Element, register: u64, part: u32) -> u64 {
    register >> (part * of.bits()) & (u64::MAX >> (64 - of.bits()))
}

/// An element as f32, exactly.
fn single(of: Element, bits: u64) -> f32 {
    match of {
        Element::F16 => half::f16::from_bits(bits as u16).to_f32(),
        Element::BF16 => f32::from_bits((bits as u32) << 16),
        Element::TF32 => f32::from_bits(bits as u32 & !0x1fff),
        Element::E4M3 => half::f16::from_bits(fp8::unpack(Fp8::E4M3, false, bits) as u16).to_f32(),
        Element::E5M2 => half::f16::from_bits(fp8::unpack(Fp8::E5M2, false, bits) as u16).to_f32(),
        _ => f32::from_bits(bits as u32),
    }
}

/// A sum as an element of D.
fn result(of: Element, sat: bool, sum: f32) -> u64 {
    if of == Element::F16 {
        return match half::f16::from_f32(sum) {
            h if h.is_nan() => if sat { 0 } else { NAN_F16 }.into(),
            h if sat => h.clamp(half::f16::MIN, half::f16::MAX).to_bits().into(),
            h => h.to_bits().into(),
        };
    }
    match sum {
        s if s.is_nan() => if sat { 0 } else { NAN_F32 }.into(),
        s if sat => s.clamp(f32::MIN, f32::MAX).to_bits().into(),
        s => s.to_bits().into(),
    }
}

fn sum_f64(round: Round, terms: impl Iterator<Item = (u64, u64)>, c: u64) -> u64 {
    if round == Round::Rn {
        let sum = terms.fold(f64::from_bits(c), |s, (a, b)| f64::from_bits(a).mul_add(f64::from_bits(b), s));
        return soft::F64.canonical(sum.to_bits());
    }
    soft::F64.canonical(terms.fold(c, |s, (a, b)| soft::F64.fma(a, b, s, round)))
}

fn integer(of: Element, bits: u64) -> i64 {
    match of {
        Element::S8 => i64::from((bits as u8).cast_signed()),
        Element::S4 => i64::from(((bits as u8) << 4).cast_signed() >> 4),
        _ => bits.cast_signed(),
    }
}

/// `m8n8k4` in f16: the lanes 4q … 4q + 3 and those 16 above them multiply matrices of their own.
fn quads(p: &Product, a_row: bool, b_row: bool, a: &[Row], b: &[Row], c: &[Row], d: &mut [Row]) {
    // Element `part` of the four that line `line` of eight holds where it is held in lines, or else that all lines hold.
    let half = |rows: &[Row], lane: usize, part: usize| {
        single(Element::F16, element(Element::F16, rows[part / 2][lane], part as u32 % 2))
    };
    for register in d.iter_mut() {
        register.fill(0);
    }
    for quad in 0..4 {
        // The lane of four lines, and the one of the others.
        let lane = |line: usize| 4 * quad + 16 * (line / 4) + line % 4;
        let at = |rows: &[Row], in_lines: bool, line: usize, k: usize| {
            if in_lines { half(rows, lane(line), k) } else { half(rows, lane(line / 4 * 4 + k), line % 4) }
        };
        for i in 0..8 {
            for j in 0..8 {
                // In f32 a lane has every other pair of rows, and of columns.
                let place = |of: Element| match of {
                    Element::F16 => (lane(i), j / 2, j % 2),
                    _ => (lane(i / 4 * 4 + i % 2 + j % 4 / 2 * 2), i % 4 / 2 * 2 + j / 4 * 4 + j % 2, 0),
                };
                let (from, register, part) = place(p.c);
                let mut sum = single(p.c, element(p.c, c[register][from], part as u32));
                for k in 0..4 {
                    // B is held in columns as A in rows.
                    sum = at(a, a_row, i, k).mul_add(at(b, !b_row, j, k), sum);
                }
                let (to, register, part) = place(p.d);
                d[register][to] |= result(p.d, false, sum) << (part as u32 * p.d.bits());
            }
        }
    }
}

/// A tile of 8 × 8 elements of 16 bits, its lines as columns.
#[must_use]
pub fn transposed(tile: &Row) -> Row {
    std::array::from_fn(|lane| {
        let (line, t) = (lane / 4, lane % 4);
        let at = |column: usize| tile[column * 4 + line / 2] >> (line % 2 * 16) & 0xffff;
        at(2 * t) | at(2 * t + 1) << 16
    })
}
