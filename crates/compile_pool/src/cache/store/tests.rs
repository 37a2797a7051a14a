use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use super::*;
use crate::cache::{Shelf, checksum};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("sundial-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key(n: u64) -> Key {
    Key(checksum(&n.to_le_bytes()))
}

fn shelf(store: &Arc<Store>) -> Shelf {
    let (ours, theirs) = unix::pair().unwrap();
    let store = Arc::clone(store);
    std::thread::spawn(move || store.serve(&theirs));
    Shelf::new(ours)
}

#[test]
fn what_was_put_is_found_and_nothing_else() {
    let scratch = Scratch::new("put");
    let store = Arc::new(Store::open(&scratch.0, 1 << 20).unwrap());
    let shelf = shelf(&store);
    assert_eq!(shelf.get(&key(1)), None);
    for n in 0..20_u64 {
        shelf.put(&key(n), &n.to_le_bytes().repeat(100));
    }
    for n in 0..20_u64 {
        assert_eq!(shelf.get(&key(n)), Some(n.to_le_bytes().repeat(100)));
    }
    // Another daemon, later.
    let later = Arc::new(Store::open(&scratch.0, 1 << 20).unwrap());
    assert!(self::shelf(&later).get(&key(7)).is_some());
}

#[test]
fn a_directory_that_was_removed_is_made_again() {
    let scratch = Scratch::new("removed");
    let store = Arc::new(Store::open(&scratch.0, 1 << 20).unwrap());
    let shelf = shelf(&store);
    for n in 0..3 {
        assert_eq!(shelf.get(&key(n)), None);
        shelf.put(&key(n), b"code");
        assert_eq!(shelf.get(&key(n)).as_deref(), Some(&b"code"[..]));
        assert_eq!(std::fs::metadata(&scratch.0).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::remove_dir_all(&scratch.0).unwrap();
    }
    // What somebody else put in its place is not written to.
    let elsewhere = Scratch::new("elsewhere");
    std::fs::create_dir(&elsewhere.0).unwrap();
    std::fs::set_permissions(&elsewhere.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink(elsewhere.0.join("nowhere"), &scratch.0).unwrap();
    assert!(store.put(&key(9), protocol::memory_file("test", &[b"x"]).unwrap()).is_err());
    std::fs::remove_file(&scratch.0).unwrap();
}

#[test]
fn damaged_and_foreign_files_count_as_missing() {
    let scratch = Scratch::new("damage");
    let store = Arc::new(Store::open(&scratch.0, 1 << 20).unwrap());
    let shelf = shelf(&store);
    let content = vec![7; 1000];
    let write = |bytes: &[u8]| std::fs::write(store.path(&key(1)), bytes).unwrap();
    shelf.put(&key(1), &content);
    assert!(shelf.get(&key(1)).is_some());
    let good = std::fs::read(store.path(&key(1))).unwrap();
    for at in [0, 31, 32, 500, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        write(&bad);
        assert_eq!(shelf.get(&key(1)), None, "byte {at} changed");
    }
    for length in [0, 10, 32, 900] {
        write(&good[..length]);
        assert_eq!(shelf.get(&key(1)), None, "cut to {length}");
    }
    // A new one takes the place of what is damaged.
    shelf.put(&key(1), &content);
    assert_eq!(shelf.get(&key(1)).as_ref(), Some(&content));

    // Whoever may write there, or a link to elsewhere, is not believed.
    std::fs::set_permissions(store.path(&key(1)), std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(shelf.get(&key(1)), None);
    std::fs::write(scratch.0.join("elsewhere"), &good).unwrap();
    std::os::unix::fs::symlink(scratch.0.join("elsewhere"), store.path(&key(2))).unwrap();
    assert_eq!(shelf.get(&key(2)), None);
    std::fs::create_dir(store.path(&key(3))).unwrap();
    assert_eq!(shelf.get(&key(3)), None);

    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o770)).unwrap();
    assert!(Store::open(&scratch.0, 1 << 20).is_err());
}

#[test]
fn the_oldest_go_when_it_is_full() {
    let scratch = Scratch::new("full");
    let store = Store::open(&scratch.0, 10_000).unwrap();
    let put = |store: &Store, n: u64| {
        let file = protocol::memory_file("test", &[&[n as u8; 1000]]).unwrap();
        store.put(&key(n), file).unwrap();
        // Times on disk may be coarse.
        let opened = File::open(store.path(&key(n))).unwrap();
        opened.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(n)).unwrap();
    };
    for n in 0..10 {
        put(&store, n);
    }
    assert!(store.get(&key(0)).is_some(), "used now");
    put(&store, 10);
    let left: Vec<u64> = (0..11).filter(|&n| store.path(&key(n)).exists()).collect();
    assert_eq!(left, [0, 5, 6, 7, 8, 9, 10], "three quarters, the ones used last");
    let large = protocol::memory_file("test", &[&[0; 10_001]]).unwrap();
    assert!(store.put(&key(99), large).is_err());
    // What a dead writer left goes, what one is writing stays.
    let (old, new) = (scratch.0.join("x.1-1"), scratch.0.join("y.1-1"));
    File::create(&old).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
    File::create(&new).unwrap();
    Store::open(&scratch.0, 10_000).unwrap();
    assert!(!old.exists() && new.exists());
}

