//! C's `printf` for records that kernels wrote.
//!
//! A record holds the format string, one 64-bit slot per argument (`*` widths too), and copies of string arguments.
//! Kernels write records, so nothing in one is trusted: what does not fit is left out.

/// Widths and precisions are cut to this: a kernel can ask for a line of 2 GB in a few bytes.
const MOST_PADDING: usize = 4096;
/// Most bytes that one drain may print: as many small records can each ask for the most padding.
const MOST_OUTPUT: usize = 64 << 20;

/// Formats all records of a FIFO.
pub(crate) fn format_records(mut records: &[u8], out: &mut Vec<u8>) {
    while let Some(head) = records.first_chunk::<8>() {
        let [a, b, c, d, e, f, g, h] = *head;
        let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        let format_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        let Some(record) = records.get(..bytes) else { return };
        if bytes < 8 {
            return;
        }
        format_record(record, format_bytes, out);
        if out.len() > MOST_OUTPUT {
            return;
        }
        let next = bytes.next_multiple_of(8);
        records = records.get(next..).unwrap_or(&[]);
    }
}

fn format_record(record: &[u8], format_bytes: usize, out: &mut Vec<u8>) {
    let Some(format) = format_bytes.checked_add(8).and_then(|end| record.get(8..end)) else { return };
    let mut args = Args { record, at: 8 + format_bytes.next_multiple_of(8) };
    let mut rest = format;
    while let Some(at) = rest.iter().position(|&byte| byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        match Spec::parse(&mut rest, &mut args) {
            Some(spec) => spec.write(&mut args, out),
            // An unknown conversion: the rest means nothing.
            None => return,
        }
    }
    out.extend_from_slice(rest);
}

struct Args<'a> {
    record: &'a [u8],
    at: usize,
}

impl Args<'_> {
    fn next(&mut self) -> u64 {
        let slot = self.record.get(self.at..).and_then(|rest| rest.first_chunk::<8>());
        self.at += 8;
        slot.map_or(0, |slot| u64::from_le_bytes(*slot))
    }

    fn string(&self, offset: u64) -> &[u8] {
        let from = usize::try_from(offset).ok().filter(|&at| at >= 8).and_then(|at| self.record.get(at..));
        let text = from.unwrap_or(b"(null)");
        &text[..text.iter().position(|&byte| byte == 0).unwrap_or(text.len())]
    }
}

/// A conversion specification.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Bits of an integer argument.
    bits: u32,
    conversion: u8,
}

fn take(rest: &mut &[u8]) -> Option<u8> {
    let (&first, others) = rest.split_first()?;
    *rest = others;
    Some(first)
}

fn number(rest: &mut &[u8]) -> usize {
    let mut value = 0usize;
    while let Some(digit) = rest.first().filter(|byte| byte.is_ascii_digit()) {
        value = value.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
        *rest = &rest[1..];
    }
    value.min(MOST_PADDING)
}

impl Spec {
    fn parse(rest: &mut &[u8], args: &mut Args<'_>) -> Option<Spec> {
        let mut spec = Spec { bits: 32, ..Spec::default() };
        loop {
            match rest.first()? {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            *rest = &rest[1..];
        }
        if rest.first() == Some(&b'*') {
            *rest = &rest[1..];
            let width = args.next() as i32;
            spec.left |= width < 0;
            spec.width = (width.unsigned_abs() as usize).min(MOST_PADDING);
        } else {
            spec.width = number(rest);
        }
        if rest.first() == Some(&b'.') {
            *rest = &rest[1..];
            if rest.first() == Some(&b'*') {
                *rest = &rest[1..];
                spec.precision = usize::try_from(args.next() as i32).ok().map(|most| most.min(MOST_PADDING));
            } else {
                spec.precision = Some(number(rest));
            }
        }
        loop {
            match take(rest)? {
                b'h' => spec.bits = if spec.bits == 16 { 8 } else { 16 },
                b'l' | b'j' | b'z' | b't' | b'L' | b'q' => spec.bits = 64,
                conversion => {
                    spec.conversion = conversion;
                    return b"diouxXcsfFeEgGaApn%".contains(&conversion).then_some(spec);
                }
            }
        }
    }

    fn write(&self, args: &mut Args<'_>, out: &mut Vec<u8>) {
        match self.conversion {
            b'%' => out.push(b'%'),
            b'd' | b'i' => {
                let shift = 64 - self.bits;
                let value = (args.next() << shift).cast_signed() >> shift;
                self.integer(value < 0, value.unsigned_abs(), out);
            }
            b'u' | b'o' | b'x' | b'X' => {
                let shift = 64 - self.bits;
                self.integer(false, args.next() << shift >> shift, out);
            }
            b'p' => {
                let text = format!("{:#x}", args.next());
                self.pad(b"", text.as_bytes(), false, out);
            }
            b'c' => self.pad(b"", &[args.next() as u8], false, out),
            b's' => {
                let offset = args.next();
                let text = args.string(offset);
                let most = self.precision.unwrap_or(text.len()).min(text.len());
                self.pad(b"", &text[..most], false, out);
            }
            // Storing the count would need the kernel's memory.
            b'n' => drop(args.next()),
            _ => self.float(f64::from_bits(args.next()), out),
        }
    }

    /// Writes prefix and body in the field's width; zeros go between them.
    fn pad(&self, prefix: &[u8], body: &[u8], zeros: bool, out: &mut Vec<u8>) {
        let fill = self.width.saturating_sub(prefix.len() + body.len());
        let spaces = |out: &mut Vec<u8>| out.resize(out.len() + fill, b' ');
        let zeros = zeros && self.zero && !self.left;
        if !self.left && !zeros {
            spaces(out);
        }
        out.extend_from_slice(prefix);
        if zeros {
            out.resize(out.len() + fill, b'0');
        }
        out.extend_from_slice(body);
        if self.left {
            spaces(out);
        }
    }

    fn sign(&self, negative: bool) -> &'static [u8] {
        match (negative, self.plus, self.space) {
            (true, _, _) => b"-",
            (false, true, _) => b"+",
            (false, false, true) => b" ",
            _ => b"",
        }
    }

