//! Modules, libraries, kernels, launches.

use cuda_core::{CudaError, Device, Driver, Function, JitLog, JitOptions, Kernel, LaunchConfig, Params, Stream};
use gpu::DevAddr;

use crate::support::{Host, PRINTED, driver};

const CODE: &[u8] =
    b".version 8.0\n.entry fill() .entry gaps() .entry big() .entry narrow() .entry exact() .entry shared()\n\
    .entry nothing() .global table;\0";

fn load(driver: &Driver, text: &[u8]) -> cuda_core::Result<cuda_core::Module> {
    driver.module_load_data(&text, &mut JitLog::default())
}

fn config(grid: [u32; 3], block: [u32; 3]) -> LaunchConfig {
    LaunchConfig::new(grid, block, 0, Stream::NULL)
}

fn launch(driver: &Driver, function: Function, config: &LaunchConfig) -> cuda_core::Result<()> {
    driver.launch_kernel(function, config, Params::Each(&mut |_, _| true))
}

#[test]
fn modules_hold_kernels_and_variables() {
    let (driver, _) = driver();
    let mut log = JitLog::default();
    let module = driver.module_load_data(&CODE, &mut log).unwrap();
    assert_eq!((log.info.as_str(), log.error.as_str()), ("fine", ""));
    assert_eq!(driver.module_get_function_count(module), Ok(7));
    let all = driver.module_enumerate_functions(module, 100).unwrap();
    assert_eq!(driver.module_get_function(module, "gaps"), Ok(all[1]));
    assert_eq!(driver.func_get_name(all[1]).unwrap(), "gaps");
    assert_eq!(driver.func_get_module(all[1]), Ok(module));
    assert_eq!(driver.func_get_param_count(all[1]), Ok(3));
    assert_eq!(driver.func_get_param_info(all[1], 2), Ok((16, 2)));
    assert_eq!(driver.func_get_param_info(all[1], 3), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.module_get_function(module, "absent"), Err(CudaError::NOT_FOUND));
    let (at, bytes) = driver.module_get_global(module, "table").unwrap();
    assert_eq!(bytes, 64);
    let host = Host::with(&[3; 64]);
    driver.memcpy_htod(at, host.range(0, 64), Stream::NULL).unwrap();
    driver.memset(DevAddr(at.0 + 60), 1, 4, 1, Stream::NULL).unwrap();
    assert_eq!(driver.memset(DevAddr(at.0 + 64), 1, 4, 1, Stream::NULL), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_free(at), Err(CudaError::INVALID_VALUE));
    driver.module_unload(module).unwrap();
    assert_eq!(driver.module_unload(module), Err(CudaError::INVALID_HANDLE));
    assert_eq!(launch(&driver, all[0], &config([1; 3], [1; 3])), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.memset(at, 1, 4, 1, Stream::NULL), Err(CudaError::INVALID_VALUE));
}

#[test]
fn rejected_code_leaves_a_log() {
    let (driver, _) = driver();
    let mut log = JitLog::default();
    let answer = driver.module_load_data(&&b".version 8 nonsense"[..], &mut log);
    assert_eq!((answer, log.error.as_str()), (Err(CudaError::INVALID_PTX), "line 3: nonsense"));
    let mut log = JitLog::default();
    let answer = driver.library_load_data(&&b".version 8 nonsense"[..], &mut log);
    assert_eq!((answer, log.error.as_str()), (Err(CudaError::INVALID_PTX), "line 3: nonsense"));
    assert_eq!(load(&driver, b"\x7FELF\x02"), Err(CudaError::NO_BINARY_FOR_GPU));
    assert_eq!(load(&driver, b"?"), Err(CudaError::INVALID_IMAGE));
}

