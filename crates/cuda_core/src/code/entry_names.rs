//! What PTX text holds, found without parsing it: a library is not loaded before it is used, but its kernels can be asked
//! for.

/// What a kernel says of its clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Clusters {
    /// Blocks of a cluster, which every launch has (`.reqnctapercluster`).
    pub(crate) size: Option<[u32; 3]>,
    /// Launches must have clusters (`.explicitcluster`).
    pub(crate) explicit: bool,
    /// A launch's grid counts clusters (`.blocksareclusters`).
    pub(crate) counted: bool,
}

/// What was found.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Names {
    /// Kernels (`.entry`), in the order of the text.
    pub(crate) kernels: Vec<String>,
    /// What each of them says of clusters.
    pub(crate) clusters: Vec<Clusters>,
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
        if let (Some(clusters), true) =
            (names.clusters.last_mut(), directive.ends_with(b"cluster") || directive.ends_with(b"clusters"))
        {
            match directive {
                b"reqnctapercluster" => clusters.size = Some(numbers(&rest[directive.len()..])),
                b"explicitcluster" => clusters.explicit = true,
                b"blocksareclusters" => clusters.counted = true,
                _ => {}
            }
            continue;
        }
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
            names.clusters.resize(names.kernels.len(), Clusters::default());
        }
        rest = &name[end..];
    }
    names
}

/// One to three numbers, separated by commas; 1 for those that are missing.
fn numbers(mut text: &[u8]) -> [u32; 3] {
    let mut out = [1; 3];
    for number in &mut out {
        text = skip_blank(text);
        let digits = text.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(text.len());
        let word = str::from_utf8(&text[..digits]).unwrap_or_default();
        let hexadecimal = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
        let value = hexadecimal.map_or_else(|| word.parse(), |word| u32::from_str_radix(word, 16));
        *number = value.unwrap_or(1);
        text = skip_blank(&text[digits..]);
        match text.strip_prefix(b",") {
            Some(rest) => text = rest,
            None => break,
        }
    }
    out
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
    fn finds_what_kernels_say_of_clusters() {
        let found = find(
            b".entry a(.param .u32 p) .explicitcluster .reqnctapercluster 4 , 0x2 {ret;}\n.entry b() {ret;}\n\
              .entry c() .blocksareclusters .reqntid 8 .reqnctapercluster 2 // , 7\n{ret;} .entry d().explicitcluster{}",
        );
        let of = |size, explicit, counted| Clusters { size, explicit, counted };
        let wanted = [
            of(Some([4, 2, 1]), true, false),
            Clusters::default(),
            of(Some([2, 1, 1]), false, true),
            of(None, true, false),
        ];
        assert_eq!(found.clusters, wanted);
        assert_eq!(find(b".reqnctapercluster 4").clusters, []);
    }

    #[test]
    fn sees_managed_variables() {
        assert!(find(b".global .attribute(.managed) .u64 sum;").managed);
        assert!(find(b".managed").managed);
        assert!(!find(b"// .managed\n.entry managed() { .file 1 \".managed\" .managed_by x }").managed);
    }
}
