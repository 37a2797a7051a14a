//! What PTX text holds, found without parsing it: a library is not loaded before it is used, but its kernels can be asked
//! for.

/// What was found.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Names {
    /// Kernels (`.entry`), in the order of the text.
    pub(crate) kernels: Vec<String>,
    /// Texture references (`.texref`), those that are parameters too.
    pub(crate) textures: Vec<String>,
    /// Surface references (`.surfref`).
    pub(crate) surfaces: Vec<String>,
    /// The word `.managed` is there.
    pub(crate) managed: bool,
}

/// Looks through a text.
pub(crate) fn find(text: &[u8]) -> Names {
    let mut names = Names::default();
    let mut rest = text;
    while let Some(at) = next_directive(rest) {
        rest = &rest[at + 1..];
        let directive = &rest[..rest.iter().position(|&byte| !is_name(byte)).unwrap_or(rest.len())];
        let list = match directive {
            b"entry" => &mut names.kernels,
            b"texref" => &mut names.textures,
            b"surfref" => &mut names.surfaces,
            b"managed" => {
                names.managed = true;
                continue;
            }
            _ => continue,
        };
        let name = skip_blank(&rest[directive.len()..]);
        let end = name.iter().position(|&byte| !is_name(byte)).unwrap_or(name.len());
        if end > 0 {
            list.push(String::from_utf8_lossy(&name[..end]).into_owned());
        }
        rest = &name[end..];
    }
    names
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

/// Where the next `.` outside comments and strings is.
fn next_directive(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'.' => return Some(at),
            b'/' if text[at..].starts_with(b"//") => at = skip_past(text, at + 2, b"\n"),
            b'/' if text[at..].starts_with(b"/*") => at = skip_past(text, at + 2, b"*/"),
            b'"' => at = skip_past(text, at + 1, b"\""),
            _ => at += 1,
        }
    }
    None
}

/// Past the next `end`, or the text's own end.
fn skip_past(text: &[u8], from: usize, end: &[u8]) -> usize {
    let rest = text.get(from..).unwrap_or(&[]);
    rest.windows(end.len()).position(|window| window == end).map_or(text.len(), |found| from + found + end.len())
}

fn skip_blank(text: &[u8]) -> &[u8] {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        if byte.is_ascii_whitespace() {
            at += 1;
        } else if text[at..].starts_with(b"/*") {
            at = skip_past(text, at + 2, b"*/");
        } else if text[at..].starts_with(b"//") {
            at = skip_past(text, at + 2, b"\n");
        } else {
            break;
        }
    }
    &text[at.min(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(text: &[u8]) -> Vec<String> {
        find(text).kernels
    }

    #[test]
    fn finds_entries_only() {
        let text = b"// .entry no\n.version 8.0\n.visible .entry _Z1aPf(\n.param .u64 p)\n{ .file 1 \".entry x\" }\n\
            /* .entry no */ .entry /* c */ b$2()\n.entryx y .func (.reg .b32 r) entry() .weak .entry c";
        assert_eq!(kernels(text), ["_Z1aPf", "b$2", "c"]);
        assert_eq!(kernels(b".entry"), Vec::<String>::new());
        assert_eq!(kernels(b".entry /*"), Vec::<String>::new());
        assert_eq!(kernels(b"\xFF.entry \xFF"), Vec::<String>::new());
    }

    #[test]
    fn finds_references() {
        let found = find(
            b".global .texref tex; .global .surfref /* s */ surf;.global .texref more[2]; // .texref no\n.texrefs x",
        );
        assert_eq!(found.textures, ["tex", "more"]);
        assert_eq!(found.surfaces, ["surf"]);
    }

    #[test]
    fn sees_managed_variables() {
        assert!(find(b".global .attribute(.managed) .u64 sum;").managed);
        assert!(find(b".managed").managed);
        assert!(!find(b"// .managed\n.entry managed() { .file 1 \".managed\" .managed_by x }").managed);
    }
}