#[test]
fn a_kernel_that_is_not_ptx_is_refused_at_the_load() {
    let (driver, fake) = driver();
    let text = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n\
        .visible .entry wrong() {\nfrobnicate.u32 5;\nret; }\n.visible .entry odd() {\nadd.u32;\nret; }\n\
        .visible .entry other() {\nwgmma.fence.sync.aligned;\nret; }\n";
    let said = "wrong: ptx input, line 6; error: unknown instruction 'frobnicate' (in 'frobnicate.u32 5')\n";
    let mut log = JitLog::default();
    let answer = driver.module_load_data(&text.as_bytes(), &mut log);
    assert_eq!((answer, log.error.as_str()), (Err(CudaError::INVALID_PTX), said));
    // Of an instruction in a form that is not known, and of one that is PTX, who asks is told.
    let about: Vec<&str> = log.info.lines().filter(|line| line.contains("ptx input, line ")).collect();
    assert!(about.len() == 2 && about[0].contains("line 9;") && about[1].contains("line 12;"), "{}", log.info);
    assert!(fake.requests().contains(&"UnloadModule".to_string()), "nothing of it is left");
    let mut log = JitLog::default();
    let answer = driver.library_load_data(&text.as_bytes(), &mut log);
    assert_eq!((answer, log.error.as_str()), (Err(CudaError::INVALID_PTX), said));
    // Of a long text kernels are read when they are wanted, or at once if somebody wants to know.
    let long = format!("{text}{}", "// \n".repeat(100_000));
    load(&driver, long.as_bytes()).unwrap();
    let mut log = JitLog { ask: true, ..JitLog::default() };
    let answer = driver.module_load_data(&long.as_bytes(), &mut log);
    assert_eq!((answer, log.error.as_str()), (Err(CudaError::INVALID_PTX), said));
    // The GPU is not asked: it is the program's own time.
    assert!(!fake.requests().contains(&"PrepareKernel".to_string()));
}

#[test]
fn parameters_arrive_where_the_kernel_has_them() {
    let (driver, fake) = driver();
    let module = load(&driver, CODE).unwrap();
    let gaps = driver.module_get_function(module, "gaps").unwrap();
    let mut each = |index: usize, out: &mut [u8]| {
        out.fill(index as u8 + 1);
        true
    };
    let mut shape = config([2, 3, 4], [32, 2, 1]);
    shape.shared_bytes = 100;
    driver.launch_kernel(gaps, &shape, Params::Each(&mut each)).unwrap();
    let expect = [&[1u8][..], &[0; 7], &[2; 8], &[3; 2]].concat();
    let launched = fake.launched().remove(0);
    assert_eq!((launched.grid, launched.block, launched.shared_bytes), ([2, 3, 4], [32, 2, 1], 100));
    assert_eq!(launched.params, expect);
    // A packed block may have padding behind, or end with the last parameter, not before.
    let host = Host::with(&[&expect[..], &[9; 6]].concat());
    for bytes in [18, 24] {
        driver.launch_kernel(gaps, &shape, Params::Packed(host.range(0, bytes))).unwrap();
        assert_eq!(fake.launched().remove(0).params, expect);
    }
    let short = Params::Packed(host.range(0, 17));
    assert_eq!(driver.launch_kernel(gaps, &shape, short), Err(CudaError::INVALID_VALUE));
    let big = driver.module_get_function(module, "big").unwrap();
    driver.launch_kernel(big, &shape, Params::Each(&mut each)).unwrap();
    assert_eq!(fake.launched().remove(0).params, [vec![1; 4000], vec![2; 4]].concat());
}

#[test]
fn a_kernel_computes_between_copies() {
    let (driver, _) = driver();
    let fill = driver.module_get_function(load(&driver, CODE).unwrap(), "fill").unwrap();
    let at = driver.mem_alloc(4000).unwrap();
    let values = [at.0.to_le_bytes().to_vec(), 0xABCDu32.to_le_bytes().to_vec(), 1000u32.to_le_bytes().to_vec()];
    let mut each = |index: usize, out: &mut [u8]| {
        out.copy_from_slice(&values[index]);
        true
    };
    driver.launch_kernel(fill, &config([1; 3], [1; 3]), Params::Each(&mut each)).unwrap();
    let host = Host::new(4000);
    driver.memcpy_dtoh(host.range(0, 4000), at, Stream::NULL).unwrap();
    assert_eq!(host.bytes(0, 4000), [0xCD, 0xAB, 0, 0].repeat(1000));
}

