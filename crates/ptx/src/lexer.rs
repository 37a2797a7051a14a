//! Tokens of PTX text.
//!
//! An opcode with its modifiers (`ld.global.v4.f32`), a directive (`.shared`), a register (`%rd12`), a special register
//! (`%tid.x`) and a label are each one [`Token::Word`]: PTX separates them by white space, and whoever expects one knows
//! how to split it at its dots.

use crate::error::PtxError;

/// A token; borrowed from the text.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Token<'a> {
    /// Letters, digits, `_ $ % .` and `::`, not starting with a digit.
    Word(&'a str),
    /// An integer literal.
    Int(u64),
    /// A decimal floating-point literal, or `0d` and 16 hexadecimal digits; the bits of an f64.
    Double(u64),
    /// `0f` and 8 hexadecimal digits; the bits of an f32.
    Single(u32),
    /// A string literal without its quotes, escapes untouched.
    Str(&'a str),
    /// Any other character.
    Punct(u8),
    /// End of text.
    End,
}

impl Token<'_> {
    /// How the token is named in messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Token::Word(w) => format!("'{}'", clip(w)),
            Token::Int(v) => format!("'{v}'"),
            Token::Double(bits) => format!("'{}'", f64::from_bits(*bits)),
            Token::Single(bits) => format!("'{}'", f32::from_bits(*bits)),
            Token::Str(_) => "a string".into(),
            Token::Punct(c) => format!("'{}'", char::from(*c).escape_default()),
            Token::End => "end of text".into(),
        }
    }
}

/// Limits how much of a tenant's text a message repeats.
pub(crate) fn clip(text: &str) -> &str {
    const MOST: usize = 160;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// Character classes.
const WORD_START: u8 = 1;
const WORD: u8 = 2;
const SPACE: u8 = 4;
/// Interesting to [`Lexer::skip_braces`].
const STOP: u8 = 8;

static CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let b = c as u8;
        if b.is_ascii_alphabetic() || matches!(b, b'_' | b'$' | b'%' | b'.') {
            table[c] |= WORD_START | WORD;
        }
        if b.is_ascii_digit() {
            table[c] |= WORD;
        }
        if matches!(b, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c) {
            table[c] |= SPACE;
        }
        if matches!(b, b'{' | b'}' | b'"' | b'/' | b'\n') {
            table[c] |= STOP;
        }
        c += 1;
    }
    table
};

/// A position in the text to come back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// Byte offset.
    pub(crate) pos: usize,
    /// Line there, from 1.
    pub(crate) line: u32,
}

/// Reads tokens, one of lookahead.
#[derive(Clone, Debug)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    pos: usize,
    line: u32,
    /// Start of the last token read, and its line.
    start: Mark,
    peeked: Option<(Token<'a>, Mark)>,
}

impl<'a> Lexer<'a> {
    /// Starts at a mark of the same text.
    pub(crate) fn at(text: &'a str, mark: Mark) -> Lexer<'a> {
        Lexer { text, pos: mark.pos, line: mark.line, start: mark, peeked: None }
    }

    /// Starts at the beginning.
    pub(crate) fn new(text: &'a str) -> Lexer<'a> {
        Lexer::at(text, Mark { pos: 0, line: 1 })
    }

    /// The whole text.
    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Line of the last token read.
    pub(crate) fn line(&self) -> u32 {
        self.start.line
    }

    /// Where the last token read begins.
    pub(crate) fn start(&self) -> Mark {
        self.start
    }

    /// Where the next token is looked for.
    pub(crate) fn mark(&self) -> Mark {
        match self.peeked {
            Some((_, mark)) => mark,
            None => Mark { pos: self.pos, line: self.line },
        }
    }

    /// The next token, left in place.
    pub(crate) fn peek(&mut self) -> Result<Token<'a>, PtxError> {
        if let Some((token, _)) = self.peeked {
            return Ok(token);
        }
        let last = self.start;
        let token = self.scan()?;
        self.peeked = Some((token, self.start));
        self.start = last;
        Ok(token)
    }

    /// The next token.
    pub(crate) fn next(&mut self) -> Result<Token<'a>, PtxError> {
        if let Some((token, mark)) = self.peeked.take() {
            self.start = mark;
            return Ok(token);
        }
        self.scan()
    }

