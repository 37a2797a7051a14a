//! `CUDA_VISIBLE_DEVICES`: which GPUs a program sees, and in which order.
//!
//! The variable is a list, separated by commas, of ordinals or of UUIDs (`GPU-` and as many digits as tell it from others). Devices are
//! enumerated in the order of the list; an entry that names none, or not one for certain, ends it. A device that is named twice
//! makes the list void: then there is no device. Ordinals count GPUs by their PCI
//! addresses, which is the order that they come in.

/// What a list begins with: as much as can be said before it is known which GPUs there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum First {
    /// No GPU is to be seen, whichever there are.
    Nothing,
    /// The GPU with this ordinal is the first, if it is there; if not, no GPU is to be seen.
    Number(usize),
    /// Names of GPUs that have to be asked for theirs.
    SomeUuid,
}

/// What the list begins with. Without the variable: the first GPU.
pub(crate) fn first(variable: Option<&str>) -> First {
    let Some(list) = variable else { return First::Number(0) };
    if is_by_uuid(list) {
        return First::SomeUuid;
    }
    let entry = list.split(',').next().unwrap_or_default();
    leading_number(entry.trim()).map_or(First::Nothing, First::Number)
}

fn is_by_uuid(list: &str) -> bool {
    list.trim_start().starts_with("GPU-")
}

/// Indices of the GPUs that are to be seen, in order. Without the variable: all.
pub(crate) fn visible(variable: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(list) = variable else { return (0..uuids.len()).collect() };
    let by_uuid = is_by_uuid(list);
    let mut seen = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let found =
            if by_uuid { with_uuid(entry, uuids) } else { leading_number(entry).filter(|at| *at < uuids.len()) };
        match found {
            Some(at) if seen.contains(&at) => return Vec::new(),
            Some(at) => seen.push(at),
            None => break,
        }
    }
    seen
}

/// The number that a text begins with, as `strtoul` reads it.
fn leading_number(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The only GPU whose UUID begins like this.
fn with_uuid(entry: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    let wanted = entry.to_ascii_lowercase();
    let mut found = (0..).zip(uuids).filter(|(_, uuid)| text_of(uuid).starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some((at, _)), None) => Some(at),
        _ => None,
    }
}

/// A UUID as `nvidia-smi -L` shows it, in small letters.
fn text_of(uuid: &[u8; 16]) -> String {
    let mut text = "gpu-".to_owned();
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_list_begins_with_needs_no_gpu_to_be_known() {
        let check = |list: &str, expected| assert_eq!(first(Some(list)), expected, "{list:?}");
        assert_eq!(first(None), First::Number(0));
        check("2,0", First::Number(2));
        check(" 1gpu", First::Number(1));
        for nothing in ["", ",0", "-1", "none", "99999999999999999999,0"] {
            check(nothing, First::Nothing);
        }
        check(" GPU-12,0", First::SomeUuid);
        // It says no more than the list does of those that are there.
        let uuids = [[0x11; 16], [0x12; 16]];
        for list in ["0", "1,0", "1,1", "2,1", "", "-1", "1x"] {
            let seen = visible(Some(list), &uuids);
            match first(Some(list)) {
                First::Number(number) => assert!(seen.is_empty() || seen[0] == number, "{list:?}"),
                other => assert_eq!((other, seen), (First::Nothing, vec![]), "{list:?}"),
            }
        }
    }

    #[test]
    fn lists_select_and_order() {
        let mut uuids = [[0x11; 16], [0x12; 16], [0x20; 16]];
        uuids[2][15] = 0xAB;
        let check = |list: &str, expected: &[usize]| assert_eq!(visible(Some(list), &uuids), expected, "{list:?}");
        assert_eq!(visible(None, &uuids), [0, 1, 2]);
        check("0,1,2", &[0, 1, 2]);
        check("2,0", &[2, 0]);
        check(" 1 , 2 ", &[1, 2]);
        check("1gpu,2", &[1, 2]);
        // What is not there hides what comes behind it.
        check("0,3,1", &[0]);
        check("0,-1,1", &[0]);
        check("3", &[]);
        check("", &[]);
        check("-1", &[]);
        check("none", &[]);
        check("99999999999999999999,0", &[]);
        // Twice the same is nothing.
        check("0,0", &[]);
        check("1,2,1", &[]);
        // By UUID, as far as it is one's alone.
        check("GPU-20202020-2020-2020-2020-2020202020ab", &[2]);
        check("GPU-2,GPU-12", &[2, 1]);
        check("GPU-1", &[]);
        check("GPU-11,GPU-3,GPU-2", &[0]);
        check("GPU-2,GPU-20", &[]);
        // Kinds do not mix.
        check("GPU-2,0", &[2]);
        check("0,GPU-2", &[0]);
        assert_eq!(visible(None, &[]), [0; 0]);
    }
}