#[test]
fn shapes_are_checked() {
    let (driver, _) = driver();
    let module = load(&driver, CODE).unwrap();
    let get = |name| driver.module_get_function(module, name).unwrap();
    let value = Err(CudaError::INVALID_VALUE);
    let table = [
        ([1, 1, 1], [1024, 1, 1], Ok(())),
        ([0, 1, 1], [1, 1, 1], value),
        ([1, 1, 1], [1, 0, 1], value),
        ([1, 1, 1], [1025, 1, 1], value),
        ([1, 1, 1], [1, 1, 65], value),
        ([1, 1, 1], [32, 33, 1], value),
        ([1, 65536, 1], [1, 1, 1], value),
        ([0x7FFF_FFFF, 1, 1], [1, 1, 1], Ok(())),
    ];
    for (grid, block, expect) in table {
        assert_eq!(launch(&driver, get("nothing"), &config(grid, block)), expect, "{grid:?} {block:?}");
    }
    assert_eq!(launch(&driver, get("exact"), &config([1; 3], [64, 1, 1])), value);
    launch(&driver, get("exact"), &config([1; 3], [32, 2, 1])).unwrap();
    let narrow = launch(&driver, get("narrow"), &config([1; 3], [129, 1, 1]));
    assert_eq!(narrow, Err(CudaError::INVALID_VALUE));
    // Shared memory: 48 KiB in all, more after asking for it.
    let shared = get("shared");
    let mut shape = config([1; 3], [1; 3]);
    for (bytes, expect) in [(47 << 10, Ok(())), ((47 << 10) + 1, value), (u32::MAX, value)] {
        shape.shared_bytes = bytes;
        assert_eq!(launch(&driver, shared, &shape), expect);
    }
    assert_eq!(driver.func_set_attribute(shared, 8, 99 << 10), value);
    driver.func_set_attribute(shared, 8, 98 << 10).unwrap();
    assert_eq!(driver.func_get_attribute(8, shared), Ok(98 << 10));
    shape.shared_bytes = 98 << 10;
    launch(&driver, shared, &shape).unwrap();
    // Cooperative: all blocks must fit; the fake has one multiprocessor.
    let mut shape = config([6, 1, 1], [256, 1, 1]);
    shape.cooperative = true;
    launch(&driver, get("nothing"), &shape).unwrap();
    shape.grid = [7, 1, 1];
    assert_eq!(launch(&driver, get("nothing"), &shape), Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE));
    let mut shape = config([2; 3], [1; 3]);
    // Clusters: of eight blocks at most, and the grid is a multiple of them.
    for (cluster, expect) in [
        ([2, 1, 1], Ok(())),
        ([2, 2, 2], Ok(())),
        ([1, 3, 1], Err(CudaError::INVALID_VALUE)),
        ([4, 1, 1], Err(CudaError::INVALID_VALUE)),
        ([4, 2, 2], Err(CudaError::INVALID_CLUSTER_SIZE)),
        ([1, 0, 1], Err(CudaError::INVALID_CLUSTER_SIZE)),
        ([u32::MAX, u32::MAX, 3], Err(CudaError::INVALID_CLUSTER_SIZE)),
    ] {
        shape.cluster = cluster;
        assert_eq!(launch(&driver, get("nothing"), &shape), expect, "{cluster:?}");
    }
    shape.cluster = [2, 1, 2];
    assert_eq!(driver.occupancy_max_potential_cluster_size(get("nothing")), Ok(8));
    let alone = LaunchConfig { cluster: [1; 3], ..shape };
    let blocks = driver.occupancy_max_active_clusters(get("nothing"), &alone).unwrap();
    assert_eq!(driver.occupancy_max_active_clusters(get("nothing"), &shape), Ok((blocks / 4).max(1)));
    shape.cluster = [3, 3, 1];
    let refused = driver.occupancy_max_active_clusters(get("nothing"), &shape);
    assert_eq!(refused, Err(CudaError::INVALID_CLUSTER_SIZE));
}

