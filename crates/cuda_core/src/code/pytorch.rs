//! Kernels of PyTorch that we have, too: of its own its wheels have machine code only.
//!
//! `torch.compile` makes kernels of nearly all of a program, but what surrounds them fills tensors: the gradient that `backward()` begins with,
//! and constants that the compiler computes in advance. A fill is told by its kernel's name, which says the type of the elements, and has the
//! parameters that its template says: elements, the value, where they begin. Whatever number of elements a thread has there, the
//! threads of the whole grid take turns here.

use std::fmt::Write as _;

/// How the names of all its kernels begin.
const OWN: &str = "_ZN2at6native";
/// How the names of both templates begin, and what stands before the type of the elements.
const VECTORIZED: &str = "_ZN2at6native29vectorized_elementwise_kernelILi";
const UNROLLED: &str = "_ZN2at6native27unrolled_elementwise_kernelI";
const FILL: &str = "NS0_11FillFunctorI";
/// Most characters of a name that is said.
const MOST_NAME: usize = 100;
/// What stands behind it: one array of pointers.
const DATA: &str = "EESt5arrayIPcLm1EE";

/// PTX with those of the kernels of these names that there are here; none if there are none.
pub(crate) fn text<'a>(names: impl Iterator<Item = &'a str>) -> Option<Vec<u8>> {
    let mut text = String::from(".version 7.0\n.target sm_70\n.address_size 64\n");
    let head = text.len();
    for name in names {
        if let Some(fill) = Fill::of(name) {
            fill.write(name, &mut text);
        }
    }
    (text.len() > head).then(|| text.into_bytes())
}

/// Says what to do, if one of the kernels that cannot run is PyTorch's; whether one is.
pub(crate) fn say_of(kernels: &[impl AsRef<str>]) -> bool {
    let own = kernels.iter().map(AsRef::as_ref).find(|kernel| kernel.starts_with(OWN));
    if let Some(kernel) = own {
        let named: String = kernel.chars().take(MOST_NAME).collect();
        log_limit::error!(
            "PyTorch's own kernels are machine code, which this GPU does not execute (its instruction set is PTX): compile what the program \
             computes with torch.compile, and make random numbers on the CPU ({named})"
        );
    }
    own.is_some()
}

/// A kernel that fills consecutive elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fill {
    /// Bytes of an element, and what it is aligned to.
    bytes: u32,
    align: u32,
    /// Parameters behind the three, of types without members.
    empty: usize,
}

impl Fill {
    /// By the name of a kernel.
    fn of(name: &str) -> Option<Fill> {
        let (rest, empty) = match (name.strip_prefix(VECTORIZED), name.strip_prefix(UNROLLED)) {
            (Some(rest), _) => (rest.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('E')?, 0),
            (_, Some(rest)) => (rest, 4),
            _ => return None,
        };
        let (element, rest) = rest.strip_prefix(FILL)?.split_once(DATA)?;
        let known = match empty {
            0 => matches!(rest, "EEviT0_T1_" | "Lb0EEEviT0_T1_" | "Lb1EEEviT0_T1_"),
            // What is read and written as another type has to be told which.
            _ => rest.contains("16StoreWithoutCast") && rest.ends_with("EEEviT_T0_T2_T3_T4_T5_"),
        };
        let (bytes, align) = layout(element).filter(|_| known)?;
        Some(Fill { bytes, align, empty })
    }

    fn write(self, name: &str, text: &mut String) {
        let Fill { bytes, align, empty } = self;
        let parameter = |number: usize| format!("{name}_param_{number}");
        let [count, value, data] = [0, 1, 2].map(parameter);
        let empties: String =
            (3..3 + empty).map(|number| format!(",\n.param .align 1 .b8 {}[1]", parameter(number))).collect();
        // Registers for a value: words of the widest kind that is in it.
        let word = bytes.min(8).min(align);
        let (kind, register) = match word {
            1 => ("u8", "h"),
            2 => ("u16", "h"),
            4 => ("u32", "v"),
            _ => ("u64", "q"),
        };
        let words = bytes / word;
        let each = |f: &dyn Fn(u32) -> String| (0..words).map(f).collect::<String>();
        let loads = each(&|i| format!("ld.param.{kind} %{register}{i}, [{value}+{}];\n", i * word));
        let stores = each(&|i| format!("st.global.{kind} [%a1+{}], %{register}{i};\n", i * word));
        let _ = write!(
            text,
            ".visible .entry {name}(
.param .u32 {count},
.param .align {align} .b8 {value}[{bytes}],
.param .align 8 .b8 {data}[8]{empties}
)
{{
.reg .pred %p;
.reg .b16 %h<2>;
.reg .b32 %v<2>, %i<6>;
.reg .b64 %q<2>, %a<3>;
ld.param.u32 %i0, [{count}];
{loads}ld.param.u64 %a0, [{data}];
cvta.to.global.u64 %a0, %a0;
mov.u32 %i1, %ntid.x;
mov.u32 %i2, %ctaid.x;
mov.u32 %i3, %tid.x;
mad.lo.s32 %i4, %i2, %i1, %i3;
mov.u32 %i2, %nctaid.x;
mul.lo.s32 %i5, %i1, %i2;
NEXT:
setp.ge.u32 %p, %i4, %i0;
@%p bra DONE;
mad.wide.u32 %a1, %i4, {bytes}, %a0;
{stores}add.u32 %i4, %i4, %i5;
bra NEXT;
DONE:
ret;
}}
"
        );
    }
}

