//! Files of machine code that hold kernels of PyTorch's.

use cuda_core::{CudaError, JitLog, Stream};

use crate::support::{launch, memory, shape, start};

/// A file of machine code with these kernels, as far as their names.
fn machine_code(kernels: &[&str]) -> Vec<u8> {
    let mut names = vec![0];
    let mut sections = vec![0; 64];
    for name in kernels.iter().map(|kernel| format!(".text.{kernel}")).chain([".shstrtab".to_owned()]) {
        let mut section = [0; 64];
        section[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
        names.extend(name.bytes().chain([0]));
        sections.extend(section);
    }
    let names_section = sections.len() - 64;
    let names_at = 64 + sections.len() as u64;
    sections[names_section + 0x18..][..8].copy_from_slice(&names_at.to_le_bytes());
    sections[names_section + 0x20..][..8].copy_from_slice(&(names.len() as u64).to_le_bytes());
    let mut header = [0; 64];
    header[..5].copy_from_slice(b"\x7FELF\x02");
    header[0x28] = 64;
    header[0x3a] = 64;
    header[0x3c] = kernels.len() as u8 + 2;
    header[0x3e] = kernels.len() as u8 + 1;
    [&header[..], &sections, &names].concat()
}

fn fill(element: &str) -> String {
    format!(
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorI{element}EESt5arrayIPcLm1EELb0EEEviT0_T1_"
    )
}

/// Elements are filled, all of them and no others, with whatever number of threads.
#[test]
fn tensors_are_filled_by_kernels_of_ours_device() {
    let (driver, _) = start();
    let elements = [("b", 1), ("N3c104HalfE", 2), ("f", 4), ("l", 8), ("N3c107complexIdEE", 16)];
    let names = elements.map(|(element, _)| fill(element));
    let another = "_ZN2at6native18elementwise_kernelI";
    let mut all: Vec<&str> = vec![another];
    all.extend(names.iter().map(String::as_str));
    let image = machine_code(&all);
    let library = driver.library_load_data(&image.as_slice(), &mut JitLog::default()).unwrap();
    assert_eq!(driver.library_get_kernel(library, another), Err(CudaError::NO_BINARY_FOR_GPU));
    assert_eq!(driver.library_get_kernel(library, "_ZN2at6native7nothingE"), Err(CudaError::NOT_FOUND));
    for ((_, bytes), name) in elements.iter().zip(&names) {
        let function = driver.kernel_get_function(driver.library_get_kernel(library, name).unwrap()).unwrap();
        for (count, blocks) in [(1, 1), (1000, 3), (5000, 2)] {
            let value: Vec<u8> = (1..=*bytes as u8).collect();
            let room = (count + 16) * bytes;
            let at = driver.mem_alloc(room as u64).unwrap();
            driver.memset(at, 0, 1, room as u64, Stream::NULL).unwrap();
            let params: [&[u8]; 3] = [&(count as u32).to_le_bytes(), &value, &at.0.to_le_bytes()];
            launch(&driver, function, &shape(blocks, 128, Stream::NULL), &params).unwrap();
            let out = memory(&vec![0; room]);
            driver.memcpy_dtoh(out.range(0, room), at, Stream::NULL).unwrap();
            let mut got = vec![0; room];
            out.read(0, &mut got);
            let mut expected = value.repeat(count);
            expected.resize(room, 0);
            assert!(got == expected, "{count} elements of {bytes} bytes");
            driver.mem_free(at).unwrap();
        }
    }
    driver.library_unload(library).unwrap();
}

#[test]
fn without_any_of_them_a_file_is_refused_device() {
    let (driver, _) = start();
    let mut log = JitLog::default();
    let image = machine_code(&["a", "_ZN2at6native18elementwise_kernelI"]);
    assert_eq!(driver.library_load_data(&image.as_slice(), &mut log), Err(CudaError::NO_BINARY_FOR_GPU));
    assert!(log.error.contains("machine code (kernels a, _ZN2at6native18elementwise_kernelI)"), "{}", log.error);
}