#[test]
fn function_attributes_and_occupancy() {
    let (driver, _) = driver();
    let module = load(&driver, CODE).unwrap();
    let shared = driver.module_get_function(module, "shared").unwrap();
    let get = |attribute| driver.func_get_attribute(attribute, shared);
    assert_eq!([get(0), get(1), get(4), get(5), get(6)], [Ok(1024), Ok(1024), Ok(32), Ok(75), Ok(120)]);
    assert_eq!([get(8), get(9), get(99)], [Ok(47 << 10), Ok(-1), Err(CudaError::INVALID_VALUE)]);
    driver.func_set_attribute(shared, 9, 50).unwrap();
    assert_eq!(get(9), Ok(50));
    assert_eq!(driver.func_set_attribute(shared, 0, 1), Err(CudaError::INVALID_VALUE));
    let active = |block, bytes| driver.occupancy_max_active_blocks_per_multiprocessor(shared, block, bytes, 0);
    assert_eq!([active(256, 0), active(1024, 0), active(32, 40 << 10)], [Ok(6), Ok(1), Ok(2)]);
    assert_eq!(active(0, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.occupancy_max_potential_block_size(shared, &|_| 0, 0, 0), Ok((2, 768)));
    assert_eq!(driver.occupancy_max_potential_block_size(shared, &|_| 0, 100, 0), Ok((16, 96)));
    let dynamic = driver.occupancy_available_dynamic_smem_per_block(shared, 3, 128).unwrap();
    assert_eq!([active(128, dynamic), active(128, dynamic + 256)], [Ok(3), Ok(2)]);
}

#[test]
fn what_a_kernel_says_of_its_clusters_is_reported_and_heeded() {
    let (driver, _) = driver();
    let text =
        b".version 8 .entry own() .explicitcluster .reqnctapercluster 2, 2 {} .entry counts() .blocksareclusters \
        .reqnctapercluster 4 {} .entry any() .explicitcluster {} .entry nothing() {}";
    let module = load(&driver, text).unwrap();
    let get = |name| driver.module_get_function(module, name).unwrap();
    let said =
        |name| [10, 11, 12, 13, 14, 15].map(|attribute| driver.func_get_attribute(attribute, get(name)).unwrap());
    assert_eq!(said("own"), [1, 2, 2, 1, 0, 0]);
    assert_eq!(said("counts"), [0, 4, 1, 1, 0, 0]);
    assert_eq!(said("any"), [1, 0, 0, 0, 0, 0]);
    assert_eq!(said("nothing"), [0; 6]);
    driver.func_set_attribute(get("any"), 14, 1).unwrap();
    driver.func_set_attribute(get("any"), 15, 2).unwrap();
    assert_eq!(said("any"), [1, 0, 0, 0, 1, 2]);
    // The size may be said once more, but no other; the grid is a multiple of it, or counts clusters.
    let try_to =
        |name, grid, cluster| launch(&driver, get(name), &LaunchConfig { cluster, ..config(grid, [32, 1, 1]) });
    assert_eq!(try_to("own", [4, 2, 1], [1; 3]), Ok(()));
    assert_eq!(try_to("own", [4, 2, 1], [2, 2, 1]), Ok(()));
    assert_eq!(try_to("own", [4, 2, 1], [2, 1, 1]), Err(CudaError::INVALID_CLUSTER_SIZE));
    assert_eq!(try_to("own", [4, 1, 1], [1; 3]), Err(CudaError::INVALID_VALUE));
    assert_eq!(try_to("counts", [3, 1, 1], [1; 3]), Ok(()));
    assert_eq!(try_to("any", [2, 1, 1], [2, 1, 1]), Ok(()));
    let active = |name, cluster| {
        driver.occupancy_max_active_clusters(get(name), &LaunchConfig { cluster, ..config([8, 8, 1], [32, 1, 1]) })
    };
    let blocks = active("nothing", [1; 3]).unwrap();
    assert_eq!(active("own", [1; 3]), Ok(blocks / 4));
    assert_eq!(active("own", [4, 1, 1]), Err(CudaError::INVALID_CLUSTER_SIZE));
    // Of a cooperative launch all blocks must fit, six of 256 threads; a grid of `counts` has four times as many as it says.
    let mut shape = config([1; 3], [256, 1, 1]);
    shape.cooperative = true;
    launch(&driver, get("counts"), &shape).unwrap();
    shape.grid = [2, 1, 1];
    assert_eq!(launch(&driver, get("counts"), &shape), Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE));
}