    /// Takes the next token if it is this character.
    pub(crate) fn eat(&mut self, punct: u8) -> Result<bool, PtxError> {
        if self.peek()? == Token::Punct(punct) {
            self.next()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Takes the next token, which must be this character.
    pub(crate) fn expect(&mut self, punct: u8) -> Result<(), PtxError> {
        match self.next()? {
            Token::Punct(c) if c == punct => Ok(()),
            other => Err(self.unexpected(&other, &format!("'{}'", char::from(punct)))),
        }
    }

    /// Takes the next token, which must be a word.
    pub(crate) fn word(&mut self, wanted: &str) -> Result<&'a str, PtxError> {
        match self.next()? {
            Token::Word(w) => Ok(w),
            other => Err(self.unexpected(&other, wanted)),
        }
    }

    /// Takes the next token, which must be an integer.
    pub(crate) fn int(&mut self, wanted: &str) -> Result<u64, PtxError> {
        match self.next()? {
            Token::Int(v) => Ok(v),
            other => Err(self.unexpected(&other, wanted)),
        }
    }

    /// The error that `found`, the token just read, is not `wanted`.
    pub(crate) fn unexpected(&self, found: &Token<'_>, wanted: &str) -> PtxError {
        PtxError::invalid(self.line(), format!("syntax error: {} where {wanted} was expected", found.describe()))
    }

    /// Right after a token was read: drops the rest of its line (`.loc`, `.file` and the like).
    pub(crate) fn skip_line(&mut self) {
        debug_assert!(self.peeked.is_none(), "a token of the next line may have been read");
        let bytes = self.text.as_bytes();
        while self.pos < bytes.len() && bytes[self.pos] != b'\n' {
            self.pos += 1;
        }
    }

    /// After an opening brace: drops everything up to and including its closing one.
    pub(crate) fn skip_braces(&mut self) -> Result<(), PtxError> {
        if let Some((_, mark)) = self.peeked.take() {
            self.pos = mark.pos;
            self.line = mark.line;
        }
        let open = self.line();
        let bytes = self.text.as_bytes();
        let mut depth = 1u32;
        loop {
            while self.pos < bytes.len() && CLASS[usize::from(bytes[self.pos])] & STOP == 0 {
                self.pos += 1;
            }
            let Some(&c) = bytes.get(self.pos) else {
                return Err(PtxError::invalid(open, "syntax error: '{' is never closed"));
            };
            match c {
                b'\n' => {
                    self.line += 1;
                    self.pos += 1;
                }
                b'{' => {
                    depth += 1;
                    self.pos += 1;
                }
                b'}' => {
                    depth -= 1;
                    self.pos += 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                b'"' => {
                    self.string()?;
                }
                _ => {
                    if !self.comment() {
                        self.pos += 1;
                    }
                }
            }
        }
    }

    /// At a slash: skips a comment if there is one. A comment that is never closed reaches to the end.
    fn comment(&mut self) -> bool {
        let bytes = self.text.as_bytes();
        match bytes.get(self.pos + 1) {
            Some(b'/') => {
                while self.pos < bytes.len() && bytes[self.pos] != b'\n' {
                    self.pos += 1;
                }
                true
            }
            Some(b'*') => {
                self.pos += 2;
                while self.pos < bytes.len() {
                    match bytes[self.pos] {
                        b'\n' => self.line += 1,
                        b'*' if bytes.get(self.pos + 1) == Some(&b'/') => {
                            self.pos += 2;
                            return true;
                        }
                        _ => {}
                    }
                    self.pos += 1;
                }
                true
            }
            _ => false,
        }
    }

    /// At a quote.
    fn string(&mut self) -> Result<&'a str, PtxError> {
        let bytes = self.text.as_bytes();
        let open = self.line;
        self.pos += 1;
        let from = self.pos;
        while let Some(&c) = bytes.get(self.pos) {
            match c {
                b'"' => {
                    let inner = &self.text[from..self.pos];
                    self.pos += 1;
                    return Ok(inner);
                }
                b'\\'
                    if self.pos + 1 < bytes.len() && bytes[self.pos + 1].is_ascii() && bytes[self.pos + 1] != b'\n' =>
                {
                    self.pos += 1;
                }
                b'\n' => self.line += 1,
                _ => {}
            }
            self.pos += 1;
        }
        Err(PtxError::invalid(open, "syntax error: a string is never closed"))
    }

    fn skip_space(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(&c) = bytes.get(self.pos) {
            if CLASS[usize::from(c)] & SPACE != 0 {
                self.line += u32::from(c == b'\n');
                self.pos += 1;
            } else if c != b'/' || !self.comment() {
                break;
            }
        }
    }

    fn scan(&mut self) -> Result<Token<'a>, PtxError> {
        self.skip_space();
        self.start = Mark { pos: self.pos, line: self.line };
        let bytes = self.text.as_bytes();
        let Some(&c) = bytes.get(self.pos) else {
            return Ok(Token::End);
        };
        if CLASS[usize::from(c)] & WORD_START != 0 {
            let from = self.pos;
            loop {
                while self.pos < bytes.len() && CLASS[usize::from(bytes[self.pos])] & WORD != 0 {
                    self.pos += 1;
                }
                let joined = bytes.get(self.pos) == Some(&b':') && bytes.get(self.pos + 1) == Some(&b':');
                let goes_on = bytes.get(self.pos + 2).is_some_and(|b| CLASS[usize::from(*b)] & WORD != 0);
                if joined && goes_on {
                    self.pos += 2;
                } else {
                    break;
                }
            }
            return Ok(Token::Word(&self.text[from..self.pos]));
        }
        if c.is_ascii_digit() {
            return self.number();
        }
        if c == b'"' {
            return self.string().map(Token::Str);
        }
        if !c.is_ascii() {
            return Err(PtxError::invalid(self.line, "syntax error: a character outside ASCII"));
        }
        self.pos += 1;
        Ok(Token::Punct(c))
    }