/// Bytes of a type by its mangled name, and to what it is aligned.
fn layout(mangled: &str) -> Option<(u32, u32)> {
    let of_one = |bytes| Some((bytes, bytes));
    match mangled {
        "a" | "b" | "h" => of_one(1),
        "s" | "t" | "N3c104HalfE" | "N3c108BFloat16E" => of_one(2),
        "f" | "i" | "j" => of_one(4),
        "d" | "l" | "m" => of_one(8),
        "N3c1011Float8_e5m2E"
        | "N3c1013Float8_e4m3fnE"
        | "N3c1014Float8_e8m0fnuE"
        | "N3c1015Float8_e4m3fnuzE"
        | "N3c1015Float8_e5m2fnuzE" => of_one(1),
        // Pairs, aligned as a whole.
        "N3c107complexIfEE" => of_one(8),
        "N3c107complexIdEE" => Some((16, 16)),
        "N3c107complexINS3_4HalfEEE" | "N3c107complexINS3_8BFloat16EEE" => of_one(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectorized(width: u32, element: &str, end: &str) -> String {
        format!(
            "_ZN2at6native29vectorized_elementwise_kernelILi{width}ENS0_11FillFunctorI{element}EESt5arrayIPcLm1EE{end}"
        )
    }

    /// All that PyTorch 2.15 has for consecutive elements.
    #[test]
    fn fills_are_told_by_their_names() {
        let elements = [("b", 1), ("N3c108BFloat16E", 2), ("f", 4), ("l", 8), ("N3c107complexIdEE", 16)];
        for (element, bytes) in elements {
            for (width, end) in [(2, "Lb0EEEviT0_T1_"), (8, "Lb1EEEviT0_T1_"), (4, "EEviT0_T1_")] {
                let found = Fill::of(&vectorized(width, element, end));
                assert_eq!(found, Some(Fill { bytes, align: bytes, empty: 0 }), "{element}");
            }
            let unrolled = format!(
                "_ZN2at6native27unrolled_elementwise_kernelINS0_11FillFunctorI{element}EESt5arrayIPcLm1EELi4E23TrivialOffsetCalculatorILi0EjES7_ILi1EjE\
                 NS0_6memory15LoadWithoutCastENSA_16StoreWithoutCastEEEviT_T0_T2_T3_T4_T5_"
            );
            assert_eq!(Fill::of(&unrolled), Some(Fill { bytes, align: bytes, empty: 4 }), "{element}");
        }
    }

    #[test]
    fn nothing_else_is() {
        let fill = vectorized(4, "f", "EEviT0_T1_");
        let others = [
            fill.replace("11FillFunctor", "11FullFunctor"),
            fill.replace("IfE", "INS_5tupleE"),
            fill.replace("Lm1E", "Lm2E"),
            format!("{fill}iRN2at6native11FillFunctorIfEERSt5arrayIPcLm1EEE5__tmp"),
            "_ZN2at6native27unrolled_elementwise_kernelINS0_11FillFunctorIfEESt5arrayIPcLm1EELi4E23TrivialOffsetCalculatorILi0EjES7_ILi1EjE\
             NS0_6memory12LoadWithCastILi0EEENSA_13StoreWithCastILi1EEEEEviT_T0_T2_T3_T4_T5_"
                .to_owned(),
            String::new(),
            VECTORIZED.to_owned(),
        ];
        for other in others {
            assert_eq!(Fill::of(&other), None, "{other}");
        }
        assert_eq!(text(["k", "_ZN2at"].into_iter()), None);
    }

    #[test]
    fn what_is_written_is_ptx() {
        let names = ["b", "s", "f", "d", "N3c107complexIdEE"].map(|element| vectorized(4, element, "EEviT0_T1_"));
        let text = text(names.iter().map(String::as_str).chain(["another"])).unwrap();
        let program = ptx::Program::parse(&text).unwrap();
        for name in &names {
            let entry = program.find_entry(name).unwrap();
            program.lower(entry, &|_| None).unwrap();
        }
    }
}