/// A compiler whose way to the cache is closed ends.
#[test]
fn an_answer_that_comes_late_is_not_taken_for_another_and_ends_nothing() {
    let scratch = Scratch::new("late");
    let store = Arc::new(Store::open(&scratch.0, 1 << 20).unwrap());
    let (ours, theirs) = unix::pair().unwrap();
    let shelf = Shelf::new(ours);
    for n in 0..3_u64 {
        shelf.put(&key(n), &n.to_le_bytes());
    }
    // Nobody serves it yet: it has given up when the first answer comes.
    assert_eq!(shelf.get(&key(0)), None);
    let serving = std::thread::spawn(move || store.serve(&theirs));
    assert_eq!(shelf.get(&key(1)).as_deref(), Some(&1_u64.to_le_bytes()[..]));
    assert_eq!(shelf.get(&key(9)), None);
    assert_eq!(shelf.get(&key(2)).as_deref(), Some(&2_u64.to_le_bytes()[..]));
    assert!(!serving.is_finished());
    drop(shelf);
    serving.join().unwrap();
}

#[test]
fn nobody_waits_for_who_sweeps() {
    let scratch = Scratch::new("sweeping");
    let store = Arc::new(Store::open(&scratch.0, 3_000).unwrap());
    let sweeping = store.sweeping.lock();
    let shelf = shelf(&store);
    for n in 0..5 {
        shelf.put(&key(n), &[n as u8; 1000]);
        assert!(shelf.get(&key(n)).is_some());
    }
    drop(sweeping);
    shelf.put(&key(5), &[5; 1000]);
    assert!(shelf.get(&key(5)).is_some());
    let left = (0..6).filter(|&n| store.path(&key(n)).exists()).count();
    assert_eq!(left, 2, "the next one sweeps");
}

#[test]
fn writers_and_readers_at_once_see_whole_files() {
    let scratch = Scratch::new("race");
    // So small that sweeping goes on all the time.
    let store = Arc::new(Store::open(&scratch.0, 40_000).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let shelf = shelf(&store);
            scope.spawn(move || {
                for round in 0..50_u64 {
                    let n = (round * 7 + thread) % 8;
                    shelf.put(&key(n), &n.to_le_bytes().repeat(1000));
                    if let Some(found) = shelf.get(&key((n + 3) % 8)) {
                        assert_eq!(found, ((n + 3) % 8).to_le_bytes().repeat(1000));
                    }
                }
            });
        }
    });
    let left: u64 = std::fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(left <= 40_000, "{left}");
}

#[test]
fn garbage_on_the_socket_ends_the_conversation() {
    let scratch = Scratch::new("garbage");
    let store = Arc::new(Store::open(&scratch.0, 1 << 20).unwrap());
    for message in [&b"g"[..], b"x12345678901234567890123456789012", b"p12345678901234567890123456789012"] {
        let (ours, theirs) = unix::pair().unwrap();
        unix::send(&ours, message, &[], true).unwrap();
        store.serve(&theirs);
        drop(theirs);
        assert_eq!(unix::receive(&ours, &mut [0; 4]).map(|received| received.length).unwrap_or(0), 0);
    }
}
