//! Where in a program's source the lines of a text come from, as its compiler has left it there (`.loc`, `.file`; `nvcc -lineinfo`).

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

/// Most characters of a file's name that are kept.
const MAX_NAME: usize = 500;

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
        let mut names: HashMap<u32, &str> = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim_start();
            let known = sources.stretches.last().is_some_and(|last| last.place.is_some());
            if let Some(place) = line.strip_prefix(".loc") {
                sources.stretches.push(Stretch { from: number, place: numbers(place) });
            } else if let Some(file) = line.strip_prefix(".file") {
                if let (Some(number), Some(name)) = (first(file), file.split('"').nth(1)) {
                    names.entry(number).or_insert(name);
                }
            } else if known && ends_function(line) {
                sources.stretches.push(Stretch { from: number, place: None });
            }
        }
        let name = |name: &str| name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect::<String>();
        let numbers: HashMap<u32, u32> = names.keys().copied().zip(0..).collect();
        sources.files = names.values().map(|file| name(file)).collect();
        for stretch in &mut sources.stretches {
            stretch.place = stretch.place.and_then(|(file, line)| Some((*numbers.get(&file)?, line)));
        }
        sources
    }

    /// Of these lines alone.
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
        }
        sources
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

/// Whether a function, or what is between two, begins at a line.
fn ends_function(line: &str) -> bool {
    let words = [".entry", ".func", ".visible", ".weak", ".extern", ".common"];
    line.starts_with('}') || words.iter().any(|word| line.split_whitespace().next() == Some(word))
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
        for rubbish in
            [".loc \n\n", ".loc 1\n\n", ".loc 1 x\n\n", ".loc 1 2 3\n\n.file 1\n", ".loc 1 2 3\n\n.file 1 \"\n"]
        {
            assert!(Sources::of_text(rubbish).at(2).is_none_or(|found| found.file.is_empty()), "{rubbish}");
        }
        assert_eq!(Sources::of_text(".local .loc\n").of_lines([1].into_iter()), Sources::default());
    }
}