#[test]
fn what_is_reported_lets_one_block_run() {
    let (driver, _) = driver();
    let module = load(&driver, b".version 8 .entry greedy() .entry nothing()").unwrap();
    let greedy = driver.module_get_function(module, "greedy").unwrap();
    assert_eq!(driver.func_get_attribute(4, greedy), Ok(64), "1024 threads, 65,536 registers");
    assert_eq!(driver.occupancy_max_active_blocks_per_multiprocessor(greedy, 1024, 0, 0), Ok(1));
    // What a launch may ask for without asking for more before is the limit, however much there is.
    let nothing = driver.module_get_function(module, "nothing").unwrap();
    assert_eq!(driver.occupancy_available_dynamic_smem_per_block(nothing, 1, 32), Ok(48 << 10));
    driver.func_set_attribute(nothing, 8, 99 << 10).unwrap();
    assert_eq!(driver.occupancy_available_dynamic_smem_per_block(nothing, 1, 32), Ok(99 << 10));
}

/// Kernels that can be launched: one that needs nothing, one that needs a stack, one for the largest local memory.
const RUNS: &str = ".version 8.0\n.target sm_75\n.address_size 64\n.func again() { call again; ret; }\n\
    .entry nothing() { ret; }\n.entry deep() { call again; ret; }\n\
    .entry large() { .local .b8 a[65552]; .reg .b64 %rd; .reg .b32 %r; mov.u64 %rd, a; ld.local.u32 %r, [%rd]; \
    st.local.u32 [%rd+65548], %r; ret; }\n";

#[test]
fn a_kernel_that_cannot_run_is_refused_at_its_launch() {
    let (driver, fake) = driver();
    // What is no PTX is refused at the load, but not of a long text.
    let (unsupported, invalid) =
        ("wgmma.fence.sync.aligned;", format!("frobnicate; ret; }}\n{}.entry last() {{", "// \n".repeat(100_000)));
    for (body, refused) in [(unsupported, CudaError::NOT_SUPPORTED), (&invalid, CudaError::INVALID_PTX)] {
        let text = format!("{RUNS}.entry tensor() {{ {body} ret; }}\n");
        let refused = Err(refused);
        let module = load(&driver, text.as_bytes()).unwrap();
        let get = |name| driver.module_get_function(module, name).unwrap();
        fake.requests();
        for _ in 0..3 {
            assert_eq!(launch(&driver, get("tensor"), &config([1; 3], [1; 3])), refused);
            launch(&driver, get("nothing"), &config([1; 3], [1; 3])).unwrap();
        }
        assert_eq!(driver.func_load(get("tensor")), refused);
        // The GPU is not asked: it is the program's own time.
        assert_eq!(fake.requests().iter().filter(|name| *name == "PrepareKernel").count(), 0);
        assert_eq!(fake.launched().len(), 3);
        driver.ctx_synchronize().unwrap();
    }
}

#[test]
fn another_stack_is_told_before_the_next_launch() {
    let (driver, fake) = driver();
    let module = load(&driver, CODE).unwrap();
    let nothing = driver.module_get_function(module, "nothing").unwrap();
    fake.requests();
    for (limit, told) in [(1024, 0), (4096, 4096), (4096, 4096), (1024, 1024)] {
        driver.ctx_set_limit(0, limit).unwrap();
        launch(&driver, nothing, &config([1; 3], [1; 3])).unwrap();
        launch(&driver, nothing, &config([1; 3], [1; 3])).unwrap();
        assert_eq!(fake.stack(), told);
    }
    assert_eq!(fake.requests().iter().filter(|name| *name == "PrepareKernel").count(), 2, "once for each change");
}

#[test]
fn a_block_without_room_for_its_local_memory_is_refused_at_its_launch() {
    let (driver, fake) = driver();
    let module = load(&driver, RUNS.as_bytes()).unwrap();
    for (kernel, limit, most) in [
        ("deep", 1024, 1024),
        ("deep", 512 << 10, 128),
        ("deep", 1024, 1024),
        ("large", 1024, 1023),
        // It has no stack.
        ("large", 512 << 10, 1023),
        ("nothing", 512 << 10, 1024),
    ] {
        let function = driver.module_get_function(module, kernel).unwrap();
        driver.ctx_set_limit(0, limit).unwrap();
        let tried = |x| launch(&driver, function, &config([1; 3], [x, 1, 1]));
        assert_eq!(tried(most), Ok(()), "{kernel} {limit}");
        if most < 1024 {
            assert_eq!(tried(most + 1), Err(CudaError::LAUNCH_OUT_OF_RESOURCES), "{kernel} {limit}");
        }
    }
    assert_eq!(fake.launched().len(), 6);
    driver.ctx_synchronize().unwrap();
}