    fn integer(&self, negative: bool, value: u64, out: &mut Vec<u8>) {
        let signed = matches!(self.conversion, b'd' | b'i');
        let mut digits = match self.conversion {
            b'o' => format!("{value:o}"),
            b'x' => format!("{value:x}"),
            b'X' => format!("{value:X}"),
            _ => value.to_string(),
        };
        if value == 0 && self.precision == Some(0) {
            digits.clear();
        }
        let least = self.precision.unwrap_or(1);
        if digits.len() < least {
            digits.insert_str(0, &"0".repeat(least - digits.len()));
        }
        if self.conversion == b'o' && self.alternate && !digits.starts_with('0') {
            digits.insert(0, '0');
        }
        let prefix: &[u8] = match self.conversion {
            b'x' if self.alternate && value != 0 => b"0x",
            b'X' if self.alternate && value != 0 => b"0X",
            _ if signed => self.sign(negative),
            _ => b"",
        };
        self.pad(prefix, digits.as_bytes(), self.precision.is_none(), out);
    }

    fn float(&self, value: f64, out: &mut Vec<u8>) {
        let upper = self.conversion.is_ascii_uppercase();
        let sign = self.sign(value.is_sign_negative());
        if !value.is_finite() {
            let text = match (value.is_nan(), upper) {
                (true, false) => "nan",
                (true, true) => "NAN",
                (false, false) => "inf",
                (false, true) => "INF",
            };
            return self.pad(sign, text.as_bytes(), false, out);
        }
        let value = value.abs();
        let mut prefix = sign.to_vec();
        let mut text = match self.conversion.to_ascii_lowercase() {
            b'f' => self.fixed(value, self.precision.unwrap_or(6)),
            b'e' => self.exponent(value, self.precision.unwrap_or(6)),
            b'g' => self.general(value),
            _ => {
                prefix.extend_from_slice(if upper { b"0X" } else { b"0x" });
                self.hexadecimal(value)
            }
        };
        if upper {
            text.make_ascii_uppercase();
        }
        self.pad(&prefix, text.as_bytes(), true, out);
    }

    fn fixed(&self, value: f64, precision: usize) -> String {
        let mut text = format!("{value:.precision$}");
        if precision == 0 && self.alternate {
            text.push('.');
        }
        text
    }

    fn exponent(&self, value: f64, precision: usize) -> String {
        let text = format!("{value:.precision$e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let point = if precision == 0 && self.alternate { "." } else { "" };
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}{point}e{sign}{:02}", exponent.abs())
    }

    fn general(&self, value: f64) -> String {
        let precision = self.precision.unwrap_or(6).max(1);
        // The exponent counts after rounding.
        let rounded = format!("{value:.*e}", precision - 1);
        let exponent: i32 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
        let (digits, tail) = if exponent < -4 || exponent >= precision as i32 {
            let text = self.exponent(value, precision - 1);
            let at = text.find('e').unwrap_or(text.len());
            (text[..at].to_string(), text[at..].to_string())
        } else {
            let after = (precision as i32 - 1 - exponent).unsigned_abs() as usize;
            (self.fixed(value, after), String::new())
        };
        let digits = if self.alternate || !digits.contains('.') {
            digits
        } else {
            digits.trim_end_matches('0').trim_end_matches('.').to_string()
        };
        digits + &tail
    }

    fn hexadecimal(&self, value: f64) -> String {
        let bits = value.to_bits();
        let fraction = bits & ((1 << 52) - 1);
        let biased = (bits >> 52) as i32;
        let (mut lead, exponent) = match biased {
            0 if fraction == 0 => (0, 0),
            0 => (0, -1022),
            _ => (1, biased - 1023),
        };
        let mut digits = fraction;
        let mut count = 13;
        match self.precision {
            Some(precision) if precision < 13 => {
                let shift = 52 - 4 * precision as u32;
                let all = (u64::from(lead == 1) << 52) | fraction;
                let (kept, lost, half) = (all >> shift, all & ((1 << shift) - 1), 1u64 << (shift - 1));
                let up = lost > half || (lost == half && kept & 1 == 1);
                let kept = kept + u64::from(up);
                lead = kept >> (4 * precision as u32);
                digits = kept & ((1 << (4 * precision as u32)) - 1);
                count = precision;
            }
            Some(_) => {}
            None => {
                while count > 0 && digits & 15 == 0 {
                    digits >>= 4;
                    count -= 1;
                }
            }
        }
        let mut text = lead.to_string();
        let wanted = self.precision.unwrap_or(count);
        if wanted > 0 || self.alternate {
            text.push('.');
        }
        if count > 0 {
            text.push_str(&format!("{digits:0count$x}"));
        }
        text.push_str(&"0".repeat(wanted.saturating_sub(count)));
        text + &format!("p{exponent:+}")
    }
}

#[cfg(test)]
mod tests;
