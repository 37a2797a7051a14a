//! Where in a program's source the lines of a text come from, as its compiler has left it there (`.loc`, `.file`; `nvcc -lineinfo`).

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::lexer::{Lexer, Token};

/// Most bytes of a file's name that are kept: its end.
const MAX_NAME: usize = 200;
/// Most files and stretches of a kernel; of one that has more, nothing is kept.
const MAX_FILES: usize = 512;
const MAX_STRETCHES: usize = 1 << 16;

/// Where lines of PTX come from. Of what was inlined, the innermost place.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sources {
    files: Vec<String>,
    /// In the order of the text.
    stretches: Vec<Stretch>,
}

/// Lines of PTX, up to the next stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Stretch {
    from: u32,
    /// File and line; `None` if nothing says so.
    place: Option<(u32, u32)>,
}

/// Place in a source file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLine<'a> {
    /// As the compiler was given it.
    pub file: &'a str,
    /// From 1.
    pub line: u32,
}

impl Sources {
    /// What a text says: a `.loc` is of the lines behind it, in the same function.
    pub(crate) fn of_text(text: &str) -> Sources {
        let mut sources = Sources::default();
        if !text.contains(".loc\t") && !text.contains(".loc ") {
            return sources;
        }
        let mut names: HashMap<u32, u32> = HashMap::new();
        let (mut lexer, mut depth) = (Lexer::new(text), 0_u32);
        // What is no PTX ends it; who compiles it will say so.
        while let Ok(token) = lexer.next() {
            let line = lexer.line();
            match token {
                Token::Word(word @ (".loc" | ".file")) => {
                    let from = lexer.mark().pos;
                    lexer.skip_line();
                    let rest = &text[from..lexer.mark().pos];
                    if word == ".loc" {
                        sources.stretches.push(Stretch { from: line, place: numbers(rest) });
                    } else if let (Some(number), Some(name)) = (first(rest), rest.split('"').nth(1)) {
                        names.entry(number).or_insert_with(|| {
                            sources.files.push(shown(name));
                            sources.files.len() as u32 - 1
                        });
                    }
                }
                Token::Punct(b'{') => depth += 1,
                Token::Punct(b'}') => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && sources.stretches.last().is_some_and(|last| last.place.is_some()) {
                        sources.stretches.push(Stretch { from: line.saturating_add(1), place: None });
                    }
                }
                Token::End => break,
                _ => {}
            }
        }
        for stretch in &mut sources.stretches {
            stretch.place = stretch.place.and_then(|(file, line)| Some((*names.get(&file)?, line)));
        }
        sources
    }

    /// Of these lines alone; of none, if they are from too many places.
    pub(crate) fn of_lines(&self, lines: impl Iterator<Item = u32>) -> Sources {
        if self.stretches.is_empty() {
            return Sources::default();
        }
        let used: BTreeSet<usize> = lines.filter_map(|line| self.position(line)).collect();
        let mut sources = Sources::default();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for stretch in used.into_iter().map(|at| self.stretches[at]) {
            let place = stretch.place.map(|(file, line)| {
                let number = *numbers.entry(file).or_insert_with(|| {
                    sources.files.push(self.files[file as usize].clone());
                    sources.files.len() as u32 - 1
                });
                (number, line)
            });
            sources.stretches.push(Stretch { place, ..stretch });
            if sources.files.len() > MAX_FILES || sources.stretches.len() > MAX_STRETCHES {
                return Sources::default();
            }
        }
        sources
    }

    /// Is it no more than [`Program::lower`](crate::Program::lower) gives?
    #[must_use]
    pub fn is_small(&self) -> bool {
        let files = self.files.len() <= MAX_FILES && self.files.iter().all(|name| name.len() <= MAX_NAME);
        files && self.stretches.len() <= MAX_STRETCHES
    }

    /// Bytes of host memory that it takes, but for itself.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let names = self.files.iter().map(|name| size_of::<String>() + name.len()).sum::<usize>();
        (names + size_of_val(&*self.stretches)) as u64
    }

    fn position(&self, line: u32) -> Option<usize> {
        self.stretches.partition_point(|stretch| stretch.from <= line).checked_sub(1)
    }

    /// Where the instruction at a line of PTX comes from, if the text says so.
    #[must_use]
    pub fn at(&self, line: u32) -> Option<SourceLine<'_>> {
        let (file, line) = self.stretches[self.position(line)?].place?;
        let file = self.files.get(file as usize)?;
        (line > 0).then_some(SourceLine { file, line })
    }
}

