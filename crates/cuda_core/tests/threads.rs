//! Which threads the API has. They are all of the process's, so nobody else tests anything here.

#![cfg(test)]

use cuda_core::{CudaError, Stream};

use crate::support::{memory, own_pages, start};

#[expect(dead_code, reason = "of what it has, some is used here")]
#[path = "device/support.rs"]
mod support;

#[test]
fn a_stream_waits_for_what_the_host_stores_device() {
    let (driver, _) = start();
    let stream = driver.stream_create(1).unwrap();
    let pages = own_pages(&[0; 4096]);
    let own = pages.range();
    driver.mem_host_register(pages, 0).unwrap();
    let flag = driver.mem_host_get_device_pointer(own.address() as u64, 0).unwrap();
    let managed = driver.mem_alloc_managed(8, 1).unwrap();
    driver.memset(managed, 0, 4, 2, Stream::NULL).unwrap();
    // No thread of this process looks for the value.
    let looking = || {
        let names = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "cuda-host-fn").count()
    };
    for (round, wide) in [false, true, false, true].into_iter().enumerate() {
        let value = round as u64 + 1;
        driver.stream_wait_value(stream, flag, value, wide, 0).unwrap();
        driver.stream_write_value(stream, managed, value << 33 | value, wide, 0).unwrap();
        assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
        assert_eq!(looking(), 0);
        own.write(&value.to_le_bytes());
        driver.stream_synchronize(stream).unwrap();
        let seen = memory(&[0; 8]);
        driver.memcpy_dtoh(seen.range(0, 8), managed, Stream::NULL).unwrap();
        let mut word = [0; 8];
        seen.read(0, &mut word);
        let word = u64::from_le_bytes(word);
        assert_eq!(if wide { word } else { word & 0xffff_ffff }, if wide { value << 33 | value } else { value });
    }
    driver.mem_host_unregister(own.address() as u64).unwrap();
}