#[test]
fn options_of_the_jit_are_a_pragma_in_the_text() {
    let (driver, fake) = driver();
    let mut log = JitLog { options: JitOptions { fma: false, max_registers: Some(32) }, ..JitLog::default() };
    let text = [CODE, b"\0garbage"].concat();
    driver.module_load_data(&&text[..], &mut log).unwrap();
    let loaded = fake.text();
    assert!(loaded.ends_with("\n.pragma \"sundial fma=0 maxrregcount=32\";\n"), "{loaded}");
    assert!(!loaded.contains("garbage"));
}

#[test]
fn missing_parameters_are_refused() {
    let (driver, fake) = driver();
    let module = load(&driver, CODE).unwrap();
    let gaps = driver.module_get_function(module, "gaps").unwrap();
    let missing = driver.launch_kernel(gaps, &config([1; 3], [1; 3]), Params::Each(&mut |index, _| index < 2));
    assert_eq!(missing, Err(CudaError::INVALID_VALUE));
    assert!(fake.launched().is_empty());
    assert_eq!(driver.func_get_name(Function::NULL).err(), Some(CudaError::INVALID_VALUE));
    assert_eq!(driver.kernel_get_name(Kernel::NULL).err(), Some(CudaError::INVALID_VALUE));
}

#[test]
fn libraries_are_loaded_in_each_context_at_first_use() {
    let (driver, fake) = driver();
    // In a fat binary, as the runtime hands them over.
    let mut image = [&[0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0][..], &[0; 8]].concat();
    let mut entry = vec![0u8; 0x40];
    entry[..8].copy_from_slice(&[1, 0, 1, 1, 0x40, 0, 0, 0]);
    entry[8..12].copy_from_slice(&(CODE.len() as u32).to_le_bytes());
    entry[28] = 75;
    image[8..16].copy_from_slice(&((entry.len() + CODE.len()) as u64).to_le_bytes());
    let image = [image, entry, CODE.to_vec()].concat();
    fake.requests();
    let library = driver.library_load_data(&&image[..], &mut JitLog::default()).unwrap();
    assert_eq!(driver.library_get_kernel_count(library), Ok(7));
    let kernel = driver.library_get_kernel(library, "nothing").unwrap();
    assert_eq!(driver.library_get_kernel(library, "nothing"), Ok(kernel));
    assert_eq!(driver.library_get_kernel(library, "absent"), Err(CudaError::NOT_FOUND));
    assert_eq!(driver.library_enumerate_kernels(library, 2).unwrap().len(), 2);
    assert_eq!(driver.kernel_get_name(kernel).unwrap(), "nothing");
    assert!(!fake.requests().contains(&"LoadModule".to_string()));
    // The runtime launches a kernel's handle as if it were a function's.
    launch(&driver, Function(kernel.0), &config([1; 3], [1; 3])).unwrap();
    assert_eq!(fake.requests().iter().filter(|name| *name == "LoadModule").count(), 1);
    let function = driver.kernel_get_function(kernel).unwrap();
    assert_eq!(driver.func_get_module(function), driver.library_get_module(library));
    let first = driver.library_get_global(library, "table").unwrap();
    driver.kernel_set_attribute(8, 50 << 10, kernel, Device(0)).unwrap();
    assert_eq!(driver.func_get_attribute(8, function), Ok(50 << 10));
    // Another context has its own variables, and the same settings.
    let context = driver.ctx_create(0, Device(0)).unwrap();
    assert_ne!(driver.library_get_global(library, "table").unwrap(), first);
    assert_eq!(driver.kernel_get_attribute(8, kernel, Device(0)), Ok(50 << 10));
    assert_ne!(driver.kernel_get_function(kernel), Ok(function));
    assert_eq!(launch(&driver, function, &config([1; 3], [1; 3])), Err(CudaError::INVALID_HANDLE));
    driver.ctx_destroy(context).unwrap();
    launch(&driver, Function(kernel.0), &config([1; 3], [1; 3])).unwrap();
    driver.library_unload(library).unwrap();
    assert_eq!(driver.kernel_get_name(kernel), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.library_unload(library), Err(CudaError::INVALID_HANDLE));
    assert_eq!(launch(&driver, Function(kernel.0), &config([1; 3], [1; 3])), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.kernel_get_param_count(Kernel(7)), Err(CudaError::INVALID_HANDLE));
}