/// The end of a file's name, of what can be seen.
fn shown(name: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    let name: String = name.chars().filter(|c| !hidden(*c)).collect();
    let start = (name.len().saturating_sub(MAX_NAME)..).find(|at| name.is_char_boundary(*at)).unwrap_or(name.len());
    name[start..].to_owned()
}

fn first(words: &str) -> Option<u32> {
    words.split_whitespace().next()?.parse().ok()
}

/// File and line of a `.loc`.
fn numbers(place: &str) -> Option<(u32, u32)> {
    let line = place.split_whitespace().nth(1)?;
    Some((first(place)?, line.trim_end_matches(',').parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_source() {
        let text = ".version 8.5\n.entry a()\n{\n.loc 1 5 3\nret;\n.loc\t2 7 1, function_name $x, inlined_at 1 5 3\nret;\n}\n\
            .visible .entry b()\n{\nret;\n}\n.file\t1 \"/a b/c\u{7}.cu\"\n.file 2 \"d.h\"\n";
        let all = Sources::of_text(text);
        let some = all.of_lines([7, 11, 7].into_iter());
        assert_eq!(some.files, ["d.h"]);
        for (sources, line, place) in
            [(&all, 5, Some(("/a b/c.cu", 5))), (&all, 7, Some(("d.h", 7))), (&some, 7, Some(("d.h", 7)))]
        {
            assert_eq!(sources.at(line).map(|found| (found.file, found.line)), place);
        }
        for nowhere in [0, 1, 3, 11, 400, u32::MAX] {
            assert_eq!((all.at(nowhere), some.at(nowhere)), (None, None), "{nowhere}");
        }
        for rubbish in [
            ".loc \n\n",
            ".loc 1\n\n",
            ".loc 1 x\n\n",
            ".loc 1 2 3\n\n.file 1\n",
            ".loc 1 2 3\n\n.file 1 \"\n",
            "/* .file 1 \"c\"\n*/ .loc 1 2 3\n\n",
            "}}}.loc 4294967296 1 1\n{{{",
        ] {
            assert!(Sources::of_text(rubbish).at(2).is_none_or(|found| found.file.is_empty()), "{rubbish}");
        }
        assert_eq!(Sources::of_text(".local .loc\n").of_lines([1].into_iter()), Sources::default());
    }

    /// A scope ends within a function, as behind each call, and a function with its last one.
    #[test]
    fn scopes_end_nothing() {
        let text = ".func a()\n{ .loc 1 7 0\nmov;\n{\nmov;\n/* } */\n}\nmov;\n}\nmov;\n.file 1 \"c\"\n";
        let sources = Sources::of_text(text);
        let lines: Vec<u32> = (1..=10).filter(|line| sources.at(*line).is_some()).collect();
        assert_eq!(lines, [2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let long = format!("{}\u{202e}\u{20ac}.cu", "\u{20ac}".repeat(1000));
        let text: String = (0..1000).map(|f| format!(".file {f} \"{f}{long}\"\n.loc {f} 1 0\n")).collect();
        let all = Sources::of_text(&text);
        let line = |file: u32| 2 * file + 2;
        let some = all.of_lines((0..500).map(line));
        let name = some.at(line(3)).expect("it is kept").file;
        assert!(name.len() <= MAX_NAME && name.ends_with("\u{20ac}\u{20ac}.cu"), "{name}");
        assert!(some.is_small() && some.host_bytes() < 500 * 300);
        assert!(!all.is_small());
        assert_eq!(all.of_lines((0..1000).map(line)), Sources::default());
    }
}
