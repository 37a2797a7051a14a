//! What comes from the device at any moment: interrupts. Held apart from everything else, because the driver's interrupt thread must
//! not wait for what a guest is doing.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gpu_driver::Mediator;
use gpu_spec::fault::Fault;
use gpu_spec::regs::vector;
use parking_lot::{Condvar, Mutex};
use vfio_user::{Interrupts, pci};

use crate::balloon::Balloon;
use crate::interrupts::Tree;

/// Most faults that wait to be told.
const MOST_FAULTS: usize = 1024;

/// The guest's interrupt tree, news for the mediator's thread, and for who waits for the guest.
pub(crate) struct Lines {
    tree: Mutex<Wired>,
    news: Mutex<News>,
    woken: Condvar,
    balloon: Arc<Balloon>,
    /// Why the device is gone for the guest.
    lost: OnceLock<String>,
}

/// The tree, and where its line ends.
#[derive(Default)]
struct Wired {
    tree: Tree,
    interrupts: Option<Arc<Interrupts>>,
    /// The guest wants no interrupts by wire.
    wire_off: bool,
}

impl Wired {
    fn drive_wire(&self) {
        if let Some(interrupts) = &self.interrupts {
            interrupts.set_level(pci::INTX, 0, self.tree.line() && !self.wire_off);
        }
    }
}

/// What has happened.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) faults: VecDeque<Fault>,
    /// Channels were stopped.
    pub(crate) errors: bool,
    /// A guest has rung, or there is something to go on with.
    pub(crate) rung: bool,
    pub(crate) ended: bool,
}

impl Lines {
    pub(crate) fn new(balloon: Arc<Balloon>) -> Lines {
        Lines { tree: Mutex::default(), news: Mutex::default(), woken: Condvar::new(), balloon, lost: OnceLock::new() }
    }

    /// Where interrupts go from now on.
    pub(crate) fn attach(&self, interrupts: Option<Arc<Interrupts>>) {
        self.tree.lock().interrupts = interrupts;
    }

    /// Makes a vector pending.
    pub(crate) fn raise(&self, vector: u32) {
        self.change(|tree| tree.raise(vector));
    }

    /// Looks at the tree.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Tree) -> R) -> R {
        look(&self.tree.lock().tree)
    }

    /// Changes the tree, and the line with it. A message is sent for whatever may be new.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Tree) -> R) -> R {
        let mut wired = self.tree.lock();
        let result = change(&mut wired.tree);
        wired.drive_wire();
        if let Some(interrupts) = &wired.interrupts
            && wired.tree.line()
        {
            interrupts.trigger(pci::MSIX, 0);
        }
        result
    }

    /// Whether the guest wants no interrupts by wire. They would be worse than useless: from the first one on QEMU traps every
    /// access to the BARs, to see when it has been dealt with, and for devices like this one never stops.
    pub(crate) fn set_wire_off(&self, off: bool) {
        let mut wired = self.tree.lock();
        wired.wire_off = off;
        wired.drive_wire();
    }

    /// Waits for news, at most so long; gives what there is.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> News {
        let mut news = self.news.lock();
        if !(news.errors || news.rung || news.ended) && news.faults.is_empty() {
            match timeout {
                Some(timeout) => drop(self.woken.wait_for(&mut news, timeout)),
                None => self.woken.wait(&mut news),
            }
        }
        let ended = news.ended;
        let taken = std::mem::take(&mut *news);
        news.ended = ended;
        taken
    }

    /// Adds to the news.
    pub(crate) fn tell(&self, add: impl FnOnce(&mut News)) {
        add(&mut self.news.lock());
        self.woken.notify_one();
    }

    /// The device is gone for the guest, whatever it still has to say. Nobody waits for the guest any more. False if it was gone
    /// already, and why.
    pub(crate) fn lose(&self, why: &dyn std::fmt::Display) -> bool {
        let first = self.lost.set(why.to_string()).is_ok();
        self.balloon.end();
        first
    }

    /// Whether the device is gone: all registers read as ones.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Why it is gone, if it is.
    pub(crate) fn why_lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }
}

impl Mediator for Lines {
    fn fault(&self, fault: &Fault) {
        self.tell(|news| {
            if news.faults.len() < MOST_FAULTS {
                news.faults.push_back(*fault);
            }
        });
    }

    fn channel_error(&self) {
        self.tell(|news| news.errors = true);
    }

    fn signal(&self) {
        self.raise(vector::NON_STALL);
    }

    fn lost(&self) {
        self.lose(&"the GPU is lost");
        // The guest's driver looks, and finds nothing there.
        self.raise(vector::CHANNEL_ERROR);
    }
}
