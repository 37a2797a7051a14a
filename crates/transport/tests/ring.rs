//! The ring against a plain queue, between threads, and against a peer that writes nonsense.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostmem::{Mapping, Memfd};
use proptest::prelude::*;
use transport::{Consumer, Producer, RingError, ring};

const CAPACITY: usize = 1024;

fn area() -> Arc<Mapping> {
    Arc::new(Memfd::create("ring", ring::bytes(CAPACITY) as u64).unwrap().map().unwrap())
}

fn ends() -> (Arc<Mapping>, Producer, Consumer) {
    let map = area();
    (Arc::clone(&map), Producer::new(Arc::clone(&map), 0, CAPACITY), Consumer::new(map, 0, CAPACITY))
}

proptest! {
    /// The slow twin: frames come out as from a `VecDeque`, and a push fails only when the ring is rather full.
    #[test]
    fn behaves_as_a_queue(steps in prop::collection::vec(prop_oneof![(0usize..520).prop_map(Some), Just(None)], 1..400)) {
        let (_, mut producer, mut consumer) = ends();
        let mut twin: VecDeque<Vec<u8>> = VecDeque::new();
        let mut out = Vec::new();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Some(length) => {
                    let frame: Vec<u8> = (0..length).map(|b| (b * 7 + i) as u8).collect();
                    let (a, b) = frame.split_at(length / 3);
                    match producer.try_push(&[a, b]) {
                        Ok(true) => twin.push_back(frame),
                        Ok(false) if twin.is_empty() => {
                            // The consumer gives room back at the latest when it finds the ring empty.
                            prop_assert!(!consumer.try_pop(&mut out).unwrap());
                            prop_assert!(producer.try_push(&[&frame]).unwrap());
                            twin.push_back(frame);
                        }
                        Ok(false) => {}
                        Err(error) => {
                            prop_assert_eq!(error, RingError::TooLong { bytes: length, limit: producer.limit() });
                            prop_assert!(length > producer.limit());
                        }
                    }
                }
                None => {
                    let got = consumer.try_pop(&mut out).unwrap();
                    let want = twin.pop_front();
                    prop_assert_eq!(got.then_some(&out), want.as_ref());
                }
            }
        }
        while let Some(want) = twin.pop_front() {
            prop_assert!(consumer.try_pop(&mut out).unwrap());
            prop_assert_eq!(&out, &want);
        }
        prop_assert!(!consumer.try_pop(&mut out).unwrap());
    }

    /// Whatever a hostile producer writes, the consumer ends with an error or runs out of frames: no panic, no endless loop.
    #[test]
    fn consumer_survives_garbage(head in any::<u64>(), junk in prop::collection::vec(any::<u8>(), CAPACITY), small in any::<bool>()) {
        let (map, _, mut consumer) = ends();
        map.write(256, &junk);
        map.u64_at(0).store(if small { head % (2 * CAPACITY as u64) } else { head }, Ordering::Relaxed);
        let mut out = Vec::new();
        for _ in 0..=CAPACITY / 8 {
            match consumer.try_pop(&mut out) {
                Ok(true) => prop_assert!(out.len() < CAPACITY),
                Ok(false) | Err(_) => return Ok(()),
            }
        }
        prop_assert!(false, "more frames than the ring holds");
    }

    /// A hostile consumer's index never makes the producer write over what was not given back, nor outside the ring: it
    /// agrees, push by push, with a model that believes only what can be.
    #[test]
    fn producer_survives_garbage(tails in prop::collection::vec(tail(), 1..40)) {
        const GUARD: usize = 64;
        const NEED: u64 = 208;
        let whole = ring::bytes(CAPACITY);
        let map = Arc::new(Memfd::create("ring", (whole + 2 * GUARD) as u64).unwrap().map().unwrap());
        map.fill(0, GUARD, 0xa5);
        map.fill(GUARD + whole, GUARD, 0xa5);
        let mut producer = Producer::new(Arc::clone(&map), GUARD, CAPACITY);
        let capacity = CAPACITY as u64;
        let (mut head, mut known) = (0u64, 0u64);
        let mut frames: Vec<(u64, u8)> = Vec::new();
        for (round, published) in tails.into_iter().enumerate() {
            map.u64_at(GUARD + 64).store(published, Ordering::Relaxed);
            for value in (0..3).map(|i| (round * 3 + i) as u8) {
                let to_end = capacity - head % capacity;
                let skip = if NEED > to_end { to_end } else { 0 };
                let fits = |known: u64| head + skip + NEED - known <= capacity;
                let expected = if fits(known) {
                    Ok(true)
                } else if published < known || published > head || published % 8 != 0 {
                    Err(RingError::Corrupt)
                } else {
                    known = published;
                    Ok(fits(known))
                };
                prop_assert_eq!(producer.try_push(&[&[value; 200]]), expected);
                match expected {
                    Ok(true) => {
                        frames.push((head + skip, value));
                        head += skip + NEED;
                    }
                    Ok(false) => {}
                    Err(_) => return Ok(()),
                }
                for &(at, value) in frames.iter().filter(|(at, _)| *at >= known) {
                    let mut bytes = [0; 208];
                    map.read(GUARD + 256 + (at % capacity) as usize, &mut bytes);
                    prop_assert!(bytes[..4] == 200u32.to_le_bytes() && bytes[8..] == [value; 200], "frame at {}", at);
                }
                let mut guards = [0; 2 * GUARD];
                let (before, after) = guards.split_at_mut(GUARD);
                map.read(0, before);
                map.read(GUARD + whole, after);
                prop_assert_eq!(guards, [0xa5; 2 * GUARD]);
            }
        }
    }
}

