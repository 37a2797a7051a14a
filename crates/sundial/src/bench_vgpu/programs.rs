//! What is run: programs of `examples/cuda`, as often over as makes them take some tenths of a second.

use anyhow::{Context, Result};

/// A program of `examples/cuda`.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    pub(super) arguments: &'static [&'static str],
    unasked: Unasked,
}

/// Whether it runs if nobody asks for it by name: as one guest, or as several, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Unasked {
    No,
    One,
    Several,
}
use Unasked::{No, One, Several};

const fn program(
    name: &'static str,
    file: &'static str,
    arguments: &'static [&'static str],
    unasked: Unasked,
) -> Program {
    Program { name, file, arguments, unasked }
}

/// Gdev's micro-benchmarks, programs after Rodinia's, and vmCUDA's.
pub(super) const PROGRAMS: [Program; 18] = [
    program("nop", "micro", &["nop", "--repeat", "50000"], One),
    program("loop", "micro", &["loop", "--repeat", "2000"], No),
    program("madd", "micro", &["madd", "--repeat", "300"], No),
    program("mmul", "micro", &["mmul", "--repeat", "300"], No),
    program("fmadd", "micro", &["fmadd", "--repeat", "300"], No),
    program("fmmul", "micro", &["fmmul", "--repeat", "300"], One),
    program("cpy", "micro", &["cpy", "--repeat", "500"], One),
    program("cpy_pinned", "micro", &["cpy_pinned", "--repeat", "200"], No),
    program("backprop", "backprop", &["--repeat", "200"], One),
    program("bfs", "bfs", &["--repeat", "40"], Several),
    program("hotspot", "hotspot", &["--repeat", "20"], No),
    program("lud", "lud", &["--repeat", "80"], No),
    program("nw", "nw", &["--repeat", "20"], No),
    program("binomial_options", "binomial_options", &["--repeat", "3"], No),
    program("black_scholes", "black_scholes", &["--repeat", "10"], One),
    program("matrix_mul", "matrix_mul", &["--repeat", "150"], Several),
    program("stereo_disparity", "stereo_disparity", &["--repeat", "4"], No),
    program("radix_sort", "radix_sort", &["--repeat", "4"], No),
];

/// Those of these names, or `all`; without any, those that are run by default as so many guests.
pub(super) fn select(names: &[String], guests: u16) -> Result<Vec<&'static Program>> {
    if names.is_empty() {
        let least = if guests == 1 { One } else { Several };
        return Ok(PROGRAMS.iter().filter(|program| program.unasked >= least).collect());
    }
    if names == ["all"] {
        return Ok(PROGRAMS.iter().collect());
    }
    let known = || PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    let find = |name: &String| {
        let found = PROGRAMS.iter().find(|program| program.name == name);
        found.with_context(|| format!("there is no program `{name}`; there are: all, {}", known()))
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_name() {
        let names = |asked: &[&str], guests| -> Vec<&str> {
            let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
            select(&asked, guests).unwrap().iter().map(|program| program.name).collect()
        };
        assert_eq!(names(&["all"], 1).len(), PROGRAMS.len());
        assert_eq!(names(&["bfs", "nop"], 8), ["bfs", "nop"]);
        let (one, several) = (names(&[], 1), names(&[], 2));
        assert!(several.len() < one.len() && several.iter().all(|name| one.contains(name)), "{one:?} {several:?}");
        assert!(select(&["doom".into()], 1).unwrap_err().to_string().contains("cpy_pinned"));
    }
}
