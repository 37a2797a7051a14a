//! Bulk copies.

use std::cell::{Cell, RefCell};

use super::Cta;
use super::memory::generic;
use super::races::Touch;
use crate::ir::Operand;
use crate::launch::{Access, AccessError, Exception, GlobalMemory};
use crate::tensor::{MAX_ADDRESSES, MAX_WORDS, Transfer};

impl Cta {
    /// Makes a copy for one thread.
    pub(super) fn transfer(
        &mut self,
        memory: &dyn GlobalMemory,
        thread: usize,
        transfer: &Transfer,
        srcs: &[Operand],
    ) -> Result<(), Exception> {
        let (count, _) = transfer.sources();
        let mut values = [0; 1 + MAX_WORDS + MAX_ADDRESSES];
        for (value, src) in values.iter_mut().zip(srcs) {
            *value = self.operand(thread, *src);
        }
        let mut words = [0; MAX_WORDS];
        for (word, value) in words.iter_mut().zip(&values[1..]) {
            *word = *value as u32;
        }
        let addresses = values.get(1 + count..).ok_or(Exception::Illegal)?;
        let view = View { cta: RefCell::new(self), memory, thread, refused: Cell::new(None) };
        let done = transfer.perform(values[0], &words, addresses, &view);
        // What memory says of an access, it says of the address, not of the thread's.
        match (done, view.refused.get()) {
            (Err(_), Some(exception)) => Err(exception),
            (done, _) => done,
        }
    }
}

/// Generic addresses as one thread sees them.
struct View<'a> {
    cta: RefCell<&'a mut Cta>,
    memory: &'a dyn GlobalMemory,
    thread: usize,
    /// Why an access failed that was not allowed.
    refused: Cell<Option<Exception>>,
}

impl View<'_> {
    fn outcome<T>(&self, done: Result<T, Exception>) -> Result<T, AccessError> {
        done.map_err(|exception| {
            self.refused.set(Some(exception));
            match exception {
                Exception::Access { error, .. } => error,
                _ => AccessError::OutOfWindow,
            }
        })
    }
}

impl GlobalMemory for View<'_> {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let mut cta = self.cta.borrow_mut();
        let at = (generic(address, cta.rank), address);
        let allowed = cta.observe(self.thread, at, out.len(), Touch::plain(Access::Read, None));
        self.outcome(allowed.and_then(|()| cta.load(self.memory, self.thread, at, out)))
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        let mut cta = self.cta.borrow_mut();
        let at = (generic(address, cta.rank), address);
        let allowed = cta.observe(self.thread, at, data.len(), Touch::plain(Access::Write, Some(data)));
        self.outcome(allowed.and_then(|()| cta.store(self.memory, self.thread, at, data)))
    }

    fn update(&self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
        let mut cta = self.cta.borrow_mut();
        let at = (generic(address, cta.rank), address);
        let allowed = cta.observe(self.thread, at, bytes as usize, Touch::plain(Access::Atomic, None));
        self.outcome(allowed.and_then(|()| cta.modify(self.memory, at, bytes, f)))
    }
}