/// What a consumer may publish: any number, or one that is likely to be believed.
fn tail() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), (0u64..4096), (0u64..1024).prop_map(|n| n * 8), (0u64..40).prop_map(|n| n * 208)]
}

#[test]
fn threads_exchange_everything_in_order() {
    let (_, mut producer, mut consumer) = ends();
    const FRAMES: u32 = 20_000;
    let sender = std::thread::spawn(move || {
        for i in 0..FRAMES {
            let payload = vec![i as u8; (i % 300) as usize];
            producer.push(&[&i.to_le_bytes(), &payload], &|| true).unwrap();
        }
    });
    let mut frame = Vec::new();
    for i in 0..FRAMES {
        consumer.pop(&mut frame, &|| true).unwrap();
        assert_eq!(frame[..4], i.to_le_bytes());
        assert!(frame[4..].iter().all(|&b| b == i as u8) && frame.len() == 4 + (i % 300) as usize);
    }
    sender.join().unwrap();
}

#[test]
fn sleepers_learn_that_the_peer_is_gone() {
    let (_, mut producer, mut consumer) = ends();
    let alive = Arc::new(AtomicBool::new(true));
    let waker = consumer.waker();
    let seen = Arc::clone(&alive);
    let waiter = std::thread::spawn(move || consumer.pop(&mut Vec::new(), &|| seen.load(Ordering::SeqCst)));
    alive.store(false, Ordering::SeqCst);
    let start = Instant::now();
    waker.wake();
    assert_eq!(waiter.join().unwrap(), Err(RingError::PeerGone));
    assert!(start.elapsed() < Duration::from_secs(5));
    let filled = (0..100).find_map(|_| producer.push(&[&[0; 100]], &|| false).err());
    assert_eq!(filled, Some(RingError::PeerGone), "a full ring whose consumer is dead");
}

/// The other way for frames: a queue, with limits, an end for who waits, and no trust in the peer.
mod messages {
    use std::os::fd::OwnedFd;

    use transport::{Messages, Receiver, RingError, Sender, unix};

    const LIMIT: usize = 4096;

    fn ends() -> (Messages, OwnedFd) {
        let (ours, theirs) = unix::pair().unwrap();
        (Messages::new(ours, LIMIT).unwrap(), theirs)
    }

    #[test]
    fn frames_come_whole_and_in_order() {
        let (ours, theirs) = ends();
        let theirs = Messages::new(theirs, LIMIT).unwrap();
        let (mut sender, mut receiver) = (Sender::Messages(ours), Receiver::Messages(theirs));
        let mut out = vec![1; 9];
        assert_eq!(receiver.try_pop(&mut out), Ok(false));
        assert_eq!((sender.limit(), out.len()), (LIMIT, 0));
        sender.push(&[b"one ", b"and ", b"the same"], &|| true).unwrap();
        sender.push(&[&[7; LIMIT]], &|| true).unwrap();
        assert_eq!(sender.try_push(&[&[7; LIMIT], b"!"]), Err(RingError::TooLong { bytes: LIMIT + 1, limit: LIMIT }));
        receiver.pop(&mut out, &|| true).unwrap();
        assert_eq!(out, b"one and the same");
        assert_eq!((receiver.try_pop(&mut out), out.len()), (Ok(true), LIMIT));
        // Somebody who takes nothing fills what the system keeps, and nothing of ours.
        let sent = (0..10_000).take_while(|_| sender.try_push(&[&[7; LIMIT]]).unwrap()).count();
        assert!(sent > 0 && sent < 10_000, "{sent}");
        assert_eq!(sender.push(&[&[7; LIMIT]], &|| false), Err(RingError::PeerGone));
    }

    #[test]
    fn who_waits_is_ended_and_strangers_are_not_believed() {
        let (ours, theirs) = ends();
        let mut receiver = Receiver::Messages(ours);
        unix::send(&theirs, &[1; LIMIT + 1], &[], true).unwrap();
        let mut out = Vec::new();
        assert_eq!(receiver.try_pop(&mut out), Err(RingError::Corrupt));
        // Descriptors that nobody asked for go, and their message is as any other.
        unix::send(&theirs, b"with a gift", &[std::os::fd::AsFd::as_fd(&theirs)], true).unwrap();
        assert_eq!((receiver.try_pop(&mut out), &out[..]), (Ok(true), &b"with a gift"[..]));
        assert_eq!(receiver.pop(&mut out, &|| false), Err(RingError::PeerGone));
        let ender = receiver.ender();
        let waiting = std::thread::spawn(move || receiver.pop(&mut Vec::new(), &|| true));
        ender.end();
        assert_eq!(waiting.join().unwrap(), Err(RingError::PeerGone));
        let (ours, theirs) = ends();
        drop(theirs);
        assert_eq!(ours.push(&[b"to nobody"], &|| true), Err(RingError::PeerGone));
    }
}