    fn number(&mut self) -> Result<Token<'a>, PtxError> {
        let bytes = self.text.as_bytes();
        let from = self.pos;
        let radix = match (bytes[from], bytes.get(from + 1)) {
            (b'0', Some(b'x' | b'X')) => 16,
            (b'0', Some(b'b' | b'B')) => 2,
            (b'0', Some(b'f' | b'F')) => return self.hex_float(8),
            (b'0', Some(b'd' | b'D')) => return self.hex_float(16),
            _ => 10,
        };
        if radix != 10 {
            self.pos += 2;
            let digits = self.digits(|c| c.is_ascii_hexdigit());
            return self.integer(digits, radix);
        }
        let digits = self.digits(|c| c.is_ascii_digit());
        let point = bytes.get(self.pos) == Some(&b'.');
        let exponent = matches!(bytes.get(self.pos), Some(b'e' | b'E'));
        if point || exponent {
            if point {
                self.pos += 1;
                self.digits(|c| c.is_ascii_digit());
            }
            if matches!(bytes.get(self.pos), Some(b'e' | b'E')) {
                self.pos += 1;
                if matches!(bytes.get(self.pos), Some(b'+' | b'-')) {
                    self.pos += 1;
                }
                self.digits(|c| c.is_ascii_digit());
            }
            let text = &self.text[from..self.pos];
            return match text.parse::<f64>() {
                Ok(v) => Ok(Token::Double(v.to_bits())),
                Err(_) => Err(self.bad_number(from)),
            };
        }
        let octal = digits.len() > 1 && digits.starts_with('0');
        self.integer(digits, if octal { 8 } else { 10 })
    }

    fn digits(&mut self, is_digit: impl Fn(u8) -> bool) -> &'a str {
        let bytes = self.text.as_bytes();
        let from = self.pos;
        while self.pos < bytes.len() && is_digit(bytes[self.pos]) {
            self.pos += 1;
        }
        &self.text[from..self.pos]
    }

    fn integer(&mut self, digits: &str, radix: u32) -> Result<Token<'a>, PtxError> {
        let value = u64::from_str_radix(digits, radix).map_err(|_| self.bad_number(self.start.pos))?;
        let bytes = self.text.as_bytes();
        if bytes.get(self.pos) == Some(&b'U') {
            self.pos += 1;
        }
        if self.pos < bytes.len() && bytes[self.pos].is_ascii_alphanumeric() {
            return Err(self.bad_number(self.start.pos));
        }
        Ok(Token::Int(value))
    }

    fn hex_float(&mut self, width: usize) -> Result<Token<'a>, PtxError> {
        let from = self.pos;
        self.pos += 2;
        let digits = self.digits(|c| c.is_ascii_hexdigit());
        if digits.len() != width {
            return Err(self.bad_number(from));
        }
        let bits = u64::from_str_radix(digits, 16).map_err(|_| self.bad_number(from))?;
        Ok(match u32::try_from(bits) {
            Ok(low) if width == 8 => Token::Single(low),
            _ => Token::Double(bits),
        })
    }

    fn bad_number(&self, from: usize) -> PtxError {
        let text = self.text.get(from..self.pos).unwrap_or_default();
        PtxError::invalid(self.line, format!("syntax error: malformed number '{}'", clip(text)))
    }
}
