//! More streams than the GPU has channels for a context.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_core::Stream;
use gpu::DevAddr;

use crate::support::{memory, start, words};

const STREAMS: u32 = 1024;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A ring of streams: each waits for an event of the one before, and for a function of the host; the first for a word that the
/// last stream of all stores.
#[test]
fn a_thousand_used_streams_of_one_context_device() {
    let (driver, _module) = start();
    let data = driver.mem_alloc(u64::from(STREAMS) * 4).unwrap();
    let flag = driver.mem_alloc(4).unwrap();
    driver.memset(flag, 0, 4, 1, Stream::NULL).unwrap();
    let word = |index: u32| DevAddr(data.0 + u64::from(index) * 4);
    let streams: Vec<Stream> = (0..STREAMS).map(|_| driver.stream_create(NON_BLOCKING).unwrap()).collect();
    let called = Arc::new(AtomicU32::new(0));
    driver.stream_wait_value(streams[0], flag, 1, false, 0).unwrap();
    let mut before = None;
    for (index, stream) in (0..).zip(&streams) {
        if let Some(event) = before {
            driver.stream_wait_event(*stream, event, 0).unwrap();
            // Each word is one more than its neighbour's, if all is in order.
            driver.memcpy_dtod_async(word(index), word(index - 1), 4, *stream).unwrap();
        }
        driver.memset_async(word(index), index + 1, 4, 1, *stream).unwrap();
        if index % 16 == 0 {
            let called = Arc::clone(&called);
            let count = move || {
                called.fetch_add(1, Ordering::SeqCst);
            };
            driver.launch_host_func(*stream, Box::new(count)).unwrap();
        }
        let event = driver.event_create(0).unwrap();
        driver.event_record(event, *stream).unwrap();
        before = Some(event);
    }
    assert!(driver.event_query(before.unwrap()).is_err(), "all wait for the first");
    let last = driver.stream_create(NON_BLOCKING).unwrap();
    driver.stream_write_value(last, flag, 1, false, 0).unwrap();
    for stream in streams {
        driver.stream_synchronize(stream).unwrap();
        driver.stream_destroy(stream).unwrap();
    }
    assert_eq!(called.load(Ordering::SeqCst), STREAMS / 16);
    let out = memory(&vec![0; STREAMS as usize * 4]);
    driver.memcpy_dtoh(out.range(0, STREAMS as usize * 4), data, Stream::NULL).unwrap();
    let mut got = vec![0; STREAMS as usize * 4];
    out.read(0, &mut got);
    assert_eq!(got, words(1..=STREAMS));
}