#[test]
fn what_kernels_print_appears_at_synchronizations() {
    let (driver, _) = driver();
    let print = driver.module_get_function(load(&driver, b".version 8 .entry print()").unwrap(), "print").unwrap();
    let run = |n: u32| {
        let mut each = |_: usize, out: &mut [u8]| {
            out.copy_from_slice(&n.to_le_bytes());
            true
        };
        driver.launch_kernel(print, &config([1; 3], [1; 3]), Params::Each(&mut each)).unwrap();
    };
    PRINTED.lock().clear();
    run(1);
    driver.stream_synchronize(Stream::NULL).unwrap();
    assert_eq!(*PRINTED.lock(), b"n=1\n");
    driver.ctx_synchronize().unwrap();
    run(2);
    let event = driver.event_create(2).unwrap();
    driver.event_record(event, Stream::NULL).unwrap();
    driver.event_synchronize(event).unwrap();
    run(3);
    driver.device_primary_ctx_reset(Device(0)).unwrap();
    assert_eq!(*PRINTED.lock(), b"n=1\nn=2\nn=3\n");
}

#[test]
fn the_linker_hands_back_its_one_input() {
    let (driver, _) = driver();
    let link = driver.link_create(JitOptions::default()).unwrap();
    let mut log = JitLog::default();
    assert_eq!(driver.link_complete(link, &mut log), Err(CudaError::INVALID_IMAGE));
    driver.link_add_data(link, &ONE, "one", &mut log).unwrap();
    let image = driver.link_complete(link, &mut log).unwrap();
    assert_eq!(image[..], [ONE, b"\0"].concat());
    // Programs get its address: it stays until the link is destroyed.
    let again = driver.link_complete(link, &mut log).unwrap();
    assert_eq!(image.as_ptr(), again.as_ptr());
    drop(again);
    assert_eq!(std::sync::Arc::strong_count(&image), 2);
    load(&driver, &image).unwrap();
    assert_eq!(driver.link_add_data(link, &ONE, "late", &mut log), Err(CudaError::INVALID_HANDLE));
    driver.link_destroy(link).unwrap();
    assert_eq!(driver.link_destroy(link), Err(CudaError::INVALID_HANDLE));
}

const ONE: &[u8] = b".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry fill() { ret; }";

fn module(rest: &str) -> Vec<u8> {
    format!(".version 8.0\n.target sm_75\n.address_size 64\n{rest}").into_bytes()
}

/// Links inputs that are called 0, 1, …; the image's text, and the error log.
fn link(driver: &Driver, options: JitOptions, inputs: &[&[u8]]) -> (cuda_core::Result<String>, String) {
    let link = driver.link_create(options).unwrap();
    let mut log = JitLog::default();
    let added = inputs
        .iter()
        .enumerate()
        .try_for_each(|(at, input)| driver.link_add_data(link, input, &at.to_string(), &mut log));
    let image = added.and_then(|()| driver.link_complete(link, &mut log));
    driver.link_destroy(link).unwrap();
    (image.map(|image| String::from_utf8_lossy(&image).into_owned()), log.error)
}

