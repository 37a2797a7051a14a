//! The preloaded library, in programs that are not ours, with an NVRTC and an nvJitLink of the test's own.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library as this test run has built it: beside the test programs' folder.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libsundial_stand_ins.so");
    assert!(path.exists(), "{} is built with these tests", path.display());
    path
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("sundial-preloaded-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// Compiles C; false if there is no compiler.
    fn compile(&self, output: &str, source: &str, options: &[&str]) -> bool {
        let path = self.0.join(format!("{output}.c"));
        std::fs::write(&path, source).unwrap();
        let mut command = Command::new("cc");
        command.current_dir(&self.0).args(["-o", output]).arg(&path).args(options);
        match command.output() {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                true
            }
            Err(_) => {
                eprintln!("skipped: no C compiler");
                false
            }
        }
    }

    /// Runs it with the library preloaded, before and after others.
    fn run(&self, program: &str, before: &str, after: &str) -> Output {
        let mut command = Command::new(self.0.join(program));
        let preloaded = format!("{before}:{}:{after}", library().display());
        command.current_dir(&self.0).env("LD_PRELOAD", preloaded).env_remove("XLA_FLAGS").output().unwrap()
    }

    fn says(&self, program: &str, expected: &str) {
        self.says_beside(program, "", "", expected);
    }

    fn says_beside(&self, program: &str, before: &str, after: &str, expected: &str) {
        let output = self.run(program, before, after);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!((said.trim(), output.status.code()), (expected, Some(0)), "{output:?}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An NVRTC that tells of itself: its PTX is a number and the options that it was compiled with.
fn nvrtc(number: u32) -> String {
    format!(
        r#"
#include <string.h>
static char ptx[200] = "";
int nvrtcCreateProgram(void** p) {{ *p = ptx; return 0; }}
int nvrtcCompileProgram(void* p, int n, const char** o) {{
    strcpy(p, "{number}");
    for (int i = 0; i < n; i++) {{ strcat(p, " "); strcat(p, o[i]); }}
    return 0;
}}
int nvrtcGetPTXSize(void* p, size_t* s) {{ *s = strlen(p) + 1; return 0; }}
int nvrtcGetPTX(void* p, char* t) {{ strcpy(t, p); return 0; }}
int nvrtcGetCUBINSize(void* p, size_t* s) {{ *s = 5; return 0; }}
int nvrtcGetCUBIN(void* p, char* t) {{ memcpy(t, "CODE", 5); return 0; }}
"#
    )
}

const DECLARATIONS: &str = "
#include <stdio.h>
#include <stddef.h>
int nvrtcCreateProgram(void**);
int nvrtcCompileProgram(void*, int, const char**);
int nvrtcGetCUBINSize(void*, size_t*);
int nvrtcGetCUBIN(void*, char*);
";

fn make_libraries(folder: &Folder) -> bool {
    (1..=2).all(|number| {
        let name = format!("libnvrtc.so.{number}");
        folder.compile(&name, &nvrtc(number), &["-shared", "-fPIC", &format!("-Wl,-soname,{name}")])
    })
}

#[test]
fn who_opens_a_library_gets_ptx_of_that_library() {
    let folder = Folder::new("open");
    let program = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stddef.h>
static void use(const char* name) {
    void* l = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    int (*create)(void**) = dlsym(l, "nvrtcCreateProgram");
    int (*compile)(void*, int, const char**) = dlsym(l, "nvrtcCompileProgram");
    int (*size)(void*, size_t*) = dlsym(l, "nvrtcGetCUBINSize");
    int (*get)(void*, char*) = dlsym(l, "nvrtcGetCUBIN");
    void* p; size_t n; char text[100];
    create(&p);
    const char* options[] = {"-arch=sm_120", "-G"};
    compile(p, 2, options);
    size(p, &n); get(p, text);
    printf("%zu:%s;", n, text);
}
int main() {
    int none = dlsym(RTLD_DEFAULT, "nvrtcGetCUBIN") == NULL;
    printf("%d%d;", none, dlerror() != NULL);
    none = dlsym(dlopen(NULL, RTLD_LAZY), "nvrtcGetCUBIN") == NULL;
    printf("%d%d;", none, dlerror() != NULL);
    use("./libnvrtc.so.1"); use("./libnvrtc.so.2"); use("./libnvrtc.so.1");
    printf("%d%d", dlsym(RTLD_DEFAULT, "") == NULL, dlsym(RTLD_NEXT, "puts") == dlsym(RTLD_DEFAULT, "puts"));
}"#;
    if make_libraries(&folder) && folder.compile("program", &format!("#define _GNU_SOURCE\n{program}"), &["-ldl"]) {
        folder
            .says("program", "11;11;23:1 -arch=compute_120 -G;23:2 -arch=compute_120 -G;23:1 -arch=compute_120 -G;11");
    }
}

/// Each with another version, both in one process.
#[test]
fn who_is_linked_with_a_library_gets_ptx_of_that_library() {
    let folder = Folder::new("linked");
    let user = r#"
void USE(void) {
    void* p; size_t n; char text[100];
    const char* options[] = {"-arch", "sm_90a"};
    nvrtcCreateProgram(&p); nvrtcCompileProgram(p, 2, options);
    nvrtcGetCUBINSize(p, &n); nvrtcGetCUBIN(p, text);
    printf("%zu:%s;", n, text);
}"#;
    if !make_libraries(&folder) {
        return;
    }
    for (number, name) in [(1, "one"), (2, "two")] {
        let source = format!("{DECLARATIONS}{}", user.replace("USE", name));
        let with = format!("-l:libnvrtc.so.{number}");
        let options = ["-shared", "-fPIC", "-L.", "-Wl,-rpath,$ORIGIN", &with];
        folder.compile(&format!("lib{name}.so"), &source, &options);
    }
    let main = r#"
#include <dlfcn.h>
#include <stddef.h>
int main() {
    for (int i = 0; i < 4; i++) {
        void* l = dlopen(i % 2 ? "./libtwo.so" : "./libone.so", RTLD_LAZY | RTLD_LOCAL);
        ((void (*)(void))dlsym(l, i % 2 ? "two" : "one"))();
    }
}"#;
    folder.compile("program", main, &["-ldl"]);
    let (one, two) = ("20:1 -arch compute_90a;", "20:2 -arch compute_90a;");
    folder.says("program", &[one, two, one, two].concat());
    // As the first in the program's own search order.
    let own = format!("{DECLARATIONS}{}\nint main() {{ USE(); }}", user);
    folder.compile("direct", &own, &["-L.", "-Wl,-rpath,$ORIGIN", "-l:libnvrtc.so.2"]);
    folder.says("direct", two);
}

/// A tracer stands before the same functions, and calls the next.
#[test]
fn others_may_stand_before_a_library_too() {
    let folder = Folder::new("tracer");
    let tracer = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
static int depth;
int nvrtcGetCUBIN(void* p, char* text) {
    if (depth++) return 99;
    int (*next)(void*, char*) = dlsym(RTLD_NEXT, "nvrtcGetCUBIN");
    printf("traced;");
    int result = next ? next(p, text) : 98;
    depth = 0;
    return result;
}"#;
    let user = format!(
        "{DECLARATIONS}{}",
        r#"
int main() {
    void* p; size_t n; char text[100];
    const char* options[] = {"-arch=sm_90"};
    nvrtcCreateProgram(&p); nvrtcCompileProgram(p, 1, options);
    int size = nvrtcGetCUBINSize(p, &n), get = nvrtcGetCUBIN(p, text);
    printf("%d%d:%s", size, get, text);
}"#
    );
    if make_libraries(&folder)
        && folder.compile("libtracer.so", tracer, &["-shared", "-fPIC", "-ldl"])
        && folder.compile("program", &user, &["-L.", "-Wl,-rpath,$ORIGIN", "-l:libnvrtc.so.1"])
    {
        folder.says_beside("program", "./libtracer.so", "", "traced;00:1 -arch=compute_90");
        // The tracer is asked what there is, and for PTX.
        let said = folder.run("program", "", "./libtracer.so");
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(text.starts_with("traced;00:") && said.status.success(), "{said:?}");
    }
}

/// One of the user's own libraries has a `dlsym`, as those do that stand before OpenGL.
#[test]
fn others_may_have_a_dlsym_too() {
    let folder = Folder::new("dlsym");
    let other = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
static int mine(void) { return 42; }
void* dlsym(void* handle, const char* name) {
    if (!strcmp(name, "answer")) return mine;
    void* (*real)(void*, const char*) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real(handle, name);
}"#;
    let program = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stddef.h>
int main() {
    void* l = dlopen("./libnvrtc.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*answer)(void) = dlsym(l, "answer");
    int (*create)(void**) = dlsym(l, "nvrtcCreateProgram");
    int (*compile)(void*, int, const char**) = dlsym(l, "nvrtcCompileProgram");
    int (*get)(void*, char*) = dlsym(l, "nvrtcGetCUBIN");
    void* p; char text[100];
    const char* options[] = {"-arch=sm_90"};
    create(&p); compile(p, 1, options); get(p, text);
    printf("%d;%s", answer(), text);
}"#;
    if make_libraries(&folder)
        && folder.compile("libother.so", other, &["-shared", "-fPIC", "-ldl"])
        && folder.compile("program", program, &["-ldl"])
    {
        folder.says_beside("program", "", "./libother.so", "42;1 -arch=compute_90");
    }
}

#[test]
fn a_plugin_of_xla_is_told_of_flags_that_it_knows() {
    let folder = Folder::new("xla");
    let plugin =
        |flags: &str| format!("const char* const flags[] = {{ {flags} }}; int GetPjrtApi(void) {{ return 7; }}");
    let program = |said: &str| {
        format!(
            r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main() {{
    {said}
    void* l = dlopen("./libplugin.so", RTLD_NOW | RTLD_LOCAL);
    int (*api)(void) = dlsym(l, "GetPjrtApi");
    printf("%d;%s", api(), getenv("XLA_FLAGS") ? getenv("XLA_FLAGS") : "none");
}}"#
        )
    };
    let own = r#"setenv("XLA_FLAGS", "--xla_gpu_enable_libnvjitlink=true", 1);"#;
    if !folder.compile("program", &program(""), &["-ldl"]) || !folder.compile("own", &program(own), &["-ldl"]) {
        return;
    }
    let [compiler, linker] = ["\"xla_gpu_enable_libnvptxcompiler\"", "\"xla_gpu_enable_libnvjitlink\""];
    for (flags, set, beside) in [
        ("\"xla_dump_to\"".to_owned(), "none", "--xla_gpu_enable_libnvjitlink=true"),
        (
            compiler.to_owned(),
            "--xla_gpu_enable_libnvptxcompiler=false",
            "--xla_gpu_enable_libnvjitlink=true --xla_gpu_enable_libnvptxcompiler=false",
        ),
        (
            format!("{compiler}, {linker}"),
            "--xla_gpu_enable_libnvptxcompiler=false --xla_gpu_enable_libnvjitlink=false",
            "--xla_gpu_enable_libnvjitlink=true --xla_gpu_enable_libnvptxcompiler=false",
        ),
    ] {
        folder.compile("libplugin.so", &plugin(&flags), &["-shared", "-fPIC"]);
        folder.says("program", &format!("7;{set}"));
        folder.says("own", &format!("7;{beside}"));
    }
}

/// A library's constructor waits for a thread, while the loader waits for the constructor.
#[test]
fn threads_of_a_constructor_do_not_wait_for_the_loader() {
    let folder = Folder::new("constructor");
    let library = r#"
#include <pthread.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/wait.h>
extern char** environ;
static void* work(void* none) {
    struct stat s;
    pid_t pid;
    char* arguments[] = {"true", NULL};
    stat("/tmp", &s);
    if (posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) == 0) waitpid(pid, NULL, 0);
    return none;
}
__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    pthread_join(thread, NULL);
}"#;
    let program = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main() { alarm(20); printf("%d", dlopen("./libbegins.so", RTLD_NOW) != NULL); }"#;
    if folder.compile("libbegins.so", library, &["-shared", "-fPIC", "-pthread"])
        && folder.compile("program", program, &["-ldl"])
    {
        folder.says("program", "1");
    }
}

/// XLA finds a `ptxas` in its own package; ours is started, and by nobody who has not loaded XLA.
#[test]
fn xla_starts_our_ptxas() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("spawn");
    for sub in ["lib", "bin", "theirs"] {
        std::fs::create_dir(folder.0.join(sub)).unwrap();
    }
    std::fs::copy(library(), folder.0.join("lib/libsundial_stand_ins.so")).unwrap();
    for (program, says) in [("bin/ptxas", "ours"), ("theirs/ptxas", "theirs"), ("theirs/nvlink", "theirs")] {
        let path = folder.0.join(program);
        std::fs::write(&path, format!("#!/bin/sh\necho {says} $*\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let program = r#"
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
extern char** environ;
static void start(int (*spawn)(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const[], char* const[]), char* name) {
    pid_t pid;
    char* arguments[] = {name, "a.ptx", NULL};
    if (spawn(&pid, name, NULL, NULL, arguments, environ)) printf("failed\n");
    else waitpid(pid, NULL, 0);
}
int main() {
    setvbuf(stdout, NULL, _IONBF, 0);
    start(posix_spawn, "theirs/ptxas");
    dlsym(dlopen("./libplugin.so", RTLD_NOW | RTLD_LOCAL), "GetPjrtApi");
    start(posix_spawn, "theirs/ptxas");
    start(posix_spawnp, "./theirs/ptxas");
    start(posix_spawn, "theirs/nvlink");
    start(posix_spawn, "theirs/nothing");
}"#;
    if folder.compile("libplugin.so", "int GetPjrtApi(void) { return 7; }", &["-shared", "-fPIC"])
        && folder.compile("program", program, &["-ldl"])
    {
        let mut command = Command::new(folder.0.join("program"));
        command.current_dir(&folder.0).env("LD_PRELOAD", folder.0.join("lib/libsundial_stand_ins.so"));
        let said = command.output().unwrap();
        let expected = "theirs a.ptx\nours a.ptx\nours a.ptx\ntheirs a.ptx\nfailed\n";
        assert_eq!(String::from_utf8_lossy(&said.stdout), expected, "{said:?}");
    }
}

#[test]
fn the_node_of_a_gpu_seems_to_be_there() {
    if Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: there is such a node");
        return;
    }
    let folder = Folder::new("node");
    let program = r#"
#include <sys/stat.h>
#include <errno.h>
#include <stdio.h>
int main() {
    struct stat s;
    int there = stat("/dev/nvidiactl", &s);
    printf("%d %d;", there, S_ISCHR(s.st_mode) != 0);
    int missing = stat("/dev/nvidia-nothing", &s);
    printf("%d %d", missing, errno == ENOENT);
}"#;
    if folder.compile("program", program, &[]) && folder.compile("large", program, &["-D_FILE_OFFSET_BITS=64"]) {
        folder.says("program", "0 1;-1 1");
        folder.says("large", "0 1;-1 1");
    }
}

#[test]
fn what_is_added_to_a_fatbin_as_machine_code_is_ptx() {
    let folder = Folder::new("fatbin");
    let library = r#"
#include <stdio.h>
#include <stddef.h>
int nvFatbinAddCubin(void* h, const void* code, size_t size, const char* arch, const char* id) {
    printf("cubin %zu;", size);
    return 3;
}
int nvFatbinAddPTX(void* h, const char* code, size_t size, const char* arch, const char* id, const char* options) {
    printf("ptx %d %d %s %s '%s';", (int)size, code[size - 1], arch, id, options);
    return 0;
}"#;
    let program = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n\0\0";
int main() {
    void* l = dlopen("./libnvfatbin.so.13", RTLD_NOW);
    int (*add)(void*, const void*, size_t, const char*, const char*) = dlsym(l, "nvFatbinAddCubin");
    printf("%d;", add(NULL, ptx, sizeof ptx, "80", "one"));
    printf("%d;", add(NULL, ptx, sizeof ptx, "75", "two"));
    printf("%d", add(NULL, "\x7f" "ELF", 4, "80", "three"));
}"#;
    if folder.compile("libnvfatbin.so.13", library, &["-shared", "-fPIC"])
        && folder.compile("program", program, &["-ldl"])
    {
        folder.says("program", "ptx 45 0 80 one '';0;2;cubin 4;3");
    }
}

/// A library that links by writing down what it was given.
#[test]
fn linked_intermediate_code_is_the_real_librarys() {
    let folder = Folder::new("lto");
    let library = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct link { char options[100]; int inputs, complete; };
int nvJitLinkCreate(struct link** h, unsigned n, const char** o) {
    *h = calloc(1, sizeof **h);
    for (unsigned i = 0; i < n; i++) strcat((*h)->options, o[i]);
    return 0;
}
int nvJitLinkDestroy(struct link** h) { free(*h); *h = NULL; return 0; }
int nvJitLinkAddData(struct link* h, int kind, const void* data, size_t size, const char* name) { h->inputs++; return 0; }
int nvJitLinkAddFile(struct link* h, int kind, const char* path) { return 1; }
int nvJitLinkComplete(struct link* h) { h->complete = 1; return h->inputs == 0; }
static void text(struct link* h, char* t) { sprintf(t, "%s %d %d", h->options, h->inputs, h->complete); }
int nvJitLinkGetLinkedLTOIRSize(struct link* h, size_t* s) {
    char t[200];
    if (!h->complete) return 5;
    text(h, t);
    *s = strlen(t) + 1;
    return 0;
}
int nvJitLinkGetLinkedLTOIR(struct link* h, void* t) { if (!h->complete) return 5; text(h, t); return 0; }
static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n";
int nvJitLinkGetLinkedPtxSize(struct link* h, size_t* s) { *s = sizeof ptx; return !strstr(h->options, "-ptx"); }
int nvJitLinkGetLinkedPtx(struct link* h, char* t) { strcpy(t, ptx); return 0; }
"#;
    let program = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stddef.h>
int main() {
    void* l = dlopen("./libnvJitLink.so.13", RTLD_NOW);
    int (*create)(void**, unsigned, const char**) = dlsym(l, "nvJitLinkCreate");
    int (*add)(void*, int, const void*, size_t, const char*) = dlsym(l, "nvJitLinkAddData");
    int (*complete)(void*) = dlsym(l, "nvJitLinkComplete");
    int (*size)(void*, size_t*) = dlsym(l, "nvJitLinkGetLinkedLTOIRSize");
    int (*get)(void*, void*) = dlsym(l, "nvJitLinkGetLinkedLTOIR");
    const char* options[] = {"-arch=sm_80", "-lto"};
    void* h;
    size_t n = 0;
    char text[200] = "";
    create(&h, 2, options);
    int added = add(h, 3, "\xed\x43\x4e\x7f\x01", 5, "a") | add(h, 3, "\xed\x43\x4e\x7f\x01", 5, "b");
    int early = size(h, &n);
    int completed = complete(h);
    int sized = size(h, &n);
    printf("%d %d %d %d %zu %d '%s'", added, early, completed, sized, n, get(h, text), text);
}"#;
    if folder.compile("libnvJitLink.so.13", library, &["-shared", "-fPIC"])
        && folder.compile("program", program, &["-ldl"])
    {
        folder.says("program", "0 5 0 0 20 0 '-arch=sm_80-lto 2 1'");
    }
}
