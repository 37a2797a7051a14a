//! What makes compilers that a program calls at run time hand over PTX, which the software GPU executes, instead of machine code.
//!
//! Only the environment of the program is changed, so that all that it starts has it, and nobody else. A daemon on a real GPU will
//! want none of this; there is no such daemon yet.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

/// The preloaded library, in the folders whose names the loaders of the GNU C library put for `$LIB`. The C library musl, which cannot
/// load it, takes that word as it is, finds no such folder, and goes on.
const PRELOADED: &str = "libsundial_stand_ins.so";
const LOADERS_FOLDERS: [&str; 3] = ["lib", "lib64", "lib/x86_64-linux-gnu"];

/// A variable of the program's environment, as it becomes.
#[derive(Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) variable: &'static str,
    pub(crate) value: OsString,
    why: &'static str,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}: {}", self.variable, self.value.display(), self.why)
    }
}

/// Where the stand-ins lie beside our libraries.
pub(crate) fn folder(libraries: &Path) -> PathBuf {
    libraries.join("stand-ins")
}

/// Which of the stand-ins' files are missing.
pub(crate) fn missing(folder: &Path) -> Vec<PathBuf> {
    let preloaded = LOADERS_FOLDERS.iter().map(|lib| folder.join(lib).join(PRELOADED));
    preloaded.chain([folder.join("bin/ptxas")]).filter(|path| !path.exists()).collect()
}

/// What to set, given what is set; and an error for what cannot be.
pub(crate) fn settings(folder: &Path, is: impl Fn(&str) -> Option<OsString>) -> (Vec<Setting>, Option<String>) {
    let is = |variable| is(variable).filter(|value| !value.is_empty());
    let ptxas = folder.join("bin/ptxas").into_os_string();
    let mut settings = Vec::new();
    let mut error = None;
    // What the loader takes for more than a letter, and has no way to write otherwise.
    if folder.as_os_str().as_encoded_bytes().iter().any(|byte| b" :;$".contains(byte)) {
        error = Some(format!(
            "NVRTC and nvJitLink hand over machine code, because no library can be preloaded from {}: move sundial to a folder \
             without spaces, colons and dollar signs in its name",
            folder.display()
        ));
    } else {
        let library = folder.join("$LIB").join(PRELOADED).into_os_string();
        settings.push(Setting {
            variable: "LD_PRELOAD",
            value: prepended(&library, is("LD_PRELOAD"), None),
            why: "NVRTC and nvJitLink hand over PTX, and XLA calls our ptxas",
        });
        settings.push(Setting {
            variable: "ASAN_OPTIONS",
            value: appended(is("ASAN_OPTIONS"), "verify_asan_link_order=0".as_ref()),
            why: "programs with AddressSanitizer start beside a preloaded library",
        });
    }
    for variable in ["TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"] {
        settings.push(Setting { variable, value: ptxas.clone(), why: "Triton's ptxas hands over PTX" });
    }
    settings.push(Setting {
        variable: "TORCHINDUCTOR_SHAPE_PADDING",
        value: is("TORCHINDUCTOR_SHAPE_PADDING").unwrap_or("0".into()),
        why: "torch.compile times no matrix products, for which it would call PyTorch's own kernels: there is machine code of those only",
    });
    settings.push(Setting {
        variable: "PATH",
        // As programs are looked for where nothing is said.
        value: prepended(folder.join("bin").as_os_str(), is("PATH"), Some("/usr/local/bin:/usr/bin:/bin")),
        why: "so does the ptxas that others find",
    });
    (settings, error)
}

/// A list with one more at its end, unless it is there.
fn appended(list: Option<OsString>, more: &OsStr) -> OsString {
    let Some(mut list) = list else { return more.to_owned() };
    if !has(&list, more) {
        list.push(":");
        list.push(more);
    }
    list
}

/// A list, or what counts where there is none, with one more at its start, unless it is there.
fn prepended(more: &OsStr, list: Option<OsString>, usual: Option<&str>) -> OsString {
    match list.or(usual.map(OsString::from)) {
        None => more.to_owned(),
        Some(list) if has(&list, more) => list,
        Some(list) => OsString::from_iter([more, ":".as_ref(), &list]),
    }
}

fn has(list: &OsStr, part: &OsStr) -> bool {
    list.as_encoded_bytes().split(|&byte| byte == b':').any(|one| one == part.as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(settings: &[Setting], variable: &str) -> Option<String> {
        settings.iter().find(|setting| setting.variable == variable).map(|setting| setting.value.display().to_string())
    }

    #[test]
    fn what_the_user_has_set_stays_and_once_is_enough() {
        let folder = Path::new("/opt/sundial-lib/stand-ins");
        let users = |variable: &str| match variable {
            "LD_PRELOAD" => Some("/a.so /b.so".into()),
            "PATH" => Some("/usr/bin".into()),
            "ASAN_OPTIONS" => Some(OsString::new()),
            "TORCHINDUCTOR_SHAPE_PADDING" => Some("1".into()),
            _ => None,
        };
        let (settings, error) = settings(folder, users);
        assert_eq!(error, None);
        let preloaded = "/opt/sundial-lib/stand-ins/$LIB/libsundial_stand_ins.so:/a.so /b.so";
        assert_eq!(set(&settings, "LD_PRELOAD").unwrap(), preloaded);
        assert_eq!(set(&settings, "ASAN_OPTIONS").unwrap(), "verify_asan_link_order=0");
        assert_eq!(set(&settings, "PATH").unwrap(), "/opt/sundial-lib/stand-ins/bin:/usr/bin");
        assert_eq!(set(&settings, "TORCHINDUCTOR_SHAPE_PADDING").unwrap(), "1");
        assert_eq!(set(&settings, "XLA_FLAGS"), None, "XLA ends programs that say flags which it does not know");
        let again = super::settings(folder, |variable| set(&settings, variable).map(OsString::from));
        assert_eq!(again.0, settings);
    }

    #[test]
    fn a_folder_that_cannot_be_preloaded_from() {
        let (settings, error) = settings(Path::new("/my programs/stand-ins"), |_| None);
        assert!(error.unwrap().contains("/my programs/stand-ins"));
        assert_eq!(set(&settings, "LD_PRELOAD"), None);
        assert_eq!(set(&settings, "TRITON_PTXAS_PATH").unwrap(), "/my programs/stand-ins/bin/ptxas");
        assert_eq!(set(&settings, "TORCHINDUCTOR_SHAPE_PADDING").unwrap(), "0");
        assert_eq!(set(&settings, "PATH").unwrap(), "/my programs/stand-ins/bin:/usr/local/bin:/usr/bin:/bin");
    }
}