#[test]
fn the_linker_makes_one_text_of_several() {
    let (driver, _) = driver();
    let caller = module(".extern .func f(); .visible .entry fill() { call f; ret; }");
    let callee = module(".visible .func f() { ret; }");
    let (image, log) = link(&driver, JitOptions::default(), &[&caller, &callee]);
    let image = image.unwrap();
    assert_eq!(log, "");
    assert!(image.contains("fill") && image.contains(".visible .func f") && !image.contains(".extern"), "{image}");
    load(&driver, image.as_bytes()).unwrap();
    // Options of the link are the image's.
    let options = JitOptions { fma: false, max_registers: Some(32) };
    let (image, _) = link(&driver, options, &[&caller, &callee]);
    assert!(image.unwrap().contains("maxrregcount=32"));
    // What is wrong is said by name.
    let (image, log) = link(&driver, JitOptions::default(), &[&caller, &ONE[..44]]);
    assert_eq!((image, log.as_str()), (Err(CudaError::INVALID_PTX), "undefined symbol 'f', wanted by 0\n"));
    let (image, log) = link(&driver, JitOptions::default(), &[&callee, &callee]);
    assert_eq!((image, log.as_str()), (Err(CudaError::INVALID_PTX), "'f' is defined in 0 and in 1\n"));
    let (image, log) = link(&driver, JitOptions::default(), &[&callee, &module("\n nonsense")]);
    assert_eq!(image, Err(CudaError::INVALID_PTX));
    assert!(log.starts_with("1: ptx input, line 5; error"), "{log}");
    let (image, log) = link(&driver, JitOptions::default(), &[b"\x7FELF\x02\x01\x01 not at all"]);
    assert_eq!(image, Err(CudaError::INVALID_IMAGE));
    assert!(log.starts_with("0 is neither PTX nor"), "{log}");
    let mut cubin = b"\x7FELF\x02\x01\x01".to_vec();
    cubin.resize(64, 0);
    cubin[18] = 190;
    let (image, log) = link(&driver, JitOptions::default(), &[&callee, &cubin]);
    assert_eq!(image, Err(CudaError::NO_BINARY_FOR_GPU));
    assert!(log.starts_with("1 holds no PTX"), "{log}");
}

#[test]
fn members_of_libraries_are_linked_where_they_are_needed() {
    let (driver, _) = driver();
    let library = |members: &[(&str, &[u8])]| {
        let mut bytes = b"!<arch>\n".to_vec();
        for (name, data) in members {
            bytes.extend_from_slice(
                format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 644, data.len()).as_bytes(),
            );
            bytes.extend_from_slice(data);
            bytes.resize(bytes.len().next_multiple_of(2), b'\n');
        }
        bytes
    };
    let [f, g, bad, machine] = [
        object(1, &module(".extern .func g(); .visible .func f() { call g; ret; }")),
        object(1, &module(".visible .func g() { ret; }")),
        // Nobody wants it, and it could not be linked.
        object(
            1,
            &module(".extern .func nowhere(); .visible .func h() { call nowhere; ret; } .visible .func g() { trap; }"),
        ),
        object(2, b"\x7FELF"),
    ];
    let library = library(&[("f.o/", &f), ("g.o/", &g), ("bad.o/", &bad), ("machine.o/", &machine)]);
    let caller = module(".extern .func f(); .visible .entry fill() { call f; ret; }");
    let (image, log) = link(&driver, JitOptions::default(), &[&caller, &library]);
    let image = image.unwrap_or_else(|error| panic!("{error:?}: {log}"));
    assert!(image.contains(".func g") && !image.contains("nowhere") && !image.contains("trap"), "{image}");
    let caller = module(".extern .func h(); .visible .entry fill() { call h; ret; }");
    let (image, log) = link(&driver, JitOptions::default(), &[&caller, &library]);
    assert_eq!(image, Err(CudaError::INVALID_PTX));
    assert!(log.starts_with("undefined symbol 'nowhere', wanted by 1(bad.o)\n1(machine.o): no PTX"), "{log}");
}

/// A host object whose `__nv_relfatbin` holds one entry of PTX (1) or machine code (2).
fn object(kind: u8, payload: &[u8]) -> Vec<u8> {
    let padded = payload.len().next_multiple_of(8) as u64;
    let mut fat = [[0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0], (0x40 + padded).to_le_bytes()].concat();
    let mut entry = [0; 0x40];
    (entry[0], entry[4], entry[28]) = (kind, 0x40, 75);
    entry[8..16].copy_from_slice(&padded.to_le_bytes());
    fat.extend_from_slice(&entry);
    fat.extend_from_slice(payload);
    fat.resize(16 + 0x40 + padded as usize, 0);
    let names = b"\0__nv_relfatbin\0";
    let mut file = b"\x7FELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    (file[16], file[18], file[20], file[52], file[58], file[60], file[62]) = (1, 62, 1, 64, 64, 3, 2);
    let mut section = |name: u8, kind: u8, bytes: &[u8]| {
        let mut header = [0; 64];
        (header[0], header[4]) = (name, kind);
        header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        file.extend_from_slice(bytes);
        header
    };
    let headers = [[0; 64], section(1, 1, &fat), section(0, 3, names)].concat();
    let at = file.len() as u64;
    file[40..48].copy_from_slice(&at.to_le_bytes());
    file.extend_from_slice(&headers);
    file
}
